//! Memory that programs know by address: what lies where, and copies and fills of it. This file
//! makes and frees every kind of it: device, pool, pinned host and managed memory.

pub(crate) mod allocation;
pub(crate) mod copy;
pub(crate) mod tiles;

use sluice_cuda::CUdevice_attribute;

use crate::base::status::{Result, Status};
use crate::base::ticket::Ticket;
use crate::context::Context;
use crate::device::account;
use crate::device::address_space::{CHUNK, space};
use crate::device::heap;
use crate::device::pool::{self, POOLS};
use crate::device::{Device, driver};
use crate::memory::allocation::{Allocation, Kind};

/// `cuMemAlloc`: `size` bytes of the context's device.
pub(crate) fn allocate(context: &Context, size: u64) -> Result<u64> {
    allocate_as(context, size, Kind::Device)
}

/// Device memory entered as `kind`.
pub(crate) fn allocate_as(context: &Context, size: u64, kind: Kind) -> Result<u64> {
    if size == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let address = pool::make_room(context.device, || context.device.heap.allocate(size))?;
    allocation::insert(address, size, kind, context.owner(), context.device.ordinal);
    Ok(address)
}

/// Pinned host memory lies in the device address range too, so kernels reach it by the same
/// address. It is the machine's memory, not the device's, and not accounted to it.
pub(crate) fn allocate_host(context: &Context, size: u64, flags: u32) -> Result<u64> {
    allocate_on_host(context, size, Kind::Host(flags))
}

/// `cuMemAllocManaged`: host and device are one here. Who cannot share that with the program says
/// so by the device's attribute.
pub(crate) fn allocate_managed(context: &Context, size: u64) -> Result<u64> {
    if context.device.attribute(CUdevice_attribute::MANAGED_MEMORY) == 0 {
        return Err(Status::NOT_SUPPORTED);
    }
    allocate_on_host(context, size, Kind::Managed)
}

fn allocate_on_host(context: &Context, size: u64, kind: Kind) -> Result<u64> {
    if size == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let whole = heap::whole_chunks(size)?;
    let address = match kind {
        // Away from device memory: where a module's variables lie must not depend on what a node
        // has staged by then, else a session that is replayed has other addresses.
        Kind::Host(_) => heap::map_hidden_chunks(whole)?,
        _ => heap::map_chunks(whole)?,
    };
    allocation::insert(address, size, kind, context.owner(), context.device.ordinal);
    Ok(address)
}

/// The free of an allocation that no pool takes back, or in a graph, when the stream has come to
/// it. The address was checked on submission.
pub(crate) fn free_from_pool(address: u64) {
    if let Some(freed) = allocation::remove(address, |_| true) {
        release(&freed);
    }
}

/// Gives back the memory of an allocation that the program cannot name any more.
pub(crate) fn release(freed: &Allocation) {
    let Ok(driver) = driver() else { return };
    let Some(device) = driver.devices.get(freed.device) else { return };
    match freed.kind {
        Kind::Device | Kind::Array => device.heap.release(freed.base, freed.size),
        Kind::Global | Kind::ManagedGlobal => account::release(device, freed.base, freed.size),
        Kind::Pool(pool) => match POOLS.get(pool) {
            // A caller that frees without a stream has waited.
            Some(pool) => pool.take_back(freed.base, freed.size, 0, Ticket::completed()),
            None => device.heap.release(freed.base, freed.size),
        },
        Kind::Host(_) | Kind::Managed => {
            if let Ok(space) = space() {
                space.give(freed.base, freed.size.next_multiple_of(CHUNK));
            }
        }
        Kind::ArrayName => tiles::forget(freed.base, freed.size),
        // The mapping holds its memory by itself; it goes with `cuMemUnmap`.
        Kind::Mapped(_) => {}
    }
}

/// Free and total bytes of a device.
pub(crate) fn info(device: &Device) -> (u64, u64) {
    (device.heap.free(), device.heap.total())
}
