//! What each process has used under a lease, for a report at the end of a run.
//!
//! The numbers are those of the session's counters. A lease keeps those of sessions that have
//! ended.

use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};
use sluice_wire::control::{ProcessUsage, Processes};

use super::{Registry, SessionRecord};

/// Most sessions that have ended and that a lease keeps; further ones are only counted.
const KEPT_MAX: usize = 1000;
/// Most bytes of the text that says how a session ended.
const END_MAX: usize = 500;

/// The sessions of a lease that have ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct PastProcesses {
    #[serde(with = "crate::upgrade::with::wire")]
    kept: Vec<ProcessUsage>,
    omitted: u64,
}

impl PastProcesses {
    pub(super) fn add(&mut self, process: ProcessUsage) {
        if self.kept.len() < KEPT_MAX {
            self.kept.push(process);
        } else {
            self.omitted += 1;
        }
    }
}

impl SessionRecord {
    /// What the session has used so far. `end` says how it ended, if that was not by itself.
    pub(super) fn used(&self, session: u64, mut end: String) -> ProcessUsage {
        end.truncate(end.floor_char_boundary(END_MAX));
        let counts = self.counters.read();
        ProcessUsage {
            session,
            process: self.client.process.number,
            age_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            kernels: counts.kernels,
            bytes_in: counts.bytes_in,
            bytes_out: counts.bytes_out,
            busy_us: counts.gpu_ns / 1000,
            fault: self.counters.fault.load(Relaxed),
            end,
        }
    }
}

impl Registry {
    /// What each process of a lease has used, also those whose sessions have ended.
    pub(crate) fn processes(&self, lease: u64) -> Option<Processes> {
        let ledger = self.lock();
        let past = &ledger.leases.get(&lease)?.processes;
        let mut processes = past.kept.clone();
        let is_of_it = |session: &SessionRecord| session.lease == lease && !session.is_unclaimed;
        let living = ledger.sessions.iter().filter(|(_, session)| is_of_it(session));
        processes.extend(living.map(|(&id, session)| session.used(id, String::new())));
        processes.sort_by_key(|process| process.session);
        Some(Processes { processes, omitted: past.omitted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_keeps_a_limited_number_of_sessions_and_counts_the_others() {
        let mut past = PastProcesses::default();
        let process = |session| ProcessUsage {
            session,
            process: 1,
            age_ms: 0,
            kernels: 0,
            bytes_in: 0,
            bytes_out: 0,
            busy_us: 0,
            fault: 0,
            end: String::new(),
        };
        (0..KEPT_MAX as u64 + 3).for_each(|session| past.add(process(session)));
        assert_eq!((past.kept.len(), past.omitted), (KEPT_MAX, 3));
        assert_eq!(past.kept.last().map(|process| process.session), Some(KEPT_MAX as u64 - 1));
    }
}
