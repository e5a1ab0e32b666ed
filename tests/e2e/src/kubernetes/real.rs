//! The chart, the webhook and the controller with a real API server, under the chart's own rights:
//! what the stand-in does not check are schemas, admission policies, rights and patches.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::api_server::ApiServer;
use super::chart;
use super::pods::TENANTS;
use crate::node::sluice;
use crate::teams::{Account, Installation, Process};

/// The namespace of the chart, and that of the users' pods.
const SYSTEM: &str = "sluice-system";
const USERS: &str = "users";
const WEBHOOK: &str = "sluice.sluice-system";

/// What an uninstall has to remove, beside what is in the chart's own namespace.
const KINDS: &str = "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,\
                     validatingadmissionpolicies,validatingadmissionpolicybindings,deviceclasses";

/// A cluster with the chart and with a controller that runs beside it.
struct Cluster<'a> {
    api: ApiServer,
    red: &'a Account,
    folder: PathBuf,
    controller: Option<Process>,
}

pub(super) fn the_chart_and_pods_work() -> Result<()> {
    let installation = Installation::start("real-api-server", TENANTS, &[], &[])?;
    let folder = installation.data().with_file_name("cluster");
    fs::create_dir_all(&folder)?;
    let api = ApiServer::start(&folder)?;
    let mut cluster = Cluster { api, red: &installation.red, folder, controller: None };
    cluster.install()?;
    cluster.start_controller()?;
    cluster.pods_get_leases()?;
    cluster.devices_are_published()?;
    cluster.rights_are_few()?;
    cluster.an_ended_lease_takes_its_pod_along()?;
    cluster.pods_that_ask_are_refused_without_the_webhook()?;
    cluster.nothing_is_left()
}

impl Cluster<'_> {
    fn install(&self) -> Result<()> {
        self.helm("install")?;
        self.api.kubectl(&["create", "namespace", USERS])?;
        // What the controller manager would do.
        for namespace in [USERS, SYSTEM] {
            self.api.kubectl(&["-n", namespace, "create", "serviceaccount", "default"])?;
        }
        Ok(())
    }

    /// Installs the chart, or upgrades it.
    fn helm(&self, command: &str) -> Result<()> {
        let url = format!("server.url={}", self.red.server());
        let chart = chart().display().to_string();
        let mut words = vec![command, "sluice", &chart, "--namespace", SYSTEM];
        if command == "install" {
            words.push("--create-namespace");
        }
        for value in
            ["server.enabled=false", &url, "node.enabled=false", "dra.enabled=true", "controller.ptx=true"]
        {
            words.extend(["--set", value]);
        }
        self.api.helm(&words).map(drop)
    }

    /// Runs the controller with the token of its service account. The webhook is asked at its own
    /// address, since no Service leads anywhere here.
    fn start_controller(&mut self) -> Result<()> {
        let file = |name: &str| self.folder.join(name);
        let token = self.api.kubectl(&["-n", SYSTEM, "create", "token", "sluice-controller"])?;
        fs::write(file("api-token"), token.trim())?;
        fs::write(file("token"), self.red.token())?;
        let mut command = Command::new(sluice().with_file_name("sluice-kubernetes"));
        command.args([
            "controller",
            "--server",
            self.red.server(),
            "--image",
            "sluice:test",
            "--ptx",
            "--dra",
        ]);
        command.args(["--host", "127.0.0.1", "--listen", "127.0.0.1:0", "--webhook-configuration", WEBHOOK]);
        command.args(["--namespace", SYSTEM]);
        command.args(["--api-server", self.api.url(), "--api-authority", &self.api.authority()]);
        command.arg("--token-file").arg(file("token")).arg("--api-token-file").arg(file("api-token"));
        let mut controller = Process::start("kubernetes-controller-real", &mut command)?;
        let url = format!("https://{}/mutate", controller.listening()?);
        self.set_client(&json!({ "url": url }))?;
        // From now on it is asked about each pod.
        controller.expect_message("the API server asks the webhook")?;
        self.controller = Some(controller);
        let refused = self.make("probe", "3").err().context("a share of 3 was accepted")?.to_string();
        ensure!(refused.contains("sluice.dev/share"), "{refused}");
        Ok(())
    }

    /// Says where the API server finds the webhook.
    fn set_client(&self, client: &Value) -> Result<()> {
        let paths = ["/webhooks/0/clientConfig", "/webhooks/1/clientConfig"];
        let change = paths.map(|path| json!({ "op": "replace", "path": path, "value": client }));
        let change = json!(change);
        let change = change.to_string();
        let words = ["patch", "mutatingwebhookconfigurations", WEBHOOK, "--type=json", "-p", &change];
        self.api.kubectl(&words).map(drop)
    }

    fn make(&self, name: &str, share: &str) -> Result<()> {
        self.api.create(
            &self.folder,
            &json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "name": name, "namespace": USERS, "annotations": { "sluice.dev/share": share } },
                "spec": { "containers": [{ "name": "main", "image": "program" }] },
            }),
        )
    }

    fn pod(&self, name: &str) -> Result<Value> {
        self.api.json(&["-n", USERS, "get", "pod", name])
    }

    fn wait_for_lease(&self, name: &str) -> Result<()> {
        self.api.wait(&format!("{name} has its lease"), || {
            let pod = self.pod(name)?;
            Ok(pod["spec"]["schedulingGates"].is_null() && condition(&pod)["status"] == "True")
        })
    }

    fn pods_get_leases(&self) -> Result<()> {
        for number in 1..=5 {
            self.make(&format!("pod-{number}"), "0.25")?;
        }
        for number in 1..=4 {
            self.wait_for_lease(&format!("pod-{number}"))?;
        }
        self.api.wait("the fifth says why it waits", || {
            Ok(condition(&self.pod("pod-5")?)["status"] == "False")
        })?;
        let fifth = self.pod("pod-5")?;
        let why = condition(&fifth)["message"].as_str().context("a message")?.to_owned();
        ensure!(why.contains("waits: ") && fifth["spec"]["schedulingGates"].is_array(), "{fifth}");
        let events = self.api.kubectl(&["-n", USERS, "describe", "pod", "pod-5"])?;
        ensure!(events.contains("SluiceWaiting"), "{events}");
        let first = self.pod("pod-1")?;
        let secret = first["metadata"]["annotations"]["sluice.dev/secret"].as_str().context("a Secret")?;
        let secret = self.api.json(&["-n", USERS, "get", "secret", secret])?;
        ensure!(secret["data"]["key"].is_string() && secret["immutable"] == true, "{secret}");
        self.api.kubectl(&["-n", USERS, "delete", "pod", "pod-1"])?;
        self.wait_for_lease("pod-5")
    }

    fn devices_are_published(&self) -> Result<()> {
        self.api.wait("the GPU is a device", || {
            let slices = self.api.json(&["get", "resourceslices"])?;
            let devices = slices["items"][0]["spec"]["devices"].as_array().context("devices")?;
            Ok(devices.len() == 1 && devices[0]["allowMultipleAllocations"] == true)
        })?;
        let classes = self.api.json(&["get", "deviceclasses"])?;
        ensure!(classes["items"].as_array().is_some_and(|classes| classes.len() == 4), "{classes}");
        let request = json!({
            "deviceClassName": "basic.gpu.sluice.dev",
            "capacity": { "requests": { "share": "25", "memory": "1Gi" } },
        });
        self.api.create(
            &self.folder,
            &json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                "metadata": { "name": "quarter", "namespace": USERS },
                "spec": { "devices": { "requests": [{ "name": "gpu", "exactly": request }] } },
            }),
        )
    }

    fn rights_are_few(&self) -> Result<()> {
        for (account, verb, resource, is_allowed) in [
            ("sluice-controller", "create", "secrets", true),
            ("sluice-controller", "get", "secrets", false),
            ("sluice-controller", "create", "pods --subresource=eviction", true),
            ("sluice-controller", "create", "pods --subresource=exec", false),
            ("sluice-controller", "list", "secrets", false),
            ("sluice-controller", "patch", "pods --subresource=status", true),
            ("sluice-controller", "delete", "pods", false),
            ("sluice-controller", "create", "resourceslices.resource.k8s.io", true),
            ("sluice-dra-driver", "get", "resourceclaims.resource.k8s.io", true),
            ("sluice-dra-driver", "patch", "resourceclaims.resource.k8s.io --subresource=status", true),
            ("sluice-dra-driver", "patch", "resourceclaims.resource.k8s.io", false),
            ("sluice-dra-driver", "get", "secrets", false),
            ("sluice-dra-driver", "list", "pods", false),
            ("default", "list", "pods", false),
        ] {
            let user = format!("--as=system:serviceaccount:{SYSTEM}:{account}");
            let mut words = vec!["auth", "can-i", verb];
            words.extend(resource.split(' '));
            words.extend(["-A", &user]);
            // It ends with 1 where the answer is no.
            let answer = self.api.command(&super::tools::kubectl()?, &words).output()?;
            let said = String::from_utf8_lossy(&answer.stdout).trim().to_owned();
            ensure!(said == if is_allowed { "yes" } else { "no" }, "{account} may {verb} {resource}: {said}");
        }
        Ok(())
    }

    /// A pod whose lease is over is evicted.
    fn an_ended_lease_takes_its_pod_along(&self) -> Result<()> {
        let lease = self.pod("pod-2")?["metadata"]["annotations"]["sluice.dev/lease"].clone();
        self.red.text(&["lease", "end", lease.as_str().context("a lease")?])?;
        self.api.wait("the pod is evicted", || Ok(self.pod("pod-2").is_err()))
    }

    fn pods_that_ask_are_refused_without_the_webhook(&mut self) -> Result<()> {
        let mut controller = self.controller.take().context("it runs")?;
        controller.signal(libc::SIGKILL);
        controller.end()?;
        let refused = self.make("pod-6", "0.25").err().context("a pod that asks was made")?.to_string();
        ensure!(refused.contains("Sluice's webhook did not answer"), "{refused}");
        self.api.create(
            &self.folder,
            &json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "other", "namespace": USERS },
                "spec": { "containers": [{ "name": "main", "image": "program" }] },
            }),
        )
    }

    fn nothing_is_left(&self) -> Result<()> {
        // As the chart has it, with what the controller has added.
        let webhook = self.api.json(&["get", "mutatingwebhookconfigurations", WEBHOOK])?;
        self.set_client(&json!({
            "service": { "name": "sluice-webhook", "namespace": SYSTEM, "path": "/mutate", "port": 443 },
            "caBundle": webhook["webhooks"][0]["clientConfig"]["caBundle"],
        }))?;
        self.helm("upgrade")?;
        self.api.helm(&["rollback", "sluice", "1", "--namespace", SYSTEM])?;
        self.api.helm(&["uninstall", "sluice", "--namespace", SYSTEM])?;
        let left = self.api.json(&["get", KINDS, "-l", "app.kubernetes.io/name=sluice"])?;
        ensure!(left["items"] == json!([]), "{left}");
        let left = self.api.kubectl(&[
            "-n",
            SYSTEM,
            "get",
            "all,secrets,networkpolicies,poddisruptionbudgets",
            "-o",
            "name",
        ])?;
        ensure!(left.is_empty(), "{left}");
        // The garbage collector removes the slices with their class.
        let slices = self.api.json(&["get", "resourceslices"])?;
        ensure!(slices["items"][0]["metadata"]["ownerReferences"][0]["kind"] == "DeviceClass", "{slices}");
        Ok(())
    }
}

/// The condition of a pod that says whether it has its lease.
fn condition(pod: &Value) -> &Value {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.find(|condition| condition["type"] == "sluice.dev/LeaseGranted").unwrap_or(&Value::Null)
}
