//! What is forgotten with a context, and with all contexts of a session that is lost.
//!
//! A kernel that fails takes its session with it: every later call returns its error.
//! `cuDevicePrimaryCtxReset`, which is `cudaDeviceReset`, ends the context and with it the error.
//! On the node that is the end of the worker, and a new one begins
//! ([`init::replace`](crate::lifecycle::init::replace)). Memory, streams, events, modules and
//! graphs of all devices of the session are gone. Libraries stay, since they belong to no context:
//! each is loaded anew where it is used next.

use sluice_cuda::{CUcontext, CUresult};
use sluice_wire::{ArrayId, EventId, MipmappedArrayId, ModuleId, StreamId, commands};

use crate::arrays::{self, texture};
use crate::context::{self, Context};
use crate::entry::handles;
use crate::graph::allocation;
use crate::host_memory::{self, mirror};
use crate::lifecycle::green;
use crate::link::refusals;
use crate::module::{self, pending, texture_reference};
use crate::session::Session;
use crate::stream::{self, capture, event};

/// Forgets what belonged to a context that has ended, and is gone on the node.
pub(crate) fn forget_context(handle: CUcontext) {
    host_memory::context_ended(handle);
    allocation::context_ended(handle);
    stream::context_ended(handle);
    event::context_ended(handle);
    arrays::context_ended(handle);
    texture::context_ended(handle);
    texture_reference::context_ended(handle);
    module::context_ended(handle);
}

/// Forgets everything of a session that is lost.
pub(crate) fn forget_all(lost: &Session) {
    for context in context::abandon(|device| lost.has(device)) {
        sluice_export_tables::context_destroyed(context);
        forget_context(context);
    }
    pending::forget_all();
    capture::forget_all();
    green::forget_all();
    handles::forget_all();
    host_memory::forget_all();
    mirror::forget_all();
    module::leave_libraries();
    refusals::forget_all();
}

impl Session {
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
            pending::settle_all(hmod);
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
        forget_context(handle);
        Ok(())
    }
}
