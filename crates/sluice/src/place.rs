//! Where a program runs: on a node that a server chooses, on a named one, or on a private one
//! inside this process.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use sluice_api::client::{Client, SERVER_VARIABLE, data_folder};
use sluice_metrics::ExporterConfig;
use sluice_node::{
    GpuSelection, HandedOver, Listen, NextProgram, Node, NodeConfig, Stopper, TAKE_OVER, user_cache,
};
use sluice_transport::Stream;
use sluice_transport::tls::{FileLog, ServerIdentity};
use sluice_wire::address::Endpoint;

use crate::cli::{GpuChoice, MetricsArgs, NodeArgs, PlaceArgs, TlsArgs};
use crate::node_token;
use crate::output;
use crate::quantity::{Memory, Period, SwapFile};
use crate::server::{self, join};

/// The environment variable that names the node to use.
const NODE_VARIABLE: &str = "SLUICE_NODE";

/// A node of several, with how many GPUs it gives, if that is said: `NODE` or `NODE=GPUS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) node: Endpoint,
    pub(crate) gpus: Option<u32>,
}

/// Nodes with commas between. A comma in the path of one socket is part of the path.
pub(crate) fn parts(text: &str) -> Result<Vec<Part>> {
    let part = |text: &str| -> Result<Part> {
        let (node, gpus) = match text.rsplit_once('=') {
            Some((node, gpus)) if !text.starts_with("unix:") => {
                let count = gpus.parse().ok().filter(|&count: &u32| count > 0);
                (node, Some(count.with_context(|| format!("{text:?}: {gpus:?} is no number of GPUs"))?))
            }
            _ => (text, None),
        };
        Ok(Part { node: node.parse()?, gpus })
    };
    let parts: Result<Vec<Part>> = text.split(',').map(part).collect();
    match (parts, text.parse()) {
        (Err(_), Ok(node)) => Ok(vec![Part { node, gpus: None }]),
        (parts, _) => parts,
    }
}

/// How many GPUs each node gives of `count`: what its part says, or as many as every other.
pub(crate) fn split(parts: &[Part], count: u32) -> Result<Vec<u32>> {
    let said: Vec<u32> = parts.iter().filter_map(|part| part.gpus).collect();
    let nodes = parts.len() as u32;
    if said.is_empty() {
        if !count.is_multiple_of(nodes) {
            bail!(
                "{count} GPUs cannot be split evenly over {nodes} nodes: say -n {}, or how many each gives, as in \
                 --node {}=2,{}=1",
                count.next_multiple_of(nodes),
                parts[0].node.place(),
                parts[1].node.place()
            );
        }
        return Ok(vec![count / nodes; parts.len()]);
    }
    if said.len() < parts.len() {
        bail!("--node says for some nodes how many GPUs they give; say it for all or for none");
    }
    let sum = said.iter().fold(0u32, |sum, gpus| sum.saturating_add(*gpus));
    // One GPU is what -n says by itself.
    if count != 1 && count != sum {
        bail!("-n {count} asks for another number of GPUs than --node, which names {sum}");
    }
    Ok(said)
}

/// Who is asked for a GPU.
pub(crate) enum Provider {
    Server(Client),
    Node(Endpoint),
    /// This machine.
    Private,
}

/// Where a program of `sluice run` gets its GPUs.
pub(crate) enum Source {
    Server(Client),
    Nodes(Vec<Part>),
    /// This machine.
    Private,
}

impl Source {
    /// As [`Provider::choose`], with several nodes where several are named.
    pub(crate) fn choose(server: Option<&str>, node: Option<&str>) -> Result<Source> {
        match node_text(server, node) {
            Some(text) => parts(&text).map(Source::Nodes),
            None => Ok(server::named(server)?.map_or(Source::Private, Source::Server)),
        }
    }
}

/// The node that is to be used: what the command line names comes before what the environment
/// names.
fn node_text(server: Option<&str>, node: Option<&str>) -> Option<String> {
    let environment = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
    match node {
        Some(node) => Some(node.to_owned()),
        None if server.is_some() || environment(SERVER_VARIABLE).is_some() => None,
        None => environment(NODE_VARIABLE),
    }
}

impl Provider {
    /// What the command line names comes before what the environment names, and that before what
    /// `sluice login` keeps.
    pub(crate) fn choose(server: Option<&str>, node: Option<&str>) -> Result<Provider> {
        if let Some(text) = node_text(server, node) {
            return Ok(Provider::Node(text.parse()?));
        }
        Ok(server::named(server)?.map_or(Provider::Private, Provider::Server))
    }

    /// As [`Provider::choose`], unless GPUs of this machine are asked for.
    pub(crate) fn of(arguments: &PlaceArgs) -> Result<Provider> {
        match arguments.gpus {
            Some(_) => Ok(Provider::Private),
            None => Provider::choose(arguments.server.as_deref(), arguments.node.as_deref()),
        }
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

    /// For a program of this user, in a `folder` as above: what its workers store is this user's
    /// alone, so they store machine code too.
    pub(crate) fn start_for_run(gpus: &GpuChoice, folder: &Path) -> Result<PrivateNode> {
        let listen = vec![Listen::Unix(folder.join("node.sock"))];
        let (cache, stores_code) = (user_cache("private"), true);
        let gpus = selection(gpus);
        PrivateNode::start_with(NodeConfig { listen, gpus, cache, stores_code, ..NodeConfig::default() })
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
                tracing::error!("the private node failed: {error}");
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

/// `sluice node`: serves until SIGINT or SIGTERM. At SIGUSR2 its process runs the program that is
/// on the disk then, which continues.
pub(crate) fn serve(arguments: &NodeArgs) -> Result<ExitCode> {
    let signals = EndSignals::block(&[libc::SIGUSR2])?;
    let (listen, tls) = listening(&arguments.listen, &arguments.tls, None)?;
    let linger = arguments.linger.duration();
    let config = NodeConfig {
        listen: vec![listen],
        tls,
        linger,
        token: match (&arguments.join, &arguments.token_file) {
            (None, Some(path)) => Some(node_token::load(path)?),
            _ => None,
        },
        nvml: arguments.nvml.clone(),
        driver_patience: driver_patience(arguments.driver_patience)?,
        host_memory: host_memory(arguments.host_memory)?,
        swap_memory: arguments.swap_memory.map(Memory::bytes),
        swap_file: arguments.swap_file.as_ref().map(SwapFile::config),
        memory_overcommit_ppm: arguments.overcommit.ppm(),
        max_wait: arguments.max_wait.duration(),
        idle_after: arguments.idle_after.map(Period::duration),
        churn: arguments.churn,
        peers: arguments.peers.clone(),
        metrics: arguments.metrics.exporter(&arguments.tls, None)?,
        ..NodeConfig::default()
    };
    let handed_over = arguments.state.check_state.or(arguments.state.take_over);
    if handed_over.is_none()
        && arguments.join.is_none()
        && arguments.tls.tls_client_ca.is_none()
        && config.token.is_none()
        && is_beyond_loopback(&arguments.listen)?
    {
        sluice_log::tell(&format!(
            "any client that reaches {} may take this node's GPUs: --token-file lends to holders of a token only, --tls-client-ca to holders of \
             certificates, --join through a server",
            arguments.listen
        ));
    }
    let join = join::joining(arguments)?;
    let config = NodeConfig { gpus: selection(&arguments.gpus), join, ..config };
    let config = NodeConfig { next_program: Some(next_program()?), ..config };
    let Some(descriptor) = handed_over else { return announce_and_serve(Node::bind(&config)?, signals) };
    // SAFETY: the daemon names a descriptor of its own, which this process has inherited, and
    // nothing else knows of it.
    let state = unsafe { HandedOver::read(descriptor) }?;
    if arguments.state.check_state.is_some() {
        state.check(&config)?;
        output::announce(sluice_node::READY);
        return Ok(ExitCode::SUCCESS);
    }
    // SAFETY: only the daemon says that to the program that it has its process run.
    let node = unsafe { Node::take_over(&config, state) }?;
    run_node(node, signals)
}

/// This program, as it is found on the disk when the node is upgraded, with these arguments.
fn next_program() -> Result<NextProgram> {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    // The number of a descriptor follows it.
    if let Some(at) = arguments.iter().position(|argument| argument == TAKE_OVER) {
        arguments.drain(at..arguments.len().min(at + 2));
    }
    // A link leads to the program that is to run then.
    let named = arguments.first().map(Path::new).filter(|name| name.components().count() > 1);
    let program = named.map_or_else(std::env::current_exe, std::path::absolute);
    Ok(NextProgram { program: program.context("this program's place on the disk")?, arguments })
}

/// What `--driver-patience` says.
pub(crate) fn driver_patience(patience: Period) -> Result<Duration> {
    /// The watcher speaks once a second, if the machine lets it.
    const LEAST: Duration = Duration::from_secs(3);
    let patience = patience.duration();
    ensure!(patience >= LEAST, "--driver-patience: 3s or more; NVML is asked once a second");
    Ok(patience)
}

/// What `--host-memory` says, in bytes.
pub(crate) fn host_memory(memory: Memory) -> Result<u64> {
    /// Room for the code of small programs.
    const LEAST: u64 = 64 << 20;
    ensure!(memory.bytes() >= LEAST, "--host-memory: 64MiB or more; programs keep their code there");
    Ok(memory.bytes())
}

/// Where a node listens, and what it shows there. Beyond loopback that is TLS, unless plain text is
/// asked for. A certificate of its own is kept in the data folder.
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
    let identity = identity.map_err(anyhow::Error::msg)?;
    identity.follow_files(FileLog {
        changed: |text| tracing::info!(target: "sluice_node", "{text}"),
        failed: |text| tracing::warn!(target: "sluice_node", "{text}"),
    })?;
    Ok((Listen::Tls(address), Some(identity)))
}

impl MetricsArgs {
    /// Where metrics are served, if they are.
    pub(crate) fn exporter(&self, tls: &TlsArgs, data: Option<&Path>) -> Result<Option<ExporterConfig>> {
        ensure!(
            self.metrics.is_some() || self.metrics_token_file.is_none(),
            "--metrics-token-file says to whom metrics are served: it needs --metrics ADDR"
        );
        metrics(self.metrics.as_deref(), self.metrics_token_file.as_deref(), tls, data)
    }
}

/// What serves metrics at an address. They name tenants and programs' leases, so beyond loopback
/// they are for holders of a token.
pub(crate) fn metrics(
    address: Option<&str>,
    token_file: Option<&Path>,
    tls: &TlsArgs,
    data: Option<&Path>,
) -> Result<Option<ExporterConfig>> {
    let Some(address) = address else { return Ok(None) };
    let what = || format!("--metrics {address}");
    ensure!(
        !matches!(address.parse().map_err(anyhow::Error::from).with_context(what)?, Endpoint::Unix(_)),
        "--metrics {address}: HOST:PORT is served, no socket file"
    );
    let token = token_file.map(node_token::load_for_metrics).transpose()?;
    ensure!(
        token.is_some() || !is_beyond_loopback(address).with_context(what)?,
        "--metrics {address}: beyond loopback any client that reaches it would see all tenants' leases; say --metrics-token-file FILE"
    );
    let identity = match certificate(address, tls, data)? {
        None => None,
        Some((certificate, key)) => {
            let identity = ServerIdentity::load(&certificate, &key, None).map_err(anyhow::Error::msg)?;
            identity.follow_files(FileLog {
                changed: |text| tracing::info!("{text}"),
                failed: |text| tracing::warn!("{text}"),
            })?;
            Some(identity)
        }
    };
    Ok(Some(ExporterConfig { address: address.parse::<Endpoint>()?.place(), tls: identity, token }))
}

fn is_beyond_loopback(listen: &str) -> Result<bool> {
    Ok(matches!(listen.parse().map_err(anyhow::Error::from)?, Endpoint::Tls { .. }))
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
    if tls.plain_text || !(is_beyond_loopback(text)? || asks_for_tls(tls)) {
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
    let files = sluice_node::own_certificate(&folder).with_context(|| folder.display().to_string())?;
    // Damage is reported here: the node made these files itself, so it can make them anew.
    let usable = ServerIdentity::load(&files.0, &files.1, None).map_err(anyhow::Error::msg);
    usable.with_context(|| {
        let folder = folder.display();
        format!("{folder} is damaged; put it back, or remove it, and a certificate with another fingerprint is made")
    })?;
    Ok(files)
}

/// A node until one of the signals comes; `config` says what the other arguments do not.
#[cfg(feature = "full")]
pub(crate) fn serve_node(
    gpus: &GpuChoice,
    join: Option<sluice_node::JoinConfig>,
    config: NodeConfig,
    signals: EndSignals,
) -> Result<ExitCode> {
    let config = NodeConfig { gpus: selection(gpus), join, ..config };
    announce_and_serve(Node::bind(&config)?, signals)
}

fn announce_and_serve(node: Node, signals: EndSignals) -> Result<ExitCode> {
    for address in node.addresses() {
        output::announce(&format!("listening on {address}"));
    }
    if let Some(url) = node.metrics_url() {
        sluice_log::tell(&format!("metrics at {url}"));
    }
    run_node(node, signals)
}

fn run_node(node: Node, signals: EndSignals) -> Result<ExitCode> {
    let (stopper, upgrader) = (node.stopper(), node.upgrader());
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        while signals.wait() == libc::SIGUSR2 {
            upgrader.upgrade();
        }
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
    /// Called before any thread starts, so that all of them inherit the mask. `more` are waited
    /// for, too, and mean something else.
    pub(crate) fn block(more: &[libc::c_int]) -> Result<EndSignals> {
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises the set before the others read it.
        let (set, result) = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
            libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
            for &signal in more {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            let result = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            (set.assume_init(), result)
        };
        if result != 0 {
            return Err(std::io::Error::from_raw_os_error(result)).context("blocking signals");
        }
        Ok(EndSignals(set))
    }

    /// The next one that comes.
    pub(crate) fn wait(&self) -> libc::c_int {
        let mut signal = 0;
        // SAFETY: the set is initialised and `signal` outlives the call.
        unsafe { libc::sigwait(&self.0, &mut signal) };
        signal
    }
}

/// The socket of a node on this machine, if it is one that a node names so, and can be reached from
/// here.
pub(crate) fn nearby(name: &str) -> Option<Endpoint> {
    let is_wanted = std::env::var_os(SHARED_MEMORY_VARIABLE).is_none_or(|value| value != "off");
    let path = Path::new(name);
    let is_there = || sluice_transport::is_node_socket(name) && Stream::connect_unix(path).is_ok();
    (is_wanted && is_there()).then(|| Endpoint::Unix(path.to_owned()))
}

/// Keeps a program on a node's own machine to the network.
const SHARED_MEMORY_VARIABLE: &str = "SLUICE_SHARED_MEMORY";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_split_over_nodes() {
        let of =
            |text: &str, count| split(&parts(text)?, count).map_err(|error| error.context(text.to_owned()));
        let check =
            |text: &str, count, expect: &[u32]| assert_eq!(of(text, count).expect(text), expect, "{text}");
        check("gpu1:7583,[::1]:7583", 4, &[2, 2]);
        check("gpu1:7583=2,gpu2:7583=1", 3, &[2, 1]);
        check("gpu1:7583=2,gpu2:7583=1", 1, &[2, 1]);
        check("unix:/run/a,b=1.sock", 3, &[3]);
        check("gpu1:7583", 3, &[3]);
        for (text, count, said) in [
            ("gpu1:7583,gpu2:7583", 3, "3 GPUs cannot be split evenly over 2 nodes: say -n 4"),
            ("gpu1:7583=2,gpu2:7583=1", 4, "-n 4 asks for another number of GPUs than --node, which names 3"),
            ("gpu1:7583=2,gpu2:7583", 3, "for all or for none"),
            ("gpu1:7583=0", 1, "\"0\" is no number of GPUs"),
            ("gpu1:7583,gpu2", 2, "\"gpu2\" is neither HOST:PORT"),
        ] {
            let error = format!("{:#}", of(text, count).expect_err(text));
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn metrics_beyond_loopback_need_a_token() {
        let scratch = crate::surroundings::Scratch::new().expect("a folder");
        let tls =
            TlsArgs { tls: false, tls_cert: None, tls_key: None, tls_client_ca: None, plain_text: false };
        let asked = |address: &str, token: bool| {
            let token_file = token.then(|| scratch.path().join("scrape.token"));
            metrics(Some(address), token_file.as_deref(), &tls, Some(scratch.path()))
        };
        let local = asked("127.0.0.1:9", false).expect("allowed").expect("served");
        assert!(local.token.is_none() && local.tls.is_none());
        let refused = asked("0.0.0.0:9", false).map(drop).expect_err("no token").to_string();
        assert!(refused.contains("--metrics-token-file"), "{refused}");
        let beyond = asked("0.0.0.0:9", true).expect("allowed").expect("served");
        assert!(beyond.token.is_some_and(|token| token.len() >= 16) && beyond.tls.is_some());
        assert!(asked("unix:/run/a", true).is_err() && asked("nonsense", true).is_err());
    }

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
