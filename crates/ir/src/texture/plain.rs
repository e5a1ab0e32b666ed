//! Textures of one level that lie in memory as they are: what most images are, and what a back end
//! can read for many lanes at a time.

use super::sample::absent;
use super::{AddressMode, Channel, Element, Geometry, Sampling, Texture};

/// How an instruction reads an image of one level, but for the coordinates; [`Texture::sample`]
/// says what is read.
#[derive(Clone, Debug)]
pub struct PlainRead {
    pub base: u64,
    /// One to three; the first operand is behind that of the layer, where there is one.
    pub axes: Vec<Axis>,
    pub layers: Option<Layers>,
    pub channel: Channel,
    /// 1, 2 or 4.
    pub channels: u8,
    /// What is read as the channels behind these.
    pub absent: Element,
    /// What is read outside of the image, where that is not an element of it.
    pub outside: Element,
    /// Whether results are floats.
    pub is_float: bool,
    /// Neighbours are blended.
    pub is_linear: bool,
    /// Coordinates run from 0 to 1.
    pub is_normalized: bool,
    /// Coordinates are elements, given as integers. Beyond the edges is outside, whatever the mode.
    pub has_integer_coordinates: bool,
    /// Whether coordinates can mean what is not an element.
    pub may_be_outside: bool,
}

/// A dimension of an image.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// From 1 to [`PlainRead::SIZE_MAX`].
    pub size: u32,
    /// From one element to the next, in bytes.
    pub stride: u32,
    /// Without coordinates from 0 to 1 it is clamping or the border.
    pub mode: AddressMode,
}

/// Images one behind the other. Beyond the edges is the first or the last.
#[derive(Clone, Copy, Debug)]
pub struct Layers {
    pub count: u32,
    /// In bytes.
    pub stride: u32,
}

impl PlainRead {
    /// Elements on an axis; a float of this size is one of its elements exactly.
    pub const SIZE_MAX: u32 = 1 << 29;

    /// The last byte of the image, from its first, whose addresses fit into 32 bits.
    fn last_byte(&self) -> Option<u32> {
        let layers = self.layers.map(|layers| (layers.count, layers.stride));
        let mut parts = self.axes.iter().map(|axis| (axis.size, axis.stride)).chain(layers);
        let element = self.channel.bytes() as u32 * u32::from(self.channels);
        parts.try_fold(element - 1, |end, (count, stride)| end.checked_add((count - 1).checked_mul(stride)?))
    }
}

impl Texture {
    /// How an instruction reads this texture, if it is of one level and lies in memory as it is.
    /// Cubes and very large images are not among them, nor what `tld4` reads.
    pub fn plain_read(&self, sampling: Sampling) -> Option<PlainRead> {
        let [image] = self.levels.as_slice() else { return None };
        let (dimensions, is_layered) = match sampling.geometry {
            Geometry::D1 => (1, false),
            Geometry::D2 => (2, false),
            Geometry::D3 => (3, false),
            Geometry::A1 => (1, true),
            Geometry::A2 => (2, true),
            Geometry::Cube => return None,
        };
        if image.pieces.is_some() || sampling.gathered.is_some() {
            return None;
        }
        let sampler = &self.sampler;
        let strides = [image.element_bytes(), image.pitch, image.slice];
        let axis = |axis: usize| {
            let (size, stride) = (image.size[axis], u32::try_from(strides[axis]).ok()?);
            let is_usual = (1..=PlainRead::SIZE_MAX).contains(&size);
            is_usual.then_some(Axis { size, stride, mode: sampler.address_mode(axis) })
        };
        let layers = match is_layered {
            true => Some(Layers { count: image.size[2].max(1), stride: u32::try_from(image.slice).ok()? }),
            false => None,
        };
        let is_float = sampler.reads_floats(image.channel);
        let outside = match sampling.has_integer_coordinates {
            true => [0; 4],
            false => sampler.border_element(is_float),
        };
        let axes: Vec<Axis> = (0..dimensions).map(axis).collect::<Option<_>>()?;
        let has_border = axes.iter().any(|axis| axis.mode == AddressMode::Border);
        let read = PlainRead {
            base: image.base,
            axes,
            layers,
            channel: image.channel,
            channels: image.channels,
            absent: absent(is_float),
            outside,
            is_float,
            is_linear: sampler.is_linear && is_float && !sampling.has_integer_coordinates,
            is_normalized: sampler.is_normalized,
            has_integer_coordinates: sampling.has_integer_coordinates,
            may_be_outside: has_border || sampling.has_integer_coordinates,
        };
        read.last_byte()?;
        Some(read)
    }
}
