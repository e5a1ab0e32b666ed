//! Events and the condition of pods: what `kubectl describe pod`, `kubectl get events` and `kubectl
//! sluice` show.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::{Api, ApiError, Patch};
use crate::pods::{CONDITION, Pod};

/// An event about the same wait is repeated after this time at the earliest: estimates change
/// often.
const REPEAT_AFTER: Duration = Duration::from_secs(60);
/// Characters of a pod's name in an event's name, which has 253 at most.
const NAME_MAX: usize = 200;
/// Characters of an event's message.
const MESSAGE_MAX: usize = 1024;

/// The severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    Normal,
    Warning,
}

/// What an event says about the pod's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Granted {
    Yes,
    No,
    /// The pod's condition stays as it is.
    Unchanged,
}

/// Writes events and conditions, the same one only once.
#[derive(Default)]
pub(crate) struct Events {
    /// By the pod's uid: the reason and the topic that were written last, and when.
    said: HashMap<String, (&'static str, String, Instant)>,
}

impl Events {
    /// Writes an event unless the last one of the pod has the same reason and topic, and the same
    /// text into the pod's condition. Both are for people: one that cannot be written is written to
    /// the log instead.
    pub(crate) fn say(
        &mut self,
        api: &Api,
        pod: &Pod,
        (severity, reason, granted): (Severity, &'static str, Granted),
        topic: &str,
        message: &str,
    ) {
        let is_repeated = self.said.get(&pod.uid).is_some_and(|(before, about, at)| {
            *before == reason && about == topic && (topic == message || at.elapsed() < REPEAT_AFTER)
        });
        if is_repeated {
            return;
        }
        self.said.insert(pod.uid.clone(), (reason, topic.to_owned(), Instant::now()));
        match write(api, pod, severity, reason, message) {
            // The name follows from the text, so this event was written before.
            Err(error) if error.has_status(409) => {}
            Err(error) => eprintln!("sluice-kubernetes: {reason} of {}: {message} ({error})", pod.name),
            Ok(()) => {}
        }
        let Some(condition) = condition(pod, reason, granted, message) else { return };
        let patch = json!({ "metadata": { "uid": pod.uid }, "status": { "conditions": [condition] } });
        match api.patch(&format!("{}/status", pod.path()), Patch::StrategicMerge, &patch) {
            // The pod is gone, or another one has its name.
            Err(error) if error.has_status(404) || error.has_status(409) => {}
            Err(error) => eprintln!("sluice-kubernetes: condition of {}: {message} ({error})", pod.name),
            Ok(_) => {}
        }
    }

    /// Forgets a pod that is gone.
    pub(crate) fn forget(&mut self, uid: &str) {
        self.said.remove(uid);
    }
}

/// The pod's condition. The time of its last transition changes with its status only.
fn condition(pod: &Pod, reason: &str, granted: Granted, message: &str) -> Option<Value> {
    let status = match granted {
        Granted::Yes => "True",
        Granted::No => "False",
        Granted::Unchanged => return None,
    };
    let message: String = message.chars().take(MESSAGE_MAX).collect();
    let mut condition = json!({ "type": CONDITION, "status": status, "reason": reason, "message": message });
    if pod.condition.as_deref() != Some(status) {
        condition["lastTransitionTime"] = now().into();
    }
    Some(condition)
}

fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn write(api: &Api, pod: &Pod, severity: Severity, reason: &str, message: &str) -> Result<(), ApiError> {
    let hash = blake3::hash(format!("{}\n{reason}\n{message}", pod.uid).as_bytes()).to_hex();
    let name: String = pod.name.chars().take(NAME_MAX).collect();
    let now = now();
    let message: String = message.chars().take(MESSAGE_MAX).collect();
    let event = json!({
        "metadata": { "name": format!("{name}.{}", &hash[..16]), "namespace": pod.namespace },
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid,
        },
        "reason": reason,
        "message": message,
        "type": match severity { Severity::Normal => "Normal", Severity::Warning => "Warning" },
        "source": { "component": "sluice" },
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    });
    api.post(&format!("/api/v1/namespaces/{}/events", pod.namespace), &event).map(drop)
}
