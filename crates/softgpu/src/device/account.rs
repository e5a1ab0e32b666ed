//! Charging device memory that the driver takes for itself.
//!
//! Most device memory is asked for by a call that names its size, and the caller can charge it
//! beforehand. The rest comes out of what a program loads, launches and sets: a module's
//! variables, the local memory of its kernels, the heap of device-side `malloc`. All of that goes
//! through [`charge`], and through no other place.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::base::status::{Result, Status};
use crate::device::address_space::{CHUNK, space};
use crate::device::heap::{self, Chunk};
use crate::device::pool;
use crate::device::{DEVICES_MAX, Device};

/// An account from which the driver takes the device memory that it needs for itself.
pub trait DeviceMemoryAccount: Send + Sync {
    /// Takes `bytes` of the device with this ordinal; `false` if the account does not have them.
    fn take(&self, ordinal: usize, bytes: u64) -> bool;
    /// Returns bytes that were taken.
    fn give_back(&self, ordinal: usize, bytes: u64);
}

static ACCOUNT: OnceLock<Box<dyn DeviceMemoryAccount>> = OnceLock::new();

/// Sets the account; only the first one counts. Without one the size of the device is the only
/// limit.
pub fn set_device_memory_account(account: Box<dyn DeviceMemoryAccount>) {
    let _ = ACCOUNT.set(account);
}

/// Device memory that the driver has taken for itself, until this is dropped.
pub(crate) struct Charge {
    device: &'static Device,
    bytes: u64,
}

/// Charges the device and the account; `OUT_OF_MEMORY` if either has too little left.
pub(crate) fn charge(device: &'static Device, bytes: u64) -> Result<Charge> {
    pool::make_room(device, || device.heap.charge(bytes))?;
    // From here on the device gets its bytes back when `charge` is dropped.
    let mut charge = Charge { device, bytes: 0 };
    match ACCOUNT.get().is_none_or(|account| account.take(device.ordinal, bytes)) {
        true => charge.bytes = bytes,
        false => {
            device.heap.refund(bytes);
            return Err(Status::OUT_OF_MEMORY);
        }
    }
    Ok(charge)
}

impl Charge {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.device.heap.refund(self.bytes);
        if let Some(account) = ACCOUNT.get() {
            account.give_back(self.device.ordinal, self.bytes);
        }
    }
}

/// What a device's driver has allocated for itself by address: small pieces share chunks, a larger
/// one has chunks of its own.
struct Own {
    /// Chunks that small allocations share, by address.
    shared: BTreeMap<u64, (Chunk, Charge)>,
    /// Allocations that have chunks of their own, by address.
    whole: BTreeMap<u64, Charge>,
}

/// By the devices' ordinals.
static OWN: [Mutex<Own>; DEVICES_MAX] =
    [const { Mutex::new(Own { shared: BTreeMap::new(), whole: BTreeMap::new() }) }; DEVICES_MAX];

fn own_of(device: &Device) -> MutexGuard<'static, Own> {
    OWN[device.ordinal].lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes that the driver has taken for what it allocates by address, the variables of modules, on
/// the device with this ordinal.
pub fn own_memory(ordinal: i32) -> u64 {
    let Ok(device) = crate::device::device(ordinal) else { return 0 };
    let own = own_of(device);
    let shared = own.shared.values().map(|(_, charge)| charge.bytes);
    shared.chain(own.whole.values().map(|charge| charge.bytes)).sum()
}

/// The address of `size` bytes (not zero) that are charged.
pub(crate) fn allocate(device: &'static Device, size: u64) -> Result<u64> {
    let is_small = size <= heap::SHARED_MAX;
    let found = || own_of(device).shared.values_mut().find_map(|(chunk, _)| chunk.take(size));
    if let Some(address) = is_small.then(found).flatten() {
        return Ok(address);
    }
    let whole = heap::whole_chunks(size)?;
    // The account may be another process, which is asked without the lock.
    let charge = charge(device, whole)?;
    let base = heap::map_chunks(whole)?;
    let mut own = own_of(device);
    if !is_small {
        own.whole.insert(base, charge);
        return Ok(base);
    }
    let (chunk, _) = own.shared.entry(base).or_insert((Chunk::new(base), charge));
    chunk.take(size).ok_or(Status::OUT_OF_MEMORY)
}

/// Frees what [`allocate`] returned for `size` bytes.
pub(crate) fn release(device: &Device, address: u64, size: u64) {
    let Ok(space) = space() else { return };
    let mut own = own_of(device);
    let base = address / CHUNK * CHUNK;
    let (bytes, gone) = match own.shared.get_mut(&base) {
        Some((chunk, _)) => {
            if !chunk.give(address, size) {
                return;
            }
            (CHUNK, own.shared.remove(&base).map(|(_, charge)| charge))
        }
        None => (size.next_multiple_of(CHUNK), own.whole.remove(&address)),
    };
    // The account is notified once the memory is free.
    if gone.is_some() {
        space.give(base, bytes);
    }
    drop(own);
    drop(gone);
}
