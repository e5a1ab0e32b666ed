//! Arrays whose memory is mapped later, which are the driver's behind. Memory gets its number when
//! it is first mapped.

use sluice_cuda::*;

use crate::by_hand::forward;
use crate::call::{Call, note, number_of};
use crate::table;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuArrayGetSparseProperties(
    sparseProperties: *mut CUDA_ARRAY_SPARSE_PROPERTIES,
    array: CUarray,
) -> CUresult {
    let mut call = Call::new("cuArrayGetSparseProperties");
    call.handle("Array", array.0);
    call.answer(false);
    forward!(cuArrayGetSparseProperties(sparseProperties, array))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMipmappedArrayGetSparseProperties(
    sparseProperties: *mut CUDA_ARRAY_SPARSE_PROPERTIES,
    mipmap: CUmipmappedArray,
) -> CUresult {
    let mut call = Call::new("cuMipmappedArrayGetSparseProperties");
    call.handle("MipmappedArray", mipmap.0);
    call.answer(false);
    forward!(cuMipmappedArrayGetSparseProperties(sparseProperties, mipmap))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuArrayGetMemoryRequirements(
    memoryRequirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS,
    array: CUarray,
    device: CUdevice,
) -> CUresult {
    let mut call = Call::new("cuArrayGetMemoryRequirements");
    call.handle("Array", array.0);
    call.value(device);
    call.answer(false);
    forward!(cuArrayGetMemoryRequirements(memoryRequirements, array, device))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMipmappedArrayGetMemoryRequirements(
    memoryRequirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS,
    mipmap: CUmipmappedArray,
    device: CUdevice,
) -> CUresult {
    let mut call = Call::new("cuMipmappedArrayGetMemoryRequirements");
    call.handle("MipmappedArray", mipmap.0);
    call.value(device);
    call.answer(false);
    forward!(cuMipmappedArrayGetMemoryRequirements(memoryRequirements, mipmap, device))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemMapArrayAsync(
    mapInfoList: *mut CUarrayMapInfo,
    count: u32,
    hStream: CUstream,
) -> CUresult {
    let mut call = Call::new("cuMemMapArrayAsync");
    call.handle("Stream", hStream.0);
    for at in 0..count as usize {
        // SAFETY: the caller's entries.
        let info = unsafe { mapInfoList.add(at).read() };
        call.value(info.resourceType.0);
        let kind = if info.resourceType == CUresourcetype::ARRAY { "Array" } else { "MipmappedArray" };
        call.handle(kind, info.resource);
        call.value(info.subresourceType.0);
        call.value(info.subresource);
        call.values_of(&[info.memOperationType.0, info.memHandleType.0]);
        if !info.memHandle.is_null() {
            if number_of("Physical", info.memHandle.0).is_none() {
                note("Physical", info.memHandle.0);
            }
            call.handle("Physical", info.memHandle.0);
        }
        call.value(info.offset);
        call.values_of(&[info.deviceBitMask, info.flags, info.reserved[0], info.reserved[1]]);
    }
    call.answer(false);
    forward!(cuMemMapArrayAsync(mapInfoList, count, hStream))
}
