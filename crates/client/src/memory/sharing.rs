//! Memory and events shared between processes of one lease (CUDA Driver API, sections "Memory
//! Management" for IPC, "Virtual Memory Management" and "Stream Ordered Memory Allocator" for
//! shareable handles).
//!
//! What a program hands to another process is a name of 64 bytes: directly where CUDA's handle has
//! that size, as the contents of an unnamed file where it is a file descriptor. In it is a number
//! that the node has drawn; only sessions of the same lease find something under it. Imported
//! memory is mapped like memory that the program maps itself.

use std::ffi::c_void;
use std::fs::File;
use std::io::Write;
use std::os::fd::{FromRawFd, IntoRawFd, RawFd};
use std::os::unix::fs::FileExt;

use sluice_cuda::*;
use sluice_wire::{DevicePtr, EventId, ExportToken, PhysicalId, commands};

use crate::abi::ids::Kind;
use crate::abi::out;
use crate::context;
use crate::memory::addresses::CHUNK;
use crate::memory::allocations::Names;
use crate::memory::mappings::{self, Imported, Physical};
use crate::memory::pool;
use crate::session::issue::{Issue, wanted};
use crate::session::{self, Session};
use crate::stream::event;

/// What a name is a name of: its first eight bytes.
type What = [u8; 8];
const ALLOCATION: What = *b"sluice:a";
const PHYSICAL: What = *b"sluice:m";
const EVENT: What = *b"sluice:e";
const POOL: What = *b"sluice:p";
const POOL_ALLOCATION: What = *b"sluice:q";

/// A name of something shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name {
    token: ExportToken,
    /// What they say depends on what it is a name of.
    words: [u64; 3],
}

impl Name {
    fn to_bytes(self, what: What) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&what);
        bytes[8..40].copy_from_slice(&self.token.0);
        for (place, word) in bytes[40..].chunks_exact_mut(8).zip(self.words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// `None` for bytes that are no such name.
    fn from_bytes(what: What, bytes: &[u8; 64]) -> Option<Name> {
        let rest = bytes.strip_prefix(&what)?;
        let (token, rest) = rest.split_first_chunk()?;
        let mut words = rest.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
        Some(Name { token: ExportToken(*token), words: std::array::from_fn(|_| words.next().unwrap_or(0)) })
    }

    /// An open file with the name in it.
    fn to_file(self, what: What) -> Result<RawFd, CUresult> {
        // By number: older C libraries have no such function.
        // SAFETY: the name is a C string, and the flags are known to the system.
        let fd = unsafe {
            libc::syscall(libc::SYS_memfd_create, c"sluice shareable handle".as_ptr(), libc::MFD_CLOEXEC)
        };
        let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or(CUresult::OUT_OF_MEMORY)?;
        // SAFETY: opened just now, and this is its only owner.
        let mut file = unsafe { File::from_raw_fd(fd) };
        file.write_all(&self.to_bytes(what)).map_err(|_| CUresult::OUT_OF_MEMORY)?;
        Ok(file.into_raw_fd())
    }

    /// What is in a file that a program got from another process; the descriptor stays the
    /// program's.
    fn from_file(what: What, handle: *mut c_void) -> Result<Name, CUresult> {
        let fd = RawFd::try_from(handle as usize).map_err(|_| CUresult::INVALID_VALUE)?;
        let mut bytes = [0; 64];
        // SAFETY: never dropped, so the descriptor stays open; reading from what is no open one
        // fails.
        let file = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
        // At its start, wherever the other process has left it.
        file.read_exact_at(&mut bytes, 0).map_err(|_| CUresult::INVALID_VALUE)?;
        Name::from_bytes(what, &bytes).ok_or(CUresult::INVALID_VALUE)
    }
}

/// Refuses every kind of handle but file descriptors, which are the only ones that a lease has.
fn check_kind(kind: CUmemAllocationHandleType, flags: u64) -> Result<(), CUresult> {
    match kind {
        _ if flags != 0 => Err(CUresult::INVALID_VALUE),
        CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR => Ok(()),
        _ => Err(CUresult::NOT_SUPPORTED),
    }
}

/// Refuses what lives on another node than the calling thread's device: a number that a node has
/// drawn means nothing to another.
fn check_here(session: &Session, index: u64) -> Result<(), CUresult> {
    if index == u64::from(session.index) {
        return Ok(());
    }
    crate::say_once!(
        "memory and events of another process can only be opened while a device of their node is current"
    );
    Err(CUresult::INVALID_CONTEXT)
}

/// Called before memory is shared. What calls have been answered for is done by then, as others may
/// see it; from now on each waits.
fn begins(session: &Session) -> Result<(), CUresult> {
    if mappings::set_some_shared() {
        return Ok(());
    }
    session.devices.iter().try_for_each(|device| device.synchronize(session))
}

impl Session {
    /// What others of the lease need to import the allocation that starts at `address`.
    fn export_allocation(&self, address: u64, bytes: u64) -> Result<Name, CUresult> {
        begins(self)?;
        let command = commands::AllocationExport { address: DevicePtr(address) };
        let (token, start) = self.call(&command, |answer| (answer.token, answer.start.0))?;
        Ok(Name { token, words: [address - start, bytes, self.index.into()] })
    }

    /// Physical memory that was exported, held once; says whether by this session.
    fn import_physical(&self, token: ExportToken) -> Result<(u64, bool), CUresult> {
        begins(self)?;
        let minted = context::mint(Kind::Physical);
        let command = commands::cuMemImportFromShareableHandle { handle: PhysicalId(minted), token };
        let reply = self.call(&command, |reply| reply)?;
        let device = self.devices.iter().find(|device| u32::from(device.place) == reply.device);
        let device = device.ok_or(CUresult::INVALID_DEVICE)?.ordinal;
        let physical = Physical::imported(device, reply.bytes);
        self.virtual_memory().physical.insert(minted, physical);
        Ok((minted, reply.is_own))
    }

    /// The address of imported memory, mapped now unless it is already. What this session has
    /// exported itself is refused unless it is a pool's, as CUDA refuses it.
    fn open(&self, name: Name, from_pool: bool) -> Result<u64, CUresult> {
        let [offset, bytes, _] = name.words;
        if let Some((&address, imported)) = self
            .virtual_memory()
            .imported
            .iter_mut()
            .find(|(_, it)| (it.name, it.offset, it.from_pool) == (name.token, offset, from_pool))
        {
            imported.opened = imported.opened.checked_add(1).ok_or(CUresult::INVALID_VALUE)?;
            return Ok(address);
        }
        let (handle, is_own) = self.import_physical(name.token)?;
        let mapped = match is_own && !from_pool {
            true => Err(CUresult::INVALID_CONTEXT),
            false => self.map_whole(handle),
        };
        // From here on the mapping alone keeps the memory.
        self.drop_physical(handle)?;
        let (device, start, size) = mapped?;
        let end = offset.checked_add(bytes).filter(|end| *end <= size && bytes > 0);
        let address = start + offset;
        if end.is_none() {
            self.unmap_whole(device, start, size)?;
            return Err(CUresult::INVALID_VALUE);
        }
        let mapping = (start, size);
        let imported = Imported { name: name.token, offset, bytes, device, mapping, from_pool, opened: 1 };
        self.virtual_memory().imported.insert(address, imported);
        Ok(address)
    }

    /// Closes imported memory once; false if nothing of that kind was imported at that address.
    pub(crate) fn close_imported(&self, address: u64, from_pool: bool) -> Result<bool, CUresult> {
        let gone = {
            let mut memory = self.virtual_memory();
            let imported = memory.imported.get_mut(&address).filter(|it| it.from_pool == from_pool);
            let Some(imported) = imported else { return Ok(false) };
            imported.opened -= 1;
            if imported.opened > 0 {
                return Ok(true);
            }
            memory.imported.remove(&address)
        };
        if let Some(Imported { device, mapping: (start, bytes), .. }) = gone {
            self.unmap_whole(device, start, bytes)?;
        }
        Ok(true)
    }

    /// Maps physical memory at addresses of our choice, for reading and writing: its device, where,
    /// and how much.
    fn map_whole(&self, handle: u64) -> Result<(CUdevice, u64, u64), CUresult> {
        let (device, bytes) = self.virtual_memory().size_of(handle)?;
        let reserved = match &mut self.memory(device)?.names {
            Names::Minted(space) => space.reserve(bytes, CHUNK, 0),
            Names::Given(_) => return Err(CUresult::NOT_SUPPORTED),
        };
        let start = reserved.ok_or(CUresult::OUT_OF_MEMORY)?;
        let mut memory = self.virtual_memory();
        memory.reserve(start, bytes, device);
        memory.map(start, bytes, handle)?;
        self.queue_mapping(&mut memory, start, bytes, handle, device)?;
        Ok((device, start, bytes))
    }

    /// Undoes [`Session::map_whole`] once the device has done what may use it.
    fn unmap_whole(&self, device: CUdevice, start: u64, bytes: u64) -> Result<(), CUresult> {
        self.device(device)?.wait(self)?;
        // SAFETY: plain numbers.
        unsafe {
            crate::memory::virtual_memory::cuMemUnmap(start, bytes as usize)?;
            crate::memory::virtual_memory::cuMemAddressFree(start, bytes as usize)
        }
    }
}

// The entry points.

pub(crate) unsafe fn cuIpcGetMemHandle(
    pHandle: *mut CUipcMemHandle,
    dptr: CUdeviceptr,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(pHandle)?;
    let (_, allocation) = session.find_allocation(dptr).ok_or(CUresult::INVALID_VALUE)?;
    let name = session.export_allocation(allocation.start, allocation.bytes)?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(pHandle, CUipcMemHandle { reserved: name.to_bytes(ALLOCATION) }) }
}

/// Peers have no access to each other's memory here, so the one flag there is changes nothing.
const LAZY_ENABLE_PEER_ACCESS: u32 = 1;

/// The name from before CUDA gave this function its `_v2`; the meaning is the same.
pub(crate) unsafe fn cuIpcOpenMemHandle(
    pdptr: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    Flags: u32,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuIpcOpenMemHandle_v2(pdptr, handle, Flags) }
}

pub(crate) unsafe fn cuIpcOpenMemHandle_v2(
    pdptr: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    Flags: u32,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(pdptr)?;
    if Flags & !LAZY_ENABLE_PEER_ACCESS != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let name = Name::from_bytes(ALLOCATION, &handle.reserved).ok_or(CUresult::INVALID_VALUE)?;
    check_here(session, name.words[2])?;
    let address = session.open(name, false)?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(pdptr, address) }
}

pub(crate) unsafe fn cuIpcCloseMemHandle(dptr: CUdeviceptr) -> Result<(), CUresult> {
    let session = session::enter()?;
    if session.close_imported(dptr, false)? { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
}

pub(crate) unsafe fn cuIpcGetEventHandle(
    pHandle: *mut CUipcEventHandle,
    event: CUevent,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(pHandle)?;
    event::check_shared(event)?;
    let command = commands::EventExport { event: session.find(event)? };
    let token = session.call(&command, |answer| answer.token)?;
    let name = Name { token, words: [0, 0, session.index.into()] };
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(pHandle, CUipcEventHandle { reserved: name.to_bytes(EVENT) }) }
}

pub(crate) unsafe fn cuIpcOpenEventHandle(
    phEvent: *mut CUevent,
    handle: CUipcEventHandle,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(phEvent)?;
    let name = Name::from_bytes(EVENT, &handle.reserved).ok_or(CUresult::INVALID_VALUE)?;
    check_here(session, name.words[2])?;
    let opened = event::mint_shared(&*context::current()?);
    let command = commands::EventImport { event: EventId(opened.0 as u64), token: name.token };
    session.call(&command, |()| ()).inspect_err(|_| event::forget(opened))?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(phEvent, opened) }
}

pub(crate) unsafe fn cuMemExportToShareableHandle(
    shareableHandle: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    handleType: CUmemAllocationHandleType,
    flags: u64,
) -> Result<(), CUresult> {
    let session = session::get()?;
    wanted(shareableHandle)?;
    check_kind(handleType, flags)?;
    if !session.virtual_memory().is_shareable(handle.0 as u64)? {
        return Err(CUresult::INVALID_VALUE);
    }
    begins(session)?;
    let command = commands::cuMemExportToShareableHandle { handle: PhysicalId(handle.0 as u64) };
    let token = session.call(&command, |answer| answer.token)?;
    let file = Name { token, words: [0, 0, session.index.into()] }.to_file(PHYSICAL)?;
    // SAFETY: not null, and for this type a place for a descriptor.
    unsafe { out::write(shareableHandle.cast(), file) }
}

pub(crate) unsafe fn cuMemImportFromShareableHandle(
    handle: *mut CUmemGenericAllocationHandle,
    osHandle: *mut c_void,
    shHandleType: CUmemAllocationHandleType,
) -> Result<(), CUresult> {
    let session = session::get()?;
    wanted(handle)?;
    check_kind(shHandleType, 0)?;
    let name = Name::from_file(PHYSICAL, osHandle)?;
    check_here(session, name.words[2])?;
    let (minted, _) = session.import_physical(name.token)?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(handle, CUmemGenericAllocationHandle(minted as usize)) }
}

pub(crate) unsafe fn cuMemPoolExportToShareableHandle(
    handle_out: *mut c_void,
    pool: CUmemoryPool,
    handleType: CUmemAllocationHandleType,
    flags: u64,
) -> Result<(), CUresult> {
    session::get()?;
    wanted(handle_out)?;
    check_kind(handleType, flags)?;
    let (number, device) = pool::shared(pool)?;
    let index = session::device(device)?.index;
    let file = Name { token: ExportToken(number), words: [index.into(), 0, 0] }.to_file(POOL)?;
    // SAFETY: not null, and for this type a place for a descriptor.
    unsafe { out::write(handle_out.cast(), file) }
}

pub(crate) unsafe fn cuMemPoolImportFromShareableHandle(
    pool_out: *mut CUmemoryPool,
    handle: *mut c_void,
    handleType: CUmemAllocationHandleType,
    flags: u64,
) -> Result<(), CUresult> {
    let all = session::all()?;
    wanted(pool_out)?;
    check_kind(handleType, flags)?;
    let name = Name::from_file(POOL, handle)?;
    let device = all.devices().find(|device| u64::from(device.index) == name.words[0]);
    let device = device.ok_or(CUresult::INVALID_VALUE)?.ordinal;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(pool_out, pool::import(device, name.token.0)) }
}

/// Binds a pool's allocations to it: the beginning of its number.
fn part_of(number: [u8; 32]) -> u64 {
    number.first_chunk().map_or(0, |first| u64::from_le_bytes(*first))
}

pub(crate) unsafe fn cuMemPoolExportPointer(
    shareData_out: *mut CUmemPoolPtrExportData,
    ptr: CUdeviceptr,
) -> Result<(), CUresult> {
    let session = session::get()?;
    wanted(shareData_out)?;
    let (device, allocation) = session.find_allocation(ptr).ok_or(CUresult::INVALID_VALUE)?;
    let pool = session.memory(device)?.pool_of(allocation.start);
    let pool = pool.filter(|pool| pool::is_shareable(*pool)).ok_or(CUresult::INVALID_VALUE)?;
    let (number, _) = pool::shared(pool)?;
    let mut name = session.export_allocation(allocation.start, allocation.bytes)?;
    name.words[2] = part_of(number);
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(shareData_out, CUmemPoolPtrExportData { reserved: name.to_bytes(POOL_ALLOCATION) }) }
}

pub(crate) unsafe fn cuMemPoolImportPointer(
    ptr_out: *mut CUdeviceptr,
    pool: CUmemoryPool,
    shareData: *mut CUmemPoolPtrExportData,
) -> Result<(), CUresult> {
    let session = session::get()?;
    wanted(ptr_out)?;
    wanted(shareData)?;
    // SAFETY: not null, and the program passes what it got.
    let data = unsafe { shareData.read_unaligned() };
    let name = Name::from_bytes(POOL_ALLOCATION, &data.reserved).ok_or(CUresult::INVALID_VALUE)?;
    let (number, _) = pool::shared(pool)?;
    if part_of(number) != name.words[2] {
        return Err(CUresult::INVALID_VALUE);
    }
    let address = session.open(name, true)?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(ptr_out, address) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: Name = Name { token: ExportToken([9; 32]), words: [1, u64::MAX, 3] };

    #[test]
    fn a_name_keeps_its_words_and_its_kind() {
        let bytes = NAME.to_bytes(ALLOCATION);
        assert_eq!(Name::from_bytes(ALLOCATION, &bytes), Some(NAME));
        assert_eq!(Name::from_bytes(EVENT, &bytes), None);
        assert_eq!(Name::from_bytes(ALLOCATION, &[0; 64]), None);
    }

    #[test]
    fn a_file_carries_a_name_wherever_it_was_read_to() {
        let fd = NAME.to_file(PHYSICAL).unwrap();
        for _ in 0..2 {
            assert_eq!(Name::from_file(PHYSICAL, fd as usize as *mut c_void), Ok(NAME));
        }
        assert_eq!(Name::from_file(POOL, fd as usize as *mut c_void), Err(CUresult::INVALID_VALUE));
        // SAFETY: the descriptor is ours.
        drop(unsafe { File::from_raw_fd(fd) });
        assert_eq!(Name::from_file(POOL, 1_000_000 as *mut c_void), Err(CUresult::INVALID_VALUE));
    }
}
