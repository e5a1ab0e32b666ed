//! The sessions of this process: one connection to one worker for each node of its lease, all made at the first call
//! that needs one. Nearly always there is one.
//!
//! With several, a device, its contexts, and everything made in them belong to the session of that device's node. A call
//! goes to the session of the current context, or to that of its own stream, other handle or address ([`routed`]).
//! What concerns two of them is in [`across`](crate::across).
//!
//! ```text
//!   (none) -- cuDriverGetVersion, cuInit --> connected -- cuInit --> initialized
//!      \------- no node, refused ----------> failed: every later cuInit answers the same at once
//!   connected/initialized -- fork, in the child --> detached: CUDA_ERROR_NOT_INITIALIZED
//!   initialized, its context lost -- cuDevicePrimaryCtxReset --> initialized, by a new session
//! ```
//!
//! A child that is forked before `cuInit` may still open a session of its own, as with any CUDA driver.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;
use sluice_wire::address::Endpoint;
use sluice_wire::{ArrayId, EventId, MipmappedArrayId, ModuleId, StreamId, commands};

use crate::answers::Answers;
use crate::context::{self, Context, Primary};
use crate::copy::Reads;
use crate::device::{Device, place_of};
use crate::link::Link;
use crate::live::Live;
use crate::virtual_memory::VirtualMemory;
use crate::{
    arrays, attach, awaited, event, host_memory, ids, mirror, module, renewal, stream, texture,
    texture_reference,
};

pub(crate) struct Session {
    /// Its place among the sessions of this process.
    pub(crate) index: u8,
    /// Where its node is.
    pub(crate) node: Endpoint,
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
    /// Keeping host memory equal while device code runs.
    pub(crate) live: Live,
    /// How far what its commands have written is fetched.
    pub(crate) fetched: mirror::Progress,
    /// What large copies to the program read.
    pub(crate) reads: Reads,
    /// Whether its host functions have a thread.
    pub(crate) has_host_thread: AtomicBool,
}

/// Every session, and which of them each device belongs to, by its ordinal.
pub(crate) struct Sessions {
    pub(crate) list: Vec<Session>,
    of_device: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Global {
    bytes: u64,
    module: u64,
}

/// The sessions, once there are any. They are never freed: any thread may be inside one when the process ends.
static SESSIONS: AtomicPtr<Sessions> = AtomicPtr::new(std::ptr::null_mut());
/// Whether there are several; never again false once true.
static ARE_MANY: AtomicBool = AtomicBool::new(false);
static INITIALIZED: AtomicBool = AtomicBool::new(false);
/// In a forked child of an initialized process.
static DETACHED: AtomicBool = AtomicBool::new(false);
/// Why there are none. Held while they are being made.
static FAILED: Mutex<Option<CUresult>> = Mutex::new(None);

/// Whether the program has called `cuInit`.
pub(crate) fn is_initialized() -> bool {
    INITIALIZED.load(Ordering::Acquire)
}

/// Makes a session in the place of one that is lost; what belonged to that is gone.
pub(crate) fn replace(lost: &'static Session) -> Result<(), CUresult> {
    let _one_at_a_time = locked(&FAILED);
    let is_replaced = |all: &Sessions| all.list.first().is_none_or(|first| !std::ptr::eq(first, lost));
    if existing().is_none_or(is_replaced) {
        return Ok(());
    }
    // A log holds one session. Those of several nodes know each other.
    if are_many() || lost.link.is_recorded() {
        return lost.link.check();
    }
    lost.link.hang_up();
    renewal::forget_all(lost);
    let mut sessions = attach::attach().map_err(|error| {
        crate::errors::say(format_args!("{error}"));
        error.code()
    })?;
    for device in sessions.list.iter_mut().flat_map(|session| &mut session.devices) {
        device.primary = lost.device(device.ordinal)?.primary.again();
    }
    begin(sessions);
    Ok(())
}

/// Makes sessions those of this process, for good: any thread may be inside one when the process
/// ends.
fn begin(sessions: Sessions) -> &'static Sessions {
    let sessions: &'static Sessions = Box::leak(Box::new(sessions));
    for session in &sessions.list {
        session.link.start_flusher();
    }
    SESSIONS.store(std::ptr::from_ref(sessions).cast_mut(), Ordering::Release);
    sessions
}

/// The error of the calling thread's session, if its context is lost.
pub(crate) fn check_failure() -> Result<(), CUresult> {
    get().map_or(Ok(()), |session| session.link.check())
}

/// All sessions of an initialized process.
pub(crate) fn all() -> Result<&'static Sessions, CUresult> {
    if !INITIALIZED.load(Ordering::Acquire) {
        return Err(CUresult::NOT_INITIALIZED);
    }
    existing().ok_or(CUresult::NOT_INITIALIZED)
}

/// Whether there are several sessions.
pub(crate) fn are_many() -> bool {
    ARE_MANY.load(Ordering::Relaxed)
}

/// The session that the calling thread works with: that of its context's device, the first where it has no context.
pub(crate) fn get() -> Result<&'static Session, CUresult> {
    let all = all()?;
    if are_many() { all.of(context::device()) } else { all.list.first().ok_or(CUresult::NO_DEVICE) }
}

/// The session that a device belongs to.
pub(crate) fn of(device: CUdevice) -> Result<&'static Session, CUresult> {
    all()?.of(device)
}

/// A device of any session.
pub(crate) fn device(ordinal: CUdevice) -> Result<&'static Device, CUresult> {
    of(ordinal)?.device(ordinal)
}

/// The argument that says where a call belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Home {
    /// An object, which belongs to a device's node and to a context.
    Handle(usize),
    /// A function, which belongs to its module's context; a library's kernel belongs to none, and
    /// is the same on all devices.
    Function(usize),
    /// A device address, which belongs to a device's node. Only a context says in which order it is
    /// used.
    Address(CUdeviceptr),
}

impl Home {
    fn device(self) -> Option<CUdevice> {
        match self {
            Home::Handle(handle) => of_handle(handle),
            Home::Function(_) => None,
            Home::Address(address) => of_address(address),
        }
    }

    /// The context that the argument carries.
    fn context(self) -> Option<Arc<Context>> {
        match self {
            Home::Handle(handle) | Home::Function(handle) => context::of_handle(handle as u64),
            Home::Address(_) => None,
        }
    }
}

/// The device that an object was made on.
pub(crate) fn of_handle(handle: usize) -> Option<CUdevice> {
    ids::device(handle as u64)
}

/// The device whose memory an address is in.
pub(crate) fn of_address(address: CUdeviceptr) -> Option<CUdevice> {
    let all = all().ok()?;
    if host_memory::is_only_here(address) {
        return None;
    }
    let minted = |device: &&Device| device.minted.contains(&address);
    if let Some(device) = all.devices().find(minted) {
        return Some(device.ordinal);
    }
    // What the nodes' drivers name themselves, such as a module's variables, may be the same for two of them.
    let here = get().ok()?;
    let holds = |session: &&Session| session.holds(address, 1);
    let holder = std::iter::once(here).chain(&all.list).find(holds)?;
    holder.devices.first().map(|device| device.ordinal)
}

/// Runs a call where its arguments belong: in the session of their device, and in their context
/// where the calling thread has none. CUDA takes the context of such a call from its handle
/// ("Stream and Event Behavior" in the CUDA Programming Guide, and `cuLaunchKernel`), so that a
/// thread which has never set one may wait for an event.
pub(crate) fn routed(
    home: Option<Home>,
    call: impl FnOnce() -> Result<(), CUresult>,
) -> Result<(), CUresult> {
    let Some(home) = home else { return call() };
    if are_many()
        && let Some(device) = home.device().filter(|&device| !is_here(device))
    {
        return context::at(device, call);
    }
    if context::check_current().is_ok() {
        return call();
    }
    match home.context() {
        Some(context) => context::within(context, call),
        None => call(),
    }
}

/// Whether a device belongs to the session that the calling thread works with.
pub(crate) fn is_here(device: CUdevice) -> bool {
    get().is_ok_and(|session| session.has(device))
}

/// The session, for a call that needs a current context.
pub(crate) fn enter() -> Result<&'static Session, CUresult> {
    let session = get()?;
    context::check_current()?;
    Ok(session)
}

/// The sessions, made now if there are none, whether or not the program has called `cuInit`.
pub(crate) fn connect() -> Result<&'static Sessions, CUresult> {
    if DETACHED.load(Ordering::Acquire) {
        return Err(CUresult::NOT_INITIALIZED);
    }
    if let Some(sessions) = existing() {
        return Ok(sessions);
    }
    let mut failed = locked(&FAILED);
    if let Some(sessions) = existing() {
        return Ok(sessions);
    }
    if let Some(error) = *failed {
        return Err(error);
    }
    match attach::attach() {
        Ok(sessions) => {
            watch_forks();
            ARE_MANY.store(sessions.list.len() > 1, Ordering::Release);
            Ok(begin(sessions))
        }
        Err(error) => {
            crate::errors::say(format_args!("{error}"));
            *failed = Some(error.code());
            Err(error.code())
        }
    }
}

fn existing() -> Option<&'static Sessions> {
    // SAFETY: null, or what was leaked when it was made.
    unsafe { SESSIONS.load(Ordering::Acquire).as_ref() }
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

/// Runs in a forked child. Its copies of the sockets must not keep the parent's sessions alive.
unsafe extern "C" fn leave_to_parent() {
    for session in existing().map_or(&[][..], |sessions| &sessions.list) {
        session.link.detach();
    }
    SESSIONS.store(std::ptr::null_mut(), Ordering::Release);
    if INITIALIZED.swap(false, Ordering::AcqRel) {
        DETACHED.store(true, Ordering::Release);
    }
}

impl Sessions {
    /// Of sessions that stand where their indices say, and whose devices have each ordinal once.
    pub(crate) fn new(list: Vec<Session>) -> Sessions {
        let count = list.iter().map(|session| session.devices.len()).sum();
        let mut of_device = vec![0; count];
        for session in &list {
            for device in &session.devices {
                of_device[device.ordinal as usize] = session.index;
            }
        }
        Sessions { list, of_device }
    }

    fn of(&self, device: CUdevice) -> Result<&Session, CUresult> {
        let index = usize::try_from(device).ok().and_then(|device| self.of_device.get(device));
        index.and_then(|&index| self.list.get(usize::from(index))).ok_or(CUresult::INVALID_DEVICE)
    }

    /// All devices, session by session.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &Device> {
        self.list.iter().flat_map(|session| &session.devices)
    }

    /// All devices as the program counts them.
    pub(crate) fn ordered_devices(&self) -> impl Iterator<Item = &Device> {
        (0..).zip(&self.of_device).filter_map(|(ordinal, _)| self.of(ordinal).ok()?.device(ordinal).ok())
    }

    pub(crate) fn device_count(&self) -> usize {
        self.of_device.len()
    }
}

impl Session {
    pub(crate) fn new(
        (index, node): (u8, Endpoint),
        link: Link,
        devices: Vec<Device>,
        minted: Range<u64>,
    ) -> Session {
        Session {
            index,
            node,
            functions: functions(&devices),
            link,
            devices,
            minted,
            globals: Mutex::new(BTreeMap::new()),
            limits: Mutex::new(BTreeMap::new()),
            answers: Answers::default(),
            virtual_memory: Mutex::default(),
            live: Live::default(),
            fetched: mirror::Progress::default(),
            reads: Reads::default(),
            has_host_thread: AtomicBool::new(false),
        }
    }

    /// A device of this session, by its ordinal among those of all.
    pub(crate) fn device(&self, ordinal: CUdevice) -> Result<&Device, CUresult> {
        self.devices.iter().find(|device| device.ordinal == ordinal).ok_or(CUresult::INVALID_DEVICE)
    }

    pub(crate) fn has(&self, device: CUdevice) -> bool {
        self.device(device).is_ok()
    }

    /// Whether a handle is one of this session.
    pub(crate) fn owns(&self, handle: u64) -> bool {
        !are_many() || ids::device(handle).is_none_or(|device| self.has(device))
    }

    /// The calling thread's device, if it is of this session.
    pub(crate) fn here(&self) -> Option<&Device> {
        self.device(context::device()).ok()
    }

    /// The place in the headers of the calling thread's commands: of its green context, or of its device in the lease.
    pub(crate) fn place(&self) -> u8 {
        self.here().map_or(0, place_of)
    }

    pub(crate) fn primary(&self, device: CUdevice) -> Result<&Primary, CUresult> {
        Ok(&self.device(device)?.primary)
    }

    /// Whether an address can only be the device's.
    pub(crate) fn is_device_address(&self, address: u64) -> bool {
        if host_memory::is_only_here(address) {
            return false;
        }
        self.minted.contains(&address)
            || self.holds(address, 1)
            || (are_many() && of_address(address).is_some())
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
        let gone: Vec<_> =
            locked(&self.globals).extract_if(.., |_, global| global.module == module).collect();
        gone.into_iter().for_each(|(address, _)| mirror::forget_variable(self, address));
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
        self.wait_for_users(context.device)?;
        for hStream in stream::of_context(handle) {
            self.queue_quietly(&commands::cuStreamDestroy_v2 { hStream: StreamId(hStream) })?;
        }
        for hEvent in event::of_context(handle) {
            self.queue_quietly(&commands::cuEventDestroy_v2 { hEvent: EventId(hEvent) })?;
        }
        for hmod in module::of_context(handle) {
            awaited::settle_all(hmod);
            self.forget_globals(hmod);
            self.queue_quietly(&commands::cuModuleUnload { hmod: ModuleId(hmod) })?;
        }
        for object in texture::of_context(self, handle) {
            object.destroy(self)?;
        }
        texture_reference::destroy_made_in(self, handle)?;
        let (arrays, mipmapped) = arrays::of_context(handle);
        for hArray in arrays {
            self.queue_quietly(&commands::cuArrayDestroy { hArray: ArrayId(hArray) })?;
        }
        for id in mipmapped {
            let hMipmappedArray = MipmappedArrayId(id);
            self.queue_quietly(&commands::cuMipmappedArrayDestroy { hMipmappedArray })?;
        }
        self.release_all(context.device, handle)?;
        renewal::forget_context(handle);
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
