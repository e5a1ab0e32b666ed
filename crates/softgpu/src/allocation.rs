//! What lies where in the device address range.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::status::{Result, Status};

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
    /// A module's variables; the module frees them.
    Global,
    /// Pinned host memory with the flags of `cuMemHostAlloc`.
    Host(u32),
    /// `cuMemAllocManaged`.
    Managed,
    /// Physical memory (this handle) mapped by `cuMemMap`.
    Mapped(usize),
}

static LIVE: RwLock<BTreeMap<u64, Allocation>> = RwLock::new(BTreeMap::new());

/// Enters an allocation that now lies at `[base, base + size)`; returns its id.
pub(crate) fn insert(base: u64, size: u64, kind: Kind, context: usize, device: usize) -> u64 {
    static IDS: AtomicU64 = AtomicU64::new(1);
    let id = IDS.fetch_add(1, Ordering::Relaxed);
    let allocation = Allocation { base, size, kind, context, device, id };
    LIVE.write().unwrap_or_else(PoisonError::into_inner).insert(base, allocation);
    id
}

/// The allocation that `address` lies in.
pub(crate) fn find(address: u64) -> Option<Allocation> {
    let live = LIVE.read().unwrap_or_else(PoisonError::into_inner);
    let (_, allocation) = live.range(..=address).next_back()?;
    (address - allocation.base < allocation.size).then(|| allocation.clone())
}

/// Checks that every byte of `[address, address + size)` lies in live allocations; mapped ones may adjoin.
pub(crate) fn check(mut address: u64, size: u64) -> Result<()> {
    let end = address.checked_add(size).ok_or(Status::INVALID_VALUE)?;
    while address < end {
        let allocation = find(address).ok_or(Status::INVALID_VALUE)?;
        address = allocation.base + allocation.size;
    }
    Ok(())
}

/// Removes the allocation that begins at `base`, if `which` accepts it.
pub(crate) fn remove(base: u64, which: impl Fn(&Allocation) -> bool) -> Option<Allocation> {
    let mut live = LIVE.write().unwrap_or_else(PoisonError::into_inner);
    if live.get(&base).is_some_and(which) { live.remove(&base) } else { None }
}

/// Removes all allocations that `which` accepts.
pub(crate) fn remove_all(which: impl Fn(&Allocation) -> bool) -> Vec<Allocation> {
    let mut live = LIVE.write().unwrap_or_else(PoisonError::into_inner);
    let bases: Vec<u64> = live.values().filter(|a| which(a)).map(|a| a.base).collect();
    bases.iter().filter_map(|base| live.remove(base)).collect()
}
