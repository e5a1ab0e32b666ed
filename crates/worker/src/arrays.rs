//! Arrays: opaque memory of the driver's, which copies, textures and surfaces read and write. The
//! lease is charged for the bytes of their elements; what a driver adds to lay them out is not
//! known. For those whose memory is mapped later (`tiles`) it is charged what they are mapped to,
//! when that is made.

pub(crate) mod records;
pub(crate) mod texture_references;
pub(crate) mod textures;
pub(crate) mod tiled;
pub(crate) mod tiles;
#[cfg(test)]
mod tiles_tests;

use sluice_cuda::*;
use sluice_wire::{ArrayId, ArrayShape, CopyNode, CopySide, MipmappedArrayId, StreamId, commands};

use self::records::{ArrayRecord, Charge, Mipmapped};
use self::tiled::Key;
use self::tiles::Handle;
use crate::graphs;
use crate::memory::budget::Claim;
use crate::session::Session;
use crate::session::execute::Execute;

const MAPPED_LATER: u32 = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
/// Flags that arrays may have: others are for graphics.
const FLAGS: u32 = CUDA_ARRAY3D_LAYERED
    | CUDA_ARRAY3D_SURFACE_LDST
    | CUDA_ARRAY3D_CUBEMAP
    | CUDA_ARRAY3D_TEXTURE_GATHER
    | MAPPED_LATER;

/// The descriptor of an array that can be charged for, and its bytes over all its levels.
fn checked(shape: &ArrayShape, levels: u32) -> Result<(CUDA_ARRAY3D_DESCRIPTOR, u64), CUresult> {
    let desc = shape.to_c();
    if desc.Flags & !FLAGS != 0 || desc.Format.channel_bytes().is_none() {
        return Err(CUresult::NOT_SUPPORTED);
    }
    if !(1..=u64::BITS).contains(&levels) {
        return Err(CUresult::INVALID_VALUE);
    }
    if desc.Flags & MAPPED_LATER != 0 && !desc.can_be_mapped_later() {
        return Err(CUresult::INVALID_VALUE);
    }
    let level = |level| desc.charge(level);
    let bytes = (0..levels).try_fold(0_u64, |sum, at| sum.checked_add(level(at)?));
    let bytes = bytes.ok_or(CUresult::INVALID_VALUE)?;
    Ok((desc, if desc.Flags & MAPPED_LATER == 0 { bytes } else { 0 }))
}

/// Makes something that costs the lease this number of bytes.
fn charged<T>(
    session: &Session,
    (bytes, claim): (u64, Claim),
    make: impl FnMut() -> Result<T, CUresult>,
) -> Result<(T, Charge), CUresult> {
    let (gpu, _) = session.device()?;
    let made = session.budget.charge(claim, (gpu, bytes), make)?;
    Ok((made, Charge { gpu, bytes }))
}

pub(crate) fn create(
    session: &Session,
    id: ArrayId,
    shape: &ArrayShape,
    claim: Claim,
) -> Result<(), CUresult> {
    let create = session.table.cuArray3DCreate_v2.ok_or(CUresult::NOT_SUPPORTED)?;
    session.vacant(id)?;
    let (desc, bytes) = checked(shape, 1)?;
    let (array, charge) = charged(session, (bytes, claim), || {
        let mut array = CUarray::NULL;
        // SAFETY: the driver reads a description and writes one handle, both locals.
        unsafe { create(&mut array, &desc) }.ok()?;
        if desc.Flags & MAPPED_LATER != 0 {
            tiles::enter(session, Key::Array(id), &desc, 1, Handle::Array(array))?;
        }
        Ok(array)
    })?;
    session.insert(id, array)?;
    let extent = desc.extent(0).ok_or(CUresult::INVALID_VALUE)?;
    session.arrays.lock().arrays.insert(id, ArrayRecord { extent, charge, level_of: None });
    Ok(())
}

pub(crate) fn destroy(session: &Session, id: ArrayId) -> Result<(), CUresult> {
    let destroy = session.table.cuArrayDestroy.ok_or(CUresult::NOT_SUPPORTED)?;
    let is_own = |known: &ArrayRecord| known.level_of.is_none();
    let known = {
        let mut state = session.arrays.lock();
        state.arrays.get(&id).filter(|known| is_own(known)).ok_or(CUresult::INVALID_HANDLE)?;
        state.arrays.remove(&id).ok_or(CUresult::INVALID_HANDLE)?
    };
    // SAFETY: the array was live until now, and our tables name it no more.
    unsafe { destroy(session.remove(id)?) }.ok()?;
    tiles::leave(session, Key::Array(id));
    session.budget.give_back(known.charge.gpu, known.charge.bytes);
    Ok(())
}

pub(crate) fn create_mipmapped(
    session: &Session,
    command: &commands::cuMipmappedArrayCreate,
) -> Result<(), CUresult> {
    let create = session.table.cuMipmappedArrayCreate.ok_or(CUresult::NOT_SUPPORTED)?;
    session.vacant(command.pHandle)?;
    let (shape, bytes) = checked(&command.shape, command.levels)?;
    let levels = command.levels;
    let (array, charge) = charged(session, (bytes, Claim::Asked), || {
        let mut array = CUmipmappedArray::NULL;
        // SAFETY: as for an array.
        unsafe { create(&mut array, &shape, levels) }.ok()?;
        if shape.Flags & MAPPED_LATER != 0 {
            tiles::enter(session, Key::Mipmapped(command.pHandle), &shape, levels, Handle::Mipmapped(array))?;
        }
        Ok(array)
    })?;
    session.insert(command.pHandle, array)?;
    session.arrays.lock().mipmapped.insert(command.pHandle, Mipmapped { shape, levels, charge });
    Ok(())
}

/// Its levels go with it.
pub(crate) fn destroy_mipmapped(session: &Session, id: MipmappedArrayId) -> Result<(), CUresult> {
    let destroy = session.table.cuMipmappedArrayDestroy.ok_or(CUresult::NOT_SUPPORTED)?;
    let (gone, levels) = {
        let mut state = session.arrays.lock();
        let gone = state.mipmapped.remove(&id).ok_or(CUresult::INVALID_HANDLE)?;
        let levels: Vec<ArrayId> =
            state.arrays.iter().filter(|(_, known)| known.level_of == Some(id)).map(|(&id, _)| id).collect();
        state.arrays.retain(|_, known| known.level_of != Some(id));
        (gone, levels)
    };
    for level in levels {
        session.remove(level)?;
    }
    // SAFETY: as for an array.
    unsafe { destroy(session.remove(id)?) }.ok()?;
    tiles::leave(session, Key::Mipmapped(id));
    session.budget.give_back(gone.charge.gpu, gone.charge.bytes);
    Ok(())
}

pub(crate) fn level(session: &Session, command: &commands::cuMipmappedArrayGetLevel) -> Result<(), CUresult> {
    let get = session.table.cuMipmappedArrayGetLevel.ok_or(CUresult::NOT_SUPPORTED)?;
    session.vacant(command.pLevelArray)?;
    let id = command.hMipmappedArray;
    let of = session.arrays.lock().mipmapped.get(&id).copied().ok_or(CUresult::INVALID_HANDLE)?;
    let extent = of.shape.extent(command.level).filter(|_| command.level < of.levels);
    let extent = extent.ok_or(CUresult::INVALID_VALUE)?;
    let mut array = CUarray::NULL;
    // SAFETY: the array is live and has the level; the driver writes one handle to a local.
    unsafe { get(&mut array, session.find(id)?, command.level) }.ok()?;
    session.insert(command.pLevelArray, array)?;
    let known = ArrayRecord { extent, charge: Charge::default(), level_of: Some(id) };
    session.arrays.lock().arrays.insert(command.pLevelArray, known);
    Ok(())
}

/// A copy in which no side is the client's.
pub(crate) fn copy(session: &Session, copy: &CopyNode, stream: StreamId) -> Result<(), CUresult> {
    let submit = session.table.cuMemcpy3DAsync_v2.ok_or(CUresult::NOT_SUPPORTED)?;
    if copy.is_across() {
        return Err(CUresult::INVALID_VALUE);
    }
    let described = session.describe_copy(copy, std::ptr::null_mut())?;
    // SAFETY: both boxes lie in the session's memory and arrays, and the driver reads one
    // description.
    let copied = |stream| unsafe { submit(&described, stream) }.ok();
    let stream = session.find(stream)?;
    match graphs::copy_ranges(copy)?.as_slice() {
        [memory] => session.near(*memory, stream, copied),
        _ => copied(stream),
    }
}

/// A copy of packed rows into an array.
pub(crate) fn fill(session: &Session, command: commands::cuMemcpyHtoAAsync_v2<'_>) -> Result<(), CUresult> {
    let submit = session.table.cuMemcpy3DAsync_v2.ok_or(CUresult::NOT_SUPPORTED)?;
    let copy = CopyNode {
        dst: CopySide::Array(command.dst),
        src: CopySide::Host(()),
        width: command.width,
        height: command.height,
        depth: command.depth,
        ticket: 0,
    };
    if copy.bytes() != Some(command.srcHost.len() as u64) {
        return Err(CUresult::INVALID_VALUE);
    }
    let described = session.describe_copy(&copy, command.srcHost.as_ptr().cast_mut().cast())?;
    let stream = session.find(command.hStream)?;
    let _copy = session.host_copy(stream)?;
    // SAFETY: the box lies in the array. The source has as many bytes, and is pageable memory,
    // which outside captures the driver has read when the call returns (CUDA Driver API, API
    // synchronization behavior).
    unsafe { submit(&described, stream) }.ok()
}
