//! Ends of contexts. All that was made in a context ends with it, whatever part of the driver keeps
//! it; so this file is above all of those, and only the API is above this one.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use sluice_cuda::CUcontext;

use crate::base::status::{Result, Status};
use crate::context::stream::STREAMS;
use crate::context::{self, CONTEXTS, Context, GREENS};
use crate::device::{Device, pool};
use crate::graph::{self, capture};
use crate::image::{array, reference, texture};
use crate::memory::{self, allocation};
use crate::module::{self, library};
use crate::submit;
use crate::work::engine;
use crate::work::event::EVENTS;

impl Context {
    /// Ends a green context: its work completes, its streams are of no more use.
    pub(crate) fn destroy_green(&self) -> Result<()> {
        let green = self.green.as_ref().ok_or(Status::INVALID_CONTEXT)?;
        GREENS.remove(green.handle).ok_or(Status::CONTEXT_IS_DESTROYED)?;
        if self.destroyed.swap(true, Ordering::AcqRel) {
            return Err(Status::CONTEXT_IS_DESTROYED);
        }
        CONTEXTS.remove(self.handle);
        abandon_captures(self.handle);
        engine::wait_context(self.handle);
        pool::waited();
        engine::forget_barriers(self.handle);
        submit::context_destroyed(self.handle);
        release_primary(self.device)
    }

    /// Waits for all work of this context, then frees everything that was made in it.
    pub(crate) fn destroy(&self) {
        if self.destroyed.swap(true, Ordering::AcqRel) {
            return;
        }
        CONTEXTS.remove(self.handle);
        abandon_captures(self.handle);
        engine::wait_context(self.handle);
        self.end_green_contexts();
        graph::context_destroyed(self.handle);
        texture::context_destroyed(self.handle);
        reference::context_destroyed(self.handle);
        array::context_destroyed(self.handle);
        library::context_destroyed(self.handle);
        module::context_destroyed(self.handle);
        STREAMS.remove_all(|stream| stream.context == self.handle);
        EVENTS.remove_all(|event| event.context == self.handle);
        for allocation in allocation::remove_all(|a| a.context == self.handle) {
            memory::release(&allocation);
        }
        pool::waited();
        engine::forget_barriers(self.handle);
        submit::context_destroyed(self.handle);
        self.give_back_local_memory();
        if let Some(observer) = OBSERVER.get() {
            observer(CUcontext(self.handle));
        }
    }

    /// The green contexts of this one end with it, and so do their streams.
    fn end_green_contexts(&self) {
        for context in CONTEXTS.all().iter().filter(|context| context.is_of(self.handle)) {
            context.destroyed.store(true, Ordering::Release);
            CONTEXTS.remove(context.handle);
            if let Some(green) = &context.green {
                GREENS.remove(green.handle);
            }
            abandon_captures(context.handle);
            STREAMS.remove_all(|stream| stream.context == context.handle);
            engine::forget_barriers(context.handle);
            submit::context_destroyed(context.handle);
        }
    }
}

/// Captures in the streams of a context end with it.
fn abandon_captures(context: usize) {
    for stream in STREAMS.all().iter().filter(|stream| stream.context == context) {
        capture::abandon(stream);
    }
}

/// Sets what is called with the handle of each context that has been destroyed or reset, for those
/// who keep state by context. The first setting stays.
pub fn on_context_destroyed(observer: fn(CUcontext)) {
    let _ = OBSERVER.set(observer);
}

static OBSERVER: OnceLock<fn(CUcontext)> = OnceLock::new();

/// Gives one retain back; the last one destroys the context.
pub(crate) fn release_primary(device: &'static Device) -> Result<()> {
    let mut primary = context::primary(device);
    primary.retained = primary.retained.checked_sub(1).ok_or(Status::INVALID_CONTEXT)?;
    let last = if primary.retained == 0 { primary.context.take() } else { None };
    drop(primary);
    if let Some(context) = last {
        context.destroy();
    }
    Ok(())
}

/// Destroys the primary context even if it is retained; a sticky error goes with it.
pub(crate) fn reset_primary(device: &'static Device) {
    let mut primary = context::primary(device);
    primary.retained = 0;
    let context = primary.context.take();
    drop(primary);
    if let Some(context) = context {
        context.destroy();
    }
}
