//! `sluice server` and `sluice up`: the program `sluice-server` beside this one.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use sluice_api::client::{NODE_FILE, Settings, data_folder};
use sluice_node::{JoinConfig, NodeConfig};

use crate::cli::{
    BackupArgs, BooksArgs, MembershipArgs, NodeArgs, RestoreArgs, ServerArgs, ServerCommandArgs, TlsArgs,
    UpArgs,
};
use crate::place;
use crate::quantity::Units;

const PROGRAM: &str = "sluice-server";

/// `sluice server`: becomes the server.
pub(crate) fn server(arguments: &ServerCommandArgs) -> Result<ExitCode> {
    let mut command = command(&arguments.server, &arguments.tls_args())?;
    if let Some(url) = &arguments.advertise {
        command.arg("--advertise").arg(url);
    }
    let error = command.exec();
    Err(error).with_context(|| command.get_program().display().to_string())
}

pub(crate) fn backup(arguments: &BackupArgs) -> Result<ExitCode> {
    copy("--backup", &arguments.to, &arguments.books)
}

pub(crate) fn restore(arguments: &RestoreArgs) -> Result<ExitCode> {
    copy("--restore", &arguments.from, &arguments.books)
}

fn copy(option: &str, folder: &Path, books: &BooksArgs) -> Result<ExitCode> {
    let mut command = Command::new(find()?);
    command.arg(option).arg(folder);
    keep_in(&mut command, books.data.as_deref(), books.database.as_deref());
    let error = command.exec();
    Err(error).with_context(|| command.get_program().display().to_string())
}

fn keep_in(command: &mut Command, data: Option<&Path>, database: Option<&str>) {
    if let Some(data) = data {
        command.arg("--data").arg(data);
    }
    if let Some(database) = database {
        // Not as an argument, which everybody on this machine could read: it may hold a password.
        command.env("SLUICE_DATABASE", database);
    }
}

fn command(arguments: &ServerArgs, tls: &TlsArgs) -> Result<Command> {
    let mut command = Command::new(find()?);
    command.arg("--listen").arg(&arguments.listen).arg("--grace").arg(arguments.grace.to_string());
    command.arg("--requests-per-second").arg(arguments.requests_per_second.to_string());
    command.arg("--failures-per-second").arg(arguments.failures_per_second.to_string());
    command.arg("--gpu-quiet").arg(arguments.gpu_quiet.to_string());
    if let Some(half_life) = arguments.use_half_life {
        let seconds = half_life.duration().as_secs().max(1);
        command.arg("--use-half-life").arg(seconds.to_string());
    }
    keep_in(&mut command, arguments.data.as_deref(), arguments.database.as_deref());
    match place::certificate(&arguments.listen, tls, arguments.data.as_deref())? {
        Some((certificate, key)) => {
            command.arg("--tls-cert").arg(certificate).arg("--tls-key").arg(key);
        }
        // It has been decided above.
        None => {
            command.arg("--plain-text");
        }
    }
    Ok(command)
}

fn find() -> Result<PathBuf> {
    let own = std::env::current_exe().context("where this program is")?;
    let beside = own.parent().unwrap_or(Path::new("/")).join(PROGRAM);
    if !beside.is_file() {
        bail!(
            "the control plane is a program of its own, and {} is not there; build it with \
             `cargo build --release -p sluice-server`, or install it beside `sluice`",
            beside.display()
        );
    }
    Ok(beside)
}

/// A server that lives as long as this value.
struct Running {
    child: Child,
    url: String,
}

impl Running {
    fn start(arguments: &ServerArgs, tls: &TlsArgs) -> Result<Running> {
        let mut command = command(arguments, tls)?;
        // Its standard input ends with this process, however that ends.
        command.arg("--until-stdin-ends").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| command.get_program().display().to_string())?;
        let stdout = child.stdout.take().context("piped above")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        match line.trim().strip_prefix("listening on ") {
            Some(url) => Ok(Running { url: url.to_owned(), child }),
            None => {
                let _ = child.kill();
                bail!("the control plane did not start ({})", child.wait()?)
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// `sluice up`: a server and a node until SIGINT or SIGTERM.
pub(crate) fn up(arguments: &UpArgs) -> Result<ExitCode> {
    let signals = place::EndSignals::block()?;
    let folder = data(arguments.server.data.as_deref())?;
    let server = Running::start(&arguments.server, &arguments.tls)?;
    println!("listening on {}", server.url);
    let settings = Settings::read(&folder.join(NODE_FILE))?;
    let token = settings.context("the control plane left no token for the node")?.token;
    let listen = match &arguments.node_listen {
        Some(listen) => listen.clone(),
        None => {
            let (host, _) = arguments.server.listen.rsplit_once(':').context("--listen is HOST:PORT")?;
            format!("{host}:7583")
        }
    };
    let (listen, tls) = place::listening(&listen, &arguments.tls, Some(&folder))?;
    let join = membership(&arguments.membership, &server.url, token, &folder)?;
    eprintln!("sluice: programs and commands find it by: export SLUICE_SERVER={}", server.url);
    let config = NodeConfig {
        listen: vec![listen],
        tls,
        nvml: arguments.nvml.clone(),
        driver_patience: place::driver_patience(arguments.driver_patience)?,
        host_memory: place::host_memory(arguments.host_memory)?,
        peers: arguments.peers.clone(),
        ..NodeConfig::default()
    };
    place::serve_node(&arguments.gpus, Some(join), config, signals)
}

/// How `sluice node` joins, if it does.
pub(crate) fn joining(arguments: &NodeArgs) -> Result<Option<JoinConfig>> {
    let Some(server) = &arguments.join else { return Ok(None) };
    let server = sluice_api::client::canonical(server)?;
    let token = match &arguments.token_file {
        Some(path) => std::fs::read_to_string(path).with_context(|| path.display().to_string())?,
        None => std::env::var("SLUICE_TOKEN").ok().context(
            "no token to join with: set SLUICE_TOKEN or --token-file (`sluice token create --role node --tenant /` \
             makes one)",
        )?,
    };
    membership(&arguments.membership, &server, token.trim().to_owned(), &data(None)?).map(Some)
}

fn membership(arguments: &MembershipArgs, server: &str, token: String, folder: &Path) -> Result<JoinConfig> {
    let name = match &arguments.name {
        Some(name) => name.clone(),
        None => host_name()?,
    };
    if name.contains('/') || name.starts_with('.') || name.is_empty() {
        bail!("--name {name:?}: a node's name has no / and does not begin with a point");
    }
    let journal = arguments.journal.clone().unwrap_or_else(|| folder.join("node").join(&name));
    Ok(JoinConfig {
        server: server.to_owned(),
        token,
        name,
        address: arguments.advertise.clone(),
        gflops: arguments.tflops.map(Units::milli),
        labels: arguments.labels.iter().cloned().collect(),
        folder: journal,
    })
}

fn data(named: Option<&Path>) -> Result<PathBuf> {
    let folder = named.map(Path::to_owned).or_else(data_folder);
    folder.context("no data folder: neither XDG_DATA_HOME nor HOME is set")
}

fn host_name() -> Result<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").context("the host's name; say --name")?;
    Ok(name.trim().to_owned())
}
