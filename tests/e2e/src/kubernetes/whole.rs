//! The guide's way from an empty cluster to pods that compute on a GPU of another machine.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::chart;
use super::cluster::{Cluster, LENDER, PLAIN, PYTHON, SLUICE};

/// The namespaces of the chart and of users' pods.
pub(super) const SYSTEM: &str = "sluice-system";
pub(super) const USERS: &str = "users";
/// Computes on the GPU, checks the results, and ends.
const COMPUTE: &str = "ROUNDS=3 python3 /programs/counts.py";
/// Stays on the GPU after that.
pub(super) const STAY: &str = "ROUNDS=3 python3 /programs/counts.py && exec sleep infinity";

/// A cluster with the chart.
pub(super) struct Installed {
    pub(super) cluster: Cluster,
    folder: PathBuf,
}

pub(super) fn pods_compute_elsewhere() -> Result<()> {
    let mut installed = Installed::start("whole-cluster")?;
    installed.a_pod_computes_elsewhere()?;
    installed.four_run_and_one_waits()?;
    installed.delete_pods()?;
    installed.a_pod_that_is_gone_ends_its_lease()?;
    installed.slots_are_a_resource()?;
    installed.claims_share_a_gpu()
}

impl Installed {
    /// Starts a cluster with its files in a folder of this name, and installs the chart.
    pub(super) fn start(name: &str) -> Result<Installed> {
        let folder = crate::target_folder().join(name);
        let _ = fs::remove_dir_all(&folder); // it may not be there yet
        fs::create_dir_all(&folder)?;
        let installed = Installed { cluster: Cluster::start(&folder)?, folder };
        installed.install()?;
        Ok(installed)
    }

    /// The guide's commands, and those that helm prints.
    fn install(&self) -> Result<()> {
        let api = &self.cluster.api;
        self.make_volume()?;
        api.kubectl(&["label", "node", LENDER, "lends-gpus=yes"])?;
        let chart = chart().display().to_string();
        let said = self.cluster.shell(&format!(
            "helm install sluice {chart} --namespace {SYSTEM} --create-namespace \
             --set image.repository={SLUICE} --set 'node.gpus=software:1\\,4GiB' \
             --set node.nodeSelector.lends-gpus=yes --set controller.ptx=true"
        ))?;
        let commands: Vec<&str> = said.lines().filter(|line| line.starts_with("  ")).collect();
        ensure!(!commands.is_empty(), "helm prints no commands: {said}");
        api.kubectl(&["-n", SYSTEM, "rollout", "status", "statefulset/sluice-server", "--timeout=300s"])?;
        self.cluster.shell(&commands.join("\n"))?;
        api.kubectl(&["-n", SYSTEM, "rollout", "status", "deployment/sluice-controller", "--timeout=300s"])?;
        api.kubectl(&["create", "namespace", USERS])?;
        api.wait("the GPU is lent", || {
            Ok(self.sluice("gpus")?.as_array().is_some_and(|gpus| gpus.len() == 1))
        })
    }

    /// Changes a value of the chart, and waits until the controller runs with it.
    pub(super) fn upgrade(&self, value: &str) -> Result<()> {
        let chart = chart().display().to_string();
        self.cluster.shell(&format!(
            "helm upgrade sluice {chart} --namespace {SYSTEM} --reset-then-reuse-values --set {value}"
        ))?;
        let words = ["-n", SYSTEM, "rollout", "status", "deployment/sluice-controller", "--timeout=300s"];
        self.cluster.api.kubectl(&words).map(drop)
    }

    /// Deletes all pods of the users, and waits until they are gone.
    pub(super) fn delete_pods(&self) -> Result<()> {
        self.cluster.api.kubectl(&["-n", USERS, "delete", "pods", "--all"]).map(drop)
    }

    /// A disk for the server: this cluster has no storage class.
    fn make_volume(&self) -> Result<()> {
        let path = self.volume();
        fs::create_dir_all(&path)?;
        let on_plain = json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": [PLAIN] });
        self.create(&json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "server" },
            "spec": {
                "capacity": { "storage": "8Gi" },
                "accessModes": ["ReadWriteOnce"],
                "local": { "path": path },
                "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [on_plain] }] } },
            },
        }))
    }

    /// The disk of Sluice's server, which is `/data` there.
    pub(super) fn volume(&self) -> PathBuf {
        self.folder.join("volume")
    }

    pub(super) fn create(&self, object: &Value) -> Result<()> {
        self.cluster.api.create(&self.folder, object)
    }

    /// Makes an object as `kubectl apply` does.
    pub(super) fn apply(&self, object: &Value) -> Result<()> {
        let file = self.folder.join("applied.json");
        fs::write(&file, object.to_string())?;
        self.cluster.api.kubectl(&["apply", "-f", &file.display().to_string()]).map(drop)
    }

    /// What `sluice` says as the administrator of Sluice's server.
    pub(super) fn sluice(&self, words: &str) -> Result<Value> {
        let said = self.sluice_text(&format!("{words} -o json"))?;
        serde_json::from_str(&said).context(said)
    }

    pub(super) fn sluice_text(&self, words: &str) -> Result<String> {
        self.cluster.shell(&format!(
            "kubectl -n {SYSTEM} exec -i sluice-server-0 -- /usr/bin/sluice {words} --server \
             $(helm -n {SYSTEM} get notes sluice | grep -o 'https://127[^ ]*')"
        ))
    }

    /// Makes a pod with a share on the machine without a GPU.
    pub(super) fn make(&self, name: &str, share: &str, script: &str) -> Result<()> {
        let mut pod = pod(name, script);
        pod["metadata"]["annotations"] = json!({ "sluice.dev/share": share });
        self.create(&pod)
    }

    pub(super) fn pod(&self, name: &str) -> Result<Value> {
        self.cluster.api.json(&["-n", USERS, "get", "pod", name])
    }

    /// Waits until the pod's program has said that its results are right.
    pub(super) fn wait_for_result(&self, name: &str) -> Result<()> {
        let api = &self.cluster.api;
        let logs = ["-n", USERS, "logs", name, "-c", "main"];
        api.wait(&format!("{name} has computed"), || {
            let pod = self.pod(name)?;
            ensure!(pod["status"]["phase"] != "Failed" || api.kubectl(&logs).is_err(), "{pod}");
            Ok(api.kubectl(&logs)?.contains("PASS"))
        })
    }

    fn a_pod_computes_elsewhere(&self) -> Result<()> {
        self.make("counts", "0.25", COMPUTE)?;
        self.wait_for_result("counts")?;
        self.cluster
            .api
            .wait("the pod has ended", || Ok(self.pod("counts")?["status"]["phase"] == "Succeeded"))?;
        let pod = self.pod("counts")?;
        ensure!(pod["spec"]["nodeName"] == PLAIN, "{pod}");
        let annotation = |name: &str| pod["metadata"]["annotations"][name].as_str().context("an annotation");
        let place = annotation("sluice.dev/place")?;
        ensure!(place.starts_with(LENDER), "{place}");
        let lease: u64 = annotation("sluice.dev/lease")?.parse()?;
        self.cluster.api.wait("its lease has ended", || {
            let leases = self.sluice("lease list --all")?;
            let lease = leases.as_array().into_iter().flatten().find(|other| other["id"] == lease);
            Ok(lease.context("the lease")?["state"] == "ended")
        })
    }

    fn four_run_and_one_waits(&self) -> Result<()> {
        let names: Vec<String> = (1..=5).map(|number| format!("pod-{number}")).collect();
        for name in &names[..4] {
            self.make(name, "0.25", STAY)?;
        }
        for name in &names[..4] {
            self.wait_for_result(name)?;
        }
        self.make(&names[4], "0.25", STAY)?;
        let api = &self.cluster.api;
        api.wait("the fifth says why it waits", || {
            let said = api.kubectl(&["-n", USERS, "describe", "pod", &names[4]])?;
            Ok(said.contains("SluiceWaiting") && said.contains("waits: "))
        })?;
        ensure!(self.pod(&names[4])?["spec"]["nodeName"].is_null(), "the fifth was scheduled");
        api.kubectl(&["-n", USERS, "delete", "pod", &names[0]])?;
        self.wait_for_result(&names[4])
    }
}

/// A pod on the machine without a GPU.
pub(super) fn pod(name: &str, script: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": USERS },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 2,
            "nodeSelector": { "kubernetes.io/hostname": PLAIN },
            "containers": [{ "name": "main", "image": PYTHON, "command": ["sh", "-c", script] }],
        },
    })
}
