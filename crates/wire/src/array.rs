//! Arrays, and what textures and surfaces read, as they travel.

use sluice_cuda::*;

use crate::{
    codec::{choice, message},
    types::*,
};

message! {
    /// What array is wanted: `CUDA_ARRAY3D_DESCRIPTOR`, sizes in elements.
    pub struct ArrayShape {
        width: u64,
        height: u64,
        depth: u64,
        format: CUarray_format,
        channels: u32,
        flags: u32,
    }
}

message! {
    /// A corner of a box in an array: x in bytes, y in rows, z in slices or layers.
    pub struct ArrayPlace { array: ArrayId, x: u64, y: u64, z: u64 }
}

choice! {
    /// What a texture or surface object reads.
    pub enum TextureResource {
        Array(ArrayId) = 0,
        Mipmapped(MipmappedArrayId) = 1,
        Linear(LinearTexels) = 2,
        Pitched(PitchedTexels) = 3,
    }
}

message! {
    /// Elements one behind the other in device memory.
    pub struct LinearTexels { start: DevicePtr, format: CUarray_format, channels: u32, bytes: u64 }
}

message! {
    /// Rows of elements in device memory: width in elements, pitch in bytes.
    pub struct PitchedTexels {
        start: DevicePtr,
        format: CUarray_format,
        channels: u32,
        width: u64,
        height: u64,
        pitch: u64,
    }
}

message! {
    /// How a texture object reads: `CUDA_TEXTURE_DESC`.
    pub struct Sampling {
        address_modes: [CUaddress_mode; 3],
        filter: CUfilter_mode,
        flags: u32,
        anisotropy_max: u32,
        mipmap_filter: CUfilter_mode,
        mipmap_bias: f32,
        mipmap_clamp: [f32; 2],
        border_color: [f32; 4],
    }
}

message! {
    /// Part of an array, in another format: `CUDA_RESOURCE_VIEW_DESC`. The format is a
    /// `CUresourceViewFormat`.
    pub struct ResourceView {
        format: u32,
        width: u64,
        height: u64,
        depth: u64,
        levels: [u32; 2],
        layers: [u32; 2],
    }
}

choice! {
    /// An array whose memory is mapped later.
    pub enum LaterArray {
        Array(ArrayId) = 0,
        Mipmapped(MipmappedArrayId) = 1,
    }
}

message! {
    /// A box of tiles, in elements.
    pub struct LevelPart { level: u32, layer: u32, offset: [u32; 3], extent: [u32; 3] }
}

message! {
    /// Bytes of the tail.
    pub struct TailPart { layer: u32, offset: u64, bytes: u64 }
}

choice! {
    /// The part of it that is meant.
    pub enum MappedPart {
        Level(LevelPart) = 0,
        Tail(TailPart) = 1,
        Whole(()) = 2,
    }
}

message! {
    /// Physical memory from a byte on.
    pub struct PhysicalPart { handle: PhysicalId, offset: u64 }
}

message! {
    /// A part of an array and the memory that it gets, or that it has none any more:
    /// `CUarrayMapInfo`.
    pub struct ArrayMap { array: LaterArray, part: MappedPart, memory: Option<PhysicalPart> }
}

message! {
    /// How a sparse array is cut into tiles: `CUDA_ARRAY_SPARSE_PROPERTIES`.
    pub struct SparseProperties { tile: [u32; 3], tail_level: u32, tail_bytes: u64, flags: u32 }
}

impl MappedPart {
    pub fn new(part: &ArrayPart) -> MappedPart {
        match *part {
            ArrayPart::Level { level, layer, offset, extent } => {
                MappedPart::Level(LevelPart { level, layer, offset, extent })
            }
            ArrayPart::Tail { layer, offset, bytes } => MappedPart::Tail(TailPart { layer, offset, bytes }),
            ArrayPart::Whole => MappedPart::Whole(()),
        }
    }

    pub fn part(&self) -> ArrayPart {
        match *self {
            MappedPart::Level(LevelPart { level, layer, offset, extent }) => {
                ArrayPart::Level { level, layer, offset, extent }
            }
            MappedPart::Tail(TailPart { layer, offset, bytes }) => ArrayPart::Tail { layer, offset, bytes },
            MappedPart::Whole(()) => ArrayPart::Whole,
        }
    }
}

impl ArrayShape {
    pub fn new(desc: &CUDA_ARRAY3D_DESCRIPTOR) -> ArrayShape {
        ArrayShape {
            width: desc.Width as u64,
            height: desc.Height as u64,
            depth: desc.Depth as u64,
            format: desc.Format,
            channels: desc.NumChannels,
            flags: desc.Flags,
        }
    }

    pub fn to_c(&self) -> CUDA_ARRAY3D_DESCRIPTOR {
        CUDA_ARRAY3D_DESCRIPTOR {
            Width: self.width as usize,
            Height: self.height as usize,
            Depth: self.depth as usize,
            Format: self.format,
            NumChannels: self.channels,
            Flags: self.flags,
        }
    }
}

impl Sampling {
    pub fn new(desc: &CUDA_TEXTURE_DESC) -> Sampling {
        Sampling {
            address_modes: desc.addressMode,
            filter: desc.filterMode,
            flags: desc.flags,
            anisotropy_max: desc.maxAnisotropy,
            mipmap_filter: desc.mipmapFilterMode,
            mipmap_bias: desc.mipmapLevelBias,
            mipmap_clamp: [desc.minMipmapLevelClamp, desc.maxMipmapLevelClamp],
            border_color: desc.borderColor,
        }
    }

    pub fn to_c(&self) -> CUDA_TEXTURE_DESC {
        CUDA_TEXTURE_DESC {
            addressMode: self.address_modes,
            filterMode: self.filter,
            flags: self.flags,
            maxAnisotropy: self.anisotropy_max,
            mipmapFilterMode: self.mipmap_filter,
            mipmapLevelBias: self.mipmap_bias,
            minMipmapLevelClamp: self.mipmap_clamp[0],
            maxMipmapLevelClamp: self.mipmap_clamp[1],
            borderColor: self.border_color,
            reserved: [0; 12],
        }
    }
}

impl ResourceView {
    pub fn new(desc: &CUDA_RESOURCE_VIEW_DESC) -> ResourceView {
        ResourceView {
            format: desc.format,
            width: desc.width as u64,
            height: desc.height as u64,
            depth: desc.depth as u64,
            levels: [desc.firstMipmapLevel, desc.lastMipmapLevel],
            layers: [desc.firstLayer, desc.lastLayer],
        }
    }

    pub fn to_c(&self) -> CUDA_RESOURCE_VIEW_DESC {
        CUDA_RESOURCE_VIEW_DESC {
            format: self.format,
            width: self.width as usize,
            height: self.height as usize,
            depth: self.depth as usize,
            firstMipmapLevel: self.levels[0],
            lastMipmapLevel: self.levels[1],
            firstLayer: self.layers[0],
            lastLayer: self.layers[1],
            reserved: [0; 16],
        }
    }
}
