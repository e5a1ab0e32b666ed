//! What a pod waits for on a whole cluster, from `kubectl apply` to its first kernel, and how many
//! pods and claims get their leases in a second.
//!
//! The cluster's own part is that of an equal pod without Sluice: with a sidecar that is ready at
//! once, and a program that starts Python.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::cluster::PYTHON;
use super::whole::{Installed, SYSTEM, USERS, pod};

/// Pods of each kind, taken alternately.
const PODS: usize = 10;
/// Pods that are deleted by force.
const GONE: usize = 5;
/// Pods that wait for one lease to end, and the share of each.
const GATED: u32 = 200;
const GATED_SHARE: &str = "0.005";
/// Pods with claims, and the percent of each. A kubelet takes 110 pods.
const CLAIMS: u32 = 60;
const CLAIMS_PERCENT: &str = "1";

/// Prints the time at which it starts, and the time after its first kernel, in seconds since 1970.
const FIRST_KERNEL: &str = "import sys, time\n\
    begin = time.time()\n\
    sys.path.insert(0, '/programs')\n\
    import ctypes\n\
    from driver import SPIN, allocate, attach, launch, load, synchronize\n\
    attach()\n\
    spin, counter = load(SPIN, 'spin'), allocate(4)\n\
    launch(spin, 1, 32, ctypes.c_uint64(counter), ctypes.c_uint32(1))\n\
    synchronize()\n\
    print('figures', begin, time.time(), flush=True)\n";
const WITHOUT: &str =
    "import time\nbegin = time.time()\nimport ctypes\nprint('figures', begin, time.time(), flush=True)\n";

/// Seconds from `kubectl apply`.
#[derive(Default)]
struct Times {
    /// Until the gate was lifted.
    lifted: Vec<f64>,
    /// Until the program ran.
    started: Vec<f64>,
    /// Until its first kernel had ended.
    computed: Vec<f64>,
}

/// Measures on a cluster of its own, and returns the tables.
pub(crate) fn tables() -> Result<String> {
    let mut installed = Installed::start("measured-cluster")?;
    let (mut ours, mut plain, mut lonely) = (Times::default(), Times::default(), Times::default());
    for number in 0..PODS {
        installed.time(&format!("ours-{number}"), Kind::Share, &mut ours)?;
        installed.time(&format!("plain-{number}"), Kind::Sidecar, &mut plain)?;
        installed.time(&format!("lonely-{number}"), Kind::Alone, &mut lonely)?;
    }
    let after_apply = [
        ("its lease is granted and its gate lifted", &ours.lifted),
        ("its program starts", &ours.started),
        ("its first kernel has ended", &ours.computed),
        ("an equal pod without Sluice: its program starts", &plain.started),
        ("the same pod without a sidecar: its program starts", &lonely.started),
    ];
    let mut text = String::from("| from `kubectl apply` until | seconds |\n|---|---|\n");
    for (what, times) in after_apply {
        text += &format!("| {what} | {} |\n", spread(times));
    }
    let mut gone = Vec::new();
    for _ in 0..GONE {
        gone.push(installed.a_pod_that_is_gone_ends_its_lease()? as f64 / 1000.0);
    }
    let gated = installed.pods_through_the_gate()?;
    let (created, computed) = installed.pods_with_claims()?;
    text += "\n| what | figure |\n|---|---|\n";
    text += &format!("| `kubectl delete --force` until the lease has ended | {} s |\n", spread(&gone));
    text +=
        &format!("| pods through gate and lease, {GATED} that wait for one GPU | {gated:.1} a second |\n");
    text += &format!("| pods with claims, {CLAIMS} at once: made | {created:.0} a minute |\n");
    text += &format!("| the same: their programs run | {computed:.0} a minute |\n");
    Ok(text)
}

/// A pod that is timed.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// It asks for a share of a GPU.
    Share,
    /// It has a sidecar of its own.
    Sidecar,
    Alone,
}

impl Installed {
    fn time(&self, name: &str, kind: Kind, times: &mut Times) -> Result<()> {
        let program = if kind == Kind::Share { FIRST_KERNEL } else { WITHOUT };
        let mut pod = pod(name, "");
        pod["spec"]["containers"][0]["command"] = json!(["python3", "-c", program]);
        match kind {
            Kind::Share => pod["metadata"]["annotations"] = json!({ "sluice.dev/share": "0.25" }),
            Kind::Sidecar => pod["spec"]["initContainers"] = json!([sidecar()]),
            Kind::Alone => {}
        }
        let api = &self.cluster.api;
        let begin = now_s()?;
        self.apply(&pod)?;
        if kind == Kind::Share {
            // A watch says it at once, where a look would say it later.
            let words = ["-n", USERS, "wait", "--for=condition=sluice.dev/LeaseGranted", "--timeout=120s"];
            api.kubectl(&[&words[..], &[&format!("pod/{name}")]].concat())?;
            times.lifted.push(now_s()? - begin);
        }
        let words = ["-n", USERS, "wait", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=120s"];
        api.kubectl(&[&words[..], &[&format!("pod/{name}")]].concat())?;
        let said = api.kubectl(&["-n", USERS, "logs", name, "-c", "main"])?;
        let figures = said.lines().find_map(|line| line.strip_prefix("figures ")).context(said.clone())?;
        let figures: Vec<f64> = figures.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        ensure!(figures.len() == 2, "{said}");
        times.started.push(figures[0] - begin);
        times.computed.push(figures[1] - begin);
        api.kubectl(&["-n", USERS, "delete", "pod", name]).map(drop)
    }

    /// Pods a second that get lease and Secret, and whose gate is lifted, from the end of the lease
    /// that all of them wait for. No machine takes them.
    fn pods_through_the_gate(&self) -> Result<f64> {
        let api = &self.cluster.api;
        self.make("first", "1", super::whole::STAY)?;
        self.wait_for_result("first")?;
        let waiting = |number| {
            let mut pod = pod(&format!("gated-{number}"), "true");
            pod["metadata"]["annotations"] = json!({ "sluice.dev/share": GATED_SHARE });
            pod["metadata"]["labels"] = json!({ "measured": "gate" });
            pod["spec"]["nodeSelector"] = json!({ "none": "such" });
            pod
        };
        self.create_all((0..GATED).map(waiting).collect())?;
        let count = |status: &str| -> Result<usize> {
            let pods = api.json(&["-n", USERS, "get", "pods", "-l", "measured=gate"])?;
            let pods = pods["items"].as_array().context("a list")?;
            Ok(pods.iter().filter(|pod| granted(pod) == Some(status)).count())
        };
        api.wait("all wait", || Ok(count("False")? == GATED as usize))?;
        api.kubectl(&["-n", USERS, "delete", "pod", "first"])?;
        api.wait("the first is through", || Ok(count("True")? > 0))?;
        let (begin, before) = (Instant::now(), count("True")?);
        api.wait("all are through", || Ok(count("True")? == GATED as usize))?;
        let rate = (GATED as usize - before) as f64 / begin.elapsed().as_secs_f64();
        self.delete_pods()?;
        Ok(rate)
    }

    /// Pods with claims that are made in a minute, and that run in a minute.
    fn pods_with_claims(&self) -> Result<(f64, f64)> {
        self.upgrade("dra.enabled=true")?;
        let api = &self.cluster.api;
        api.kubectl(&["-n", SYSTEM, "rollout", "status", "daemonset/sluice-dra-driver", "--timeout=300s"])?;
        let exactly = json!({
            "deviceClassName": "gpu.sluice.dev",
            "capacity": { "requests": { "share": CLAIMS_PERCENT } },
        });
        self.create(&json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": { "name": "percent", "namespace": USERS },
            "spec": { "spec": { "devices": { "requests": [{ "name": "gpu", "exactly": exactly }] } } },
        }))?;
        let claiming = |number| {
            let mut pod = pod(&format!("claiming-{number}"), "exec sleep infinity");
            pod["spec"]["resourceClaims"] =
                json!([{ "name": "gpu", "resourceClaimTemplateName": "percent" }]);
            pod["spec"]["containers"][0]["resources"]["claims"] = json!([{ "name": "gpu" }]);
            pod
        };
        let begin = Instant::now();
        self.create_all((0..CLAIMS).map(claiming).collect())?;
        let created = begin.elapsed();
        api.wait("all run", || {
            let pods = api.json(&["-n", USERS, "get", "pods"])?;
            let pods = pods["items"].as_array().context("a list")?;
            Ok(pods.iter().filter(|pod| pod["status"]["phase"] == "Running").count() == CLAIMS as usize)
        })?;
        let ran = begin.elapsed();
        self.delete_pods()?;
        let a_minute = |time: Duration| f64::from(CLAIMS) / time.as_secs_f64() * 60.0;
        Ok((a_minute(created), a_minute(ran)))
    }

    fn create_all(&self, objects: Vec<Value>) -> Result<()> {
        self.create(&json!({ "apiVersion": "v1", "kind": "List", "items": objects }))
    }
}

/// As the webhook's: it starts before the program, and is probed as often.
fn sidecar() -> Value {
    json!({
        "name": "sidecar",
        "image": PYTHON,
        "restartPolicy": "Always",
        "command": ["sleep", "infinity"],
        "startupProbe": { "exec": { "command": ["true"] }, "periodSeconds": 1, "failureThreshold": 300 },
    })
}

/// The status of the pod's condition.
fn granted(pod: &Value) -> Option<&str> {
    let mut conditions = pod["status"]["conditions"].as_array()?.iter();
    conditions.find(|condition| condition["type"] == "sluice.dev/LeaseGranted")?["status"].as_str()
}

fn now_s() -> Result<f64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64())
}

/// The median, with the lowest and the highest.
fn spread(times: &[f64]) -> String {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    let (Some(lowest), Some(highest)) = (times.first(), times.last()) else { return "-".into() };
    format!("{:.2} [{lowest:.2}, {highest:.2}]", times[times.len() / 2])
}
