//! The session of this process: one connection to one worker, made at the first call that needs it.
//!
//! ```text
//!   (none) -- cuDriverGetVersion, cuInit --> connected -- cuInit --> initialized
//!      \------- no node, refused ----------> failed: every later cuInit answers the same at once
//!   connected/initialized -- fork, in the child --> detached: CUDA_ERROR_NOT_INITIALIZED
//! ```
//!
//! A child that is forked before `cuInit` may still open a session of its own, as with any CUDA driver.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;
use sluice_wire::{ArrayId, EventId, MipmappedArrayId, ModuleId, StreamId, commands};

use crate::answers::Answers;
use crate::context::{self, Context, Primary};
use crate::device::Device;
use crate::link::Link;
use crate::virtual_memory::VirtualMemory;
use crate::{arrays, attach, event, graph_memory, module, stream, texture};

pub(crate) struct Session {
    pub(crate) link: Link,
    pub(crate) devices: Vec<Device>,
    /// The range in which this side names device addresses; empty where the node does.
    pub(crate) minted: Range<u64>,
    /// What the node can do for this session.
    pub(crate) functions: Presence,
    /// Module globals that programs have asked for, by address.
    globals: Mutex<BTreeMap<u64, Global>>,
    /// Limits that the program has set.
    limits: Mutex<BTreeMap<CUlimit, u64>>,
    /// Answers about nothing that changes.
    pub(crate) answers: Answers,
    /// Addresses and memory that the program manages itself.
    pub(crate) virtual_memory: Mutex<VirtualMemory>,
}

#[derive(Clone, Copy, Debug)]
struct Global {
    bytes: u64,
    module: u64,
}

/// The session, once there is one. It is never freed: any thread may be inside it when the process ends.
static SESSION: AtomicPtr<Session> = AtomicPtr::new(std::ptr::null_mut());
static INITIALIZED: AtomicBool = AtomicBool::new(false);
/// In a forked child of an initialized process.
static DETACHED: AtomicBool = AtomicBool::new(false);
/// Why there is no session. Held while one is being made.
static FAILED: Mutex<Option<CUresult>> = Mutex::new(None);

/// The session of an initialized process.
pub(crate) fn get() -> Result<&'static Session, CUresult> {
    if !INITIALIZED.load(Ordering::Acquire) {
        return Err(CUresult::NOT_INITIALIZED);
    }
    existing().ok_or(CUresult::NOT_INITIALIZED)
}

/// The session, for a call that needs a current context.
pub(crate) fn enter() -> Result<&'static Session, CUresult> {
    let session = get()?;
    context::check_current()?;
    Ok(session)
}

/// The session, made now if there is none, whether or not the program has called `cuInit`.
pub(crate) fn connect() -> Result<&'static Session, CUresult> {
    if DETACHED.load(Ordering::Acquire) {
        return Err(CUresult::NOT_INITIALIZED);
    }
    if let Some(session) = existing() {
        return Ok(session);
    }
    let mut failed = locked(&FAILED);
    if let Some(session) = existing() {
        return Ok(session);
    }
    if let Some(error) = *failed {
        return Err(error);
    }
    match attach::attach() {
        Ok(session) => {
            watch_forks();
            SESSION.store(Box::into_raw(Box::new(session)), Ordering::Release);
            existing().ok_or(CUresult::UNKNOWN)
        }
        Err(error) => {
            crate::errors::say(format_args!("{error}"));
            *failed = Some(error.code());
            Err(error.code())
        }
    }
}

fn existing() -> Option<&'static Session> {
    // SAFETY: null, or a session that was leaked when it was made.
    unsafe { SESSION.load(Ordering::Acquire).as_ref() }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// CUDA Driver API, section "Initialization".
pub(crate) unsafe fn cuInit(Flags: u32) -> Result<(), CUresult> {
    if Flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    connect()?;
    INITIALIZED.store(true, Ordering::Release);
    Ok(())
}

fn watch_forks() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    // SAFETY: the handler only touches atomics and closes a descriptor, which a forked child may do.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(leave_to_parent));
    });
}

/// Runs in a forked child. Its copy of the socket must not keep the parent's session alive.
unsafe extern "C" fn leave_to_parent() {
    if let Some(session) = existing() {
        session.link.detach();
    }
    SESSION.store(std::ptr::null_mut(), Ordering::Release);
    if INITIALIZED.swap(false, Ordering::AcqRel) {
        DETACHED.store(true, Ordering::Release);
    }
}

impl Session {
    pub(crate) fn new(link: Link, devices: Vec<Device>, minted: Range<u64>) -> Session {
        Session {
            functions: functions(&devices),
            link,
            devices,
            minted,
            globals: Mutex::new(BTreeMap::new()),
            limits: Mutex::new(BTreeMap::new()),
            answers: Answers::default(),
            virtual_memory: Mutex::default(),
        }
    }

    pub(crate) fn device(&self, device: CUdevice) -> Result<&Device, CUresult> {
        usize::try_from(device).ok().and_then(|i| self.devices.get(i)).ok_or(CUresult::INVALID_DEVICE)
    }

    pub(crate) fn primary(&self, device: CUdevice) -> Result<&Primary, CUresult> {
        Ok(&self.device(device)?.primary)
    }

    /// Whether an address can only be the device's.
    pub(crate) fn is_device_address(&self, address: u64) -> bool {
        self.minted.contains(&address) || self.holds(address, 1)
    }

    /// Whether `bytes` bytes from `address` lie in one allocation or module global, or in mapped memory.
    pub(crate) fn holds(&self, address: u64, bytes: u64) -> bool {
        let within = |start: u64, size: u64| {
            address.checked_sub(start).is_some_and(|offset| offset < size && bytes <= size - offset)
        };
        if let Some((_, allocation)) = self.find_allocation(address) {
            return within(allocation.start, allocation.bytes);
        }
        let globals = locked(&self.globals);
        globals.range(..=address).next_back().is_some_and(|(&start, global)| within(start, global.bytes))
            || self.virtual_memory().is_accessible(address, bytes)
    }

    pub(crate) fn know_global(&self, module: u64, address: u64, bytes: u64) {
        locked(&self.globals).insert(address, Global { bytes, module });
    }

    pub(crate) fn forget_globals(&self, module: u64) {
        locked(&self.globals).retain(|_, global| global.module != module);
    }

    pub(crate) fn limit_set(&self, limit: CUlimit) -> Option<u64> {
        locked(&self.limits).get(&limit).copied()
    }

    pub(crate) fn remember_limit(&self, limit: CUlimit, value: u64) {
        locked(&self.limits).insert(limit, value);
    }

    /// Everything that a context owned goes with it.
    pub(crate) fn context_ended(&self, context: &Context) -> Result<(), CUresult> {
        let handle = context.handle;
        self.device(context.device)?.wait(self)?;
        for hStream in stream::of_context(handle) {
            self.queue_quietly(&commands::cuStreamDestroy_v2 { hStream: StreamId(hStream) })?;
        }
        for hEvent in event::of_context(handle) {
            self.queue_quietly(&commands::cuEventDestroy_v2 { hEvent: EventId(hEvent) })?;
        }
        for hmod in module::of_context(handle) {
            self.forget_globals(hmod);
            self.queue_quietly(&commands::cuModuleUnload { hmod: ModuleId(hmod) })?;
        }
        for object in texture::of_context(handle) {
            object.destroy(self)?;
        }
        let (arrays, mipmapped) = arrays::of_context(handle);
        for hArray in arrays {
            self.queue_quietly(&commands::cuArrayDestroy { hArray: ArrayId(hArray) })?;
        }
        for id in mipmapped {
            let hMipmappedArray = MipmappedArrayId(id);
            self.queue_quietly(&commands::cuMipmappedArrayDestroy { hMipmappedArray })?;
        }
        self.release_all(context.device, handle)?;
        graph_memory::context_ended(handle);
        stream::context_ended(handle);
        event::context_ended(handle);
        arrays::context_ended(handle);
        texture::context_ended(handle);
        module::context_ended(handle);
        Ok(())
    }
}

/// What every device of a lease has, and what the session's own messages do on any driver.
fn functions(devices: &[Device]) -> Presence {
    const ANYWAY: &[Fn] = &[
        Fn::cuMemAlloc_v2,
        Fn::cuMemFree_v2,
        Fn::cuMemGetInfo_v2,
        // One message for all kinds of nodes, the newest form for all forms of a question, and what the worker knows itself.
        Fn::cuGraphAddNode_v2,
        Fn::cuGraphNodeSetParams,
        Fn::cuGraphExecNodeSetParams,
        Fn::cuGraphNodeGetParams,
        Fn::cuGraphNodeGetContainingGraph,
        Fn::cuGraphGetEdges_v2,
        Fn::cuGraphNodeGetDependencies_v2,
        Fn::cuGraphNodeGetDependentNodes_v2,
        Fn::cuStreamGetCaptureInfo_v3,
    ];
    let mut all = Presence::default();
    for info in FUNCTIONS.iter() {
        let everywhere = devices.iter().all(|device| device.snapshot.functions.contains(info.function));
        if everywhere || ANYWAY.contains(&info.function) {
            all.insert(info.function);
        }
    }
    all
}
