//! Credit for device memory: memory of the lease that the node has reserved for this session, so
//! that it can be allocated without waiting.
//!
//! It says how much that is when the session begins, and more whenever some was used
//! (`sluice_wire::Allowance`); what is used is counted here. A command for memory that fits is
//! queued, for any other the program waits, as only a waiting call can be refused for lack of
//! memory. That may use up the credit on the node, so the credit must not be spent meanwhile: a
//! thread that uses or waits for memory of a device has the lock of its
//! [`Memory`](crate::memory::Memory).

use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_wire::Allowance;

use crate::link::Link;

/// Bytes of each device, by its place in the lease.
#[derive(Debug, Default)]
pub(crate) struct Allowances(Mutex<Vec<u64>>);

impl Allowances {
    pub(crate) fn new(bytes: Vec<u64>) -> Allowances {
        Allowances(Mutex::new(bytes))
    }

    /// The node has said so.
    pub(crate) fn change(&self, Allowance { device, change }: Allowance) {
        if let Some(allowed) = self.lock().get_mut(device as usize) {
            *allowed = allowed.saturating_add_signed(change);
        }
    }

    /// Nothing may be used unasked, until the node says so again.
    pub(super) fn end(&self) {
        self.lock().fill(0);
    }

    fn spend(&self, place: u8, bytes: u64) -> bool {
        let mut all = self.lock();
        let allowed = all.get_mut(usize::from(place)).filter(|allowed| bytes <= **allowed);
        allowed.map(|allowed| *allowed -= bytes).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    /// Spends credit for this many bytes of a device; false if there is too little. A log of the
    /// session shows each allocation with its answer, so that it can be asked for again where less
    /// is allowed.
    pub(crate) fn spend(&self, place: u8, bytes: u64) -> bool {
        let spend = || self.allowances.spend(place, bytes);
        !self.is_recorded() && (spend() || (self.look() && spend()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allowed_is_used_once() {
        let allowances = Allowances::new(vec![0, 4 << 20]);
        assert!(!allowances.spend(0, 1) && !allowances.spend(1, (4 << 20) + 1) && !allowances.spend(2, 0));
        assert!(allowances.spend(1, 3 << 20) && !allowances.spend(1, 2 << 20));
        allowances.change(Allowance { device: 1, change: 1 << 20 });
        assert!(allowances.spend(1, 2 << 20) && !allowances.spend(1, 1));
    }

    #[test]
    fn what_is_taken_away_is_not_used_and_nonsense_changes_nothing() {
        let allowances = Allowances::new(vec![4 << 20]);
        allowances.change(Allowance { device: 0, change: -(3 << 20) });
        assert!(!allowances.spend(0, 2 << 20));
        for change in [i64::MIN, i64::MAX, i64::MAX, i64::MAX, i64::MIN, i64::MIN, i64::MIN] {
            allowances.change(Allowance { device: 0, change });
            allowances.change(Allowance { device: 1, change });
        }
        assert!(!allowances.spend(0, 2));
    }
}
