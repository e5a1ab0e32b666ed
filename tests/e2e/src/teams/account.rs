//! A user of the server: a token, and what is asked with it.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{PATIENCE, Process, networks};
use crate::node::sluice;
use crate::process;
use crate::program_file;

/// Somebody with a token.
#[derive(Clone)]
pub(crate) struct Account {
    pub(super) server: String,
    pub(super) token: String,
    /// Where its programs run, if in a network namespace of their own.
    pub(super) network: Option<String>,
}

impl Account {
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// Somebody else at the same place.
    pub(super) fn make(&self, tenant: &str, role: &str) -> Result<Account> {
        let token = self.text(&["token", "create", "--tenant", tenant, "--role", role])?;
        Ok(Account { token: token.trim().to_owned(), ..self.clone() })
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = match &self.network {
            Some(network) => networks::sluice_in(network),
            None => Command::new(sluice()),
        };
        command.args(arguments).env("SLUICE_SERVER", &self.server).env("SLUICE_TOKEN", &self.token);
        command
    }

    pub(crate) fn text(&self, arguments: &[&str]) -> Result<String> {
        process::output_of(&mut self.command(arguments))
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Result<Value> {
        let text = process::output_of(self.command(arguments).args(["-o", "json"]))?;
        serde_json::from_str(&text).context(text)
    }

    /// Asks until the answer is as wanted.
    pub(super) fn wait_for(&self, arguments: &[&str], wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let value = self.json(arguments)?;
            if wanted(&value) {
                return Ok(value);
            }
            ensure!(Instant::now() < deadline, "{arguments:?} still says {value}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A program that computes once it is told to.
    pub(super) fn program(&self, name: &str, options: &[&str]) -> Result<Process> {
        let mut command = self.command(&["run"]);
        command.args(options).args(["--memory", "64MiB", "--", "python3"]).arg(program_file("compute.py"));
        Process::start(name, command.env("START", "input").env("SECONDS", "0.3"))
    }

    /// A program of several tasks that go on until their input ends.
    pub(super) fn gang(&self, name: &str, options: &[&str]) -> Result<Process> {
        let mut command = self.command(&["run"]);
        command.args(options).args(["--memory", "64MiB", "--", "python3"]).arg(program_file("task.py"));
        Process::start(name, &mut command)
    }
}
