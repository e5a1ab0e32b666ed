//! `kubectl sluice` as people run it: by kubectl itself, against the cluster of [`super::pods`].

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::pods::{Cluster, TENANTS};
use super::tools;
use crate::node::sluice;
use crate::process;
use crate::teams::{Account, Installation};

/// A machine of a person who uses the cluster.
struct Desk<'a> {
    /// With `kubectl` and `kubectl-sluice`.
    programs: PathBuf,
    kubeconfig: PathBuf,
    account: &'a Account,
}

pub(super) fn pods_are_listed_and_explained() -> Result<()> {
    let installation = Installation::start("kubectl", TENANTS, &[], &[])?;
    let red = &installation.red;
    let mut cluster = Cluster::start(red, &installation.data())?;
    cluster.start_controller(red)?;
    let desk = Desk::set_up(&cluster, red)?;
    ensure!(desk.pods()?.is_empty(), "there is no pod yet");
    let said = desk.said(&["pods"])?;
    ensure!(said.contains("no pod of this namespace") && said.contains("-A"), "{said}");

    for number in 1..=5 {
        cluster.create(number, "0.25")?;
    }
    for number in 1..=4 {
        let name = format!("pod-{number}");
        cluster.wait_for_pod(number, |pod| has_condition(pod, "True"))?;
        let why = desk.text(&["why", &name])?;
        ensure!(why.contains("is granted on") && why.contains("scheduler"), "{why}");
    }
    cluster.wait_for_pod(5, |pod| has_condition(pod, "False"))?;
    let why = desk.text(&["why", "pod-5"])?;
    ensure!(why.contains("waits: ") && why.contains("start"), "{why}");

    let pods = desk.pods()?;
    let states: Vec<&str> = pods.iter().filter_map(|pod| pod["state"].as_str()).collect();
    ensure!(states == ["unscheduled", "unscheduled", "unscheduled", "unscheduled", "waiting"], "{pods:?}");
    ensure!(pods[0]["place"].as_str().is_some_and(|place| place.ends_with("/0")), "{pods:?}");
    ensure!(pods[0]["lease"].is_u64() && pods[4]["lease"].is_null(), "{pods:?}");
    let table = desk.text(&["pods", "-A"])?;
    ensure!(table.starts_with("NAMESPACE") && table.contains("red"), "{table}");

    let mut sidecar = cluster.run_as_kubelet(1)?;
    let uses: Value = serde_json::from_str(&desk.text(&["top", "-o", "json"])?)?;
    let uses = uses.as_array().context("a list")?;
    ensure!(uses.len() == 4 && uses[0]["pod"] == "pod-1" && uses[0]["lease"] == pods[0]["lease"], "{uses:?}");
    ensure!(uses[0]["model"].is_string() && uses[0]["memory"].as_u64() > Some(0), "{uses:?}");
    let said = desk.said(&["top"])?;
    ensure!(said.contains("waiting for a lease: 1"), "{said}");
    sidecar.signal(libc::SIGTERM);
    sidecar.expect_success()?;

    wrong_use_is_explained(&desk)
}

fn wrong_use_is_explained(desk: &Desk<'_>) -> Result<()> {
    let refused = |arguments: &[&str], part: &str| -> Result<()> {
        let output = desk.run(arguments)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success() && said.contains(part), "{arguments:?}: {said}");
        Ok(())
    };
    refused(&["why", "pod-9"], "NotFound")?;
    refused(&["why", "pod-5", "--context", "other"], "other")?;
    let mut without_account = desk.command(&["top"]);
    without_account.env_remove("SLUICE_SERVER").env_remove("SLUICE_TOKEN");
    without_account.env("XDG_CONFIG_HOME", &desk.programs).env("HOME", &desk.programs);
    let output = without_account.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success() && said.contains("sluice login"), "{said}");
    let mut without_kubectl = Command::new(desk.programs.join("kubectl-sluice"));
    let output = without_kubectl.arg("pods").env("PATH", "/nonexistent").output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success() && said.contains("kubectl cannot be run"), "{said}");
    Ok(())
}

fn has_condition(pod: &Value, status: &str) -> bool {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions
        .any(|condition| condition["type"] == "sluice.dev/LeaseGranted" && condition["status"] == status)
}

impl Desk<'_> {
    fn set_up<'a>(cluster: &Cluster, account: &'a Account) -> Result<Desk<'a>> {
        let programs = cluster.folder().join("programs");
        fs::create_dir_all(&programs)?;
        symlink(tools::kubectl()?, programs.join("kubectl"))?;
        symlink(sluice(), programs.join("kubectl-sluice"))?;
        let kubeconfig = cluster.folder().join("kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{ "name": "test", "cluster": { "server": cluster.url() } }],
            "users": [{ "name": "test", "user": {} }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test", "namespace": "red" } }],
        });
        fs::write(&kubeconfig, config.to_string())?;
        Ok(Desk { programs, kubeconfig, account })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.programs.join("kubectl"));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(self.programs.clone()).chain(std::env::split_paths(&path));
        let path = std::env::join_paths(folders).expect("folders that came out of PATH");
        command.arg("sluice").args(arguments).env("PATH", path).env("KUBECONFIG", &self.kubeconfig);
        command.env("HOME", &self.programs);
        command.env("SLUICE_SERVER", self.account.server()).env("SLUICE_TOKEN", self.account.token());
        command
    }

    fn run(&self, arguments: &[&str]) -> Result<Output> {
        Ok(self.command(arguments).output()?)
    }

    fn text(&self, arguments: &[&str]) -> Result<String> {
        process::output_of(&mut self.command(arguments))
    }

    /// What a command that succeeds says beside its data.
    fn said(&self, arguments: &[&str]) -> Result<String> {
        let output = self.run(arguments)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{arguments:?}: {said}");
        Ok(said)
    }

    fn pods(&self) -> Result<Vec<Value>> {
        Ok(serde_json::from_str(&self.text(&["pods", "-o", "json"])?)?)
    }
}
