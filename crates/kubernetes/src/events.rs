//! Events of pods: what `kubectl describe pod` and `kubectl get events` show.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::json;

use crate::api::{Api, ApiError};
use crate::pods::Pod;

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

/// Writes events, the same one only once.
#[derive(Default)]
pub(crate) struct Events {
    /// By the pod's uid: the reason and the topic that were written last, and when.
    said: HashMap<String, (&'static str, String, Instant)>,
}

impl Events {
    /// Writes an event unless the last one of the pod has the same reason and topic. Events are for
    /// people: one that cannot be written is written to the log instead.
    pub(crate) fn say(
        &mut self,
        api: &Api,
        pod: &Pod,
        (severity, reason): (Severity, &'static str),
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
    }

    /// Forgets a pod that is gone.
    pub(crate) fn forget(&mut self, uid: &str) {
        self.said.remove(uid);
    }
}

fn write(api: &Api, pod: &Pod, severity: Severity, reason: &str, message: &str) -> Result<(), ApiError> {
    let hash = blake3::hash(format!("{}\n{reason}\n{message}", pod.uid).as_bytes()).to_hex();
    let name: String = pod.name.chars().take(NAME_MAX).collect();
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
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
