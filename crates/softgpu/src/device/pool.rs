//! Memory pools (CUDA Driver API, Stream Ordered Memory Allocator).
//!
//! A pool keeps what is freed for the next allocation of the same size: at once for one in the same
//! stream, whose order puts it behind the free, and for others when the stream has come to the
//! free. What exceeds the release threshold is given back when the program next waits for a stream,
//! an event or the context. An allocation that finds no memory takes everything that pools keep
//! first. The attributes about reuse change nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::{CUmemPool_attribute, CUmemoryPool};

use crate::base::status::{Result, Status};
use crate::base::table::Table;
use crate::base::ticket::Ticket;
use crate::device::heap::ALIGN;
use crate::device::{Device, driver};

pub(crate) static POOLS: Table<Pool> = Table::new(4);

pub(crate) struct Pool {
    pub(crate) handle: usize,
    device: usize,
    /// The other devices that may use its memory.
    peers: Mutex<BTreeSet<usize>>,
    /// Whether it is a device's own pool, which cannot be destroyed.
    pub(crate) is_default: bool,
    /// The most bytes that may be allocated of it at one time (`CUmemPoolProps.maxSize`).
    bytes_max: u64,
    pub(crate) used: AtomicU64,
    used_max: AtomicU64,
    reserved_max: AtomicU64,
    kept: Mutex<Kept>,
    release_threshold: AtomicU64,
    /// The three reuse policies, on unless the program says otherwise.
    reuse: [AtomicU64; 3],
}

/// Memory that is free and not given back.
#[derive(Default)]
struct Kept {
    bytes: u64,
    /// Addresses by size, in bytes as the device's heap was asked for them.
    by_size: BTreeMap<u64, Vec<Freed>>,
}

struct Freed {
    address: u64,
    /// The stream of the free, by id.
    stream: u64,
    /// Done when the stream has come to the free.
    ticket: Arc<Ticket>,
}

/// Whether some pool keeps more than its threshold says, so that waiting has something to give
/// back.
static EXCESS: AtomicBool = AtomicBool::new(false);

impl Pool {
    /// A pool that may use `bytes_max` bytes; 0 is as many as there are.
    pub(crate) fn create(device: &Device, is_default: bool, bytes_max: u64) -> Arc<Self> {
        POOLS.insert(|handle| Self {
            handle,
            device: device.ordinal,
            peers: Mutex::default(),
            is_default,
            bytes_max: if bytes_max == 0 { u64::MAX } else { bytes_max },
            used: AtomicU64::new(0),
            used_max: AtomicU64::new(0),
            reserved_max: AtomicU64::new(0),
            kept: Mutex::default(),
            release_threshold: AtomicU64::new(0),
            reuse: [const { AtomicU64::new(1) }; 3],
        })
    }

    /// The pool with this handle.
    pub(crate) fn get(handle: CUmemoryPool) -> Result<Arc<Self>> {
        POOLS.get(handle.0).ok_or(Status::INVALID_VALUE)
    }

    /// The pool that a device allocates from by default.
    pub(crate) fn of_device(device: &Device) -> Arc<Self> {
        let mut current = device.pool.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(pool) = POOLS.get(*current) {
            return pool;
        }
        let pool = Self::default_of(device);
        *current = pool.handle;
        pool
    }

    /// The pool that a device was born with.
    pub(crate) fn default_of(device: &Device) -> Arc<Self> {
        let own = POOLS.all().into_iter().find(|pool| pool.is_default && pool.device == device.ordinal);
        own.unwrap_or_else(|| Self::create(device, true, 0))
    }

    pub(crate) fn device(&self) -> Result<&'static Device> {
        driver()?.devices.get(self.device).ok_or(Status::INVALID_DEVICE)
    }

    /// Whether a device may use its memory.
    pub(crate) fn is_reached_by(&self, device: usize) -> bool {
        device == self.device || self.peers.lock().unwrap_or_else(PoisonError::into_inner).contains(&device)
    }

    /// Lets another device use its memory, or no longer. Its own one always can.
    pub(crate) fn set_access(&self, device: usize, may: bool) -> Result<()> {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        match may {
            true => _ = peers.insert(device),
            false if device == self.device => return Err(Status::INVALID_VALUE),
            false => _ = peers.remove(&device),
        }
        Ok(())
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory of `size` bytes for use in the order of a stream: what is kept, or fresh.
    pub(crate) fn allocate(&self, size: u64, stream: u64) -> Result<u64> {
        let whole = size.checked_next_multiple_of(ALIGN).ok_or(Status::OUT_OF_MEMORY)?;
        let used = self.count(size)?;
        let kept = self.kept().take(whole, stream);
        let allocate = || {
            let device = self.device()?;
            make_room(device, || device.heap.allocate(whole))
        };
        let address = kept.map_or_else(allocate, Ok).inspect_err(|_| {
            self.used.fetch_sub(size, Ordering::Relaxed);
        })?;
        self.used_max.fetch_max(used, Ordering::Relaxed);
        self.reserved_max.fetch_max(used + self.kept().bytes, Ordering::Relaxed);
        Ok(address)
    }

    /// Counts an allocation, if the limit allows it; returns the bytes in use with it.
    fn count(&self, size: u64) -> Result<u64> {
        let add = |used: u64| used.checked_add(size).filter(|sum| *sum <= self.bytes_max);
        let before = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        Ok(before.map_err(|_| Status::OUT_OF_MEMORY)? + size)
    }

    /// Takes memory back that [`Self::allocate`] gave for `size` bytes; it is free when the stream
    /// has come to the ticket.
    pub(crate) fn take_back(&self, address: u64, size: u64, stream: u64, ticket: Arc<Ticket>) {
        self.used.fetch_sub(size, Ordering::Relaxed);
        let mut kept = self.kept();
        kept.put(size.next_multiple_of(ALIGN), Freed { address, stream, ticket });
        if kept.bytes > self.release_threshold.load(Ordering::Relaxed) {
            EXCESS.store(true, Ordering::Relaxed);
        }
    }

    /// Gives memory back until at most `bytes` are kept, or only such as streams may still use.
    pub(crate) fn trim(&self, bytes: u64) {
        let Ok(device) = self.device() else { return };
        let mut kept = self.kept();
        while kept.bytes > bytes {
            let Some((size, address)) = kept.take_largest() else { return };
            device.heap.release(address, size);
        }
    }

    /// Whether the streams have come to all frees of its memory.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.kept().by_size.values().flatten().all(|freed| freed.ticket.is_done())
    }

    /// The threshold up to which memory is kept over a wait.
    fn release_threshold(&self) -> u64 {
        self.release_threshold.load(Ordering::Relaxed)
    }

    /// The place of an attribute, and whether it is 64 bits wide (the others are 32).
    fn attribute(&self, attribute: CUmemPool_attribute) -> Result<(&AtomicU64, bool)> {
        Ok(match attribute {
            CUmemPool_attribute::REUSE_FOLLOW_EVENT_DEPENDENCIES => (&self.reuse[0], false),
            CUmemPool_attribute::REUSE_ALLOW_OPPORTUNISTIC => (&self.reuse[1], false),
            CUmemPool_attribute::REUSE_ALLOW_INTERNAL_DEPENDENCIES => (&self.reuse[2], false),
            CUmemPool_attribute::RELEASE_THRESHOLD => (&self.release_threshold, true),
            // What is kept comes on top of what is used where the first of these is read.
            CUmemPool_attribute::RESERVED_MEM_CURRENT | CUmemPool_attribute::USED_MEM_CURRENT => {
                (&self.used, true)
            }
            CUmemPool_attribute::RESERVED_MEM_HIGH => (&self.reserved_max, true),
            CUmemPool_attribute::USED_MEM_HIGH => (&self.used_max, true),
            _ => return Err(Status::INVALID_VALUE),
        })
    }

    /// An attribute's value, and whether it is 64 bits wide.
    pub(crate) fn get_attribute(&self, attribute: CUmemPool_attribute) -> Result<(u64, bool)> {
        let (place, is_wide) = self.attribute(attribute)?;
        let is_reserved = attribute == CUmemPool_attribute::RESERVED_MEM_CURRENT;
        let kept = if is_reserved { self.kept().bytes } else { 0 };
        Ok((place.load(Ordering::Relaxed) + kept, is_wide))
    }

    /// Whether an attribute that can be set is 64 bits wide.
    pub(crate) fn is_wide(&self, attribute: CUmemPool_attribute) -> Result<bool> {
        Ok(self.attribute(attribute)?.1)
    }

    pub(crate) fn set_attribute(&self, attribute: CUmemPool_attribute, value: u64) -> Result<()> {
        let (place, _) = self.attribute(attribute)?;
        match attribute {
            CUmemPool_attribute::USED_MEM_CURRENT | CUmemPool_attribute::RESERVED_MEM_CURRENT => {
                return Err(Status::INVALID_VALUE);
            }
            CUmemPool_attribute::USED_MEM_HIGH | CUmemPool_attribute::RESERVED_MEM_HIGH => {
                // The only value allowed is 0: start the high-water mark again from now.
                if value != 0 {
                    return Err(Status::INVALID_VALUE);
                }
                place.store(self.used.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            _ => place.store(value, Ordering::Relaxed),
        }
        Ok(())
    }
}

impl Drop for Pool {
    /// Who destroys a pool waits first. What streams have yet to come to then is of frees that came
    /// at the same time: the device's own pool keeps it.
    fn drop(&mut self) {
        self.trim(0);
        let left = std::mem::take(&mut *self.kept());
        let Some(device) = self.device().ok().filter(|_| left.bytes > 0) else { return };
        let own = Self::default_of(device);
        for (size, freed) in left.by_size {
            freed.into_iter().for_each(|freed| own.kept().put(size, freed));
        }
        EXCESS.store(true, Ordering::Relaxed);
    }
}

impl Kept {
    /// Memory of this size that work of the stream, by id, may use.
    fn take(&mut self, size: u64, stream: u64) -> Option<u64> {
        let freed = self.by_size.get_mut(&size)?;
        let usable = |freed: &Freed| freed.stream == stream || freed.ticket.is_done();
        let address = freed.swap_remove(freed.iter().rposition(usable)?).address;
        self.bytes -= size;
        Some(address)
    }

    /// Size and address of the largest piece that no stream uses any more.
    fn take_largest(&mut self) -> Option<(u64, u64)> {
        let done = |freed: &Freed| freed.ticket.is_done();
        let largest = self.by_size.iter_mut().rev();
        let (size, address) = largest
            .filter_map(|(&size, freed)| {
                let place = freed.iter().rposition(done)?;
                Some((size, freed.swap_remove(place).address))
            })
            .next()?;
        self.bytes -= size;
        Some((size, address))
    }

    fn put(&mut self, size: u64, freed: Freed) {
        self.bytes += size;
        self.by_size.entry(size).or_default().push(freed);
    }
}

/// Takes memory of a device by `take`; where there is none left, what its pools keep is freed.
pub(crate) fn make_room<T>(device: &Device, take: impl Fn() -> Result<T>) -> Result<T> {
    take().or_else(|_| {
        POOLS.all().iter().filter(|pool| pool.device == device.ordinal).for_each(|pool| pool.trim(0));
        take()
    })
}

/// The program has waited: pools give back what they keep beyond their thresholds.
pub(crate) fn waited() {
    if EXCESS.swap(false, Ordering::Relaxed) {
        POOLS.all().iter().for_each(|pool| pool.trim(pool.release_threshold()));
    }
}
