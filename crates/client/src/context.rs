//! Contexts, and each thread's stack of them. All of it lives in the client: on the node a session has one context
//! per device, and which of the program's contexts a command comes from makes no difference there.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sluice_cuda::*;

use crate::green::{self, Green};
use crate::ids::{self, Kind, Table};
use crate::{arrays, event, module, session, stream};

/// One context of the program.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) handle: CUcontext,
    pub(crate) device: CUdevice,
    /// Never the same for two contexts of a process, and never 0.
    pub(crate) number: u64,
    primary: bool,
    /// The context that what is made in this one belongs to, streams aside: itself, but for a green one.
    pub(crate) owner: CUcontext,
    pub(crate) green: Option<Green>,
    flags: AtomicU32,
    cache_config: AtomicU32,
    /// References of a context that is not primary: its creation and each `cuCtxAttach`.
    attached: AtomicU32,
    /// A primary context is dead while nobody retains it; any other is dead once destroyed.
    alive: AtomicBool,
}

/// A device's primary context and who holds it.
#[derive(Debug)]
pub(crate) struct Primary {
    pub(crate) context: Arc<Context>,
    retained: Mutex<u32>,
}

static CONTEXTS: Table<Context> = Table::new();

thread_local! {
    /// The innermost context is the current one; null entries stand for "no context", which programs may set.
    static STACK: RefCell<Vec<Option<Arc<Context>>>> = const { RefCell::new(Vec::new()) };
    /// The current one's handle. It outlives the stack: locals are dropped before a process runs what it has registered for its exit,
    /// and its static destructors.
    static LAST: Cell<CUcontext> = const { Cell::new(CUcontext::NULL) };
    /// Whether the call in progress is none of the current context's.
    static OUTSIDE: Cell<bool> = const { Cell::new(false) };
    /// The device of the node that the call in progress goes to, where that is not the node of the current context.
    static ELSEWHERE: Cell<Option<CUdevice>> = const { Cell::new(None) };
}

impl Context {
    fn create(device: CUdevice, primary: bool, flags: u32) -> Arc<Context> {
        Context::create_with(device, primary, flags, None)
    }

    /// `of` says what makes it a green one, and of which context.
    fn create_with(
        device: CUdevice,
        primary: bool,
        flags: u32,
        of: Option<(CUcontext, Green)>,
    ) -> Arc<Context> {
        let handle = ids::mint_on(device, Kind::Context);
        let itself = CUcontext(handle as usize);
        let (owner, green) = of.map_or((itself, None), |(owner, green)| (owner, Some(green)));
        let context = Context {
            handle: itself,
            owner,
            green,
            device,
            number: ids::sequence(handle),
            primary,
            flags: AtomicU32::new(flags),
            cache_config: AtomicU32::new(0),
            attached: AtomicU32::new(1),
            alive: AtomicBool::new(!primary),
        };
        CONTEXTS.insert(handle, context)
    }

    /// Makes it one that has been destroyed.
    pub(crate) fn kill(&self) {
        self.alive.store(false, Ordering::Release);
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }
}

impl Primary {
    pub(crate) fn new(device: CUdevice) -> Primary {
        Primary { context: Context::create(device, true, 0), retained: Mutex::new(0) }
    }

    /// The same context for a new session: nobody holds it, and its handle stays.
    pub(crate) fn again(&self) -> Primary {
        Primary { context: Arc::clone(&self.context), retained: Mutex::new(0) }
    }

    fn retained(&self) -> std::sync::MutexGuard<'_, u32> {
        self.retained.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A green context of this one, which stays retained until [`Primary::release`].
    pub(crate) fn create_green(&self, green: Green) -> Arc<Context> {
        let flags = self.context.flags.load(Ordering::Relaxed);
        let owner = self.retain();
        Context::create_with(self.context.device, false, flags, Some((owner, green)))
    }

    fn retain(&self) -> CUcontext {
        let mut retained = self.retained();
        *retained = retained.saturating_add(1);
        self.context.alive.store(true, Ordering::Release);
        self.context.handle
    }

    pub(crate) fn release(&self) -> Result<(), CUresult> {
        {
            let mut retained = self.retained();
            *retained = retained.checked_sub(1).ok_or(CUresult::INVALID_CONTEXT)?;
            if *retained > 0 {
                return Ok(());
            }
        }
        end(&self.context)
    }
}

/// The calling thread's context; of a call that goes to another node, the primary one of the device there. Errors as CUDA
/// gives them: none, or one that is gone.
pub(crate) fn current() -> Result<Arc<Context>, CUresult> {
    if let Some(device) = elsewhere() {
        return Ok(Arc::clone(&primary(device)?.context));
    }
    let context = innermost().ok_or(CUresult::INVALID_CONTEXT)?;
    if context.is_alive() { Ok(context) } else { Err(CUresult::CONTEXT_IS_DESTROYED) }
}

/// Whether the calling thread has a context to work in; cheaper than [`current`].
pub(crate) fn check_current() -> Result<(), CUresult> {
    if elsewhere().is_some() {
        return Ok(());
    }
    match with_innermost(|context| context.is_alive()) {
        Some(true) => Ok(()),
        Some(false) => Err(CUresult::CONTEXT_IS_DESTROYED),
        None => Err(CUresult::INVALID_CONTEXT),
    }
}

/// The context that `handle` names; `NULL` stands for the calling thread's.
pub(crate) fn named_or_current(handle: CUcontext) -> Result<Arc<Context>, CUresult> {
    if handle.is_null() { current() } else { named(handle) }
}

fn named(handle: CUcontext) -> Result<Arc<Context>, CUresult> {
    CONTEXTS.get(handle.0 as u64).ok_or(CUresult::INVALID_CONTEXT)
}

fn innermost() -> Option<Arc<Context>> {
    with_innermost(Arc::clone)
}

/// The context, if it is alive, that an object or a module's function belongs to. Graphs, pools and
/// memory that programs map themselves belong to a device alone: for these it is the device's
/// primary one.
pub(crate) fn of_handle(handle: u64) -> Option<Arc<Context>> {
    let owner = match ids::kind(handle)? {
        Kind::Stream => stream::owner(handle)?,
        Kind::Event => event::owner(handle)?,
        Kind::Module => module::owner(handle)?,
        Kind::Function | Kind::Kernel => module::owner_of_function(handle)?,
        Kind::Array | Kind::MipmappedArray => arrays::owner(handle)?,
        _ => primary(ids::device(handle)?).ok()?.context.handle,
    };
    CONTEXTS.get(owner.0 as u64).filter(|context| context.is_alive())
}

/// Runs `body` with this context as the calling thread's.
pub(crate) fn within(
    context: Arc<Context>,
    body: impl FnOnce() -> Result<(), CUresult>,
) -> Result<(), CUresult> {
    /// Also after a panic: the thread has no context again.
    struct Back;
    impl Drop for Back {
        fn drop(&mut self) {
            let _ = with_stack(Vec::pop);
        }
    }
    with_stack(|stack| stack.push(Some(context)))?;
    let _back = Back;
    body()
}

/// What `body` says of the calling thread's context, if it has one.
fn with_innermost<T>(body: impl Copy + FnOnce(&Arc<Context>) -> T) -> Option<T> {
    let of_stack = |stack: &RefCell<Vec<_>>| stack.borrow().last().and_then(Option::as_ref).map(body);
    match STACK.try_with(of_stack) {
        Ok(said) => said,
        Err(_) => {
            let last = LAST.try_with(Cell::get).unwrap_or(CUcontext::NULL);
            CONTEXTS.get(last.0 as u64).as_ref().map(body)
        }
    }
}

fn with_stack<T>(body: impl FnOnce(&mut Vec<Option<Arc<Context>>>) -> T) -> Result<T, CUresult> {
    let changed = |stack: &RefCell<Vec<Option<Arc<Context>>>>| {
        let mut stack = stack.borrow_mut();
        let result = body(&mut stack);
        let last = stack.last().and_then(Option::as_ref).map_or(CUcontext::NULL, |context| context.handle);
        let _ = LAST.try_with(|of_thread| of_thread.set(last));
        result
    };
    STACK.try_with(changed).map_err(|_| CUresult::DEINITIALIZED)
}

/// Ends all contexts of a session that is lost, as far as they are known here; returns them.
pub(crate) fn abandon(lost: &session::Session) -> Vec<CUcontext> {
    let of_session = CONTEXTS.find(|context| lost.has(context.device));
    for handle in &of_session {
        let Some(context) = CONTEXTS.get(*handle) else { continue };
        context.kill();
        if !context.primary {
            CONTEXTS.remove(*handle);
        }
    }
    of_session.into_iter().map(|handle| CUcontext(handle as usize)).collect()
}

/// Everything that belongs to a context goes with it; the device's memory follows in the order of the session.
fn end(context: &Context) -> Result<(), CUresult> {
    if !context.alive.swap(false, Ordering::AcqRel) {
        return Ok(());
    }
    sluice_export_tables::context_destroyed(context.handle);
    session::get()?;
    if context.primary {
        green::primary_ended(context.device)?;
    }
    session::of(context.device)?.context_ended(context)
}

fn checked_flags(flags: u32) -> Result<u32, CUresult> {
    let schedule = flags & CU_CTX_SCHED_MASK;
    let known = matches!(
        schedule,
        CU_CTX_SCHED_AUTO | CU_CTX_SCHED_SPIN | CU_CTX_SCHED_YIELD | CU_CTX_SCHED_BLOCKING_SYNC
    );
    if flags & !CU_CTX_FLAGS_MASK == 0 && known { Ok(flags) } else { Err(CUresult::INVALID_VALUE) }
}

fn create(pctx: *mut CUcontext, flags: u32, device: CUdevice) -> Result<(), CUresult> {
    session::device(device)?;
    let flags = checked_flags(flags)?;
    let context = Context::create(device, false, flags);
    let handle = context.handle;
    with_stack(|stack| stack.push(Some(context)))?;
    // SAFETY: the program passes a place for the context.
    unsafe { crate::out::write(pctx, handle) }
}

fn primary(device: CUdevice) -> Result<&'static Primary, CUresult> {
    Ok(&session::device(device)?.primary)
}

// The entry points. CUDA Driver API, sections "Primary Context Management" and "Context Management".

pub(crate) unsafe fn cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) -> Result<(), CUresult> {
    let handle = primary(dev)?.retain();
    // SAFETY: the program passes a place for the context.
    unsafe { crate::out::write(pctx, handle) }
}

pub(crate) unsafe fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) -> Result<(), CUresult> {
    primary(dev)?.release()
}

pub(crate) unsafe fn cuDevicePrimaryCtxReset_v2(dev: CUdevice) -> Result<(), CUresult> {
    let session = session::of(dev)?;
    if session.link.check().is_err() {
        return session::replace(session);
    }
    end(&primary(dev)?.context)
}

pub(crate) unsafe fn cuDevicePrimaryCtxGetState(
    dev: CUdevice,
    flags: *mut u32,
    active: *mut i32,
) -> Result<(), CUresult> {
    let context = &primary(dev)?.context;
    // SAFETY: the program passes two places.
    unsafe {
        crate::out::write(flags, context.flags.load(Ordering::Relaxed))?;
        crate::out::write(active, i32::from(context.is_alive()))
    }
}

pub(crate) unsafe fn cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: u32) -> Result<(), CUresult> {
    primary(dev)?.context.flags.store(checked_flags(flags)?, Ordering::Relaxed);
    Ok(())
}

pub(crate) unsafe fn cuCtxCreate(pctx: *mut CUcontext, flags: u32, dev: CUdevice) -> Result<(), CUresult> {
    create(pctx, flags, dev)
}

pub(crate) unsafe fn cuCtxCreate_v2(pctx: *mut CUcontext, flags: u32, dev: CUdevice) -> Result<(), CUresult> {
    create(pctx, flags, dev)
}

pub(crate) unsafe fn cuCtxCreate_v3(
    pctx: *mut CUcontext,
    _: *mut CUexecAffinityParam,
    affinities: i32,
    flags: u32,
    dev: CUdevice,
) -> Result<(), CUresult> {
    if affinities != 0 {
        return Err(CUresult::UNSUPPORTED_EXEC_AFFINITY);
    }
    create(pctx, flags, dev)
}

pub(crate) unsafe fn cuCtxCreate_v4(
    pctx: *mut CUcontext,
    params: *mut CUctxCreateParams,
    flags: u32,
    dev: CUdevice,
) -> Result<(), CUresult> {
    // SAFETY: the program passes null or parameters.
    if let Some(params) = unsafe { params.as_ref() }
        && (params.numExecAffinityParams != 0 || !params.cigParams.is_null())
    {
        return Err(CUresult::NOT_SUPPORTED);
    }
    create(pctx, flags, dev)
}

pub(crate) unsafe fn cuCtxDestroy_v2(ctx: CUcontext) -> Result<(), CUresult> {
    let context = named(ctx)?;
    if context.primary || context.green.is_some() {
        return Err(CUresult::INVALID_CONTEXT);
    }
    with_stack(|stack| {
        // Only the innermost place: other threads, and places further out, keep a destroyed context.
        if stack.last().and_then(Option::as_ref).is_some_and(|top| top.handle == ctx) {
            stack.pop();
        }
    })?;
    end(&context)?;
    CONTEXTS.remove(ctx.0 as u64);
    Ok(())
}

pub(crate) unsafe fn cuCtxAttach(pctx: *mut CUcontext, flags: u32) -> Result<(), CUresult> {
    session::get()?;
    let context = current()?;
    if flags != 0 || pctx.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    context.attached.fetch_add(1, Ordering::Relaxed);
    // SAFETY: not null, and the program's to be written.
    unsafe { crate::out::write(pctx, context.handle) }
}

/// The context has to be the calling thread's; it ends with its last reference.
pub(crate) unsafe fn cuCtxDetach(ctx: CUcontext) -> Result<(), CUresult> {
    session::get()?;
    let context = current()?;
    if context.handle != ctx || context.primary || context.green.is_some() {
        return Err(CUresult::INVALID_CONTEXT);
    }
    if context.attached.fetch_sub(1, Ordering::AcqRel) > 1 {
        return Ok(());
    }
    // SAFETY: no pointers of this process.
    unsafe { cuCtxDestroy_v2(ctx) }
}

pub(crate) unsafe fn cuCtxGetExecAffinity(
    _: *mut CUexecAffinityParam,
    kind: CUexecAffinityType,
) -> Result<(), CUresult> {
    session::get()?;
    check_current()?;
    match kind {
        CUexecAffinityType::SM_COUNT => Err(CUresult::UNSUPPORTED_EXEC_AFFINITY),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

pub(crate) unsafe fn cuCtxPushCurrent_v2(ctx: CUcontext) -> Result<(), CUresult> {
    let context = named(ctx)?;
    with_stack(|stack| stack.push(Some(context)))
}

pub(crate) unsafe fn cuCtxPopCurrent_v2(pctx: *mut CUcontext) -> Result<(), CUresult> {
    session::get()?;
    let popped = with_stack(Vec::pop)?.flatten().ok_or(CUresult::INVALID_CONTEXT)?;
    // SAFETY: the program passes null or a place for the context.
    unsafe { crate::out::write_if_wanted(pctx, popped.handle) };
    Ok(())
}

pub(crate) unsafe fn cuCtxSetCurrent(ctx: CUcontext) -> Result<(), CUresult> {
    session::get()?;
    let context = if ctx.is_null() { None } else { Some(named(ctx)?) };
    with_stack(|stack| {
        stack.pop();
        if context.is_some() {
            stack.push(context);
        }
    })
}

pub(crate) unsafe fn cuCtxGetCurrent(pctx: *mut CUcontext) -> Result<(), CUresult> {
    session::get()?;
    let handle = innermost().map_or(CUcontext::NULL, |context| context.handle);
    // SAFETY: the program passes a place for the context.
    unsafe { crate::out::write(pctx, handle) }
}

pub(crate) unsafe fn cuCtxGetDevice(device: *mut CUdevice) -> Result<(), CUresult> {
    session::get()?;
    // SAFETY: the program passes a place for the device.
    unsafe { crate::out::write(device, current()?.device) }
}

pub(crate) unsafe fn cuCtxGetDevice_v2(device: *mut CUdevice, ctx: CUcontext) -> Result<(), CUresult> {
    session::get()?;
    // SAFETY: the program passes a place for the device.
    unsafe { crate::out::write(device, named_or_current(ctx)?.device) }
}

pub(crate) unsafe fn cuCtxGetFlags(flags: *mut u32) -> Result<(), CUresult> {
    session::get()?;
    // SAFETY: the program passes a place for the flags.
    unsafe { crate::out::write(flags, current()?.flags.load(Ordering::Relaxed)) }
}

pub(crate) unsafe fn cuCtxGetId(ctx: CUcontext, id: *mut u64) -> Result<(), CUresult> {
    session::get()?;
    // SAFETY: the program passes a place for the number.
    unsafe { crate::out::write(id, named_or_current(ctx)?.number) }
}

/// The version since which contexts have looked as they do now; what NVIDIA's driver answers too.
const API_VERSION: u32 = 3020;

pub(crate) unsafe fn cuCtxGetApiVersion(ctx: CUcontext, version: *mut u32) -> Result<(), CUresult> {
    session::get()?;
    named_or_current(ctx)?;
    // SAFETY: the program passes a place for the version.
    unsafe { crate::out::write(version, API_VERSION) }
}

pub(crate) unsafe fn cuCtxGetCacheConfig(config: *mut CUfunc_cache) -> Result<(), CUresult> {
    session::get()?;
    let value = CUfunc_cache(current()?.cache_config.load(Ordering::Relaxed));
    // SAFETY: the program passes a place for the preference.
    unsafe { crate::out::write(config, value) }
}

/// A preference only, which devices with a unified cache ignore: remembered, not sent.
pub(crate) unsafe fn cuCtxSetCacheConfig(config: CUfunc_cache) -> Result<(), CUresult> {
    session::get()?;
    if config.name().is_none() {
        return Err(CUresult::INVALID_VALUE);
    }
    current()?.cache_config.store(config.0, Ordering::Relaxed);
    Ok(())
}

pub(crate) unsafe fn cuCtxSetFlags(flags: u32) -> Result<(), CUresult> {
    session::get()?;
    if flags & !CU_CTX_FLAGS_MASK != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    current()?.flags.store(flags, Ordering::Relaxed);
    Ok(())
}

/// Devices since compute capability 5.0 have banks of four bytes, whatever is asked for.
pub(crate) unsafe fn cuCtxGetSharedMemConfig(pConfig: *mut CUsharedconfig) -> Result<(), CUresult> {
    session::get()?;
    current()?;
    // SAFETY: the program passes a place for the width.
    unsafe { crate::out::write(pConfig, CUsharedconfig::FOUR_BYTE_BANK_SIZE) }
}

pub(crate) unsafe fn cuCtxSetSharedMemConfig(config: CUsharedconfig) -> Result<(), CUresult> {
    session::get()?;
    current()?;
    if config.name().is_some() { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
}

/// Access windows are not sent to the node, so no line of its cache persists for this session.
pub(crate) unsafe fn cuCtxResetPersistingL2Cache() -> Result<(), CUresult> {
    session::get()?;
    current().map(drop)
}

/// As `cuDeviceCanAccessPeer` says: no device of a lease reaches into another. One is no peer of itself.
pub(crate) unsafe fn cuCtxEnablePeerAccess(peerContext: CUcontext, Flags: u32) -> Result<(), CUresult> {
    session::get()?;
    let (here, peer) = (current()?, named(peerContext)?);
    Err(match Flags {
        0 if here.device == peer.device => CUresult::INVALID_DEVICE,
        0 => CUresult::PEER_ACCESS_UNSUPPORTED,
        _ => CUresult::INVALID_VALUE,
    })
}

pub(crate) unsafe fn cuCtxDisablePeerAccess(peerContext: CUcontext) -> Result<(), CUresult> {
    session::get()?;
    current()?;
    named(peerContext)?;
    Err(CUresult::PEER_ACCESS_NOT_ENABLED)
}

// Names from before CUDA gave these functions their `_v2`; the meaning is the same.

pub(crate) unsafe fn cuDevicePrimaryCtxRelease(dev: CUdevice) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuDevicePrimaryCtxRelease_v2(dev) }
}

pub(crate) unsafe fn cuDevicePrimaryCtxReset(dev: CUdevice) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuDevicePrimaryCtxReset_v2(dev) }
}

pub(crate) unsafe fn cuDevicePrimaryCtxSetFlags(dev: CUdevice, flags: u32) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuDevicePrimaryCtxSetFlags_v2(dev, flags) }
}

pub(crate) unsafe fn cuCtxDestroy(ctx: CUcontext) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuCtxDestroy_v2(ctx) }
}

pub(crate) unsafe fn cuCtxPushCurrent(ctx: CUcontext) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuCtxPushCurrent_v2(ctx) }
}

pub(crate) unsafe fn cuCtxPopCurrent(pctx: *mut CUcontext) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuCtxPopCurrent_v2(pctx) }
}

/// The device that the calling thread works with; 0 where it has no context.
pub(crate) fn device() -> CUdevice {
    if let Some(device) = elsewhere() {
        return device;
    }
    with_innermost(|context| context.device).unwrap_or(0)
}

/// The place of the calling thread's context in the headers of commands, if that is a green one of this device.
pub(crate) fn green_place(device: CUdevice) -> Option<u8> {
    if !green::some() || elsewhere().is_some() || OUTSIDE.try_with(Cell::get).unwrap_or(false) {
        return None;
    }
    let context = innermost().filter(|context| context.device == device && context.is_alive())?;
    context.green.as_ref().map(|green| green.place)
}

/// Runs `body` as if no green context were current.
pub(crate) fn at_device<R>(device: CUdevice, body: impl FnOnce() -> R) -> R {
    let before = OUTSIDE.try_with(|outside| outside.replace(true)).unwrap_or(false);
    let result = if device == self::device() { body() } else { at(device, body) };
    let _ = OUTSIDE.try_with(|outside| outside.set(before));
    result
}

/// Forgets a context that has ended.
pub(crate) fn forget(context: &Context) {
    CONTEXTS.remove(context.handle.0 as u64);
}

/// Whether one context is the other, or a green one of it.
pub(crate) fn is_of(context: CUcontext, other: CUcontext) -> bool {
    context == other || CONTEXTS.get(context.0 as u64).is_some_and(|context| context.owner == other)
}

fn elsewhere() -> Option<CUdevice> {
    if session::are_many() { ELSEWHERE.try_with(Cell::get).ok().flatten() } else { None }
}

/// Runs `body` with this device in the place of the current context's.
pub(crate) fn at<R>(device: CUdevice, body: impl FnOnce() -> R) -> R {
    /// Also after a panic: the thread goes on where it was.
    struct Back(Option<CUdevice>);
    impl Drop for Back {
        fn drop(&mut self) {
            let _ = ELSEWHERE.try_with(|elsewhere| elsewhere.set(self.0));
        }
    }
    let _back = Back(ELSEWHERE.try_with(|elsewhere| elsewhere.replace(Some(device))).unwrap_or(None));
    body()
}

/// The hidden tables' view.
pub(crate) fn current_or_null() -> CUcontext {
    innermost().map_or(CUcontext::NULL, |context| context.handle)
}

pub(crate) fn number_of(ctx: CUcontext) -> Result<u64, CUresult> {
    named(ctx).map(|context| context.number)
}

/// Starts what a profiler has attached to this process collects. None can attach to a GPU that is elsewhere, and without
/// one CUDA's own call does nothing either.
pub(crate) unsafe fn cuProfilerStart() -> Result<(), CUresult> {
    session::get()?;
    current().map(drop)
}

/// As [`cuProfilerStart`].
pub(crate) unsafe fn cuProfilerStop() -> Result<(), CUresult> {
    session::get()?;
    current().map(drop)
}
