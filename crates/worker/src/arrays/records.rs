//! What is known of a session's arrays.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::{ArrayExtent, CUDA_ARRAY3D_DESCRIPTOR, CUresult, CUsurfObject, CUtexObject};
use sluice_wire::{ArrayId, ArrayPlace, MipmappedArrayId};

/// The arrays of a session, and the objects through which device code reads them.
#[derive(Debug, Default)]
pub(crate) struct Arrays {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(super) arrays: HashMap<ArrayId, ArrayRecord>,
    pub(super) mipmapped: HashMap<MipmappedArrayId, Mipmapped>,
    /// The driver's own numbers, which device code sees.
    pub(super) textures: HashSet<CUtexObject>,
    pub(super) surfaces: HashSet<CUsurfObject>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ArrayRecord {
    pub(super) extent: ArrayExtent,
    pub(super) charge: Charge,
    /// The array that this is a level of.
    pub(super) level_of: Option<MipmappedArrayId>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Mipmapped {
    pub(super) shape: CUDA_ARRAY3D_DESCRIPTOR,
    pub(super) levels: u32,
    pub(super) charge: Charge,
}

/// What the lease was charged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Charge {
    pub(super) gpu: u32,
    pub(super) bytes: u64,
}

impl Arrays {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are texture or surface objects.
    pub(crate) fn has_objects(&self) -> bool {
        let state = self.lock();
        !(state.textures.is_empty() && state.surfaces.is_empty())
    }

    /// Refuses a box that is not inside its array.
    pub(crate) fn check(&self, place: &ArrayPlace, size: [u64; 3]) -> Result<(), CUresult> {
        let state = self.lock();
        let known = state.arrays.get(&place.array).ok_or(CUresult::INVALID_HANDLE)?;
        let is_inside = known.extent.holds([place.x, place.y, place.z], size);
        if is_inside { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
    }
}
