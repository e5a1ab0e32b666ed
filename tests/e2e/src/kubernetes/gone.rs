//! Pods that are gone on a whole cluster, and the end of their leases.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::whole::{Installed, STAY, USERS};

impl Installed {
    /// A pod that is gone ends its lease, also where its machine's kubelet is away: its containers
    /// still run when the next pod has the GPU. The answer is the time from the one to
    /// the other, in milliseconds.
    pub(super) fn a_pod_that_is_gone_ends_its_lease(&mut self) -> Result<u64> {
        let api = &self.cluster.api;
        self.make("gone", "1", STAY)?;
        self.wait_for_result("gone")?;
        let lease = self.lease_of_pod("gone")?;
        self.make("next", "1", STAY)?;
        api.wait("the next waits", || {
            let pod = self.pod("next")?;
            let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            Ok(conditions.any(|condition| condition["reason"] == "SluiceWaiting"))
        })?;
        self.cluster.plain.kill("kubelet")?;
        let api = &self.cluster.api;
        let begin_ms = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
        api.kubectl(&["-n", USERS, "delete", "pod", "gone", "--force", "--grace-period=0", "--wait=false"])?;
        api.wait("the next has the lease", || Ok(self.lease_of_pod("next").is_ok()))?;
        self.cluster.plain.start_again("kubelet")?;
        // It is asked for the shell in the server's pod, too.
        let api = &self.cluster.api;
        api.wait("the kubelet answers", || Ok(self.sluice("lease list").is_ok()))?;
        let leases = self.sluice("lease list --all")?;
        let find = |id: u64| {
            leases.as_array().into_iter().flatten().find(|other| other["id"] == id).context("a lease")
        };
        let ended = find(lease)?["ended_at_ms"].as_u64().context("it has not ended")?;
        let next = find(self.lease_of_pod("next")?)?;
        let granted = next["granted_at_ms"].as_u64().with_context(|| next.to_string())?;
        ensure!(ended <= granted, "lease {lease} ended at {ended}, and the next was granted at {granted}");
        self.wait_for_result("next")?;
        self.delete_pods()?;
        Ok(u128::from(ended).saturating_sub(begin_ms).try_into()?)
    }

    /// The number of a pod's lease, once it is granted.
    fn lease_of_pod(&self, name: &str) -> Result<u64> {
        let pod: Value = self.pod(name)?;
        let lease = pod["metadata"]["annotations"]["sluice.dev/lease"].as_str();
        Ok(lease.with_context(|| format!("{name} has no lease"))?.parse()?)
    }
}
