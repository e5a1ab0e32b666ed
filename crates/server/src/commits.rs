//! Group commit: changes that wait for the database together are written in one transaction.
//!
//! ```text
//!  change ──add──▶ open batch ──next──▶ batch in flight ──▶ durable: all who hold its ticket may speak
//!                                                       └▶ failed: so has the open batch, which was built on it
//! ```
//! A failure ends an *epoch*: changes that began in it can be added no more, since they saw what never became true.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use crate::store::Write;

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Waits,
    Durable,
    Failed,
}

/// For those who saw or made a change: whether it is in the database.
#[derive(Clone, Debug)]
pub(crate) struct Ticket(watch::Receiver<Outcome>);

impl Ticket {
    /// Waits until the database has it or has refused it.
    pub(crate) async fn durable(mut self) -> bool {
        let decided = self.0.wait_for(|outcome| *outcome != Outcome::Waits).await;
        decided.is_ok_and(|outcome| *outcome == Outcome::Durable)
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
}

struct State {
    epoch: Epoch,
    open: Batch,
    /// Of the batch that was taken last.
    taken: Ticket,
}

impl Commits {
    pub(crate) fn new() -> Commits {
        // Nothing is in flight: that is durable.
        let taken = Ticket(watch::Sender::new(Outcome::Durable).subscribe());
        let state = State { epoch: Epoch(0), open: Batch::default(), taken };
        Commits { state: Mutex::new(state), added: Notify::new() }
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.lock().epoch
    }

    /// Adds what a change consists of; `None` if its epoch is over.
    pub(crate) fn add(&self, epoch: Epoch, writes: Vec<Write>) -> Option<Ticket> {
        let mut state = self.lock();
        if state.epoch != epoch {
            return None;
        }
        if !writes.is_empty() {
            state.open.writes.extend(writes);
            self.added.notify_one();
        }
        Some(state.latest())
    }

    /// For all that has been added until now.
    pub(crate) fn latest(&self) -> Ticket {
        self.lock().latest()
    }

    /// The next batch, once there is something to write.
    pub(crate) async fn next(&self) -> Batch {
        loop {
            if let Some(batch) = self.take() {
                return batch;
            }
            self.added.notified().await;
        }
    }

    fn take(&self) -> Option<Batch> {
        let mut state = self.lock();
        if state.open.writes.is_empty() {
            return None;
        }
        let batch = std::mem::take(&mut state.open);
        state.taken = Ticket(batch.outcome.subscribe());
        Some(batch)
    }

    /// This batch did not become true, nor did anything that was built on it.
    pub(crate) fn fail(&self, batch: Batch) {
        self.end_epoch();
        batch.outcome.send_replace(Outcome::Failed);
    }

    /// What is in memory and not in the database does not count.
    pub(crate) fn end_epoch(&self) {
        let mut state = self.lock();
        state.epoch.0 += 1;
        let open = std::mem::take(&mut state.open);
        open.outcome.send_replace(Outcome::Failed);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn latest(&self) -> Ticket {
        if self.open.writes.is_empty() { self.taken.clone() } else { Ticket(self.open.outcome.subscribe()) }
    }
}

#[cfg(test)]
mod tests {
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

    #[tokio::test]
    async fn what_was_built_on_a_failure_fails() {
        let commits = Commits::new();
        let epoch = commits.epoch();
        let first = commits.add(epoch, write()).unwrap();
        let batch = commits.next().await;
        let second = commits.add(epoch, write()).unwrap();
        commits.fail(batch);
        assert!(!first.durable().await && !second.durable().await);
        assert!(commits.add(epoch, write()).is_none(), "it began before the failure");
        let later = commits.add(commits.epoch(), write()).unwrap();
        commits.next().await.succeed();
        assert!(later.durable().await);
    }
}
