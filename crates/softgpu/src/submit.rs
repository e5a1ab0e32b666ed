//! Putting work into streams, and waiting for it: which stream a handle means, and what is checked
//! when copies, frees, mappings and graphs are submitted. What belongs here ends in
//! [`Target::submit`], which queues work or records it in a capture.

pub(crate) mod copies;
pub(crate) mod frees;
mod graphs;
pub(crate) mod tile_maps;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_cuda::{CU_STREAM_NON_BLOCKING, CUstream};

use crate::base::status::{Result, Status};
use crate::context::stream::{Order, PRIORITIES, STREAMS, Stream};
use crate::context::{self, CONTEXTS, Context};
use crate::device::{driver, pool};
use crate::graph::capture;
use crate::work::engine;
use crate::work::op::Op;

thread_local! {
    /// This thread's own default streams, by context id.
    static PER_THREAD: RefCell<BTreeMap<u64, Arc<Stream>>> = const { RefCell::new(BTreeMap::new()) };
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
    Ok(STREAMS.insert(|handle| {
        let stream = Stream::new(handle, context.handle, context.device.ordinal, order, flags, priority);
        stream.answering(orphaned)
    }))
}

/// Takes a stream's handle away. Work that is still in it completes.
pub(crate) fn destroy(handle: CUstream) -> Result<()> {
    if handle.is_null() || handle == CUstream::LEGACY || handle == CUstream::PER_THREAD {
        return Err(Status::INVALID_HANDLE);
    }
    let stream = STREAMS.remove(handle.0).ok_or(Status::INVALID_HANDLE)?;
    capture::abandon(&stream);
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
        if let Some(part) = self.stream.capture().as_mut() {
            return capture::record(&self.stream, part, op);
        }
        engine::submit(&self.stream, &self.context, op);
        Ok(())
    }

    /// Queues work and waits until it is done. An idle context does it in the calling thread.
    pub(crate) fn run(&self, op: Op) -> Result<()> {
        self.stream.check_not_capturing()?;
        if let Some(result) = engine::run_if_idle(&self.context, &op) {
            return result;
        }
        engine::submit(&self.stream, &self.context, op);
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
