//! Mipmapped arrays, which are the driver's behind; and texture and surface objects, of which
//! nothing is made but numbers.

use sluice_cuda::*;

use crate::by_hand::forward;
use crate::call::{Call, forget, note};
use crate::table;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMipmappedArrayCreate(
    pHandle: *mut CUmipmappedArray,
    pMipmappedArrayDesc: *const CUDA_ARRAY3D_DESCRIPTOR,
    numMipmapLevels: u32,
) -> CUresult {
    // SAFETY: the caller's description.
    let it = unsafe { pMipmappedArrayDesc.read() };
    let mut call = Call::new("cuMipmappedArrayCreate");
    call.values_of(&[it.Width, it.Height, it.Depth]);
    call.values_of(&[it.Format.0, it.NumChannels, it.Flags]);
    call.value(numMipmapLevels);
    call.answer(false);
    let result = forward!(cuMipmappedArrayCreate(pHandle, pMipmappedArrayDesc, numMipmapLevels));
    if result.is_success() {
        // SAFETY: written just now.
        note("MipmappedArray", unsafe { pHandle.read() }.0);
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMipmappedArrayDestroy(hMipmappedArray: CUmipmappedArray) -> CUresult {
    let mut call = Call::new("cuMipmappedArrayDestroy");
    call.handle("MipmappedArray", hMipmappedArray.0);
    call.answer(false);
    forget("MipmappedArray", hMipmappedArray.0);
    forward!(cuMipmappedArrayDestroy(hMipmappedArray))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMipmappedArrayGetLevel(
    pLevelArray: *mut CUarray,
    hMipmappedArray: CUmipmappedArray,
    level: u32,
) -> CUresult {
    let mut call = Call::new("cuMipmappedArrayGetLevel");
    call.handle("MipmappedArray", hMipmappedArray.0);
    call.value(level);
    call.answer(false);
    let result = forward!(cuMipmappedArrayGetLevel(pLevelArray, hMipmappedArray, level));
    if result.is_success() {
        // SAFETY: written just now.
        note("Array", unsafe { pLevelArray.read() }.0);
    }
    result
}

/// What an object is made of: the kind, and all words of the union.
///
/// # Safety
/// `desc` is a description.
unsafe fn resource(call: &mut Call, desc: *const CUDA_RESOURCE_DESC) {
    // SAFETY: by this function's contract.
    let it = unsafe { desc.read() };
    assert_eq!(it.flags, 0, "no flag is defined");
    call.value(it.resType.0);
    let [first, second, third, fourth, fifth, ..] = it.words;
    match it.resType {
        CUresourcetype::ARRAY => call.handle("Array", first as usize),
        CUresourcetype::MIPMAPPED_ARRAY => call.handle("MipmappedArray", first as usize),
        CUresourcetype::LINEAR => call.address(first, third),
        _ => {
            let element = CUarray_format(second as u32).channel_bytes().unwrap_or(0) * (second >> 32);
            call.address(first, (fourth - 1) * fifth + third * element);
        }
    }
    call.values_of(&it.words[1..]);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuTexObjectCreate(
    pTexObject: *mut CUtexObject,
    pResDesc: *const CUDA_RESOURCE_DESC,
    pTexDesc: *const CUDA_TEXTURE_DESC,
    pResViewDesc: *const CUDA_RESOURCE_VIEW_DESC,
) -> CUresult {
    let mut call = Call::new("cuTexObjectCreate");
    // SAFETY: the caller's descriptions.
    unsafe {
        resource(&mut call, pResDesc);
        call.value(pTexDesc.read());
        call.value(u32::from(!pResViewDesc.is_null()));
        if !pResViewDesc.is_null() {
            let it = pResViewDesc.read();
            call.value(it.format);
            call.values_of(&[it.width, it.height, it.depth]);
            call.values_of(&[it.firstMipmapLevel, it.lastMipmapLevel, it.firstLayer, it.lastLayer]);
            call.value(it.reserved);
        }
    }
    let mut answer = call.answer(true);
    // SAFETY: the caller's place.
    unsafe { answer.mint("TexObject", pTexObject.cast()) };
    answer.result()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuTexObjectDestroy(texObject: CUtexObject) -> CUresult {
    let mut call = Call::new("cuTexObjectDestroy");
    call.handle("TexObject", texObject as usize);
    call.answer(false).result()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuSurfObjectCreate(
    pSurfObject: *mut CUsurfObject,
    pResDesc: *const CUDA_RESOURCE_DESC,
) -> CUresult {
    let mut call = Call::new("cuSurfObjectCreate");
    // SAFETY: the caller's description.
    unsafe { resource(&mut call, pResDesc) };
    let mut answer = call.answer(true);
    // SAFETY: the caller's place.
    unsafe { answer.mint("SurfObject", pSurfObject.cast()) };
    answer.result()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuSurfObjectDestroy(surfObject: CUsurfObject) -> CUresult {
    let mut call = Call::new("cuSurfObjectDestroy");
    call.handle("SurfObject", surfObject as usize);
    call.answer(false).result()
}
