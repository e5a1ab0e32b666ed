//! What is forgotten with a context, and with all contexts of a session that is lost.
//!
//! A kernel that fails takes its session with it: every later call returns its error.
//! `cuDevicePrimaryCtxReset`, which is `cudaDeviceReset`, ends the context and with it the error.
//! On the node that is the end of the worker, and a new one begins
//! ([`session::replace`](crate::session::replace)). Memory, streams, events, modules and graphs of
//! all devices of the session are gone. Libraries stay, since they belong to no context: each is
//! loaded anew where it is used next.

use sluice_cuda::CUcontext;

use crate::session::Session;
use crate::{
    arrays, awaited, capture, context, event, graph_memory, green, handles, host_memory, mirror, module,
    refusals, stream, texture, texture_reference,
};

/// Forgets what belonged to a context that has ended, and is gone on the node.
pub(crate) fn forget_context(handle: CUcontext) {
    host_memory::context_ended(handle);
    graph_memory::context_ended(handle);
    stream::context_ended(handle);
    event::context_ended(handle);
    arrays::context_ended(handle);
    texture::context_ended(handle);
    texture_reference::context_ended(handle);
    module::context_ended(handle);
}

/// Forgets everything of a session that is lost.
pub(crate) fn forget_all(lost: &Session) {
    for context in context::abandon(lost) {
        sluice_export_tables::context_destroyed(context);
        forget_context(context);
    }
    awaited::forget_all();
    capture::forget_all();
    green::forget_all();
    handles::forget_all();
    host_memory::forget_all();
    mirror::forget_all();
    module::leave_libraries();
    refusals::forget_all();
}
