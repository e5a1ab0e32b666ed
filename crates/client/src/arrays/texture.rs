//! Texture and surface objects. Kernels get them by value, so that each is a number of the node's
//! driver, and making one waits. What an object was made of is remembered, as programs ask for it.

use std::sync::Arc;

use sluice_cuda::*;
use sluice_wire::{
    DevicePtr, LinearTexels, PitchedTexels, ResourceView, Sampling, TextureResource, commands,
};

use crate::abi::ids::Table;
use crate::abi::out;
use crate::context;
use crate::session::issue::{Issue, wanted};
use crate::session::{self, Session};

#[derive(Debug)]
struct Texture {
    context: CUcontext,
    resource: CUDA_RESOURCE_DESC,
    sampling: CUDA_TEXTURE_DESC,
    view: Option<CUDA_RESOURCE_VIEW_DESC>,
}

#[derive(Debug)]
struct Surface {
    context: CUcontext,
    resource: CUDA_RESOURCE_DESC,
}

/// By the drivers' numbers, see [`key`].
static TEXTURES: Table<Texture> = Table::new();
static SURFACES: Table<Surface> = Table::new();

/// What an object of a session is known by, and the other way round: the numbers of two nodes'
/// drivers may be the same.
fn key(session: &Session, object: u64) -> u64 {
    object ^ (u64::from(session.index) << 56)
}

/// An object of either kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Object {
    Texture(CUtexObject),
    Surface(CUsurfObject),
}

impl Object {
    /// Has the node destroy it.
    pub(crate) fn destroy(self, session: &Session) -> Result<(), CUresult> {
        match self {
            Object::Texture(object) => session.queue_quietly(&commands::cuTexObjectDestroy { object }),
            Object::Surface(object) => session.queue_quietly(&commands::cuSurfObjectDestroy { object }),
        }
    }
}

pub(crate) fn of_context(session: &Session, context: CUcontext) -> Vec<Object> {
    let textures = TEXTURES.find(|texture| texture.context == context).into_iter();
    let surfaces = SURFACES.find(|surface| surface.context == context).into_iter();
    let textures = textures.map(|texture| Object::Texture(key(session, texture)));
    textures.chain(surfaces.map(|surface| Object::Surface(key(session, surface)))).collect()
}

/// Forgets the objects of a context that has ended.
pub(crate) fn context_ended(context: CUcontext) {
    TEXTURES.remove_where(|texture| texture.context == context);
    SURFACES.remove_where(|surface| surface.context == context);
}

/// A description as it travels. Its words are those of the structures in the union of
/// `CUDA_RESOURCE_DESC`.
fn resource(session: &Session, desc: &CUDA_RESOURCE_DESC) -> Result<TextureResource, CUresult> {
    if desc.flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let [first, second, third, fourth, fifth, ..] = desc.words;
    let (format, channels) = (CUarray_format(second as u32), (second >> 32) as u32);
    let start = DevicePtr(first);
    Ok(match desc.resType {
        CUresourcetype::ARRAY => TextureResource::Array(session.find(CUarray(first as usize))?),
        CUresourcetype::MIPMAPPED_ARRAY => {
            TextureResource::Mipmapped(session.find(CUmipmappedArray(first as usize))?)
        }
        CUresourcetype::LINEAR => {
            TextureResource::Linear(LinearTexels { start, format, channels, bytes: third })
        }
        CUresourcetype::PITCH2D => {
            let (width, height, pitch) = (third, fourth, fifth);
            TextureResource::Pitched(PitchedTexels { start, format, channels, width, height, pitch })
        }
        _ => return Err(CUresult::INVALID_VALUE),
    })
}

fn texture(object: CUtexObject) -> Result<Arc<Texture>, CUresult> {
    TEXTURES.get(key(session::get()?, object)).ok_or(CUresult::INVALID_VALUE)
}

// The entry points. CUDA Driver API, sections "Texture Object Management" and "Surface Object
// Management".

pub(crate) unsafe fn cuTexObjectCreate(
    pTexObject: *mut CUtexObject,
    pResDesc: *const CUDA_RESOURCE_DESC,
    pTexDesc: *const CUDA_TEXTURE_DESC,
    pResViewDesc: *const CUDA_RESOURCE_VIEW_DESC,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let context = context::current()?.owner;
    wanted(pTexObject)?;
    wanted(pResDesc.cast_mut())?;
    wanted(pTexDesc.cast_mut())?;
    // SAFETY: not null but for the view, and the program passes descriptions.
    let (desc, sampling, view) = unsafe {
        let view = (!pResViewDesc.is_null()).then(|| pResViewDesc.read_unaligned());
        (pResDesc.read_unaligned(), pTexDesc.read_unaligned(), view)
    };
    let command = commands::cuTexObjectCreate {
        resource: resource(session, &desc)?,
        sampling: Sampling::new(&sampling),
        view: view.iter().map(ResourceView::new).collect(),
    };
    let object = session.call(&command, |answer| answer.object)?;
    TEXTURES.insert(key(session, object), Texture { context, resource: desc, sampling, view });
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(pTexObject, object) }
}

/// Work that may read through the object ends first.
pub(crate) unsafe fn cuTexObjectDestroy(texObject: CUtexObject) -> Result<(), CUresult> {
    let session = session::enter()?;
    texture(texObject)?;
    session.device(context::current()?.device)?.wait(session)?;
    TEXTURES.remove(key(session, texObject)).ok_or(CUresult::INVALID_VALUE)?;
    Object::Texture(texObject).destroy(session)
}

pub(crate) unsafe fn cuTexObjectGetResourceDesc(
    pResDesc: *mut CUDA_RESOURCE_DESC,
    texObject: CUtexObject,
) -> Result<(), CUresult> {
    // SAFETY: the program passes a place for the description.
    unsafe { out::write(pResDesc, texture(texObject)?.resource) }
}

pub(crate) unsafe fn cuTexObjectGetTextureDesc(
    pTexDesc: *mut CUDA_TEXTURE_DESC,
    texObject: CUtexObject,
) -> Result<(), CUresult> {
    // SAFETY: the program passes a place for the description.
    unsafe { out::write(pTexDesc, texture(texObject)?.sampling) }
}

/// An object that was made without a view has none to tell.
pub(crate) unsafe fn cuTexObjectGetResourceViewDesc(
    pResViewDesc: *mut CUDA_RESOURCE_VIEW_DESC,
    texObject: CUtexObject,
) -> Result<(), CUresult> {
    let view = texture(texObject)?.view.ok_or(CUresult::INVALID_VALUE)?;
    // SAFETY: the program passes a place for the description.
    unsafe { out::write(pResViewDesc, view) }
}

pub(crate) unsafe fn cuSurfObjectCreate(
    pSurfObject: *mut CUsurfObject,
    pResDesc: *const CUDA_RESOURCE_DESC,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let context = context::current()?.owner;
    wanted(pSurfObject)?;
    wanted(pResDesc.cast_mut())?;
    // SAFETY: not null, and the program passes a description.
    let desc = unsafe { pResDesc.read_unaligned() };
    if desc.resType != CUresourcetype::ARRAY {
        return Err(CUresult::INVALID_VALUE);
    }
    let command = commands::cuSurfObjectCreate { resource: resource(session, &desc)? };
    let object = session.call(&command, |answer| answer.object)?;
    SURFACES.insert(key(session, object), Surface { context, resource: desc });
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(pSurfObject, object) }
}

/// As for a texture.
pub(crate) unsafe fn cuSurfObjectDestroy(surfObject: CUsurfObject) -> Result<(), CUresult> {
    let session = session::enter()?;
    if !SURFACES.contains(key(session, surfObject)) {
        return Err(CUresult::INVALID_VALUE);
    }
    session.device(context::current()?.device)?.wait(session)?;
    SURFACES.remove(key(session, surfObject)).ok_or(CUresult::INVALID_VALUE)?;
    Object::Surface(surfObject).destroy(session)
}

pub(crate) unsafe fn cuSurfObjectGetResourceDesc(
    pResDesc: *mut CUDA_RESOURCE_DESC,
    surfObject: CUsurfObject,
) -> Result<(), CUresult> {
    let surface = SURFACES.get(key(session::get()?, surfObject)).ok_or(CUresult::INVALID_VALUE)?;
    // SAFETY: the program passes a place for the description.
    unsafe { out::write(pResDesc, surface.resource) }
}
