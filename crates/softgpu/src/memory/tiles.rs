//! Arrays whose memory is mapped later (CUDA Driver API, `cuMemMapArrayAsync`).
//!
//! Such an array has addresses as others have them, row by row, but they are only names for its
//! bytes: nothing is ever mapped there. Where a byte is at the moment is looked up, tile by tile,
//! in what the program has mapped so far. Bytes without memory read as zero, and writing them does
//! nothing.
//!
//! A tile's elements lie in its memory row by row. The levels in the tail lie there one behind the
//! other, as all levels of a deferred array do.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use sluice_cuda::{
    ArrayExtent, CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY3D_LAYERED, CUdevice_attribute, TILE_BYTES, Tile, Tiles,
    Tiling,
};
use sluice_ir::texture::Pieces;

use crate::base::status::{Result, Status};
use crate::context::Context;
use crate::device::address_space::{CHUNK, space};
use crate::memory::allocation::{self, Kind};

/// By the first of their addresses.
static ARRAYS: RwLock<BTreeMap<u64, Arc<TiledArray>>> = RwLock::new(BTreeMap::new());

pub(crate) struct TiledArray {
    pub(crate) tiling: Tiling,
    pub(crate) device: usize,
    base: u64,
    bytes: u64,
    levels: Vec<Level>,
    mapped: RwLock<BTreeMap<Tile, Memory>>,
}

struct Level {
    /// Its first address, and how far rows and slices are apart.
    start: u64,
    pitch: u64,
    slice: u64,
    /// Where it begins in the tail, if it lies there.
    tail_start: u64,
}

/// Physical memory, which is there for as long as this is held.
pub(crate) type Keep = Arc<dyn Any + Send + Sync>;

/// Memory of a tile, which stays for as long as it is mapped.
struct Memory {
    address: u64,
    _keeps: Keep,
}

/// What is done to tiles when the stream has come to it.
pub(crate) struct Change {
    pub(crate) array: Arc<TiledArray>,
    pub(crate) tiles: Tiles,
    /// Where it begins.
    pub(crate) memory: Option<(u64, Keep)>,
}

/// Elements of a tile in each direction: the shapes that graphics knows as standard ones (Vulkan,
/// Standard Sparse Image Block Shapes), which are as long as they are wide, or twice as long.
fn tile_of(element_bytes: u64, has_volume: bool) -> [u32; 3] {
    match (has_volume, element_bytes) {
        (false, 1) => [256, 256, 1],
        (false, 2) => [256, 128, 1],
        (false, 4) => [128, 128, 1],
        (false, 8) => [128, 64, 1],
        (false, _) => [64, 64, 1],
        (true, 1) => [64, 32, 32],
        (true, 2) => [32, 32, 32],
        (true, 4) => [32, 32, 16],
        (true, 8) => [32, 16, 16],
        (true, _) => [16, 16, 16],
    }
}

/// An array with levels of these extents, which take up these bytes each.
pub(crate) fn create(
    context: &Context,
    desc: &CUDA_ARRAY3D_DESCRIPTOR,
    levels: &[(ArrayExtent, u64)],
    is_mipmapped: bool,
) -> Result<Arc<TiledArray>> {
    use CUdevice_attribute as A;
    let wanted = match desc.is_deferred() {
        true => A::DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED,
        false => A::SPARSE_CUDA_ARRAY_SUPPORTED,
    };
    if context.device.attribute(wanted) == 0 {
        return Err(Status::NOT_SUPPORTED);
    }
    let bytes = levels.iter().try_fold(0_u64, |sum, (_, bytes)| sum.checked_add(*bytes));
    let bytes = bytes.filter(|bytes| *bytes <= i64::MAX as u64).ok_or(Status::INVALID_VALUE)?;
    let base = space()?.take_hidden(bytes.next_multiple_of(CHUNK))?;
    let (tiling, levels) = lay_out(desc, levels, base, is_mipmapped)?;
    let (device, mapped) = (context.device.ordinal, RwLock::default());
    let array = Arc::new(TiledArray { tiling, device, base, bytes, levels, mapped });
    arrays().insert(base, Arc::clone(&array));
    allocation::insert(base, bytes, Kind::ArrayName, context.owner(), device);
    Ok(array)
}

fn lay_out(
    desc: &CUDA_ARRAY3D_DESCRIPTOR,
    levels: &[(ArrayExtent, u64)],
    base: u64,
    is_mipmapped: bool,
) -> Result<(Tiling, Vec<Level>)> {
    let element = desc.element_bytes().ok_or(Status::INVALID_VALUE)?;
    let has_layers = desc.Flags & CUDA_ARRAY3D_LAYERED != 0;
    let tile = tile_of(element, desc.Depth > 0 && !has_layers);
    let is_small = |extent: &ArrayExtent| {
        let slices = if has_layers { 1 } else { extent.slices };
        let size = [extent.row_bytes / element, extent.rows, slices];
        desc.is_deferred() || size.iter().zip(tile).any(|(size, tile)| *size < tile.into())
    };
    let tail_level = levels.iter().position(|(extent, _)| is_small(extent)).unwrap_or(levels.len());
    // Each layer of a mipmapped array has a tail of its own.
    let has_single_tail = tail_level < levels.len() && !(is_mipmapped && has_layers && desc.is_sparse());
    let (mut start, mut tail_bytes, mut laid) = (base, 0, Vec::new());
    for (at, (extent, bytes)) in levels.iter().enumerate() {
        let slice = bytes / extent.slices;
        laid.push(Level { start, pitch: slice / extent.rows, slice, tail_start: tail_bytes });
        start += bytes;
        if at >= tail_level {
            tail_bytes += if has_single_tail { *bytes } else { slice };
        }
    }
    let tiling = Tiling {
        desc: *desc,
        levels: levels.len() as u32,
        tile,
        tail_level: tail_level as u32,
        tail_bytes: tail_bytes.next_multiple_of(TILE_BYTES),
        has_single_tail,
        alignment: TILE_BYTES,
    };
    Ok((tiling, laid))
}

fn arrays() -> RwLockWriteGuard<'static, BTreeMap<u64, Arc<TiledArray>>> {
    ARRAYS.write().unwrap_or_else(PoisonError::into_inner)
}

/// The array that an address names a byte of.
pub(crate) fn find(address: u64) -> Option<Arc<TiledArray>> {
    let arrays = ARRAYS.read().unwrap_or_else(PoisonError::into_inner);
    let (base, array) = arrays.range(..=address).next_back()?;
    (address - base < array.bytes).then(|| Arc::clone(array))
}

/// Forgets an array that is gone, and gives its addresses back.
pub(crate) fn forget(base: u64, bytes: u64) {
    // What it has mapped goes once the lock is free.
    let gone = arrays().remove(&base);
    if let (Some(_), Ok(space)) = (gone, space()) {
        space.give(base, bytes.next_multiple_of(CHUNK));
    }
}

impl TiledArray {
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    fn mapped(&self) -> RwLockReadGuard<'_, BTreeMap<Tile, Memory>> {
        self.mapped.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the byte with this name is, if it has memory, and how many behind it in its row are
    /// beside it, at least.
    pub(crate) fn run(&self, name: u64) -> (Option<u64>, u64) {
        let (tile, inside, room) = self.tile_at(name);
        (self.mapped().get(&tile).map(|memory| memory.address + inside), room)
    }

    /// The tile of a byte, the byte's place in there, and the bytes of its row from it on.
    fn tile_at(&self, name: u64) -> (Tile, u64, u64) {
        let at = self.levels.iter().rposition(|level| level.start <= name).unwrap_or(0);
        let (level, tiling) = (&self.levels[at], &self.tiling);
        let offset = name.saturating_sub(level.start);
        let (row, z) = (offset % level.slice, offset / level.slice);
        if at >= tiling.tail_level as usize {
            let (layer, place) = match tiling.has_single_tail {
                true => (0, level.tail_start + offset),
                false => (z as u32, level.tail_start + row),
            };
            let tile = Tile { level: Tile::TAIL, layer, number: place / TILE_BYTES };
            return (tile, place % TILE_BYTES, TILE_BYTES - place % TILE_BYTES);
        }
        let has_layers = tiling.desc.Flags & CUDA_ARRAY3D_LAYERED != 0;
        let (layer, z) = if has_layers { (z as u32, 0) } else { (0, z) };
        let (x, y) = (row % level.pitch, row / level.pitch);
        let [_, rows, slices] = tiling.tile.map(u64::from);
        let row_bytes = TILE_BYTES / (rows * slices);
        let [width, height] = tiling.grid(at as u32).unwrap_or_default();
        let number = (z / slices * height + y / rows) * width + x / row_bytes;
        let inside = (z % slices * rows + y % rows) * row_bytes + x % row_bytes;
        (Tile { level: at as u32, layer, number }, inside, row_bytes - x % row_bytes)
    }
}

impl Pieces for TiledArray {
    fn find(&self, name: u64) -> Option<u64> {
        self.run(name).0
    }
}

impl fmt::Debug for TiledArray {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("TiledArray").field("tiling", &self.tiling).finish_non_exhaustive()
    }
}

impl Change {
    pub(crate) fn make(&self) {
        let mut mapped = self.array.mapped.write().unwrap_or_else(PoisonError::into_inner);
        match &self.memory {
            Some((start, keep)) => {
                for (at, tile) in self.tiles.each().enumerate() {
                    let address = start + at as u64 * TILE_BYTES;
                    mapped.insert(tile, Memory { address, _keeps: Arc::clone(keep) });
                }
            }
            None => {
                let [first, last] = self.tiles.ends();
                let between = mapped.range(first..=last).map(|(tile, _)| *tile);
                let gone: Vec<Tile> = between.filter(|tile| self.tiles.contains(tile)).collect();
                gone.iter().for_each(|tile| drop(mapped.remove(tile)));
            }
        }
    }
}
