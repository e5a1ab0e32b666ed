//! Accesses to memory.

use std::sync::Arc;

use sluice_ir::{Access, AccessKind, Space};

use super::{Block, Windows};
use crate::clocks::Clocks;
use crate::launch::access_text;
use crate::memory::Region;
use crate::report::{self, Kind, Other};
use crate::shadow::{Cell, GRANULE, Record};

/// An access of one thread.
#[derive(Clone, Copy)]
struct Attempt<'a> {
    access: &'a Access,
    /// The state space that the address turned out to be in.
    space: Space,
    /// Number of the thread in its block.
    thread: u32,
    /// In windows an offset.
    address: u64,
    /// Whether a store leaves what is there.
    changes_nothing: bool,
}

/// The earlier one of two accesses that race.
struct Earlier {
    record: Record,
    line: u32,
    is_write: bool,
}

impl Block<'_> {
    /// Whether a thread may make an access. One that a GPU would fault at may, so that it does.
    ///
    /// `present` says what is in memory at an address that may be read.
    pub fn access(
        &mut self,
        windows: &Windows,
        access: &Access,
        (thread, address): (u32, u64),
        value: u64,
        present: impl FnOnce(u64) -> u64,
    ) -> bool {
        if self.joining_at != std::ptr::from_ref(access).addr() {
            self.join();
        }
        let attempt = Attempt { access, space: access.space, thread, address, changes_nothing: false };
        match access.space {
            Space::Param => true,
            Space::Shared => {
                let bytes = windows.shared.end - windows.shared.start;
                self.shared_access(attempt, bytes, || present(windows.shared.start + address) == value)
            }
            Space::Local => self.window_access(attempt, windows.local.end - windows.local.start),
            // Code that names the space of its pointers finds the grid's barrier there.
            Space::Global if windows.workspace.contains(&address) => {
                self.synchronize(attempt);
                true
            }
            Space::Generic if windows.arena.contains(&address) => {
                self.generic_window(windows, attempt, || present(address) == value)
            }
            Space::Generic | Space::Global | Space::Const => {
                self.global_access(attempt, || present(address) == value)
            }
        }
    }

    /// A generic address of a window.
    fn generic_window(
        &mut self,
        windows: &Windows,
        attempt: Attempt<'_>,
        same: impl FnOnce() -> bool,
    ) -> bool {
        let address = attempt.address;
        if windows.shared.contains(&address) {
            let shared = &windows.shared;
            let inside = Attempt { space: Space::Shared, address: address - shared.start, ..attempt };
            return self.shared_access(inside, shared.end - shared.start, same);
        }
        if windows.local.contains(&address) {
            let local = &windows.local;
            let inside = Attempt { space: Space::Local, address: address - local.start, ..attempt };
            return self.window_access(inside, local.end - local.start);
        }
        // Parameters are in front of all blocks. Where blocks form clusters, they may use each
        // other's shared memory.
        let is_own = windows.is_cluster || address < windows.shared.start && address < windows.local.start;
        if is_own || !self.launch.sanitizer.tools.memcheck {
            // The workspace of the grid's barrier is there, too.
            self.synchronize(attempt);
            return true;
        }
        self.report_access(Kind::OutOfBounds, attempt, None);
        false
    }

    fn shared_access(&mut self, attempt: Attempt<'_>, bytes: u64, same: impl FnOnce() -> bool) -> bool {
        let size = u64::from(attempt.access.bytes);
        let is_inside = attempt.address.saturating_add(size) <= bytes && attempt.address.is_multiple_of(size);
        if is_inside && self.launch.sanitizer.tools.racecheck {
            self.shared_cells(bytes);
            let changes_nothing = attempt.access.has_value && same();
            let cells = std::mem::take(&mut self.shared);
            self.race(Attempt { changes_nothing, ..attempt }, &cells, None);
            self.shared = cells;
        }
        is_inside || self.window_access(attempt, bytes)
    }

    /// Reports an access outside of a window, at which the kernel then faults.
    fn window_access(&self, attempt: Attempt<'_>, bytes: u64) -> bool {
        let size = u64::from(attempt.access.bytes);
        let kind = match attempt.address {
            address if !address.is_multiple_of(size) => Some(Kind::Misaligned),
            address if address.saturating_add(size) > bytes => Some(Kind::OutOfBounds),
            _ => None,
        };
        if let Some(kind) = kind.filter(|_| self.launch.sanitizer.tools.memcheck) {
            self.report_access(kind, attempt, None);
        }
        true
    }

    fn global_access(&mut self, attempt: Attempt<'_>, same: impl FnOnce() -> bool) -> bool {
        let tools = self.launch.sanitizer.tools;
        let (address, bytes) = (attempt.address, u64::from(attempt.access.bytes));
        if !address.is_multiple_of(bytes) {
            if tools.memcheck {
                self.report_access(Kind::Misaligned, attempt, None);
            }
            return true;
        }
        let Some(region) = self.region(address, bytes) else {
            return !tools.memcheck || self.stray_access(attempt);
        };
        let offset = address - region.base;
        if tools.initcheck && attempt.space != Space::Const {
            if attempt.access.kind != AccessKind::Write && !region.shadow.is_written(offset, bytes) {
                self.report_access(Kind::UninitializedRead, attempt, Some(region.describe(address)));
            }
            if attempt.access.kind != AccessKind::Read {
                region.shadow.set_written(offset, bytes);
            }
        }
        if tools.racecheck
            && let Some(cells) = region.shadow.cells(region.bytes)
        {
            let changes_nothing = attempt.access.has_value && same();
            let inside = Attempt { address: offset, changes_nothing, ..attempt };
            self.race(inside, cells, Some(&region));
        }
        true
    }

    /// The region in which an access lies.
    fn region(&mut self, address: u64, bytes: u64) -> Option<Arc<Region>> {
        let memory = &self.launch.sanitizer.memory;
        let generation = memory.generation();
        if generation != self.generation {
            self.recent = Default::default();
            self.generation = generation;
        }
        let known = self.recent.iter().flatten().find(|region| region.covers(address, bytes));
        if let Some(region) = known.filter(|region| !region.is_freed()) {
            return Some(Arc::clone(region));
        }
        let region = memory.at_or_before(address)?;
        let is_live = region.covers(address, bytes) && !region.is_freed();
        if is_live {
            self.recent[self.oldest] = Some(Arc::clone(&region));
            self.oldest = (self.oldest + 1) % self.recent.len();
        }
        is_live.then_some(region)
    }

    /// Reports an access outside of live allocations. It may be made where no memory is mapped, so
    /// that the kernel faults as it would without a sanitizer.
    fn stray_access(&mut self, attempt: Attempt<'_>) -> bool {
        let address = attempt.address;
        let memory = &self.launch.sanitizer.memory;
        let freed = memory.at_or_before(address).filter(|region| region.is_freed());
        if let Some(region) = freed.filter(|region| region.covers(address, 1)) {
            self.report_access(Kind::UseAfterFree, attempt, Some(region.describe(address)));
            return false;
        }
        let nearest = memory.nearest(address);
        let is_mapped = nearest.as_ref().is_some_and(|(_, is_mapped)| *is_mapped);
        self.report_access(Kind::OutOfBounds, attempt, nearest.map(|(region, _)| region.describe(address)));
        !is_mapped
    }

    /// Compares an access with earlier ones to the same bytes, and remembers it.
    fn race(&mut self, attempt: Attempt<'_>, cells: &[Cell], region: Option<&Region>) {
        let (access, end) = (attempt.access, attempt.address + u64::from(attempt.access.bytes));
        let thread = attempt.thread as u16;
        let time = self.launch.sanitizer.now();
        let mut found = None;
        for granule in attempt.address / GRANULE..end.div_ceil(GRANULE) {
            let Some(cell) = cells.get(granule as usize) else { continue };
            let (start, stop) = (attempt.address.max(granule * GRANULE), end.min((granule + 1) * GRANULE));
            let mask = ((1u8 << (stop - start)) - 1) << (start - granule * GRANULE);
            let own = Record { time, block: self.number, thread, mask, is_strong: access.is_strong };
            let writes = match access.kind {
                AccessKind::Read => cell.last_writes(),
                AccessKind::Write | AccessKind::Atomic => cell.set_write(own, access.line),
            };
            found = found.or_else(|| conflict(&self.clocks, (writes, cell), own, attempt));
            if access.kind == AccessKind::Read {
                let is_over = |earlier| self.clocks.is_behind(thread, self.number, earlier);
                cell.set_read(own, access.line, is_over);
            }
        }
        if let Some(earlier) = found {
            self.report_race(attempt, &earlier, region);
        }
        self.synchronize(attempt);
    }

    /// A thread that reads by a strong access is ordered behind what came before.
    fn synchronize(&mut self, Attempt { access, space, thread, .. }: Attempt<'_>) {
        if !access.is_strong || access.kind == AccessKind::Write {
            return;
        }
        let is_wide = space != Space::Shared;
        self.clocks.joined(thread as usize, self.launch.sanitizer.tick(), is_wide);
        self.joining_at = std::ptr::from_ref(access).addr();
        *self.joining.entry(thread).or_default() |= is_wide;
    }

    fn report_access(&self, kind: Kind, attempt: Attempt<'_>, region: Option<report::Region>) {
        let (launch, access) = (self.launch, attempt.access);
        launch.sanitizer.findings.add(launch.key(kind, access.line, 0), || report::Finding {
            access: Some(access_text(access, attempt.space)),
            block: Some(self.index),
            thread: Some(launch.thread(attempt.thread)),
            address: Some(attempt.address),
            region,
            ..launch.finding(kind, access.line)
        });
    }

    fn report_race(&self, attempt: Attempt<'_>, earlier: &Earlier, region: Option<&Region>) {
        let (launch, access) = (self.launch, attempt.access);
        let is_same_block = earlier.record.block == self.number;
        let kind = if is_same_block { Kind::Race } else { Kind::RaceBetweenBlocks };
        let address = region.map_or(attempt.address, |region| region.base + attempt.address);
        launch.sanitizer.findings.add(launch.key(kind, access.line, earlier.line), || report::Finding {
            access: Some(access_text(access, attempt.space)),
            block: Some(self.index),
            thread: Some(launch.thread(attempt.thread)),
            address: Some(address),
            region: region.map(|region| region.describe(address)),
            other: Some(Other {
                what: if earlier.is_write { "write" } else { "read" }.into(),
                ptx_line: earlier.line,
                source: launch.source(earlier.line),
                thread: launch.thread(earlier.record.thread.into()),
                is_same_block,
            }),
            ..launch.finding(kind, access.line)
        });
    }
}

/// An earlier access to the same bytes that nothing orders before this one.
fn conflict(
    clocks: &Clocks,
    (writes, cell): ([Option<(Record, u32)>; 2], &Cell),
    own: Record,
    attempt: Attempt<'_>,
) -> Option<Earlier> {
    // Shared memory holds what earlier blocks have left.
    let is_shared = attempt.space == Space::Shared;
    let races = |&(earlier, _): &(Record, u32)| {
        let is_ordered = clocks.is_behind(own.thread, own.block, earlier)
            || (is_shared && earlier.block != own.block)
            || (earlier.is_strong && own.is_strong);
        earlier.mask & own.mask != 0 && !is_ordered
    };
    // Threads that write the same do no harm.
    if attempt.changes_nothing {
        return None;
    }
    if let Some((record, line)) = writes.into_iter().flatten().find(races) {
        return Some(Earlier { record, line, is_write: true });
    }
    if attempt.access.kind == AccessKind::Read {
        return None;
    }
    let read = cell.last_reads().into_iter().flatten().find(races);
    read.map(|(record, line)| Earlier { record, line, is_write: false })
}
