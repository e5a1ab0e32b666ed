//! Signing in with an identity provider: a real, certified one in a process of its own, and a
//! scripted browser.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use harness::browser;
use serde_json::Value;

use crate::Skipped;
use crate::node::{Node, sluice};
use crate::process;
use crate::teams::Process;
use crate::token_in;
use crate::{Test, finish, tail};

pub(crate) const TESTS: &[Test] = &[("identity: sign in with a provider", sign_in)];

const LIMIT: Duration = Duration::from_secs(400);

/// Where there is no Node.js the provider cannot run.
fn sign_in() -> Result<()> {
    let installed = Command::new("node").arg("--version").stdout(Stdio::null()).status();
    let runs = installed.is_ok_and(|status| status.success());
    ensure!(runs, Skipped("no Node.js is installed".into()));
    let installation = Installation::start()?;
    installation.in_a_browser()?;
    installation.by_a_code()?;
    installation.in_the_web_view()?;
    installation.an_expired_token_is_renewed()?;
    installation.what_does_not_count()?;
    installation.rules_change_at_once()?;
    installation.keys_may_change()?;
    installation.secrets_are_in_no_log()
}

/// What is declared of the provider; the group vision has this role.
fn rules(issuer: &str, role: &str) -> String {
    format!(
        "tenants: [{{path: acme}}, {{path: acme/vision}}]\n\
         identity:\n  issuer: {issuer}\n  client_id: sluice\n  scopes: [openid, profile, email, groups, offline_access]\n  rules:\n  \
         - {{claim: groups, is: gpu-admins, tenant: /, role: platform}}\n  \
         - {{claim: groups, is: vision, tenant: acme/vision, role: {role}}}\n"
    )
}

/// The provider's program with its packages, installed once.
fn provider() -> Result<PathBuf> {
    let (source, folder) = (crate::root().join("tests/oidc"), crate::target_folder().join("oidc"));
    std::fs::create_dir_all(&folder)?;
    let wanted = std::fs::read_to_string(source.join("package.json"))?;
    for name in ["provider.mjs", "browser.mjs"] {
        std::fs::copy(source.join(name), folder.join(name))?;
    }
    let stamp = folder.join("package.json");
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(folder);
    }
    let mut install = Command::new("npm");
    install.args(["install", "--no-audit", "--no-fund", "--no-save", "--prefix"]).arg(&folder);
    for (name, version) in
        serde_json::from_str::<Value>(&wanted)?["dependencies"].as_object().context("packages")?
    {
        install.arg(format!("{name}@{}", version.as_str().context("a version")?));
    }
    process::run(&mut install)?;
    std::fs::write(stamp, wanted)?;
    Ok(folder)
}

/// The provider, a server that takes its tokens, and a home for whoever signs in.
struct Installation {
    folder: PathBuf,
    programs: PathBuf,
    issuer: String,
    server: Node,
    _provider: Process,
}

impl Installation {
    fn start() -> Result<Installation> {
        let programs = provider()?;
        let folder = crate::target_folder().join("identity");
        let _ = std::fs::remove_dir_all(&folder); // it may not be there yet
        std::fs::create_dir_all(&folder)?;
        let mut provider =
            Process::start("provider", Command::new("node").arg("provider.mjs").current_dir(&programs))?;
        let issuer = provider.listening()?;
        let mut server = Command::new(sluice());
        server.args(["server", "--listen", "127.0.0.1:0", "--failures-per-second", "0", "--data"]);
        let data = folder.join("data");
        let server = Node::start_command(server.arg(&data))?;
        let installation = Installation { folder, programs, issuer, server, _provider: provider };
        installation.declare(&rules(&installation.issuer, "member"), "set")?;
        Ok(installation)
    }

    /// Applies a file, as the server's own administrator.
    fn declare(&self, yaml: &str, name: &str) -> Result<String> {
        let file = self.folder.join("declaration.yaml");
        std::fs::write(&file, yaml)?;
        let mut command = self.sluice("admin", &["apply", "--server", &self.server.address, "-f"]);
        command.arg(&file).env("SLUICE_TOKEN", token_in(&self.folder.join("data/admin.json"))?);
        self.ends(command, &format!("declared {name}"), 0)
    }

    /// `sluice` in the home of this person.
    fn sluice(&self, user: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(sluice());
        command.args(arguments).env("XDG_CONFIG_HOME", self.folder.join(user)).env("SLUICE_TEST_USER", user);
        command.env("BROWSER", self.programs.join("browser.mjs"));
        for name in ["SLUICE_SERVER", "SLUICE_TOKEN", "SLUICE_NODE"] {
            command.env_remove(name);
        }
        command
    }

    fn settings_file(&self, user: &str) -> PathBuf {
        self.folder.join(user).join("sluice/config.json")
    }

    fn settings(&self, user: &str) -> Result<Value> {
        Ok(serde_json::from_str(&std::fs::read_to_string(self.settings_file(user))?)?)
    }

    /// Runs it to its end; what it said, if it ended with this code.
    fn ends(&self, mut command: Command, name: &str, code: i32) -> Result<String> {
        let ended = finish(&mut command, &format!("identity {name}"), LIMIT)?;
        ensure!(ended.code == Some(code), "{name}: {:?}: {}", ended.code, tail(&ended.output));
        Ok(ended.output)
    }

    /// Code and PKCE, by a browser that comes back to this machine.
    fn in_a_browser(&self) -> Result<()> {
        let said = self.ends(self.sluice("ada", &["login", &self.server.address]), "browser", 0)?;
        ensure!(said.contains("platform for /"), "{said}");
        ensure!(said.contains("code_challenge_method=S256") && said.contains("nonce="), "{said}");
        let mode = std::fs::metadata(self.settings_file("ada"))?.permissions().mode();
        ensure!(mode & 0o777 == 0o600, "mode {mode:o}");
        let file = self.folder.join("tenants.yaml");
        std::fs::write(&file, "tenants: [{path: acme/speech}]")?;
        let file = file.display().to_string();
        self.ends(self.sluice("ada", &["apply", "-f", &file]), "apply", 0)?;
        // Who may sign in need not be anybody here.
        let said = self.ends(self.sluice("eve", &["login", &self.server.address]), "nobody", 1)?;
        ensure!(said.contains("knows eve, but no rule"), "{said}");
        Ok(())
    }

    /// A code that is typed on another machine (RFC 8628).
    fn by_a_code(&self) -> Result<()> {
        let mut login =
            Process::start("login", &mut self.sluice("bob", &["login", "--device", &self.server.address]))?;
        login.expect_message("or at once: ")?;
        let said = login.said();
        let url =
            said.split("or at once: ").nth(1).and_then(|rest| rest.split(')').next()).context("a URL")?;
        let mut browser = Command::new(self.programs.join("browser.mjs"));
        process::run(browser.arg(url).env("SLUICE_TEST_USER", "bob"))?;
        login.expect_success()?;
        ensure!(login.said().contains("member for acme/vision"), "{}", login.said());
        let said = self.ends(self.sluice("bob", &["apply", "-f", "-"]), "forbidden", 1)?;
        ensure!(!said.contains("created"), "{said}");
        Ok(())
    }

    /// Code and PKCE between the server and a real browser.
    fn in_the_web_view(&self) -> Result<()> {
        let Some(chromium) = browser::chromium() else {
            eprintln!("   skipped in the web view: no Chromium is installed");
            return Ok(());
        };
        let mut browser = Command::new("node");
        browser.arg("provider.mjs").current_dir(browser::scripts()?);
        browser.env("SERVER", &self.server.address).env("CHROMIUM", chromium);
        self.ends(browser, "web view", 0)?;
        Ok(())
    }

    /// What the provider answers to this.
    fn ask(&self, path: &str) -> Result<String> {
        const ASK: &str = "fetch(process.argv[1]).then((answer) => answer.text()).then(console.log)";
        let url = format!("{}/control/{path}", self.issuer);
        Ok(process::output_of(Command::new("node").args(["-e", ASK, &url]))?.trim().to_owned())
    }

    fn an_expired_token_is_renewed(&self) -> Result<()> {
        let mut settings = self.settings("bob")?;
        let expired = self.ask("token?sub=bob&aud=sluice&lifetime=-60")?;
        settings["token"] = expired.as_str().into();
        std::fs::write(self.settings_file("bob"), settings.to_string())?;
        std::fs::set_permissions(self.settings_file("bob"), Permissions::from_mode(0o600))?;
        self.ends(self.sluice("bob", &["tenants"]), "renewed", 0)?;
        let renewed = self.settings("bob")?;
        ensure!(renewed["token"] != settings["token"], "the token is still the expired one");
        ensure!(renewed["login"]["refresh_token"].is_string(), "no refresh token is kept");
        Ok(())
    }

    /// Asks with a token that did not come from signing in.
    fn with_token(&self, token: &str, name: &str, code: i32) -> Result<String> {
        let mut command = self.sluice("nobody", &["tenants", "--server", &self.server.address]);
        command.env("SLUICE_TOKEN", token);
        self.ends(command, name, code)
    }

    fn what_does_not_count(&self) -> Result<()> {
        self.with_token(&self.ask("token?sub=bob&aud=sluice&lifetime=60")?, "good", 0)?;
        for (query, part) in [
            ("aud=other&lifetime=60", "for another audience"),
            ("aud=sluice&lifetime=-1", "has expired"),
            ("aud=sluice&lifetime=60&key=foreign", "signature is not of"),
            ("aud=sluice&lifetime=60&key=foreign&kid=unknown", "a key that"),
            ("aud=sluice&lifetime=60&iss=http://elsewhere.example", "another issuer"),
        ] {
            let said = self.with_token(&self.ask(&format!("token?sub=bob&{query}"))?, part, 1)?;
            ensure!(said.contains(part), "{query}: {said}");
        }
        let token = self.ask("token?sub=ada&aud=sluice&lifetime=60")?;
        let (head, _) = token.rsplit_once('.').context("a signature")?;
        // RFC 8725, section 3.1: `none` is no algorithm.
        let unsigned = format!("eyJhbGciOiJub25lIn0.{}.", head.split('.').nth(1).context("claims")?);
        for token in [format!("{head}."), unsigned, "a.b.c".to_owned()] {
            self.with_token(&token, "forged", 1)?;
        }
        Ok(())
    }

    /// Whoever has a token already is what the rules say now.
    fn rules_change_at_once(&self) -> Result<()> {
        let token = self.ask("token?sub=bob&aud=sluice&lifetime=600")?;
        let is = |role: &str| -> Result<()> {
            let mut command = self.sluice("nobody", &["token", "list", "--server", &self.server.address]);
            command.env("SLUICE_TOKEN", &token);
            // Members do not see tokens; the refusal says what bob is.
            let said = self.ends(command, &format!("is {role}"), 1)?;
            ensure!(said.contains(&format!("of role {role} ")), "{said}");
            Ok(())
        };
        is("member")?;
        let said = self.declare(&rules(&self.issuer, "viewer"), "changed")?;
        ensure!(said.contains("changed"), "{said}");
        is("viewer")?;
        self.declare(&rules(&self.issuer, "member"), "changed back")?;
        is("member")
    }

    /// The server learns of a new key when it first sees it; the old one is of no more use once it
    /// has.
    fn keys_may_change(&self) -> Result<()> {
        let old = self.ask("token?sub=bob&aud=sluice&lifetime=600")?;
        self.ask("rotate")?;
        let new = self.ask("token?sub=bob&aud=sluice&lifetime=600")?;
        let deadline = std::time::Instant::now() + LIMIT;
        // Strangers cannot have it ask the provider for keys all the time: it may have asked just
        // now.
        loop {
            let mut command = self.sluice("nobody", &["tenants", "--server", &self.server.address]);
            if finish(command.env("SLUICE_TOKEN", &new), "identity rotated", LIMIT)?.code == Some(0) {
                break;
            }
            ensure!(std::time::Instant::now() < deadline, "the new key is not learned");
            std::thread::sleep(Duration::from_millis(200));
        }
        let said = self.with_token(&old, "old key", 1)?;
        ensure!(said.contains("a key that"), "{said}");
        Ok(())
    }

    fn secrets_are_in_no_log(&self) -> Result<()> {
        let logs = std::fs::read_dir(crate::logs())?.flatten().map(|entry| entry.path());
        let log = std::fs::read_to_string(crate::target_folder().join("node.log"))?;
        let of_this_test = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.contains("identity") || name.contains("login")
        };
        let texts = logs.filter(of_this_test);
        let texts = texts.map(std::fs::read_to_string).chain([Ok(log)]).collect::<Result<Vec<_>, _>>()?;
        for user in ["ada", "bob"] {
            let settings = self.settings(user)?;
            for secret in [&settings["token"], &settings["login"]["refresh_token"]] {
                let secret = secret.as_str().context("a secret")?;
                if texts.iter().any(|text| text.contains(secret)) {
                    bail!("a secret of {user} is in a log");
                }
            }
        }
        Ok(())
    }
}
