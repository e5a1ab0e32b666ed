//! The device plugin on a whole cluster: `sluice.dev/gpu` as a resource that kubelets count and
//! quotas limit.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::cluster::{LENDER, PLAIN};
use super::whole::{Installed, STAY, SYSTEM, USERS, pod};

/// The resource.
const GPU: &str = "sluice.dev/gpu";

impl Installed {
    /// Each machine has slots, with a GPU or without; a pod that asks by the resource takes one,
    /// and a quota of its namespace allows no more.
    pub(super) fn slots_are_a_resource(&self) -> Result<()> {
        let api = &self.cluster.api;
        self.upgrade("devicePlugin.enabled=true")?;
        let plugin = "daemonset/sluice-device-plugin";
        api.kubectl(&["-n", SYSTEM, "rollout", "status", plugin, "--timeout=300s"])?;
        for machine in [PLAIN, LENDER] {
            api.wait(&format!("{machine} has slots"), || Ok(self.slots(machine)? == "64"))?;
        }
        api.kubectl(&["-n", USERS, "create", "quota", "gpus", &format!("--hard=requests.{GPU}=1")])?;
        api.wait("the quota is counted", || {
            Ok(api.json(&["-n", USERS, "get", "quota", "gpus"])?["status"]["used"].is_object())
        })?;
        self.make_by_resource("by-resource")?;
        self.wait_for_result("by-resource")?;
        let made = self.pod("by-resource")?;
        ensure!(made["spec"]["nodeName"] == PLAIN, "{made}");
        let limits = |list: &str| made["spec"][list][0]["resources"]["limits"][GPU].clone();
        ensure!(limits("initContainers") == "1" && limits("containers").is_null(), "{made}");
        let said = api.kubectl(&["describe", "node", PLAIN])?;
        let taken = said.lines().rfind(|line| line.trim().starts_with(GPU));
        ensure!(taken.is_some_and(|line| line.split_whitespace().nth(1) == Some("1")), "{said}");
        let refused = self.make_by_resource("one-more").err().context("the quota allows more")?.to_string();
        ensure!(refused.contains("exceeded quota"), "{refused}");
        api.kubectl(&["-n", USERS, "delete", "quota", "gpus"])?;
        self.delete_pods()
    }

    /// The slots of a machine that pods may have.
    fn slots(&self, machine: &str) -> Result<Value> {
        Ok(self.cluster.api.json(&["get", "node", machine])?["status"]["allocatable"][GPU].clone())
    }

    /// Makes a pod that asks for a GPU by the resource, and by annotation for a quarter of it.
    fn make_by_resource(&self, name: &str) -> Result<()> {
        let mut pod = pod(name, STAY);
        pod["metadata"]["annotations"] = json!({ "sluice.dev/share": "0.25" });
        pod["spec"]["containers"][0]["resources"]["limits"] = json!({ GPU: "1" });
        self.create(&pod)
    }
}
