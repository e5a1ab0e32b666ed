//! Contexts and their streams: what belongs to one program's use of a device. This file has
//! contexts, the primary context of each device, and each thread's stack of current contexts (CUDA
//! Driver API, Context Management and Primary Context Management).

pub(crate) mod stream;

use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use sluice_cuda::{CUcontext, CUdevice, CUlimit};

use sluice_jit::DeviceHeap;

use crate::base::status::{Result, Status};
use crate::base::table::Table;
use crate::context::stream::Stream;
use crate::device::account::{self, Charge};
use crate::device::address_space::space;
use crate::device::heap;
use crate::device::machine::{Kernel, LOCAL_BYTES_MAX, Shape};
use crate::device::multiprocessors::Resource;
use crate::device::sanitizer;
use crate::device::{DEVICES_MAX, Device, driver};

pub(crate) static CONTEXTS: Table<Context> = Table::new(1);
/// Green contexts by their own handles; a context made from one has that of the context.
pub(crate) static GREENS: Table<Context> = Table::new(23);

pub(crate) struct Context {
    pub(crate) handle: usize,
    /// Unique in the process and never used again (`cuCtxGetId`).
    pub(crate) id: u64,
    pub(crate) device: &'static Device,
    pub(crate) is_primary: bool,
    /// Of a green context, which is its device's primary one but for its streams.
    pub(crate) green: Option<Green>,
    pub(crate) flags: AtomicU32,
    pub(crate) api_version: u32,
    pub(crate) cache_config: AtomicU32,
    /// The stream that synchronises with all blocking streams.
    pub(crate) legacy: Arc<Stream>,
    limits: Mutex<[u64; LIMITS.len()]>,
    /// Behind device-side `malloc`; made with the first launch that may need it.
    device_heap: OnceLock<OwnHeap>,
    /// Local memory of the kernels that were launched: as much as the one with the most needs.
    local: Mutex<Vec<Charge>>,
    /// The sticky error of a failed kernel, or 0.
    error: AtomicI32,
    pub(crate) destroyed: AtomicBool,
}

/// What a green context has of its device.
pub(crate) struct Green {
    /// The primary context, whose everything is but the streams.
    pub(crate) parent: Arc<Context>,
    pub(crate) resource: Resource,
    /// As the program names the green context.
    pub(crate) handle: usize,
}

/// The heap of device-side `malloc`, and the memory that it is in.
struct OwnHeap {
    heap: DeviceHeap,
    range: Range<u64>,
    _charge: Charge,
}

impl Drop for OwnHeap {
    fn drop(&mut self) {
        if let Ok(space) = space() {
            space.give(self.range.start, self.range.end - self.range.start);
        }
    }
}

/// The primary context of a device: one object, alive while it is retained.
pub(crate) struct Primary {
    pub(crate) context: Option<Arc<Context>>,
    pub(crate) retained: u32,
    pub(crate) flags: u32,
    /// The handle stays the same over releases and resets.
    handle: usize,
}

/// The primary contexts, by their devices' ordinals.
static PRIMARIES: [Mutex<Primary>; DEVICES_MAX] = [const { Mutex::new(Primary::NEW) }; DEVICES_MAX];

/// The primary context of a device.
pub(crate) fn primary(device: &Device) -> MutexGuard<'static, Primary> {
    PRIMARIES[device.ordinal].lock().unwrap_or_else(PoisonError::into_inner)
}

impl Primary {
    const NEW: Primary = Primary { context: None, retained: 0, flags: 0, handle: 0 };

    fn handle(&mut self) -> usize {
        if self.handle == 0 {
            self.handle = CONTEXTS.mint();
        }
        self.handle
    }

    /// The context, created if it is not there.
    fn activate(&mut self, device: &'static Device) -> Arc<Context> {
        if let Some(context) = &self.context {
            return Arc::clone(context);
        }
        let handle = self.handle();
        let context = Context::new(handle, device, true, self.flags, None);
        CONTEXTS.insert_at(handle, Arc::clone(&context));
        self.context = Some(Arc::clone(&context));
        context
    }
}

/// The limits that can be read, with their values in a new context, in bytes or counts.
const LIMITS: [(CUlimit, u64); 8] = [
    (CUlimit::STACK_SIZE, 1 << 10),
    (CUlimit::PRINTF_FIFO_SIZE, 1 << 20),
    (CUlimit::MALLOC_HEAP_SIZE, 8 << 20),
    (CUlimit::DEV_RUNTIME_SYNC_DEPTH, 2),
    (CUlimit::DEV_RUNTIME_PENDING_LAUNCH_COUNT, 2048),
    (CUlimit::MAX_L2_FETCH_GRANULARITY, 64),
    (CUlimit::PERSISTING_L2_CACHE_SIZE, 0),
    // Compute in graphics, which no context here is part of. cuBLASLt asks, and does not start
    // without an answer.
    (CUlimit::CIG_ENABLED, 0),
];

/// Version of the API that `cuCtxGetApiVersion` reports for every context.
const API_VERSION: u32 = 3020;

thread_local! {
    static STACK: RefCell<Vec<Arc<Context>>> = const { RefCell::new(Vec::new()) };
}

impl Context {
    fn new(
        handle: usize,
        device: &'static Device,
        is_primary: bool,
        flags: u32,
        green: Option<Green>,
    ) -> Arc<Self> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self {
            handle,
            id,
            device,
            is_primary,
            green,
            flags: AtomicU32::new(flags),
            api_version: API_VERSION,
            cache_config: AtomicU32::new(0),
            legacy: Arc::new(Stream::legacy(handle, device.ordinal)),
            limits: Mutex::new(LIMITS.map(|(_, value)| value)),
            device_heap: OnceLock::new(),
            local: Mutex::default(),
            error: AtomicI32::new(0),
            destroyed: AtomicBool::new(false),
        })
    }

    /// A context of its own, not current anywhere yet.
    pub(crate) fn create(device: &'static Device, flags: u32) -> Arc<Self> {
        let handle = CONTEXTS.mint();
        let context = Self::new(handle, device, false, flags, None);
        CONTEXTS.insert_at(handle, Arc::clone(&context));
        context
    }

    /// A green context over the device's primary one, which stays retained for as long as it lives.
    /// Returns its handle as a green context.
    pub(crate) fn create_green(device: &'static Device, resource: Resource) -> usize {
        let (parent, handle, green) = (retain_primary(device), CONTEXTS.mint(), GREENS.mint());
        let flags = parent.flags.load(Ordering::Relaxed);
        let of = Green { parent, resource: resource.owned(), handle: green };
        let context = Self::new(handle, device, false, flags, Some(of));
        CONTEXTS.insert_at(handle, Arc::clone(&context));
        GREENS.insert_at(green, context);
        green
    }

    /// The context that owns what is made in this one, streams aside.
    fn whole(&self) -> &Context {
        self.green.as_ref().map_or(self, |green| &*green.parent)
    }

    /// Handle of the context that owns what is made in this one, streams aside.
    pub(crate) fn owner(&self) -> usize {
        self.whole().handle
    }

    /// Whether it is the context with this handle, or a green one of it.
    pub(crate) fn is_of(&self, handle: usize) -> bool {
        self.handle == handle || self.owner() == handle
    }

    /// The multiprocessors that its work may use.
    pub(crate) fn resource(&self) -> Result<Resource> {
        self.green.as_ref().map_or_else(|| Resource::of(self.device), |green| Ok(green.resource))
    }

    /// How many of them there are.
    pub(crate) fn multiprocessors(&self) -> u32 {
        let green = self.green.as_ref();
        green.map_or(self.device.limits.multiprocessors, |green| green.resource.count())
    }

    /// How many threads of the executor may run its blocks: for a green context, the share of them
    /// that its multiprocessors are.
    pub(crate) fn threads_max(&self) -> u32 {
        let Some(green) = &self.green else { return u32::MAX };
        let threads = driver().map_or(1, |driver| driver.threads as u64);
        let (part, whole) = (green.resource.count(), self.device.limits.multiprocessors.max(1));
        (u64::from(part) * threads).div_ceil(u64::from(whole)) as u32
    }

    /// The sticky error, if a kernel of this context has failed.
    pub(crate) fn check(&self) -> Result<()> {
        Status(self.whole().error.load(Ordering::Acquire)).ok()
    }

    /// Makes the first error stay: every later call in this context answers it.
    pub(crate) fn fail(&self, status: Status) {
        let _ = self.whole().error.compare_exchange(0, status.0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The heap for device-side `malloc`, if a kernel that may need one was launched.
    pub(crate) fn device_heap(&self) -> Option<&DeviceHeap> {
        self.whole().device_heap.get().map(|own| &own.heap)
    }

    /// Makes that heap, as large as the limit says now, unless it is there.
    pub(crate) fn make_device_heap(&self) -> Result<()> {
        let whole = self.whole();
        if whole.device_heap.get().is_some() {
            return Ok(());
        }
        let size = heap::whole_chunks(self.limit(CUlimit::MALLOC_HEAP_SIZE)?)?;
        let charge = account::charge(self.device, size)?;
        let start = heap::map_hidden_chunks(size)?;
        let own = OwnHeap {
            heap: DeviceHeap::new(start..start + size),
            range: start..start + size,
            _charge: charge,
        };
        // If another thread was first, this one is given back.
        if whole.device_heap.set(own).is_ok() {
            sanitizer::has_own_memory(start, size, "the heap of device-side malloc");
        }
        Ok(())
    }

    /// Makes sure that the context has the local memory that a launch of this shape needs.
    pub(crate) fn reserve_local_for(&self, kernel: &dyn Kernel, shape: &Shape) -> Result<()> {
        let bytes = kernel.local_with_stack(self.stack_bytes());
        if bytes == 0 {
            return Ok(());
        }
        let (machine, limits) = (driver()?.machine, &self.device.limits);
        let threads = machine.threads_with_local_memory(limits, shape, self.multiprocessors());
        let bytes = heap::whole_chunks(u64::from(bytes).saturating_mul(threads))?;
        let mut local = self.whole().local.lock().unwrap_or_else(PoisonError::into_inner);
        let have: u64 = local.iter().map(Charge::bytes).sum();
        if bytes > have {
            local.push(account::charge(self.device, bytes - have)?);
        }
        Ok(())
    }

    /// Gives all local memory back.
    pub(crate) fn give_back_local_memory(&self) {
        self.local.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Stack of each thread of a launch, for kernels with functions that call themselves. Frames
    /// hold all that is live in a call, most of which a GPU keeps in registers: a small stack is
    /// larger here than its limit says, so that what fits on a GPU fits.
    pub(crate) fn stack_bytes(&self) -> u32 {
        const FRAMES: u64 = 4;
        const SMALL: u64 = 16 << 10;
        // `set_limit` keeps it below.
        let asked = self.limit(CUlimit::STACK_SIZE).map_or(0, |bytes| bytes.min(LOCAL_BYTES_MAX));
        asked.max((FRAMES * asked).min(SMALL)) as u32
    }

    pub(crate) fn limit(&self, limit: CUlimit) -> Result<u64> {
        let place = limit_place(limit)?;
        Ok(self.whole().limits.lock().unwrap_or_else(PoisonError::into_inner)[place])
    }

    pub(crate) fn set_limit(&self, limit: CUlimit, value: u64) -> Result<()> {
        let place = limit_place(limit)?;
        if limit == CUlimit::STACK_SIZE && value > LOCAL_BYTES_MAX {
            return Err(Status::INVALID_VALUE);
        }
        if limit == CUlimit::CIG_ENABLED {
            return Err(Status::NOT_SUPPORTED);
        }
        self.whole().limits.lock().unwrap_or_else(PoisonError::into_inner)[place] = value;
        Ok(())
    }
}

fn limit_place(limit: CUlimit) -> Result<usize> {
    LIMITS.iter().position(|&(known, _)| known == limit).ok_or(Status::UNSUPPORTED_LIMIT)
}

/// The context with this handle.
pub(crate) fn context(handle: CUcontext) -> Result<Arc<Context>> {
    driver()?;
    CONTEXTS.get(handle.0).ok_or(Status::INVALID_CONTEXT)
}

/// The context that a handle names; null means the current one.
pub(crate) fn named(ctx: CUcontext) -> Result<Arc<Context>> {
    if ctx.is_null() { current_unchecked() } else { context(ctx) }
}

/// The context with this handle, to be made current. CUDA's runtime knows the handle of a primary
/// context from a hidden table and uses it before it is retained; that brings the context
/// into being.
pub(crate) fn context_to_use(handle: CUcontext) -> Result<Arc<Context>> {
    let known = context(handle);
    if known.is_ok() {
        return known;
    }
    let mut primaries = driver()?.devices.iter().map(|device| (device, primary(device)));
    let found = primaries.find(|(_, primary)| primary.handle == handle.0 && handle.0 != 0);
    let (device, mut primary) = found.ok_or(Status::INVALID_CONTEXT)?;
    Ok(primary.activate(device))
}

/// The calling thread's current context, whatever state it is in; `None` if there is none.
pub(crate) fn current_or_none() -> Result<Option<Arc<Context>>> {
    driver()?;
    STACK.with_borrow_mut(|stack| {
        let Some(top) = stack.last_mut() else { return Ok(None) };
        if top.destroyed.load(Ordering::Acquire) {
            // A primary context that was reset and retained again goes by the same handle.
            *top = CONTEXTS.get(top.handle).ok_or(Status::CONTEXT_IS_DESTROYED)?;
        }
        Ok(Some(Arc::clone(top)))
    })
}

/// The calling thread's current context, for calls that a sticky error does not stop.
pub(crate) fn current_unchecked() -> Result<Arc<Context>> {
    current_or_none()?.ok_or(Status::INVALID_CONTEXT)
}

/// The calling thread's current context, which must not have failed.
pub(crate) fn current() -> Result<Arc<Context>> {
    let context = current_unchecked()?;
    context.check()?;
    Ok(context)
}

/// The context that an object says it is of, for calls that work without a current one; it must not
/// have failed.
pub(crate) fn owning(handle: usize) -> Result<Arc<Context>> {
    let context = CONTEXTS.get(handle).ok_or(Status::CONTEXT_IS_DESTROYED)?;
    context.check()?;
    Ok(context)
}

/// Replaces the top of the calling thread's stack; `None` pops it.
pub(crate) fn set_current(context: Option<Arc<Context>>) {
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        stack.extend(context);
    });
}

pub(crate) fn push(context: Arc<Context>) {
    STACK.with_borrow_mut(|stack| stack.push(context));
}

/// Takes the top off the calling thread's stack and returns its handle.
pub(crate) fn pop() -> Result<usize> {
    STACK.with_borrow_mut(|stack| stack.pop()).map(|context| context.handle).ok_or(Status::INVALID_CONTEXT)
}

/// The handle of a device's primary context, whether or not it is retained.
pub fn primary_context(device: CUdevice) -> Result<CUcontext> {
    Ok(CUcontext(primary(crate::device::device(device)?).handle()))
}

/// Whether device code of this device's primary context may have memory of device-side `malloc`.
pub fn has_device_heap(device: CUdevice) -> bool {
    let Ok(device) = crate::device::device(device) else { return false };
    let context = primary(device).context.clone();
    context.is_some_and(|context| context.device_heap().is_some())
}

/// Retains the primary context of `device`, creating it if it is not retained.
pub(crate) fn retain_primary(device: &'static Device) -> Arc<Context> {
    let mut primary = primary(device);
    primary.retained += 1;
    primary.activate(device)
}
