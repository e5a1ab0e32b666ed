//! The controller: a lease for each pod, from its creation to its end.
//!
//! ```text
//!  gated pod ── no lease: ask (idempotent) ──▶ queued: event with the reason
//!                                                 │
//!                                                 ▼
//!              granted: annotation, Secret, gate lifted ──▶ running: claimed by the sidecar
//!  pod finished or gone ──▶ lease ended                        │
//!  lease preempted or lost ──▶ pod evicted ◀───────────────────┘
//! ```
//! Nothing is kept here that is needed after a restart. Which lease belongs to which pod stands
//! in the lease's name ([`LeaseName`]); a pod that waits asks again under the same idempotency
//! key.

use std::collections::HashMap;
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use serde_json::json;
use sluice_api::client::{Client, Failure};
use sluice_api::lease::{Lease, LeaseId, LeaseState, NewLease, Place};
use sluice_api::watch::kind;

use crate::api::{Api, ApiError, Patch};
use crate::events::{Events, Granted, Severity};
use crate::inject::GATE;
use crate::name::LeaseName;
use crate::pods::{LEASE, News, PLACE, Pod};
use crate::step::{Step, step, wait_message};

/// All pods are looked at this often, and when a pod or a lease has changed. A pod's lease is to
/// end within 5 s of the pod.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A waiting lease is asked for this often: the server drops one after 20 s without a request.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// A running pod whose lease is over is evicted after this time: most such pods are about to
/// finish, and their sidecar has given the lease back.
const LOST_AFTER: Duration = Duration::from_secs(15);
/// A step that failed is tried again after this time, and after twice as long each time that it
/// fails again, up to the second.
const RETRY_AFTER: Duration = Duration::from_secs(1);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(10);
/// A lease that was just asked for is looked at this often, and until it has waited for this long
/// no event says that it waits: most are granted by then.
const SETTLE_EVERY: Duration = Duration::from_millis(50);
const SETTLE_FOR: Duration = Duration::from_millis(500);
/// Requests for a lease of one pod: each one before the last ended while the controller was away.
const ASKS_MAX: u32 = 100;

/// The reasons of events.
const WAITING: &str = "SluiceWaiting";
const GRANTED: &str = "SluiceGranted";
const PREEMPTED: &str = "SluicePreempted";
const LOST: &str = "SluiceLeaseLost";
const FAILED: &str = "SluiceFailed";

/// What stays the same while the controller runs.
pub(crate) struct Settings {
    /// The part of lease names that tells this cluster from others of the same server.
    pub(crate) cluster: String,
    /// The server's URL as pods reach it.
    pub(crate) server: String,
    /// Tenants of namespaces; others have the token's own.
    pub(crate) tenants: HashMap<String, String>,
    /// The time from grant to claim, in which the pod is scheduled and its images are pulled.
    pub(crate) hold_ms: u64,
}

pub(crate) struct Controller {
    pub(crate) api: Api,
    pub(crate) client: Client,
    pub(crate) settings: Settings,
    events: Events,
    /// By uid. None until the first list: what is not there yet is not gone.
    pods: Option<HashMap<String, Pod>>,
    /// When a waiting lease was asked for last.
    asked: HashMap<LeaseId, Instant>,
    /// Since when a pod that should have a lease has none.
    lost: HashMap<String, Instant>,
    /// Steps that failed, by the pod's uid.
    failed: HashMap<String, Failed>,
    /// When a waiting lease was asked for first, unless that is long ago.
    settling: HashMap<LeaseId, Instant>,
}

/// A pod's step that failed, and was not done since.
struct Failed {
    at: Instant,
    /// The time until it is tried again.
    pause: Duration,
}

impl Failed {
    fn again(before: Option<&Failed>) -> Failed {
        let pause = before.map_or(RETRY_AFTER, |before| (before.pause * 2).min(RETRY_AFTER_MAX));
        Failed { at: Instant::now(), pause }
    }
}

/// The reason why a step was not done; it is tried again.
#[derive(Debug, thiserror::Error)]
enum NotDone {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Server(#[from] Failure),
    #[error("{0}")]
    Pod(String),
}

impl Controller {
    pub(crate) fn new(api: Api, client: Client, settings: Settings) -> Controller {
        Controller {
            api,
            client,
            settings,
            events: Events::default(),
            pods: None,
            asked: HashMap::new(),
            lost: HashMap::new(),
            failed: HashMap::new(),
            settling: HashMap::new(),
        }
    }

    /// Looks at pods and leases until nothing reports pods any more.
    pub(crate) fn run(mut self, news: &Receiver<News>) -> Result<Infallible, String> {
        let mut said = String::new();
        loop {
            let pause = if self.settling.is_empty() { LOOK_EVERY } else { SETTLE_EVERY };
            match news.recv_timeout(pause) {
                Ok(first) => {
                    self.learn(first);
                    news.try_iter().for_each(|next| self.learn(next));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err("nothing reports pods any more".into()),
            }
            let problem = self.look().err().map(|failure| failure.to_string()).unwrap_or_default();
            if problem != said {
                eprintln!(
                    "sluice-kubernetes: {}",
                    if problem.is_empty() { "the server answers" } else { &problem }
                );
                said = problem;
            }
        }
    }

    fn learn(&mut self, news: News) {
        match news {
            News::All(pods) => {
                self.pods = Some(pods.into_iter().map(|pod| (pod.uid.clone(), pod)).collect());
            }
            News::Changed(pod) => {
                self.pods.get_or_insert_default().insert(pod.uid.clone(), *pod);
            }
            News::Leases => {}
            News::Gone(uid) => {
                self.pods.get_or_insert_default().remove(&uid);
                self.events.forget(&uid);
                self.lost.remove(&uid);
                self.failed.remove(&uid);
            }
        }
    }

    /// Compares pods with leases once, and does what is missing.
    fn look(&mut self) -> Result<(), Failure> {
        let Some(pods) = &self.pods else { return Ok(()) };
        let mut pods: Vec<Pod> = pods.values().cloned().collect();
        // The first to be made is the first in the queue.
        pods.sort_by(|a, b| (&a.created, &a.namespace, &a.name).cmp(&(&b.created, &b.namespace, &b.name)));
        let mut leases = self.leases()?;
        for (uid, of_pod) in &mut leases {
            // The latest is the one that counts.
            of_pod.sort_by_key(|lease| std::cmp::Reverse(lease.id));
            let is_over = pods.iter().find(|pod| pod.uid == *uid).is_none_or(|pod| pod.is_finished);
            let superfluous = of_pod.split_off(if is_over { 0 } else { 1 });
            superfluous.iter().for_each(|lease| self.end(lease.id));
        }
        self.settling.retain(|_, at| at.elapsed() < SETTLE_FOR);
        for pod in &pods {
            if self.failed.get(&pod.uid).is_some_and(|failed| failed.at.elapsed() < failed.pause) {
                continue;
            }
            let lease = leases.get(&pod.uid).and_then(|of_pod| of_pod.first());
            let before = self.failed.remove(&pod.uid);
            if let Err(cause) = self.advance(pod, lease) {
                self.failed.insert(pod.uid.clone(), Failed::again(before.as_ref()));
                let message = cause.to_string();
                let granted = if pod.is_gated { Granted::No } else { Granted::Unchanged };
                self.events.say(&self.api, pod, (Severity::Warning, FAILED, granted), &message, &message);
            }
        }
        self.asked.retain(|id, _| leases.values().flatten().any(|lease| lease.id == *id));
        Ok(())
    }

    /// The open leases of this cluster, by the uid of their pod.
    fn leases(&self) -> Result<HashMap<String, Vec<Lease>>, Failure> {
        let mut leases: HashMap<String, Vec<Lease>> = HashMap::new();
        self.client.each("/leases?state=open", |lease: Lease| {
            if let Some(name) = LeaseName::parse(&lease.name)
                && name.cluster == self.settings.cluster
            {
                leases.entry(name.uid.to_owned()).or_default().push(lease);
            }
        })?;
        Ok(leases)
    }

    fn end(&self, id: LeaseId) {
        match self.client.delete::<Lease>(&format!("/leases/{id}?finished=true")) {
            Ok(_) => eprintln!("sluice-kubernetes: lease {id} ended with its pod"),
            // It is tried again while the lease is open.
            Err(failure) => eprintln!("sluice-kubernetes: lease {id}: {failure}"),
        }
    }

    /// Does what a pod needs next.
    fn advance(&mut self, pod: &Pod, lease: Option<&Lease>) -> Result<(), NotDone> {
        let step = step(pod, lease);
        if step != Step::Lost {
            self.lost.remove(&pod.uid);
        }
        match (step, lease) {
            (Step::None, Some(lease)) if !pod.is_deleting => self.note_place(pod, lease),
            (Step::None, _) => Ok(()),
            (Step::Ask, _) => {
                let lease = self.ask(pod)?;
                if lease.state == LeaseState::Queued {
                    self.settling.insert(lease.id, Instant::now());
                    return Ok(());
                }
                self.settle(pod, &lease)
            }
            (Step::Wait, Some(lease)) => {
                let is_asked = self.asked.get(&lease.id).is_some_and(|at| at.elapsed() < ASK_EVERY);
                if is_asked || self.settling.contains_key(&lease.id) {
                    return Ok(());
                }
                self.asked.insert(lease.id, Instant::now());
                let lease: Lease = self.client.get(&format!("/leases/{}", lease.id))?;
                self.settle(pod, &lease)
            }
            (Step::Grant, Some(_)) => {
                // The same request has the same answer, with the lease's key.
                let lease = self.ask(pod)?;
                self.settle(pod, &lease)
            }
            (Step::Preempted, Some(lease)) => {
                let reason = lease.reason.as_deref().unwrap_or("no reason given");
                let message = format!("Lease {} is preempted: {reason}", lease.id);
                let kind = (Severity::Warning, PREEMPTED, Granted::No);
                self.events.say(&self.api, pod, kind, PREEMPTED, &message);
                self.evict(pod, lease.preempt_at_ms)
            }
            (Step::Lost, _) => self.lose(pod, lease),
            (Step::Wait | Step::Grant | Step::Preempted, None) => Ok(()),
        }
    }

    /// Asks for the pod's lease. The same request leads to the same lease; where that one has ended
    /// while the controller was away, to the next.
    fn ask(&self, pod: &Pod) -> Result<Lease, NotDone> {
        let Some(mut ask) = pod.ask.clone().map_err(|bad| NotDone::Pod(bad.to_string()))? else {
            return Err(NotDone::Pod("the pod asks for no GPU any more; write its annotations again".into()));
        };
        self.complete(&mut ask, pod)?;
        let body = serde_json::to_vec(&ask).unwrap_or_default();
        let request = blake3::hash(&body).to_hex();
        for count in 0..ASKS_MAX {
            let key = format!("{}-{}-{count}", pod.uid, &request[..16]);
            let lease: Lease = self.client.post_once("/leases", &ask, &key)?;
            if lease.state != LeaseState::Ended {
                return Ok(lease);
            }
        }
        Err(NotDone::Pod(format!("{ASKS_MAX} leases of this pod ended before it started; make it anew")))
    }

    /// Adds what the pod itself does not say.
    fn complete(&self, ask: &mut NewLease, pod: &Pod) -> Result<(), NotDone> {
        let Settings { cluster, tenants, hold_ms, .. } = &self.settings;
        let tenant = tenants.get(&pod.namespace).map(|tenant| tenant.parse());
        ask.tenant = tenant.transpose().map_err(|error| NotDone::Pod(format!("--tenant: {error}")))?;
        ask.hold_ms = Some(*hold_ms);
        ask.name =
            LeaseName { namespace: &pod.namespace, pod: &pod.name, uid: &pod.uid, cluster }.to_string();
        Ok(())
    }

    /// Does for a gated pod what its lease allows.
    fn settle(&mut self, pod: &Pod, lease: &Lease) -> Result<(), NotDone> {
        match (lease.state, &lease.key) {
            (LeaseState::Queued, _) => {
                let (topic, message) = wait_message(lease);
                self.events.say(&self.api, pod, (Severity::Normal, WAITING, Granted::No), &topic, &message);
                Ok(())
            }
            (LeaseState::Granted, Some(key)) => self.grant(pod, lease, key),
            // The next look asks for the key.
            _ => Ok(()),
        }
    }

    /// Hands the lease over to the pod. The annotation comes before the Secret, so that a restarted
    /// controller knows whose key the Secret holds, which it may not read.
    fn grant(&mut self, pod: &Pod, lease: &Lease, key: &str) -> Result<(), NotDone> {
        let Some(secret) = &pod.secret else {
            return Err(NotDone::Pod(
                "the pod names no Secret; make it anew with the webhook running".into(),
            ));
        };
        if let Some(earlier) = pod.lease.filter(|earlier| *earlier != lease.id) {
            let message =
                format!("Lease {earlier} ended before the pod started, and the Secret may hold its key");
            self.events.say(&self.api, pod, (Severity::Warning, LOST, Granted::No), LOST, &message);
            return self.evict(pod, None);
        }
        let id = lease.id.to_string();
        let place = place_text(&lease.places);
        let annotate = json!({ "metadata": { "uid": pod.uid, "annotations": { LEASE: id, PLACE: place } } });
        self.api.patch(&pod.path(), Patch::Merge, &annotate)?;
        self.make_secret(pod, secret, &id, key)?;
        let lift = json!({
            "metadata": { "uid": pod.uid },
            "spec": { "schedulingGates": [{ "$patch": "delete", "name": GATE }] },
        });
        self.api.patch(&pod.path(), Patch::StrategicMerge, &lift)?;
        self.note_grant(pod, lease);
        Ok(())
    }

    /// Says in the pod's condition that it has its lease. This is missing where the controller
    /// ended after it lifted the gate.
    fn note_grant(&mut self, pod: &Pod, lease: &Lease) {
        let node = lease.places.first().map_or("", |place| place.node.as_str());
        let message = format!("Lease {} is granted on node {node}", lease.id);
        self.events.say(&self.api, pod, (Severity::Normal, GRANTED, Granted::Yes), &message, &message);
    }

    /// Keeps the pod's condition and annotation up to date: a lease may move to other GPUs.
    fn note_place(&mut self, pod: &Pod, lease: &Lease) -> Result<(), NotDone> {
        if pod.condition.as_deref() != Some("True") {
            self.note_grant(pod, lease);
        }
        let place = place_text(&lease.places);
        if place.is_empty() || pod.place.as_ref() == Some(&place) {
            return Ok(());
        }
        let annotate = json!({ "metadata": { "uid": pod.uid, "annotations": { PLACE: place } } });
        Ok(self.api.patch(&pod.path(), Patch::Merge, &annotate).map(drop)?)
    }

    fn make_secret(&self, pod: &Pod, name: &str, lease: &str, key: &str) -> Result<(), ApiError> {
        let secret = json!({
            "metadata": {
                "name": name,
                "labels": { "app.kubernetes.io/managed-by": "sluice" },
                "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid }],
            },
            "type": "sluice.dev/lease",
            "immutable": true,
            "stringData": { "server": self.settings.server, "lease": lease, "key": key },
        });
        match self.api.post(&format!("/api/v1/namespaces/{}/secrets", pod.namespace), &secret) {
            Err(error) if error.has_status(409) => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// Evicts a pod whose lease is over, unless the pod ends by itself.
    fn lose(&mut self, pod: &Pod, lease: Option<&Lease>) -> Result<(), NotDone> {
        let since = *self.lost.entry(pod.uid.clone()).or_insert_with(Instant::now);
        if since.elapsed() < LOST_AFTER {
            return Ok(());
        }
        let fetched = match (lease, pod.lease) {
            (None, Some(id)) => self.client.get::<Lease>(&format!("/leases/{id}")).ok(),
            _ => None,
        };
        let reason = lease.or(fetched.as_ref()).and_then(|lease| lease.reason.as_deref());
        let message = format!("The pod's lease is over: {}", reason.unwrap_or("no reason given"));
        self.events.say(&self.api, pod, (Severity::Warning, LOST, Granted::No), LOST, &message);
        self.evict(pod, None)
    }

    /// Evicts the pod, which respects disruption budgets; its owner makes another one.
    fn evict(&self, pod: &Pod, until_ms: Option<u64>) -> Result<(), NotDone> {
        let mut options = json!({ "preconditions": { "uid": pod.uid } });
        if let Some(until_ms) = until_ms {
            let now_ms = jiff::Timestamp::now().as_millisecond().max(0) as u64;
            options["gracePeriodSeconds"] = (until_ms.saturating_sub(now_ms) / 1000).into();
        }
        let eviction = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": { "name": pod.name, "namespace": pod.namespace },
            "deleteOptions": options,
        });
        match self.api.post(&format!("{}/eviction", pod.path()), &eviction) {
            // It is gone, or another pod has its name.
            Err(error) if error.has_status(404) || error.has_status(409) => Ok(()),
            answer => Ok(answer.map(drop)?),
        }
    }
}

/// Names the GPUs of a lease, as `NODE/INDEX,INDEX`.
fn place_text(places: &[Place]) -> String {
    let place = |place: &Place| {
        let gpus: Vec<String> = place.gpus.iter().map(u32::to_string).collect();
        format!("{}/{}", place.node, gpus.join(","))
    };
    places.iter().map(place).collect::<Vec<_>>().join(" ")
}

/// Reports that leases have changed, as soon as Sluice's server says so: for as long as there is a
/// receiver.
pub(crate) fn follow_leases(client: &Client, news: &Sender<News>) {
    loop {
        let watched = client.watch("/watch", |event| match event.kind.as_str() {
            kind::LEASE if news.send(News::Leases).is_err() => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        });
        match watched {
            Ok(()) => return,
            // Without it, leases are looked at a little later; the looks say what is wrong.
            Err(_) => std::thread::sleep(LOOK_EVERY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::tests::stand_ins::Cluster;
    use crate::pods::CONDITION;

    #[test]
    fn a_controller_that_ended_before_it_wrote_the_condition_writes_it_later() {
        let cluster = Cluster::start();
        let api = cluster.api();
        let path = "/api/v1/namespaces/red/pods";
        let pod = json!({ "metadata": { "name": "train", "annotations": { LEASE: "7" } }, "spec": {} });
        api.post(path, &pod).unwrap();
        let path = format!("{path}/train");
        let waits = json!({ "type": CONDITION, "status": "False", "reason": WAITING, "message": "no room" });
        let waits = json!({ "status": { "conditions": [waits] } });
        api.patch(&format!("{path}/status"), Patch::StrategicMerge, &waits).unwrap();

        let settings =
            Settings { cluster: "c".into(), server: String::new(), tenants: HashMap::new(), hold_ms: 0 };
        let mut controller = Controller::new(cluster.api(), cluster.client(), settings);
        let lease: Lease = serde_json::from_value(json!({
            "id": 7, "tenant": "red", "name": "n", "gpus": 1, "tasks": 1, "share_ppm": 250_000, "memory": 0,
            "priority": 100, "tier": "standard", "preemptible": true, "state": "running", "attempt": 1,
            "created_at_ms": 0, "revision": 1,
        }))
        .unwrap();
        let pod = Pod::of(&api.get(&path).unwrap(), &[]).unwrap();
        assert!(!pod.is_gated && pod.condition.as_deref() == Some("False"));
        controller.advance(&pod, Some(&lease)).unwrap();
        let condition = &api.get(&path).unwrap()["status"]["conditions"][0];
        assert_eq!((&condition["status"], &condition["reason"]), (&json!("True"), &json!(GRANTED)));
    }
}
