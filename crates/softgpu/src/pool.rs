//! Memory pools (CUDA Driver API, Stream Ordered Memory Allocator).
//!
//! A pool here keeps nothing back: freed memory goes straight to the device's allocator, so every release
//! threshold is honoured and the attributes about reuse change nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluice_cuda::{CUmemPool_attribute, CUmemoryPool};

use crate::device::{Device, driver};
use crate::status::{Result, Status};
use crate::table::Table;

pub(crate) static POOLS: Table<Pool> = Table::new(4);

pub(crate) struct Pool {
    pub(crate) handle: usize,
    device: usize,
    /// Whether it is a device's own pool, which cannot be destroyed.
    pub(crate) is_default: bool,
    pub(crate) used: AtomicU64,
    used_max: AtomicU64,
    release_threshold: AtomicU64,
    /// The three reuse policies, on unless the program says otherwise.
    reuse: [AtomicU64; 3],
}

impl Pool {
    pub(crate) fn create(device: &Device, is_default: bool) -> Arc<Self> {
        POOLS.insert(|handle| Self {
            handle,
            device: device.ordinal,
            is_default,
            used: AtomicU64::new(0),
            used_max: AtomicU64::new(0),
            release_threshold: AtomicU64::new(0),
            reuse: [const { AtomicU64::new(1) }; 3],
        })
    }

    /// The pool with this handle.
    pub(crate) fn get(handle: CUmemoryPool) -> Result<Arc<Self>> {
        POOLS.get(handle.0).ok_or(Status::INVALID_VALUE)
    }

    /// The pool that a device allocates from unless told otherwise.
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
        own.unwrap_or_else(|| Self::create(device, true))
    }

    pub(crate) fn device(&self) -> Result<&'static Device> {
        driver()?.devices.get(self.device).ok_or(Status::INVALID_DEVICE)
    }

    /// Counts an allocation of `size` bytes.
    pub(crate) fn count(&self, size: u64) {
        let used = self.used.fetch_add(size, Ordering::Relaxed) + size;
        self.used_max.fetch_max(used, Ordering::Relaxed);
    }

    /// The place of an attribute, and whether it is 64 bits wide (the others are 32).
    fn attribute(&self, attribute: CUmemPool_attribute) -> Result<(&AtomicU64, bool)> {
        Ok(match attribute {
            CUmemPool_attribute::REUSE_FOLLOW_EVENT_DEPENDENCIES => (&self.reuse[0], false),
            CUmemPool_attribute::REUSE_ALLOW_OPPORTUNISTIC => (&self.reuse[1], false),
            CUmemPool_attribute::REUSE_ALLOW_INTERNAL_DEPENDENCIES => (&self.reuse[2], false),
            CUmemPool_attribute::RELEASE_THRESHOLD => (&self.release_threshold, true),
            // Nothing is kept back, so what is reserved is what is used.
            CUmemPool_attribute::USED_MEM_CURRENT | CUmemPool_attribute::RESERVED_MEM_CURRENT => {
                (&self.used, true)
            }
            CUmemPool_attribute::USED_MEM_HIGH | CUmemPool_attribute::RESERVED_MEM_HIGH => {
                (&self.used_max, true)
            }
            _ => return Err(Status::INVALID_VALUE),
        })
    }

    /// An attribute's value, and whether it is 64 bits wide.
    pub(crate) fn get_attribute(&self, attribute: CUmemPool_attribute) -> Result<(u64, bool)> {
        let (place, is_wide) = self.attribute(attribute)?;
        Ok((place.load(Ordering::Relaxed), is_wide))
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
