//! Streams: each names a queue of the [`crate::work::engine`], with its order, its attributes and
//! its part in a capture (CUDA Driver API, Stream Management and Stream synchronization behavior).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::{CUlaunchAttributeID, CUlaunchAttributeValue, CUstream, CUsynchronizationPolicy};

use crate::base::ids::{CaptureId, NodeId};
use crate::base::status::{Result, Status};
use crate::base::table::Table;

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
    pub(crate) orphaned: Status,
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

/// A stream's part in a capture.
#[derive(Clone)]
pub(crate) struct StreamCapture {
    pub(crate) capture: CaptureId,
    /// Handle of the graph that is captured into.
    pub(crate) graph: usize,
    /// The nodes that whatever comes next depends on.
    pub(crate) last: Vec<NodeId>,
}

static IDS: AtomicU64 = AtomicU64::new(1);

impl Stream {
    /// The default stream of the context with this handle.
    pub(crate) fn legacy(context: usize, device: usize) -> Self {
        Self::new(CUstream::LEGACY.0, context, device, Order::Legacy, 0, 0)
    }

    pub(crate) fn new(
        handle: usize,
        context: usize,
        device: usize,
        order: Order,
        flags: u32,
        priority: i32,
    ) -> Self {
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

    /// The stream, which answers `orphaned` once its context is gone.
    pub(crate) fn answering(self, orphaned: Status) -> Self {
        Self { orphaned, ..self }
    }

    /// A stream without a handle, for the driver's own waits.
    pub(crate) fn internal(context: usize, device: usize) -> Arc<Self> {
        Arc::new(Self::new(0, context, device, Order::NonBlocking, 0, 0))
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
