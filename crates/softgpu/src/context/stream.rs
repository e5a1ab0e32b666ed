//! Streams: which queue a piece of work goes into (CUDA Driver API, Stream Management and Stream
//! synchronization behavior). What the queues then do is in [`crate::work::engine`].

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::{
    CU_STREAM_NON_BLOCKING, CUlaunchAttributeID, CUlaunchAttributeValue, CUstream, CUsynchronizationPolicy,
};

use crate::base::status::{Result, Status};
use crate::base::table::Table;
use crate::context::{self, CONTEXTS, Context};
use crate::device::driver;
use crate::device::pool;
use crate::graph::capture::StreamCapture;
use crate::work::engine;
use crate::work::op::Op;

pub(crate) static STREAMS: Table<Stream> = Table::new(2);

/// Priorities from the least to the greatest urgency (`cuCtxGetStreamPriorityRange`): lower numbers
/// go first.
pub(crate) const PRIORITIES: (i32, i32) = (0, -5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Waits for the blocking streams of its context, and they for it.
    Legacy,
    Blocking,
    NonBlocking,
}

pub(crate) struct Stream {
    pub(crate) handle: usize,
    /// Unique in the process and never used again (`cuStreamGetId`).
    pub(crate) id: u64,
    /// Handle of its context.
    pub(crate) context: usize,
    /// What it answers once that context is gone.
    orphaned: Status,
    pub(crate) device: usize,
    pub(crate) order: Order,
    pub(crate) flags: u32,
    priority: AtomicI32,
    attributes: Mutex<BTreeMap<CUlaunchAttributeID, CUlaunchAttributeValue>>,
    /// Sequence number of the last work accepted and of the last done; the engine's lock guards
    /// both.
    pub(crate) submitted: AtomicU64,
    pub(crate) completed: AtomicU64,
    capture: Mutex<Option<StreamCapture>>,
}

static IDS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// This thread's own default streams, by context id.
    static PER_THREAD: RefCell<BTreeMap<u64, Arc<Stream>>> = const { RefCell::new(BTreeMap::new()) };
}

impl Stream {
    /// The default stream of the context with this handle.
    pub(crate) fn legacy(context: usize, device: usize) -> Self {
        Self::new(CUstream::LEGACY.0, context, device, Order::Legacy, 0, 0)
    }

    fn new(handle: usize, context: usize, device: usize, order: Order, flags: u32, priority: i32) -> Self {
        Self {
            handle,
            id: IDS.fetch_add(1, Ordering::Relaxed),
            context,
            orphaned: Status::CONTEXT_IS_DESTROYED,
            device,
            order,
            flags,
            priority: AtomicI32::new(priority),
            attributes: Mutex::default(),
            submitted: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            capture: Mutex::new(None),
        }
    }

    /// A stream without a handle, for the driver's own waits.
    pub(crate) fn internal(context: &Context) -> Arc<Self> {
        Arc::new(Self::new(0, context.handle, context.device.ordinal, Order::NonBlocking, 0, 0))
    }

    pub(crate) fn priority(&self) -> i32 {
        self.priority.load(Ordering::Relaxed)
    }

    fn attributes(&self) -> MutexGuard<'_, BTreeMap<CUlaunchAttributeID, CUlaunchAttributeValue>> {
        self.attributes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An attribute's value: the one that was set, or what it is before that.
    pub(crate) fn attribute(&self, id: CUlaunchAttributeID) -> Result<CUlaunchAttributeValue> {
        use CUlaunchAttributeID as A;
        let mut value = CUlaunchAttributeValue::default();
        match id {
            A::PRIORITY => value.words[0] = self.priority() as u32,
            A::SYNCHRONIZATION_POLICY => value.words[0] = CUsynchronizationPolicy::AUTO.0,
            // The domains that the default and the remote one of the API stand for: bytes 0 and 1.
            A::MEM_SYNC_DOMAIN_MAP => value.words[0] = 0x0100,
            A::ACCESS_POLICY_WINDOW | A::MEM_SYNC_DOMAIN | A::NVLINK_UTIL_CENTRIC_SCHEDULING => {}
            _ => return Err(Status::INVALID_VALUE),
        }
        Ok(self.attributes().get(&id).copied().unwrap_or(value))
    }

    /// Sets an attribute. All but the priority are hints to hardware that is not here: they are
    /// kept, and make no difference to what work computes.
    pub(crate) fn set_attribute(&self, id: CUlaunchAttributeID, value: CUlaunchAttributeValue) -> Result<()> {
        use CUlaunchAttributeID as A;
        let is_known = match id {
            A::PRIORITY => {
                let priority = value.number().clamp(PRIORITIES.1, PRIORITIES.0);
                self.priority.store(priority, Ordering::Relaxed);
                return Ok(());
            }
            A::SYNCHRONIZATION_POLICY => CUsynchronizationPolicy(value.words[0]).name().is_some(),
            A::MEM_SYNC_DOMAIN => value.words[0] <= 1,
            // What hits may be streaming, normal or persisting; what misses is never persisting.
            A::ACCESS_POLICY_WINDOW => value.words[5] <= 2 && value.words[6] <= 1,
            A::MEM_SYNC_DOMAIN_MAP | A::NVLINK_UTIL_CENTRIC_SCHEDULING => true,
            _ => false,
        };
        if !is_known {
            return Err(Status::INVALID_VALUE);
        }
        self.attributes().insert(id, value);
        Ok(())
    }

    /// Takes over all attributes of another stream.
    pub(crate) fn copy_attributes(&self, from: &Stream) {
        let all = from.attributes().clone();
        *self.attributes() = all;
        self.priority.store(from.priority(), Ordering::Relaxed);
    }

    /// What this stream captures, if it is capturing.
    pub(crate) fn capture(&self) -> MutexGuard<'_, Option<StreamCapture>> {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses calls that have no meaning in a capture.
    pub(crate) fn check_not_capturing(&self) -> Result<()> {
        if self.capture().is_some() { Err(Status::STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }
}

/// Creates a stream in `context`. A priority out of range is moved to its nearer end, as CUDA does.
pub(crate) fn create(context: &Context, flags: u32, priority: i32) -> Result<Arc<Stream>> {
    let order = match flags {
        0 => Order::Blocking,
        CU_STREAM_NON_BLOCKING => Order::NonBlocking,
        _ => return Err(Status::INVALID_VALUE),
    };
    let priority = priority.clamp(PRIORITIES.1, PRIORITIES.0);
    let orphaned = match &context.green {
        Some(_) => Status::STREAM_DETACHED,
        None => Status::CONTEXT_IS_DESTROYED,
    };
    Ok(STREAMS.insert(|handle| Stream {
        orphaned,
        ..Stream::new(handle, context.handle, context.device.ordinal, order, flags, priority)
    }))
}

/// Takes a stream's handle away. Work that is still in it completes.
pub(crate) fn destroy(handle: CUstream) -> Result<()> {
    if handle.is_null() || handle == CUstream::LEGACY || handle == CUstream::PER_THREAD {
        return Err(Status::INVALID_HANDLE);
    }
    let stream = STREAMS.remove(handle.0).ok_or(Status::INVALID_HANDLE)?;
    crate::graph::capture::abandon(&stream);
    Ok(())
}

/// Forgets what belongs to a context that is gone.
pub(crate) fn context_destroyed(context: usize) {
    PER_THREAD.with_borrow_mut(|streams| streams.retain(|_, stream| stream.context != context));
}

/// A stream with the context that its work runs in.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) context: Arc<Context>,
    pub(crate) stream: Arc<Stream>,
}

/// The stream that a handle means to the calling thread; its context must not have failed.
pub(crate) fn target(handle: CUstream) -> Result<Target> {
    let target = target_unchecked(handle)?;
    target.context.check()?;
    Ok(target)
}

/// As [`target`], also in a context that has failed. A stream that was created carries its context,
/// so that the thread needs none.
pub(crate) fn target_unchecked(handle: CUstream) -> Result<Target> {
    driver()?;
    if !matches!(handle, CUstream::NULL | CUstream::LEGACY | CUstream::PER_THREAD) {
        let stream = STREAMS.get(handle.0).ok_or(Status::INVALID_HANDLE)?;
        let context = CONTEXTS.get(stream.context).ok_or(stream.orphaned)?;
        return Ok(Target { context, stream });
    }
    let context = context::current_unchecked()?;
    let stream = match handle {
        CUstream::PER_THREAD => per_thread(&context),
        _ => Arc::clone(&context.legacy),
    };
    Ok(Target { context, stream })
}

fn per_thread(context: &Context) -> Arc<Stream> {
    PER_THREAD.with_borrow_mut(|streams| {
        let new = || {
            let (handle, device) = (CUstream::PER_THREAD.0, context.device.ordinal);
            Arc::new(Stream::new(handle, context.handle, device, Order::Blocking, 0, 0))
        };
        Arc::clone(streams.entry(context.id).or_insert_with(new))
    })
}

impl Target {
    /// Queues work, or records it where the stream is capturing.
    pub(crate) fn submit(&self, op: Op) -> Result<()> {
        if let Some(capture) = self.stream.capture().as_mut() {
            return capture.record(op);
        }
        engine::submit(self, op);
        Ok(())
    }

    /// Queues work and waits until it is done. An idle context does it in the calling thread.
    pub(crate) fn run(&self, op: Op) -> Result<()> {
        self.stream.check_not_capturing()?;
        if let Some(result) = engine::run_if_idle(&self.context, &op) {
            return result;
        }
        engine::submit(self, op);
        self.synchronize()
    }

    /// Waits for everything submitted to the stream so far.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.stream.check_not_capturing()?;
        engine::wait_stream(&self.stream);
        pool::waited();
        self.context.check()
    }
}
