//! The state of one session, as its threads share it.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use sluice_cuda::{
    CU_STREAM_NON_BLOCKING, CUcontext, CUdeviceptr, CUmemAllocationHandleType, CUresult, CUstream,
    DriverTable,
};
use sluice_wire::{DevicePtr, EventId, ExportToken, HandleKind, Header, Id};

use crate::arrays::Arrays;
use crate::budget::Budget;
use crate::counters::CounterPage;
use crate::execute::Execute;
use crate::gate::Gate;
use crate::graphs::Graphs;
use crate::host_calls::HostCalls;
use crate::host_copies::HostCopies;
use crate::images::Images;
use crate::launch_times::LaunchTimes;
use crate::memory::Memory;
use crate::modules::Modules;
use crate::objects::Objects;
use crate::outbox::Outbox;
use crate::sharing::EventSharing;
use crate::staging::Staging;

/// Everything that executing a command needs.
pub(crate) struct Session {
    pub(crate) table: DriverTable,
    pub(crate) devices: Vec<Device>,
    pub(crate) objects: Objects,
    pub(crate) modules: Modules,
    pub(crate) memory: Memory,
    pub(crate) graphs: Graphs,
    pub(crate) arrays: Arrays,
    pub(crate) budget: Budget,
    pub(crate) images: Images,
    pub(crate) staging: Arc<Staging>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) host_calls: Arc<HostCalls>,
    pub(crate) host_copies: HostCopies,
    pub(crate) counters: Arc<CounterPage>,
    pub(crate) event_sharing: EventSharing,
    /// Events that other processes of the lease may open.
    pub(crate) event_exports: Mutex<HashMap<EventId, ExportToken>>,
    /// Streams that stand for the default stream of a client thread, by lane and device.
    pub(crate) thread_streams: Mutex<HashMap<(u32, u8), CUstream>>,
    /// For copies that wait for nothing, by device.
    mirror_streams: Mutex<HashMap<u8, CUstream>>,
    /// The `CUresult` of the first queued command that failed, or 0.
    failed: AtomicI32,
}

/// One GPU of the lease.
pub(crate) struct Device {
    /// The driver's.
    pub(crate) ordinal: i32,
    /// The primary context.
    pub(crate) context: CUcontext,
    /// Of the lease, in bytes.
    pub(crate) memory: u64,
    pub(crate) gate: Arc<Gate>,
    /// Where kernels have a limit that the driver does not keep.
    pub(crate) launch_times: Option<LaunchTimes>,
    /// How its memory can be shared with other processes.
    pub(crate) handle_types: CUmemAllocationHandleType,
}

/// Numbers of the streams that nobody creates (CUDA Driver API, Stream synchronization behavior).
const NULL_STREAM: u64 = 0;
const LEGACY_STREAM: u64 = 1;
const PER_THREAD_STREAM: u64 = 2;

thread_local! {
    /// For whom this thread of the worker executes now: the lane of the client's thread, and its device.
    static CURRENT: Cell<(u32, u8)> = const { Cell::new((0, 0)) };
    /// The device whose context this thread has made current in the driver.
    static ENTERED: Cell<Option<u8>> = const { Cell::new(None) };
}

impl Session {
    pub(crate) fn new(parts: SessionParts) -> Session {
        Session {
            table: parts.table,
            devices: parts.devices,
            objects: Objects::default(),
            modules: Modules::default(),
            memory: Memory::new(parts.reservation),
            graphs: Graphs::default(),
            arrays: Arrays::default(),
            budget: parts.budget,
            images: parts.images,
            staging: Staging::new(),
            outbox: parts.outbox,
            host_calls: Arc::default(),
            host_copies: HostCopies::default(),
            counters: parts.counters,
            event_sharing: parts.event_sharing,
            event_exports: Mutex::default(),
            thread_streams: Mutex::default(),
            mirror_streams: Mutex::default(),
            failed: AtomicI32::new(0),
        }
    }

    /// Makes the calling thread execute for a command's lane and device.
    pub(crate) fn enter(&self, header: Header) -> Result<(), CUresult> {
        CURRENT.set((header.lane, header.device));
        if ENTERED.get() == Some(header.device) {
            return Ok(());
        }
        let device = self.devices.get(usize::from(header.device)).ok_or(CUresult::INVALID_DEVICE)?;
        make_current(&self.table, device.context)?;
        ENTERED.set(Some(header.device));
        Ok(())
    }

    /// The device of the command that this thread executes, and its place in the lease.
    pub(crate) fn device(&self) -> Result<(u32, &Device), CUresult> {
        let (_, place) = CURRENT.get();
        let device = self.devices.get(usize::from(place)).ok_or(CUresult::INVALID_DEVICE)?;
        Ok((u32::from(place), device))
    }

    /// The first failure of a queued command: from then on nothing is executed.
    pub(crate) fn failure(&self) -> Result<(), CUresult> {
        CUresult(self.failed.load(Relaxed)).ok()
    }

    /// Notes a failure; true for the first.
    pub(crate) fn fail(&self, result: CUresult) -> bool {
        self.failed.compare_exchange(0, result.0, Relaxed, Relaxed).is_ok()
    }

    /// A stream that waits for no other.
    pub(crate) fn mirror_stream(&self) -> Result<CUstream, CUresult> {
        let create = self.table.cuStreamCreate.ok_or(CUresult::NOT_SUPPORTED)?;
        let (_, device) = CURRENT.get();
        let mut streams = self.mirror_streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&stream) = streams.get(&device) {
            return Ok(stream);
        }
        let mut stream = CUstream::NULL;
        // SAFETY: the driver writes one handle to a local.
        unsafe { create(&mut stream, CU_STREAM_NON_BLOCKING) }.ok()?;
        streams.insert(device, stream);
        Ok(stream)
    }

    /// The stream of this client thread that `CU_STREAM_PER_THREAD` names: made at its first use.
    fn thread_stream(&self) -> Result<CUstream, CUresult> {
        let create = self.table.cuStreamCreate.ok_or(CUresult::NOT_SUPPORTED)?;
        let mut streams = self.thread_streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&stream) = streams.get(&CURRENT.get()) {
            return Ok(stream);
        }
        if streams.len() >= THREAD_STREAMS_MAX {
            return Err(CUresult::OUT_OF_MEMORY);
        }
        let mut stream = CUstream::NULL;
        // SAFETY: the driver writes one handle to a local. Flags 0: it synchronises with the legacy stream.
        unsafe { create(&mut stream, 0) }.ok()?;
        streams.insert(CURRENT.get(), stream);
        Ok(stream)
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
    pub(crate) images: Images,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) counters: Arc<CounterPage>,
    pub(crate) event_sharing: EventSharing,
}

impl Execute for Session {
    fn table(&self) -> &DriverTable {
        &self.table
    }

    fn find<I: Id>(&self, id: I) -> Result<I::Handle, CUresult> {
        if I::KIND == HandleKind::Stream && id.number() <= PER_THREAD_STREAM {
            let stream = match id.number() {
                NULL_STREAM => CUstream::NULL,
                LEGACY_STREAM => CUstream::LEGACY,
                _ => self.thread_stream()?,
            };
            return Ok(I::handle_from(stream.0));
        }
        self.objects.find(id)
    }

    fn remove<I: Id>(&self, id: I) -> Result<I::Handle, CUresult> {
        self.objects.remove(id)
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
        if self.memory.covers(address.0, bytes) { Ok(address.0) } else { Err(CUresult::INVALID_VALUE) }
    }
}

/// Makes a context current on the calling thread.
pub(crate) fn make_current(table: &DriverTable, context: CUcontext) -> Result<(), CUresult> {
    let set_current = table.cuCtxSetCurrent.ok_or(CUresult::NOT_SUPPORTED)?;
    // SAFETY: the context is a primary one that this process retains until its end.
    unsafe { set_current(context) }.ok()
}
