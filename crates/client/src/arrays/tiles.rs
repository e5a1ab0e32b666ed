//! Arrays whose memory the program maps later. How they are cut into tiles only the node knows, so
//! that each question waits; what is mapped to them is kept there, too, and keeps memory whose
//! handle the program has released.

use sluice_cuda::*;
use sluice_wire::{ArrayMap, LaterArray, MappedPart, PhysicalPart, SparseProperties, commands};

use crate::abi::out;
use crate::arrays::{self, Mapped};
use crate::session::issue::{Issue, list, wanted};
use crate::session::{self, Session};
use crate::stream::{self, capture};

fn to_c(properties: &SparseProperties) -> CUDA_ARRAY_SPARSE_PROPERTIES {
    CUDA_ARRAY_SPARSE_PROPERTIES {
        tileExtent: properties.tile,
        miptailFirstLevel: properties.tail_level,
        miptailSize: properties.tail_bytes,
        flags: properties.flags,
        reserved: [0; 4],
    }
}

fn requirements(size: u64, alignment: u64) -> CUDA_ARRAY_MEMORY_REQUIREMENTS {
    CUDA_ARRAY_MEMORY_REQUIREMENTS { size: size as usize, alignment: alignment as usize, reserved: [0; 4] }
}

/// One entry as it travels, if CUDA lets a stream of this device do what it asks for.
fn entry(session: &Session, info: &CUarrayMapInfo, device: CUdevice) -> Result<ArrayMap, CUresult> {
    let (array, mapped) = match info.resourceType {
        CUresourcetype::ARRAY => {
            let array = CUarray(info.resource);
            (LaterArray::Array(session.find(array)?), arrays::mapped_later(array)?)
        }
        CUresourcetype::MIPMAPPED_ARRAY => {
            let array = CUmipmappedArray(info.resource);
            (LaterArray::Mipmapped(session.find(array)?), arrays::mipmapped_later(array)?)
        }
        _ => return Err(CUresult::INVALID_VALUE),
    };
    let devices = 1_u32.checked_shl(device as u32);
    if info.flags != 0
        || info.reserved != [0; 2]
        || devices != Some(info.deviceBitMask)
        || mapped.device != device
    {
        return Err(CUresult::INVALID_VALUE);
    }
    let part = if mapped.is_whole { Some(ArrayPart::Whole) } else { info.part() };
    let part = MappedPart::new(&part.ok_or(CUresult::INVALID_VALUE)?);
    let memory = match info.memOperationType {
        CUmemOperationType::MAP if info.memHandleType == CUmemHandleType::GENERIC => {
            Some(PhysicalPart { handle: session.find(info.memHandle)?, offset: info.offset })
        }
        CUmemOperationType::UNMAP if info.memHandle.is_null() => None,
        _ => return Err(CUresult::INVALID_VALUE),
    };
    Ok(ArrayMap { array, part, memory })
}

// The entry points. CUDA Driver API, sections "Virtual Memory Management" and "Memory Management".

pub(crate) unsafe fn cuMemMapArrayAsync(
    mapInfoList: *mut CUarrayMapInfo,
    count: u32,
    hStream: CUstream,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let (device, stream) = (stream::device_of(hStream)?, session.find(hStream)?);
    capture::check_not_capturing(hStream)?;
    // SAFETY: the program passes that many entries.
    let list = unsafe { list(mapInfoList.cast_const(), count.into())? };
    let maps = list.iter().map(|info| entry(session, info, device)).collect::<Result<Vec<_>, _>>()?;
    if maps.is_empty() {
        return Ok(());
    }
    session.call(&commands::cuMemMapArrayAsync { maps, hStream: stream }, |()| ())
}

pub(crate) unsafe fn cuArrayGetSparseProperties(
    sparseProperties: *mut CUDA_ARRAY_SPARSE_PROPERTIES,
    array: CUarray,
) -> Result<(), CUresult> {
    let session = session::get()?;
    wanted(sparseProperties)?;
    arrays::mapped_later(array)?.expect_tiles()?;
    let command = commands::cuArrayGetSparseProperties { array: session.find(array)? };
    let properties = session.call(&command, |answer| to_c(&answer.properties))?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(sparseProperties, properties) }
}

pub(crate) unsafe fn cuMipmappedArrayGetSparseProperties(
    sparseProperties: *mut CUDA_ARRAY_SPARSE_PROPERTIES,
    mipmap: CUmipmappedArray,
) -> Result<(), CUresult> {
    let session = session::get()?;
    wanted(sparseProperties)?;
    arrays::mipmapped_later(mipmap)?.expect_tiles()?;
    let command = commands::cuMipmappedArrayGetSparseProperties { mipmap: session.find(mipmap)? };
    let properties = session.call(&command, |answer| to_c(&answer.properties))?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(sparseProperties, properties) }
}

pub(crate) unsafe fn cuArrayGetMemoryRequirements(
    memoryRequirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS,
    array: CUarray,
    device: CUdevice,
) -> Result<(), CUresult> {
    let session = session::get()?;
    wanted(memoryRequirements)?;
    arrays::mapped_later(array)?.expect_whole()?;
    let device = session.device(device)?.place.into();
    let command = commands::cuArrayGetMemoryRequirements { array: session.find(array)?, device };
    let answer = session.call(&command, |answer| requirements(answer.size, answer.alignment))?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(memoryRequirements, answer) }
}

pub(crate) unsafe fn cuMipmappedArrayGetMemoryRequirements(
    memoryRequirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS,
    mipmap: CUmipmappedArray,
    device: CUdevice,
) -> Result<(), CUresult> {
    let session = session::get()?;
    wanted(memoryRequirements)?;
    arrays::mipmapped_later(mipmap)?.expect_whole()?;
    let device = session.device(device)?.place.into();
    let command = commands::cuMipmappedArrayGetMemoryRequirements { mipmap: session.find(mipmap)?, device };
    let answer = session.call(&command, |answer| requirements(answer.size, answer.alignment))?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(memoryRequirements, answer) }
}

impl Mapped {
    fn expect_tiles(&self) -> Result<(), CUresult> {
        if self.is_whole { Err(CUresult::INVALID_VALUE) } else { Ok(()) }
    }

    fn expect_whole(&self) -> Result<(), CUresult> {
        if self.is_whole { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
    }
}
