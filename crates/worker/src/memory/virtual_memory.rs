//! Memory that programs make and map themselves, at addresses inside the session's reservation.
//!
//! The client answers for reservations; what reaches the node is physical memory, which the lease
//! pays for, and where it is mapped. Every mapping is entered in the session's map of chunks, like
//! the session's own memory, and so can neither replace that nor leave the reservation.

use std::collections::BTreeSet;
use std::sync::Arc;

use sluice_cuda::{
    CU_MEM_CREATE_USAGE_TILE_POOL, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType, CUmemGenericAllocationHandle,
    CUmemLocation, CUmemLocationType, CUresult,
};
use sluice_wire::{DevicePtr, PhysicalId, PhysicalProp, commands};

use crate::arrays::tiles;
use crate::memory::Backing;
use crate::memory::budget::Claim;
use crate::memory::chunks::CHUNK;
use crate::memory::physical::{Mapping, Physical, give_up};
use crate::session::Session;
use crate::session::checks;

const NO_ACCESS: CUmemAccess_flags = CUmemAccess_flags::NONE;
/// What memory can be for (`CU_MEM_CREATE_USAGE_TILE_POOL`, `CU_MEM_CREATE_USAGE_HW_DECOMPRESS`).
const USAGES: u64 = 3;
/// Most devices that one command gives access to.
const ACCESS_MAX: usize = 64;

/// The least size that can be mapped, in bytes: the driver's, or that of the session's own map.
pub(crate) fn granularity(
    session: &Session,
    prop: &PhysicalProp,
    option: CUmemAllocationGranularity_flags,
) -> Result<u64, CUresult> {
    let ask = session.table.cuMemGetAllocationGranularity.ok_or(CUresult::NOT_SUPPORTED)?;
    let options = [CUmemAllocationGranularity_flags::MINIMUM, CUmemAllocationGranularity_flags::RECOMMENDED];
    checks::one_of(option, &options)?;
    let (_, prop) = on_node(session, prop)?;
    let mut granularity = 0;
    // SAFETY: the driver reads the properties and writes one number to a local.
    unsafe { ask(&mut granularity, &prop, option) }.ok()?;
    Ok((granularity as u64).max(CHUNK))
}

pub(crate) fn create(
    session: &Session,
    command: commands::cuMemCreate,
    claim: Claim,
) -> Result<(), CUresult> {
    let create = session.table.cuMemCreate.ok_or(CUresult::NOT_SUPPORTED)?;
    let (gpu, prop) = on_node(session, &command.prop)?;
    let (id, bytes) = (command.handle.0, command.size);
    checks::bits(command.flags, 0)?;
    if bytes == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let size = usize::try_from(bytes).map_err(|_| CUresult::OUT_OF_MEMORY)?;
    tiles::reap(session);
    session.memory.lock().check_vacant(id)?;
    let mut handle = CUmemGenericAllocationHandle::NULL;
    // SAFETY: the driver reads the properties and writes one handle to a local.
    let make = || unsafe { create(&mut handle, size, &prop, command.flags) }.ok();
    // Without the lock: the daemon's answer may have to wait until memory has been moved.
    session.budget.charge(claim, (gpu, bytes), make)?;
    let is_tile_pool = command.prop.usage & CU_MEM_CREATE_USAGE_TILE_POOL != 0;
    let physical = Physical::own(handle, gpu, bytes, is_tile_pool);
    let mut memory = session.memory.lock();
    if let Err(error) = memory.check_vacant(id) {
        drop(memory);
        give_up_unused(session, physical);
        return Err(error);
    }
    memory.physical.insert(id, Arc::new(physical));
    Ok(())
}

/// Physical memory whose number has been taken while it was made, which no honest client does.
fn give_up_unused(session: &Session, physical: Physical) {
    if let Some(release) = session.table.cuMemRelease {
        // SAFETY: made just now and not used; this is its only release.
        let _ = unsafe { release(physical.handle) };
    }
    session.budget.give_back(physical.gpu, physical.bytes);
}

pub(crate) fn release(session: &Session, id: PhysicalId) -> Result<(), CUresult> {
    let release = session.table.cuMemRelease.ok_or(CUresult::NOT_SUPPORTED)?;
    tiles::reap(session);
    let physical = session.memory.lock().physical.remove(&id.0).ok_or(CUresult::INVALID_HANDLE)?;
    // SAFETY: the handle is live until this, its only release; mappings keep the memory.
    unsafe { release(physical.handle) }.ok()?;
    give_up(&session.budget, physical);
    Ok(())
}

pub(crate) fn map(session: &Session, command: commands::cuMemMap) -> Result<(), CUresult> {
    let map = session.table.cuMemMap.ok_or(CUresult::NOT_SUPPORTED)?;
    let (address, bytes) = (command.ptr.0, command.size);
    checks::bits(command.flags, 0)?;
    let mut memory = session.memory.lock();
    let physical = memory.physical.get(&command.handle.0).cloned().ok_or(CUresult::INVALID_HANDLE)?;
    let inside = command.offset.checked_add(bytes).is_some_and(|end| end <= physical.bytes);
    if !inside || !memory.chunks.is_vacant(address, bytes) {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the range is vacant and inside the session's own reservation; the handle is live.
    unsafe { map(address, bytes as usize, command.offset as usize, physical.handle, command.flags) }.ok()?;
    memory.chunks.insert(address, bytes, Backing::Mapped(Mapping { physical, users: BTreeSet::new() }));
    Ok(())
}

fn is_mapped(backing: &Backing) -> bool {
    matches!(backing, Backing::Mapped(_))
}

/// Takes whole mappings away. The program has waited for work that may use them, as CUDA asks.
pub(crate) fn unmap(session: &Session, address: DevicePtr, bytes: u64) -> Result<(), CUresult> {
    let unmap = session.table.cuMemUnmap.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut memory = session.memory.lock();
    let runs = memory.chunks.remove(address.0, bytes, is_mapped).ok_or(CUresult::INVALID_VALUE)?;
    for (start, run) in runs {
        // SAFETY: the range was one mapping until now, and our map names it no more.
        unsafe { unmap(start, run.bytes as usize) }.ok()?;
        if let Backing::Mapped(mapping) = run.backing {
            give_up(&session.budget, mapping.physical);
        }
    }
    Ok(())
}

pub(crate) fn set_access(session: &Session, command: commands::cuMemSetAccess) -> Result<(), CUresult> {
    let set = session.table.cuMemSetAccess.ok_or(CUresult::NOT_SUPPORTED)?;
    if command.desc.is_empty() || command.desc.len() > ACCESS_MAX {
        return Err(CUresult::INVALID_VALUE);
    }
    let desc = command.desc.iter().map(|desc| {
        let (gpu, location) = place(session, desc.location)?;
        checks::one_of(desc.flags, &[NO_ACCESS, CUmemAccess_flags::READ, CUmemAccess_flags::READWRITE])?;
        Ok((gpu, CUmemAccessDesc { location, flags: desc.flags }))
    });
    let (gpus, desc): (Vec<_>, Vec<_>) = desc.collect::<Result<Vec<_>, CUresult>>()?.into_iter().unzip();
    let mut memory = session.memory.lock();
    let (start, bytes) = (command.ptr.0, command.size);
    let mappings = memory.chunks.runs(start, bytes, is_mapped).ok_or(CUresult::INVALID_VALUE)?;
    // SAFETY: the range consists of the session's own mappings; the driver reads as many
    // descriptions as the call says.
    unsafe { set(start, bytes as usize, desc.as_ptr(), desc.len()) }.ok()?;
    for start in mappings {
        let Some((_, _, Backing::Mapped(mapping))) = memory.chunks.run_of(start) else { continue };
        for (gpu, desc) in gpus.iter().zip(&desc) {
            match desc.flags {
                NO_ACCESS => mapping.users.remove(gpu),
                _ => mapping.users.insert(*gpu),
            };
        }
    }
    Ok(())
}

/// A location as the driver knows it, and the GPU's place in the lease.
fn place(session: &Session, location: CUmemLocation) -> Result<(u32, CUmemLocation), CUresult> {
    if location.kind != CUmemLocationType::DEVICE {
        return Err(CUresult::NOT_SUPPORTED);
    }
    let gpu = u32::try_from(location.id).map_err(|_| CUresult::INVALID_DEVICE)?;
    let device = session.devices.get(gpu as usize).ok_or(CUresult::INVALID_DEVICE)?;
    Ok((gpu, CUmemLocation { id: device.ordinal, ..location }))
}

/// The properties as the driver is to get them.
fn on_node(session: &Session, prop: &PhysicalProp) -> Result<(u32, CUmemAllocationProp), CUresult> {
    let (gpu, location) = place(session, prop.location)?;
    let types = prop.handle_types;
    if types != CUmemAllocationHandleType::NONE && types != CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR {
        return Err(CUresult::NOT_SUPPORTED);
    }
    checks::one_of(prop.kind, &[CUmemAllocationType::PINNED])?;
    checks::bits(u64::from(prop.compression_type | prop.gpu_direct_rdma), 1)?;
    checks::bits(prop.usage.into(), USAGES)?;
    Ok((gpu, CUmemAllocationProp { location, ..prop.to_c() }))
}
