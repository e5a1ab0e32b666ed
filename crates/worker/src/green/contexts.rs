//! What a session knows of its green contexts, and of the parts of devices that they are over.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use sluice_cuda::{CUcontext, CUdevResource, CUdevResourceType, CUresult};
use sluice_wire::{DevResource, GreenCtxId, StreamId};

use crate::session::objects::{Objects, STREAMS_MAX};

/// Most structures that are kept; splits make them, and nothing ends them.
const RESOURCES_MAX: usize = 1 << 14;

/// What a session knows of its green contexts beyond the driver's handles.
#[derive(Default)]
pub(crate) struct Green {
    pub(super) resources: Mutex<Resources>,
    pub(super) contexts: RwLock<HashMap<u8, Context>>,
    /// In which of them streams were made, as far as they may still be there.
    pub(super) streams: Mutex<HashMap<StreamId, GreenCtxId>>,
}

/// A green context in its place.
#[derive(Clone, Copy)]
pub(crate) struct Context {
    pub(crate) id: GreenCtxId,
    pub(crate) context: CUcontext,
    /// The place of its device in the lease.
    pub(crate) device: u8,
}

#[derive(Default)]
pub(super) struct Resources {
    pub(super) known: HashMap<u64, KnownResource>,
    /// Numbers of the answers to questions, which are asked again and again.
    pub(super) asked: HashMap<(Owner, u32), u64>,
    pub(super) last: u64,
}

#[derive(Clone, Copy)]
pub(super) struct KnownResource {
    pub(super) resource: CUdevResource,
    pub(super) device: u32,
}

// SAFETY: what a structure points to is the driver's, for the life of the process, and is only
// handed back to it.
unsafe impl Send for KnownResource {}

/// Whose resources a question is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    Device(u32),
    Green(GreenCtxId),
}

impl Resources {
    /// A number for a structure; the one that the last answer to the same question had.
    pub(super) fn keep(
        &mut self,
        known: KnownResource,
        asked: Option<Owner>,
    ) -> Result<DevResource, CUresult> {
        let kind = known.resource.kind;
        let again = asked.and_then(|owner| self.asked.get(&(owner, kind.0)).copied());
        let id = match again {
            Some(id) => id,
            None if self.known.len() >= RESOURCES_MAX => return Err(CUresult::OUT_OF_MEMORY),
            None => self.last + 1,
        };
        self.last = self.last.max(id);
        if let Some(owner) = asked {
            self.asked.insert((owner, kind.0), id);
        }
        self.known.insert(id, known);
        let mut words = known.resource.words;
        match kind {
            CUdevResourceType::SM => {}
            // Its first field is the device, by the driver's count.
            CUdevResourceType::WORKQUEUE_CONFIG => {
                words[0] = words[0] & !u64::from(u32::MAX) | u64::from(known.device);
            }
            // The rest is the driver's own.
            _ => words = [0; 5],
        }
        Ok(DevResource { id, kind, words })
    }
}

impl Green {
    pub(super) fn resources(&self) -> MutexGuard<'_, Resources> {
        self.resources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn streams(&self) -> MutexGuard<'_, HashMap<StreamId, GreenCtxId>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the client has numbers of device resources.
    pub(crate) fn has_resources(&self) -> bool {
        !self.resources.lock().unwrap_or_else(PoisonError::into_inner).known.is_empty()
    }

    /// The green context at a place.
    pub(crate) fn at(&self, place: u8) -> Option<Context> {
        self.contexts.read().unwrap_or_else(PoisonError::into_inner).get(&place).copied()
    }

    /// Notes in which green context a stream was made.
    pub(crate) fn note_stream(&self, objects: &Objects, stream: StreamId, green: GreenCtxId) {
        let mut streams = self.streams();
        if streams.len() >= 2 * STREAMS_MAX {
            streams.retain(|stream, _| objects.find(*stream).is_ok());
        }
        streams.insert(stream, green);
    }

    pub(super) fn known(&self, id: u64) -> Result<KnownResource, CUresult> {
        self.resources().known.get(&id).copied().ok_or(CUresult::INVALID_VALUE)
    }
}
