//! Texture and surface objects: descriptions of images that kernels read and write through
//! [`sluice_ir::texture`]. The number of an object is what kernels get.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::{
    CU_TRSF_NORMALIZED_COORDINATES, CU_TRSF_READ_AS_INTEGER, CUDA_ARRAY3D_SURFACE_LDST, CUDA_RESOURCE_DESC,
    CUDA_TEXTURE_DESC, CUaddress_mode, CUarray, CUarray_format, CUfilter_mode, CUmipmappedArray,
    CUresourcetype,
};
use sluice_ir::texture::{self, AddressMode, Channel, Image, Sampler, Texture};

use crate::base::status::{Result, Status};
use crate::context::Context;
use crate::image::array::{self, Array};
use crate::memory::copy::{BoxLayout, Extent, require_device};

/// What an object was made of.
#[derive(Clone, Copy)]
pub(crate) struct Object {
    pub(crate) context: usize,
    pub(crate) resource: CUDA_RESOURCE_DESC,
    /// Of a texture.
    pub(crate) sampling: Option<CUDA_TEXTURE_DESC>,
}

static OBJECTS: Mutex<BTreeMap<u64, Object>> = Mutex::new(BTreeMap::new());

/// Elements in a row of linear memory.
const LINEAR_MAX: u64 = 1 << 28;

fn objects() -> MutexGuard<'static, BTreeMap<u64, Object>> {
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The object with this number.
pub(crate) fn find(object: u64) -> Result<Object> {
    objects().get(&object).copied().ok_or(Status::INVALID_VALUE)
}

/// Destroys an object, which work no longer uses.
pub(crate) fn destroy(object: u64) {
    objects().remove(&object);
    texture::remove(object);
}

/// Forgets the objects of a context that has ended.
pub(crate) fn context_destroyed(context: usize) {
    let gone = |object: &Object| object.context == context;
    objects().retain(|number, object| {
        if gone(object) {
            texture::remove(*number);
        }
        !gone(object)
    });
}

fn enter(number: u64, context: &Context, resource: CUDA_RESOURCE_DESC, sampling: Option<CUDA_TEXTURE_DESC>) {
    objects().insert(number, Object { context: context.owner(), resource, sampling });
}

pub(crate) fn create_texture(
    context: &Context,
    resource: CUDA_RESOURCE_DESC,
    sampling: CUDA_TEXTURE_DESC,
) -> Result<u64> {
    let levels = images(&resource)?;
    let number = texture::add_texture(Texture { levels, sampler: sampler(&sampling)? });
    enter(number, context, resource, Some(sampling));
    Ok(number)
}

pub(crate) fn create_surface(context: &Context, resource: CUDA_RESOURCE_DESC) -> Result<u64> {
    if resource.resType != CUresourcetype::ARRAY {
        return Err(Status::INVALID_VALUE);
    }
    let number = texture::add_surface(surface_image(CUarray(resource.words[0] as usize))?);
    enter(number, context, resource, None);
    Ok(number)
}

/// What a surface of an array reads and writes.
pub(crate) fn surface_image(array: CUarray) -> Result<Image> {
    let array = array::array(array)?;
    if array.desc.Flags & CUDA_ARRAY3D_SURFACE_LDST == 0 {
        return Err(Status::INVALID_VALUE);
    }
    of_array(&array)
}

fn channel(format: CUarray_format) -> Result<Channel> {
    Ok(match format {
        CUarray_format::UNSIGNED_INT8 => Channel::U8,
        CUarray_format::UNSIGNED_INT16 => Channel::U16,
        CUarray_format::UNSIGNED_INT32 => Channel::U32,
        CUarray_format::SIGNED_INT8 => Channel::S8,
        CUarray_format::SIGNED_INT16 => Channel::S16,
        CUarray_format::SIGNED_INT32 => Channel::S32,
        CUarray_format::HALF => Channel::F16,
        CUarray_format::FLOAT => Channel::F32,
        _ => return Err(Status::INVALID_VALUE),
    })
}

fn of_array(array: &Array) -> Result<Image> {
    let BoxLayout { address, pitch, slice } = array.place;
    let element = array.desc.element_bytes().ok_or(Status::INVALID_VALUE)?;
    let size = [array.extent.row_bytes / element, array.extent.rows, array.extent.slices];
    let pieces = array.tiles.clone().map(|tiles| tiles as Arc<dyn texture::Pieces>);
    Ok(Image {
        base: address,
        pieces,
        pitch,
        slice,
        size: size.map(|size| u32::try_from(size).unwrap_or(u32::MAX)),
        channel: channel(array.desc.Format)?,
        channels: array.desc.NumChannels as u8,
    })
}

/// The levels that a resource has. The words are those of the structures in the union of
/// `CUDA_RESOURCE_DESC`.
pub(crate) fn images(resource: &CUDA_RESOURCE_DESC) -> Result<Vec<Image>> {
    let [first, second, third, fourth, fifth, ..] = resource.words;
    let of_memory = |width: u64, rows: u64, pitch: u64| {
        let (channel, channels) = (channel(CUarray_format(second as u32))?, (second >> 32) as u32);
        if !matches!(channels, 1 | 2 | 4) || width == 0 || rows == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let element = channel.bytes() * u64::from(channels);
        let row = width.checked_mul(element).ok_or(Status::INVALID_VALUE)?;
        if !first.is_multiple_of(element) || width > LINEAR_MAX || rows > LINEAR_MAX {
            return Err(Status::INVALID_VALUE);
        }
        require_device(first)?;
        BoxLayout { address: first, pitch, slice: 0 }.check(Extent { width: row, height: rows, depth: 1 })?;
        let size = [width as u32, rows as u32, 1];
        let channels = channels as u8;
        Ok(vec![Image { base: first, pieces: None, pitch, slice: 0, size, channel, channels }])
    };
    match resource.resType {
        CUresourcetype::ARRAY => Ok(vec![of_array(&*array::array(CUarray(first as usize))?)?]),
        CUresourcetype::MIPMAPPED_ARRAY => {
            let array = array::mipmapped(CUmipmappedArray(first as usize))?;
            array.levels.iter().map(|level| of_array(level)).collect()
        }
        CUresourcetype::LINEAR => {
            let element = channel(CUarray_format(second as u32))?.bytes() * (second >> 32).max(1);
            of_memory(third / element, 1, third)
        }
        CUresourcetype::PITCH2D => of_memory(third, fourth, fifth),
        _ => Err(Status::INVALID_VALUE),
    }
}

pub(crate) fn sampler(desc: &CUDA_TEXTURE_DESC) -> Result<Sampler> {
    let mode = |mode| {
        Ok(match mode {
            CUaddress_mode::WRAP => AddressMode::Wrap,
            CUaddress_mode::CLAMP => AddressMode::Clamp,
            CUaddress_mode::MIRROR => AddressMode::Mirror,
            CUaddress_mode::BORDER => AddressMode::Border,
            _ => return Err(Status::INVALID_VALUE),
        })
    };
    let is_linear = |filter| match filter {
        CUfilter_mode::POINT => Ok(false),
        CUfilter_mode::LINEAR => Ok(true),
        _ => Err(Status::INVALID_VALUE),
    };
    /// May be approximated less, which nothing here does.
    const DISABLE_TRILINEAR_OPTIMIZATION: u32 = 0x20;
    let known = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES | DISABLE_TRILINEAR_OPTIMIZATION;
    if desc.flags & !known != 0 {
        // sRGB, and cubes that are read over their edges.
        return Err(Status::NOT_SUPPORTED);
    }
    let [x, y, z] = desc.addressMode;
    Ok(Sampler {
        address_modes: [mode(x)?, mode(y)?, mode(z)?],
        is_linear: is_linear(desc.filterMode)?,
        is_normalized: desc.flags & CU_TRSF_NORMALIZED_COORDINATES != 0,
        reads_integers: desc.flags & CU_TRSF_READ_AS_INTEGER != 0,
        border: desc.borderColor,
        is_linear_between_levels: is_linear(desc.mipmapFilterMode)?,
        level_bias: desc.mipmapLevelBias,
        level_min: desc.minMipmapLevelClamp,
        level_max: desc.maxMipmapLevelClamp,
    })
}
