//! Arrays whose memory is mapped later (CUDA Driver API, `cuMemMapArrayAsync`): the tiles they
//! consist of, and which of them a mapping names.
//!
//! A sparse array is mapped tile by tile. Levels that are smaller than a tile in some direction
//! share its *tail*, whose tiles are counted through. A deferred array is all tail, and is mapped
//! whole.

use crate::arrays::{CUDA_ARRAY3D_CUBEMAP, CUDA_ARRAY3D_LAYERED};
use crate::structs::CUDA_ARRAY3D_DESCRIPTOR;

/// Flag of an array: its tiles are mapped, each for itself.
pub const CUDA_ARRAY3D_SPARSE: u32 = 0x40;
/// Its memory is mapped, all at once.
pub const CUDA_ARRAY3D_DEFERRED_MAPPING: u32 = 0x80;
/// Flag of sparse properties: the tail is one of all layers.
pub const CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL: u32 = 1;
/// Usage of physical memory that sparse arrays are mapped to.
pub const CU_MEM_CREATE_USAGE_TILE_POOL: u16 = 1;

/// Bytes of a tile.
pub const TILE_BYTES: u64 = 64 << 10;

/// Which part of an array a mapping names. Offset and extent are in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayPart {
    Level { level: u32, layer: u32, offset: [u32; 3], extent: [u32; 3] },
    Tail { layer: u32, offset: u64, bytes: u64 },
    Whole,
}

/// An array whose memory is mapped later.
#[derive(Clone, Copy, Debug)]
pub struct Tiling {
    pub desc: CUDA_ARRAY3D_DESCRIPTOR,
    pub levels: u32,
    /// Elements of a tile in each direction.
    pub tile: [u32; 3],
    /// The first level in the tail.
    pub tail_level: u32,
    /// Bytes of the tail: of all layers, or of each.
    pub tail_bytes: u64,
    pub has_single_tail: bool,
    /// Where memory of a mapping may begin.
    pub alignment: u64,
}

/// The place of a tile: its level, or [`Tile::TAIL`], its layer, and its number in there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tile {
    pub level: u32,
    pub layer: u32,
    pub number: u64,
}

impl Tile {
    pub const TAIL: u32 = u32::MAX;
}

/// A box of tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles {
    level: u32,
    layer: u32,
    first: [u64; 3],
    count: [u64; 3],
    /// Tiles in a row, and rows in a slice, of all the level.
    grid: [u64; 2],
    /// Bytes that they are mapped to.
    pub bytes: u64,
}

impl CUDA_ARRAY3D_DESCRIPTOR {
    pub fn is_deferred(&self) -> bool {
        self.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING != 0
    }

    pub fn is_sparse(&self) -> bool {
        self.Flags & CUDA_ARRAY3D_SPARSE != 0
    }

    /// Whether such an array may have its memory mapped later: if it has two dimensions, in layers
    /// or not, or three.
    pub fn can_be_mapped_later(&self) -> bool {
        self.Height > 0 && self.Flags & CUDA_ARRAY3D_CUBEMAP == 0 && self.is_sparse() != self.is_deferred()
    }

    fn has_layers(&self) -> bool {
        self.Flags & CUDA_ARRAY3D_LAYERED != 0
    }
}

impl Tiling {
    /// Layers with tiles of their own, and the elements of a level in each direction.
    fn level(&self, level: u32) -> Option<(u64, [u64; 3])> {
        let extent = self.desc.extent(level)?;
        let row = extent.row_bytes / self.desc.element_bytes()?;
        match self.desc.has_layers() {
            true => Some((extent.slices, [row, extent.rows, 1])),
            false => Some((1, [row, extent.rows, extent.slices])),
        }
    }

    /// The number of tails.
    fn tails(&self) -> Option<u64> {
        if self.has_single_tail { Some(1) } else { Some(self.level(0)?.0) }
    }

    /// How many tiles there are in a row of a level, and rows in a slice.
    pub fn grid(&self, level: u32) -> Option<[u64; 2]> {
        let (_, [row, rows, _]) = self.level(level)?;
        if self.tile.contains(&0) {
            return None;
        }
        Some([row.div_ceil(self.tile[0].into()), rows.div_ceil(self.tile[1].into())])
    }

    /// The tiles that a part consists of; `None` if there is no such part.
    pub fn tiles(&self, part: &ArrayPart) -> Option<Tiles> {
        match *part {
            ArrayPart::Whole if self.desc.is_deferred() => self.in_tail(0, 0, self.tail_bytes),
            ArrayPart::Level { level, layer, offset, extent } if self.desc.is_sparse() => {
                self.in_level(level, layer, offset, extent)
            }
            ArrayPart::Tail { layer, offset, bytes } if self.desc.is_sparse() => {
                self.in_tail(layer, offset, bytes)
            }
            _ => None,
        }
    }

    fn in_level(&self, level: u32, layer: u32, offset: [u32; 3], extent: [u32; 3]) -> Option<Tiles> {
        let (layers, size) = self.level(level)?;
        if level >= self.tail_level.min(self.levels) || u64::from(layer) >= layers {
            return None;
        }
        let (mut first, mut count) = ([0; 3], [0; 3]);
        for axis in 0..3 {
            let [tile, start, length] = [self.tile[axis], offset[axis], extent[axis]].map(u64::from);
            let end = start + length;
            // The last tile of a row may be named as far as the array goes, or all of it.
            let is_whole = length > 0 && (length.is_multiple_of(tile) || end == size[axis]);
            if !is_whole || !start.is_multiple_of(tile) || end > size[axis].next_multiple_of(tile) {
                return None;
            }
            (first[axis], count[axis]) = (start / tile, length.div_ceil(tile));
        }
        let bytes = count.iter().try_fold(TILE_BYTES, |product, count| product.checked_mul(*count))?;
        Some(Tiles { level, layer, first, count, grid: self.grid(level)?, bytes })
    }

    fn in_tail(&self, layer: u32, offset: u64, bytes: u64) -> Option<Tiles> {
        let end = offset.checked_add(bytes)?;
        let is_whole = bytes > 0 && (bytes.is_multiple_of(TILE_BYTES) || end == self.tail_bytes);
        if !is_whole || !offset.is_multiple_of(TILE_BYTES) || end > self.tail_bytes {
            return None;
        }
        if u64::from(layer) >= self.tails()? {
            return None;
        }
        let (first, count) = ([offset / TILE_BYTES, 0, 0], [bytes.div_ceil(TILE_BYTES), 1, 1]);
        Some(Tiles { level: Tile::TAIL, layer, first, count, grid: [u64::MAX, 1], bytes })
    }
}

impl Tiles {
    /// How many they are.
    pub fn count(&self) -> u64 {
        self.bytes.div_ceil(TILE_BYTES)
    }

    /// Each of them, in the order of the memory that they are mapped to.
    pub fn each(self) -> impl Iterator<Item = Tile> {
        let along = move |axis: usize| self.first[axis]..self.first[axis] + self.count[axis];
        let rows = along(2).flat_map(move |z| along(1).map(move |y| z * self.grid[1] + y));
        rows.flat_map(move |row| along(0).map(move |x| self.at(row * self.grid[0] + x)))
    }

    fn at(&self, number: u64) -> Tile {
        Tile { level: self.level, layer: self.layer, number }
    }

    /// The first and the last of them, between which others may lie.
    pub fn ends(&self) -> [Tile; 2] {
        let last = |axis: usize| self.first[axis] + self.count[axis] - 1;
        let number = |[x, y, z]: [u64; 3]| (z * self.grid[1] + y) * self.grid[0] + x;
        [self.first, [last(0), last(1), last(2)]].map(|place| self.at(number(place)))
    }

    pub fn contains(&self, tile: &Tile) -> bool {
        let row = tile.number / self.grid[0];
        let place = [tile.number % self.grid[0], row % self.grid[1], row / self.grid[1]];
        let is_inside =
            |axis: usize| (self.first[axis]..self.first[axis] + self.count[axis]).contains(&place[axis]);
        (tile.level, tile.layer) == (self.level, self.layer) && (0..3).all(is_inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enums::CUarray_format;

    /// 300 by 200 elements of four bytes in tiles of 128 by 128, in four levels; the last two are
    /// the tail.
    fn sparse() -> Tiling {
        let desc = CUDA_ARRAY3D_DESCRIPTOR {
            Width: 300,
            Height: 300,
            Depth: 2,
            Format: CUarray_format::FLOAT,
            NumChannels: 1,
            Flags: CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_LAYERED,
        };
        let tile = [128, 128, 1];
        let (tail_level, tail_bytes) = (2, 2 * TILE_BYTES);
        Tiling {
            desc,
            levels: 4,
            tile,
            tail_level,
            tail_bytes,
            has_single_tail: false,
            alignment: TILE_BYTES,
        }
    }

    fn level(level: u32, layer: u32, offset: [u32; 3], extent: [u32; 3]) -> ArrayPart {
        ArrayPart::Level { level, layer, offset, extent }
    }

    #[test]
    fn boxes_are_whole_tiles_of_their_level() {
        let numbers = |part: &ArrayPart| -> Option<Vec<u64>> {
            let tiles = sparse().tiles(part)?;
            let each: Vec<Tile> = tiles.each().collect();
            assert!(each.iter().all(|tile| tiles.contains(tile)));
            assert_eq!(each.len() as u64, tiles.count());
            assert_eq!(tiles.ends(), [each[0], each[each.len() - 1]]);
            Some(each.iter().map(|tile| tile.number).collect())
        };
        assert_eq!(numbers(&level(0, 1, [128, 128, 0], [256, 128, 1])), Some(vec![4, 5]));
        assert_eq!(numbers(&level(0, 0, [128, 0, 0], [172, 300, 1])), Some(vec![1, 2, 4, 5, 7, 8]));
        assert_eq!(numbers(&level(1, 0, [0, 0, 0], [150, 150, 1])), Some(vec![0, 1, 2, 3]));
        for part in [
            level(2, 0, [0; 3], [128, 128, 1]),
            level(0, 2, [0; 3], [128, 128, 1]),
            level(0, 0, [64, 0, 0], [128, 128, 1]),
            level(0, 0, [0; 3], [100, 128, 1]),
            level(0, 0, [0; 3], [0, 128, 1]),
            level(0, 0, [0, 0, 1], [128, 128, 1]),
            level(0, 0, [256, 0, 0], [256, 128, 1]),
            level(0, 0, [u32::MAX - 127, 0, 0], [u32::MAX, 128, 1]),
            ArrayPart::Whole,
        ] {
            assert_eq!(sparse().tiles(&part), None, "{part:?}");
        }
    }

    #[test]
    fn tails_are_of_a_layer_or_of_all() {
        let tail = |layer, offset, bytes| ArrayPart::Tail { layer, offset, bytes };
        let tiles = sparse().tiles(&tail(1, TILE_BYTES, TILE_BYTES)).unwrap();
        let expected = Tile { level: Tile::TAIL, layer: 1, number: 1 };
        assert_eq!(tiles.each().collect::<Vec<_>>(), [expected]);
        assert!(tiles.contains(&expected) && !tiles.contains(&Tile { layer: 0, ..expected }));
        for part in [
            tail(2, 0, TILE_BYTES),
            tail(0, 1, TILE_BYTES),
            tail(0, 0, 0),
            tail(0, 0, TILE_BYTES + 1),
            tail(0, TILE_BYTES, 2 * TILE_BYTES),
            tail(0, u64::MAX - TILE_BYTES + 1, 2 * TILE_BYTES),
        ] {
            assert_eq!(sparse().tiles(&part), None, "{part:?}");
        }
        let single = Tiling { has_single_tail: true, ..sparse() };
        assert_eq!(single.tiles(&tail(1, 0, TILE_BYTES)), None);
        assert!(single.tiles(&tail(0, 0, TILE_BYTES)).is_some());
    }

    #[test]
    fn deferred_arrays_are_mapped_whole() {
        let mut array =
            Tiling { tail_level: 0, tail_bytes: TILE_BYTES + 512, has_single_tail: true, ..sparse() };
        array.desc.Flags = CUDA_ARRAY3D_DEFERRED_MAPPING;
        let tiles = array.tiles(&ArrayPart::Whole).unwrap();
        assert_eq!((tiles.count(), tiles.bytes), (2, TILE_BYTES + 512));
        assert_eq!(array.tiles(&level(0, 0, [0; 3], [128, 128, 1])), None);
        assert_eq!(array.tiles(&ArrayPart::Tail { layer: 0, offset: 0, bytes: TILE_BYTES }), None);
    }
}
