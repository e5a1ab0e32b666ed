//! Answers that take long to work out and that many ask for: kept for a moment.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_api::node::GpuSums;
use sluice_api::tenant::TenantPath;

use crate::billing::Billed;

/// The longest for which an answer counts as current. Pages ask again after five seconds or more.
const KEPT_FOR_MAX: Duration = Duration::from_secs(4);

/// The answer that was worked out last, for as long as it counts as current.
///
/// That time grows with the number of things that were added up, of which each takes a small part
/// of its time. Hundreds of open pages of a large fleet cost little then, and what a small fleet's
/// pages show is current.
#[derive(Debug)]
pub(crate) struct Kept<T> {
    for_each: Duration,
    last: Mutex<Last<T>>,
}

#[derive(Debug)]
struct Last<T> {
    /// The answer, and until when it counts as current.
    answer: Option<(Instant, T)>,
    /// How often what was kept has been forgotten.
    round: u64,
}

/// When the work on an answer began: before or after something that it has to contain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round(u64);

impl<T: Clone> Kept<T> {
    /// Keeps an answer for this time for each thing that was added up.
    pub(crate) fn new(for_each: Duration) -> Kept<T> {
        Kept { for_each, last: Mutex::new(Last { answer: None, round: 0 }) }
    }

    pub(crate) fn get(&self) -> Option<T> {
        let last = self.last();
        last.answer.as_ref().filter(|(until, _)| Instant::now() < *until).map(|(_, answer)| answer.clone())
    }

    /// To be asked before an answer is worked out.
    pub(crate) fn round(&self) -> Round {
        Round(self.last().round)
    }

    /// Keeps an answer to which `things` were added up, unless it is of an earlier round.
    pub(crate) fn keep(&self, answer: &T, things: u64, Round(round): Round) {
        let things = u32::try_from(things).unwrap_or(u32::MAX);
        let until = Instant::now() + self.for_each.saturating_mul(things).min(KEPT_FOR_MAX);
        let mut last = self.last();
        if last.round == round {
            last.answer = Some((until, answer.clone()));
        }
    }

    /// Forgets the answer: who has changed what it says sees that at once.
    pub(crate) fn forget(&self) {
        let mut last = self.last();
        (last.answer, last.round) = (None, last.round + 1);
    }

    fn last(&self) -> MutexGuard<'_, Last<T>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has an answer forgotten when it is dropped.
#[derive(Debug)]
pub(crate) struct Forgotten<'a, T: Clone>(pub(crate) &'a Kept<T>);

impl<T: Clone> Drop for Forgotten<'_, T> {
    fn drop(&mut self) {
        self.0.forget();
    }
}

/// What many open pages ask for.
#[derive(Debug)]
pub(crate) struct KeptSums {
    /// Over all GPUs.
    pub(crate) gpus: Kept<GpuSums>,
    /// The units that each tenant holds, in thousandths, over all leases.
    pub(crate) units: Kept<Arc<BTreeMap<TenantPath, u64>>>,
    /// What bills until now are made of, over usage records: of the period asked for last, so
    /// pages that show different periods replace each other's.
    pub(crate) billed: Kept<Arc<Billed>>,
}

impl Default for KeptSums {
    fn default() -> KeptSums {
        KeptSums {
            gpus: Kept::new(Duration::from_micros(400)),
            units: Kept::new(Duration::from_micros(80)),
            billed: Kept::new(Duration::from_micros(80)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_a_large_fleet_are_kept_and_those_of_a_small_one_are_not() {
        let kept = Kept::new(Duration::from_micros(400));
        assert_eq!(kept.get(), None);
        kept.keep(&7, 0, kept.round());
        assert_eq!(kept.get(), None, "nothing takes no time to add up");
        kept.keep(&8, u64::MAX, kept.round());
        let until = kept.last().answer.unwrap().0;
        assert!(until <= Instant::now() + KEPT_FOR_MAX);
        assert_eq!(kept.get(), Some(8));
    }

    #[test]
    fn an_answer_that_was_begun_before_a_change_is_not_kept_after_it() {
        let kept = Kept::new(Duration::from_secs(1));
        let before = kept.round();
        kept.keep(&1, 4, before);
        kept.forget();
        assert_eq!(kept.get(), None);
        kept.keep(&1, 4, before);
        assert_eq!(kept.get(), None);
        kept.keep(&2, 4, kept.round());
        assert_eq!(kept.get(), Some(2));
    }
}
