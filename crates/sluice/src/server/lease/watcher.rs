//! A lease that runs, watched on its server.

use std::sync::mpsc::Sender;
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use sluice_api::bill::BudgetEnd;
use sluice_api::client::{Client, Failure};
use sluice_api::lease::{Lease, LeaseId, LeaseState, Place, Refused};
use sluice_control::Connection;
use sluice_wire::address::Endpoint;
use sluice_wire::control::LeaseGranted;

use super::retry::Backoff;
use super::{WAIT_MS, claim_on_node};
use crate::moment::Moment;
use crate::output::with_causes;
use crate::quantity::Period;
use crate::tasks::Event;

/// One that does not say what it is asked for is.
const RETRY_BLIND_EVERY: Duration = Duration::from_secs(5);

/// A task of a lease that its node has, on the connection that holds it.
pub(crate) struct Claimed {
    /// The number of the task.
    pub(crate) task: u32,
    /// The name of its node.
    pub(crate) node: String,
    pub(crate) address: Endpoint,
    pub(crate) connection: Connection,
    pub(crate) granted: LeaseGranted,
}

/// What `sluice run` says of a lease before its program starts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Described {
    /// Which one it is, such as `lease 7 of acme`.
    pub(crate) name: String,
    /// What it has of each GPU's compute, in millionths, and the most that it gets.
    pub(crate) share_ppm: u32,
    pub(crate) limit_ppm: u32,
}

/// Percent of a budget from which on its users are notified.
const BUDGET_MARK: u64 = 80;

/// What there is to say of the tightest budget above a lease.
pub(super) fn budget_line(lease: &Lease) -> Option<String> {
    let budget = lease.tightest_budget.as_ref().filter(|budget| budget.spent_percent >= BUDGET_MARK)?;
    let then = match (budget.then, budget.spent_percent >= 100) {
        (BudgetEnd::Hold, false) => "; new leases will wait when it is spent",
        (BudgetEnd::Hold, true) => "; new leases wait",
        (BudgetEnd::Preempt, false) => "; programs will be preempted when it is spent",
        (BudgetEnd::Preempt, true) => "; programs are preempted",
        (BudgetEnd::Warn, _) => "",
    };
    let until = budget.until_ms.map(|ms| format!(", until {}", Moment::from_ms(ms))).unwrap_or_default();
    Some(format!(
        "{} % of the budget that {} spends from is spent{until}{then}",
        budget.spent_percent, lease.tenant
    ))
}

pub(super) fn watch(client: &Client, id: LeaseId, revision: u64) -> Result<Lease, Failure> {
    client.get(&format!("/leases/{id}?revision={revision}&wait_ms={WAIT_MS}"))
}

pub(super) struct Watcher {
    pub(super) client: Client,
    pub(super) id: LeaseId,
    pub(super) attempt: u32,
    pub(super) events: Sender<Event>,
}

impl Watcher {
    pub(super) fn run(self, mut revision: u64) {
        let mut blind = false;
        let mut backoff = Backoff::new();
        loop {
            let lease = match watch(&self.client, self.id, revision) {
                Ok(lease) => {
                    backoff = Backoff::new();
                    lease
                }
                // The session continues while the server is away. A client that is asked to send
                // fewer requests does so, and says so.
                Err(failure) if failure.is_temporary() && !failure.is_too_many() => {
                    backoff.wait();
                    continue;
                }
                Err(failure) => {
                    if !std::mem::replace(&mut blind, true) {
                        eprintln!("sluice: {}", blind_line(self.id, &failure));
                    }
                    sleep(RETRY_BLIND_EVERY);
                    continue;
                }
            };
            if std::mem::take(&mut blind) {
                eprintln!("sluice: the server tells of lease {} again", self.id);
            }
            let gone = lease.state == LeaseState::Ended || lease.attempt != self.attempt;
            let is_news = std::mem::replace(&mut revision, lease.revision) != lease.revision;
            // Where the receiver is gone all tasks have ended.
            if is_news && self.events.send(Event::Lease(Box::new(lease))).is_err() || gone {
                return;
            }
        }
    }
}

/// What the user of a program has to know whose lease can no longer be asked for.
fn blind_line(lease: LeaseId, failure: &Failure) -> String {
    format!("{failure}: the program continues, but is not notified when lease {lease} has to make room")
}

/// Claims further tasks of a lease for its program.
#[derive(Clone)]
pub(crate) struct Claim {
    pub(super) client: Client,
    pub(super) id: LeaseId,
    pub(crate) attempt: u32,
    pub(crate) described: Described,
    pub(super) kernel_timeout_ms: u32,
    pub(super) name: String,
}

impl Claim {
    /// None if its node refuses, which is reported to the server.
    pub(crate) fn further(&self, place: &Place) -> Option<Claimed> {
        let refusal = match claim_on_node(place, self.kernel_timeout_ms, &self.name) {
            Ok(claimed) => return Some(claimed),
            Err(error) => with_causes(&error),
        };
        eprintln!("sluice: no further task: {refusal}");
        let refused = Refused { attempt: self.attempt, task: Some(place.task), reason: refusal };
        // If the server cannot be notified, it takes back after a while what is not claimed.
        let _ = self.client.post::<Lease>(&format!("/leases/{}/refusals", self.id), &refused);
        None
    }
}

/// How much is left until that moment.
pub(crate) fn grace_left(until_ms: Option<u64>) -> Period {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Period::from_duration(Duration::from_millis(until_ms.unwrap_or(0)).saturating_sub(now))
}
