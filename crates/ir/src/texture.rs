//! What textures and surfaces read (CUDA C++ Programming Guide, "Texture Fetching"): images in
//! device memory, and how coordinates become elements. The reference interpreter and compiled code
//! share it, so that both read the same.
//!
//! Kernels name an image by a number that a driver has put into the tables here. Entries are
//! shared: one that is found stays as it is for as long as the finder keeps it.

mod channel;
mod instruction;
mod plain;
mod sample;
mod tables;

use std::sync::Arc;

pub use channel::Channel;
pub use instruction::{Geometry, Outside, Sampling, SurfaceAccess};
pub use plain::{Axis, Layers, PlainRead};
pub use tables::{add_surface, add_texture, find, remove, surface};

/// Where the memory of an image is that has it in pieces: addresses of the image are only names for
/// its bytes.
pub trait Pieces: Send + Sync + std::fmt::Debug {
    /// Where the byte with this name is now; None where there is no memory.
    fn find(&self, name: u64) -> Option<u64>;
}

/// One level of an image.
#[derive(Clone, Debug)]
pub struct Image {
    pub base: u64,
    /// None for one that lies at its addresses.
    pub pieces: Option<Arc<dyn Pieces>>,
    /// From row to row, and from slice to slice or layer to layer, in bytes.
    pub pitch: u64,
    pub slice: u64,
    /// Elements in a row, rows in a slice, slices or layers; at least 1.
    pub size: [u32; 3],
    pub channel: Channel,
    /// 1, 2 or 4.
    pub channels: u8,
}

/// What happens to coordinates outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressMode {
    Wrap,
    Clamp,
    Mirror,
    Border,
}

/// How a texture reads.
#[derive(Clone, Copy, Debug)]
pub struct Sampler {
    pub address_modes: [AddressMode; 3],
    pub is_linear: bool,
    /// Coordinates run from 0 to 1.
    pub is_normalized: bool,
    /// Integers are read as they are, not as numbers of [0, 1] or [-1, 1].
    pub reads_integers: bool,
    pub border: [f32; 4],
    /// Two levels are blended.
    pub is_linear_between_levels: bool,
    pub level_bias: f32,
    pub level_min: f32,
    pub level_max: f32,
}

/// Levels, each half as large as the one before, and how they are read.
#[derive(Clone, Debug)]
pub struct Texture {
    pub levels: Vec<Image>,
    pub sampler: Sampler,
}

/// Where elements are read from: device memory as its owner reaches it.
pub trait Texels {
    type Error;
    fn read(&mut self, address: u64, to: &mut [u8]) -> Result<(), Self::Error>;
}

/// Four channels: integers or the bits of floats, as the texture says.
pub type Element = [u32; 4];

impl Image {
    pub fn element_bytes(&self) -> u64 {
        self.channel.bytes() * u64::from(self.channels)
    }

    /// Where a byte of the image is, if it has memory.
    fn find(&self, address: u64) -> Option<u64> {
        self.pieces.as_ref().map_or(Some(address), |pieces| pieces.find(address))
    }

    /// Where a surface instruction reads or writes: x in bytes. `Ok(None)` where it does nothing.
    pub fn surface_address(
        &self,
        access: SurfaceAccess,
        [x, y, z]: [u32; 3],
    ) -> Result<Option<u64>, OutsideOfSurface> {
        let (column, row, slice) = match access.geometry {
            Geometry::D1 => (x, 0, 0),
            Geometry::D2 => (x, y, 0),
            Geometry::D3 => (x, y, z),
            // A layer comes first.
            Geometry::A1 => (y, 0, x),
            Geometry::A2 | Geometry::Cube => (y, z, x),
        };
        let row_bytes = u64::from(self.size[0]) * self.element_bytes();
        let last =
            [row_bytes.saturating_sub(u64::from(access.bytes)), self.size[1].into(), self.size[2].into()];
        let place = [column, row, slice].map(|at| i64::from(at as i32));
        let limits = [last[0] as i64, last[1] as i64 - 1, last[2] as i64 - 1];
        let is_inside = place.iter().zip(limits).all(|(at, limit)| (0..=limit).contains(at));
        let fits = row_bytes >= u64::from(access.bytes);
        let place = match access.outside {
            _ if is_inside && fits => place,
            Outside::Clamp if fits => std::array::from_fn(|i| place[i].clamp(0, limits[i])),
            Outside::Zero => return Ok(None),
            _ => return Err(OutsideOfSurface),
        };
        // An access is aligned to its size, as its results would be.
        let column = place[0] as u64 & !u64::from(access.bytes - 1);
        Ok(self.find(self.base + place[2] as u64 * self.slice + place[1] as u64 * self.pitch + column))
    }
}

/// A surface instruction that traps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutsideOfSurface;

#[cfg(test)]
mod tests;
