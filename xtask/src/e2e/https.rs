//! The REST API over TLS: by fingerprint, by authority, and one clear line for each mistake.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::e2e::teams::token_in;
use crate::e2e::tls::Authority;
use crate::e2e::{Test, expect_failure};
use crate::node::{Node, sluice};

pub(crate) const TESTS: &[Test] =
    &[("HTTPS by authority", by_authority), ("HTTPS and what is wrong with it", mistakes)];

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

    /// The same by the name `localhost`, and without a fingerprint.
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
    beyond.refuses(beyond.ask(&format!("{base}/12"))?, "no fingerprint", &["no URL of a server"])?;

    let mut alone = Command::new(sluice().with_file_name("sluice-server"));
    alone.args(["--listen", "0.0.0.0:0", "--data"]).arg(&plain.data);
    expect_failure(&mut alone, "HTTPS: no certificate", 1, &["--tls-cert", "--plain-text"])
}
