//! Arrays whose memory the program maps later: what is mapped to which of their tiles.
//!
//! The memory is the program's, made by `cuMemCreate`, and the lease pays for it. A program may
//! release its handle while arrays have it: then the lease pays until they have not, so each tile
//! counts as a reference. What a stream takes away it may still use until it has come there; an
//! event behind that says when.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_cuda::*;
use sluice_wire::{ArrayMap, LaterArray, PhysicalPart, SparseProperties, commands};

use super::tiled::{Change, Key, Leaving, State, Tiled};
use crate::memory::physical::{Physical, give_up};
use crate::session::Session;
use crate::session::execute::Execute;

/// What a tile costs of host memory, about: its entry here, and the driver's.
const TILE_COST: u64 = 128;
/// `CU_EVENT_DISABLE_TIMING`.
const WITHOUT_TIMING: u32 = 2;

/// Remembers how the driver cuts an array that was made just now; one of which that is not known is
/// destroyed again.
pub(crate) fn enter(
    session: &Session,
    of: Key,
    desc: &CUDA_ARRAY3D_DESCRIPTOR,
    levels: u32,
    handle: Handle,
) -> Result<(), CUresult> {
    let (gpu, device) = session.device()?;
    let tiling = tiling(session, desc, levels, handle, device.ordinal);
    let tiling = tiling.inspect_err(|_| handle.destroy(&session.table))?;
    session.tiles.lock().arrays.insert(of, Tiled { gpu, tiling, mapped: BTreeMap::new() });
    Ok(())
}

fn tiling(
    session: &Session,
    desc: &CUDA_ARRAY3D_DESCRIPTOR,
    levels: u32,
    handle: Handle,
    device: CUdevice,
) -> Result<Tiling, CUresult> {
    if desc.is_sparse() {
        return cut(desc, levels, &handle.properties(session)?).ok_or(CUresult::NOT_SUPPORTED);
    }
    let wanted = handle.requirements(session, device)?;
    if wanted.size == 0 || wanted.alignment == 0 {
        return Err(CUresult::NOT_SUPPORTED);
    }
    Ok(Tiling {
        desc: *desc,
        levels,
        tile: [0; 3],
        tail_level: 0,
        tail_bytes: wanted.size as u64,
        has_single_tail: true,
        alignment: wanted.alignment as u64,
    })
}

/// As the driver says; `None` if its tiles are not of 64 KiB.
fn cut(
    desc: &CUDA_ARRAY3D_DESCRIPTOR,
    levels: u32,
    properties: &CUDA_ARRAY_SPARSE_PROPERTIES,
) -> Option<Tiling> {
    let tile = properties.tileExtent;
    let sides = tile.iter().map(|side| u64::from(*side));
    let bytes = sides.chain(desc.element_bytes()).try_fold(1_u64, u64::checked_mul);
    let has_tail = properties.miptailSize > 0;
    (bytes == Some(TILE_BYTES)).then_some(Tiling {
        desc: *desc,
        levels,
        tile,
        tail_level: if has_tail { properties.miptailFirstLevel } else { levels },
        tail_bytes: properties.miptailSize,
        has_single_tail: properties.flags & CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL != 0,
        alignment: TILE_BYTES,
    })
}

/// An array is gone, and nothing in the driver uses its memory any more.
pub(crate) fn leave(session: &Session, of: Key) {
    let gone = session.tiles.lock().arrays.remove(&of);
    if let Some(gone) = gone {
        session.tiles.host_memory.give_back(gone.mapped.len() as u64 * TILE_COST);
        gone.mapped.into_values().for_each(|physical| give_up(&session.budget, physical));
    }
}

/// Gives memory up that streams have left behind.
pub(crate) fn reap(session: &Session) {
    let (Some(query), Some(destroy)) = (session.table.cuEventQuery, session.table.cuEventDestroy_v2) else {
        return;
    };
    let left: Vec<Leaving> = {
        let mut state = session.tiles.lock();
        // SAFETY: the events are ours, and live until they are taken out here.
        let is_left = |leaving: &mut Leaving| unsafe { query(leaving.event) } != CUresult::NOT_READY;
        state.leaving.extract_if(.., is_left).collect()
    };
    for Leaving { event, memory } in left {
        // SAFETY: ours, and forgotten since just now.
        let _ = unsafe { destroy(event) };
        memory.into_iter().for_each(|physical| give_up(&session.budget, physical));
    }
}

pub(crate) fn map(session: &Session, command: &commands::cuMemMapArrayAsync) -> Result<(), CUresult> {
    let submit = session.table.cuMemMapArrayAsync.ok_or(CUresult::NOT_SUPPORTED)?;
    reap(session);
    let stream = session.find(command.hStream)?;
    // No thread releases memory meanwhile: then a reference that is dropped here is never the last.
    let memory = session.memory.lock();
    let mut state = session.tiles.lock();
    let find = |part: &PhysicalPart| memory.physical.get(&part.handle.0).cloned();
    let changes =
        command.maps.iter().map(|map| state.check(session, map, find)).collect::<Result<Vec<_>, _>>()?;
    let new = changes.iter().filter(|change| change.memory.is_some()).map(|change| change.tiles.count());
    let cost = new.fold(0, u64::saturating_add).saturating_mul(TILE_COST);
    let held = session.tiles.host_memory.take(cost)?;
    let mut list: Vec<CUarrayMapInfo> = changes.iter().map(|change| change.info).collect();
    let count = u32::try_from(list.len()).map_err(|_| CUresult::INVALID_VALUE)?;
    // SAFETY: each array and memory is the session's and live, each part is one that the array has,
    // and the memory holds as much.
    unsafe { submit(list.as_mut_ptr(), count, stream) }.ok()?;
    let before = state.mapped();
    let gone: Vec<Arc<Physical>> = changes.into_iter().flat_map(|change| state.make(change)).collect();
    let after = state.mapped();
    session.tiles.host_memory.add(after.saturating_sub(before) * TILE_COST);
    session.tiles.host_memory.give_back(before.saturating_sub(after) * TILE_COST);
    drop((held, memory));
    if gone.is_empty() {
        return Ok(());
    }
    if let Some(event) = mark(&session.table, stream) {
        state.leaving.push(Leaving { event, memory: gone });
        return Ok(());
    }
    drop(state);
    let wait = session.table.cuStreamSynchronize.ok_or(CUresult::NOT_SUPPORTED)?;
    // SAFETY: the stream is live.
    let result = unsafe { wait(stream) }.ok();
    gone.into_iter().for_each(|physical| give_up(&session.budget, physical));
    result
}

/// An event behind all that is in a stream, if it can be had.
fn mark(table: &DriverTable, stream: CUstream) -> Option<CUevent> {
    let (create, record) = (table.cuEventCreate?, table.cuEventRecord?);
    let mut event = CUevent::NULL;
    // SAFETY: the driver writes one handle to a local.
    unsafe { create(&mut event, WITHOUT_TIMING) }.ok().ok()?;
    // SAFETY: the event is ours; the stream is live.
    if unsafe { record(event, stream) }.is_success() {
        return Some(event);
    }
    // SAFETY: ours, and not known elsewhere.
    table.cuEventDestroy_v2.map(|destroy| unsafe { destroy(event) });
    None
}

impl State {
    fn check(
        &self,
        session: &Session,
        map: &ArrayMap,
        find: impl std::ops::Fn(&PhysicalPart) -> Option<Arc<Physical>>,
    ) -> Result<Change, CUresult> {
        let (of, kind, resource) = match map.array {
            LaterArray::Array(id) => (Key::Array(id), CUresourcetype::ARRAY, session.find(id)?.0),
            LaterArray::Mipmapped(id) => {
                (Key::Mipmapped(id), CUresourcetype::MIPMAPPED_ARRAY, session.find(id)?.0)
            }
        };
        // A level of an array, or one that has its memory, is not in here.
        let tiled = self.arrays.get(&of).ok_or(CUresult::INVALID_VALUE)?;
        let part = map.part.part();
        let tiles = tiled.tiling.tiles(&part).ok_or(CUresult::INVALID_VALUE)?;
        let memory = map.memory.as_ref().map(|part| {
            let physical = find(part).ok_or(CUresult::INVALID_HANDLE)?;
            let end = part.offset.checked_add(tiles.bytes).ok_or(CUresult::INVALID_VALUE)?;
            let fits = end <= physical.bytes && part.offset.is_multiple_of(tiled.tiling.alignment);
            let is_right = fits && physical.is_tile_pool && physical.gpu == tiled.gpu;
            if is_right { Ok((physical, part.offset)) } else { Err(CUresult::INVALID_VALUE) }
        });
        let (memory, offset) = memory.transpose()?.unzip();
        let device = session.devices.get(tiled.gpu as usize).ok_or(CUresult::INVALID_DEVICE)?;
        let devices = 1_u32.checked_shl(device.ordinal as u32).ok_or(CUresult::NOT_SUPPORTED)?;
        let mut info = CUarrayMapInfo {
            resourceType: kind,
            resource,
            subresourceType: CUarraySparseSubresourceType::SPARSE_LEVEL,
            subresource: [0; 4],
            memOperationType: match memory {
                Some(_) => CUmemOperationType::MAP,
                None => CUmemOperationType::UNMAP,
            },
            memHandleType: CUmemHandleType::GENERIC,
            memHandle: memory.as_ref().map_or(CUmemGenericAllocationHandle::NULL, |memory| memory.handle),
            offset: offset.unwrap_or(0),
            deviceBitMask: devices,
            flags: 0,
            reserved: [0; 2],
        };
        info.set_part(&part);
        Ok(Change { of, tiles, memory, info })
    }
}

/// An array of the driver's.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Handle {
    Array(CUarray),
    Mipmapped(CUmipmappedArray),
}

impl Handle {
    /// Destroys an array that is not known elsewhere.
    fn destroy(self, table: &DriverTable) {
        // SAFETY: it was made just now, and is not named any more.
        let _ = unsafe {
            match self {
                Handle::Array(array) => table.cuArrayDestroy.map(|destroy| destroy(array)),
                Handle::Mipmapped(array) => table.cuMipmappedArrayDestroy.map(|destroy| destroy(array)),
            }
        };
    }

    /// How it is cut into tiles, if it is sparse.
    pub(crate) fn properties(self, session: &Session) -> Result<CUDA_ARRAY_SPARSE_PROPERTIES, CUresult> {
        let (table, mut properties) = (&session.table, CUDA_ARRAY_SPARSE_PROPERTIES::default());
        let (plain, mipmapped) =
            (table.cuArrayGetSparseProperties, table.cuMipmappedArrayGetSparseProperties);
        // SAFETY: the array is live, and the driver writes to a local.
        let result = unsafe {
            match self {
                Handle::Array(array) => plain.ok_or(CUresult::NOT_SUPPORTED)?(&mut properties, array),
                Handle::Mipmapped(array) => mipmapped.ok_or(CUresult::NOT_SUPPORTED)?(&mut properties, array),
            }
        };
        result.ok().map(|()| properties)
    }

    /// The memory that it wants on a device, if it is deferred.
    pub(crate) fn requirements(
        self,
        session: &Session,
        device: CUdevice,
    ) -> Result<CUDA_ARRAY_MEMORY_REQUIREMENTS, CUresult> {
        let (table, mut wanted) = (&session.table, CUDA_ARRAY_MEMORY_REQUIREMENTS::default());
        let (plain, mipmapped) =
            (table.cuArrayGetMemoryRequirements, table.cuMipmappedArrayGetMemoryRequirements);
        // SAFETY: the array is live, and the driver writes to a local.
        let result = unsafe {
            match self {
                Handle::Array(array) => plain.ok_or(CUresult::NOT_SUPPORTED)?(&mut wanted, array, device),
                Handle::Mipmapped(array) => {
                    mipmapped.ok_or(CUresult::NOT_SUPPORTED)?(&mut wanted, array, device)
                }
            }
        };
        result.ok().map(|()| wanted)
    }
}

/// The answer to who asks how an array is cut.
pub(crate) fn properties(session: &Session, handle: Handle) -> Result<SparseProperties, CUresult> {
    let it = handle.properties(session)?;
    Ok(SparseProperties {
        tile: it.tileExtent,
        tail_level: it.miptailFirstLevel,
        tail_bytes: it.miptailSize,
        flags: it.flags,
    })
}

/// Size and alignment of the memory that an array wants on a GPU of the lease.
pub(crate) fn requirements(session: &Session, handle: Handle, gpu: u32) -> Result<(u64, u64), CUresult> {
    let device = session.devices.get(gpu as usize).ok_or(CUresult::INVALID_DEVICE)?;
    let wanted = handle.requirements(session, device.ordinal)?;
    Ok((wanted.size as u64, wanted.alignment as u64))
}
