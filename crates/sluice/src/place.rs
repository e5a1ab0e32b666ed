//! Where a program runs: on a node that a server chooses, on a named one, or on a private one inside this process.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use sluice_api::client::{Client, SERVER_VARIABLE, data_folder};
use sluice_node::{GpuSelection, JoinConfig, Listen, Node, NodeConfig, Stopper};
use sluice_transport::tls::ServerIdentity;
use sluice_wire::address::Endpoint;

use crate::cli::{GpuChoice, NodeArgs, TlsArgs};
use crate::server::{self, process};

/// The environment variable that names the node to use.
const NODE_VARIABLE: &str = "SLUICE_NODE";

/// The node that the command line or the environment names, if any.
pub(crate) fn named_node(option: Option<&str>) -> Result<Option<Endpoint>> {
    let named = match option {
        Some(text) => Some(text.to_string()),
        None => std::env::var(NODE_VARIABLE).ok().filter(|text| !text.is_empty()),
    };
    named.map(|text| text.parse().map_err(anyhow::Error::from)).transpose()
}

/// Who is asked for a GPU.
pub(crate) enum Place {
    Server(Client),
    Node(Endpoint),
    /// This machine.
    Private,
}

impl Place {
    /// What the command line names comes before what the environment names, and that before what `sluice login` keeps.
    pub(crate) fn choose(server: Option<&str>, node: Option<&str>) -> Result<Place> {
        let environment = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let node_named = node.is_some() || (server.is_none() && !environment(SERVER_VARIABLE));
        if node_named && let Some(node) = named_node(node)? {
            return Ok(Place::Node(node));
        }
        Ok(server::named(server)?.map_or(Place::Private, Place::Server))
    }
}

/// A node that lives as long as this value.
pub(crate) struct PrivateNode {
    /// Where it listens.
    pub(crate) addresses: Vec<Endpoint>,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl PrivateNode {
    /// Listens on a socket in `folder`, which only this user can enter.
    pub(crate) fn start(gpus: &GpuChoice, folder: &Path) -> Result<PrivateNode> {
        PrivateNode::start_at(gpus, vec![Listen::Unix(folder.join("node.sock"))])
    }

    pub(crate) fn start_at(gpus: &GpuChoice, listen: Vec<Listen>) -> Result<PrivateNode> {
        PrivateNode::start_with(NodeConfig { listen, gpus: selection(gpus), ..NodeConfig::default() })
    }

    /// With addresses for TLS among them, whose certificate is made in `folder`.
    pub(crate) fn start_protected(
        gpus: &GpuChoice,
        listen: Vec<Listen>,
        folder: &Path,
    ) -> Result<PrivateNode> {
        let (certificate, key) = own_certificate(folder)?;
        let tls = Some(ServerIdentity::load(&certificate, &key, None).map_err(anyhow::Error::msg)?);
        PrivateNode::start_with(NodeConfig { listen, tls, gpus: selection(gpus), ..NodeConfig::default() })
    }

    fn start_with(config: NodeConfig) -> Result<PrivateNode> {
        let node = Node::bind(&config).context("cannot start a node on this machine")?;
        let addresses = node.addresses().iter().map(|address| address.parse()).collect::<Result<_, _>>()?;
        let stopper = node.stopper();
        let serve = move || {
            if let Err(error) = node.run() {
                eprintln!("sluice: the private node failed: {error}");
            }
        };
        let thread = std::thread::Builder::new().name("node".into()).spawn(serve)?;
        Ok(PrivateNode { addresses, stopper, thread: Some(thread) })
    }
}

impl PrivateNode {
    /// The first place where it listens.
    pub(crate) fn address(&self) -> &Endpoint {
        &self.addresses[0]
    }
}

impl Drop for PrivateNode {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// `sluice node`: serves until SIGINT or SIGTERM.
pub(crate) fn serve(arguments: &NodeArgs) -> Result<ExitCode> {
    let signals = EndSignals::block()?;
    let (listen, tls) = listening(&arguments.listen, &arguments.tls, None)?;
    let linger = arguments.linger.duration();
    let config = NodeConfig {
        listen: vec![listen],
        tls,
        linger,
        nvml: arguments.nvml.clone(),
        ..NodeConfig::default()
    };
    serve_node(&arguments.gpus, process::joining(arguments)?, config, signals)
}

/// Where a node listens, and what it shows there. Beyond loopback that is TLS, unless plain text is asked for. A certificate
/// of its own is kept in the data folder.
pub(crate) fn listening(
    text: &str,
    tls: &TlsArgs,
    data: Option<&Path>,
) -> Result<(Listen, Option<ServerIdentity>)> {
    if let Endpoint::Unix(path) = text.parse().map_err(anyhow::Error::from)? {
        if asks_for_tls(tls) {
            bail!("--listen {text}: a socket file is not for TLS; listen on HOST:PORT")
        }
        return Ok((Listen::Unix(path), None));
    }
    let address = text.parse::<Endpoint>()?.place();
    let Some((certificate, key)) = certificate(text, tls, data)? else {
        return Ok((Listen::Tcp(address), None));
    };
    let identity = ServerIdentity::load(&certificate, &key, tls.tls_client_ca.as_deref());
    Ok((Listen::Tls(address), Some(identity.map_err(anyhow::Error::msg)?)))
}

fn asks_for_tls(tls: &TlsArgs) -> bool {
    tls.tls || tls.tls_cert.is_some() || tls.tls_client_ca.is_some()
}

/// Certificate and key of who listens at `HOST:PORT`; none where that is plain text.
pub(crate) fn certificate(
    text: &str,
    tls: &TlsArgs,
    data: Option<&Path>,
) -> Result<Option<(PathBuf, PathBuf)>> {
    let beyond = matches!(text.parse().map_err(anyhow::Error::from)?, Endpoint::Tls { .. });
    if tls.plain_text || !(beyond || asks_for_tls(tls)) {
        return Ok(None);
    }
    if let (Some(certificate), Some(key)) = (&tls.tls_cert, &tls.tls_key) {
        return Ok(Some((certificate.clone(), key.clone())));
    }
    let folder = data.map(Path::to_owned).or_else(data_folder);
    let ways_out = || format!("--listen {text} needs TLS: say --tls-cert and --tls-key, or --plain-text");
    let folder = folder.context("no folder to keep a certificate in").with_context(ways_out)?;
    own_certificate(&folder).with_context(ways_out).map(Some)
}

/// The certificate that a machine has made for itself.
fn own_certificate(data: &Path) -> Result<(PathBuf, PathBuf)> {
    // A server's data folder, which this may be, is its user's alone.
    let made = DirBuilder::new().recursive(true).mode(0o700).create(data);
    made.with_context(|| data.display().to_string())?;
    let folder = data.join("tls");
    sluice_node::own_certificate(&folder).with_context(|| folder.display().to_string())
}

/// A node until one of the signals comes; `config` says what the other arguments do not.
pub(crate) fn serve_node(
    gpus: &GpuChoice,
    join: Option<JoinConfig>,
    config: NodeConfig,
    signals: EndSignals,
) -> Result<ExitCode> {
    let config = NodeConfig { gpus: selection(gpus), join, ..config };
    let node = Node::bind(&config)?;
    for address in node.addresses() {
        println!("listening on {address}");
    }
    let stopper = node.stopper();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        signals.wait();
        stopper.stop();
    })?;
    node.run()?;
    Ok(ExitCode::SUCCESS)
}

/// `sluice worker`, started by a node.
pub(crate) fn worker(arguments: &[std::ffi::OsString]) -> ExitCode {
    sluice_worker::main(arguments)
}

fn selection(gpus: &GpuChoice) -> GpuSelection {
    match gpus {
        GpuChoice::Auto => GpuSelection::Auto,
        GpuChoice::Nvidia => GpuSelection::Nvidia,
        GpuChoice::Library(path) => GpuSelection::Library(path.clone()),
        GpuChoice::Recording { model, count } => {
            GpuSelection::Recording { model: model.clone(), count: *count }
        }
        GpuChoice::Software { count, memory } => {
            GpuSelection::Software { count: *count, memory: memory.map(|memory| memory.bytes()) }
        }
    }
}

/// The signals that end a node in good order. Blocked in all threads, and waited for by one.
pub(crate) struct EndSignals(libc::sigset_t);

impl EndSignals {
    /// Called before any thread starts, so that all of them inherit the mask.
    pub(crate) fn block() -> Result<EndSignals> {
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises the set before the others read it.
        let (set, result) = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
            libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
            let result = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            (set.assume_init(), result)
        };
        if result != 0 {
            return Err(std::io::Error::from_raw_os_error(result)).context("blocking signals");
        }
        Ok(EndSignals(set))
    }

    fn wait(&self) {
        let mut signal = 0;
        // SAFETY: the set is initialised and `signal` outlives the call.
        unsafe { libc::sigwait(&self.0, &mut signal) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_beyond_loopback_has_to_be_asked_for() {
        let scratch = crate::surroundings::Scratch::new().expect("a folder");
        let args =
            |tls, plain_text| TlsArgs { tls, tls_cert: None, tls_key: None, tls_client_ca: None, plain_text };
        let check = |text: &str, args: &TlsArgs, expect: Listen| {
            let (listen, identity) = listening(text, args, Some(scratch.path())).expect(text);
            assert_eq!(identity.is_some(), matches!(listen, Listen::Tls(_)), "{text}");
            assert_eq!(listen, expect, "{text}");
        };
        let [local, beyond] = ["127.0.0.1:1", "0.0.0.0:1"];
        check(local, &args(false, false), Listen::Tcp(local.into()));
        check(local, &args(true, false), Listen::Tls(local.into()));
        check(beyond, &args(false, false), Listen::Tls(beyond.into()));
        check(beyond, &args(false, true), Listen::Tcp(beyond.into()));
        check("unix:/run/a", &args(false, false), Listen::Unix("/run/a".into()));
        assert!(listening("unix:/run/a", &args(true, false), None).is_err());
        let nowhere = Path::new("/proc/no-folder");
        let error = listening(beyond, &args(false, false), Some(nowhere)).expect_err("no certificate");
        for part in ["--tls-cert", "--plain-text"] {
            assert!(format!("{error:#}").contains(part), "{error:#}");
        }
    }
}
