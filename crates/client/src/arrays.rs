//! Arrays: how they look is known here, what is in them only on the node.
//!
//! # In this folder
//!
//! Arrays, sparse arrays ([`tiles`]), and texture and surface objects ([`texture`]). References,
//! which belong to modules, are in [`texture_reference`](crate::module::texture_reference).

pub(crate) mod texture;
pub(crate) mod tiles;

use std::sync::{Arc, Mutex, PoisonError};

use sluice_cuda::*;
use sluice_wire::{ArrayId, ArrayShape, Id, MipmappedArrayId, commands};

use crate::abi::ids::{Kind, Table};
use crate::abi::out;
use crate::context::{self, Context};
use crate::device::Device;
use crate::session::issue::{Issue, wanted};
use crate::session::{self, Session};
use crate::stream::capture;

/// An array, or a level of a mipmapped one.
#[derive(Debug)]
pub(crate) struct Array {
    context: CUcontext,
    device: CUdevice,
    desc: CUDA_ARRAY3D_DESCRIPTOR,
    level_of: Option<CUmipmappedArray>,
}

#[derive(Debug)]
struct MipmappedArray {
    context: CUcontext,
    device: CUdevice,
    desc: CUDA_ARRAY3D_DESCRIPTOR,
    /// The handles of the levels that the program has asked for, by level.
    levels: Mutex<Vec<(u32, CUarray)>>,
}

static ARRAYS: Table<Array> = Table::new();
static MIPMAPPED: Table<MipmappedArray> = Table::new();

pub(crate) fn exists(number: u64) -> bool {
    ARRAYS.contains(number)
}

pub(crate) fn mipmapped_exists(number: u64) -> bool {
    MIPMAPPED.contains(number)
}

fn find(array: CUarray) -> Result<Arc<Array>, CUresult> {
    ARRAYS.get(array.0 as u64).ok_or(CUresult::INVALID_HANDLE)
}

/// Bytes of an array's element.
pub(crate) fn element_bytes(array: CUarray) -> Result<u64, CUresult> {
    find(array)?.desc.element_bytes().ok_or(CUresult::NOT_SUPPORTED)
}

/// How an array is mapped whose memory comes later: whole or tile by tile.
#[derive(Debug)]
pub(crate) struct Mapped {
    pub(crate) device: CUdevice,
    pub(crate) is_whole: bool,
}

impl Mapped {
    fn new(device: CUdevice, desc: &CUDA_ARRAY3D_DESCRIPTOR) -> Result<Mapped, CUresult> {
        let is_mapped = desc.is_sparse() || desc.is_deferred();
        is_mapped.then_some(Mapped { device, is_whole: desc.is_deferred() }).ok_or(CUresult::INVALID_VALUE)
    }
}

/// How an array is mapped; one that has its memory, or is a level of another, is not.
pub(crate) fn mapped_later(array: CUarray) -> Result<Mapped, CUresult> {
    let array = find(array)?;
    if array.level_of.is_some() {
        return Err(CUresult::INVALID_VALUE);
    }
    Mapped::new(array.device, &array.desc)
}

pub(crate) fn mipmapped_later(array: CUmipmappedArray) -> Result<Mapped, CUresult> {
    let array = MIPMAPPED.get(array.0 as u64).ok_or(CUresult::INVALID_HANDLE)?;
    Mapped::new(array.device, &array.desc)
}

/// Refuses a box that is not inside its array.
pub(crate) fn check(array: CUarray, corner: [u64; 3], size: [u64; 3]) -> Result<(), CUresult> {
    // A level's descriptor says the level's own size.
    let extent = find(array)?.desc.extent(0).ok_or(CUresult::NOT_SUPPORTED)?;
    if extent.holds(corner, size) { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
}

/// The context that an array was made in.
pub(crate) fn owner(handle: u64) -> Option<CUcontext> {
    let plain = ARRAYS.get(handle).map(|array| array.context);
    plain.or_else(|| MIPMAPPED.get(handle).map(|array| array.context))
}

/// The handles of a context's arrays, plain ones and mipmapped ones; levels go with the latter.
pub(crate) fn of_context(context: CUcontext) -> (Vec<u64>, Vec<u64>) {
    let plain = ARRAYS.find(|array| array.context == context && array.level_of.is_none());
    (plain, MIPMAPPED.find(|array| array.context == context))
}

/// Forgets the arrays of a context that has ended.
pub(crate) fn context_ended(context: CUcontext) {
    ARRAYS.remove_where(|array| array.context == context);
    MIPMAPPED.remove_where(|array| array.context == context);
}

fn create(session: &Session, owner: &Context, desc: CUDA_ARRAY3D_DESCRIPTOR) -> Result<CUarray, CUresult> {
    capture::check_safe()?;
    let number = context::mint(Kind::Array);
    let (pHandle, shape) = (ArrayId(number), ArrayShape::new(&desc));
    let asked = commands::cuArray3DCreate_v2 { pHandle, shape: shape.clone() };
    {
        let _memory = session.memory(owner.device)?;
        let device = session.device(owner.device)?;
        match desc.charge(0).filter(|_| is_usual(device, &desc)) {
            Some(bytes) => {
                let allowed = commands::ArrayCreateAllowed { pHandle, shape };
                session.use_memory((session.place_in_lease(), bytes), &allowed, &asked)?;
            }
            None => session.call(&asked, |()| ())?,
        }
    }
    let array = Array { context: owner.owner, device: owner.device, desc, level_of: None };
    ARRAYS.insert(number, array);
    Ok(ArrayId::handle_from(number as usize))
}

/// Whether the device makes any array of this shape: elements of a known format, and sizes within
/// the limits that its attributes name (CUDA Driver API, `cuArray3DCreate`). Layers, cubes and
/// gathered textures have rules of their own, which the driver knows.
fn is_usual(device: &Device, desc: &CUDA_ARRAY3D_DESCRIPTOR) -> bool {
    use CUdevice_attribute as A;
    let limits: &[A] = match (desc.Flags, desc.Height, desc.Depth) {
        (0, 0, 0) => &[A::MAXIMUM_TEXTURE1D_WIDTH],
        (0, _, 0) => &[A::MAXIMUM_TEXTURE2D_WIDTH, A::MAXIMUM_TEXTURE2D_HEIGHT],
        (0, _, _) => &[A::MAXIMUM_TEXTURE3D_WIDTH, A::MAXIMUM_TEXTURE3D_HEIGHT, A::MAXIMUM_TEXTURE3D_DEPTH],
        (CUDA_ARRAY3D_SURFACE_LDST, 0, 0) => &[A::MAXIMUM_SURFACE1D_WIDTH],
        (CUDA_ARRAY3D_SURFACE_LDST, _, 0) => &[A::MAXIMUM_SURFACE2D_WIDTH, A::MAXIMUM_SURFACE2D_HEIGHT],
        (CUDA_ARRAY3D_SURFACE_LDST, _, _) => {
            &[A::MAXIMUM_SURFACE3D_WIDTH, A::MAXIMUM_SURFACE3D_HEIGHT, A::MAXIMUM_SURFACE3D_DEPTH]
        }
        _ => return false,
    };
    let fits = |(&limit, size): (&A, usize)| {
        let most = device.attribute(limit).ok().and_then(|most| usize::try_from(most).ok());
        most.is_some_and(|most| (1..=most).contains(&size))
    };
    desc.element_bytes().is_some() && limits.iter().zip([desc.Width, desc.Height, desc.Depth]).all(fits)
}

// The entry points. CUDA Driver API, section "Memory Management".

pub(crate) unsafe fn cuArrayCreate_v2(
    pHandle: *mut CUarray,
    pAllocateArray: *const CUDA_ARRAY_DESCRIPTOR,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(pHandle)?;
    wanted(pAllocateArray.cast_mut())?;
    // SAFETY: not null, and the program passes a descriptor.
    let flat = unsafe { pAllocateArray.read_unaligned() };
    let desc = CUDA_ARRAY3D_DESCRIPTOR {
        Width: flat.Width,
        Height: flat.Height,
        Depth: 0,
        Format: flat.Format,
        NumChannels: flat.NumChannels,
        Flags: 0,
    };
    let array = create(session, &*context::current()?, desc)?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(pHandle, array) }
}

pub(crate) unsafe fn cuArray3DCreate_v2(
    pHandle: *mut CUarray,
    pAllocateArray: *const CUDA_ARRAY3D_DESCRIPTOR,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(pHandle)?;
    wanted(pAllocateArray.cast_mut())?;
    // SAFETY: not null, and the program passes a descriptor.
    let desc = unsafe { pAllocateArray.read_unaligned() };
    let array = create(session, &*context::current()?, desc)?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(pHandle, array) }
}

pub(crate) unsafe fn cuArrayGetDescriptor_v2(
    pArrayDescriptor: *mut CUDA_ARRAY_DESCRIPTOR,
    hArray: CUarray,
) -> Result<(), CUresult> {
    session::get()?;
    let desc = find(hArray)?.desc;
    let flat = CUDA_ARRAY_DESCRIPTOR {
        Width: desc.Width,
        Height: desc.Height,
        Format: desc.Format,
        NumChannels: desc.NumChannels,
    };
    // SAFETY: the program passes a place for the descriptor.
    unsafe { out::write(pArrayDescriptor, flat) }
}

pub(crate) unsafe fn cuArray3DGetDescriptor_v2(
    pArrayDescriptor: *mut CUDA_ARRAY3D_DESCRIPTOR,
    hArray: CUarray,
) -> Result<(), CUresult> {
    session::get()?;
    // SAFETY: the program passes a place for the descriptor.
    unsafe { out::write(pArrayDescriptor, find(hArray)?.desc) }
}

/// Work that may use the array ends first. A level goes with its array only.
pub(crate) unsafe fn cuArrayDestroy(hArray: CUarray) -> Result<(), CUresult> {
    let session = session::get()?;
    let array = find(hArray)?;
    if array.level_of.is_some() {
        return Err(CUresult::INVALID_HANDLE);
    }
    session.device(array.device)?.wait(session)?;
    ARRAYS.remove(hArray.0 as u64).ok_or(CUresult::INVALID_HANDLE)?;
    session.queue_quietly(&commands::cuArrayDestroy { hArray: ArrayId(hArray.0 as u64) })
}

pub(crate) unsafe fn cuMipmappedArrayCreate(
    pHandle: *mut CUmipmappedArray,
    pMipmappedArrayDesc: *const CUDA_ARRAY3D_DESCRIPTOR,
    numMipmapLevels: u32,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let owner = context::current()?;
    wanted(pHandle)?;
    wanted(pMipmappedArrayDesc.cast_mut())?;
    capture::check_safe()?;
    // SAFETY: not null, and the program passes a descriptor.
    let desc = unsafe { pMipmappedArrayDesc.read_unaligned() };
    let number = context::mint(Kind::MipmappedArray);
    let command = commands::cuMipmappedArrayCreate {
        pHandle: MipmappedArrayId(number),
        shape: ArrayShape::new(&desc),
        levels: numMipmapLevels,
    };
    {
        // It may use up what is allowed unasked.
        let _memory = session.memory(owner.device)?;
        session.call(&command, |()| ())?;
    }
    let (context, device, levels) = (owner.owner, owner.device, Mutex::default());
    MIPMAPPED.insert(number, MipmappedArray { context, device, desc, levels });
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(pHandle, CUmipmappedArray(number as usize)) }
}

pub(crate) unsafe fn cuMipmappedArrayDestroy(hMipmappedArray: CUmipmappedArray) -> Result<(), CUresult> {
    let session = session::get()?;
    let number = hMipmappedArray.0 as u64;
    let array = MIPMAPPED.get(number).ok_or(CUresult::INVALID_HANDLE)?;
    session.device(array.device)?.wait(session)?;
    MIPMAPPED.remove(number).ok_or(CUresult::INVALID_HANDLE)?;
    ARRAYS.remove_where(|array| array.level_of == Some(hMipmappedArray));
    session.queue_quietly(&commands::cuMipmappedArrayDestroy { hMipmappedArray: MipmappedArrayId(number) })
}

pub(crate) unsafe fn cuMipmappedArrayGetLevel(
    pLevelArray: *mut CUarray,
    hMipmappedArray: CUmipmappedArray,
    level: u32,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(pLevelArray)?;
    let of = MIPMAPPED.get(hMipmappedArray.0 as u64).ok_or(CUresult::INVALID_HANDLE)?;
    let mut levels = of.levels.lock().unwrap_or_else(PoisonError::into_inner);
    let known = levels.iter().find(|(known, _)| *known == level).map(|(_, array)| *array);
    let array = match known {
        Some(array) => array,
        None => {
            let number = context::mint(Kind::Array);
            let command = commands::cuMipmappedArrayGetLevel {
                pLevelArray: ArrayId(number),
                hMipmappedArray: session.find(hMipmappedArray)?,
                level,
            };
            session.call(&command, |()| ())?;
            let desc = level_desc(&of.desc, level);
            let level_of = Some(hMipmappedArray);
            ARRAYS.insert(number, Array { context: of.context, device: of.device, desc, level_of });
            levels.push((level, CUarray(number as usize)));
            CUarray(number as usize)
        }
    };
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(pLevelArray, array) }
}

/// What a level looks like: half of the one before in each direction, but no less than one element;
/// layers remain.
fn level_desc(desc: &CUDA_ARRAY3D_DESCRIPTOR, level: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
    let halved = |size: usize| if size == 0 { 0 } else { (size >> level.min(63)).max(1) };
    let is_layered = desc.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0;
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: halved(desc.Width),
        Height: halved(desc.Height),
        Depth: if is_layered { desc.Depth } else { halved(desc.Depth) },
        ..*desc
    }
}
