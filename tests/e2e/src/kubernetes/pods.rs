//! Pods from their creation to their end, with a real server, a real node and the real
//! controller. The API server is `tests/kubernetes/api_server.py`; this test plays scheduler and
//! kubelet.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_api::client::Client;

use crate::node::sluice;
use crate::program_file;
use crate::teams::{Account, Installation, Process};

/// Catches a hang.
const PATIENCE: Duration = Duration::from_secs(60);
const PODS: &str = "/namespaces/red/pods";
pub(super) const TENANTS: &str = "tenants: [{path: red}, {path: blue}]";

/// A cluster of one namespace.
pub(super) struct Cluster {
    api: Client,
    server: Process,
    controller: Option<Process>,
    folder: PathBuf,
    url: String,
}

pub(super) fn pods_get_leases_wait_and_end() -> Result<()> {
    let installation = Installation::start("kubernetes", TENANTS, &[], &[])?;
    let red = &installation.red;
    let mut cluster = Cluster::start(red, &installation.data())?;
    cluster.start_controller(red)?;

    for number in 1..=5 {
        cluster.create(number, "0.25")?;
    }
    for number in 1..=4 {
        cluster.wait_for_pod(number, |pod| pod["spec"]["schedulingGates"] == json!([]))?;
    }
    let waits = cluster.wait_for_event("pod-5", "SluiceWaiting")?;
    ensure!(waits.contains("waits: ") && waits.contains("start"), "{waits}");
    let fifth = cluster.wait_for_pod(5, |pod| pod["status"]["conditions"].is_array())?;
    let condition = &fifth["status"]["conditions"][0];
    ensure!(condition["status"] == "False" && condition["message"] == waits.as_str(), "{condition}");
    ensure!(fifth["spec"]["schedulingGates"][0]["name"] == "sluice.dev/lease", "{fifth}");

    let mut sidecar = cluster.run_as_kubelet(1)?;
    let before = leases(red)?;
    ensure!(before.len() == 5, "{before:?}");

    // The controller is killed and started again: nothing is lost, and nothing is there twice.
    cluster.kill_controller()?;
    cluster.start_controller(red)?;
    cluster.create(6, "0.25")?;
    cluster.wait_for_event("pod-6", "SluiceWaiting")?;
    let after = leases(red)?;
    ensure!(after.is_superset(&before) && after.len() == 6, "{before:?} and then {after:?}");

    // A pod that is deleted ends its lease, whatever its sidecar does, and the next one starts.
    let _: Value = cluster.api.delete(&format!("{PODS}/pod-2"))?;
    cluster.wait_for_pod(5, |pod| pod["spec"]["schedulingGates"] == json!([]))?;
    let _: Value = cluster.api.delete(&format!("{PODS}/pod-1"))?;
    let status = sidecar.end()?;
    ensure!(!status.success(), "the sidecar of a pod that is gone ended with {status}: {}", sidecar.said());
    cluster.wait_for_pod(6, |pod| pod["spec"]["schedulingGates"] == json!([]))?;

    ensure!(cluster.create(7, "2").is_err(), "a share of 2 was accepted");
    cluster.kill_controller()?;
    cluster.create(8, "0.25")?;
    ensure!(cluster.pod(8)?["spec"]["schedulingGates"].is_null(), "a webhook that is down has changed a pod");
    Ok(())
}

impl Cluster {
    pub(super) fn start(red: &Account, data: &Path) -> Result<Cluster> {
        let mut server = Command::new("python3");
        server.arg(crate::root().join("tests/kubernetes/api_server.py"));
        let mut server = Process::start("api-server", &mut server)?;
        let url = server.listening()?;
        let folder = data.with_file_name("pods");
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("token"), red.token())?;
        // It is not used over plain text, and has to be one.
        let key = rcgen::KeyPair::generate()?;
        let authority = rcgen::CertificateParams::new(vec!["localhost".to_owned()])?.self_signed(&key)?;
        fs::write(folder.join("authority.pem"), authority.pem())?;
        Ok(Cluster { api: Client::new(&url, "test"), server, controller: None, folder, url })
    }

    pub(super) fn start_controller(&mut self, red: &Account) -> Result<()> {
        let file = |name: &str| self.folder.join(name);
        let mut command = Command::new(sluice().with_file_name("sluice-kubernetes"));
        command.args([
            "controller",
            "--server",
            red.server(),
            "--image",
            "sluice:test",
            "--ptx",
            "--host",
            "127.0.0.1",
        ]);
        command.args(["--listen", "127.0.0.1:0", "--api-server", &self.url, "--token-file"]);
        command.arg(file("token")).arg("--api-token-file").arg(file("token"));
        command.arg("--api-authority").arg(file("authority.pem"));
        let mut controller = Process::start("kubernetes-controller", &mut command)?;
        let address = controller.listening()?;
        self.server.tell(&format!("https://{address}/mutate"))?;
        self.controller = Some(controller);
        // A pod that is made before the API server knows the webhook's certificate is not changed.
        let begin = Instant::now();
        let mut count = 0;
        loop {
            count += 1;
            let name = format!("probe-{}-{count}", std::process::id());
            let pod: Value = self.api.post(PODS, &pod(&name, "3")).unwrap_or_default();
            if pod.is_null() {
                return Ok(());
            }
            let _: Value = self.api.delete(&format!("{PODS}/{name}"))?;
            ensure!(begin.elapsed() < PATIENCE, "the webhook is not asked");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Its files.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The API server.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    fn kill_controller(&mut self) -> Result<()> {
        let mut controller = self.controller.take().context("it runs")?;
        controller.signal(libc::SIGKILL);
        controller.end().map(drop)
    }

    pub(super) fn create(&self, number: u32, share: &str) -> Result<Value> {
        Ok(self.api.post(PODS, &pod(&format!("pod-{number}"), share))?)
    }

    fn pod(&self, number: u32) -> Result<Value> {
        Ok(self.api.get(&format!("{PODS}/pod-{number}"))?)
    }

    pub(super) fn wait_for_pod(&self, number: u32, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let begin = Instant::now();
        loop {
            let pod = self.pod(number)?;
            if wanted(&pod) {
                return Ok(pod);
            }
            ensure!(begin.elapsed() < PATIENCE, "pod {number} is still {pod}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The message of a pod's event.
    fn wait_for_event(&self, pod: &str, reason: &str) -> Result<String> {
        let begin = Instant::now();
        loop {
            let events: Value = self.api.get("/namespaces/red/events")?;
            let events = events["items"].as_array().context("a list")?;
            let wanted = |event: &&Value| event["involvedObject"]["name"] == pod && event["reason"] == reason;
            if let Some(event) = events.iter().find(wanted) {
                return Ok(event["message"].as_str().unwrap_or_default().to_owned());
            }
            ensure!(begin.elapsed() < PATIENCE, "no {reason} of {pod}: {events:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Does for a pod what its kubelet would: runs the sidecar with the Secret, and then a
    /// program in the environment of the pod's container. Returns the sidecar.
    pub(super) fn run_as_kubelet(&self, number: u32) -> Result<Process> {
        let pod = self.pod(number)?;
        let secret =
            pod["metadata"]["annotations"]["sluice.dev/secret"].as_str().context("a Secret's name")?;
        let secret: Value = self.api.get(&format!("/namespaces/red/secrets/{secret}"))?;
        let volumes = self.folder.join(format!("pod-{number}"));
        let lease = volumes.join("run/sluice-lease");
        fs::create_dir_all(&lease)?;
        fs::create_dir_all(volumes.join("run/sluice"))?;
        for (name, text) in secret["stringData"].as_object().context("data")? {
            let text = text.as_str().context("text")?;
            ensure!(name != "key" || !pod.to_string().contains(text), "the pod shows the lease's key");
            fs::write(lease.join(name), text)?;
        }
        // The same paths, below the folder that stands for the container's root.
        let inside = |text: &str| text.replace("/run/", &format!("{}/run/", volumes.display()));
        let inside = |text: &str| inside(text).replace("/opt/", &format!("{}/opt/", volumes.display()));
        let words = pod["spec"]["initContainers"][0]["command"].as_array().context("a command")?;
        let words: Vec<String> = words.iter().filter_map(Value::as_str).map(inside).collect();
        let sidecar = Process::start("sidecar", Command::new(sluice()).args(&words[1..]))?;
        sidecar.expect_message("holding lease")?;

        let mut program = Command::new("python3");
        program.arg(program_file("prints.py"));
        for variable in pod["spec"]["containers"][0]["env"].as_array().context("variables")? {
            if let (Some(name), Some(value)) = (variable["name"].as_str(), variable["value"].as_str()) {
                program.env(name, inside(value));
            }
        }
        crate::expect_pass(&mut program, "kubernetes-pod", PATIENCE)?;
        Ok(sidecar)
    }
}

fn pod(name: &str, share: &str) -> Value {
    json!({
        "metadata": { "name": name, "annotations": { "sluice.dev/share": share } },
        "spec": { "containers": [{ "name": "main", "image": "program" }] },
    })
}

/// The numbers of the open leases.
fn leases(account: &Account) -> Result<BTreeSet<u64>> {
    let leases = account.json(&["lease", "list"])?;
    Ok(leases.as_array().into_iter().flatten().filter_map(|lease| lease["id"].as_u64()).collect())
}
