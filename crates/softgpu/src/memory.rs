//! Memory that programs know by address: what lies where, and copies and fills of it. This file
//! makes and frees every kind of it: device, pool, pinned host and managed memory.

pub(crate) mod allocation;
pub(crate) mod copy;
pub(crate) mod tiles;

use std::sync::Arc;

use sluice_cuda::CUdevice_attribute;

use crate::base::status::{Result, Status};
use crate::context::Context;
use crate::context::stream::Target;
use crate::device::account;
use crate::device::address_space::{CHUNK, space};
use crate::device::heap;
use crate::device::pool::{self, POOLS, Pool};
use crate::device::{Device, driver};
use crate::memory::allocation::{Allocation, Kind};
use crate::work::engine;
use crate::work::event::Ticket;
use crate::work::op::Op;

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

/// `cuMemFree`, which waits for the work of the context that may still use the memory.
pub(crate) fn free(context: &Context, address: u64) -> Result<()> {
    let known = allocation::find(address).filter(|a| a.base == address).ok_or(Status::INVALID_VALUE)?;
    match known.kind {
        Kind::Device | Kind::Managed | Kind::Pool(_) => {}
        _ => return Err(Status::INVALID_VALUE),
    }
    engine::wait_context(known.context);
    context.check()?;
    let freed = allocation::remove(address, |a| a.id == known.id).ok_or(Status::INVALID_VALUE)?;
    release(&freed);
    Ok(())
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

/// `cuMemFreeHost`, which waits as [`free`] does.
pub(crate) fn free_host(address: u64) -> Result<()> {
    let is_host = |a: &Allocation| a.base == address && matches!(a.kind, Kind::Host(_));
    let known = allocation::find(address).filter(is_host).ok_or(Status::INVALID_VALUE)?;
    engine::wait_context(known.context);
    let freed = allocation::remove(address, |a| a.id == known.id).ok_or(Status::INVALID_VALUE)?;
    release(&freed);
    Ok(())
}

/// Stream-ordered allocation. The memory is there at once, which is earlier than the stream asks
/// for.
pub(crate) fn allocate_from_pool(target: &Target, pool: &Arc<Pool>, size: u64) -> Result<u64> {
    if size == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let address = pool.allocate(size, target.stream.id)?;
    let (context, device) = (target.context.owner(), pool.device()?.ordinal);
    allocation::insert(address, size, Kind::Pool(pool.handle), context, device);
    Ok(address)
}

/// `cuMemFreeAsync`. From now on the address is nobody's; its memory is free when the stream has
/// come here.
pub(crate) fn free_in_stream(target: &Target, address: u64) -> Result<()> {
    let freeable = |a: &Allocation| a.base == address && matches!(a.kind, Kind::Pool(_) | Kind::Device);
    let known = allocation::find(address).filter(freeable).ok_or(Status::INVALID_VALUE)?;
    let pool = match known.kind {
        Kind::Pool(pool) if target.stream.capture().is_none() => POOLS.get(pool),
        _ => None,
    };
    let Some(pool) = pool else { return target.submit(Op::Free(address)) };
    let ticket = Arc::new(Ticket::default());
    if !allocation::leave(&known, &ticket) {
        return Err(Status::INVALID_VALUE);
    }
    target.submit(Op::Record(Arc::clone(&ticket)))?;
    pool.take_back(known.base, known.size, target.stream.id, ticket);
    Ok(())
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
