//! Which device memory is the session's own: the addresses it has committed inside its reservation.
//!
//! The client mints addresses and names the runs of 2 MiB chunks that it wants backed. Every
//! address argument of every command is checked against this map before the driver sees it, with
//! arithmetic that cannot overflow.

use std::collections::BTreeMap;
use std::ops::Range;

/// Memory is committed in multiples of this, in bytes.
pub(crate) const CHUNK: u64 = 2 << 20;

/// The map of one session. `T` is what stands behind a run: the driver's handle of its physical
/// memory.
#[derive(Debug)]
pub(crate) struct Chunks<T> {
    reservation: Range<u64>,
    /// Start to run; runs never overlap.
    runs: BTreeMap<u64, Run<T>>,
}

/// One commitment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run<T> {
    pub(crate) bytes: u64,
    pub(crate) backing: T,
}

impl<T> Chunks<T> {
    /// Nothing is committed yet.
    pub(crate) fn new(reservation: Range<u64>) -> Chunks<T> {
        Chunks { reservation, runs: BTreeMap::new() }
    }

    /// The first address, and how many there are.
    pub(crate) fn range(&self) -> (u64, u64) {
        (self.reservation.start, self.reservation.end - self.reservation.start)
    }

    /// Whether a run could be committed: whole chunks inside the reservation, none of them
    /// committed.
    pub(crate) fn is_vacant(&self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes) else { return false };
        let whole = bytes > 0 && address.is_multiple_of(CHUNK) && bytes.is_multiple_of(CHUNK);
        let inside = address >= self.reservation.start && end <= self.reservation.end;
        let free =
            || self.runs.range(..end).next_back().is_none_or(|(&start, run)| start + run.bytes <= address);
        whole && inside && free()
    }

    /// Enters a run; the caller has checked that it is vacant.
    pub(crate) fn insert(&mut self, address: u64, bytes: u64, backing: T) {
        debug_assert!(self.is_vacant(address, bytes));
        self.runs.insert(address, Run { bytes, backing });
    }

    /// The starts of the runs that `[address, address + bytes)` consists of; `None` if it is not
    /// exactly made of runs, or if `fits` does not hold for one of them.
    pub(crate) fn runs(&self, address: u64, bytes: u64, fits: impl Fn(&T) -> bool) -> Option<Vec<u64>> {
        let end = address.checked_add(bytes).filter(|_| bytes > 0)?;
        let (mut at, mut starts) = (address, Vec::new());
        while at < end {
            let run = self.runs.get(&at).filter(|run| fits(&run.backing))?;
            starts.push(at);
            at = at.checked_add(run.bytes)?;
        }
        (at == end).then_some(starts)
    }

    /// The run that `address` lies in: its start, its bytes, and what stands behind it.
    pub(crate) fn run_of(&mut self, address: u64) -> Option<(u64, u64, &mut T)> {
        let (&start, run) = self.runs.range_mut(..=address).next_back()?;
        (address - start < run.bytes).then_some((start, run.bytes, &mut run.backing))
    }

    /// What stands behind the run that begins at `start`.
    pub(crate) fn run_at(&self, start: u64) -> Option<&T> {
        self.runs.get(&start).map(|run| &run.backing)
    }

    /// All runs with the addresses at which they begin.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Run<T>)> {
        self.runs.iter().map(|(&start, run)| (start, run))
    }

    /// Takes out the runs that [`Chunks::runs`] finds.
    pub(crate) fn remove(
        &mut self,
        address: u64,
        bytes: u64,
        fits: impl Fn(&T) -> bool,
    ) -> Option<Vec<(u64, Run<T>)>> {
        let starts = self.runs(address, bytes, fits)?;
        Some(starts.into_iter().filter_map(|start| self.runs.remove_entry(&start)).collect())
    }

    /// Whether all of `[address, address + bytes)` is committed, in runs for which `fits` holds.
    /// Nothing at all is committed anywhere.
    pub(crate) fn covers(&self, address: u64, bytes: u64, fits: impl Fn(&T) -> bool) -> bool {
        let Some(end) = address.checked_add(bytes) else { return false };
        let Some((&start, run)) = self.runs.range(..=address).next_back() else { return bytes == 0 };
        let mut covered = start + run.bytes;
        if covered <= address || !fits(&run.backing) {
            return bytes == 0;
        }
        while covered < end {
            match self.runs.get(&covered).filter(|next| fits(&next.backing)) {
                Some(next) => covered += next.bytes,
                None => return false,
            }
        }
        true
    }

    /// Bytes committed.
    #[cfg(test)]
    pub(crate) fn committed(&self) -> u64 {
        self.runs.values().map(|run| run.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x4000_0000_0000;

    fn chunks() -> Chunks<u32> {
        Chunks::new(BASE..BASE + 64 * CHUNK)
    }

    #[test]
    fn only_whole_free_chunks_inside_the_reservation_are_vacant() {
        let mut map = chunks();
        map.insert(BASE + CHUNK, 2 * CHUNK, 1);
        for (address, bytes, vacant) in [
            (BASE, CHUNK, true),
            (BASE, 2 * CHUNK, false),
            (BASE + 2 * CHUNK, CHUNK, false),
            (BASE + 3 * CHUNK, CHUNK, true),
            (BASE + 63 * CHUNK, 2 * CHUNK, false),
            (BASE - CHUNK, CHUNK, false),
            (BASE, CHUNK / 2, false),
            (BASE + 256, CHUNK, false),
            (BASE + 4 * CHUNK, 0, false),
            (BASE + 4 * CHUNK, u64::MAX - CHUNK + 1, false),
            (u64::MAX - CHUNK + 1, CHUNK, false),
        ] {
            assert_eq!(map.is_vacant(address, bytes), vacant, "{address:#x} {bytes:#x}");
        }
    }

    #[test]
    fn a_range_is_covered_over_neighbouring_runs_and_not_over_gaps() {
        let mut map = chunks();
        map.insert(BASE, CHUNK, 1);
        map.insert(BASE + CHUNK, CHUNK, 2);
        map.insert(BASE + 3 * CHUNK, CHUNK, 3);
        for (address, bytes, covered) in [
            (BASE, 2 * CHUNK, true),
            (BASE + 5, 2 * CHUNK - 5, true),
            (BASE + 5, 2 * CHUNK - 4, false),
            (BASE + 2 * CHUNK, 1, false),
            (BASE + 3 * CHUNK, CHUNK, true),
            (BASE - 1, 1, false),
            (BASE, u64::MAX, false),
            (u64::MAX, 1, false),
            (0, 0, true),
        ] {
            assert_eq!(map.covers(address, bytes, |_| true), covered, "{address:#x} {bytes:#x}");
        }
    }

    #[test]
    fn runs_are_removed_whole() {
        let mut map = chunks();
        map.insert(BASE, 2 * CHUNK, 1);
        map.insert(BASE + 2 * CHUNK, CHUNK, 2);
        assert!(map.remove(BASE, CHUNK, |_| true).is_none());
        assert!(map.remove(BASE + CHUNK, CHUNK, |_| true).is_none());
        assert!(map.remove(BASE, 4 * CHUNK, |_| true).is_none());
        assert!(map.remove(BASE, 0, |_| true).is_none());
        assert!(map.remove(BASE, u64::MAX, |_| true).is_none());
        assert!(map.remove(BASE, 3 * CHUNK, |run| *run == 1).is_none());
        let backings: Vec<u32> =
            map.remove(BASE, 3 * CHUNK, |_| true).unwrap().into_iter().map(|(_, r)| r.backing).collect();
        assert_eq!(backings, [1, 2]);
        assert_eq!(map.committed(), 0);
    }
}
