//! Texture and surface references (CUDA Driver API: Texture Reference Management, Surface Reference
//! Management, and `cuParamSetTexRef` of Execution Control; all deprecated).

use std::ffi::c_char;
use std::sync::Arc;

use sluice_cuda::{
    CU_PARAM_TR_DEFAULT, CU_TRSA_OVERRIDE_FORMAT, CUDA_ARRAY_DESCRIPTOR, CUDA_TEXTURE_DESC, CUaddress_mode,
    CUarray, CUarray_format, CUdeviceptr, CUfilter_mode, CUfunction, CUmipmappedArray, CUmodule, CUresult,
    CUsurfref, CUtexref,
};

use super::module::name_at;
use crate::base::status::{Result, Status, call, put, put_optional, require};
use crate::context::current;
use crate::image::reference::{
    Reference, SURFACES, Source, SurfaceReference, TEXTURES, Texture, TextureReference,
};
use crate::module::Module;
use crate::module::library::function;

fn texture(handle: CUtexref) -> Result<Arc<TextureReference>> {
    TEXTURES.get(handle.0).ok_or(Status::INVALID_HANDLE)
}

fn surface(handle: CUsurfref) -> Result<Arc<SurfaceReference>> {
    SURFACES.get(handle.0).ok_or(Status::INVALID_HANDLE)
}

/// Changes how a texture is read.
fn sampled(handle: CUtexref, change: impl FnOnce(&mut CUDA_TEXTURE_DESC)) -> CUresult {
    call(|| {
        texture(handle)?.change(|texture| {
            change(&mut texture.sampling);
            Ok(())
        })
    })
}

/// Stores something about a texture.
fn told<T>(handle: CUtexref, place: *mut T, of: impl FnOnce(&Texture) -> Result<T>) -> CUresult {
    call(|| {
        let value = of(&texture(handle)?.lock())?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, value) }
    })
}

pub(crate) unsafe extern "C" fn cuModuleGetTexRef(
    place: *mut CUtexref,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    call(|| {
        current()?;
        require(place)?;
        // SAFETY: a C string by contract.
        match Module::get(module)?.reference(unsafe { name_at(name) }?)? {
            // SAFETY: an output argument by contract.
            Reference::Texture(texture) => unsafe { put(place, CUtexref(texture.handle)) },
            Reference::Surface(_) => Err(Status::NOT_FOUND),
        }
    })
}

pub(crate) unsafe extern "C" fn cuModuleGetSurfRef(
    place: *mut CUsurfref,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    call(|| {
        current()?;
        require(place)?;
        // SAFETY: a C string by contract.
        match Module::get(module)?.reference(unsafe { name_at(name) }?)? {
            // SAFETY: an output argument by contract.
            Reference::Surface(surface) => unsafe { put(place, CUsurfref(surface.handle)) },
            Reference::Texture(_) => Err(Status::NOT_FOUND),
        }
    })
}

/// What is bound to a module's texture reference is its functions' already; no other reference, and
/// no texture unit, can be given to them.
pub(crate) unsafe extern "C" fn cuParamSetTexRef(f: CUfunction, unit: i32, handle: CUtexref) -> CUresult {
    call(|| {
        let (function, texture) = (function(f)?, texture(handle)?);
        let is_its_own = unit == CU_PARAM_TR_DEFAULT && texture.module == function.module.handle;
        if is_its_own { Ok(()) } else { Err(Status::INVALID_VALUE) }
    })
}

pub(crate) unsafe extern "C" fn cuTexRefCreate(place: *mut CUtexref) -> CUresult {
    call(|| {
        require(place)?;
        let texture = TextureReference::create(&*current()?, 0);
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUtexref(texture.handle)) }
    })
}

/// A module's goes with the module only.
pub(crate) unsafe extern "C" fn cuTexRefDestroy(handle: CUtexref) -> CUresult {
    call(|| {
        if texture(handle)?.module != 0 {
            return Err(Status::INVALID_HANDLE);
        }
        TEXTURES.remove(handle.0).map(drop).ok_or(Status::INVALID_HANDLE)
    })
}

pub(crate) unsafe extern "C" fn cuTexRefSetArray(handle: CUtexref, array: CUarray, flags: u32) -> CUresult {
    call(|| {
        if flags != CU_TRSA_OVERRIDE_FORMAT {
            return Err(Status::INVALID_VALUE);
        }
        texture(handle)?.bind_array(array)
    })
}

pub(crate) unsafe extern "C" fn cuTexRefSetMipmappedArray(
    handle: CUtexref,
    array: CUmipmappedArray,
    flags: u32,
) -> CUresult {
    call(|| {
        if flags != CU_TRSA_OVERRIDE_FORMAT {
            return Err(Status::INVALID_VALUE);
        }
        texture(handle)?.bind_mipmapped(array)
    })
}

/// Where the texture has to begin before the memory does, the program has to get the offset.
pub(crate) unsafe extern "C" fn cuTexRefSetAddress_v2(
    offset: *mut usize,
    handle: CUtexref,
    address: CUdeviceptr,
    bytes: usize,
) -> CUresult {
    call(|| {
        let texture = texture(handle)?;
        if offset.is_null() && !texture.begins_at(address)? {
            return Err(Status::INVALID_VALUE);
        }
        let behind = texture.bind_memory(address, bytes as u64)?;
        // SAFETY: an output argument by contract, which may be null.
        unsafe { put_optional(offset, behind as usize) };
        Ok(())
    })
}

/// Also for `_v2`, which has the same arguments.
pub(crate) unsafe extern "C" fn cuTexRefSetAddress2D_v3(
    handle: CUtexref,
    desc: *const CUDA_ARRAY_DESCRIPTOR,
    address: CUdeviceptr,
    pitch: usize,
) -> CUresult {
    call(|| {
        require(desc)?;
        // SAFETY: an input structure by contract.
        texture(handle)?.bind_rows(unsafe { desc.read_unaligned() }, address, pitch as u64)
    })
}

/// Rows that are bound have the format that they were bound with.
pub(crate) unsafe extern "C" fn cuTexRefSetFormat(
    handle: CUtexref,
    format: CUarray_format,
    channels: i32,
) -> CUresult {
    call(|| {
        texture(handle)?.change(|texture| match texture.source {
            Source::Pitched { .. } => Err(Status::INVALID_VALUE),
            _ => texture.set_format(format, u32::try_from(channels).unwrap_or(0)),
        })
    })
}

pub(crate) unsafe extern "C" fn cuTexRefSetAddressMode(
    handle: CUtexref,
    dimension: i32,
    mode: CUaddress_mode,
) -> CUresult {
    if !(0..3).contains(&dimension) {
        return CUresult::INVALID_VALUE;
    }
    sampled(handle, |sampling| sampling.addressMode[dimension as usize] = mode)
}

pub(crate) unsafe extern "C" fn cuTexRefSetFilterMode(handle: CUtexref, mode: CUfilter_mode) -> CUresult {
    sampled(handle, |sampling| sampling.filterMode = mode)
}

pub(crate) unsafe extern "C" fn cuTexRefSetMipmapFilterMode(
    handle: CUtexref,
    mode: CUfilter_mode,
) -> CUresult {
    sampled(handle, |sampling| sampling.mipmapFilterMode = mode)
}

pub(crate) unsafe extern "C" fn cuTexRefSetMipmapLevelBias(handle: CUtexref, bias: f32) -> CUresult {
    sampled(handle, |sampling| sampling.mipmapLevelBias = bias)
}

pub(crate) unsafe extern "C" fn cuTexRefSetMipmapLevelClamp(
    handle: CUtexref,
    least: f32,
    most: f32,
) -> CUresult {
    sampled(handle, |sampling| {
        (sampling.minMipmapLevelClamp, sampling.maxMipmapLevelClamp) = (least, most);
    })
}

pub(crate) unsafe extern "C" fn cuTexRefSetMaxAnisotropy(handle: CUtexref, most: u32) -> CUresult {
    sampled(handle, |sampling| sampling.maxAnisotropy = most)
}

pub(crate) unsafe extern "C" fn cuTexRefSetBorderColor(handle: CUtexref, color: *const f32) -> CUresult {
    if color.is_null() {
        return CUresult::INVALID_VALUE;
    }
    // SAFETY: four numbers by contract.
    let color = unsafe { color.cast::<[f32; 4]>().read_unaligned() };
    sampled(handle, |sampling| sampling.borderColor = color)
}

pub(crate) unsafe extern "C" fn cuTexRefSetFlags(handle: CUtexref, flags: u32) -> CUresult {
    sampled(handle, |sampling| sampling.flags = flags)
}

pub(crate) unsafe extern "C" fn cuTexRefGetArray(place: *mut CUarray, handle: CUtexref) -> CUresult {
    told(handle, place, |texture| match texture.source {
        Source::Array(array) => Ok(array),
        _ => Err(Status::INVALID_VALUE),
    })
}

pub(crate) unsafe extern "C" fn cuTexRefGetMipmappedArray(
    place: *mut CUmipmappedArray,
    handle: CUtexref,
) -> CUresult {
    told(handle, place, |texture| match texture.source {
        Source::Mipmapped(array) => Ok(array),
        _ => Err(Status::INVALID_VALUE),
    })
}

pub(crate) unsafe extern "C" fn cuTexRefGetAddress_v2(place: *mut CUdeviceptr, handle: CUtexref) -> CUresult {
    told(handle, place, |texture| match texture.source {
        Source::Linear { address, .. } | Source::Pitched { address, .. } => Ok(address),
        _ => Err(Status::INVALID_VALUE),
    })
}

pub(crate) unsafe extern "C" fn cuTexRefGetFormat(
    format: *mut CUarray_format,
    channels: *mut i32,
    handle: CUtexref,
) -> CUresult {
    call(|| {
        let texture = texture(handle)?;
        let texture = texture.lock();
        // SAFETY: output arguments by contract, which may be null.
        unsafe {
            put_optional(format, texture.format);
            put_optional(channels, texture.channels as i32);
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuTexRefGetAddressMode(
    place: *mut CUaddress_mode,
    handle: CUtexref,
    dimension: i32,
) -> CUresult {
    told(handle, place, |texture| {
        let mode = usize::try_from(dimension).ok().and_then(|at| texture.sampling.addressMode.get(at));
        mode.copied().ok_or(Status::INVALID_VALUE)
    })
}

pub(crate) unsafe extern "C" fn cuTexRefGetFilterMode(
    place: *mut CUfilter_mode,
    handle: CUtexref,
) -> CUresult {
    told(handle, place, |texture| Ok(texture.sampling.filterMode))
}

pub(crate) unsafe extern "C" fn cuTexRefGetMipmapFilterMode(
    place: *mut CUfilter_mode,
    handle: CUtexref,
) -> CUresult {
    told(handle, place, |texture| Ok(texture.sampling.mipmapFilterMode))
}

pub(crate) unsafe extern "C" fn cuTexRefGetMipmapLevelBias(place: *mut f32, handle: CUtexref) -> CUresult {
    told(handle, place, |texture| Ok(texture.sampling.mipmapLevelBias))
}

pub(crate) unsafe extern "C" fn cuTexRefGetMipmapLevelClamp(
    least: *mut f32,
    most: *mut f32,
    handle: CUtexref,
) -> CUresult {
    call(|| {
        require(least)?;
        require(most)?;
        let sampling = texture(handle)?.lock().sampling;
        // SAFETY: output arguments by contract.
        unsafe {
            put(least, sampling.minMipmapLevelClamp)?;
            put(most, sampling.maxMipmapLevelClamp)
        }
    })
}

pub(crate) unsafe extern "C" fn cuTexRefGetMaxAnisotropy(place: *mut i32, handle: CUtexref) -> CUresult {
    told(handle, place, |texture| Ok(texture.sampling.maxAnisotropy as i32))
}

pub(crate) unsafe extern "C" fn cuTexRefGetBorderColor(place: *mut f32, handle: CUtexref) -> CUresult {
    told(handle, place.cast::<[f32; 4]>(), |texture| Ok(texture.sampling.borderColor))
}

pub(crate) unsafe extern "C" fn cuTexRefGetFlags(place: *mut u32, handle: CUtexref) -> CUresult {
    told(handle, place, |texture| Ok(texture.sampling.flags))
}

pub(crate) unsafe extern "C" fn cuSurfRefSetArray(handle: CUsurfref, array: CUarray, flags: u32) -> CUresult {
    call(|| {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        surface(handle)?.bind(array)
    })
}

pub(crate) unsafe extern "C" fn cuSurfRefGetArray(place: *mut CUarray, handle: CUsurfref) -> CUresult {
    call(|| {
        let array = surface(handle)?.array()?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, array) }
    })
}
