//! Contexts, and each thread's stack of them.
//!
//! All of it lives in the client: on the node a session has one context per device, and which of
//! the program's contexts a command comes from makes no difference there. What begins and ends
//! contexts, and their entry points, are in [`lifecycle`](crate::lifecycle).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use sluice_cuda::*;

use crate::abi::ids::{self, Kind, Table};

/// One context of the program.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) handle: CUcontext,
    pub(crate) device: CUdevice,
    /// Never the same for two contexts of a process, and never 0.
    pub(crate) number: u64,
    pub(crate) primary: bool,
    /// The context that what is made in this one belongs to, streams aside: itself, but for a green
    /// one.
    pub(crate) owner: CUcontext,
    pub(crate) green: Option<Green>,
    pub(crate) flags: AtomicU32,
    pub(crate) cache_config: AtomicU32,
    /// References of a context that is not primary: its creation and each `cuCtxAttach`.
    pub(crate) attached: AtomicU32,
    /// A primary context is dead while it is not retained; any other is dead once destroyed.
    pub(crate) alive: AtomicBool,
}

/// What makes a context a green one.
#[derive(Debug)]
pub(crate) struct Green {
    pub(crate) handle: CUgreenCtx,
    /// In the headers of commands.
    pub(crate) place: u8,
}

/// A device's primary context and who holds it.
#[derive(Debug)]
pub(crate) struct Primary {
    pub(crate) context: Arc<Context>,
    retained: Mutex<u32>,
}

static CONTEXTS: Table<Context> = Table::new();
/// The primary context of each device of this process.
static PRIMARIES: RwLock<BTreeMap<CUdevice, Arc<Context>>> = RwLock::new(BTreeMap::new());
/// Whether the devices of this process are on several nodes; never again false once true.
static SEVERAL_NODES: AtomicBool = AtomicBool::new(false);
/// The number of green contexts that live; nearly always none.
static GREEN_COUNT: AtomicU32 = AtomicU32::new(0);
static WAS_EVER_GREEN: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The innermost context is the current one; null entries stand for "no context", which
    /// programs may set.
    static STACK: RefCell<Vec<Option<Arc<Context>>>> = const { RefCell::new(Vec::new()) };
    /// The current one's handle. It outlives the stack: locals are dropped before a process runs
    /// what it has registered for its exit, and its static destructors.
    static LAST: Cell<CUcontext> = const { Cell::new(CUcontext::NULL) };
    /// Whether the call in progress is none of the current context's.
    static OUTSIDE: Cell<bool> = const { Cell::new(false) };
    /// The device of the node that the call in progress goes to, where that is not the node of the
    /// current context.
    static ELSEWHERE: Cell<Option<CUdevice>> = const { Cell::new(None) };
}

impl Context {
    pub(crate) fn create(device: CUdevice, primary: bool, flags: u32) -> Arc<Context> {
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
        Primary::of(Context::create(device, true, 0))
    }

    /// Returns the same context for a new session: it is not retained, and its handle stays.
    pub(crate) fn again(&self) -> Primary {
        Primary::of(Arc::clone(&self.context))
    }

    fn of(context: Arc<Context>) -> Primary {
        let mut primaries = PRIMARIES.write().unwrap_or_else(PoisonError::into_inner);
        primaries.insert(context.device, Arc::clone(&context));
        Primary { context, retained: Mutex::new(0) }
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

    pub(crate) fn retain(&self) -> CUcontext {
        let mut retained = self.retained();
        *retained = retained.saturating_add(1);
        self.context.alive.store(true, Ordering::Release);
        self.context.handle
    }

    /// Gives up one reference. True for the last one, with which the context is to end.
    pub(crate) fn release(&self) -> Result<bool, CUresult> {
        let mut retained = self.retained();
        *retained = retained.checked_sub(1).ok_or(CUresult::INVALID_CONTEXT)?;
        Ok(*retained == 0)
    }
}

/// The calling thread's context; of a call that goes to another node, the primary one of the device
/// there. Errors as CUDA gives them: none, or one that is gone.
pub(crate) fn current() -> Result<Arc<Context>, CUresult> {
    if let Some(device) = elsewhere() {
        return primary_of(device).ok_or(CUresult::INVALID_DEVICE);
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

pub(crate) fn named(handle: CUcontext) -> Result<Arc<Context>, CUresult> {
    CONTEXTS.get(handle.0 as u64).ok_or(CUresult::INVALID_CONTEXT)
}

/// Returns the innermost context of the calling thread's stack, whichever node its call goes to.
pub(crate) fn innermost() -> Option<Arc<Context>> {
    with_innermost(Arc::clone)
}

/// Runs `body` with this context as the calling thread's.
pub(crate) fn within(
    context: Arc<Context>,
    body: impl FnOnce() -> Result<(), CUresult>,
) -> Result<(), CUresult> {
    /// Takes the context off the stack again, also after a panic.
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

pub(crate) fn with_stack<T>(body: impl FnOnce(&mut Vec<Option<Arc<Context>>>) -> T) -> Result<T, CUresult> {
    let changed = |stack: &RefCell<Vec<Option<Arc<Context>>>>| {
        let mut stack = stack.borrow_mut();
        let result = body(&mut stack);
        let last = stack.last().and_then(Option::as_ref).map_or(CUcontext::NULL, |context| context.handle);
        let _ = LAST.try_with(|of_thread| of_thread.set(last));
        result
    };
    STACK.try_with(changed).map_err(|_| CUresult::DEINITIALIZED)
}

/// Ends all contexts of the devices of a session that is lost, and returns them.
pub(crate) fn abandon(is_lost: impl std::ops::Fn(CUdevice) -> bool) -> Vec<CUcontext> {
    let of_session = CONTEXTS.find(|context| is_lost(context.device));
    for handle in &of_session {
        let Some(context) = CONTEXTS.get(*handle) else { continue };
        context.kill();
        if !context.primary {
            CONTEXTS.remove(*handle);
        }
    }
    of_session.into_iter().map(|handle| CUcontext(handle as usize)).collect()
}

/// The device that the calling thread works with; 0 where it has no context.
pub(crate) fn device() -> CUdevice {
    if let Some(device) = elsewhere() {
        return device;
    }
    with_innermost(|context| context.device).unwrap_or(0)
}

/// The place of the calling thread's context in the headers of commands, if that is a green one of
/// this device.
pub(crate) fn green_place(device: CUdevice) -> Option<u8> {
    if !some_are_green() || elsewhere().is_some() || OUTSIDE.try_with(Cell::get).unwrap_or(false) {
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

/// Returns the primary context of a device of this process.
pub(crate) fn primary_of(device: CUdevice) -> Option<Arc<Context>> {
    PRIMARIES.read().unwrap_or_else(PoisonError::into_inner).get(&device).cloned()
}

/// Returns the context of a handle if it is alive.
pub(crate) fn alive(handle: CUcontext) -> Option<Arc<Context>> {
    CONTEXTS.get(handle.0 as u64).filter(|context| context.is_alive())
}

/// Mints a handle of an object on the calling thread's device.
pub(crate) fn mint(kind: Kind) -> u64 {
    ids::mint_on(device(), kind)
}

/// Says whether the devices of this process are on several nodes.
pub(crate) fn on_several_nodes() -> bool {
    SEVERAL_NODES.load(Ordering::Relaxed)
}

pub(crate) fn set_on_several_nodes(several: bool) {
    SEVERAL_NODES.store(several, Ordering::Release);
}

/// Says whether there are green contexts.
pub(crate) fn some_are_green() -> bool {
    GREEN_COUNT.load(Ordering::Acquire) != 0
}

/// Says whether there have ever been green contexts.
pub(crate) fn were_ever_green() -> bool {
    WAS_EVER_GREEN.load(Ordering::Acquire)
}

pub(crate) fn green_began() {
    WAS_EVER_GREEN.store(true, Ordering::Release);
    GREEN_COUNT.fetch_add(1, Ordering::AcqRel);
}

pub(crate) fn green_ended() {
    GREEN_COUNT.fetch_sub(1, Ordering::AcqRel);
}

pub(crate) fn all_green_ended() {
    GREEN_COUNT.store(0, Ordering::Release);
}

fn elsewhere() -> Option<CUdevice> {
    if on_several_nodes() { ELSEWHERE.try_with(Cell::get).ok().flatten() } else { None }
}

/// Runs `body` with this device in the place of the current context's.
pub(crate) fn at<R>(device: CUdevice, body: impl FnOnce() -> R) -> R {
    /// Restores the thread's device, also after a panic.
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
