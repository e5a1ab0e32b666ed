//! Virtual memory that programs manage themselves: addresses, physical memory, and mappings of one
//! at the other (CUDA Driver API, section "Virtual Memory Management").
//!
//! Addresses come out of the session's reservation, so reserving them and every question about them
//! is answered here. Physical memory of a device is the node's: making it waits, unless that much
//! is allowed anyway. Mapping travels without waiting; what CUDA refuses at once is refused here,
//! before it is sent.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, MutexGuard, PoisonError};

use sluice_cuda::*;
use sluice_wire::{DevicePtr, PhysicalId, PhysicalProp, commands};

use crate::addresses::CHUNK;
use crate::device::Device;
use crate::host_physical::{self, is_host};
use crate::ids::{self, Kind};
use crate::issue::{About, Issue};
use crate::memory::Names;
use crate::session::{self, Session};
use crate::sharing::Imported;
use crate::{across, context, out};

/// What a session's programs have reserved, made and mapped.
#[derive(Debug, Default)]
pub(crate) struct VirtualMemory {
    /// Start to size and the device whose addresses they are.
    reserved: BTreeMap<u64, (u64, CUdevice)>,
    /// By address; mappings never overlap.
    mapped: BTreeMap<u64, Mapping>,
    /// By handle.
    pub(crate) physical: HashMap<u64, Physical>,
    /// Other processes' memory, by the address of the allocation.
    pub(crate) imported: BTreeMap<u64, Imported>,
}

#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    pub(crate) bytes: u64,
    handle: u64,
    pub(crate) access: CUmemAccess_flags,
    /// Of host memory, what the device has there.
    device_side: Option<u64>,
}

/// Physical memory. It is released once nobody holds it and nothing maps it: until then
/// `cuMemRetainAllocationHandle` can bring its handle back.
#[derive(Clone, Debug)]
pub(crate) struct Physical {
    pub(crate) prop: CUmemAllocationProp,
    bytes: u64,
    /// By `cuMemCreate` and each `cuMemRetainAllocationHandle`.
    held: u32,
    mappings: u32,
    /// Of host memory, what is in it.
    file: Option<Arc<OwnedFd>>,
}

impl Physical {
    /// What another process made on this device; its handle is held once.
    pub(crate) fn imported(device: CUdevice, bytes: u64) -> Physical {
        let prop = PhysicalProp {
            kind: CUmemAllocationType::PINNED,
            handle_types: CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR,
            location: CUmemLocation { kind: CUmemLocationType::DEVICE, id: device },
            compression_type: 0,
            gpu_direct_rdma: 0,
            usage: 0,
        };
        Physical { prop: prop.to_c(), bytes, held: 1, mappings: 0, file: None }
    }
}

// SAFETY: the one pointer in `prop` is for Windows; it is never followed.
unsafe impl Send for Physical {}

impl VirtualMemory {
    fn held(&mut self, handle: u64) -> Result<&mut Physical, CUresult> {
        self.physical.get_mut(&handle).filter(|physical| physical.held > 0).ok_or(CUresult::INVALID_VALUE)
    }

    pub(crate) fn is_held(&self, handle: u64) -> bool {
        self.physical.get(&handle).is_some_and(|physical| physical.held > 0)
    }

    /// Device and bytes of physical memory.
    pub(crate) fn size_of(&self, handle: u64) -> Result<(CUdevice, u64), CUresult> {
        let physical = self.physical.get(&handle).ok_or(CUresult::INVALID_VALUE)?;
        Ok((physical.prop.location.id, physical.bytes))
    }

    /// Whether memory was made for other processes, too.
    pub(crate) fn is_shareable(&mut self, handle: u64) -> Result<bool, CUresult> {
        let types = self.held(handle)?.prop.requestedHandleTypes;
        Ok(types.0 & CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR.0 != 0)
    }

    /// Enters addresses that were taken out of a device's space.
    pub(crate) fn reserve(&mut self, start: u64, bytes: u64, device: CUdevice) {
        self.reserved.insert(start, (bytes, device));
    }

    /// Removes physical memory that nobody can name any more; whether it was so.
    fn remove_unused(&mut self, handle: u64) -> bool {
        let unused = self.physical.get(&handle).is_some_and(|it| it.held == 0 && it.mappings == 0);
        if unused {
            self.physical.remove(&handle);
        }
        unused
    }

    /// The reservation that `[address, address + bytes)` lies in.
    fn is_reserved(&self, address: u64, bytes: u64) -> bool {
        self.reserved
            .range(..=address)
            .next_back()
            .is_some_and(|(&start, &(size, _))| within(start, size, address, bytes))
    }

    fn is_vacant(&self, range: &Range<u64>) -> bool {
        let before = self.mapped.range(..range.end).next_back();
        before.is_none_or(|(&start, mapping)| start + mapping.bytes <= range.start)
    }

    pub(crate) fn map(&mut self, address: u64, bytes: u64, handle: u64) -> Result<(), CUresult> {
        check_granular(address)?;
        check_granular(bytes)?;
        if !self.is_reserved(address, bytes) || !self.is_vacant(&(address..address + bytes)) {
            return Err(CUresult::INVALID_VALUE);
        }
        let physical = self.held(handle)?;
        if bytes > physical.bytes {
            return Err(CUresult::INVALID_VALUE);
        }
        if physical.file.is_some() && physical.mappings > 0 {
            crate::say_once!("host memory of cuMemCreate can be mapped at one address at a time");
            return Err(CUresult::NOT_SUPPORTED);
        }
        physical.mappings += 1;
        self.mapped
            .insert(address, Mapping { bytes, handle, access: CUmemAccess_flags::NONE, device_side: None });
        Ok(())
    }

    /// The starts of the mappings that a range consists of exactly.
    fn whole_mappings(&self, address: u64, bytes: u64) -> Result<Vec<u64>, CUresult> {
        let end = address.checked_add(bytes).filter(|_| bytes > 0).ok_or(CUresult::INVALID_VALUE)?;
        let (mut at, mut starts) = (address, Vec::new());
        while at < end {
            let mapping = self.mapped.get(&at).ok_or(CUresult::INVALID_VALUE)?;
            starts.push(at);
            at += mapping.bytes;
        }
        if at == end { Ok(starts) } else { Err(CUresult::INVALID_VALUE) }
    }

    /// Takes mappings away; the node's physical memory that went with the last of them.
    fn unmap(&mut self, address: u64, bytes: u64) -> Result<Vec<u64>, CUresult> {
        let mut unused = Vec::new();
        for start in self.whole_mappings(address, bytes)? {
            let Some(Mapping { handle, device_side, .. }) = self.mapped.remove(&start) else { continue };
            if let Some(physical) = self.physical.get_mut(&handle) {
                physical.mappings -= 1;
            }
            let is_unused = self.remove_unused(handle);
            unused.extend(device_side.or(is_unused.then_some(handle)));
        }
        Ok(unused)
    }

    /// The file behind host memory, which the node does not have.
    fn file_of(&self, handle: u64) -> Option<Arc<OwnedFd>> {
        self.physical.get(&handle)?.file.clone()
    }

    /// The starts of the mappings of host memory that a range consists of.
    fn host_mappings(&self, address: u64, bytes: u64) -> Result<Vec<u64>, CUresult> {
        let starts = self.whole_mappings(address, bytes)?.into_iter();
        Ok(starts.filter(|start| self.mapped[start].device_side.is_some()).collect())
    }

    /// The mapping that `address` lies in, its start, and what it maps.
    pub(crate) fn find(&self, address: u64) -> Option<(u64, &Mapping, &Physical)> {
        let (&start, mapping) = self.mapped.range(..=address).next_back()?;
        let physical = self.physical.get(&mapping.handle)?;
        (address - start < mapping.bytes).then_some((start, mapping, physical))
    }

    /// Start and bytes of the imported allocation that `address` lies in.
    pub(crate) fn imported_at(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, imported) = self.imported.range(..=address).next_back()?;
        (address - start < imported.bytes).then_some((start, imported.bytes))
    }

    /// Whether a copy may use all of a range; neighbouring mappings are one range to a program.
    pub(crate) fn is_accessible(&self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes) else { return false };
        let mut at = address;
        while at < end {
            match self.find(at) {
                Some((start, mapping, _)) if mapping.access != CUmemAccess_flags::NONE => {
                    at = start + mapping.bytes
                }
                _ => return false,
            }
        }
        true
    }
}

fn within(start: u64, size: u64, address: u64, bytes: u64) -> bool {
    address.checked_sub(start).is_some_and(|offset| offset < size && bytes <= size - offset)
}

/// Whether every driver with memory of this kind makes it of any whole chunks: nothing is asked for that a card may not have.
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

fn check_granular(value: u64) -> Result<(), CUresult> {
    if value != 0 && value.is_multiple_of(CHUNK) { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
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
        host_physical::map(self, device, (start, bytes), file)
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

/// The properties that a program passes, if there can be such memory, and the session of its device.
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
        let file = host_physical::make(session, bytes, &prop)?;
        let minted = ids::mint(Kind::Physical);
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
    memory.map(ptr, size as u64, handle.0 as u64).inspect_err(|_| across::explain(session, ptr))?;
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
    of_host.into_iter().try_for_each(|start| host_physical::unmap(session, start))?;
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
    let mut desc = unsafe { crate::issue::list(desc, count as u64)? }.to_vec();
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
