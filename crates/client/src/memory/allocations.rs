//! What is allocated in the memory of one device.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use sluice_cuda::*;

use crate::memory::addresses::{Allocation, Space};

/// What a device's memory holds, by the rules of who names addresses.
#[derive(Debug)]
pub(crate) enum Names {
    Minted(Space),
    /// Allocations that the node named.
    Given(BTreeMap<u64, u64>),
}

#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) names: Names,
    /// Whose context each allocation ends with.
    pub(super) owners: BTreeMap<u64, CUcontext>,
    pub(super) freed_later: Vec<Freed>,
    pub(super) freed_later_bytes: u64,
    /// The pool that an allocation counts towards, by address.
    pub(super) pools: BTreeMap<u64, CUmemoryPool>,
    /// Allocations whose synchronous operations always wait (`CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`),
    /// by address.
    pub(super) synchronous: BTreeSet<u64>,
}

/// Memory that was freed in the order of a stream, which may not have got there yet.
#[derive(Debug)]
pub(super) struct Freed {
    pub(super) stream: CUstream,
    pub(super) allocation: Allocation,
    /// The pool that it came from; null for none.
    pub(super) pool: CUmemoryPool,
}

/// Whether any allocation was ever made synchronous: hardly any program asks for that.
pub(super) static SOME_SYNCHRONOUS: AtomicBool = AtomicBool::new(false);

impl Memory {
    pub(crate) fn new(names: Names) -> Memory {
        Memory {
            names,
            owners: BTreeMap::new(),
            freed_later: Vec::new(),
            freed_later_bytes: 0,
            pools: BTreeMap::new(),
            synchronous: BTreeSet::new(),
        }
    }

    pub(crate) fn find(&self, address: u64) -> Option<Allocation> {
        match &self.names {
            Names::Minted(space) => space.find(address),
            Names::Given(given) => {
                let (&start, &bytes) = given.range(..=address).next_back()?;
                (address - start < bytes).then_some(Allocation { start, bytes, reserved: bytes })
            }
        }
    }

    /// Memory that was freed in the order of this very stream may be used again in the same order.
    pub(super) fn take_freed(&mut self, stream: CUstream, bytes: u64) -> Option<u64> {
        let fits = |freed: &Freed| freed.stream == stream && freed.allocation.bytes == bytes;
        let index = self.freed_later.iter().position(fits)?;
        let Freed { allocation, .. } = self.freed_later.swap_remove(index);
        self.freed_later_bytes -= allocation.bytes;
        Some(allocation.start)
    }

    /// Notes memory that was freed in the order of a stream; returns its pool, null for none.
    pub(super) fn free_later(&mut self, stream: CUstream, allocation: Allocation) -> CUmemoryPool {
        let pool = self.leave_pool(&allocation);
        self.freed_later.push(Freed { stream, allocation, pool });
        self.freed_later_bytes += allocation.bytes;
        pool
    }

    /// Takes an allocation out of its pool, which is returned, null for none: the caller notes the
    /// change there.
    pub(super) fn leave_pool(&mut self, allocation: &Allocation) -> CUmemoryPool {
        self.pools.remove(&allocation.start).unwrap_or(CUmemoryPool::NULL)
    }

    /// The pool that an allocation came out of.
    pub(crate) fn pool_of(&self, address: u64) -> Option<CUmemoryPool> {
        self.pools.get(&address).copied()
    }

    /// Whether synchronous operations on what lies here always wait.
    pub(crate) fn is_synchronous(&self, address: u64) -> bool {
        self.find(address).is_some_and(|allocation| self.synchronous.contains(&allocation.start))
    }

    /// Makes synchronous operations on the allocation that starts at `address` always wait, or no
    /// longer.
    pub(crate) fn set_synchronous(&mut self, address: u64, always: bool) {
        if always {
            SOME_SYNCHRONOUS.store(true, Ordering::Relaxed);
            self.synchronous.insert(address);
        } else {
            self.synchronous.remove(&address);
        }
    }

    /// Bytes of a pool that are freed and not given back yet.
    pub(crate) fn kept_for(&self, pool: CUmemoryPool) -> u64 {
        let of_pool = self.freed_later.iter().filter(|freed| freed.pool == pool);
        of_pool.map(|freed| freed.allocation.bytes).sum()
    }
}

/// Where an allocation lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pages {
    /// Beside others, if it is small.
    Shared,
    /// On pages of its own, which all devices of the session can use.
    Own,
    /// On pages of its own that the node can also read while device code runs: where its driver
    /// needs that, in the node's host memory.
    OnHost,
}
