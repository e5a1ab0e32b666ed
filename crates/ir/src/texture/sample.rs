//! One read: from coordinates to elements, and between them.

use super::{AddressMode, Channel, Element, Geometry, Image, Sampler, Sampling, Texels, Texture};

impl Texture {
    /// The results of a texture instruction. `level` counts where the instruction has one.
    #[inline]
    pub fn sample<T: Texels + ?Sized>(
        &self,
        sampling: Sampling,
        place: [u32; 3],
        level: f32,
        texels: &mut T,
    ) -> Result<Element, T::Error> {
        match self.levels.as_slice() {
            [] => Ok([0; 4]),
            [image] => Look::new(sampling, &self.sampler, image).sample(place, texels),
            _ => self.sample_levels(sampling, place, level, texels),
        }
    }

    /// What is read of a texture of several levels.
    fn sample_levels<T: Texels + ?Sized>(
        &self,
        sampling: Sampling,
        place: [u32; 3],
        level: f32,
        texels: &mut T,
    ) -> Result<Element, T::Error> {
        let sampler = &self.sampler;
        let last = self.levels.len() - 1;
        let asked = if sampling.has_level { level } else { 0.0 } + sampler.level_bias;
        let wanted = asked.max(sampler.level_min).min(sampler.level_max).max(0.0);
        let of = |at: f32| Look::new(sampling, sampler, &self.levels[(at as usize).min(last)]);
        if !sampler.is_linear_between_levels {
            return of((wanted + 0.5).floor()).sample(place, texels);
        }
        let below = wanted.floor().min(last as f32);
        let first = of(below);
        let weight = if below as usize >= last { 0.0 } else { wanted - below };
        let result = first.sample(place, texels)?;
        if weight <= 0.0 || sampling.gathered.is_some() || !first.is_float {
            return Ok(result);
        }
        let second = of(below + 1.0).sample(place, texels)?;
        Ok(std::array::from_fn(|i| blend(result[i], second[i], weight)))
    }
}

/// How an instruction reads one image.
struct Look<'t> {
    sampling: Sampling,
    pub(super) sampler: &'t Sampler,
    image: &'t Image,
    /// Whether results are floats.
    is_float: bool,
}

impl<'t> Look<'t> {
    #[inline]
    pub(super) fn new(sampling: Sampling, sampler: &'t Sampler, image: &'t Image) -> Look<'t> {
        Look { sampling, sampler, image, is_float: sampler.reads_floats(image.channel) }
    }

    #[inline]
    pub(super) fn sample<T: Texels + ?Sized>(
        &self,
        [x, y, z]: [u32; 3],
        texels: &mut T,
    ) -> Result<Element, T::Error> {
        match self.sampling.gathered {
            Some(channel) => self.gather(channel, [x, y, z], texels),
            None => self.read(self.place([x, y, z]), texels),
        }
    }

    #[inline]
    pub(super) fn read<T: Texels + ?Sized>(
        &self,
        (layer, place, dimensions): (Option<u32>, [f64; 3], usize),
        texels: &mut T,
    ) -> Result<Element, T::Error> {
        if self.sampling.has_integer_coordinates {
            let integers = place.map(|at| at as i64);
            return self.element(integers, dimensions, layer, texels);
        }
        if !(self.sampler.is_linear && self.is_float) {
            return self.element(place.map(floor), dimensions, layer, texels);
        }
        let corner = place.map(|at| floor(at - 0.5));
        let low = corner.map(|at| at as f64);
        // Hardware keeps eight bits of the fraction (CUDA C++ Programming Guide, "Linear
        // Filtering").
        let weight: [f32; 3] = std::array::from_fn(|i| {
            round(((place[i] - 0.5 - low[i]) * 256.0).clamp(0.0, 256.0)) as f32 / 256.0
        });
        let mut sum = [0.0_f32; 4];
        for neighbour in 0..1_usize << dimensions {
            let step = |axis: usize| (neighbour >> axis & 1) as i64;
            let at = std::array::from_fn(|axis| {
                if axis < dimensions { corner[axis].saturating_add(step(axis)) } else { 0 }
            });
            let share: f32 = (0..dimensions)
                .map(|axis| if step(axis) == 1 { weight[axis] } else { 1.0 - weight[axis] })
                .product();
            if share == 0.0 {
                continue;
            }
            let element = self.element(at, dimensions, layer, texels)?;
            for (sum, bits) in sum.iter_mut().zip(element) {
                *sum += share * f32::from_bits(bits);
            }
        }
        Ok(sum.map(f32::to_bits))
    }

    /// `tld4`: a channel of the four elements that a linear read would blend, from the lower left
    /// against the clock.
    fn gather<T: Texels + ?Sized>(
        &self,
        channel: u8,
        coordinates: [u32; 3],
        texels: &mut T,
    ) -> Result<Element, T::Error> {
        let (layer, place, dimensions) = self.place(coordinates);
        let corner = place.map(|at| floor(at - 0.5));
        let mut result = [0; 4];
        for (result, (x, y)) in result.iter_mut().zip([(0, 1), (1, 1), (1, 0), (0, 0)]) {
            let at = [corner[0].saturating_add(x), corner[1].saturating_add(y), 0];
            *result = self.element(at, dimensions, layer, texels)?[usize::from(channel & 3)];
        }
        Ok(result)
    }

    /// Layer, place in elements, and how many dimensions of the place count.
    #[inline]
    fn place(&self, c: [u32; 3]) -> (Option<u32>, [f64; 3], usize) {
        let image = self.image;
        let number = |bits: u32| match self.sampling.has_integer_coordinates {
            true => f64::from(bits as i32),
            false => f64::from(f32::from_bits(bits)),
        };
        let scaled = |at: u32, axis: usize| {
            let is_fraction = self.sampler.is_normalized && !self.sampling.has_integer_coordinates;
            number(at) * if is_fraction { f64::from(image.size[axis]) } else { 1.0 }
        };
        let layer = |at: u32| Some((at as i32).clamp(0, image.size[2] as i32 - 1) as u32);
        match self.sampling.geometry {
            Geometry::D1 => (None, [scaled(c[0], 0), 0.0, 0.0], 1),
            Geometry::D2 => (None, [scaled(c[0], 0), scaled(c[1], 1), 0.0], 2),
            Geometry::D3 => (None, [scaled(c[0], 0), scaled(c[1], 1), scaled(c[2], 2)], 3),
            Geometry::A1 => (layer(c[0]), [scaled(c[1], 0), 0.0, 0.0], 1),
            Geometry::A2 => (layer(c[0]), [scaled(c[1], 0), scaled(c[2], 1), 0.0], 2),
            Geometry::Cube => {
                let (face, s, t) = face_of(c.map(f32::from_bits));
                let side = f64::from(image.size[0]);
                (Some(face.min(image.size[2] - 1)), [s * side, t * side, 0.0], 2)
            }
        }
    }

    /// One element, or what is read instead of one outside.
    #[inline]
    fn element<T: Texels + ?Sized>(
        &self,
        mut at: [i64; 3],
        dimensions: usize,
        layer: Option<u32>,
        texels: &mut T,
    ) -> Result<Element, T::Error> {
        let (image, is_float) = (self.image, self.is_float);
        for (axis, at) in at.iter_mut().enumerate().take(dimensions) {
            match self.inside(*at, axis, image.size[axis]) {
                Some(inside) => *at = inside,
                None if self.sampling.has_integer_coordinates => return Ok([0; 4]),
                None => return Ok(self.sampler.border_element(is_float)),
            }
        }
        let slice = layer.map_or(at[2], i64::from);
        let bytes = image.element_bytes();
        let address =
            image.base + slice as u64 * image.slice + at[1] as u64 * image.pitch + at[0] as u64 * bytes;
        let mut raw = [0_u8; 16];
        // Without memory all channels are zero.
        if let Some(address) = image.find(address) {
            // Lengths that the compiler knows are copied without a call.
            match bytes {
                4 => texels.read(address, &mut raw[..4]),
                1 => texels.read(address, &mut raw[..1]),
                2 => texels.read(address, &mut raw[..2]),
                8 => texels.read(address, &mut raw[..8]),
                _ => texels.read(address, &mut raw[..bytes.min(16) as usize]),
            }?;
        }
        let mut element = absent(is_float);
        for (number, place) in element.iter_mut().enumerate().take(usize::from(image.channels)) {
            *place = image.channel.decode(&raw, number, is_float);
        }
        Ok(element)
    }

    /// The element that stands for the one at `at` on an axis of `size` elements; None where the
    /// border does.
    #[inline]
    fn inside(&self, at: i64, axis: usize, size: u32) -> Option<i64> {
        let size = i64::from(size);
        if (0..size).contains(&at) {
            return Some(at);
        }
        if self.sampling.has_integer_coordinates { None } else { self.moved_inside(at, axis, size) }
    }

    /// Returns the element that stands for one outside of the axis, as the texture's address mode
    /// says.
    #[cold]
    fn moved_inside(&self, at: i64, axis: usize, size: i64) -> Option<i64> {
        let mode = match self.sampling.geometry {
            Geometry::Cube => AddressMode::Clamp,
            _ => self.sampler.address_mode(axis),
        };
        Some(match mode {
            AddressMode::Clamp => at.clamp(0, size - 1),
            AddressMode::Wrap => at.rem_euclid(size),
            AddressMode::Mirror => {
                let twice = at.rem_euclid(2 * size);
                if twice < size { twice } else { 2 * size - 1 - twice }
            }
            AddressMode::Border => return None,
        })
    }
}

impl Sampler {
    /// Whether results are floats.
    pub(super) fn reads_floats(&self, channel: Channel) -> bool {
        match channel {
            Channel::F16 | Channel::F32 => true,
            Channel::U32 | Channel::S32 => false,
            _ => !self.reads_integers,
        }
    }

    /// What happens outside on an axis. Repeating needs coordinates from 0 to 1; without them it is
    /// clamping (CUDA Driver API, `cuTexObjectCreate`).
    pub(super) fn address_mode(&self, axis: usize) -> AddressMode {
        match self.address_modes[axis] {
            AddressMode::Wrap | AddressMode::Mirror if !self.is_normalized => AddressMode::Clamp,
            mode => mode,
        }
    }

    pub(super) fn border_element(&self, is_float: bool) -> Element {
        self.border.map(|border| if is_float { border.to_bits() } else { border as i32 as u32 })
    }
}

/// What is read of the channels that an element does not have.
pub(super) fn absent(is_float: bool) -> Element {
    [0, 0, 0, if is_float { 1.0_f32.to_bits() } else { 1 }]
}

/// The next integer below; far outside of any image, the nearest that there is.
#[inline]
fn floor(at: f64) -> i64 {
    let whole = at as i64;
    whole.saturating_sub(i64::from(whole as f64 > at))
}

/// The nearest integer to a number that is not negative, halves up.
#[inline]
fn round(at: f64) -> f64 {
    (at + 0.5) as i64 as f64
}

fn blend(a: u32, b: u32, weight: f32) -> u32 {
    (f32::from_bits(a) * (1.0 - weight) + f32::from_bits(b) * weight).to_bits()
}

/// The face of a cube that a direction points to, and where on it, from 0 to 1 (CUDA C++
/// Programming Guide, "Cubemap Textures").
fn face_of([x, y, z]: [f32; 3]) -> (u32, f64, f64) {
    let [ax, ay, az] = [x, y, z].map(f32::abs);
    let (face, m, s, t) = if ax >= ay && ax >= az {
        if x >= 0.0 { (0, ax, -z, -y) } else { (1, ax, z, -y) }
    } else if ay >= az {
        if y >= 0.0 { (2, ay, x, z) } else { (3, ay, x, -z) }
    } else if z >= 0.0 {
        (4, az, x, -y)
    } else {
        (5, az, -x, -y)
    };
    let scaled = |at: f32| if m == 0.0 { 0.5 } else { (f64::from(at) / f64::from(m) + 1.0) / 2.0 };
    (face, scaled(s), scaled(t))
}
