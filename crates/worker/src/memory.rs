//! Device memory: backing what the client minted, within what the lease grants.
//!
//! Where the driver gave the session a reservation at addresses that the client has reserved too, the client mints
//! addresses and this module backs them: `cuMemCreate`, `cuMemMap`, `cuMemSetAccess` (CUDA Driver API, Virtual
//! Memory Management). Where it did not, the driver's own `cuMemAlloc` mints. Either way the lease is asked first.
//!
//! Memory that the program uses while device code runs ([`live`](crate::live)) is host memory on drivers that are loaded: that is made,
//! and mapped at the client's address, in the same way, for devices and processors alike.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::{
    CUdevice_attribute, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
    CUresult, DriverTable,
};
use sluice_wire::ExportToken;

use crate::budget::{Budget, Claim};
use crate::chunks::{CHUNK, Chunks, Run};
use crate::host_memory::Held;
use crate::outbox::Push;
use crate::session::{Device, Session};
use crate::virtual_memory::{Mapping, Physical};

/// Most ranges that are not chunks: allocations of the driver's minting, and module globals.
const RANGES_MAX: usize = 1 << 20;

/// All device memory of a session.
#[derive(Debug)]
pub(crate) struct Memory {
    state: Mutex<State>,
    /// The program's user knows that its GPUs do not see all that they should.
    has_told: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) chunks: Chunks<Backing>,
    /// What `cuMemCreate` made and nobody has released, by the client's number.
    pub(crate) physical: BTreeMap<u64, Arc<Physical>>,
    /// Address to size, of what the driver minted.
    allocations: BTreeMap<u64, Allocation>,
    /// Variables of loaded modules: address to size and module id.
    globals: BTreeMap<u64, (u64, u64)>,
}

/// What is behind a run of chunks.
#[derive(Debug)]
pub(crate) enum Backing {
    /// Memory that the session committed for its allocations.
    Committed {
        handle: CUmemGenericAllocationHandle,
        gpu: u32,
        /// Whether the session's other GPUs can use it as well.
        by_all: bool,
        /// If other processes of the lease may import it: then its bytes are the lease's, not the session's.
        export: Option<ExportToken>,
    },
    /// The same, of this machine's memory, which this process can use at the same addresses.
    OnHost { handle: CUmemGenericAllocationHandle, _held: Held },
    /// Memory that the program mapped there itself.
    Mapped(Mapping),
}

#[derive(Clone, Copy, Debug)]
struct Allocation {
    bytes: u64,
    gpu: u32,
}

impl Backing {
    fn is_accessible(&self) -> bool {
        match self {
            Backing::Committed { .. } | Backing::OnHost { .. } => true,
            Backing::Mapped(mapping) => !mapping.users.is_empty(),
        }
    }

    /// Whether a GPU of the lease can use it.
    fn is_reached_by(&self, gpu: u32) -> bool {
        match self {
            Backing::Committed { gpu: home, by_all, .. } => *by_all || *home == gpu,
            Backing::OnHost { .. } => true,
            Backing::Mapped(mapping) => mapping.users.contains(&gpu),
        }
    }

    /// A GPU that can use it, if not all can: its own one rather than another.
    fn home(&self) -> Option<u32> {
        match self {
            Backing::Committed { gpu, .. } => Some(*gpu),
            Backing::OnHost { .. } => None,
            Backing::Mapped(mapping) => mapping.home(),
        }
    }

    /// Whether the session's allocations lie there.
    fn is_for_allocations(&self) -> bool {
        matches!(self, Backing::Committed { .. } | Backing::OnHost { .. })
    }
}

impl Memory {
    /// A session whose reservation is this range; an empty one where the driver mints.
    pub(crate) fn new(reservation: std::ops::Range<u64>) -> Memory {
        let state = State {
            chunks: Chunks::new(reservation),
            physical: BTreeMap::new(),
            allocations: BTreeMap::new(),
            globals: BTreeMap::new(),
        };
        Memory { state: Mutex::new(state), has_told: AtomicBool::new(false) }
    }

    /// Whether all of `[address, address + bytes)` is the session's.
    pub(crate) fn covers(&self, address: u64, bytes: u64) -> bool {
        let state = self.lock();
        state.chunks.covers(address, bytes, Backing::is_accessible)
            || covers(&state.allocations, address, bytes, |a| a.bytes)
            || covers(&state.globals, address, bytes, |g| g.0)
    }

    /// Whether a GPU of the lease can use all of a range that is the session's. What the driver minted all can copy and fill.
    pub(crate) fn is_reached(&self, (address, bytes): (u64, u64), gpu: u32) -> bool {
        let state = self.lock();
        state.chunks.covers(address, bytes, |backing| backing.is_reached_by(gpu))
            || covers(&state.allocations, address, bytes, |a| a.bytes)
            || covers(&state.globals, address, bytes, |g| g.0)
    }

    /// A GPU that can use what begins at an address, if not all can.
    pub(crate) fn home(&self, address: u64) -> Option<u32> {
        self.lock().chunks.run_of(address).and_then(|(_, _, backing)| backing.home())
    }

    /// What `act` says while all of it is memory that was committed for the session's allocations, and cannot be decommitted; `None`
    /// if it is not. `on_host`: committed so.
    pub(crate) fn while_committed<R>(
        &self,
        (address, bytes): (u64, u64),
        on_host: bool,
        act: impl FnOnce() -> R,
    ) -> Option<R> {
        let fits = |backing: &Backing| match backing {
            Backing::OnHost { .. } => true,
            _ => !on_host && backing.is_for_allocations(),
        };
        let state = self.lock();
        state.chunks.covers(address, bytes, fits).then(act)
    }

    /// Backs whole chunks at an address of the client's choice, on the lease's `gpu`th GPU, for these devices to use.
    pub(crate) fn commit(
        &self,
        table: &DriverTable,
        budget: &Budget,
        (gpu, device, users): (u32, &Device, &[Device]),
        (address, bytes): (u64, u64),
        claim: Claim,
    ) -> Result<(), CUresult> {
        // The lock is held over the driver calls: two commits of one address must not both succeed.
        let mut state = self.lock();
        if !state.chunks.is_vacant(address, bytes) {
            return Err(CUresult::INVALID_VALUE);
        }
        let handle = budget.charge(claim, (gpu, bytes), || back(table, (device, users), address, bytes))?;
        let by_all = users.len() > 1;
        state.chunks.insert(address, bytes, Backing::Committed { handle, gpu, by_all, export: None });
        Ok(())
    }

    /// The same by memory of this machine, which all devices of the lease can use; false where the driver has none that could be mapped
    /// like that.
    pub(crate) fn commit_on_host(
        &self,
        table: &DriverTable,
        devices: &[Device],
        held: Held,
        address: u64,
        bytes: u64,
    ) -> Result<bool, CUresult> {
        let mut state = self.lock();
        if !state.chunks.is_vacant(address, bytes) {
            return Err(CUresult::INVALID_VALUE);
        }
        let Ok(handle) = back_on_host(table, devices, address, bytes) else { return Ok(false) };
        state.chunks.insert(address, bytes, Backing::OnHost { handle, _held: held });
        Ok(true)
    }

    /// Takes the backing away again, once `leave` has made sure that this process looks at it no more. The caller has waited for work
    /// that may use it.
    pub(crate) fn decommit(
        &self,
        table: &DriverTable,
        budget: &Budget,
        (address, bytes): (u64, u64),
        leave: impl FnOnce(),
    ) -> Result<(), CUresult> {
        let mut state = self.lock();
        let runs = state.chunks.remove(address, bytes, Backing::is_for_allocations);
        let runs = runs.ok_or(CUresult::INVALID_VALUE)?;
        leave();
        for (start, Run { bytes, backing }) in runs {
            let (Backing::Committed { handle, .. } | Backing::OnHost { handle, .. }) = backing else {
                continue;
            };
            unback(table, start, bytes, handle)?;
            match backing {
                Backing::Committed { export: Some(token), .. } => budget.drop_export(token),
                Backing::Committed { gpu, .. } => budget.give_back(gpu, bytes),
                Backing::OnHost { .. } | Backing::Mapped(_) => {}
            }
        }
        Ok(())
    }

    /// An allocation at an address of the driver's choice.
    pub(crate) fn allocate(
        &self,
        table: &DriverTable,
        budget: &Budget,
        gpu: u32,
        bytes: u64,
    ) -> Result<CUdeviceptr, CUresult> {
        let allocate = table.cuMemAlloc_v2.ok_or(CUresult::NOT_SUPPORTED)?;
        let size = usize::try_from(bytes).map_err(|_| CUresult::OUT_OF_MEMORY)?;
        let mut state = self.lock();
        if state.allocations.len() >= RANGES_MAX {
            return Err(CUresult::OUT_OF_MEMORY);
        }
        let mut address = 0;
        // SAFETY: the driver writes one address to a local.
        budget.charge(Claim::Asked, (gpu, bytes), || unsafe { allocate(&mut address, size) }.ok())?;
        state.allocations.insert(address, Allocation { bytes, gpu });
        Ok(address)
    }

    /// Frees an allocation of the driver's minting.
    pub(crate) fn free(&self, table: &DriverTable, budget: &Budget, address: u64) -> Result<(), CUresult> {
        let free = table.cuMemFree_v2.ok_or(CUresult::NOT_SUPPORTED)?;
        let gone = self.lock().allocations.remove(&address).ok_or(CUresult::INVALID_VALUE)?;
        // SAFETY: the address was the driver's, and was in our table once.
        unsafe { free(address) }.ok()?;
        budget.give_back(gone.gpu, gone.bytes);
        Ok(())
    }

    /// Makes a module's variable the session's own.
    pub(crate) fn add_global(&self, module: u64, address: u64, bytes: u64) {
        let mut state = self.lock();
        if state.globals.len() < RANGES_MAX {
            state.globals.insert(address, (bytes, module));
        }
    }

    /// Forgets the variables of an unloaded module.
    pub(crate) fn remove_globals(&self, module: u64) {
        self.lock().globals.retain(|_, &mut (_, of)| of != module);
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Backs addresses by memory that all GPUs of the session can use: the current one's where the others reach it, else this machine's.
pub(crate) fn commit_for_all(session: &Session, (address, bytes): (u64, u64)) -> Result<(), CUresult> {
    let (memory, table) = (&session.memory, &session.table);
    let (gpu, device) = session.device()?;
    let commit =
        |users| memory.commit(table, &session.budget, (gpu, device, users), (address, bytes), Claim::Asked);
    let done = commit(&session.devices);
    if matches!(done, Ok(()) | Err(CUresult::OUT_OF_MEMORY)) {
        return done;
    }
    // Not all of these cards have a way to each other's memory.
    if let Some(held) = session.host_memory.try_take(bytes)
        && memory.commit_on_host(table, &session.devices, held, address, bytes)?
    {
        return Ok(());
    }
    commit(std::slice::from_ref(device))?;
    if !memory.has_told.swap(true, Ordering::Relaxed) {
        let text = "the GPUs of this lease do not reach each other's memory, so mapped and managed memory can be used on the GPU alone that \
                    was current when it was made or first used";
        session.outbox.push(Push::Notice(text.to_owned()));
    }
    Ok(())
}

fn covers<T>(ranges: &BTreeMap<u64, T>, address: u64, bytes: u64, size: impl Fn(&T) -> u64) -> bool {
    ranges.range(..=address).next_back().is_some_and(|(&start, range)| {
        let offset = address - start;
        offset <= size(range) && bytes <= size(range) - offset
    })
}

/// Physical memory on a device.
pub(crate) fn physical(
    table: &DriverTable,
    (ordinal, handle_types): (i32, CUmemAllocationHandleType),
    bytes: u64,
) -> Result<CUmemGenericAllocationHandle, CUresult> {
    physical_at(table, on_device(ordinal), handle_types, bytes)
}

/// Whether a device's memory can be mapped at this address of a reservation; yes where only the room is missing.
pub(crate) fn can_be_mapped(table: &DriverTable, device: &Device, address: u64) -> bool {
    match back(table, (device, std::slice::from_ref(device)), address, CHUNK) {
        Ok(handle) => unback(table, address, CHUNK, handle).is_ok(),
        Err(result) => result == CUresult::OUT_OF_MEMORY,
    }
}

fn on_device(ordinal: i32) -> CUmemLocation {
    CUmemLocation { kind: CUmemLocationType::DEVICE, id: ordinal }
}

fn physical_at(
    table: &DriverTable,
    location: CUmemLocation,
    handle_types: CUmemAllocationHandleType,
    bytes: u64,
) -> Result<CUmemGenericAllocationHandle, CUresult> {
    let create = table.cuMemCreate.ok_or(CUresult::NOT_SUPPORTED)?;
    let size = usize::try_from(bytes).map_err(|_| CUresult::OUT_OF_MEMORY)?;
    let wanted = CUmemAllocationProp {
        kind: CUmemAllocationType::PINNED,
        requestedHandleTypes: handle_types,
        location,
        win32HandleMetaData: std::ptr::null_mut(),
        compressionType: 0,
        gpuDirectRDMACapable: 0,
        usage: 0,
        reserved: [0; 4],
    };
    let mut handle = CUmemGenericAllocationHandle::default();
    // SAFETY: the driver writes one handle to a local and reads the properties.
    unsafe { create(&mut handle, size, &wanted, 0) }.ok()?;
    Ok(handle)
}

/// Physical memory on a device, mapped at `address` and accessible there to these.
fn back(
    table: &DriverTable,
    (device, users): (&Device, &[Device]),
    address: u64,
    bytes: u64,
) -> Result<CUmemGenericAllocationHandle, CUresult> {
    let handle = physical(table, (device.ordinal, device.handle_types), bytes)?;
    let users: Vec<_> = users.iter().map(|user| on_device(user.ordinal)).collect();
    map(table, handle, &users, (address, bytes))
}

/// Memory of this machine there, which the processor and these devices can use.
fn back_on_host(
    table: &DriverTable,
    devices: &[Device],
    address: u64,
    bytes: u64,
) -> Result<CUmemGenericAllocationHandle, CUresult> {
    let ask = table.cuDeviceGetAttribute.ok_or(CUresult::NOT_SUPPORTED)?;
    let first = devices.first().ok_or(CUresult::INVALID_DEVICE)?;
    // Near that device; negative where the machine has one part only.
    let mut id = 0;
    // SAFETY: the driver writes one number to a local.
    unsafe { ask(&mut id, CUdevice_attribute::HOST_NUMA_ID, first.ordinal) }.ok()?;
    let location = CUmemLocation { kind: CUmemLocationType::HOST_NUMA, id: id.max(0) };
    let users: Vec<_> = devices.iter().map(|device| on_device(device.ordinal)).chain([location]).collect();
    let handle = physical_at(table, location, CUmemAllocationHandleType::NONE, bytes)?;
    map(table, handle, &users, (address, bytes))
}

/// Maps physical memory, and makes it accessible to `users`; if that fails it is given back.
fn map(
    table: &DriverTable,
    handle: CUmemGenericAllocationHandle,
    users: &[CUmemLocation],
    (address, bytes): (u64, u64),
) -> Result<CUmemGenericAllocationHandle, CUresult> {
    let map = table.cuMemMap.ok_or(CUresult::NOT_SUPPORTED)?;
    let set_access = table.cuMemSetAccess.ok_or(CUresult::NOT_SUPPORTED)?;
    let size = usize::try_from(bytes).map_err(|_| CUresult::OUT_OF_MEMORY)?;
    // SAFETY: the range is vacant and inside the session's own reservation.
    let mapped = unsafe { map(address, size, 0, handle, 0) }.ok();
    let give_access = |&location: &CUmemLocation| {
        let access = CUmemAccessDesc { location, flags: CUmemAccess_flags::READWRITE };
        // SAFETY: the range was mapped just now; the driver reads one description.
        unsafe { set_access(address, size, &access, 1) }.ok()
    };
    let accessible = mapped.and_then(|()| users.iter().try_for_each(give_access));
    if let Err(result) = accessible {
        // Not mapped is what `unback` answers when the map failed; the handle is released either way.
        let _ = unback(table, address, bytes, handle);
        return Err(result);
    }
    Ok(handle)
}

fn unback(
    table: &DriverTable,
    address: u64,
    bytes: u64,
    handle: CUmemGenericAllocationHandle,
) -> Result<(), CUresult> {
    let unmap = table.cuMemUnmap.ok_or(CUresult::NOT_SUPPORTED)?;
    let release = table.cuMemRelease.ok_or(CUresult::NOT_SUPPORTED)?;
    // SAFETY: the range is inside the session's reservation, and its user has given it up.
    let unmapped = unsafe { unmap(address, bytes as usize) }.ok();
    // SAFETY: the handle came from `cuMemCreate`, and this is its only release.
    unsafe { release(handle) }.ok()?;
    unmapped
}
