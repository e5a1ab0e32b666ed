//! What a pod says about its lease, by itself: no server is asked.

use serde::Serialize;
use serde_json::Value;

use crate::quantity::Memory;

/// The gate that the controller lifts when the lease is granted.
const GATE: &str = "sluice.dev/lease";
/// The condition whose message is the server's.
const CONDITION: &str = "sluice.dev/LeaseGranted";

/// A pod with a lease, or one that waits for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Pod {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) state: State,
    pub(super) lease: Option<u64>,
    /// The GPUs of its lease, as `NODE/INDEX,INDEX` with the name of Sluice's node.
    pub(super) place: Option<String>,
    /// The cluster's node that it runs on.
    pub(super) node: Option<String>,
    pub(super) gpus: Option<String>,
    pub(super) share: Option<String>,
    pub(super) memory: Option<String>,
    pub(super) tier: Option<String>,
    /// Why it waits, or where it runs.
    pub(super) why: String,
    #[serde(skip)]
    pub(super) uid: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// It is none of Sluice's pods.
    None,
    /// It waits for its lease.
    Waiting,
    /// It has its lease, and no node.
    Unscheduled,
    /// Its images are pulled, or its containers start.
    Starting,
    Running,
    /// Its lease is over before the pod is.
    Lost,
    Ending,
    Finished,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::None => "none",
            State::Waiting => "waiting",
            State::Unscheduled => "unscheduled",
            State::Starting => "starting",
            State::Running => "running",
            State::Lost => "lost",
            State::Ending => "ending",
            State::Finished => "finished",
        }
    }
}

impl Pod {
    pub(super) fn of(pod: &Value) -> Option<Pod> {
        let metadata = &pod["metadata"];
        let annotation = |name: &str| metadata["annotations"][name].as_str().map(str::to_owned);
        let lease = annotation("sluice.dev/lease").and_then(|text| text.parse().ok());
        let place = annotation("sluice.dev/place");
        let state = state(pod);
        Some(Pod {
            namespace: metadata["namespace"].as_str()?.to_owned(),
            pod: metadata["name"].as_str()?.to_owned(),
            state,
            lease,
            why: why(pod, state, lease, place.as_deref()),
            place,
            node: pod["spec"]["nodeName"].as_str().map(str::to_owned),
            gpus: annotation("sluice.dev/gpu"),
            share: annotation("sluice.dev/share"),
            memory: annotation("sluice.dev/memory"),
            tier: annotation("sluice.dev/tier"),
            uid: metadata["uid"].as_str().unwrap_or_default().to_owned(),
        })
    }

    pub(super) fn cells(&self) -> Vec<String> {
        let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let memory = self.memory.as_ref().map(|text| match text.parse() {
            Ok(bytes) => Memory::from_bytes(bytes).to_string(),
            Err(_) => text.clone(),
        });
        vec![
            self.pod.clone(),
            self.state.name().to_owned(),
            or_dash(&self.lease.map(|lease| lease.to_string())),
            or_dash(&self.place),
            or_dash(&self.node),
            or_dash(&self.gpus),
            or_dash(&self.share),
            or_dash(&memory),
            or_dash(&self.tier),
        ]
    }
}

fn state(pod: &Value) -> State {
    let granted = condition(pod, CONDITION);
    match pod["status"]["phase"].as_str().unwrap_or_default() {
        _ if pod["metadata"]["labels"]["sluice.dev/injected"] != "true" => State::None,
        "Succeeded" | "Failed" => State::Finished,
        _ if pod["metadata"]["deletionTimestamp"].is_string() => State::Ending,
        _ if gates(pod).any(|gate| gate == GATE) => State::Waiting,
        _ if granted["status"] == "False" => State::Lost,
        "Running" => State::Running,
        _ if pod["spec"]["nodeName"].is_string() => State::Starting,
        _ => State::Unscheduled,
    }
}

/// One or two sentences for people.
fn why(pod: &Value, state: State, lease: Option<u64>, place: Option<&str>) -> String {
    let said = |kind: &str| condition(pod, kind)["message"].as_str().filter(|text| !text.is_empty());
    let lease = lease.map_or_else(|| "Its lease".to_owned(), |lease| format!("Lease {lease}"));
    let has = format!("{lease} is granted on {}", place.unwrap_or("a node"));
    match state {
        State::None if asks(pod) => {
            "It asks for a GPU, and Sluice's webhook has not changed it: make it again while the controller runs"
                .to_owned()
        }
        State::None => "It asks for no GPU; the annotation sluice.dev/share: \"0.25\" asks for a quarter of one, and \
                        has to be there when the pod is made"
            .to_owned(),
        State::Waiting => {
            let others: Vec<&str> = gates(pod).filter(|gate| *gate != GATE).collect();
            let waits = said(CONDITION).unwrap_or(
                "The controller has not asked for its lease yet; the log of Sluice's controller says whether it runs",
            );
            match others.as_slice() {
                [] => waits.to_owned(),
                others => format!("{waits}. It also waits for others' gates: {}", others.join(", ")),
            }
        }
        State::Unscheduled => {
            format!("{has}, and the scheduler: {}", said("PodScheduled").unwrap_or("has not placed the pod yet"))
        }
        State::Starting => match waiting_containers(pod).as_slice() {
            [] => format!("{has}, and the pod starts"),
            waiting => format!("{has}, and the pod starts: {}", waiting.join("; ")),
        },
        State::Running => format!("{has}, and the pod runs"),
        State::Lost => said(CONDITION).unwrap_or("The pod's lease is over").to_owned(),
        State::Ending => "The pod is being deleted; its lease ends with it".to_owned(),
        State::Finished => "The pod has finished, and its lease has ended".to_owned(),
    }
}

/// Whether the pod asks for a GPU in Sluice's own words.
fn asks(pod: &Value) -> bool {
    let annotations = pod["metadata"]["annotations"].as_object();
    let is_asked_by =
        |name: &String| ["gpu", "share", "memory"].map(|word| format!("sluice.dev/{word}")).contains(name);
    let mut containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    annotations.is_some_and(|annotations| annotations.keys().any(is_asked_by))
        || containers.any(|container| container["resources"]["limits"].get("sluice.dev/gpu").is_some())
}

fn gates(pod: &Value) -> impl Iterator<Item = &str> {
    let gates = pod["spec"]["schedulingGates"].as_array().into_iter().flatten();
    gates.filter_map(|gate| gate["name"].as_str())
}

fn condition<'a>(pod: &'a Value, kind: &str) -> &'a Value {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.find(|condition| condition["type"] == kind).unwrap_or(&Value::Null)
}

/// The containers that the kubelet says it cannot start yet, each with the reason.
fn waiting_containers(pod: &Value) -> Vec<String> {
    let lists = ["initContainerStatuses", "containerStatuses"];
    let statuses = lists.into_iter().flat_map(|list| pod["status"][list].as_array()).flatten();
    let waiting = |status: &Value| {
        let waiting = &status["state"]["waiting"];
        let reason = waiting["reason"].as_str().filter(|reason| *reason != "PodInitializing")?;
        let message = waiting["message"].as_str().map(|message| format!(" ({message})")).unwrap_or_default();
        Some(format!("{} waits, {reason}{message}", status["name"].as_str().unwrap_or("a container")))
    };
    statuses.filter_map(waiting).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Value {
        json!({
            "metadata": {
                "namespace": "red", "name": "train", "uid": "u",
                "labels": { "sluice.dev/injected": "true" },
                "annotations": { "sluice.dev/share": "0.25", "sluice.dev/memory": "1073741824" },
            },
            "spec": { "schedulingGates": [{ "name": GATE }] },
            "status": { "phase": "Pending" },
        })
    }

    fn granted() -> Value {
        let mut pod = pod();
        pod["spec"]["schedulingGates"] = json!([]);
        pod["metadata"]["annotations"]["sluice.dev/lease"] = "7".into();
        pod["metadata"]["annotations"]["sluice.dev/place"] = "gpu-1/0".into();
        pod
    }

    #[track_caller]
    fn check(pod: &Value, state: State, parts: &[&str]) {
        let seen = Pod::of(pod).unwrap();
        assert_eq!(seen.state, state, "{seen:?}");
        for part in parts {
            assert!(seen.why.contains(part), "{part:?} is not in {:?}", seen.why);
        }
    }

    #[test]
    fn a_pod_that_waits_says_what_the_server_says() {
        let mut pod = pod();
        check(&pod, State::Waiting, &["controller has not asked"]);
        let message = "Lease 7 waits: no GPU has room for it; expected to start at about 10:00";
        pod["status"]["conditions"] = json!([{ "type": CONDITION, "status": "False", "message": message }]);
        check(&pod, State::Waiting, &[message]);
        pod["spec"]["schedulingGates"].as_array_mut().unwrap().push(json!({ "name": "kueue" }));
        check(&pod, State::Waiting, &[message, "others' gates: kueue"]);
    }

    #[test]
    fn a_granted_pod_says_what_the_cluster_says() {
        let mut pod = granted();
        let message = "0/3 nodes are available";
        pod["status"]["conditions"] =
            json!([{ "type": "PodScheduled", "status": "False", "message": message }]);
        check(&pod, State::Unscheduled, &["Lease 7 is granted on gpu-1/0", message]);
        pod["spec"]["nodeName"] = "worker-2".into();
        pod["status"]["initContainerStatuses"] = json!([{ "name": "sluice", "state": { "waiting": { "reason": "ErrImagePull", "message": "no such" } } }]);
        check(&pod, State::Starting, &["sluice waits, ErrImagePull (no such)"]);
        pod["status"]["phase"] = "Running".into();
        check(&pod, State::Running, &["gpu-1/0", "runs"]);
        let message = "The pod's lease is over: ended by an administrator";
        pod["status"]["conditions"] = json!([{ "type": CONDITION, "status": "False", "message": message }]);
        check(&pod, State::Lost, &[message]);
        pod["metadata"]["deletionTimestamp"] = "2026-11-27T10:00:00Z".into();
        check(&pod, State::Ending, &[]);
        pod["status"]["phase"] = "Failed".into();
        check(&pod, State::Finished, &[]);
        assert_eq!(Pod::of(&pod).unwrap().cells()[..5], ["train", "finished", "7", "gpu-1/0", "worker-2"]);
    }

    #[test]
    fn a_pod_without_a_lease_says_how_to_get_one() {
        let mut pod = pod();
        pod["metadata"]["labels"] = json!({});
        check(&pod, State::None, &["make it again"]);
        pod["metadata"]["annotations"] = json!({});
        check(&pod, State::None, &["sluice.dev/share"]);
        pod["spec"]["containers"] = json!([{ "resources": { "limits": { "sluice.dev/gpu": 1 } } }]);
        check(&pod, State::None, &["make it again"]);
    }

    #[test]
    fn amounts_are_shown_as_people_write_them() {
        assert_eq!(Pod::of(&pod()).unwrap().cells()[6..8], ["0.25", "1 GiB"]);
        assert_eq!(Pod::of(&json!({ "kind": "Status" })), None);
    }
}
