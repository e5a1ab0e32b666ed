//! The pods that the webhook has changed, as the API server tells of them.

use std::sync::mpsc::{SendError, Sender};
use std::time::Duration;

use serde_json::Value;
use sluice_api::lease::NewLease;

use crate::api::{Api, ApiError, WATCH_S};
use crate::ask::{Alias, BadField, ask_of};
use crate::inject::{GATE, SECRET};

/// The annotation with the number of a pod's lease, for people and for a restarted controller.
pub(crate) const LEASE: &str = "sluice.dev/lease";
/// The annotation with the GPUs of a pod's lease, as `NODE/INDEX,INDEX`.
pub(crate) const PLACE: &str = "sluice.dev/place";
/// The condition of a pod that is true while it has its lease; its message says why it has none.
pub(crate) const CONDITION: &str = "sluice.dev/LeaseGranted";

/// The path of the pods that the webhook has labelled.
const PODS: &str = "/api/v1/pods?labelSelector=sluice.dev%2Finjected%3Dtrue";
/// Pods of one answer.
const PAGE_LENGTH: u32 = 500;
/// The pause before an API server that failed is asked again.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// What the controller knows of a pod.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// RFC 3339, which sorts as text.
    pub(crate) created: String,
    /// Whether it waits for its lease.
    pub(crate) is_gated: bool,
    pub(crate) is_deleting: bool,
    /// Whether all its containers have ended for good.
    pub(crate) is_finished: bool,
    pub(crate) secret: Option<String>,
    /// As the annotation says.
    pub(crate) lease: Option<u64>,
    /// As the annotation says.
    pub(crate) place: Option<String>,
    /// The status of the pod's condition, `True` or `False`.
    pub(crate) condition: Option<String>,
    pub(crate) ask: Result<Option<NewLease>, BadField>,
}

impl Pod {
    pub(crate) fn of(pod: &Value, aliases: &[Alias]) -> Option<Pod> {
        let (metadata, spec) = (&pod["metadata"], &pod["spec"]);
        let text = |name: &str| metadata[name].as_str().map(str::to_owned);
        let annotation = |name: &str| metadata["annotations"][name].as_str();
        let gates = spec["schedulingGates"].as_array().into_iter().flatten();
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let condition = conditions.find(|condition| condition["type"] == CONDITION);
        let phase = pod["status"]["phase"].as_str().unwrap_or_default();
        Some(Pod {
            uid: text("uid")?,
            namespace: text("namespace")?,
            name: text("name")?,
            created: text("creationTimestamp").unwrap_or_default(),
            is_gated: gates.into_iter().any(|gate| gate["name"] == GATE),
            is_deleting: metadata["deletionTimestamp"].is_string(),
            is_finished: matches!(phase, "Succeeded" | "Failed"),
            secret: annotation(SECRET).map(str::to_owned),
            lease: annotation(LEASE).and_then(|text| text.parse().ok()),
            place: annotation(PLACE).map(str::to_owned),
            condition: condition.and_then(|condition| condition["status"].as_str()).map(str::to_owned),
            ask: ask_of(pod, aliases),
        })
    }

    /// The path of the pod at the API server.
    pub(crate) fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods/{}", self.namespace, self.name)
    }
}

/// What there is to know of pods and their leases.
#[derive(Debug)]
pub(crate) enum News {
    /// All there are.
    All(Vec<Pod>),
    Changed(Box<Pod>),
    Gone(String),
    /// Leases have changed.
    Leases,
}

/// Reports pods, for as long as there is a receiver: a list first, then each change. A watch that
/// ends is continued where it ended; where the API server has forgotten that place, with a new
/// list.
pub(crate) fn follow(api: &Api, aliases: &[Alias], news: &Sender<News>) {
    loop {
        match list(api, aliases, news) {
            Ok(version) => watch_on(api, aliases, news, version),
            Err(Broken::NoReceiver) => return,
            Err(Broken::Api(error)) => eprintln!("sluice-kubernetes: {error}"),
        }
        std::thread::sleep(RETRY_EVERY);
    }
}

/// The reason why pods are not reported.
enum Broken {
    NoReceiver,
    Api(ApiError),
}

impl From<ApiError> for Broken {
    fn from(error: ApiError) -> Broken {
        Broken::Api(error)
    }
}

impl<T> From<SendError<T>> for Broken {
    fn from(_: SendError<T>) -> Broken {
        Broken::NoReceiver
    }
}

/// Reports all pods, and returns the version of the list.
fn list(api: &Api, aliases: &[Alias], news: &Sender<News>) -> Result<String, Broken> {
    let (mut pods, mut next) = (Vec::new(), String::new());
    loop {
        let page = api.get(&format!("{PODS}&limit={PAGE_LENGTH}&continue={next}"))?;
        pods.extend(page["items"].as_array().into_iter().flatten().filter_map(|pod| Pod::of(pod, aliases)));
        next = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
        if next.is_empty() {
            news.send(News::All(pods))?;
            return Ok(page["metadata"]["resourceVersion"].as_str().unwrap_or("0").to_owned());
        }
    }
}

/// Watches until something fails.
fn watch_on(api: &Api, aliases: &[Alias], news: &Sender<News>, mut version: String) {
    loop {
        match watch(api, aliases, news, &version) {
            Ok(seen) => version = seen,
            Err(Broken::NoReceiver) => return,
            Err(Broken::Api(error)) => return eprintln!("sluice-kubernetes: {error}; listing pods again"),
        }
    }
}

/// Reports changes until the API server ends the watch; returns the version that was seen last.
fn watch(api: &Api, aliases: &[Alias], news: &Sender<News>, since: &str) -> Result<String, Broken> {
    let path = format!(
        "{PODS}&watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_S}&resourceVersion={since}"
    );
    let lost = |cause: String| ApiError::Unreachable { path: path.clone(), cause };
    let mut version = since.to_owned();
    for line in api.watch(&path)? {
        let line = line.map_err(|error| lost(error.to_string()))?;
        let event: Value = serde_json::from_str(&line).map_err(|error| lost(error.to_string()))?;
        let object = &event["object"];
        if event["type"] == "ERROR" {
            return Err(lost(object["message"].as_str().unwrap_or("no reason given").to_owned()).into());
        }
        if let Some(seen) = object["metadata"]["resourceVersion"].as_str() {
            seen.clone_into(&mut version);
        }
        let Some(pod) = Pod::of(object, aliases) else { continue };
        match event["type"].as_str() {
            Some("ADDED" | "MODIFIED") => news.send(News::Changed(Box::new(pod)))?,
            Some("DELETED") => news.send(News::Gone(pod.uid))?,
            _ => {}
        }
    }
    Ok(version)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_gated_until_the_gate_is_lifted() {
        let mut pod = json!({
            "metadata": { "uid": "u", "namespace": "a", "name": "b", "annotations": { SECRET: "s" } },
            "spec": { "schedulingGates": [{ "name": "other" }, { "name": GATE }] },
            "status": { "phase": "Pending" },
        });
        let seen = Pod::of(&pod, &[]).unwrap();
        assert!(seen.is_gated && !seen.is_finished && seen.secret.as_deref() == Some("s"));
        pod["spec"]["schedulingGates"] = json!([{ "name": "other" }]);
        pod["status"]["phase"] = "Failed".into();
        pod["metadata"]["annotations"][LEASE] = "7".into();
        pod["status"]["conditions"] =
            json!([{ "type": "Ready", "status": "False" }, { "type": CONDITION, "status": "True" }]);
        let seen = Pod::of(&pod, &[]).unwrap();
        assert!(!seen.is_gated && seen.is_finished && seen.lease == Some(7));
        assert_eq!(seen.condition.as_deref(), Some("True"));
    }
}
