//! Virtual memory management: addresses, physical memory and mappings apart from each other
//! (CUDA Driver API, Virtual Memory Management).
//!
//! Physical memory has to survive being unmapped and may be mapped at several addresses at once,
//! which takes a memory file. But nearly all of it is mapped once, whole, and released with its
//! mapping, and private pages can be huge ones, whose first touch is several times cheaper. So
//! memory starts as private pages and becomes a file when it is mapped in a way that needs one, or
//! shared with another process. Private pages that are unmapped while their handle is held wait at
//! addresses that are not known elsewhere.
//!
//! ```text
//!              map whole             unmap, held
//!   Untouched ----------> Mapped at <-----------> Parked at
//!        \                   |        map whole       /
//!         \  map a part, or a second time; share   /
//!          `-----------------> File <---------------'
//! ```
//!
//! Memory that other processes get copies of ([`frozen`]) is private pages over a file that is
//! written no more.
//!
//! What belongs here maps, unmaps and shares memory while work is queued that may use it, or says
//! who may ([`reach`]); so this folder is above the queues.

pub(crate) mod frozen;
pub(crate) mod reach;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use sluice_cuda::{
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType, CUmemLocation, CUmemLocationType,
};

use crate::base::memory_file::{memory_file, sealed_size};
use crate::base::status::{Result, Status};
use crate::base::table::Table;
use crate::context;
use crate::device::address_space::{AddressSpace, CHUNK, space, space_around};
use crate::device::pool;
use crate::device::{Device, device};
use crate::memory::allocation::{self, Kind};
use crate::work::engine;

/// Sizes, offsets and alignments are multiples of this.
pub(crate) const GRANULARITY: u64 = CHUNK;

pub(crate) static PHYSICAL: Table<Physical> = Table::new(12);

/// Physical memory. It is freed when its handle is released and nothing maps it any more.
pub(crate) struct Physical {
    pub(crate) size: u64,
    /// Whose it is; none's if it is host memory, which only differs in what it counts as.
    pub(crate) device: Option<&'static Device>,
    backing: Mutex<Backing>,
    /// References that the program holds: `cuMemCreate` and each `cuMemRetainAllocationHandle`.
    held: Mutex<u32>,
    /// Whether other processes may be given it.
    pub(crate) is_shareable: bool,
    /// What it was made for (`CU_MEM_CREATE_USAGE_TILE_POOL` and others).
    pub(crate) usage: u16,
    /// Whether this process made it, so that it came off the device's memory here.
    is_own: bool,
    /// Where arrays have it, whole, once one has. No program has an address of it.
    view: Mutex<Option<u64>>,
}

/// Where the memory is; see the module's documentation.
enum Backing {
    Untouched,
    Mapped(u64),
    Parked(u64),
    File(File),
    /// Private pages over a file that is written no more, mapped at this address.
    Frozen(File, u64),
}

impl Drop for Physical {
    fn drop(&mut self) {
        if let (Backing::Parked(address), Ok(space)) = (&*self.backing(), space()) {
            space.give(*address, self.size);
        }
        if let (Some(view), Ok(space)) = (*self.view(), space()) {
            space.give(view, self.size);
        }
        if let Some(device) = self.device.filter(|_| self.is_own) {
            device.heap.refund(self.size);
        }
    }
}

impl Physical {
    fn backing(&self) -> MutexGuard<'_, Backing> {
        self.backing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn view(&self) -> MutexGuard<'_, Option<u64>> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts `size` bytes from `offset` on at reserved addresses, without rights. `rights` are those
    /// of the one mapping that private pages may have already.
    fn map(&self, address: u64, size: u64, offset: u64, rights: i32) -> Result<()> {
        let space = space()?;
        let is_whole = offset == 0 && size == self.size;
        let mut backing = self.backing();
        match &*backing {
            Backing::Untouched if is_whole && !frozen::are_kept_in_files() => {
                space.prepare_private(address, size)?;
                *backing = Backing::Mapped(address);
                return Ok(());
            }
            Backing::Parked(parked) if is_whole => {
                space.move_private(*parked, address, size)?;
                space.give(*parked, size);
                *backing = Backing::Mapped(address);
                return Ok(());
            }
            Backing::Untouched | Backing::Parked(_) | Backing::Mapped(_) | Backing::Frozen(..) => {
                self.make_file(&mut backing, rights)?
            }
            Backing::File(_) => {}
        }
        match &*backing {
            Backing::File(file) => space.map_file(address, size, libc::PROT_NONE, file.as_raw_fd(), offset),
            _ => Err(Status::UNKNOWN),
        }
    }

    /// Turns private pages into a memory file of the same contents, in their place too.
    fn make_file(&self, backing: &mut Backing, rights: i32) -> Result<()> {
        let space = space()?;
        let file = memory_file(self.size)?;
        let fill = |address: u64| {
            space.protect(address, self.size, libc::PROT_READ)?;
            // SAFETY: mapped and readable since just now; nothing runs that could write.
            let contents = unsafe { std::slice::from_raw_parts(address as *const u8, self.size as usize) };
            write_all(&file, contents).map_err(|_| Status::OUT_OF_MEMORY)
        };
        match *backing {
            // Work that is queued finds the file in the place of the pages.
            Backing::Mapped(address) | Backing::Frozen(_, address) => engine::at_rest(|| {
                fill(address)?;
                space.map_file(address, self.size, rights, file.as_raw_fd(), 0)
            })?,
            Backing::Parked(address) => {
                fill(address)?;
                space.give(address, self.size);
            }
            Backing::Untouched | Backing::File(_) => {}
        }
        *backing = Backing::File(file);
        Ok(())
    }

    /// The memory as a file that another process can map.
    fn share(&self, rights: i32) -> Result<OwnedFd> {
        if !self.is_shareable {
            return Err(Status::INVALID_VALUE);
        }
        let mut backing = self.backing();
        if !matches!(*backing, Backing::File(_)) {
            self.make_file(&mut backing, rights)?;
        }
        match &*backing {
            Backing::File(file) => file.as_fd().try_clone_to_owned().map_err(|_| Status::OUT_OF_MEMORY),
            _ => Err(Status::UNKNOWN),
        }
    }

    /// Takes away the mapping at `address`. Private pages are kept if the memory is still held.
    fn unmap(&self, address: u64, size: u64) -> Result<()> {
        let space = space()?;
        let mut backing = self.backing();
        let is_private = matches!(*backing, Backing::Mapped(_) | Backing::Frozen(..));
        if is_private {
            let is_held = *self.held.lock().unwrap_or_else(PoisonError::into_inner) > 0;
            *backing =
                if is_held { Backing::Parked(park(space, address, size)?) } else { Backing::Untouched };
        }
        space.unmap(address, size);
        Ok(())
    }
}

/// Bytes that are worth a thread.
const PART_MIN: usize = 8 << 20;
/// Most threads that copy at a time.
const PARTS_MAX: usize = 8;

/// Writes a file from its beginning on, by several threads where there are processors for them.
fn write_all(file: &File, contents: &[u8]) -> io::Result<()> {
    let count = thread::available_parallelism().map_or(1, usize::from).min(PARTS_MAX);
    let size = contents.len().div_ceil(count).max(PART_MIN);
    let write = |(number, part): (usize, &[u8])| file.write_all_at(part, (number * size) as u64);
    let mut parts = contents.chunks(size).enumerate();
    let Some(first) = parts.next() else { return Ok(()) };
    thread::scope(|scope| {
        let others: Vec<_> = parts.map(|part| scope.spawn(move || write(part))).collect();
        let done = write(first);
        others.into_iter().fold(done, |done, other| {
            done.and(other.join().unwrap_or_else(|_| Err(io::Error::other("a thread has ended"))))
        })
    })
}

/// Moves private pages to addresses that are not known elsewhere.
fn park(space: &AddressSpace, address: u64, size: u64) -> Result<u64> {
    let parked = space.take_hidden(size)?;
    space.move_private(address, parked, size).inspect_err(|_| space.give(parked, size))?;
    Ok(parked)
}

fn wait_for_all_work() {
    for context in context::CONTEXTS.all() {
        engine::wait_context(context.handle);
    }
}

/// Address ranges that the program has reserved: start to size.
static RESERVED: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());
/// What is mapped where, by address.
static MAPPED: Mutex<BTreeMap<u64, Mapping>> = Mutex::new(BTreeMap::new());

struct Mapping {
    size: u64,
    handle: usize,
    /// Keeps the memory while it is mapped.
    physical: Arc<Physical>,
    /// What devices may do there, by their ordinals, and the host (`None`), as the system knows
    /// rights.
    rights: BTreeMap<Option<usize>, i32>,
}

impl Mapping {
    /// The rights of all devices: the pages are the same for all.
    fn rights(&self) -> i32 {
        self.rights.values().fold(libc::PROT_NONE, |all, rights| all | rights)
    }
}

fn reserved() -> MutexGuard<'static, BTreeMap<u64, u64>> {
    RESERVED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn mapped() -> MutexGuard<'static, BTreeMap<u64, Mapping>> {
    MAPPED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn check_granular(value: u64) -> Result<()> {
    if value != 0 && value.is_multiple_of(GRANULARITY) { Ok(()) } else { Err(Status::INVALID_VALUE) }
}

/// Reserves addresses, at `hint` if that is free; the first reservation may move the whole range
/// there.
pub(crate) fn reserve(size: u64, alignment: u64, hint: u64) -> Result<u64> {
    check_granular(size)?;
    if alignment != 0 && !alignment.is_power_of_two() {
        return Err(Status::INVALID_VALUE);
    }
    let wanted = (hint != 0 && hint.is_multiple_of(GRANULARITY.max(alignment))).then_some((hint, size));
    let space = space_around(wanted)?;
    let at_hint = wanted.is_some_and(|(address, size)| space.take_at(address, size));
    let address = if at_hint { hint } else { space.take(size, alignment)? };
    reserved().insert(address, size);
    Ok(address)
}

/// Gives a reservation back, which must not have mappings.
pub(crate) fn unreserve(address: u64, size: u64) -> Result<()> {
    let mut reserved = reserved();
    if reserved.get(&address) != Some(&size) {
        return Err(Status::INVALID_VALUE);
    }
    if mapped().range(address..address + size).next().is_some() {
        return Err(Status::INVALID_VALUE);
    }
    reserved.remove(&address);
    space()?.give(address, size);
    Ok(())
}

/// The one part of the host's memory that there is here.
pub(crate) const HOST: CUmemLocation = CUmemLocation { kind: CUmemLocationType::HOST_NUMA, id: 0 };

/// Checks what physical memory is asked for, and returns its device; none of host memory, which is
/// not shared with other processes.
pub(crate) fn check_properties(properties: &CUmemAllocationProp) -> Result<Option<&'static Device>> {
    if properties.kind != CUmemAllocationType::PINNED {
        return Err(Status::INVALID_VALUE);
    }
    let device = device_of(properties.location)?;
    match properties.requestedHandleTypes {
        CUmemAllocationHandleType::NONE => Ok(device),
        CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR if device.is_some() => Ok(device),
        _ => Err(Status::NOT_SUPPORTED),
    }
}

/// The device that a location names, if that is not the host.
pub(crate) fn device_of(location: CUmemLocation) -> Result<Option<&'static Device>> {
    match location.kind {
        CUmemLocationType::DEVICE => device(location.id).map(Some),
        _ if location == HOST => Ok(None),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// Physical memory of `size` bytes; the handle that it is known by. `is_shareable`: with other
/// processes.
pub(crate) fn create(
    device: Option<&'static Device>,
    size: u64,
    is_shareable: bool,
    usage: u16,
) -> Result<usize> {
    check_granular(size)?;
    if let Some(device) = device {
        pool::make_room(device, || device.heap.charge(size))?;
    }
    Ok(enter(Physical {
        size,
        device,
        backing: Mutex::new(Backing::Untouched),
        held: Mutex::new(1),
        is_shareable,
        usage,
        is_own: true,
        view: Mutex::default(),
    }))
}

fn enter(physical: Physical) -> usize {
    let handle = PHYSICAL.mint();
    PHYSICAL.insert_at(handle, Arc::new(physical));
    handle
}

/// A descriptor of the memory, for [`import`] in another process.
pub(crate) fn export(handle: usize) -> Result<OwnedFd> {
    let physical = physical(handle)?;
    // No thread maps or unmaps meanwhile.
    let mapped = mapped();
    physical.share(rights_of(&mapped, &physical))
}

/// The rights of the mapping that the memory has, if it has one.
fn rights_of(mapped: &BTreeMap<u64, Mapping>, physical: &Arc<Physical>) -> i32 {
    mapped.values().find(|other| Arc::ptr_eq(&other.physical, physical)).map_or(0, Mapping::rights)
}

/// Where arrays have this memory: at one place, for as long as it is.
pub(crate) fn view(physical: &Arc<Physical>) -> Result<u64> {
    let mapped = mapped();
    let mut view = physical.view();
    if let Some(address) = *view {
        return Ok(address);
    }
    let mut backing = physical.backing();
    if !matches!(*backing, Backing::File(_)) {
        physical.make_file(&mut backing, rights_of(&mapped, physical))?;
    }
    let Backing::File(file) = &*backing else { return Err(Status::UNKNOWN) };
    let space = space()?;
    let address = space.take_hidden(physical.size)?;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    space
        .map_file(address, physical.size, rights, file.as_raw_fd(), 0)
        .inspect_err(|_| space.give(address, physical.size))?;
    Ok(*view.insert(address))
}

/// Memory of a device that another process has exported; the handle that it is known by here.
pub(crate) fn import(device: &'static Device, file: OwnedFd) -> Result<usize> {
    let size = sealed_size(&file)?;
    check_granular(size)?;
    let file = File::from(file);
    Ok(enter(Physical {
        size,
        device: Some(device),
        backing: Mutex::new(Backing::File(file)),
        held: Mutex::new(1),
        is_shareable: true,
        usage: 0,
        is_own: false,
        view: Mutex::default(),
    }))
}

/// The memory with this handle.
pub(crate) fn physical(handle: usize) -> Result<Arc<Physical>> {
    PHYSICAL.get(handle).ok_or(Status::INVALID_VALUE)
}

/// Gives one reference back; the handle goes with the last.
pub(crate) fn release(handle: usize) -> Result<()> {
    let physical = physical(handle)?;
    let mut held = physical.held.lock().unwrap_or_else(PoisonError::into_inner);
    *held -= 1;
    if *held == 0 {
        PHYSICAL.remove(handle);
    }
    Ok(())
}

/// The handle of the memory mapped at `address`, retained.
pub(crate) fn retain(address: u64) -> Result<usize> {
    let mapped = mapped();
    let (&start, mapping) = mapped.range(..=address).next_back().ok_or(Status::INVALID_VALUE)?;
    if address - start >= mapping.size {
        return Err(Status::INVALID_VALUE);
    }
    let mut held = mapping.physical.held.lock().unwrap_or_else(PoisonError::into_inner);
    if *held == 0 {
        PHYSICAL.insert_at(mapping.handle, Arc::clone(&mapping.physical));
    }
    *held += 1;
    Ok(mapping.handle)
}

/// Maps physical memory at reserved addresses, without access rights yet.
pub(crate) fn map(address: u64, size: u64, offset: u64, handle: usize) -> Result<()> {
    check_granular(address)?;
    check_granular(size)?;
    let physical = physical(handle)?;
    let inside = offset.is_multiple_of(GRANULARITY)
        && offset.checked_add(size).is_some_and(|end| end <= physical.size);
    if !inside || !is_reserved(address, size) {
        return Err(Status::INVALID_VALUE);
    }
    let mut mapped = mapped();
    let end = address + size;
    if mapped.range(..end).next_back().is_some_and(|(&start, before)| start + before.size > address) {
        return Err(Status::INVALID_VALUE);
    }
    let rights = rights_of(&mapped, &physical);
    physical.map(address, size, offset, rights)?;
    mapped.insert(address, Mapping { size, handle, physical, rights: BTreeMap::new() });
    Ok(())
}

fn is_reserved(address: u64, size: u64) -> bool {
    let reserved = reserved();
    let Some((&start, &len)) = reserved.range(..=address).next_back() else { return false };
    address.checked_add(size).is_some_and(|end| end <= start + len)
}

/// The start addresses of the mappings that make up `[address, address + size)` exactly.
fn whole_mappings(mapped: &BTreeMap<u64, Mapping>, address: u64, size: u64) -> Result<Vec<u64>> {
    let end = address.checked_add(size).ok_or(Status::INVALID_VALUE)?;
    let mut next = address;
    let mut found = Vec::new();
    while next < end {
        let mapping = mapped.get(&next).ok_or(Status::INVALID_VALUE)?;
        found.push(next);
        next += mapping.size;
    }
    if next == end { Ok(found) } else { Err(Status::INVALID_VALUE) }
}

/// Takes whole mappings away, when the work that may use them is done.
pub(crate) fn unmap(address: u64, size: u64) -> Result<()> {
    whole_mappings(&mapped(), address, size)?;
    wait_for_all_work();
    let mut mapped = mapped();
    for start in whole_mappings(&mapped, address, size)? {
        let Some(mapping) = mapped.remove(&start) else { continue };
        allocation::remove(start, |a| matches!(a.kind, Kind::Mapped(_)));
        mapping.physical.unmap(start, mapping.size)?;
    }
    Ok(())
}

/// Sets the rights that a device has to whole mappings, or the host, which has none to devices'
/// memory. Kernels of all devices can do what one of them may; copies and fills are checked
/// ([`reaches`]).
pub(crate) fn set_access(
    device: Option<&'static Device>,
    address: u64,
    size: u64,
    rights: i32,
) -> Result<()> {
    if rights & libc::PROT_WRITE == 0 {
        // What was submitted while it was allowed.
        wait_for_all_work();
    }
    let mut mapped = mapped();
    let starts = whole_mappings(&mapped, address, size)?;
    let is_device_memory = |start| mapped.get(start).is_some_and(|it| it.physical.device.is_some());
    if device.is_none() && starts.iter().any(is_device_memory) {
        return Err(Status::INVALID_VALUE);
    }
    for start in starts {
        let Some(mapping) = mapped.get_mut(&start) else { continue };
        mapping.rights.insert(device.map(|device| device.ordinal), rights);
        space()?.protect(start, mapping.size, mapping.rights())?;
        // Copies and queries know the memory for as long as a thread may write there, those too
        // that run while others are let in.
        if mapping.rights() & libc::PROT_WRITE == 0 {
            allocation::remove(start, |a| matches!(a.kind, Kind::Mapped(_)));
        } else if allocation::find(start).is_none() {
            let ordinal = mapping.physical.device.map_or(0, |device| device.ordinal);
            // No context's: a mapping outlives them all.
            allocation::insert(start, mapping.size, Kind::Mapped(mapping.handle), 0, ordinal);
        }
    }
    Ok(())
}

/// What a device, or the host, may do with the memory at `address`.
pub(crate) fn access(device: Option<&'static Device>, address: u64) -> Result<i32> {
    let mapped = mapped();
    let (&start, mapping) = mapped.range(..=address).next_back().ok_or(Status::INVALID_VALUE)?;
    if address - start >= mapping.size {
        return Err(Status::INVALID_VALUE);
    }
    let device = device.map(|device| device.ordinal);
    Ok(mapping.rights.get(&device).copied().unwrap_or(libc::PROT_NONE))
}

/// Whether a device may use what is mapped at this start.
pub(crate) fn reaches(device: usize, start: u64) -> bool {
    let rights = |mapping: &Mapping| mapping.rights.get(&Some(device)).copied();
    mapped().get(&start).and_then(rights).is_some_and(|rights| rights != libc::PROT_NONE)
}
