//! Textures of one level of floats that lie in memory as they are: what most images are, and what a
//! back end can read for many lanes at a time.

use super::{AddressMode, Channel, Geometry, Sampling, Texture};

/// A row or a plane of floats, read at coordinates that are floats; [`Texture::sample`] says what
/// is read.
#[derive(Clone, Copy, Debug)]
pub struct Plane {
    pub base: u64,
    /// From row to row, in bytes.
    pub pitch: u64,
    /// Elements in a row, and rows: 1 for a texture of one dimension.
    pub size: [u32; 2],
    /// What a coordinate is multiplied with to count elements; 0 for the second of a texture of one
    /// dimension.
    pub scale: [f64; 2],
    /// 1, 2 or 4.
    pub channels: u8,
    pub is_linear: bool,
}

impl Texture {
    /// The plane that an instruction reads, if it is one whose coordinates are clamped.
    pub fn plane(&self, sampling: Sampling) -> Option<Plane> {
        let [image] = self.levels.as_slice() else { return None };
        let dimensions = match sampling.geometry {
            Geometry::D1 => 1,
            Geometry::D2 => 2,
            _ => return None,
        };
        let sampler = &self.sampler;
        let clamps = |mode: &AddressMode| match mode {
            AddressMode::Clamp => true,
            AddressMode::Border => false,
            // Repeating needs coordinates from 0 to 1; without them it is clamping.
            AddressMode::Wrap | AddressMode::Mirror => !sampler.is_normalized,
        };
        let is_plane = image.channel == Channel::F32
            && image.pieces.is_none()
            && !sampling.has_integer_coordinates
            && sampling.gathered.is_none()
            && sampler.address_modes[..dimensions].iter().all(clamps);
        let rows = if dimensions == 2 { image.size[1] } else { 1 };
        let size = [image.size[0], rows];
        let scale = size.map(|count| if sampler.is_normalized { f64::from(count) } else { 1.0 });
        is_plane.then_some(Plane {
            base: image.base,
            pitch: image.pitch,
            size,
            scale: if dimensions == 2 { scale } else { [scale[0], 0.0] },
            channels: image.channels,
            is_linear: sampler.is_linear,
        })
    }
}
