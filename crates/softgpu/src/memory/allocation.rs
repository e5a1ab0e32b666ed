//! What lies where in the device address range.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use sluice_sanitize::NewRegion;

use crate::base::status::{Result, Status};
use crate::base::ticket::Ticket;
use crate::device::sanitizer;

/// One piece of memory that a program knows by address.
#[derive(Clone, Debug)]
pub(crate) struct Allocation {
    pub(crate) base: u64,
    pub(crate) size: u64,
    pub(crate) kind: Kind,
    /// Handle of the context it was made in.
    pub(crate) context: usize,
    /// Ordinal of the device whose memory it is.
    pub(crate) device: usize,
    /// Unique in the process and never used again (`CU_POINTER_ATTRIBUTE_BUFFER_ID`).
    pub(crate) id: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `cuMemAlloc` and its pitched form.
    Device,
    /// From the memory pool with this handle.
    Pool(usize),
    /// What is in an array, which has no address for programs.
    Array,
    /// Names for the bytes of an array whose memory is mapped later ([`crate::memory::tiles`]).
    ArrayName,
    /// A module's variables; the module frees them.
    Global,
    /// Those that are `__managed__`.
    ManagedGlobal,
    /// Pinned host memory with the flags of `cuMemHostAlloc`.
    Host(u32),
    /// `cuMemAllocManaged`.
    Managed,
    /// Physical memory (this handle) mapped by `cuMemMap`.
    Mapped(usize),
}

impl Kind {
    /// Memory that the program uses by the same address.
    pub(crate) fn is_managed(self) -> bool {
        matches!(self, Kind::Managed | Kind::ManagedGlobal)
    }
}

/// Tells the sanitizer of an allocation.
fn have_watched(base: u64, bytes: u64, kind: Kind) {
    let label = match kind {
        Kind::Device => "device memory",
        Kind::Pool(_) => "memory of a pool",
        Kind::Array => "an array",
        Kind::Global | Kind::ManagedGlobal => "a variable of the module",
        Kind::Host(_) => "page-locked host memory",
        Kind::Managed => "managed memory",
        Kind::Mapped(_) => "mapped memory",
        // Names without memory.
        Kind::ArrayName => return,
    };
    let is_device = matches!(kind, Kind::Device | Kind::Pool(_));
    sanitizer::allocated(NewRegion { base, bytes, label, is_written: !is_device, can_leak: is_device });
}

/// What stream-ordered frees have taken from programs, each until the stream has come to its free.
static LEAVING: Mutex<Vec<(Allocation, Arc<Ticket>)>> = Mutex::new(Vec::new());

static LIVE: RwLock<BTreeMap<u64, Allocation>> = RwLock::new(BTreeMap::new());

/// Enters an allocation that now lies at `[base, base + size)`; returns its id.
pub(crate) fn insert(base: u64, size: u64, kind: Kind, context: usize, device: usize) -> u64 {
    static IDS: AtomicU64 = AtomicU64::new(1);
    let id = IDS.fetch_add(1, Ordering::Relaxed);
    let allocation = Allocation { base, size, kind, context, device, id };
    LIVE.write().unwrap_or_else(PoisonError::into_inner).insert(base, allocation);
    have_watched(base, size, kind);
    id
}

/// The allocation that `address` lies in.
pub(crate) fn find(address: u64) -> Option<Allocation> {
    let live = LIVE.read().unwrap_or_else(PoisonError::into_inner);
    let (_, allocation) = live.range(..=address).next_back()?;
    (address - allocation.base < allocation.size).then(|| allocation.clone())
}

/// Checks that every byte of `[address, address + size)` lies in live allocations; mapped ones may
/// adjoin.
pub(crate) fn check(mut address: u64, size: u64) -> Result<()> {
    let end = address.checked_add(size).ok_or(Status::INVALID_VALUE)?;
    while address < end {
        let allocation = find(address).ok_or(Status::INVALID_VALUE)?;
        address = allocation.base + allocation.size;
    }
    Ok(())
}

/// As [`check`] for work that has come to its turn: it may also use what the program gave up behind
/// it in the same stream.
pub(crate) fn check_at_turn(mut address: u64, size: u64) -> Result<()> {
    let end = address.checked_add(size).ok_or(Status::ILLEGAL_ADDRESS)?;
    while address < end {
        let allocation = find(address).or_else(|| find_leaving(address)).ok_or(Status::ILLEGAL_ADDRESS)?;
        address = allocation.base + allocation.size;
    }
    Ok(())
}

fn find_leaving(address: u64) -> Option<Allocation> {
    let leaving = LEAVING.lock().unwrap_or_else(PoisonError::into_inner);
    let holds = |(known, until): &&(Allocation, Arc<Ticket>)| {
        (known.base..known.base + known.size).contains(&address) && !until.is_done()
    };
    leaving.iter().find(holds).map(|(known, _)| known.clone())
}

/// Removes the allocation, which the program cannot name any more; work that was submitted before
/// may use it until the ticket.
pub(crate) fn leave(known: &Allocation, until: &Arc<Ticket>) -> bool {
    let mut leaving = LEAVING.lock().unwrap_or_else(PoisonError::into_inner);
    leaving.retain(|(_, until)| !until.is_done());
    leaving.push((known.clone(), Arc::clone(until)));
    // Only now, so that there is no moment at which it is nowhere.
    let is_gone = take(known.base, |a| a.id == known.id).is_some();
    if !is_gone {
        leaving.pop();
    } else if let Some(sanitizer) = sanitizer::sanitizer() {
        let until = Arc::clone(until);
        sanitizer.leaves(known.base, move || until.is_done());
    }
    is_gone
}

/// Removes the allocation that begins at `base`, if `which` accepts it.
pub(crate) fn remove(base: u64, which: impl Fn(&Allocation) -> bool) -> Option<Allocation> {
    take(base, which).inspect(|removed| sanitizer::freed(removed.base))
}

fn take(base: u64, which: impl Fn(&Allocation) -> bool) -> Option<Allocation> {
    let mut live = LIVE.write().unwrap_or_else(PoisonError::into_inner);
    if live.get(&base).is_some_and(which) { live.remove(&base) } else { None }
}

/// Removes all allocations that `which` accepts.
pub(crate) fn remove_all(which: impl Fn(&Allocation) -> bool) -> Vec<Allocation> {
    let mut live = LIVE.write().unwrap_or_else(PoisonError::into_inner);
    let bases: Vec<u64> = live.values().filter(|a| which(a)).map(|a| a.base).collect();
    if let Some(sanitizer) = sanitizer::sanitizer() {
        bases.iter().for_each(|&base| sanitizer.abandoned(base));
    }
    bases.iter().filter_map(|base| live.remove(base)).collect()
}
