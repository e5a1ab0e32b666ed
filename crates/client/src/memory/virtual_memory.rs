//! Virtual memory that programs manage themselves: addresses, physical memory, and mappings of one
//! at the other (CUDA Driver API, section "Virtual Memory Management").
//!
//! Addresses come out of the session's reservation, so reserving them and every question about them
//! is answered here. Physical memory of a device is the node's: making it waits, unless that much
//! is allowed anyway. Mapping travels without waiting; what CUDA refuses at once is refused here,
//! before it is sent.

use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::sync::{Arc, MutexGuard, PoisonError};

use sluice_cuda::*;
use sluice_wire::{DevicePtr, PhysicalId, PhysicalProp, commands};

use crate::abi::ids::{self, Kind};
use crate::abi::out;
use crate::context;
use crate::device::Device;
use crate::host_memory::physical::{self, is_host};
use crate::memory::addresses::CHUNK;
use crate::memory::allocations::Names;
use crate::memory::mappings::{Physical, VirtualMemory, check_granular};
use crate::session::issue::{About, Issue};
use crate::session::{self, Session, other_node};

/// Whether every driver with memory of this kind makes it of any whole chunks: nothing is asked for
/// that a GPU may lack.
fn is_usual(device: &Device, prop: &CUmemAllocationProp) -> bool {
    use CUmemAllocationHandleType as Types;
    let shareable = CUdevice_attribute::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
    let types = match prop.requestedHandleTypes {
        Types::NONE => true,
        Types::POSIX_FILE_DESCRIPTOR => device.attribute(shareable) == Ok(1),
        _ => false,
    };
    let plain = prop.compressionType == 0 && prop.gpuDirectRDMACapable == 0 && prop.usage == 0;
    device.mints_addresses && types && plain && prop.kind == CUmemAllocationType::PINNED
}

impl Session {
    pub(crate) fn virtual_memory(&self) -> MutexGuard<'_, VirtualMemory> {
        self.virtual_memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release_physical(&self, handle: u64) -> Result<(), CUresult> {
        self.queue_quietly(&commands::cuMemRelease { handle: PhysicalId(handle) })
    }

    fn make_physical(
        &self,
        handle: u64,
        bytes: u64,
        prop: &CUmemAllocationProp,
        flags: u64,
    ) -> Result<(), CUresult> {
        let (handle, device) = (PhysicalId(handle), self.device(prop.location.id)?);
        let on_node = self.as_the_node_has_them(prop)?;
        let asked = commands::cuMemCreate { handle, size: bytes, prop: on_node.clone(), flags };
        let _memory = self.memory(device.ordinal)?;
        if flags != 0 || !is_usual(device, prop) {
            return self.call(&asked, |()| ());
        }
        let allowed = commands::PhysicalCreateAllowed { handle, size: bytes, prop: on_node };
        self.use_memory((device.place, bytes), &allowed, &asked)
    }

    /// Gives up one hold on physical memory.
    pub(crate) fn drop_physical(&self, handle: u64) -> Result<(), CUresult> {
        let mut memory = self.virtual_memory();
        memory.held(handle)?.held -= 1;
        let is_here = memory.file_of(handle).is_some();
        if memory.remove_unused(handle) && !is_here { self.release_physical(handle) } else { Ok(()) }
    }

    /// Maps host memory: the device gets memory at these addresses, and the program the file.
    fn map_host(
        &'static self,
        (start, bytes): (u64, u64),
        handle: u64,
        file: &OwnedFd,
    ) -> Result<(), CUresult> {
        let device = {
            let memory = self.virtual_memory();
            let of = memory.reserved.range(..=start).next_back().map(|(_, &(_, device))| device);
            of.ok_or(CUresult::INVALID_VALUE)?
        };
        let prop = Physical::imported(device, bytes).prop;
        let prop = CUmemAllocationProp { requestedHandleTypes: CUmemAllocationHandleType::NONE, ..prop };
        let device_side = ids::mint_on(device, Kind::Physical);
        match self.make_physical(device_side, bytes, &prop, 0) {
            Err(CUresult::OUT_OF_MEMORY) if self.reclaim(device)? => {
                self.make_physical(device_side, bytes, &prop, 0)?
            }
            made => made?,
        }
        {
            let mut memory = self.virtual_memory();
            memory
                .map(start, bytes, handle)
                .or_else(|error| self.release_physical(device_side).and(Err(error)))?;
            if let Some(mapping) = memory.mapped.get_mut(&start) {
                mapping.device_side = Some(device_side);
            }
            self.queue_mapping(&mut memory, start, bytes, device_side, device)?;
        }
        physical::map(self, device, (start, bytes), file)
    }

    /// A place for memory with the device as the node counts it.
    fn as_the_node_has_it(&self, location: CUmemLocation) -> Result<CUmemLocation, CUresult> {
        match location.kind {
            CUmemLocationType::DEVICE => {
                Ok(CUmemLocation { id: self.device(location.id)?.place.into(), ..location })
            }
            _ => Ok(location),
        }
    }

    fn as_the_node_has_them(&self, prop: &CUmemAllocationProp) -> Result<PhysicalProp, CUresult> {
        let location = self.as_the_node_has_it(prop.location)?;
        Ok(PhysicalProp::new(&CUmemAllocationProp { location, ..*prop }))
    }

    /// Tells the node of a mapping that was entered just now, and gives its device all access.
    pub(crate) fn queue_mapping(
        &self,
        memory: &mut VirtualMemory,
        start: u64,
        bytes: u64,
        handle: u64,
        device: CUdevice,
    ) -> Result<(), CUresult> {
        let (ptr, handle) = (DevicePtr(start), PhysicalId(handle));
        self.queue_quietly(&commands::cuMemMap { ptr, size: bytes, offset: 0, handle, flags: 0 })?;
        let flags = CUmemAccess_flags::READWRITE;
        if let Some(mapping) = memory.mapped.get_mut(&start) {
            mapping.access = flags;
        }
        let location = CUmemLocation { kind: CUmemLocationType::DEVICE, id: device };
        let desc = vec![CUmemAccessDesc { location: self.as_the_node_has_it(location)?, flags }];
        self.queue_quietly(&commands::cuMemSetAccess { ptr, size: bytes, desc })
    }
}

/// The properties that a program passes, if there can be such memory, and the session of its
/// device.
///
/// # Safety
/// `prop` is null or points to properties.
unsafe fn checked(
    prop: *const CUmemAllocationProp,
) -> Result<(&'static Session, CUmemAllocationProp), CUresult> {
    if prop.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller vouches for the rest.
    let prop = unsafe { prop.read_unaligned() };
    match prop.location.kind {
        CUmemLocationType::DEVICE => Ok((session::of(prop.location.id)?, prop)),
        _ if is_host(prop.location) => Ok((session::get()?, prop)),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

// The entry points.

pub(crate) unsafe fn cuMemGetAllocationGranularity(
    granularity: *mut usize,
    prop: *const CUmemAllocationProp,
    option: CUmemAllocationGranularity_flags,
) -> Result<(), CUresult> {
    session::get()?;
    // SAFETY: the same contract.
    let (session, prop) = unsafe { checked(prop)? };
    if is_host(prop.location) {
        // SAFETY: the program passes a place for the size.
        return unsafe { out::write(granularity, CHUNK as usize) };
    }
    let command =
        commands::cuMemGetAllocationGranularity { prop: session.as_the_node_has_them(&prop)?, option };
    let bytes = session.ask(About::Nothing, &command, |answer| answer.granularity)?;
    // SAFETY: the program passes a place for the size.
    unsafe { out::write(granularity, bytes as usize) }
}

pub(crate) unsafe fn cuMemAddressReserve(
    ptr: *mut CUdeviceptr,
    size: usize,
    alignment: usize,
    addr: CUdeviceptr,
    flags: u64,
) -> Result<(), CUresult> {
    let session = session::get()?;
    check_granular(size as u64)?;
    if ptr.is_null() || flags != 0 || (alignment != 0 && !alignment.is_power_of_two()) {
        return Err(CUresult::INVALID_VALUE);
    }
    let device = context::current().map_or(0, |context| context.device);
    let reserved = match &mut session.memory(device)?.names {
        Names::Minted(space) => space.reserve(size as u64, alignment as u64, addr),
        Names::Given(_) => return Err(CUresult::NOT_SUPPORTED),
    };
    let start = reserved.ok_or(CUresult::OUT_OF_MEMORY)?;
    session.virtual_memory().reserved.insert(start, (size as u64, device));
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(ptr, start) }
}

pub(crate) unsafe fn cuMemAddressFree(ptr: CUdeviceptr, size: usize) -> Result<(), CUresult> {
    let session = session::get()?;
    let device = {
        let mut memory = session.virtual_memory();
        let (bytes, device) = *memory.reserved.get(&ptr).ok_or(CUresult::INVALID_VALUE)?;
        if bytes != size as u64 || !memory.is_vacant(&(ptr..ptr + bytes)) {
            return Err(CUresult::INVALID_VALUE);
        }
        memory.reserved.remove(&ptr);
        device
    };
    if let Names::Minted(space) = &mut session.memory(device)?.names {
        space.unreserve(ptr, size as u64);
    }
    Ok(())
}

pub(crate) unsafe fn cuMemCreate(
    handle: *mut CUmemGenericAllocationHandle,
    size: usize,
    prop: *const CUmemAllocationProp,
    flags: u64,
) -> Result<(), CUresult> {
    session::get()?;
    // SAFETY: the same contract.
    let (session, prop) = unsafe { checked(prop)? };
    let bytes = size as u64;
    check_granular(bytes)?;
    if handle.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    if is_host(prop.location) {
        let file = physical::make(session, bytes, &prop)?;
        let minted = context::mint(Kind::Physical);
        let physical = Physical { prop, bytes, held: 1, mappings: 0, file: Some(Arc::new(file)) };
        session.virtual_memory().physical.insert(minted, physical);
        // SAFETY: not null, and the program's to be written.
        return unsafe { out::write(handle, CUmemGenericAllocationHandle(minted as usize)) };
    }
    let minted = ids::mint_on(prop.location.id, Kind::Physical);
    match session.make_physical(minted, bytes, &prop, flags) {
        Err(CUresult::OUT_OF_MEMORY) if session.reclaim(prop.location.id)? => {
            session.make_physical(minted, bytes, &prop, flags)?
        }
        other => other?,
    }
    let physical = Physical { prop, bytes, held: 1, mappings: 0, file: None };
    session.virtual_memory().physical.insert(minted, physical);
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(handle, CUmemGenericAllocationHandle(minted as usize)) }
}

pub(crate) unsafe fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> Result<(), CUresult> {
    session::get()?.drop_physical(handle.0 as u64)
}

pub(crate) unsafe fn cuMemRetainAllocationHandle(
    handle: *mut CUmemGenericAllocationHandle,
    addr: *mut c_void,
) -> Result<(), CUresult> {
    let session = session::of_address(addr as u64).map_or_else(session::get, session::of)?;
    let mut memory = session.virtual_memory();
    let (_, mapping, _) = memory.find(addr as u64).ok_or(CUresult::INVALID_VALUE)?;
    let found = mapping.handle;
    // SAFETY: the program passes a place for the handle.
    unsafe { out::write(handle, CUmemGenericAllocationHandle(found as usize))? };
    if let Some(physical) = memory.physical.get_mut(&found) {
        physical.held = physical.held.saturating_add(1);
    }
    Ok(())
}

pub(crate) unsafe fn cuMemGetAllocationPropertiesFromHandle(
    prop: *mut CUmemAllocationProp,
    handle: CUmemGenericAllocationHandle,
) -> Result<(), CUresult> {
    let found = session::get()?.virtual_memory().held(handle.0 as u64)?.prop;
    // SAFETY: the program passes a place for the properties.
    unsafe { out::write(prop, found) }
}

/// `offset` has to be zero: CUDA's documentation says so, too.
pub(crate) unsafe fn cuMemMap(
    ptr: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> Result<(), CUresult> {
    let session = session::get()?;
    if offset != 0 || flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let file = session.virtual_memory().file_of(handle.0 as u64);
    if let Some(file) = file {
        return session.map_host((ptr, size as u64), handle.0 as u64, &file);
    }
    // The lock is held while the command is queued, so that the log has the order of the table.
    let mut memory = session.virtual_memory();
    memory.map(ptr, size as u64, handle.0 as u64).inspect_err(|_| other_node::explain(session, ptr))?;
    session.queue_quietly(&commands::cuMemMap {
        ptr: DevicePtr(ptr),
        size: size as u64,
        offset: 0,
        handle: PhysicalId(handle.0 as u64),
        flags,
    })
}

pub(crate) unsafe fn cuMemUnmap(ptr: CUdeviceptr, size: usize) -> Result<(), CUresult> {
    let session = session::get()?;
    let of_host = session.virtual_memory().host_mappings(ptr, size as u64)?;
    of_host.into_iter().try_for_each(|start| physical::unmap(session, start))?;
    let mut memory = session.virtual_memory();
    let unused = memory.unmap(ptr, size as u64)?;
    session.queue_quietly(&commands::cuMemUnmap { ptr: DevicePtr(ptr), size: size as u64 })?;
    unused.into_iter().try_for_each(|handle| session.release_physical(handle))
}

pub(crate) unsafe fn cuMemSetAccess(
    ptr: CUdeviceptr,
    size: usize,
    desc: *const CUmemAccessDesc,
    count: usize,
) -> Result<(), CUresult> {
    let session = session::get()?;
    // SAFETY: the program passes `count` descriptions.
    let mut desc = unsafe { crate::session::issue::list(desc, count as u64)? }.to_vec();
    let mut memory = session.virtual_memory();
    let starts = memory.whole_mappings(ptr, size as u64)?;
    for start in &starts {
        let (_, _, physical) = memory.find(*start).ok_or(CUresult::INVALID_VALUE)?;
        desc.iter().try_for_each(|desc| check_access(desc, physical.prop.location))?;
    }
    // The program's own side of host memory is always there.
    desc.retain(|desc| !is_host(desc.location));
    if desc.is_empty() && count > 0 {
        return Ok(());
    }
    let Some(last) = desc.last() else { return Err(CUresult::INVALID_VALUE) };
    for start in starts {
        if let Some(mapping) = memory.mapped.get_mut(&start) {
            mapping.access = last.flags;
        }
    }
    for desc in &mut desc {
        desc.location = session.as_the_node_has_it(desc.location)?;
    }
    session.queue_quietly(&commands::cuMemSetAccess { ptr: DevicePtr(ptr), size: size as u64, desc })
}

/// Only a device itself gets access to its memory: peers have none here, as `cuDeviceCanAccessPeer`
/// says. Host memory is the program's, and that of the devices that have the addresses of its
/// mapping.
fn check_access(desc: &CUmemAccessDesc, memory: CUmemLocation) -> Result<(), CUresult> {
    let flags = [CUmemAccess_flags::NONE, CUmemAccess_flags::READ, CUmemAccess_flags::READWRITE];
    if !flags.contains(&desc.flags) {
        return Err(CUresult::INVALID_VALUE);
    }
    match desc.location.kind {
        CUmemLocationType::DEVICE if is_host(memory) || desc.location.id == memory.id => Ok(()),
        CUmemLocationType::DEVICE => Err(CUresult::PEER_ACCESS_UNSUPPORTED),
        _ if is_host(desc.location) && is_host(memory) => Ok(()),
        _ if is_host(desc.location) => Err(CUresult::NOT_SUPPORTED),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

pub(crate) unsafe fn cuMemGetAccess(
    flags: *mut u64,
    location: *const CUmemLocation,
    ptr: CUdeviceptr,
) -> Result<(), CUresult> {
    let session = session::get()?;
    if location.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and the program passes a location.
    let location = unsafe { location.read_unaligned() };
    let memory = session.virtual_memory();
    let (_, mapping, physical) = memory.find(ptr).ok_or(CUresult::INVALID_VALUE)?;
    let is_its = location == physical.prop.location || is_host(physical.prop.location);
    let access = if is_its { mapping.access } else { CUmemAccess_flags::NONE };
    // SAFETY: the program passes a place for the flags.
    unsafe { out::write(flags, u64::from(access.0)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x2000_0000_0000;

    fn memory() -> VirtualMemory {
        let mut memory = VirtualMemory::default();
        memory.reserved.insert(BASE, (8 * CHUNK, 0));
        for handle in [1, 2] {
            let prop = PhysicalProp {
                kind: CUmemAllocationType::PINNED,
                handle_types: CUmemAllocationHandleType::NONE,
                location: CUmemLocation { kind: CUmemLocationType::DEVICE, id: 0 },
                compression_type: 0,
                gpu_direct_rdma: 0,
                usage: 0,
            };
            let physical = Physical { prop: prop.to_c(), bytes: 2 * CHUNK, held: 1, mappings: 0, file: None };
            memory.physical.insert(handle, physical);
        }
        memory
    }

    #[test]
    fn only_reserved_vacant_whole_chunks_are_mapped() {
        let mut memory = memory();
        memory.map(BASE, 2 * CHUNK, 1).unwrap();
        for (address, bytes, handle) in [
            (BASE, 2 * CHUNK, 2),
            (BASE + CHUNK, 2 * CHUNK, 2),
            (BASE + 7 * CHUNK, 2 * CHUNK, 2),
            (BASE + 2 * CHUNK, CHUNK / 2, 2),
            (BASE + 2 * CHUNK + 4096, CHUNK, 2),
            (BASE + 2 * CHUNK, 4 * CHUNK, 2),
            (BASE + 2 * CHUNK, 2 * CHUNK, 3),
            (BASE + 2 * CHUNK, u64::MAX - CHUNK + 1, 2),
        ] {
            let refused = memory.map(address, bytes, handle);
            assert_eq!(refused, Err(CUresult::INVALID_VALUE), "{address:#x} {bytes:#x} {handle}");
        }
        memory.map(BASE + 2 * CHUNK, 2 * CHUNK, 2).unwrap();
    }

    #[test]
    fn copies_span_neighbouring_mappings_with_access() {
        let mut memory = memory();
        memory.map(BASE, 2 * CHUNK, 1).unwrap();
        memory.map(BASE + 2 * CHUNK, 2 * CHUNK, 2).unwrap();
        assert!(!memory.is_accessible(BASE, 1));
        for start in memory.whole_mappings(BASE, 4 * CHUNK).unwrap() {
            memory.mapped.get_mut(&start).unwrap().access = CUmemAccess_flags::READWRITE;
        }
        assert!(memory.is_accessible(BASE + CHUNK, 3 * CHUNK));
        assert!(!memory.is_accessible(BASE + CHUNK, 3 * CHUNK + 1));
        assert!(!memory.is_accessible(u64::MAX, 2));
    }

    #[test]
    fn physical_memory_goes_with_its_last_handle_and_mapping() {
        let mut memory = memory();
        memory.map(BASE, 2 * CHUNK, 1).unwrap();
        memory.held(1).unwrap().held -= 1;
        assert!(!memory.remove_unused(1), "still mapped");
        assert!(memory.held(1).is_err(), "but no handle names it");
        assert_eq!(memory.unmap(BASE, CHUNK), Err(CUresult::INVALID_VALUE));
        assert_eq!(memory.unmap(BASE, 2 * CHUNK), Ok(vec![1]));
        assert_eq!(memory.unmap(BASE, 2 * CHUNK), Err(CUresult::INVALID_VALUE));
    }
}
