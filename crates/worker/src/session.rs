//! The state of one session, as its threads share it: its devices, the objects that the client has
//! numbers for, and what each folder above keeps of its own. What works on a session is in
//! those; here is what all of them need: the command that a thread executes
//! ([`current`]), what a command's arguments are checked against ([`execute`], [`checks`]), and how
//! objects are made anew elsewhere ([`recipes`]).

pub(crate) mod attributes;
pub(crate) mod checks;
pub(crate) mod current;
pub(crate) mod device;
pub(crate) mod execute;
pub(crate) mod host_calls;
pub(crate) mod objects;
pub(crate) mod recipes;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI32};
use std::sync::{Arc, Mutex, PoisonError};

use sluice_cuda::{CU_STREAM_NON_BLOCKING, CUdeviceptr, CUresult, CUstream, DriverTable};
use sluice_wire::{DevicePtr, EventId, ExportToken, GREEN_PLACES, HandleKind, Header, Id};

use self::current::{current_device, make_current};
use crate::arrays::records::Arrays;
use crate::arrays::tiled::TiledArrays;
use crate::copies::host_copies::HostCopies;
use crate::counters::CounterPage;
use crate::driver::EventSharing;
use crate::driver::output::DriverOutput;
use crate::graphs::records::Graphs;
use crate::green::contexts::{self, Green};
use crate::live::mirrors::{Live, Reach};
use crate::memory::Memory;
use crate::memory::budget::Budget;
use crate::memory::host_memory::HostMemory;
use crate::memory::presence::Presence;
use crate::modules::Modules;
use crate::modules::images::Images;
use crate::outbox::Outbox;
use crate::outbox::staging::Staging;
use crate::schedule::streams;
use crate::schedule::watches::Watches;
use crate::session::device::Device;
use crate::session::execute::Execute;
use crate::session::execute::Range;
use crate::session::host_calls::HostCalls;
use crate::session::objects::Objects;
use crate::session::recipes::Recipes;
use crate::sharing::peers::connections::Peers;

/// Everything that executing a command needs.
pub(crate) struct Session {
    pub(crate) table: DriverTable,
    pub(crate) devices: Vec<Device>,
    pub(crate) objects: Objects,
    pub(crate) recipes: Recipes,
    pub(crate) modules: Modules,
    pub(crate) memory: Memory,
    pub(crate) graphs: Graphs,
    pub(crate) green: Green,
    pub(crate) arrays: Arrays,
    pub(crate) tiles: TiledArrays,
    pub(crate) budget: Budget,
    pub(crate) presence: Arc<Presence>,
    pub(crate) images: Images,
    pub(crate) host_memory: Arc<HostMemory>,
    pub(crate) staging: Arc<Staging>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) host_calls: Arc<HostCalls>,
    pub(crate) host_copies: HostCopies,
    /// Where the driver prints by itself.
    driver_output: Option<DriverOutput>,
    pub(crate) counters: Arc<CounterPage>,
    pub(crate) event_sharing: EventSharing,
    pub(crate) watches: Arc<Watches>,
    pub(crate) peers: Arc<Peers>,
    /// What of the driver's memory is memory of this process, at the same addresses.
    pub(crate) reach: Reach,
    /// Memory that the program uses while device code runs.
    pub(crate) live: Live,
    /// The client has said something since its memory was shared with a clone, so that memory may
    /// have been written.
    pub(crate) is_written: AtomicBool,
    /// Events that other processes of the lease may open.
    pub(crate) event_exports: Mutex<HashMap<EventId, ExportToken>>,
    /// Whether streams may wait for another process.
    pub(crate) imports_events: AtomicBool,
    /// Streams that stand for the default stream of a client thread, by lane and place.
    pub(crate) thread_streams: Mutex<HashMap<(u32, u8), CUstream>>,
    /// For copies that wait for nothing, by device.
    mirror_streams: Mutex<HashMap<u8, CUstream>>,
    /// The `CUresult` of the first queued command whose failure ends the session, or 0.
    failed: AtomicI32,
    /// Whether the driver is none of ours.
    pub(crate) is_loaded: bool,
    /// Its GPUs are leased beyond their memory.
    pub(crate) overcommits: bool,
}

/// Numbers of the streams that no program creates (CUDA Driver API, Stream synchronization
/// behavior).
const NULL_STREAM: u64 = 0;
const LEGACY_STREAM: u64 = 1;
const PER_THREAD_STREAM: u64 = 2;

impl Session {
    pub(crate) fn new(parts: SessionParts) -> Session {
        Session {
            table: parts.table,
            devices: parts.devices,
            objects: Objects::default(),
            recipes: Recipes::default(),
            modules: Modules::default(),
            memory: Memory::new(parts.reservation, Arc::clone(&parts.counters)),
            tiles: TiledArrays::new(Arc::clone(&parts.host_memory)),
            watches: Watches::new(parts.table, Arc::clone(&parts.outbox)),
            graphs: Graphs::new(Arc::clone(&parts.host_memory)),
            green: Green::default(),
            arrays: Arrays::default(),
            presence: Arc::clone(parts.budget.presence()),
            budget: parts.budget,
            images: parts.images,
            host_memory: parts.host_memory,
            staging: Staging::new(),
            outbox: parts.outbox,
            host_calls: Arc::default(),
            host_copies: HostCopies::default(),
            driver_output: parts.driver_output,
            counters: parts.counters,
            event_sharing: parts.event_sharing,
            peers: Arc::default(),
            reach: parts.reach,
            live: Live::default(),
            is_written: AtomicBool::new(false),
            event_exports: Mutex::default(),
            imports_events: AtomicBool::new(false),
            thread_streams: Mutex::default(),
            mirror_streams: Mutex::default(),
            failed: AtomicI32::new(0),
            is_loaded: parts.is_loaded,
            overcommits: parts.overcommits,
        }
    }

    /// As [`Session::enter`], for a command that makes no call of the driver.
    pub(crate) fn enter_alone(&self, header: Header) -> Result<(), CUresult> {
        current::begin(header);
        streams::forget_named();
        let green = self.green_at(header.device)?;
        current::is_for(green.map_or(header.device, |green| green.device));
        Ok(())
    }

    /// Makes the calling thread execute for a command's lane and place.
    pub(crate) fn enter(&self, header: Header) -> Result<(), CUresult> {
        self.enter_alone(header)?;
        let (green, (_, whole)) = (self.green()?, self.device()?);
        let context = green.map_or(whole.context, |green| green.context);
        current::enter((header.device, green.map(|green| green.id)), &self.table, context)
    }

    /// The green context that the command which this thread executes is for.
    pub(crate) fn green(&self) -> Result<Option<contexts::Context>, CUresult> {
        self.green_at(current::current().device)
    }

    fn green_at(&self, place: u8) -> Result<Option<contexts::Context>, CUresult> {
        if place < GREEN_PLACES {
            return Ok(None);
        }
        self.green.at(place).map(Some).ok_or(CUresult::CONTEXT_IS_DESTROYED)
    }

    /// The device of a place.
    pub(crate) fn device_at(&self, place: u8) -> Option<&Device> {
        let green = self.green_at(place).ok()?;
        self.devices.get(usize::from(green.map_or(place, |green| green.device)))
    }

    /// The device of the command that this thread executes, and its place in the lease.
    pub(crate) fn device(&self) -> Result<(u32, &Device), CUresult> {
        let place = current_device();
        let device = self.devices.get(usize::from(place)).ok_or(CUresult::INVALID_DEVICE)?;
        Ok((u32::from(place), device))
    }

    /// Passes on what the driver has printed so far, before the answer to the thread that waited
    /// for that.
    pub(crate) fn pass_output_on(&self) {
        if let Some(output) = &self.driver_output {
            output.pass_on(|text| self.outbox.print(text));
        }
    }

    /// The first failure of a queued command: from then on nothing is executed.
    pub(crate) fn failure(&self) -> Result<(), CUresult> {
        CUresult(self.failed.load(Relaxed)).ok()
    }

    /// Notes a failure; true for the first.
    pub(crate) fn fail(&self, result: CUresult) -> bool {
        self.failed.compare_exchange(0, result.0, Relaxed, Relaxed).is_ok()
    }

    /// Whether a driver call may wait for something that this session has given the GPU, or that
    /// others have yet to do.
    pub(crate) fn has_unfinished(&self) -> bool {
        let waits = |device: &Device| !device.gate.is_drained() || !device.streams.hold_nothing();
        self.imports_events.load(Relaxed) || !self.host_calls.hold_nothing() || self.devices.iter().any(waits)
    }

    /// Whether nothing that the GPUs were given is left that could use the session's memory, as far
    /// as is known without asking them.
    pub(crate) fn is_quiet(&self) -> bool {
        let is_quiet = |device: &Device| device.gate.is_drained() && device.streams.hold_nothing();
        self.host_calls.hold_nothing() && self.devices.iter().all(is_quiet)
    }

    /// Gives back what the driver of the worker before had taken for itself, and this one has not:
    /// it takes local memory anew with the first kernel that needs some.
    pub(crate) fn give_back_what_is_not_here(&self) {
        for (gpu, device) in (0..).zip(&self.devices) {
            let committed = self.memory.committed().into_iter().filter(|committed| committed.gpu == gpu);
            let here: u64 = committed.map(|committed| committed.bytes).sum();
            let own = if self.is_loaded { 0 } else { sluice_softgpu::own_memory(device.ordinal) };
            let surplus = self.budget.taken(gpu).saturating_sub(here + own);
            if surplus > 0 {
                self.budget.give_back(gpu, surplus);
            }
        }
    }

    /// Whether it shares events with other processes.
    pub(crate) fn shares_events(&self) -> bool {
        let exports = self.event_exports.lock().unwrap_or_else(PoisonError::into_inner);
        self.imports_events.load(Relaxed) || !exports.is_empty()
    }

    /// A stream that waits for no other.
    pub(crate) fn mirror_stream(&self) -> Result<CUstream, CUresult> {
        let create = self.table.cuStreamCreate.ok_or(CUresult::NOT_SUPPORTED)?;
        let place = current_device();
        let mut streams = self.mirror_streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&stream) = streams.get(&place) {
            return Ok(stream);
        }
        let mut stream = CUstream::NULL;
        // It outlives a green context, so it is made in the device's own.
        let green = self.green()?;
        if green.is_some() {
            make_current(&self.table, self.device()?.1.context)?;
        }
        // SAFETY: the driver writes one handle to a local.
        let made = unsafe { create(&mut stream, CU_STREAM_NON_BLOCKING) }.ok();
        if let Some(green) = green {
            make_current(&self.table, green.context)?;
        }
        made?;
        streams.insert(place, stream);
        Ok(stream)
    }

    /// The stream of this client thread that `CU_STREAM_PER_THREAD` names: made at its first use.
    fn thread_stream(&self) -> Result<CUstream, CUresult> {
        let create = self.table.cuStreamCreate.ok_or(CUresult::NOT_SUPPORTED)?;
        let mut streams = self.thread_streams.lock().unwrap_or_else(PoisonError::into_inner);
        let Header { lane, device, .. } = current::current();
        if let Some(&stream) = streams.get(&(lane, device)) {
            return Ok(stream);
        }
        if streams.len() >= THREAD_STREAMS_MAX {
            return Err(CUresult::OUT_OF_MEMORY);
        }
        let mut stream = CUstream::NULL;
        // SAFETY: the driver writes one handle to a local. Flags 0: it synchronises with the legacy
        // stream.
        unsafe { create(&mut stream, 0) }.ok()?;
        streams.insert((lane, device), stream);
        Ok(stream)
    }
}

impl Session {
    /// A stream is about to be destroyed.
    fn part_with(&self, stream: CUstream) {
        self.devices.iter().for_each(|device| device.streams.leaves(stream));
    }

    /// Waits for all work of the context that this thread has made current, or of its device while
    /// something captures.
    pub(crate) fn synchronize(&self) -> Result<(), CUresult> {
        if self.graphs.is_capturing() {
            return self.device()?.1.streams.synchronize();
        }
        let synchronize = self.table.cuCtxSynchronize.ok_or(CUresult::NOT_SUPPORTED)?;
        // SAFETY: a context is current.
        unsafe { synchronize() }.ok()
    }

    /// Destroys the streams that stand for default ones in a green context.
    pub(crate) fn end_thread_streams(&self, place: u8) -> Result<(), CUresult> {
        let destroy = self.table.cuStreamDestroy_v2.ok_or(CUresult::NOT_SUPPORTED)?;
        let mut streams = self.thread_streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|&(_, of), stream| {
            if of == place {
                self.part_with(*stream);
                // SAFETY: made here, and forgotten now.
                let _ = unsafe { destroy(*stream) };
                self.graphs.capture_ends(*stream);
            }
            of != place
        });
        Ok(())
    }
}

/// Most client threads with a default stream of their own.
const THREAD_STREAMS_MAX: usize = 4096;

/// What a session is made of.
pub(crate) struct SessionParts {
    pub(crate) table: DriverTable,
    pub(crate) devices: Vec<Device>,
    pub(crate) reservation: std::ops::Range<u64>,
    pub(crate) budget: Budget,
    pub(crate) host_memory: Arc<HostMemory>,
    pub(crate) images: Images,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) driver_output: Option<DriverOutput>,
    pub(crate) counters: Arc<CounterPage>,
    pub(crate) event_sharing: EventSharing,
    pub(crate) reach: Reach,
    pub(crate) is_loaded: bool,
    pub(crate) overcommits: bool,
}

impl Execute for Session {
    fn table(&self) -> &DriverTable {
        &self.table
    }

    fn find<I: Id>(&self, id: I) -> Result<I::Handle, CUresult> {
        if I::KIND != HandleKind::Stream {
            return self.objects.find(id);
        }
        let stream = match id.number() {
            NULL_STREAM => CUstream::NULL,
            LEGACY_STREAM => CUstream::LEGACY,
            PER_THREAD_STREAM => self.thread_stream()?,
            _ => CUstream(I::handle_number(self.objects.find(id)?)),
        };
        self.device()?.1.streams.named(stream);
        Ok(I::handle_from(stream.0))
    }

    fn remove<I: Id>(&self, id: I) -> Result<I::Handle, CUresult> {
        let handle = self.objects.remove(id)?;
        if I::KIND == HandleKind::Stream {
            self.part_with(CUstream(I::handle_number(handle)));
        }
        Ok(handle)
    }

    fn vacant<I: Id>(&self, id: I) -> Result<(), CUresult> {
        if I::KIND == HandleKind::Stream && id.number() <= PER_THREAD_STREAM {
            return Err(CUresult::INVALID_HANDLE);
        }
        self.objects.vacant(id)
    }

    fn insert<I: Id>(&self, id: I, handle: I::Handle) -> Result<(), CUresult> {
        self.objects.insert(id, handle)
    }

    fn range(&self, address: DevicePtr, bytes: u64) -> Result<CUdeviceptr, CUresult> {
        if self.memory.covers(address.0, bytes) {
            return Ok(address.0);
        }
        if !self.is_loaded {
            sluice_softgpu::invalid_copy(address.0, bytes);
        }
        Err(CUresult::INVALID_VALUE)
    }

    fn near(
        &self,
        memory: Range,
        stream: CUstream,
        act: impl FnOnce(CUstream) -> Result<(), CUresult>,
    ) -> Result<(), CUresult> {
        match self.is_near(&[memory], stream)? {
            true => act(stream),
            false => self.elsewhere(memory, stream, act),
        }
    }
}
