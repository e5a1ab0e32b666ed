//! What is mapped to the tiles of a session's arrays.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::{CUarrayMapInfo, CUevent, Tile, Tiles, Tiling};
use sluice_wire::{ArrayId, MipmappedArrayId};

use crate::memory::host_memory::HostMemory;
use crate::memory::physical::Physical;

/// The arrays of a session that are mapped later.
pub(crate) struct TiledArrays {
    state: Mutex<State>,
    pub(super) host_memory: Arc<HostMemory>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) arrays: HashMap<Key, Tiled>,
    pub(super) leaving: Vec<Leaving>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Array(ArrayId),
    Mipmapped(MipmappedArrayId),
}

pub(super) struct Tiled {
    pub(super) gpu: u32,
    pub(super) tiling: Tiling,
    pub(super) mapped: BTreeMap<Tile, Arc<Physical>>,
}

/// Memory that was taken away in a stream, which has not come further than here.
pub(super) struct Leaving {
    pub(super) event: CUevent,
    pub(super) memory: Vec<Arc<Physical>>,
}

/// One entry of a list, checked.
pub(super) struct Change {
    pub(super) of: Key,
    pub(super) tiles: Tiles,
    pub(super) memory: Option<Arc<Physical>>,
    pub(super) info: CUarrayMapInfo,
}

impl TiledArrays {
    pub(crate) fn new(host_memory: Arc<HostMemory>) -> TiledArrays {
        TiledArrays { state: Mutex::default(), host_memory }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Tiles that have memory.
    pub(super) fn mapped(&self) -> u64 {
        self.arrays.values().map(|tiled| tiled.mapped.len() as u64).sum()
    }

    /// Notes the change that was made in the driver; returns the memory that tiles no longer have.
    pub(super) fn make(&mut self, Change { of, tiles, memory, .. }: Change) -> Vec<Arc<Physical>> {
        let Some(tiled) = self.arrays.get_mut(&of) else { return memory.into_iter().collect() };
        let Some(memory) = memory else {
            let [first, last] = tiles.ends();
            let gone = tiled.mapped.extract_if(first..=last, |tile, _| tiles.contains(tile));
            return gone.map(|(_, physical)| physical).collect();
        };
        tiles.each().filter_map(|tile| tiled.mapped.insert(tile, Arc::clone(&memory))).collect()
    }
}
