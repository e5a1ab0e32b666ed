//! Texture and surface references, of which nothing is made but numbers; what arrays are bound to
//! them is remembered.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;

use crate::call::Call;

/// By the function that asks for them and the reference: the arrays that are bound.
fn bound() -> MutexGuard<'static, BTreeMap<(&'static str, usize), usize>> {
    static BOUND: Mutex<BTreeMap<(&'static str, usize), usize>> = Mutex::new(BTreeMap::new());
    BOUND.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A name in a module becomes a handle.
///
/// # Safety
/// `name` ends with NUL, and `place` is one for a handle.
unsafe fn named(
    (function, kind): (&'static str, &'static str),
    place: *mut usize,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    let mut call = Call::new(function);
    call.handle("Module", module.0);
    // SAFETY: by this function's contract.
    call.values_of(unsafe { CStr::from_ptr(name) }.to_bytes());
    let mut answer = call.answer(true);
    // SAFETY: by this function's contract.
    unsafe { answer.mint(kind, place) };
    answer.result()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetTexRef(
    pTexRef: *mut CUtexref,
    hmod: CUmodule,
    name: *const c_char,
) -> CUresult {
    // SAFETY: the caller's name and place.
    unsafe { named(("cuModuleGetTexRef", "TexRef"), pTexRef.cast(), hmod, name) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetSurfRef(
    pSurfRef: *mut CUsurfref,
    hmod: CUmodule,
    name: *const c_char,
) -> CUresult {
    // SAFETY: the caller's name and place.
    unsafe { named(("cuModuleGetSurfRef", "SurfRef"), pSurfRef.cast(), hmod, name) }
}

/// Binds an array of a kind to a reference of a kind; `getter` is asked for it.
fn bind(
    (function, getter): (&'static str, &'static str),
    reference: (&'static str, usize),
    array: (&'static str, usize),
    flags: u32,
) -> CUresult {
    let mut call = Call::new(function);
    call.handle(reference.0, reference.1);
    call.handle(array.0, array.1);
    call.value(flags);
    let result = call.answer(true).result();
    if result.is_success() {
        bound().insert((getter, reference.1), array.1);
    }
    result
}

/// # Safety
/// `place` is one for a handle.
unsafe fn get(getter: &'static str, reference: (&'static str, usize), place: *mut usize) -> CUresult {
    let mut call = Call::new(getter);
    call.handle(reference.0, reference.1);
    let result = call.answer(true).result();
    match bound().get(&(getter, reference.1)) {
        Some(&array) if result.is_success() => {
            // SAFETY: by this function's contract.
            unsafe { place.write(array) };
            result
        }
        None => CUresult::INVALID_VALUE,
        Some(_) => result,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuTexRefSetArray(hTexRef: CUtexref, hArray: CUarray, Flags: u32) -> CUresult {
    bind(("cuTexRefSetArray", "cuTexRefGetArray"), ("TexRef", hTexRef.0), ("Array", hArray.0), Flags)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuTexRefGetArray(phArray: *mut CUarray, hTexRef: CUtexref) -> CUresult {
    // SAFETY: the caller's place.
    unsafe { get("cuTexRefGetArray", ("TexRef", hTexRef.0), phArray.cast()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuTexRefSetMipmappedArray(
    hTexRef: CUtexref,
    hMipmappedArray: CUmipmappedArray,
    Flags: u32,
) -> CUresult {
    let functions = ("cuTexRefSetMipmappedArray", "cuTexRefGetMipmappedArray");
    bind(functions, ("TexRef", hTexRef.0), ("MipmappedArray", hMipmappedArray.0), Flags)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuTexRefGetMipmappedArray(
    phMipmappedArray: *mut CUmipmappedArray,
    hTexRef: CUtexref,
) -> CUresult {
    // SAFETY: the caller's place.
    unsafe { get("cuTexRefGetMipmappedArray", ("TexRef", hTexRef.0), phMipmappedArray.cast()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuSurfRefSetArray(hSurfRef: CUsurfref, hArray: CUarray, Flags: u32) -> CUresult {
    bind(("cuSurfRefSetArray", "cuSurfRefGetArray"), ("SurfRef", hSurfRef.0), ("Array", hArray.0), Flags)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuSurfRefGetArray(phArray: *mut CUarray, hSurfRef: CUsurfref) -> CUresult {
    // SAFETY: the caller's place.
    unsafe { get("cuSurfRefGetArray", ("SurfRef", hSurfRef.0), phArray.cast()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuTexRefSetAddress2D_v3(
    hTexRef: CUtexref,
    desc: *const CUDA_ARRAY_DESCRIPTOR,
    dptr: CUdeviceptr,
    Pitch: usize,
) -> CUresult {
    // SAFETY: the caller's description.
    let it = unsafe { desc.read() };
    let mut call = Call::new("cuTexRefSetAddress2D_v3");
    call.handle("TexRef", hTexRef.0);
    call.values_of(&[it.Width, it.Height, Pitch]);
    call.values_of(&[it.Format.0, it.NumChannels]);
    let row = it.Width as u64 * it.Format.channel_bytes().unwrap_or(0) * u64::from(it.NumChannels);
    call.address(dptr, (it.Height as u64 - 1) * Pitch as u64 + row);
    call.answer(true).result()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuTexRefGetBorderColor(pBorderColor: *mut f32, hTexRef: CUtexref) -> CUresult {
    let mut call = Call::new("cuTexRefGetBorderColor");
    call.handle("TexRef", hTexRef.0);
    let mut answer = call.answer(true);
    // SAFETY: the caller's place for four numbers.
    unsafe { answer.write(pBorderColor.cast::<[f32; 4]>()) };
    answer.result()
}
