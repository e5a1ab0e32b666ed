//! What a pod needs next, from what the API server and Sluice's server say of it. Pure.

use jiff::Timestamp;
use sluice_api::lease::{Lease, LeaseState};

use crate::pods::Pod;

/// What there is to do for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    None,
    /// It has no lease.
    Ask,
    /// Its lease is in the queue.
    Wait,
    /// Its lease is granted, and the pod does not know.
    Grant,
    /// Its lease has to make room for others.
    Preempted,
    /// It runs, and its lease is over or back in the queue.
    Lost,
}

/// Decides from a pod and its open lease.
pub(crate) fn step(pod: &Pod, lease: Option<&Lease>) -> Step {
    if pod.is_finished || pod.is_deleting {
        return Step::None;
    }
    match (pod.is_gated, lease.map(|lease| lease.state)) {
        (true, None | Some(LeaseState::Ended)) => Step::Ask,
        (true, Some(LeaseState::Queued)) => Step::Wait,
        (true, Some(_)) => Step::Grant,
        (false, Some(LeaseState::Granted | LeaseState::Running)) => Step::None,
        (false, Some(LeaseState::Preempting)) => Step::Preempted,
        // A pod that never had a lease is not ours: only the label was copied.
        (false, None) if pod.lease.is_none() => Step::None,
        (false, None | Some(LeaseState::Queued | LeaseState::Ended)) => Step::Lost,
    }
}

/// The message of a pod that waits, and the part of it that is the same while the reason is.
pub(crate) fn wait_message(lease: &Lease) -> (String, String) {
    let reason = lease.reason.as_deref().unwrap_or("the scheduler has not looked at it yet");
    let topic = format!("Lease {} waits: {reason}", lease.id);
    let start = lease.start.as_ref().and_then(|start| start.at_ms);
    let at = start.and_then(|at_ms| Timestamp::from_millisecond(at_ms.try_into().ok()?).ok());
    let expected = match at {
        Some(at) => format!("expected to start at about {}", at.strftime("%Y-%m-%dT%H:%M:%SZ")),
        None => match &lease.start {
            Some(start) if !start.because.is_empty() => {
                format!("no start can be predicted: {}", start.because)
            }
            _ => "no start can be predicted yet".to_owned(),
        },
    };
    let position =
        lease.position.map(|position| format!(", number {position} of its tenant")).unwrap_or_default();
    let message = format!("{topic}; {expected}{position}");
    (topic, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(is_gated: bool) -> Pod {
        Pod {
            uid: "u".into(),
            namespace: "a".into(),
            name: "b".into(),
            created: String::new(),
            is_gated,
            is_deleting: false,
            is_finished: false,
            secret: None,
            lease: Some(7),
            place: None,
            condition: None,
            ask: Ok(None),
        }
    }

    fn lease(state: &str) -> Lease {
        let lease = json!({
            "id": 7, "tenant": "red", "name": "n", "gpus": 1, "tasks": 1, "share_ppm": 250_000, "memory": 0,
            "priority": 100, "tier": "standard", "preemptible": true, "state": state, "attempt": 1,
            "created_at_ms": 0, "revision": 1, "position": 1, "reason": "no GPU has room for it",
            "start": { "at_ms": 1_500_000, "because": "leases end" },
        });
        serde_json::from_value(lease).unwrap()
    }

    #[test]
    fn a_gated_pod_asks_waits_and_is_granted() {
        let of = |state: &str| step(&pod(true), Some(&lease(state)));
        assert_eq!(step(&pod(true), None), Step::Ask);
        assert_eq!([of("queued"), of("granted"), of("ended")], [Step::Wait, Step::Grant, Step::Ask]);
    }

    #[test]
    fn a_pod_that_runs_needs_its_lease() {
        let of = |state: &str| step(&pod(false), Some(&lease(state)));
        assert_eq!([of("granted"), of("running")], [Step::None, Step::None]);
        assert_eq!([of("preempting"), of("queued")], [Step::Preempted, Step::Lost]);
        assert_eq!(step(&pod(false), None), Step::Lost);
        assert_eq!(step(&Pod { lease: None, ..pod(false) }, None), Step::None);
        for over in [Pod { is_finished: true, ..pod(false) }, Pod { is_deleting: true, ..pod(true) }] {
            assert_eq!(step(&over, None), Step::None);
        }
    }

    #[test]
    fn a_wait_is_explained_with_its_expected_end() {
        let (topic, message) = wait_message(&lease("queued"));
        assert_eq!(topic, "Lease 7 waits: no GPU has room for it");
        assert!(message.starts_with(&topic) && message.contains("1970-01-01T00:25:00Z"), "{message}");
    }
}
