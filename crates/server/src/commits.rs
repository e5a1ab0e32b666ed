//! Group commit: changes that wait for the database together are written in one transaction.
//!
//! ```text
//!  change ──add──▶ open batch ──next──▶ batch in flight ─┬▶ durable: its tickets are answered
//!                                                        └▶ failed, and so is the open batch
//! ```
//! Usage records alone are in no hurry: nodes have them on disk, and do not wait for the answer to
//! a report. A batch of nothing else waits a moment for more of them, unless a request
//! needs to answer what is true now.
//!
//! A failure ends an *epoch*: changes that began in it can be added no more, since they saw what
//! never became true.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

use crate::store::Write;

/// Usage records wait this long for others: a fraction of the time in which a node reports once.
const GATHERING: Duration = Duration::from_millis(250);

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Waits,
    Durable,
    Lost(Lost),
}

/// Why something did not become true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The disk of the database was full.
    Room,
    /// The database did not take it, or this server leads no more.
    Otherwise,
}

/// For those who saw or made a change: whether it is in the database.
#[derive(Clone, Debug)]
pub(crate) struct Ticket(watch::Receiver<Outcome>);

impl Ticket {
    /// Waits until the database has it or has refused it.
    pub(crate) async fn decided(mut self) -> Result<(), Lost> {
        let decided = self.0.wait_for(|outcome| *outcome != Outcome::Waits).await;
        match decided.map(|outcome| *outcome) {
            Ok(Outcome::Durable) => Ok(()),
            Ok(Outcome::Lost(lost)) => Err(lost),
            Ok(Outcome::Waits) | Err(_) => Err(Lost::Otherwise),
        }
    }

    #[cfg(test)]
    async fn durable(self) -> bool {
        self.decided().await.is_ok()
    }
}

/// Changes that are written together.
pub(crate) struct Batch {
    pub(crate) writes: Vec<Write>,
    outcome: watch::Sender<Outcome>,
}

impl Default for Batch {
    fn default() -> Batch {
        Batch { writes: Vec::new(), outcome: watch::Sender::new(Outcome::Waits) }
    }
}

impl Batch {
    pub(crate) fn succeed(self) {
        self.outcome.send_replace(Outcome::Durable);
    }
}

/// Counts failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch(u64);

pub(crate) struct Commits {
    state: Mutex<State>,
    added: Notify,
    gathering: Duration,
}

struct State {
    epoch: Epoch,
    /// Why the one before ended.
    lost: Lost,
    open: Batch,
    /// A request waits for the open batch.
    urgent: bool,
    /// Of the batch that was taken last.
    taken: Ticket,
}

impl Commits {
    pub(crate) fn new() -> Commits {
        let state = State {
            epoch: Epoch(0),
            lost: Lost::Otherwise,
            open: Batch::default(),
            urgent: false,
            taken: nothing(),
        };
        Commits { state: Mutex::new(state), added: Notify::new(), gathering: GATHERING }
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.lock().epoch
    }

    /// Adds what a change consists of, unless its epoch is over.
    pub(crate) fn add(&self, epoch: Epoch, writes: Vec<Write>) -> Result<Ticket, Lost> {
        let mut state = self.lock();
        if state.epoch != epoch {
            return Err(state.lost);
        }
        if !writes.is_empty() {
            let first = state.open.writes.is_empty();
            let urgent = !writes.iter().all(|write| matches!(write, Write::Usage { .. }));
            state.open.writes.extend(writes);
            state.urgent |= urgent;
            if first || urgent {
                self.added.notify_one();
            }
        }
        Ok(state.latest())
    }

    /// For all that has been added until now, which is written as soon as possible.
    pub(crate) fn latest(&self) -> Ticket {
        self.lock_urgently().latest()
    }

    /// Returns a ticket for a reader of what was true in this epoch, unless the epoch is over.
    pub(crate) fn latest_of(&self, epoch: Epoch) -> Result<Ticket, Lost> {
        let state = self.lock_urgently();
        if state.epoch == epoch { Ok(state.latest()) } else { Err(state.lost) }
    }

    /// Has the open batch written now.
    fn lock_urgently(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        if !state.open.writes.is_empty() && !state.urgent {
            state.urgent = true;
            self.added.notify_one();
        }
        state
    }

    /// The next batch, once there is something to write.
    pub(crate) async fn next(&self) -> Batch {
        let mut until: Option<Instant> = None;
        loop {
            let gathered = until.is_some_and(|until| until <= Instant::now());
            if let Some(batch) = self.take(gathered) {
                return batch;
            }
            if self.lock().open.writes.is_empty() {
                until = None;
                self.added.notified().await;
            } else {
                let until = *until.get_or_insert_with(|| Instant::now() + self.gathering);
                // Over or not, it is looked at again.
                let _ = timeout_at(until, self.added.notified()).await;
            }
        }
    }

    /// The open batch, if there is something in it that is urgent or has waited for long enough.
    fn take(&self, gathered: bool) -> Option<Batch> {
        let mut state = self.lock();
        if state.open.writes.is_empty() || !(state.urgent || gathered) {
            return None;
        }
        state.urgent = false;
        let batch = std::mem::take(&mut state.open);
        state.taken = Ticket(batch.outcome.subscribe());
        Some(batch)
    }

    /// This batch did not become true, nor did anything that was built on it.
    pub(crate) fn fail(&self, batch: Batch, lost: Lost) {
        self.end_epoch(lost);
        // What a request sees from now on was read in the database.
        self.lock().taken = nothing();
        batch.outcome.send_replace(Outcome::Lost(lost));
    }

    /// What is in memory and not in the database does not count.
    pub(crate) fn end_epoch(&self, lost: Lost) {
        let mut state = self.lock();
        state.epoch.0 += 1;
        state.lost = lost;
        state.urgent = false;
        let open = std::mem::take(&mut state.open);
        open.outcome.send_replace(Outcome::Lost(lost));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Nothing is in flight: that is durable.
fn nothing() -> Ticket {
    Ticket(watch::Sender::new(Outcome::Durable).subscribe())
}

impl State {
    fn latest(&self) -> Ticket {
        if self.open.writes.is_empty() { self.taken.clone() } else { Ticket(self.open.outcome.subscribe()) }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn write() -> Vec<Write> {
        vec![Write::Revoke("a".into())]
    }

    #[tokio::test]
    async fn what_waits_is_one_batch() {
        let commits = Commits::new();
        let epoch = commits.epoch();
        assert!(commits.latest().durable().await, "nothing has been added");
        let first = commits.add(epoch, write()).unwrap();
        let second = commits.add(epoch, write()).unwrap();
        let batch = commits.next().await;
        assert_eq!(batch.writes.len(), 2);
        let reader = commits.latest();
        assert_eq!(*reader.0.borrow(), Outcome::Waits, "who sees it waits for it");
        batch.succeed();
        assert!(first.durable().await && second.durable().await && reader.durable().await);
    }

    fn usage() -> Vec<Write> {
        let record = serde_json::json!({
            "id": "", "node": 1, "lease": 1, "attempt": 1, "sequence": 1, "tenant": "acme", "from_ms": 0, "until_ms": 1,
            "share_ppm": 1, "gpus": 1, "memory_mib": 1, "used_ppm_ms": 0, "kernels": 0, "bytes_in": 0, "bytes_out": 0,
            "memory_peak": 0, "last": false
        });
        vec![Write::Usage {
            record: serde_json::from_value(record).unwrap(),
            received_at_ms: 0,
            cards: Vec::new(),
        }]
    }

    #[tokio::test]
    async fn usage_waits_for_more_until_somebody_waits_for_it() {
        let mut commits = Commits { gathering: Duration::from_secs(3600), ..Commits::new() };
        let add = |commits: &Commits, writes| drop(commits.add(commits.epoch(), writes).unwrap());
        let at_once = |commits: &Commits| commits.next().now_or_never();
        for _ in 0..3 {
            add(&commits, usage());
            assert!(at_once(&commits).is_none(), "it waits for more");
        }
        let reader = commits.latest();
        let batch = at_once(&commits).expect("somebody looks");
        assert_eq!(batch.writes.len(), 3);
        batch.succeed();
        assert!(reader.durable().await);

        add(&commits, usage());
        add(&commits, write());
        at_once(&commits).expect("it stands beside a change").succeed();
        assert!(at_once(&commits).is_none() && commits.latest().durable().await, "nothing is left over");

        commits.gathering = Duration::ZERO;
        add(&commits, usage());
        commits.next().await.succeed();
    }

    #[tokio::test]
    async fn what_was_built_on_a_failure_fails() {
        let commits = Commits::new();
        let epoch = commits.epoch();
        let first = commits.add(epoch, write()).unwrap();
        let batch = commits.next().await;
        let second = commits.add(epoch, write()).unwrap();
        let saw = commits.latest_of(epoch).unwrap();
        commits.fail(batch, Lost::Room);
        assert_eq!(saw.decided().await, Err(Lost::Room), "what was seen is not true");
        assert_eq!(commits.latest_of(epoch).unwrap_err(), Lost::Room);
        assert!(commits.latest_of(commits.epoch()).unwrap().durable().await, "what is read again is");
        assert!(!first.durable().await && !second.durable().await);
        assert_eq!(commits.add(epoch, write()).unwrap_err(), Lost::Room, "it began before the failure");
        let later = commits.add(commits.epoch(), write()).unwrap();
        commits.next().await.succeed();
        assert!(later.durable().await);
    }
}
