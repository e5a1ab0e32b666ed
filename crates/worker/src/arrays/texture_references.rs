//! Texture and surface references of modules, and texture references that clients make. What is
//! bound to them the driver keeps; here they have names, and what is bound is the session's own.

use sluice_cuda::*;
use sluice_wire::{ArrayId, MipmappedArrayId, ModuleId, SurfRefId, TexRefId, commands};

use crate::arrays::textures::rows_of;
use crate::session::Session;
use crate::session::execute::Execute;

pub(crate) fn texture_of(
    session: &Session,
    command: &commands::cuModuleGetTexRef<'_>,
) -> Result<(), CUresult> {
    let get = session.table.cuModuleGetTexRef.ok_or(CUresult::NOT_SUPPORTED)?;
    session.vacant(command.pTexRef)?;
    let mut reference = CUtexref::NULL;
    // SAFETY: the module is live, the name is NUL-terminated, and the driver writes one handle to a
    // local.
    unsafe { get(&mut reference, session.find(command.hmod)?, command.name.as_ptr()) }.ok()?;
    session.insert(command.pTexRef, reference)?;
    session.modules.add_reference(command.hmod, |references| references.textures.push(command.pTexRef));
    Ok(())
}

pub(crate) fn surface_of(
    session: &Session,
    command: &commands::cuModuleGetSurfRef<'_>,
) -> Result<(), CUresult> {
    let get = session.table.cuModuleGetSurfRef.ok_or(CUresult::NOT_SUPPORTED)?;
    session.vacant(command.pSurfRef)?;
    let mut reference = CUsurfref::NULL;
    // SAFETY: as for a texture.
    unsafe { get(&mut reference, session.find(command.hmod)?, command.name.as_ptr()) }.ok()?;
    session.insert(command.pSurfRef, reference)?;
    session.modules.add_reference(command.hmod, |references| references.surfaces.push(command.pSurfRef));
    Ok(())
}

/// The driver ends the references of a module with it.
pub(crate) fn forget(session: &Session, module: ModuleId) -> Result<(), CUresult> {
    let gone = session.modules.remove_references(module);
    gone.textures.into_iter().try_for_each(|id| session.remove(id).map(drop))?;
    gone.surfaces.into_iter().try_for_each(|id| session.remove(id).map(drop))
}

/// Of those that a client has made only.
pub(crate) fn destroy(session: &Session, id: TexRefId) -> Result<(), CUresult> {
    let destroy = session.table.cuTexRefDestroy.ok_or(CUresult::NOT_SUPPORTED)?;
    if session.modules.has_texture(id) {
        return Err(CUresult::INVALID_HANDLE);
    }
    // SAFETY: the reference was live until now, and our tables name it no more.
    unsafe { destroy(session.remove(id)?) }.ok()
}

pub(crate) fn bind_rows(
    session: &Session,
    command: &commands::cuTexRefSetAddress2D_v3,
) -> Result<(), CUresult> {
    let bind = session.table.cuTexRefSetAddress2D_v3.ok_or(CUresult::NOT_SUPPORTED)?;
    let texels = &command.texels;
    let start = rows_of(session, texels)?;
    let desc = CUDA_ARRAY_DESCRIPTOR {
        Width: texels.width as usize,
        Height: texels.height as usize,
        Format: texels.format,
        NumChannels: texels.channels,
    };
    // SAFETY: the reference is live, the driver reads a description that is a local, and all rows
    // are the session's.
    unsafe { bind(session.find(command.hTexRef)?, &desc, start, texels.pitch as usize) }.ok()
}

pub(crate) fn array(session: &Session, id: TexRefId) -> Result<ArrayId, CUresult> {
    let get = session.table.cuTexRefGetArray.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut array = CUarray::NULL;
    // SAFETY: the reference is live, and the driver writes one handle to a local.
    unsafe { get(&mut array, session.find(id)?) }.ok()?;
    known(session, array)
}

pub(crate) fn surface_array(session: &Session, id: SurfRefId) -> Result<ArrayId, CUresult> {
    let get = session.table.cuSurfRefGetArray.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut array = CUarray::NULL;
    // SAFETY: as for a texture.
    unsafe { get(&mut array, session.find(id)?) }.ok()?;
    known(session, array)
}

/// Nothing is bound any more once the array has been destroyed.
fn known(session: &Session, array: CUarray) -> Result<ArrayId, CUresult> {
    session.objects.number_of(array).ok_or(CUresult::INVALID_VALUE)
}

pub(crate) fn mipmapped_array(session: &Session, id: TexRefId) -> Result<MipmappedArrayId, CUresult> {
    let get = session.table.cuTexRefGetMipmappedArray.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut array = CUmipmappedArray::NULL;
    // SAFETY: the reference is live, and the driver writes one handle to a local.
    unsafe { get(&mut array, session.find(id)?) }.ok()?;
    session.objects.number_of(array).ok_or(CUresult::INVALID_VALUE)
}

pub(crate) fn border_color(session: &Session, id: TexRefId) -> Result<[f32; 4], CUresult> {
    let get = session.table.cuTexRefGetBorderColor.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut color = [0.0; 4];
    // SAFETY: the reference is live, and the driver writes four numbers to a local.
    unsafe { get(color.as_mut_ptr(), session.find(id)?) }.ok()?;
    Ok(color)
}
