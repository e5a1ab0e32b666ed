//! Arrays: images of one to three dimensions, in layers and levels. Each is a box of rows in device
//! memory that no program has an address of; copies, textures and surfaces find it by its handle.

use std::sync::{Arc, Mutex, PoisonError};

use sluice_cuda::{
    ArrayExtent, CUDA_ARRAY3D_CUBEMAP, CUDA_ARRAY3D_DEFERRED_MAPPING, CUDA_ARRAY3D_DESCRIPTOR,
    CUDA_ARRAY3D_LAYERED, CUDA_ARRAY3D_SPARSE, CUDA_ARRAY3D_SURFACE_LDST, CUDA_ARRAY3D_TEXTURE_GATHER,
    CUarray, CUmipmappedArray,
};

use crate::base::status::{Result, Status};
use crate::base::table::Table;
use crate::context::Context;
use crate::memory;
use crate::memory::allocation::{self, Kind};
use crate::memory::copy::{BoxLayout, Extent};
use crate::memory::tiles::{self, TiledArray};

pub(crate) static ARRAYS: Table<Array> = Table::new(20);
pub(crate) static MIPMAPPED: Table<MipmappedArray> = Table::new(21);

/// Rows begin at multiples of this number of bytes.
const ROW_ALIGN: u64 = 64;
/// Elements in each direction, as `MAXIMUM_TEXTURE...` of the device say of the largest.
const SIZE_MAX: usize = 1 << 17;
/// More levels than a side of that many elements has make no sense.
const LEVELS_MAX: u32 = 18;
const MAPPED_LATER: u32 = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
const FLAGS: u32 = CUDA_ARRAY3D_LAYERED
    | CUDA_ARRAY3D_SURFACE_LDST
    | CUDA_ARRAY3D_CUBEMAP
    | CUDA_ARRAY3D_TEXTURE_GATHER
    | MAPPED_LATER;

/// An array, or a level of a mipmapped one.
pub(crate) struct Array {
    pub(crate) handle: usize,
    pub(crate) context: usize,
    pub(crate) desc: CUDA_ARRAY3D_DESCRIPTOR,
    pub(crate) extent: ArrayExtent,
    pub(crate) place: BoxLayout,
    /// Where its memory is, if that is mapped later: then the place has none, and its addresses are
    /// names.
    pub(crate) tiles: Option<Arc<TiledArray>>,
    pub(crate) is_level: bool,
}

/// Levels that lie one behind the other.
pub(crate) struct MipmappedArray {
    handle: usize,
    pub(crate) context: usize,
    base: u64,
    pub(crate) tiles: Option<Arc<TiledArray>>,
    pub(crate) levels: Vec<Arc<Array>>,
    /// The levels' handles are known once the program has asked for them.
    named: Mutex<Vec<u32>>,
}

/// What a level needs: its own extent, and the bytes that it takes up in memory.
fn level_of(desc: &CUDA_ARRAY3D_DESCRIPTOR, level: u32) -> Result<(ArrayExtent, u64)> {
    let extent = desc.extent(level).ok_or(Status::INVALID_VALUE)?;
    let pitch = extent.row_bytes.next_multiple_of(ROW_ALIGN);
    let bytes = pitch.checked_mul(extent.rows).and_then(|slice| slice.checked_mul(extent.slices));
    Ok((extent, bytes.ok_or(Status::INVALID_VALUE)?))
}

fn check(desc: &CUDA_ARRAY3D_DESCRIPTOR) -> Result<()> {
    let sizes = [desc.Width, desc.Height, desc.Depth];
    let is_cube = desc.Flags & CUDA_ARRAY3D_CUBEMAP != 0;
    let is_layered = desc.Flags & CUDA_ARRAY3D_LAYERED != 0;
    if desc.Width == 0 || sizes.iter().any(|&size| size > SIZE_MAX) || desc.Flags & !FLAGS != 0 {
        return Err(Status::INVALID_VALUE);
    }
    if desc.element_bytes().is_none() || (desc.Depth > 0 && desc.Height == 0 && !is_layered) {
        return Err(Status::INVALID_VALUE);
    }
    let is_square = desc.Width == desc.Height && desc.Depth.is_multiple_of(6) && desc.Depth > 0;
    if is_cube && (!is_square || (!is_layered && desc.Depth != 6)) {
        return Err(Status::INVALID_VALUE);
    }
    if desc.Flags & MAPPED_LATER != 0 && !desc.can_be_mapped_later() {
        return Err(Status::INVALID_VALUE);
    }
    Ok(())
}

/// Memory for levels of these sizes in bytes, or only addresses where it is mapped later.
fn allocate(
    context: &Context,
    desc: &CUDA_ARRAY3D_DESCRIPTOR,
    levels: &[(ArrayExtent, u64)],
    is_mipmapped: bool,
) -> Result<(u64, Option<Arc<TiledArray>>)> {
    if desc.Flags & MAPPED_LATER != 0 {
        let tiles = tiles::create(context, desc, levels, is_mipmapped)?;
        return Ok((tiles.base(), Some(tiles)));
    }
    let total = levels.iter().try_fold(0_u64, |sum, (_, bytes)| sum.checked_add(*bytes));
    let base = memory::allocate_as(context, total.ok_or(Status::INVALID_VALUE)?, Kind::Array)?;
    Ok((base, None))
}

fn place_at(base: u64, extent: &ArrayExtent) -> BoxLayout {
    let pitch = extent.row_bytes.next_multiple_of(ROW_ALIGN);
    BoxLayout { address: base, pitch, slice: pitch * extent.rows }
}

/// `cuArray3DCreate`.
pub(crate) fn create(context: &Context, desc: CUDA_ARRAY3D_DESCRIPTOR) -> Result<Arc<Array>> {
    check(&desc)?;
    let level = level_of(&desc, 0)?;
    let (base, tiles) = allocate(context, &desc, &[level], false)?;
    let extent = level.0;
    let (context, place) = (context.owner(), place_at(base, &extent));
    Ok(ARRAYS.insert(|handle| Array { handle, context, desc, extent, place, tiles, is_level: false }))
}

/// Destroys an array, which work no longer uses.
pub(crate) fn destroy(handle: CUarray) -> Result<()> {
    let array = ARRAYS.remove(handle.0).ok_or(Status::INVALID_HANDLE)?;
    release(array.place.address);
    Ok(())
}

fn is_array(kind: Kind) -> bool {
    matches!(kind, Kind::Array | Kind::ArrayName)
}

fn release(base: u64) {
    if let Some(freed) = allocation::remove(base, |allocation| is_array(allocation.kind)) {
        memory::release(&freed);
    }
}

pub(crate) fn create_mipmapped(
    context: &Context,
    desc: CUDA_ARRAY3D_DESCRIPTOR,
    levels: u32,
) -> Result<usize> {
    check(&desc)?;
    if !(1..=LEVELS_MAX).contains(&levels) {
        return Err(Status::INVALID_VALUE);
    }
    // More than there are until a single element is left: as many as that.
    let longest = desc.Width.max(desc.Height).max(desc.Depth);
    let levels = levels.min(longest.ilog2() + 1);
    let sizes = (0..levels).map(|level| level_of(&desc, level)).collect::<Result<Vec<_>>>()?;
    let (base, tiles) = allocate(context, &desc, &sizes, true)?;
    let mut next = base;
    let mut made = Vec::new();
    for (level, (extent, bytes)) in sizes.into_iter().enumerate() {
        let (handle, context, place) = (ARRAYS.mint(), context.owner(), place_at(next, &extent));
        let halved = |size: usize| if size == 0 { 0 } else { (size >> level).max(1) };
        let is_layered = desc.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0;
        let desc = CUDA_ARRAY3D_DESCRIPTOR {
            Width: halved(desc.Width),
            Height: halved(desc.Height),
            Depth: if is_layered { desc.Depth } else { halved(desc.Depth) },
            ..desc
        };
        let tiles = tiles.clone();
        made.push(Arc::new(Array { handle, context, desc, extent, place, tiles, is_level: true }));
        next += bytes;
    }
    let (context, named) = (context.owner(), Mutex::default());
    let make = |handle| MipmappedArray { handle, context, base, tiles, levels: made, named };
    Ok(MIPMAPPED.insert(make).handle)
}

/// As [`destroy`]; the levels go with it.
pub(crate) fn destroy_mipmapped(handle: CUmipmappedArray) -> Result<()> {
    let array = MIPMAPPED.remove(handle.0).ok_or(Status::INVALID_HANDLE)?;
    array.levels.iter().for_each(|level| drop(ARRAYS.remove(level.handle)));
    release(array.base);
    Ok(())
}

/// The array that is this level, by a handle that stays the same.
pub(crate) fn level(handle: CUmipmappedArray, level: u32) -> Result<usize> {
    let of = mipmapped(handle)?;
    let array = of.levels.get(level as usize).ok_or(Status::INVALID_VALUE)?;
    let mut named = of.named.lock().unwrap_or_else(PoisonError::into_inner);
    if !named.contains(&level) {
        ARRAYS.insert_at(array.handle, Arc::clone(array));
        named.push(level);
    }
    Ok(array.handle)
}

pub(crate) fn array(handle: CUarray) -> Result<Arc<Array>> {
    ARRAYS.get(handle.0).ok_or(Status::INVALID_HANDLE)
}

pub(crate) fn mipmapped(handle: CUmipmappedArray) -> Result<Arc<MipmappedArray>> {
    MIPMAPPED.get(handle.0).ok_or(Status::INVALID_HANDLE)
}

/// Where a box of an array lies: its corner as bytes, rows and slices.
pub(crate) fn place(handle: CUarray, corner: [u64; 3], size: Extent) -> Result<BoxLayout> {
    let array = array(handle)?;
    if !array.extent.holds(corner, [size.width, size.height, size.depth]) {
        return Err(Status::INVALID_VALUE);
    }
    let [x, y, z] = corner;
    let BoxLayout { address, pitch, slice } = array.place;
    Ok(BoxLayout { address: address + z * slice + y * pitch + x, pitch, slice })
}

/// The array that an address lies in, and the place in it as bytes, rows and slices.
pub(crate) fn at(address: u64) -> Option<(CUarray, [u64; 3])> {
    allocation::find(address).filter(|allocation| is_array(allocation.kind))?;
    ARRAYS.all().into_iter().find_map(|array| {
        let BoxLayout { address: base, pitch, slice } = array.place;
        let offset = address.checked_sub(base).filter(|offset| *offset < slice * array.extent.slices)?;
        Some((CUarray(array.handle), [offset % pitch, offset % slice / pitch, offset / slice]))
    })
}

/// Forgets the arrays of a context that has ended; their memory goes with the context's
/// allocations.
pub(crate) fn context_destroyed(context: usize) {
    ARRAYS.remove_all(|array| array.context == context);
    MIPMAPPED.remove_all(|array| array.context == context);
}
