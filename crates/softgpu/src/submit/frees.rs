//! Frees, which wait for work that may use the memory or take their turn in a stream, and
//! allocations in the order of a stream.

use std::sync::Arc;

use sluice_cuda::{CUarray, CUmipmappedArray};

use crate::base::status::{Result, Status};
use crate::base::ticket::Ticket;
use crate::context::Context;
use crate::device::pool::{POOLS, Pool};
use crate::image::{array, texture};
use crate::memory::allocation::{self, Allocation, Kind};
use crate::memory::release;
use crate::submit::Target;
use crate::work::engine;
use crate::work::op::Op;

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

/// `cuMemFreeAsync`. From now on the address is not in use; its memory is free when the stream has
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

/// Destroys an array once the work of its context that may still use it is done.
pub(crate) fn destroy_array(handle: CUarray) -> Result<()> {
    let array = array::array(handle)?;
    if array.is_level {
        return Err(Status::INVALID_HANDLE);
    }
    engine::wait_context(array.context);
    array::destroy(handle)
}

/// As [`destroy_array`]; the levels go with it.
pub(crate) fn destroy_mipmapped_array(handle: CUmipmappedArray) -> Result<()> {
    engine::wait_context(array::mipmapped(handle)?.context);
    array::destroy_mipmapped(handle)
}

/// Destroys a texture or surface object once the work of its context that may still use it is done;
/// `is_texture` says which kind it has to be.
pub(crate) fn destroy_object(object: u64, is_texture: bool) -> Result<()> {
    let known = texture::find(object)?;
    if known.sampling.is_some() != is_texture {
        return Err(Status::INVALID_VALUE);
    }
    engine::wait_context(known.context);
    texture::destroy(object);
    Ok(())
}
