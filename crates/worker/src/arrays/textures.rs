//! Texture and surface objects: what device code reads arrays and memory through. Their numbers are
//! the driver's own, as kernels get them by value.

use sluice_cuda::*;
use sluice_wire::{PitchedTexels, TextureResource, commands};

use crate::session::Session;
use crate::session::execute::Execute;

/// Most texture objects, and most surface objects, of a session.
const OBJECTS_MAX: usize = 1 << 16;

/// What an object reads, as the driver wants it described. Words are those of the structures in the
/// union of `CUDA_RESOURCE_DESC`.
fn described(session: &Session, resource: &TextureResource) -> Result<CUDA_RESOURCE_DESC, CUresult> {
    let handle = |number: usize| {
        let mut words = [0; 16];
        words[0] = number as u64;
        words
    };
    let format = |format: CUarray_format, channels: u32| u64::from(format.0) | u64::from(channels) << 32;
    let (kind, words) = match resource {
        TextureResource::Array(id) => (CUresourcetype::ARRAY, handle(session.find(*id)?.0)),
        TextureResource::Mipmapped(id) => (CUresourcetype::MIPMAPPED_ARRAY, handle(session.find(*id)?.0)),
        // Of nothing there is no address to check.
        TextureResource::Linear(texels) if texels.bytes == 0 => return Err(CUresult::INVALID_VALUE),
        TextureResource::Linear(texels) => {
            let mut words = [0; 16];
            words[0] = session.range(texels.start, texels.bytes)?;
            words[1] = format(texels.format, texels.channels);
            words[2] = texels.bytes;
            (CUresourcetype::LINEAR, words)
        }
        TextureResource::Pitched(texels) => {
            let mut words = [0; 16];
            words[0] = rows_of(session, texels)?;
            words[1] = format(texels.format, texels.channels);
            (words[2], words[3], words[4]) = (texels.width, texels.height, texels.pitch);
            (CUresourcetype::PITCH2D, words)
        }
    };
    Ok(CUDA_RESOURCE_DESC { resType: kind, words, flags: 0 })
}

/// The address of rows that are all the session's own.
pub(crate) fn rows_of(session: &Session, texels: &PitchedTexels) -> Result<CUdeviceptr, CUresult> {
    let channel = texels.format.channel_bytes().ok_or(CUresult::NOT_SUPPORTED)?;
    let row = sluice_wire::product(&[texels.width, channel, texels.channels.into()]);
    // Of nothing there is no address to check.
    if row == 0 || texels.height == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    session.range(texels.start, sluice_wire::rows(texels.height, row, texels.pitch))
}

pub(crate) fn create_texture(
    session: &Session,
    command: &commands::cuTexObjectCreate,
) -> Result<CUtexObject, CUresult> {
    let create = session.table.cuTexObjectCreate.ok_or(CUresult::NOT_SUPPORTED)?;
    let resource = described(session, &command.resource)?;
    let sampling = command.sampling.to_c();
    let view = match command.view.as_slice() {
        [] => None,
        [view] => Some(view.to_c()),
        _ => return Err(CUresult::INVALID_VALUE),
    };
    let view = view.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let mut state = session.arrays.lock();
    if state.textures.len() >= OBJECTS_MAX {
        return Err(CUresult::OUT_OF_MEMORY);
    }
    let mut object = 0;
    // SAFETY: the descriptions are locals that name what is live and the session's; the driver
    // writes to a local.
    unsafe { create(&mut object, &resource, &sampling, view) }.ok()?;
    state.textures.insert(object);
    Ok(object)
}

pub(crate) fn destroy_texture(session: &Session, object: CUtexObject) -> Result<(), CUresult> {
    let destroy = session.table.cuTexObjectDestroy.ok_or(CUresult::NOT_SUPPORTED)?;
    if !session.arrays.lock().textures.remove(&object) {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the object was the session's until now.
    unsafe { destroy(object) }.ok()
}

pub(crate) fn create_surface(
    session: &Session,
    command: &commands::cuSurfObjectCreate,
) -> Result<CUsurfObject, CUresult> {
    let create = session.table.cuSurfObjectCreate.ok_or(CUresult::NOT_SUPPORTED)?;
    let resource = described(session, &command.resource)?;
    let mut state = session.arrays.lock();
    if state.surfaces.len() >= OBJECTS_MAX {
        return Err(CUresult::OUT_OF_MEMORY);
    }
    let mut object = 0;
    // SAFETY: as for a texture.
    unsafe { create(&mut object, &resource) }.ok()?;
    state.surfaces.insert(object);
    Ok(object)
}

pub(crate) fn destroy_surface(session: &Session, object: CUsurfObject) -> Result<(), CUresult> {
    let destroy = session.table.cuSurfObjectDestroy.ok_or(CUresult::NOT_SUPPORTED)?;
    if !session.arrays.lock().surfaces.remove(&object) {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: as for a texture.
    unsafe { destroy(object) }.ok()
}
