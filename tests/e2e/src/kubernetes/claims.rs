//! ResourceClaims on a whole cluster: the scheduler gives them devices, a kubelet has the driver
//! prepare them, and containerd mounts what the driver names.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::whole::{Installed, STAY, SYSTEM, USERS, pod};

impl Installed {
    /// Claims of 0.25, 0.5 and 0.5 of the one GPU: the third waits until the first two are gone.
    /// Two pods that share a claim share its lease.
    pub(super) fn claims_share_a_gpu(&self) -> Result<()> {
        let api = &self.cluster.api;
        self.upgrade("dra.enabled=true")?;
        api.kubectl(&["-n", SYSTEM, "rollout", "status", "daemonset/sluice-dra-driver", "--timeout=300s"])?;
        for (name, percent) in [("quarter", "25"), ("half", "50"), ("other-half", "50")] {
            self.claim(name, percent)?;
        }
        for (pod, claim) in [("one", "quarter"), ("beside", "quarter"), ("two", "half")] {
            self.use_claim(pod, claim, STAY)?;
        }
        for name in ["one", "beside", "two"] {
            self.wait_for_result(name)?;
        }
        let open = self.open_leases()?;
        ensure!(open.len() == 2, "two claims have the leases {open:?}");
        for name in ["quarter", "half"] {
            let lease = self.lease_of_claim(name)?;
            ensure!(open.contains(&lease), "claim {name} names lease {lease} of {open:?}");
        }
        self.use_claim("three", "other-half", STAY)?;
        api.wait("the third says why it waits", || {
            let said = api.kubectl(&["-n", USERS, "describe", "pod", "three"])?;
            Ok(said.contains("FailedScheduling") && said.contains("cannot allocate all claims"))
        })?;
        ensure!(self.pod("three")?["spec"]["nodeName"].is_null(), "the third was scheduled");
        api.kubectl(&["-n", USERS, "delete", "pods", "one", "beside", "two"])?;
        self.wait_for_result("three")?;
        let open = self.open_leases()?;
        ensure!(open == [self.lease_of_claim("other-half")?], "the third alone has a lease: {open:?}");
        self.delete_pods()?;
        api.kubectl(&["-n", USERS, "delete", "resourceclaims", "--all"])?;
        api.wait("all leases have ended", || Ok(self.open_leases()?.is_empty()))
    }

    /// Makes a claim of so many percent of a GPU.
    pub(super) fn claim(&self, name: &str, percent: &str) -> Result<()> {
        let exactly = json!({
            "deviceClassName": "gpu.sluice.dev",
            "capacity": { "requests": { "share": percent } },
        });
        self.create(&json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": { "name": name, "namespace": USERS },
            "spec": { "devices": { "requests": [{ "name": "gpu", "exactly": exactly }] } },
        }))
    }

    /// Makes a pod that computes with a claim.
    pub(super) fn use_claim(&self, name: &str, claim: &str, script: &str) -> Result<()> {
        let mut pod = pod(name, script);
        pod["spec"]["resourceClaims"] = json!([{ "name": "gpu", "resourceClaimName": claim }]);
        pod["spec"]["containers"][0]["resources"]["claims"] = json!([{ "name": "gpu" }]);
        self.create(&pod)
    }

    /// The lease that a claim's status names, which says that it is held.
    fn lease_of_claim(&self, name: &str) -> Result<u64> {
        let claim = self.cluster.api.json(&["-n", USERS, "get", "resourceclaim", name])?;
        let device = &claim["status"]["devices"][0];
        let ready = &device["conditions"][0];
        ensure!(ready["type"] == "Ready" && ready["status"] == "True", "{claim}");
        device["data"]["lease"].as_u64().with_context(|| claim.to_string())
    }

    pub(super) fn open_leases(&self) -> Result<Vec<u64>> {
        let leases = self.sluice("lease list")?;
        let leases: Option<Vec<u64>> =
            leases.as_array().context("a list")?.iter().map(|lease: &Value| lease["id"].as_u64()).collect();
        leases.context("a lease without a number")
    }
}
