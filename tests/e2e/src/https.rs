//! The REST API over TLS: by fingerprint, by authority, and one clear line for each mistake.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::node::{Node, sluice};
use crate::teams::Process;
use crate::tls::Authority;
use crate::token_in;
use crate::{Test, expect_failure, finish, tail};

pub(crate) const TESTS: &[Test] = &[
    ("HTTPS by authority", by_authority),
    ("HTTPS with a renewed certificate", renewed),
    ("HTTPS and what is wrong with it", mistakes),
];

/// Catches a hang.
const LIMIT: Duration = Duration::from_secs(120);

/// A server without a node; its data folder is of this name.
struct Server {
    process: Node,
    data: PathBuf,
}

impl Server {
    fn start(name: &str, listen: &str, options: &[&Path]) -> Result<Server> {
        let data = crate::target_folder().join("https").join(name);
        let _ = std::fs::remove_dir_all(&data); // it may not be there yet
        let mut command = Command::new(sluice());
        command.args(["server", "--listen", listen, "--data"]).arg(&data).args(options);
        Ok(Server { process: Node::start_command(&mut command)?, data })
    }

    fn certified(name: &str, (certificate, key): &(PathBuf, PathBuf)) -> Result<Server> {
        Server::start(name, "localhost:0", &["--tls-cert".as_ref(), certificate, "--tls-key".as_ref(), key])
    }

    /// Its URL, with the fingerprint if it has a certificate.
    fn url(&self) -> &str {
        &self.process.address
    }

    /// Its URL by the name `localhost`, and without a fingerprint.
    fn url_by_name(&self) -> Result<String> {
        let port = self.url().rsplit(':').next().and_then(|rest| rest.split('/').next());
        Ok(format!("https://localhost:{}", port.context("a port")?))
    }

    /// Asks it by this URL, as its administrator.
    fn ask(&self, url: &str) -> Result<Command> {
        let mut command = Command::new(sluice());
        command.args(["tenants", "--server", url]);
        command.env("SLUICE_TOKEN", token_in(&self.data.join("admin.json"))?).env_remove("SLUICE_TLS_CA");
        Ok(command)
    }

    fn answers(&self, mut command: Command, name: &str) -> Result<()> {
        expect_failure(&mut command, &format!("HTTPS: {name}"), 0, &[])
    }

    fn refuses(&self, mut command: Command, name: &str, parts: &[&str]) -> Result<()> {
        expect_failure(&mut command, &format!("HTTPS: {name}"), 1, parts)
    }
}

fn by_authority() -> Result<()> {
    let authority = Authority::new("https-authority")?;
    let server = Server::certified("certified", &authority.issue("server", 2099)?)?;
    let known = |server: &Server| -> Result<Command> {
        let mut command = server.ask(&server.url_by_name()?)?;
        command.env("SLUICE_TLS_CA", authority.file());
        Ok(command)
    };
    server.answers(known(&server)?, "by authority")?;
    server.answers(server.ask(server.url())?, "by fingerprint")?;
    let unknown = server.ask(&server.url_by_name()?)?;
    server.refuses(
        unknown,
        "no authority",
        &["no authority that is trusted", "SLUICE_TLS_CA", "fingerprint"],
    )?;

    let expired = Server::certified("expired", &authority.issue("old", 2001)?)?;
    expired.refuses(known(&expired)?, "expired", &["expired", "--tls-cert"])?;
    let stranger = Server::certified("stranger", &Authority::new("https-stranger")?.issue("server", 2099)?)?;
    stranger.refuses(known(&stranger)?, "foreign", &["no authority that is trusted"])
}

/// A certificate is replaced under a running server and a node that has joined it. Both show the
/// new one, and the earlier one to those who know that; the server learns of the node's.
fn renewed() -> Result<()> {
    let authority = Authority::new("https-renewed")?;
    let (files, second) = (authority.issue("first", 2099)?, authority.issue("second", 2099)?);
    let data = crate::target_folder().join("https/renewed");
    let _ = std::fs::remove_dir_all(&data); // it may not be there yet
    let start = |name: &str, command: &mut Command| -> Result<(Process, String)> {
        command.arg("--tls-cert").arg(&files.0).arg("--tls-key").arg(&files.1).env_remove("SLUICE_TLS_CA");
        let mut process = Process::start(name, command)?;
        let address = process.listening()?;
        Ok((process, address))
    };
    let mut command = Command::new(sluice());
    command.args(["server", "--listen", "localhost:0", "--data"]).arg(&data);
    let (server, url) = start("renewed server", &mut command)?;
    let mut command = Command::new(sluice());
    command.args([
        "node",
        "--listen",
        "localhost:0",
        "--gpus",
        "software:1,1GiB",
        "--join",
        &url,
        "--journal",
    ]);
    command.arg(data.join("journal")).env("SLUICE_TOKEN", token_in(&data.join("node.json"))?);
    let (node, address) = start("renewed node", &mut command)?;

    replace(&files.1, &std::fs::read(&second.1)?)?;
    replace(&files.0, &std::fs::read(&second.0)?)?;
    server.expect_message("shown from now on")?;
    node.expect_message("shown from now on")?;
    let said = server.said();
    let shown = said
        .split("another certificate, ")
        .nth(1)
        .and_then(|rest| rest.get(..64))
        .context("a fingerprint")?;
    let with_new = |text: &str| -> Result<String> {
        let (base, known) = text.rsplit_once('/').context("a fingerprint")?;
        ensure!(known != shown, "{known} is no other certificate");
        Ok(format!("{base}/{shown}"))
    };
    let admin = token_in(&data.join("admin.json"))?;
    let ends_with = |code: i32, arguments: &[&str], name: &str| -> Result<String> {
        let mut command = Command::new(sluice());
        command.args(arguments).env("SLUICE_TOKEN", &admin).env_remove("SLUICE_TLS_CA");
        let ended = finish(&mut command, &format!("HTTPS: renewed, {name}"), LIMIT)?;
        ensure!(ended.code == Some(code), "{name}: {:?}: {}", ended.code, tail(&ended.output));
        Ok(ended.output)
    };
    let ends = |arguments: &[&str], name: &str| ends_with(0, arguments, name);
    for url in [&url, &with_new(&url)?] {
        ends(&["tenants", "--server", url], "the server")?;
    }
    for address in [&address, &with_new(&address)?] {
        // Its answer to those who have shaken hands and have no lease.
        let said = ends_with(1, &["gpus", "--node", address], "the node")?;
        ensure!(said.contains("lends through"), "{said}");
    }
    let deadline = Instant::now() + LIMIT;
    let expected = with_new(&address)?;
    while !ends(&["audit", "log", "--server", &url], "the audit log")?.contains(&expected) {
        ensure!(Instant::now() < deadline, "the server does not learn of {expected}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let tenants = data.join("tenants.yaml");
    std::fs::write(&tenants, "tenants: [{path: acme}]")?;
    ends(&["apply", "--server", &url, "-f", &tenants.display().to_string()], "a tenant")?;
    ends(&["run", "--server", &url, "--tenant", "acme", "--", "true"], "a program")?;

    replace(&files.0, b"no certificate")?;
    server.expect_message("stays in use")?;
    ends(&["tenants", "--server", &with_new(&url)?], "the server again")?;
    Ok(())
}

/// The whole file at once.
fn replace(file: &Path, bytes: &[u8]) -> Result<()> {
    let new = file.with_extension("new");
    std::fs::write(&new, bytes)?;
    Ok(std::fs::rename(new, file)?)
}

fn mistakes() -> Result<()> {
    let plain = Server::start("plain", "127.0.0.1:0", &[])?;
    ensure!(plain.url().starts_with("http://127.0.0.1:"), "{}", plain.url());
    let other = "ab".repeat(32);
    let sealed = format!("{}/{other}", plain.url().replace("http:", "https:"));
    plain.refuses(plain.ask(&sealed)?, "plain", &["does not speak TLS", "http://"])?;

    // Beyond loopback there is TLS, with a certificate that stays.
    let beyond = Server::start("beyond", "0.0.0.0:0", &[])?;
    let (base, fingerprint) = beyond.url().rsplit_once('/').context("a fingerprint")?;
    ensure!(base.starts_with("https://127.0.0.1:") && fingerprint.len() == 64, "{}", beyond.url());
    beyond.answers(beyond.ask(beyond.url())?, "own certificate")?;
    beyond.refuses(
        beyond.ask(&format!("{base}/{other}"))?,
        "another",
        &["another server", fingerprint, &other],
    )?;
    beyond.refuses(beyond.ask(&base.replace("https:", "http:"))?, "plain text", &["begins with https://"])?;
    beyond.refuses(beyond.ask(&format!("{base}/12"))?, "no fingerprint", &["no URL of a server"])
}
