//! Texture and surface references: variables of a module that name what is bound to them (CUDA
//! Driver API, Texture Reference Management and Surface Reference Management, both deprecated). A
//! launch takes what is bound when it is submitted.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_RESOURCE_DESC, CUDA_TEXTURE_DESC, CUaddress_mode, CUarray, CUarray_format,
    CUdevice_attribute, CUfilter_mode, CUmipmappedArray, CUresourcetype,
};
use sluice_ir::texture;

use crate::base::status::{Result, Status};
use crate::base::table::Table;
use crate::context::Context;
use crate::device::Device;
use crate::image::texture as objects;

pub(crate) static TEXTURES: Table<TextureReference> = Table::new(24);
pub(crate) static SURFACES: Table<SurfaceReference> = Table::new(25);

/// How a texture reads until a program says something else: elements as they are, the nearest one.
const UNSET: CUDA_TEXTURE_DESC = CUDA_TEXTURE_DESC {
    addressMode: [CUaddress_mode::CLAMP; 3],
    filterMode: CUfilter_mode::POINT,
    flags: 0,
    maxAnisotropy: 0,
    mipmapFilterMode: CUfilter_mode::POINT,
    mipmapLevelBias: 0.0,
    minMipmapLevelClamp: 0.0,
    maxMipmapLevelClamp: 0.0,
    borderColor: [0.0; 4],
    reserved: [0; 12],
};

/// An image that kernels find by its number, for as long as it is held.
pub(crate) struct Bound(pub(crate) u64);

impl Drop for Bound {
    fn drop(&mut self) {
        texture::remove(self.0);
    }
}

/// A variable of a module that is no memory.
#[derive(Clone)]
pub(crate) enum Reference {
    Texture(Arc<TextureReference>),
    Surface(Arc<SurfaceReference>),
}

impl Reference {
    /// What is bound to it.
    pub(crate) fn bound(&self) -> Option<Arc<Bound>> {
        match self {
            Reference::Texture(reference) => reference.lock().bound.clone(),
            Reference::Surface(reference) => reference.lock().1.clone(),
        }
    }

    /// Takes its handle away.
    pub(crate) fn end(&self) {
        match self {
            Reference::Texture(reference) => drop(TEXTURES.remove(reference.handle)),
            Reference::Surface(reference) => drop(SURFACES.remove(reference.handle)),
        }
    }
}

pub(crate) struct TextureReference {
    pub(crate) handle: usize,
    context: usize,
    /// The handle of the module that it is a variable of; 0 for one that a program has made.
    pub(crate) module: usize,
    device: &'static Device,
    state: Mutex<Texture>,
}

/// What a program has set.
#[derive(Clone)]
pub(crate) struct Texture {
    pub(crate) source: Source,
    pub(crate) sampling: CUDA_TEXTURE_DESC,
    /// Of the elements, and their channels. An array that is bound brings its own.
    pub(crate) format: CUarray_format,
    pub(crate) channels: u32,
    bound: Option<Arc<Bound>>,
}

/// What is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Nothing,
    Array(CUarray),
    Mipmapped(CUmipmappedArray),
    /// Bytes of memory.
    Linear {
        address: u64,
        bytes: u64,
    },
    /// Rows of memory: width and height in elements, the pitch in bytes.
    Pitched {
        address: u64,
        width: u64,
        height: u64,
        pitch: u64,
    },
}

impl Texture {
    fn new() -> Texture {
        Texture {
            source: Source::Nothing,
            sampling: UNSET,
            format: CUarray_format::FLOAT,
            channels: 1,
            bound: None,
        }
    }

    /// As a texture object of the same would be described. The words are those of the structures in
    /// the union.
    fn resource(&self) -> Option<CUDA_RESOURCE_DESC> {
        let format = u64::from(self.format.0) | u64::from(self.channels) << 32;
        let mut words = [0; 16];
        let kind = match self.source {
            Source::Nothing => return None,
            Source::Array(array) => {
                words[0] = array.0 as u64;
                CUresourcetype::ARRAY
            }
            Source::Mipmapped(array) => {
                words[0] = array.0 as u64;
                CUresourcetype::MIPMAPPED_ARRAY
            }
            Source::Linear { address, bytes } => {
                words[..3].copy_from_slice(&[address, format, bytes]);
                CUresourcetype::LINEAR
            }
            Source::Pitched { address, width, height, pitch } => {
                words[..5].copy_from_slice(&[address, format, width, height, pitch]);
                CUresourcetype::PITCH2D
            }
        };
        Some(CUDA_RESOURCE_DESC { resType: kind, words, flags: 0 })
    }

    /// The element's format, from where it is read.
    pub(crate) fn set_format(&mut self, format: CUarray_format, channels: u32) -> Result<()> {
        if format.channel_bytes().is_none() || !matches!(channels, 1 | 2 | 4) {
            return Err(Status::INVALID_VALUE);
        }
        (self.format, self.channels) = (format, channels);
        Ok(())
    }
}

impl TextureReference {
    pub(crate) fn create(context: &Context, module: usize) -> Arc<Self> {
        Self::create_in(context.owner(), context.device, module)
    }

    /// In the context with this handle.
    pub(crate) fn create_in(context: usize, device: &'static Device, module: usize) -> Arc<Self> {
        let state = Mutex::new(Texture::new());
        TEXTURES.insert(|handle| Self { handle, context, module, device, state })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Texture> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is set. Nothing changes where the whole would be no texture.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Texture) -> Result<()>) -> Result<()> {
        let mut state = self.lock();
        let mut new = state.clone();
        change(&mut new)?;
        let sampler = objects::sampler(&new.sampling)?;
        new.bound = match new.resource() {
            None => None,
            Some(resource) => {
                let levels = objects::images(&resource)?;
                Some(Arc::new(Bound(texture::add_texture(texture::Texture { levels, sampler }))))
            }
        };
        *state = new;
        Ok(())
    }

    /// Whether a texture can begin at an address.
    pub(crate) fn begins_at(&self, address: u64) -> Result<bool> {
        Ok(address.is_multiple_of(self.attribute(CUdevice_attribute::TEXTURE_ALIGNMENT)?))
    }

    /// Binds bytes of memory. How far its first byte lies behind where the texture has to begin is
    /// returned.
    pub(crate) fn bind_memory(&self, address: u64, bytes: u64) -> Result<u64> {
        if bytes == 0 {
            // How the runtime unbinds.
            return if address == 0 {
                self.bind(Source::Nothing).map(|()| 0)
            } else {
                Err(Status::INVALID_VALUE)
            };
        }
        let offset = address % self.attribute(CUdevice_attribute::TEXTURE_ALIGNMENT)?;
        let most = self.attribute(CUdevice_attribute::MAXIMUM_TEXTURE1D_LINEAR_WIDTH)?;
        let bytes = bytes.checked_add(offset).ok_or(Status::INVALID_VALUE)?;
        self.change(|texture| {
            texture.source = Source::Linear { address: address - offset, bytes };
            let element = texture.format.channel_bytes().ok_or(Status::INVALID_VALUE)?;
            let elements = bytes / (element * u64::from(texture.channels));
            if elements <= most { Ok(()) } else { Err(Status::INVALID_VALUE) }
        })?;
        Ok(offset)
    }

    /// Binds rows of memory, which begin where a texture can.
    pub(crate) fn bind_rows(&self, desc: CUDA_ARRAY_DESCRIPTOR, address: u64, pitch: u64) -> Result<()> {
        use CUdevice_attribute as A;
        let (width, height) = (desc.Width as u64, desc.Height as u64);
        let element = desc.Format.channel_bytes().ok_or(Status::INVALID_VALUE)? * u64::from(desc.NumChannels);
        let is_aligned =
            self.begins_at(address)? && pitch.is_multiple_of(self.attribute(A::TEXTURE_PITCH_ALIGNMENT)?);
        let fits = width <= self.attribute(A::MAXIMUM_TEXTURE2D_LINEAR_WIDTH)?
            && height <= self.attribute(A::MAXIMUM_TEXTURE2D_LINEAR_HEIGHT)?
            && pitch <= self.attribute(A::MAXIMUM_TEXTURE2D_LINEAR_PITCH)?;
        if !is_aligned || !fits || width.saturating_mul(element) > pitch {
            return Err(Status::INVALID_VALUE);
        }
        self.change(|texture| {
            texture.source = Source::Pitched { address, width, height, pitch };
            texture.set_format(desc.Format, desc.NumChannels)
        })
    }

    /// Binds an array, whose format is the texture's from then on.
    pub(crate) fn bind_array(&self, handle: CUarray) -> Result<()> {
        let array = crate::image::array::array(handle)?;
        self.change(|texture| {
            texture.source = Source::Array(handle);
            texture.set_format(array.desc.Format, array.desc.NumChannels)
        })
    }

    /// Binds an array with levels, whose format is the texture's from then on.
    pub(crate) fn bind_mipmapped(&self, handle: CUmipmappedArray) -> Result<()> {
        let array = crate::image::array::mipmapped(handle)?;
        let desc = array.levels.first().ok_or(Status::INVALID_VALUE)?.desc;
        self.change(|texture| {
            texture.source = Source::Mipmapped(handle);
            texture.set_format(desc.Format, desc.NumChannels)
        })
    }

    fn bind(&self, source: Source) -> Result<()> {
        self.change(|texture| {
            texture.source = source;
            Ok(())
        })
    }

    fn attribute(&self, attribute: CUdevice_attribute) -> Result<u64> {
        let value = u64::try_from(self.device.attribute(attribute)).unwrap_or(0);
        if value > 0 { Ok(value) } else { Err(Status::NOT_SUPPORTED) }
    }
}

pub(crate) struct SurfaceReference {
    pub(crate) handle: usize,
    state: Mutex<(CUarray, Option<Arc<Bound>>)>,
}

impl SurfaceReference {
    pub(crate) fn create() -> Arc<Self> {
        SURFACES.insert(|handle| Self { handle, state: Mutex::new((CUarray::NULL, None)) })
    }

    fn lock(&self) -> MutexGuard<'_, (CUarray, Option<Arc<Bound>>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn bind(&self, array: CUarray) -> Result<()> {
        let image = objects::surface_image(array)?;
        *self.lock() = (array, Some(Arc::new(Bound(texture::add_surface(image)))));
        Ok(())
    }

    /// The array that is bound.
    pub(crate) fn array(&self) -> Result<CUarray> {
        let (array, _) = *self.lock();
        if array == CUarray::NULL { Err(Status::INVALID_VALUE) } else { Ok(array) }
    }
}

/// Forgets the references that a program has made in a context that has ended.
pub(crate) fn context_destroyed(context: usize) {
    TEXTURES.remove_all(|reference| reference.context == context);
}
