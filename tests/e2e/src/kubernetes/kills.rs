//! Every part of a whole cluster and of Sluice is killed while pods start, run and end: no lease is
//! lost, none is there twice, and the bill is what the node's journal says.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::cluster::PLAIN;
use super::whole::{Installed, SYSTEM, USERS};

/// Computes, and then for longer than the test lasts; it ends as soon as a result is wrong.
const STEADY: &str =
    "ROUNDS=3 python3 /programs/counts.py && ROUNDS=100000000 exec python3 /programs/counts.py";
/// The pods and claims that run from the beginning to the end, and the part of the GPU of each.
const STEADY_PODS: [&str; 2] = ["steady", "steady-claim"];
/// Ends, and starts, meanwhile.
const BRIEF_SHARE: u32 = 10;
const STEADY_SHARE: u32 = 20;

/// What is killed.
#[derive(Clone, Copy, Debug)]
enum Part {
    Kubelet,
    DevicePlugin,
    DraDriver,
    Controller,
    ApiServer,
    Server,
}

/// The device plugin comes last, and is not there before: a kubelet that starts again refuses new
/// pods with slots until the plugin has registered again.
const PARTS: [Part; 6] =
    [Part::Kubelet, Part::DraDriver, Part::Controller, Part::ApiServer, Part::Server, Part::DevicePlugin];

pub(super) fn every_part_may_be_killed() -> Result<()> {
    let mut installed = Installed::start("killed-cluster")?;
    installed.upgrade("dra.enabled=true")?;
    installed.roll_out("sluice-dra-driver")?;
    let [pod, claim] = STEADY_PODS;
    installed.make(pod, "0.2", STEADY)?;
    installed.claim_for(claim, STEADY_SHARE, STEADY)?;
    for name in STEADY_PODS {
        installed.wait_for_result(name)?;
    }
    let steady = installed.open()?;
    ensure!(steady.len() == STEADY_PODS.len(), "{steady:?}");
    for part in PARTS {
        if let Part::DevicePlugin = part {
            installed.upgrade("devicePlugin.enabled=true")?;
            installed.roll_out("sluice-device-plugin")?;
        }
        installed.pods_start_and_end_while(part, &steady).with_context(|| format!("{part:?}"))?;
    }
    installed.no_lease_was_there_twice()?;
    installed.delete_pods()?;
    installed.cluster.api.wait("all leases have ended", || Ok(installed.open_leases()?.is_empty()))?;
    installed.journal_and_bill_agree()
}

impl Installed {
    fn roll_out(&self, set: &str) -> Result<()> {
        let set = format!("daemonset/{set}");
        self.cluster.api.kubectl(&["-n", SYSTEM, "rollout", "status", &set, "--timeout=300s"]).map(drop)
    }

    /// Kills a part while two pods end and two start, and once more when those have their leases.
    fn pods_start_and_end_while(&mut self, part: Part, steady: &BTreeSet<u64>) -> Result<()> {
        eprintln!("killing {part:?}");
        let name = |what: &str| format!("{what}-{part:?}").to_lowercase();
        let ending = [name("ending"), name("ending-claim")];
        let starting = [name("starting"), name("starting-claim")];
        self.make_both(&ending)?;
        for name in &ending {
            self.wait_for_result(name)?;
        }
        self.make_both(&starting)?;
        let words = ["-n", USERS, "delete", "pods", "--wait=false", &ending[0], &ending[1]];
        self.cluster.api.kubectl(&words)?;
        self.kill(part)?;
        let api = &self.cluster.api;
        api.wait("the starting pod has its lease", || {
            Ok(self.pod(&starting[0])?["metadata"]["annotations"]["sluice.dev/lease"].is_string())
        })?;
        self.kill(part)?;
        for name in &starting {
            self.wait_for_result(name)?;
        }
        let api = &self.cluster.api;
        for name in &ending {
            api.wait(&format!("{name} is gone"), || Ok(self.is_gone(name)))?;
        }
        api.wait("the pods that run have the open leases", || {
            let open = self.open()?;
            ensure!(open.is_superset(steady), "{open:?} lack some of {steady:?}");
            Ok(open.len() == steady.len() + starting.len())
        })?;
        self.steady_pods_run()?;
        let words = ["-n", USERS, "delete", "pods", &starting[0], &starting[1]];
        self.cluster.api.kubectl(&words)?;
        let api = &self.cluster.api;
        api.wait("their leases have ended", || Ok(self.open()? == *steady))?;
        // One that was killed twice is started again after some seconds.
        api.wait("all parts are ready", || {
            let pods = api.json(&["-n", SYSTEM, "get", "pods"])?;
            let mut pods = pods["items"].as_array().context("a list")?.iter();
            Ok(pods.all(|pod| pod["status"]["containerStatuses"][0]["ready"] == true))
        })
    }

    fn make_both(&self, [by_annotation, by_claim]: &[String; 2]) -> Result<()> {
        self.make(by_annotation, &format!("0.{BRIEF_SHARE}"), super::whole::STAY)?;
        self.claim_for(by_claim, BRIEF_SHARE, super::whole::STAY)
    }

    /// Makes a claim, and a pod of the same name that uses it.
    fn claim_for(&self, name: &str, percent: u32, script: &str) -> Result<()> {
        self.claim(name, &percent.to_string())?;
        self.use_claim(name, name, script)
    }

    fn kill(&mut self, part: Part) -> Result<()> {
        let label = match part {
            Part::Kubelet => return self.cluster.plain.restart("kubelet"),
            Part::ApiServer => return self.cluster.api.restart(),
            Part::DevicePlugin => "device-plugin",
            Part::DraDriver => "dra-driver",
            Part::Controller => "controller",
            Part::Server => "server",
        };
        let selector = format!("app.kubernetes.io/component={label}");
        let pods = self.cluster.api.json(&["-n", SYSTEM, "get", "pods", "-l", &selector])?;
        let mut killed = 0;
        for pod in pods["items"].as_array().context("a list")? {
            let status = &pod["status"]["containerStatuses"][0];
            let id = status["containerID"].as_str().and_then(|id| id.strip_prefix("containerd://"));
            let on_plain = pod["spec"]["nodeName"] == PLAIN;
            // One that waits for its next start is not killed again, also where its status is old.
            if let Some(id) = id.filter(|_| status["state"]["running"].is_object()) {
                let machine = if on_plain { &self.cluster.plain } else { &self.cluster.lender };
                killed += u32::from(machine.kill_container(id).is_ok());
            }
        }
        if killed == 0 {
            let api = &self.cluster.api;
            api.wait(&format!("{label} runs again"), || {
                let pods = api.json(&["-n", SYSTEM, "get", "pods", "-l", &selector])?;
                Ok(pods["items"][0]["status"]["containerStatuses"][0]["state"]["running"].is_object())
            })?;
            return self.kill(part);
        }
        Ok(())
    }

    fn is_gone(&self, pod: &str) -> bool {
        self.pod(pod).is_err_and(|error| error.to_string().contains("NotFound"))
    }

    fn open(&self) -> Result<BTreeSet<u64>> {
        Ok(self.open_leases()?.into_iter().collect())
    }

    fn steady_pods_run(&self) -> Result<()> {
        for name in STEADY_PODS {
            let pod = self.pod(name)?;
            let statuses = ["containerStatuses", "initContainerStatuses"];
            let statuses = statuses.iter().flat_map(|list| pod["status"][list].as_array()).flatten();
            let is_restarted = |status: &Value| status["restartCount"] != 0;
            ensure!(
                pod["status"]["phase"] == "Running" && !statuses.into_iter().any(is_restarted),
                "{name}: {}",
                pod["status"]
            );
        }
        Ok(())
    }

    /// Each pod and each claim had one lease at a time; a lease that was not claimed in time is
    /// followed by another. The name of a lease says whose it is.
    fn no_lease_was_there_twice(&self) -> Result<()> {
        let leases = self.sluice("lease list --all")?;
        let mut ends: BTreeMap<String, u64> = BTreeMap::new();
        // The latest comes first.
        for lease in leases.as_array().context("a list")?.iter().rev() {
            let created = lease["created_at_ms"].as_u64().context("a time")?;
            let ended = lease["ended_at_ms"].as_u64().unwrap_or(u64::MAX);
            let before = ends.insert(lease["name"].to_string(), ended);
            ensure!(before.is_none_or(|before| before <= created), "{lease} began before another had ended");
        }
        let expected = STEADY_PODS.len() + PARTS.len() * 4;
        ensure!(ends.len() == expected, "{expected} pods had leases of {} names: {ends:?}", ends.len());
        Ok(())
    }

    /// The node's journal, where its server can read it, says what the bill says.
    fn journal_and_bill_agree(&self) -> Result<()> {
        let journal = self.cluster.lender.file("/var/lib/sluice-node");
        let copied = self.volume().join("journal");
        crate::process::output_of(std::process::Command::new("cp").arg("-r").arg(&journal).arg(&copied))?;
        let open = std::process::Command::new("chmod").args(["-R", "a+rX"]).arg(&copied).status()?;
        ensure!(open.success(), "{}", copied.display());
        let said = self.sluice_text("reconcile --journal /data/journal")?;
        ensure!(said.contains("they agree") && said.contains(" in 1 journal"), "{said}");
        Ok(())
    }
}
