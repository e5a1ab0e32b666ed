//! Texture and surface objects (CUDA Driver API: Texture Object Management, Surface Object
//! Management).

use sluice_cuda::{
    CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUresult, CUsurfObject, CUtexObject,
};

use crate::base::status::{Status, call, put, require};
use crate::context::current;
use crate::image::texture;
use crate::submit::frees;

/// A view in another format or of a part is not there.
pub(crate) unsafe extern "C" fn cuTexObjectCreate(
    place: *mut CUtexObject,
    resource: *const CUDA_RESOURCE_DESC,
    sampling: *const CUDA_TEXTURE_DESC,
    view: *const CUDA_RESOURCE_VIEW_DESC,
) -> CUresult {
    call(|| {
        require(place)?;
        require(resource)?;
        require(sampling)?;
        if !view.is_null() {
            return Err(Status::NOT_SUPPORTED);
        }
        // SAFETY: input structures by contract.
        let (resource, sampling) = unsafe { (resource.read_unaligned(), sampling.read_unaligned()) };
        let object = texture::create_texture(&*current()?, resource, sampling)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, object) }
    })
}

pub(crate) unsafe extern "C" fn cuTexObjectDestroy(object: CUtexObject) -> CUresult {
    call(|| frees::destroy_object(object, true))
}

pub(crate) unsafe extern "C" fn cuTexObjectGetResourceDesc(
    place: *mut CUDA_RESOURCE_DESC,
    object: CUtexObject,
) -> CUresult {
    call(|| {
        let object = texture::find(object)?;
        object.sampling.ok_or(Status::INVALID_VALUE)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, object.resource) }
    })
}

pub(crate) unsafe extern "C" fn cuTexObjectGetTextureDesc(
    place: *mut CUDA_TEXTURE_DESC,
    object: CUtexObject,
) -> CUresult {
    call(|| {
        let sampling = texture::find(object)?.sampling.ok_or(Status::INVALID_VALUE)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, sampling) }
    })
}

pub(crate) unsafe extern "C" fn cuSurfObjectCreate(
    place: *mut CUsurfObject,
    resource: *const CUDA_RESOURCE_DESC,
) -> CUresult {
    call(|| {
        require(place)?;
        require(resource)?;
        // SAFETY: an input structure by contract.
        let object = texture::create_surface(&*current()?, unsafe { resource.read_unaligned() })?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, object) }
    })
}

pub(crate) unsafe extern "C" fn cuSurfObjectDestroy(object: CUsurfObject) -> CUresult {
    call(|| frees::destroy_object(object, false))
}

pub(crate) unsafe extern "C" fn cuSurfObjectGetResourceDesc(
    place: *mut CUDA_RESOURCE_DESC,
    object: CUsurfObject,
) -> CUresult {
    call(|| {
        let object = texture::find(object)?;
        if object.sampling.is_some() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: an output argument by contract.
        unsafe { put(place, object.resource) }
    })
}
