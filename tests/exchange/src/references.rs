//! Texture and surface references of a module: arrays and memory are bound to them, and what is
//! bound is asked for.

use std::ffi::CStr;

use sluice_cuda::*;

use crate::arrays::{self, format};
use crate::program::{Program, Sent, bytes_of};
use crate::textures::Mipmapped;

/// Asks a module for a texture and a surface reference, twice each, and uses them for a while.
pub(crate) fn of_module(p: &mut Program, module: CUmodule, number: u64, name: &CStr) {
    if let Some(reference) = texture(p, module, number, name) {
        bound_array(p, reference);
        bound_levels(p, reference);
        bound_rows(p, reference);
        border(p, reference);
        p.forget("TexRef", reference.0.0);
    }
    if let Some(reference) = surface(p, module, number, name) {
        bound_surface(p, reference);
        p.forget("SurfRef", reference.0.0);
    }
}

fn named(function: &'static str, module: u64, name: &CStr) -> Sent {
    let mut sent = Sent::new(function);
    sent.number(module);
    sent.values(name.to_bytes());
    sent
}

/// The handle, and its number.
fn texture(p: &mut Program, module: CUmodule, of: u64, name: &CStr) -> Option<(CUtexref, u64)> {
    let get = p.cuda.cuModuleGetTexRef.expect("exported");
    let (mut reference, mut again) = (CUtexref::NULL, CUtexref::NULL);
    // SAFETY: a live module, a name, and a place; here and below.
    let result = unsafe { get(&mut reference, module, name.as_ptr()) };
    if !p.check(named("cuModuleGetTexRef", of, name), true, result, &[]) {
        return None;
    }
    // SAFETY: as above.
    let result = unsafe { get(&mut again, module, name.as_ptr()) };
    assert_eq!((result, again), (CUresult::SUCCESS, reference), "a name is one reference");
    let number = p.count_of("TexRef");
    p.minted("TexRef", reference.0);
    Some((reference, number))
}

fn surface(p: &mut Program, module: CUmodule, of: u64, name: &CStr) -> Option<(CUsurfref, u64)> {
    let get = p.cuda.cuModuleGetSurfRef.expect("exported");
    let (mut reference, mut again) = (CUsurfref::NULL, CUsurfref::NULL);
    // SAFETY: a live module, a name, and a place; here and below.
    let result = unsafe { get(&mut reference, module, name.as_ptr()) };
    if !p.check(named("cuModuleGetSurfRef", of, name), true, result, &[]) {
        return None;
    }
    // SAFETY: as above.
    let result = unsafe { get(&mut again, module, name.as_ptr()) };
    assert_eq!((result, again), (CUresult::SUCCESS, reference), "a name is one reference");
    let number = p.count_of("SurfRef");
    p.minted("SurfRef", reference.0);
    Some((reference, number))
}

/// What binds an array to a reference says both, and the one flag.
fn binding(function: &'static str, reference: u64, array: u64, flags: u32) -> Sent {
    let mut sent = Sent::new(function);
    sent.number(reference);
    sent.number(array);
    sent.value(flags);
    sent
}

fn asking(function: &'static str, reference: u64) -> Sent {
    let mut sent = Sent::new(function);
    sent.number(reference);
    sent
}

fn bound_array(p: &mut Program, (reference, number): (CUtexref, u64)) {
    let array = arrays::plain(p);
    let flags = CU_TRSA_OVERRIDE_FORMAT;
    // SAFETY: live handles.
    let result = unsafe { p.cuda.cuTexRefSetArray.expect("exported")(reference, array.handle, flags) };
    if p.check(binding("cuTexRefSetArray", number, array.number, flags), true, result, &[]) {
        let mut found = CUarray::NULL;
        // SAFETY: a live handle, and a place.
        let result = unsafe { p.cuda.cuTexRefGetArray.expect("exported")(&mut found, reference) };
        if p.check(asking("cuTexRefGetArray", number), true, result, &[]) {
            assert_eq!(found, array.handle, "the array that is bound");
        }
    }
    arrays::destroy(p, array);
}

fn bound_levels(p: &mut Program, (reference, number): (CUtexref, u64)) {
    let array = Mipmapped::create(p);
    let flags = CU_TRSA_OVERRIDE_FORMAT;
    let bind = p.cuda.cuTexRefSetMipmappedArray.expect("exported");
    // SAFETY: live handles.
    let result = unsafe { bind(reference, array.handle, flags) };
    if p.check(binding("cuTexRefSetMipmappedArray", number, array.number, flags), true, result, &[]) {
        let mut found = CUmipmappedArray::NULL;
        // SAFETY: a live handle, and a place.
        let result = unsafe { p.cuda.cuTexRefGetMipmappedArray.expect("exported")(&mut found, reference) };
        if p.check(asking("cuTexRefGetMipmappedArray", number), true, result, &[]) {
            assert_eq!(found, array.handle, "the mipmapped array that is bound");
        }
    }
    array.destroy(p);
}

fn bound_surface(p: &mut Program, (reference, number): (CUsurfref, u64)) {
    let array = arrays::plain(p);
    // SAFETY: live handles.
    let result = unsafe { p.cuda.cuSurfRefSetArray.expect("exported")(reference, array.handle, 0) };
    if p.check(binding("cuSurfRefSetArray", number, array.number, 0), true, result, &[]) {
        let mut found = CUarray::NULL;
        // SAFETY: a live handle, and a place.
        let result = unsafe { p.cuda.cuSurfRefGetArray.expect("exported")(&mut found, reference) };
        if p.check(asking("cuSurfRefGetArray", number), true, result, &[]) {
            assert_eq!(found, array.handle, "the array that is bound");
        }
    }
    arrays::destroy(p, array);
}

/// Rows of memory, by either version of the function.
fn bound_rows(p: &mut Program, (reference, number): (CUtexref, u64)) {
    let (format, channels, element) = format(p);
    let (width, height) = (p.within(1, 400) as usize, p.within(1, 60) as usize);
    let pitch = width * element + p.within(0, 99) as usize;
    let desc = CUDA_ARRAY_DESCRIPTOR { Width: width, Height: height, Format: format, NumChannels: channels };
    let mut sent = Sent::new("cuTexRefSetAddress2D_v3");
    sent.number(number);
    sent.values(&[width, height, pitch]);
    sent.values(&[format.0, channels]);
    let address = p.address(&mut sent, (pitch * height) as u64);
    let bind = if p.once_in(2) { p.cuda.cuTexRefSetAddress2D_v2 } else { p.cuda.cuTexRefSetAddress2D_v3 };
    // SAFETY: a live handle, and a description.
    let result = unsafe { bind.expect("exported")(reference, &desc, address, pitch) };
    p.check(sent, true, result, &[]);
}

fn border(p: &mut Program, (reference, number): (CUtexref, u64)) {
    let mut color = [0.0_f32; 4];
    // SAFETY: a live handle, and a place for four numbers.
    let result = unsafe { p.cuda.cuTexRefGetBorderColor.expect("exported")(color.as_mut_ptr(), reference) };
    p.check(asking("cuTexRefGetBorderColor", number), true, result, &[bytes_of(&color)]);
}
