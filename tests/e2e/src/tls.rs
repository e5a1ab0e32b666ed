//! Sessions over TLS: by fingerprint, by authority, through cuts and forged bytes; and one clear
//! line for each mistake.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};

use crate::node::{self, Node};
use crate::python;
use crate::relay::{End, Fate, Relay};
use crate::teams::Installation;
use crate::{
    NODE_GPUS, Test, bare_program, expect_failure, expect_pass, finish, program_file, sluice_run, start_node,
    tail,
};

pub(crate) const TESTS: &[Test] = &[
    ("TLS by fingerprint", by_fingerprint),
    ("TLS by authority", by_authority),
    ("TLS with certificates of clients", certificates_of_clients),
    ("a node lends to holders of its token", tokens_of_a_node),
    ("TLS through a server", through_a_server),
    ("TLS and what is wrong with it", mistakes),
    ("TLS sessions through cuts", through_cuts),
    ("TLS sessions through changed bytes", through_changed_bytes),
];

const LIMIT: Duration = Duration::from_secs(300);
const TENANTS: &str = "
tenants:
  - path: red
  - path: blue
";

/// A node on loopback that speaks TLS, with a certificate of its own.
pub(crate) fn start_protected() -> Result<Node> {
    let mut command = Command::new(node::sluice());
    command.args(["node", "--listen", "127.0.0.1:0", "--gpus", NODE_GPUS, "--tls"]);
    Node::start_command(command.env("XDG_DATA_HOME", crate::target_folder().join("tls-node")))
}

/// An address and the fingerprint behind it.
pub(crate) fn split(address: &str) -> Result<(&str, &str)> {
    address.split_once('/').with_context(|| format!("{address} has no fingerprint"))
}

fn by_fingerprint() -> Result<()> {
    let program = crate::logs().join("kernels-tls");
    python::nvcc(&program_file("kernels.cu"), &program)?;
    let tinygrad = python::TINYGRAD.ready()?;
    let node = start_protected()?;
    let share = &["-p", "0.5", "--memory", "1GiB"];
    expect_pass(sluice_run(&node, share).arg(program), "nvcc over TLS", LIMIT)?;
    let train = program_file("tinygrad_train.py");
    expect_pass(sluice_run(&node, share).arg(tinygrad).arg(train), "tinygrad over TLS", LIMIT)?;
    expect_pass(&mut bare_program(&node, share, "driver_functions.py"), "driver functions over TLS", LIMIT)?;
    expect_failure(sluice_run(&node, &["-q"]).args(["nvidia-smi", "-L"]), "TLS: smi", 0, &["GPU 0", "UUID"])?;
    // The same certificate after a start.
    let (_, fingerprint) = split(&node.address)?;
    ensure!(split(&start_protected()?.address)?.1 == fingerprint, "the certificate does not stay");
    node.wait_until_free()
}

/// An authority and what it issues, in a folder.
pub(crate) struct Authority {
    folder: PathBuf,
    name: &'static str,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new(name: &'static str) -> Result<Authority> {
        let folder = crate::target_folder().join("tls-files");
        std::fs::create_dir_all(&folder)?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        std::fs::write(folder.join(format!("{name}.pem")), issuer.pem())?;
        Ok(Authority { folder, name, issuer })
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.join(format!("{}.pem", self.name))
    }

    /// A certificate for `localhost` that is good until the year, and its key.
    pub(crate) fn issue(&self, name: &str, until: i32) -> Result<(PathBuf, PathBuf)> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec!["localhost".to_owned()])?;
        params.not_after = date_time_ymd(until, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer)?;
        let path = |kind: &str| self.folder.join(format!("{}-{name}.{kind}", self.name));
        std::fs::write(path("pem"), certificate.pem())?;
        std::fs::write(path("key"), key.serialize_pem())?;
        Ok((path("pem"), path("key")))
    }

    fn start_node(&self, until: i32, clients: Option<&Path>) -> Result<Node> {
        let (certificate, key) = self.issue("node", until)?;
        let mut command = Command::new(node::sluice());
        command.args(["node", "--listen", "localhost:0", "--gpus", NODE_GPUS, "--tls-cert"]);
        command.arg(certificate).arg("--tls-key").arg(key);
        if let Some(clients) = clients {
            command.arg("--tls-client-ca").arg(clients);
        }
        Node::start_command(&mut command)
    }
}

/// `sluice run` of a node whose certificate is for `localhost`, without its fingerprint.
fn run_by_name(node: &Node, words: &[&str]) -> Result<Command> {
    let (_, port) = split(&node.address)?.0.rsplit_once(':').context("a port")?;
    let mut command = Command::new(node::sluice());
    command.args(["run", "--node", &format!("tls:localhost:{port}"), "--"]).args(words);
    Ok(command)
}

fn by_authority() -> Result<()> {
    let authority = Authority::new("authority")?;
    let program = program_file("driver_functions.py").display().to_string();
    let node = authority.start_node(2099, None)?;
    let mut command = run_by_name(&node, &["python3", &program])?;
    expect_pass(command.env("SLUICE_TLS_CA", authority.file()), "TLS by authority", LIMIT)?;
    node.wait_until_free()?;
    let mut unknown = run_by_name(&node, &["true"])?;
    expect_failure(&mut unknown, "TLS: no authority", 125, &["SLUICE_TLS_CA", "fingerprint", "plain-text:"])?;

    let expired = authority.start_node(2001, None)?;
    let mut command = run_by_name(&expired, &["true"])?;
    command.env("SLUICE_TLS_CA", authority.file());
    expect_failure(&mut command, "TLS: expired", 125, &["expired", "--tls-cert"])?;
    let foreign = Authority::new("stranger")?.start_node(2099, None)?;
    let mut command = run_by_name(&foreign, &["true"])?;
    command.env("SLUICE_TLS_CA", authority.file());
    expect_failure(&mut command, "TLS: foreign", 125, &["no authority in SLUICE_TLS_CA"])
}

fn tokens_of_a_node() -> Result<()> {
    let file = crate::logs().join("node.token");
    let _ = std::fs::remove_file(&file); // of an earlier run
    let start = || {
        let mut command = Command::new(node::sluice());
        command.args(["node", "--listen", "127.0.0.1:0", "--gpus", NODE_GPUS, "--tls", "--token-file"]);
        Node::start_command(command.arg(&file).env("XDG_DATA_HOME", crate::target_folder().join("tls-node")))
    };
    let node = start()?;
    let token = std::fs::read_to_string(&file)?;
    ensure!(file.metadata()?.permissions().mode() & 0o777 == 0o600, "others can read {}", file.display());
    let ask = |node: &Node, token: &str| {
        let mut command = Command::new(node::sluice());
        command.args(["gpus", "--node", &node.address]).env("SLUICE_NODE_TOKEN", token);
        command
    };
    let run_as = |node: &Node, token: &str| {
        let mut command = bare_program(node, &["-p", "0.5"], "driver_functions.py");
        command.env("SLUICE_NODE_TOKEN", token);
        command
    };
    for (token, says) in [("", "SLUICE_NODE_TOKEN"), ("another token than the node's", "not this node's")] {
        expect_failure(&mut run_as(&node, token), "a node's token: run", 125, &[says, "--token-file"])?;
        expect_failure(&mut ask(&node, token), "a node's token: gpus", 1, &[says, "--token-file"])?;
    }
    expect_pass(&mut run_as(&node, token.trim()), "a node's token", LIMIT)?;
    expect_failure(&mut ask(&node, &token), "a node's token: gpus", 0, &["Software"])?;
    // The same token after a start.
    drop(node);
    expect_failure(&mut ask(&start()?, &token), "a node's token: again", 0, &["Software"])?;
    ensure!(std::fs::read_to_string(&file)? == token, "the token does not stay");
    Ok(())
}

fn certificates_of_clients() -> Result<()> {
    let (authority, stranger) = (Authority::new("users")?, Authority::new("strangers")?);
    let node = authority.start_node(2099, Some(&authority.file()))?;
    expect_failure(sluice_run(&node, &[]).arg("true"), "TLS: nobody", 125, &["SLUICE_TLS_CERT"])?;
    let run_as = |(certificate, key): (PathBuf, PathBuf), program: &str| {
        let mut command = bare_program(&node, &["-p", "0.5"], program);
        command.env("SLUICE_TLS_CERT", certificate).env("SLUICE_TLS_KEY", key);
        command
    };
    let known = &mut run_as(authority.issue("user", 2099)?, "driver_functions.py");
    expect_pass(known, "TLS with a certificate of a client", LIMIT)?;
    let user = stranger.issue("user", 2099)?;
    let unknown = &mut run_as(user.clone(), "driver_functions.py");
    expect_failure(unknown, "TLS: stranger", 125, &[split(&node.address)?.0])?;

    // The strangers' authority comes into the file while the node runs.
    let both = std::fs::read_to_string(authority.file())? + &std::fs::read_to_string(stranger.file())?;
    let new = authority.file().with_extension("new");
    std::fs::write(&new, both)?;
    std::fs::rename(&new, authority.file())?;
    let deadline = Instant::now() + LIMIT;
    loop {
        let mut command = sluice_run(&node, &[]);
        command.arg("true").env("SLUICE_TLS_CERT", &user.0).env("SLUICE_TLS_KEY", &user.1);
        if finish(&mut command, "TLS: no stranger", LIMIT)?.code == Some(0) {
            break;
        }
        ensure!(Instant::now() < deadline, "the authorities of clients are not read again");
    }
    Ok(())
}

/// The node tells the server its fingerprint, and the lease tells the program.
fn through_a_server() -> Result<()> {
    let installation = Installation::start("tls-teams", TENANTS, &["two"], &["--tls"])?;
    split(&installation.node)?;
    let server = installation.administrator().server();
    ensure!(server.starts_with("https://"), "{server}");
    let program = program_file("driver_functions.py").display().to_string();
    let mut command = installation.red.command(&["run", "-p", "0.5", "--", "python3", &program]);
    expect_pass(&mut command, "TLS through a server", LIMIT).map(drop)
}

fn mistakes() -> Result<()> {
    let run_on = |address: &str| {
        let mut command = Command::new(node::sluice());
        command.args(["run", "--node", address, "--", "true"]);
        command
    };
    let fails = |address: &str, parts: &[&str]| {
        expect_failure(&mut run_on(address), &format!("TLS: {}", parts[0]), 125, parts)
    };
    let (sealed, plain) = (start_protected()?, start_node()?);
    let (address, fingerprint) = split(&sealed.address)?;
    let other = "ab".repeat(32);
    fails(&format!("{address}/{other}"), &["it is another node", fingerprint, &other])?;
    fails(address, &["this node speaks TLS", "fingerprint", "SLUICE_TLS_CA"])?;
    fails(&format!("{}/{fingerprint}", plain.address), &["does not speak TLS", "plain-text:"])?;
    fails(
        "gpu1.invalid:7583",
        &["nothing says how to know it", "SLUICE_TLS_CA", "plain-text:gpu1.invalid:7583"],
    )?;
    fails(&format!("{address}/12"), &["64 hexadecimal digits"])?;
    let mut both = Command::new(node::sluice());
    both.args(["node", "--listen", "127.0.0.1:0", "--tls", "--plain-text"]);
    expect_failure(&mut both, "TLS: both", 2, &["--plain-text"])?;
    let mut nowhere = Command::new(node::sluice());
    nowhere.args(["node", "--listen", "0.0.0.0:0"]).env("XDG_DATA_HOME", "/proc/nowhere");
    expect_failure(&mut nowhere, "TLS: no folder", 1, &["--tls-cert", "--plain-text"])?;
    sealed.wait_until_free()?;
    plain.wait_until_free()
}

/// `counts.py` on a node behind a relay.
fn counts(node: &Node, relay: &Relay) -> Result<Command> {
    let (_, fingerprint) = split(&node.address)?;
    let mut command = Command::new(node::sluice());
    command.args(["run", "-p", "0.5", "--memory", "512MiB", "--node"]);
    command.arg(format!("{}/{fingerprint}", relay.address)).args(["--", "python3"]);
    command.arg(program_file("counts.py")).env("ROUNDS", "60");
    Ok(command)
}

/// The first connection is the lease's, the second opens the session.
const OPENING: u32 = 2;

/// Cuts within the handshake, within the first records, and anywhere later.
fn through_cuts() -> Result<()> {
    const BYTES: &[u64] = &[
        30, 100, 300, 500, 900, 1200, 1400, 1500, 1600, 1700, 2000, 16_384, 16_406, 65_536, 100_000,
        1_000_000, 3_145_728, 9_000_000,
    ];
    let node = start_protected()?;
    let mut next = BYTES.iter().cycle();
    let relay = Relay::start(split(&node.address)?.0, move |_, number| {
        let bytes = match number {
            1 => None,
            OPENING => Some(100_000),
            _ => next.next().copied(),
        };
        let end = if number % 2 == 0 { End::Reset } else { End::Close };
        Fate { bytes, end, ..Fate::GOOD }
    })?;
    let ended = expect_pass(&mut counts(&node, &relay)?, "TLS sessions through cuts", LIMIT)?;
    eprintln!("   {} cuts", relay.cuts());
    ensure!(relay.cuts() > BYTES.len() as u32, "only {} cuts: {}", relay.cuts(), tail(&ended.output));
    node.wait_until_free()
}

/// Somebody on the way changes bytes: to the session that is a cut, and nothing that was changed is
/// taken.
fn through_changed_bytes() -> Result<()> {
    let node = start_protected()?;
    let relay = Relay::start(split(&node.address)?.0, move |_, number| {
        let bytes = match number {
            1 => None,
            OPENING => Some(100_000),
            number => Some(10_000 + 77_777 * u64::from(number)),
        };
        Fate { bytes, end: End::ChangedByte, ..Fate::GOOD }
    })?;
    expect_pass(&mut counts(&node, &relay)?, "TLS sessions through changed bytes", LIMIT)?;
    eprintln!("   {} changed bytes", relay.cuts());
    ensure!(relay.cuts() > 3, "only {} changed bytes", relay.cuts());
    node.wait_until_free()
}
