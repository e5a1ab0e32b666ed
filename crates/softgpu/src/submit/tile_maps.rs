//! Lists of memory to be mapped to the tiles of arrays (CUDA Driver API, `cuMemMapArrayAsync`).

use std::sync::Arc;

use sluice_cuda::{
    ArrayPart, CU_MEM_CREATE_USAGE_TILE_POOL, CUarray, CUarrayMapInfo, CUmemHandleType, CUmemOperationType,
    CUmipmappedArray, CUresourcetype,
};

use crate::base::status::{Result, Status};
use crate::image::array;
use crate::memory::tiles::{Change, Keep, TiledArray};
use crate::submit::Target;
use crate::vmm;
use crate::work::op::Op;

/// What one entry of a list asks for, if CUDA allows it.
fn change(info: &CUarrayMapInfo, device: usize) -> Result<Change> {
    let array = named(info)?;
    if info.flags != 0 || info.reserved != [0; 2] || array.device != device {
        return Err(Status::INVALID_VALUE);
    }
    if 1_u32.checked_shl(device as u32) != Some(info.deviceBitMask) {
        return Err(Status::INVALID_VALUE);
    }
    let part = if array.tiling.desc.is_deferred() { Some(ArrayPart::Whole) } else { info.part() };
    let tiles = part.and_then(|part| array.tiling.tiles(&part)).ok_or(Status::INVALID_VALUE)?;
    let memory = match info.memOperationType {
        CUmemOperationType::MAP => Some(memory(info, &array, tiles.bytes)?),
        CUmemOperationType::UNMAP if info.memHandle.is_null() => None,
        _ => return Err(Status::INVALID_VALUE),
    };
    Ok(Change { array, tiles, memory })
}

/// The array of an entry; a level has no tiles but those of its array.
fn named(info: &CUarrayMapInfo) -> Result<Arc<TiledArray>> {
    let tiles = match info.resourceType {
        CUresourcetype::ARRAY => {
            let array = array::array(CUarray(info.resource))?;
            array.tiles.clone().filter(|_| !array.is_level)
        }
        CUresourcetype::MIPMAPPED_ARRAY => array::mipmapped(CUmipmappedArray(info.resource))?.tiles.clone(),
        _ => None,
    };
    tiles.ok_or(Status::INVALID_VALUE)
}

/// The memory that an entry names: where it is, for as long as it is held.
fn memory(info: &CUarrayMapInfo, array: &TiledArray, bytes: u64) -> Result<(u64, Keep)> {
    let physical = vmm::physical(info.memHandle.0)?;
    let is_inside = info.offset.checked_add(bytes).is_some_and(|end| end <= physical.size);
    let is_pool = physical.usage & CU_MEM_CREATE_USAGE_TILE_POOL != 0;
    if !is_inside || !is_pool || !info.offset.is_multiple_of(array.tiling.alignment) {
        return Err(Status::INVALID_VALUE);
    }
    if info.memHandleType != CUmemHandleType::GENERIC
        || physical.device.is_none_or(|device| device.ordinal != array.device)
    {
        return Err(Status::INVALID_VALUE);
    }
    Ok((vmm::view(&physical)? + info.offset, physical))
}

/// `cuMemMapArrayAsync`. All of the list is checked before anything of it is done.
pub(crate) fn submit(target: &Target, list: &[CUarrayMapInfo]) -> Result<()> {
    target.stream.check_not_capturing()?;
    let device = target.context.device.ordinal;
    let changes = list.iter().map(|info| change(info, device)).collect::<Result<Vec<_>>>()?;
    target.submit(Op::MapTiles(Arc::new(changes)))
}
