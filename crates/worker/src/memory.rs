//! Device memory: backing what the client minted, within what the lease grants.
//!
//! Where the driver gave the session a reservation at addresses that the client has reserved too,
//! the client mints addresses and this module backs them: `cuMemCreate`, `cuMemMap`,
//! `cuMemSetAccess` (CUDA Driver API, Virtual Memory Management). Where it did not, the driver's
//! own `cuMemAlloc` mints. Either way the lease is asked first.
//!
//! Memory that the program uses while device code runs ([`live`](crate::live)) is host memory on
//! drivers that are loaded: that is made, and mapped at the client's address, in the same way, for
//! devices and processors alike.
//!
//! | module | contents |
//! |---|---|
//! | [`extent`] | the pieces that committed memory consists of |
//! | [`presence`] | whether the memory is on its GPUs, and who uses it |
//! | [`swap`] | moving it to host memory and back |
//! | [`host`] | the host memory that it is moved to |
//! | [`contents`] | what is in it, in pieces |
//! | [`spare`] | host memory that is ready for the next move |
//! | [`calls`] | the driver's calls that make and map memory |
//! | [`physical`], [`virtual_memory`] | memory that programs make and map themselves |
//! | [`budget`] | what the lease allows, and the memory that stands behind it |
//! | [`host_memory`] | the account of host memory that a session holds |
//! | [`chunks`] | the map of the session's addresses |

pub(crate) mod ballast;
pub(crate) mod budget;
pub(crate) mod calls;
pub(crate) mod chunks;
pub(crate) mod contents;
pub(crate) mod extent;
pub(crate) mod file;
mod host;
pub(crate) mod host_memory;
#[cfg(test)]
pub(crate) mod host_memory_tests;
pub(crate) mod physical;
pub(crate) mod presence;
pub(crate) mod spare;
pub(crate) mod swap;
pub(crate) mod virtual_memory;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use sluice_cuda::{CUdeviceptr, CUmemGenericAllocationHandle, CUresult, DriverTable};
use sluice_wire::ExportToken;
use sluice_wire::migration::Committed;

use crate::counters::CounterPage;
use crate::memory::budget::{Budget, Claim};
use crate::memory::calls::{back_on_host, unback};
use crate::memory::chunks::{Chunks, Run};
use crate::memory::extent::Extent;
use crate::memory::host::HostPiece;
use crate::memory::host_memory::HostCharge;
use crate::memory::physical::{Mapping, Physical};
use crate::session::device::Device;

/// Most ranges that are not chunks: allocations of the driver's minting, and module globals.
const RANGES_MAX: usize = 1 << 20;
/// Most pieces of physical memory that a session holds.
const PHYSICAL_MAX: usize = 1 << 20;

/// All device memory of a session.
#[derive(Debug)]
pub(crate) struct Memory {
    state: Mutex<State>,
    /// Held by the thread that moves memory.
    mover: Mutex<()>,
    counters: Arc<CounterPage>,
    /// The program's user knows that its GPUs do not see all that they should.
    has_told: AtomicBool,
    /// There is memory that was not there before.
    changed: Condvar,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) chunks: Chunks<Backing>,
    /// What `cuMemCreate` made and was not released, by the client's number.
    pub(crate) physical: BTreeMap<u64, Arc<Physical>>,
    /// Address to size, of what the driver minted.
    allocations: BTreeMap<u64, Allocation>,
    /// Variables of loaded modules: address to size and module id.
    globals: BTreeMap<u64, (u64, u64)>,
    /// Host memory for the next time that extents leave.
    spare: Vec<HostPiece>,
}

/// What is behind a run of chunks.
#[derive(Debug)]
pub(crate) enum Backing {
    /// Addresses of a commitment that waits for the daemon's answer.
    Pending,
    /// Memory that the session committed for its allocations.
    Committed {
        extents: Vec<Extent>,
        gpu: u32,
        /// Whether the session's other GPUs can use it as well.
        by_all: bool,
        /// If other processes of the lease may import it: then its bytes are the lease's, not the
        /// session's.
        export: Option<ExportToken>,
    },
    /// Memory of this machine that the session committed; this process can use it at the same
    /// addresses.
    OnHost { handle: CUmemGenericAllocationHandle, _held: HostCharge },
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
            Backing::Pending => false,
        }
    }

    /// Whether a GPU of the lease can use it.
    fn is_reached_by(&self, gpu: u32) -> bool {
        match self {
            Backing::Committed { gpu: home, by_all, .. } => *by_all || *home == gpu,
            Backing::OnHost { .. } => true,
            Backing::Mapped(mapping) => mapping.users.contains(&gpu),
            Backing::Pending => false,
        }
    }

    /// A GPU that can use it, if not all can: its own one rather than another.
    fn home(&self) -> Option<u32> {
        match self {
            Backing::Committed { gpu, .. } => Some(*gpu),
            Backing::OnHost { .. } | Backing::Pending => None,
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
    pub(crate) fn new(reservation: std::ops::Range<u64>, counters: Arc<CounterPage>) -> Memory {
        let state = State {
            chunks: Chunks::new(reservation),
            physical: BTreeMap::new(),
            allocations: BTreeMap::new(),
            globals: BTreeMap::new(),
            spare: Vec::new(),
        };
        let (mover, has_told) = (Mutex::default(), AtomicBool::new(false));
        Memory { state: Mutex::new(state), mover, counters, has_told, changed: Condvar::new() }
    }

    /// Whether all of `[address, address + bytes)` is the session's.
    pub(crate) fn covers(&self, address: u64, bytes: u64) -> bool {
        let state = self.lock();
        state.chunks.covers(address, bytes, Backing::is_accessible)
            || covers(&state.allocations, address, bytes, |a| a.bytes)
            || covers(&state.globals, address, bytes, |g| g.0)
    }

    /// Whether a GPU of the lease can use all of a range that is the session's. What the driver
    /// minted all can copy and fill.
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

    /// What `act` says while all of it is memory that was committed for the session's allocations,
    /// and cannot be decommitted; `None` if it is not. `on_host`: committed so.
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

    /// Backs whole chunks at an address of the client's choice, on the lease's `gpu`th GPU, for
    /// these devices to use.
    pub(crate) fn commit(
        &self,
        table: &DriverTable,
        budget: &Budget,
        (gpu, device, users): (u32, &Device, &[Device]),
        (address, bytes): (u64, u64),
        claim: Claim,
    ) -> Result<(), CUresult> {
        let mut state = self.lock();
        if !state.chunks.is_vacant(address, bytes) {
            return Err(CUresult::INVALID_VALUE);
        }
        // The addresses are taken from here on. The lock is not held: the daemon's answer may have
        // to wait until memory has been moved.
        state.chunks.insert(address, bytes, Backing::Pending);
        drop(state);
        let make = || extent::make(table, (device, users), address, extent::sizes(bytes));
        let made = budget.charge(claim, (gpu, bytes), make);
        let mut state = self.lock();
        let extents = made.inspect_err(|_| _ = state.chunks.remove(address, bytes, |_| true))?;
        if let Some((_, _, backing)) = state.chunks.run_of(address) {
            *backing = Backing::Committed { extents, gpu, by_all: users.len() > 1, export: None };
        }
        self.counters.movable.fetch_add(bytes, Ordering::Relaxed);
        self.changed.notify_all();
        Ok(())
    }

    /// Backs whole chunks by memory of this machine, which all devices of the lease can use;
    /// returns false where the driver has none that could be mapped like that.
    pub(crate) fn commit_on_host(
        &self,
        table: &DriverTable,
        devices: &[Device],
        held: HostCharge,
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

    /// Takes the backing away again, once `leave` has made sure that this process looks at it no
    /// more. The caller has waited for work that may use it.
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
            match backing {
                Backing::Committed { extents, gpu, export, .. } => {
                    extent::unmake(table, start, &extents)?;
                    match export {
                        Some(token) => budget.drop_export(token),
                        None => {
                            self.is_pinned(bytes);
                            budget.give_back(gpu, bytes);
                        }
                    }
                }
                Backing::OnHost { handle, .. } => unback(table, start, bytes, handle)?,
                Backing::Mapped(_) | Backing::Pending => {}
            }
        }
        drop(state);
        self.trim_spare();
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
        if self.lock().allocations.len() >= RANGES_MAX {
            return Err(CUresult::OUT_OF_MEMORY);
        }
        let mut address = 0;
        // SAFETY: the driver writes one address to a local.
        budget.charge(Claim::Asked, (gpu, bytes), || unsafe { allocate(&mut address, size) }.ok())?;
        self.lock().allocations.insert(address, Allocation { bytes, gpu });
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

    /// What of the memory cannot be made anew by another worker.
    pub(crate) fn unmovable(&self) -> Vec<&'static str> {
        let state = self.lock();
        let backing = |backing: &Backing| match backing {
            Backing::Committed { export: None, .. } => None,
            Backing::Committed { .. } => Some("shared with other processes of the lease"),
            Backing::Mapped(_) => Some("mapped by the program itself (cuMemMap)"),
            Backing::OnHost { .. } => Some("of the node's host memory"),
            Backing::Pending => Some("being allocated"),
        };
        let runs = state.chunks.iter().filter_map(|(_, run)| backing(&run.backing));
        let allocated = (!state.allocations.is_empty()).then_some("at addresses that the driver chose");
        let mut names: Vec<_> = runs.chain(allocated).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The session's addresses: the first, and how many there are.
    pub(crate) fn range(&self) -> (u64, u64) {
        self.lock().chunks.range()
    }

    /// What is committed, in the order of its addresses.
    pub(crate) fn committed(&self) -> Vec<Committed> {
        let state = self.lock();
        let committed = |(address, run): (u64, &Run<Backing>)| match run.backing {
            Backing::Committed { gpu, by_all, .. } => {
                Some(Committed { address, bytes: run.bytes, gpu, by_all })
            }
            _ => None,
        };
        state.chunks.iter().filter_map(committed).collect()
    }

    /// The addresses of all extents, in their order.
    pub(crate) fn extents(&self) -> Vec<u64> {
        let state = self.lock();
        let mut addresses = Vec::new();
        for (start, run) in state.chunks.iter() {
            if let Backing::Committed { extents, .. } = &run.backing {
                addresses.extend(extent::placed(start, extents).map(|(address, _)| address));
            }
        }
        addresses
    }

    /// Commits what another worker had, which the daemon has counted already.
    pub(crate) fn adopt(
        &self,
        table: &DriverTable,
        devices: &[Device],
        &Committed { address, bytes, gpu, by_all }: &Committed,
    ) -> Result<(), CUresult> {
        let mut state = self.lock();
        let device = devices.get(gpu as usize).ok_or(CUresult::INVALID_DEVICE)?;
        if !state.chunks.is_vacant(address, bytes) {
            return Err(CUresult::INVALID_VALUE);
        }
        let users = if by_all { devices } else { std::slice::from_ref(device) };
        let extents = extent::make(table, (device, users), address, extent::sizes(bytes))?;
        state.chunks.insert(address, bytes, Backing::Committed { extents, gpu, by_all, export: None });
        self.counters.movable.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// These bytes could be moved, and can be no longer.
    pub(crate) fn is_pinned(&self, bytes: u64) {
        self.counters.movable.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether the program does not know yet that its GPUs do not reach each other's memory.
    pub(crate) fn is_first_notice(&self) -> bool {
        !self.has_told.swap(true, Ordering::Relaxed)
    }

    /// Memory is moved by one thread at a time.
    pub(crate) fn mover(&self) -> MutexGuard<'_, ()> {
        self.mover.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// An extent of the commitment that begins at `start`.
    fn extent(&self, start: u64, index: usize) -> Option<&Extent> {
        match self.chunks.run_at(start)? {
            Backing::Committed { extents, .. } => extents.get(index),
            _ => None,
        }
    }

    fn extent_mut(&mut self, start: u64, index: usize) -> Option<&mut Extent> {
        match self.chunks.run_of(start)? {
            (at, _, Backing::Committed { extents, .. }) if at == start => extents.get_mut(index),
            _ => None,
        }
    }

    /// Whether physical memory could be entered under this number.
    pub(crate) fn check_vacant(&self, id: u64) -> Result<(), CUresult> {
        if self.physical.contains_key(&id) {
            return Err(CUresult::INVALID_HANDLE);
        }
        if self.physical.len() >= PHYSICAL_MAX { Err(CUresult::OUT_OF_MEMORY) } else { Ok(()) }
    }
}

fn covers<T>(ranges: &BTreeMap<u64, T>, address: u64, bytes: u64, size: impl Fn(&T) -> u64) -> bool {
    ranges.range(..=address).next_back().is_some_and(|(&start, range)| {
        let offset = address - start;
        offset <= size(range) && bytes <= size(range) - offset
    })
}
