//! Churn, for tests: the memory of sessions leaves their GPUs and comes back at random moments, and
//! device memory that has been copied is overwritten before it is released. A program whose results
//! change under this has found a fault.

use std::time::Duration;

use super::Registry;

/// The longest pause between two moves of a node.
const PAUSE_MAX_MS: u64 = 40;

impl Registry {
    /// Moves sessions, in an order that follows from the seed and from when sessions begin; never
    /// returns.
    pub(crate) fn churn(&self, seed: u64) -> ! {
        let mut random = fastrand::Rng::with_seed(seed);
        loop {
            std::thread::sleep(Duration::from_millis(random.u64(1..=PAUSE_MAX_MS)));
            let mut ledger = self.lock();
            let sessions: Vec<u64> = ledger.sessions.keys().copied().collect();
            let Some(&session) = random.choice(&sessions) else { continue };
            if let Some(record) = ledger.sessions.get_mut(&session) {
                record.churns = true;
            }
            self.settle(&mut ledger, session);
        }
    }
}
