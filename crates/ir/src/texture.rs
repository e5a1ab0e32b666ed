//! What textures and surfaces read (CUDA C++ Programming Guide, "Texture Fetching"): images in
//! device memory, and how coordinates become elements. The reference interpreter and compiled code
//! share it, so that both read the same.
//!
//! Kernels name an image by a number that a driver has put into the tables here. Entries are
//! shared: one that is found stays as it is for as long as the finder keeps it.

mod plane;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

pub use plane::Plane;

/// How a channel of an element is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    U8,
    U16,
    U32,
    S8,
    S16,
    S32,
    F16,
    F32,
}

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

static TEXTURES: RwLock<BTreeMap<u64, Arc<Texture>>> = RwLock::new(BTreeMap::new());
static SURFACES: RwLock<BTreeMap<u64, Arc<Image>>> = RwLock::new(BTreeMap::new());
/// Numbers are used once: a kernel that holds an old one finds nothing.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Enters a texture; kernels find it by the number.
pub fn add_texture(texture: Texture) -> u64 {
    let object = NEXT.fetch_add(1, Ordering::Relaxed);
    TEXTURES.write().unwrap_or_else(PoisonError::into_inner).insert(object, Arc::new(texture));
    object
}

/// Enters a surface.
pub fn add_surface(image: Image) -> u64 {
    let object = NEXT.fetch_add(1, Ordering::Relaxed);
    SURFACES.write().unwrap_or_else(PoisonError::into_inner).insert(object, Arc::new(image));
    object
}

/// Takes a texture or surface out again; kernels that read through it have ended.
pub fn remove(object: u64) {
    TEXTURES.write().unwrap_or_else(PoisonError::into_inner).remove(&object);
    SURFACES.write().unwrap_or_else(PoisonError::into_inner).remove(&object);
}

/// The texture with this number, if there is one.
pub fn find(object: u64) -> Option<Arc<Texture>> {
    TEXTURES.read().unwrap_or_else(PoisonError::into_inner).get(&object).cloned()
}

/// The image of the surface with this number, if there is one.
pub fn surface(object: u64) -> Option<Arc<Image>> {
    SURFACES.read().unwrap_or_else(PoisonError::into_inner).get(&object).cloned()
}

/// The shape that an instruction takes an image for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Geometry {
    D1,
    D2,
    D3,
    /// Layers of one and of two dimensions.
    A1,
    A2,
    Cube,
}

/// What a texture instruction does besides its coordinates; travels as one constant word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sampling {
    pub geometry: Geometry,
    /// Coordinates are elements, given as integers (`.s32`).
    pub has_integer_coordinates: bool,
    /// The last argument is a level (`tex.level`).
    pub has_level: bool,
    /// The four elements around, one channel of each (`tld4`).
    pub gathered: Option<u8>,
}

const GEOMETRIES: [Geometry; 6] =
    [Geometry::D1, Geometry::D2, Geometry::D3, Geometry::A1, Geometry::A2, Geometry::Cube];

fn geometry_bits(geometry: Geometry) -> u32 {
    GEOMETRIES.iter().position(|known| *known == geometry).unwrap_or(0) as u32
}

fn geometry_of(bits: u32) -> Geometry {
    GEOMETRIES.get((bits & 7) as usize).copied().unwrap_or(Geometry::D1)
}

impl Sampling {
    pub fn to_bits(self) -> u32 {
        geometry_bits(self.geometry)
            | u32::from(self.has_integer_coordinates) << 3
            | u32::from(self.has_level) << 4
            | self.gathered.map_or(0, |channel| 1 << 6 | u32::from(channel & 3) << 7)
    }

    pub fn from_bits(bits: u32) -> Sampling {
        Sampling {
            geometry: geometry_of(bits),
            has_integer_coordinates: bits >> 3 & 1 != 0,
            has_level: bits >> 4 & 1 != 0,
            gathered: (bits >> 6 & 1 != 0).then_some((bits >> 7 & 3) as u8),
        }
    }
}

/// What a surface instruction does outside its image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outside {
    /// Ends the grid.
    Trap,
    /// The nearest element inside.
    Clamp,
    /// Zeros are read, and nothing is written.
    Zero,
}

/// What a surface instruction does besides its coordinates; travels as one constant word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SurfaceAccess {
    pub geometry: Geometry,
    pub outside: Outside,
    /// 1 to 16, a power of two.
    pub bytes: u32,
    /// Of a read of 16 bytes.
    pub is_second_half: bool,
}

impl SurfaceAccess {
    pub fn to_bits(self) -> u32 {
        let outside = match self.outside {
            Outside::Trap => 0,
            Outside::Clamp => 1,
            Outside::Zero => 2,
        };
        geometry_bits(self.geometry)
            | outside << 3
            | u32::from(self.is_second_half) << 5
            | self.bytes.ilog2() << 6
    }

    pub fn from_bits(bits: u32) -> SurfaceAccess {
        let outside = match bits >> 3 & 3 {
            0 => Outside::Trap,
            1 => Outside::Clamp,
            _ => Outside::Zero,
        };
        SurfaceAccess {
            geometry: geometry_of(bits),
            outside,
            bytes: 1 << (bits >> 6 & 7).min(4),
            is_second_half: bits >> 5 & 1 != 0,
        }
    }
}

/// Where elements are read from: device memory as its owner reaches it.
pub trait Texels {
    type Error;
    fn read(&mut self, address: u64, to: &mut [u8]) -> Result<(), Self::Error>;
}

/// Four channels: integers or the bits of floats, as the texture says.
pub type Element = [u32; 4];

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

    /// What `tex1Dfetch` reads, where whole channels are read as they are: most reads of textures
    /// are of this kind, and need none of the rest.
    pub fn row(&self, sampling: Sampling) -> Option<Row> {
        let [image] = self.levels.as_slice() else { return None };
        let is_plain = sampling.geometry == Geometry::D1
            && sampling.has_integer_coordinates
            && sampling.gathered.is_none()
            && image.pieces.is_none();
        let one = match image.channel {
            Channel::F32 => 1.0_f32.to_bits(),
            Channel::U32 | Channel::S32 => 1,
            _ => return None,
        };
        is_plain.then_some(Row { base: image.base, elements: image.size[0], channels: image.channels, one })
    }

    /// The same for a texture of several levels.
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

/// Elements of 32-bit channels, one behind the other. Outside of them zeros are read.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub base: u64,
    pub elements: u32,
    /// 1, 2 or 4.
    pub channels: u8,
    /// What an element has as its fourth channel if it has fewer.
    pub one: u32,
}

/// How an instruction reads one image.
struct Look<'t> {
    sampling: Sampling,
    sampler: &'t Sampler,
    image: &'t Image,
    /// Whether results are floats.
    is_float: bool,
}

impl<'t> Look<'t> {
    #[inline]
    fn new(sampling: Sampling, sampler: &'t Sampler, image: &'t Image) -> Look<'t> {
        let is_float = match image.channel {
            Channel::F16 | Channel::F32 => true,
            Channel::U32 | Channel::S32 => false,
            _ => !sampler.reads_integers,
        };
        Look { sampling, sampler, image, is_float }
    }

    #[inline]
    fn sample<T: Texels + ?Sized>(&self, [x, y, z]: [u32; 3], texels: &mut T) -> Result<Element, T::Error> {
        match self.sampling.gathered {
            Some(channel) => self.gather(channel, [x, y, z], texels),
            None => self.read(self.place([x, y, z]), texels),
        }
    }

    #[inline]
    fn read<T: Texels + ?Sized>(
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
                None => {
                    let border = self.sampler.border;
                    return Ok(border.map(|b| if is_float { b.to_bits() } else { b as i32 as u32 }));
                }
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
        let one = if is_float { 1.0_f32.to_bits() } else { 1 };
        let mut element = [0, 0, 0, one];
        for (number, place) in element.iter_mut().enumerate().take(usize::from(image.channels)) {
            *place = image.channel.decode(&raw, number, is_float);
        }
        Ok(element)
    }

    /// The element that stands for one on an axis of so many; None where the border does.
    #[inline]
    fn inside(&self, at: i64, axis: usize, size: u32) -> Option<i64> {
        let size = i64::from(size);
        if (0..size).contains(&at) {
            return Some(at);
        }
        if self.sampling.has_integer_coordinates { None } else { self.moved_inside(at, axis, size) }
    }

    /// The same for one outside, as the texture's address mode says.
    #[cold]
    fn moved_inside(&self, at: i64, axis: usize, size: i64) -> Option<i64> {
        // Repeating needs coordinates from 0 to 1; without them it is clamping (CUDA Driver API,
        // `cuTexObjectCreate`).
        let mode = match self.sampler.address_modes[axis] {
            AddressMode::Wrap | AddressMode::Mirror if !self.sampler.is_normalized => AddressMode::Clamp,
            _ if self.sampling.geometry == Geometry::Cube => AddressMode::Clamp,
            mode => mode,
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

impl Channel {
    pub fn bytes(self) -> u64 {
        match self {
            Channel::U8 | Channel::S8 => 1,
            Channel::U16 | Channel::S16 | Channel::F16 => 2,
            Channel::U32 | Channel::S32 | Channel::F32 => 4,
        }
    }

    /// A channel of an element: an integer, or the bits of a float.
    fn decode(self, raw: &[u8; 16], number: usize, is_float: bool) -> u32 {
        let at = number * self.bytes() as usize;
        let short = u16::from_le_bytes([raw[at], raw[at + usize::from(self.bytes() > 1)]]);
        let word = || u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        let (integer, number) = match self {
            Channel::U8 => (u32::from(raw[at]), f32::from(raw[at]) / 255.0),
            Channel::S8 => {
                let value = raw[at] as i8;
                (i32::from(value) as u32, (f32::from(value) / 127.0).max(-1.0))
            }
            Channel::U16 => (u32::from(short), f32::from(short) / 65535.0),
            Channel::S16 => {
                let value = short as i16;
                (i32::from(value) as u32, (f32::from(value) / 32767.0).max(-1.0))
            }
            Channel::F16 => return half(short).to_bits(),
            Channel::U32 | Channel::S32 | Channel::F32 => return word(),
        };
        if is_float { number.to_bits() } else { integer }
    }
}

/// A half as a float, exactly.
fn half(bits: u16) -> f32 {
    let sign = u32::from(bits >> 15) << 31;
    let (exponent, fraction) = (u32::from(bits >> 10 & 31), u32::from(bits & 1023));
    match (exponent, fraction) {
        (0, _) => {
            let tiny = fraction as f32 / (1 << 24) as f32;
            f32::from_bits(tiny.to_bits() | sign)
        }
        (31, _) => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

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
mod tests {
    use super::*;

    impl Texels for Vec<u8> {
        type Error = ();
        fn read(&mut self, address: u64, to: &mut [u8]) -> Result<(), ()> {
            to.copy_from_slice(self.get(address as usize..address as usize + to.len()).ok_or(())?);
            Ok(())
        }
    }

    fn sampler() -> Sampler {
        Sampler {
            address_modes: [AddressMode::Clamp; 3],
            is_linear: false,
            is_normalized: false,
            reads_integers: true,
            border: [9.0, 8.0, 7.0, 6.0],
            is_linear_between_levels: false,
            level_bias: 0.0,
            level_min: 0.0,
            level_max: 99.0,
        }
    }

    fn sampling(geometry: Geometry) -> Sampling {
        Sampling { geometry, has_integer_coordinates: false, has_level: false, gathered: None }
    }

    /// Floats in rows of four.
    fn plane() -> (Vec<u8>, Image) {
        let bytes = (0..16_u8).flat_map(|i| f32::from(i).to_le_bytes()).collect();
        let (size, channel) = ([4, 4, 1], Channel::F32);
        (bytes, Image { base: 0, pieces: None, pitch: 16, slice: 64, size, channel, channels: 1 })
    }

    fn read(image: Image, sampler: Sampler, sampling: Sampling, at: &[f32], memory: &mut Vec<u8>) -> f32 {
        let object = add_texture(Texture { levels: vec![image], sampler });
        let mut bits = [0; 3];
        at.iter().zip(&mut bits).for_each(|(at, bits)| *bits = at.to_bits());
        let [result, ..] = find(object).unwrap().sample(sampling, bits, 0.0, memory).unwrap();
        remove(object);
        assert!(find(object).is_none());
        f32::from_bits(result)
    }

    #[test]
    fn points_and_blends_of_a_plane() {
        let (mut memory, image) = plane();
        let d2 = sampling(Geometry::D2);
        let linear = Sampler { is_linear: true, ..sampler() };
        let mut check = |sampler, at: [f32; 2], want: f32| {
            assert_eq!(read(image.clone(), sampler, d2, &at, &mut memory), want, "{at:?}");
        };
        check(sampler(), [1.0, 2.0], 9.0);
        check(sampler(), [1.99, 2.99], 9.0);
        check(sampler(), [-5.0, 99.0], 12.0);
        check(linear, [1.5, 2.5], 9.0);
        check(linear, [2.0, 2.5], 9.5);
        check(linear, [2.0, 3.0], 11.5);
        check(linear, [0.0, 0.5], 0.0);
    }

    #[test]
    fn modes_of_coordinates_outside() {
        let (mut memory, image) = plane();
        let mut check = |mode, is_normalized, x: f32, want: f32| {
            let sampler = Sampler { address_modes: [mode; 3], is_normalized, ..sampler() };
            let got = read(image.clone(), sampler, sampling(Geometry::D1), &[x], &mut memory);
            assert_eq!(got, want, "{mode:?} {x}");
        };
        check(AddressMode::Wrap, true, 1.25, 1.0);
        check(AddressMode::Wrap, true, -0.25, 3.0);
        check(AddressMode::Mirror, true, 1.25, 2.0);
        check(AddressMode::Mirror, true, -0.26, 1.0);
        check(AddressMode::Clamp, true, 7.0, 3.0);
        check(AddressMode::Border, true, 7.0, 9.0);
        check(AddressMode::Wrap, false, 7.0, 3.0);
    }

    #[test]
    fn integers_become_fractions_or_stay() {
        let channel = |channel, bytes: [u8; 4], is_float| {
            let mut raw = [0; 16];
            raw[..4].copy_from_slice(&bytes);
            Channel::decode(channel, &raw, 0, is_float)
        };
        assert_eq!(channel(Channel::U8, [255, 0, 0, 0], true), 1.0_f32.to_bits());
        assert_eq!(channel(Channel::S8, [128, 0, 0, 0], true), (-1.0_f32).to_bits());
        assert_eq!(channel(Channel::S8, [255, 0, 0, 0], false), u32::MAX);
        assert_eq!(channel(Channel::U16, [1, 2, 0, 0], false), 0x201);
        assert_eq!(channel(Channel::F16, [0, 0x3c, 0, 0], true), 1.0_f32.to_bits());
        assert_eq!(half(1), 2.0_f32.powi(-24));
        assert_eq!(half(0xfbff), -65504.0);
        assert!(half(0x7e00).is_nan() && half(0x7c00) == f32::INFINITY);
    }

    #[test]
    fn surfaces_trap_clamp_or_ignore() {
        let (_, image) = plane();
        let access = |outside, at| {
            let access = SurfaceAccess { geometry: Geometry::D2, outside, bytes: 4, is_second_half: false };
            assert_eq!(SurfaceAccess::from_bits(access.to_bits()), access);
            image.surface_address(access, at)
        };
        assert_eq!(access(Outside::Trap, [8, 1, 0]), Ok(Some(24)));
        assert_eq!(access(Outside::Trap, [16, 1, 0]), Err(OutsideOfSurface));
        assert_eq!(access(Outside::Clamp, [16, u32::MAX, 0]), Ok(Some(12)));
        assert_eq!(access(Outside::Zero, [0, 4, 0]), Ok(None));
    }

    #[test]
    fn what_has_no_memory_reads_as_zero() {
        /// The second row is where the first seems to be, and nothing else is there.
        #[derive(Debug)]
        struct Moved;
        impl Pieces for Moved {
            fn find(&self, name: u64) -> Option<u64> {
                (name < 16).then_some(name + 16)
            }
        }
        let (mut memory, plane) = plane();
        let image = Image { pieces: Some(Arc::new(Moved)), ..plane };
        let d2 = sampling(Geometry::D2);
        let linear = Sampler { is_linear: true, ..sampler() };
        assert_eq!(read(image.clone(), sampler(), d2, &[1.0, 0.0], &mut memory), 5.0);
        assert_eq!(read(image.clone(), sampler(), d2, &[1.0, 2.0], &mut memory), 0.0);
        assert_eq!(read(image.clone(), linear, d2, &[1.5, 1.0], &mut memory), 2.5);
        let access =
            SurfaceAccess { geometry: Geometry::D2, outside: Outside::Trap, bytes: 4, is_second_half: false };
        assert_eq!(image.surface_address(access, [8, 0, 0]), Ok(Some(24)));
        assert_eq!(image.surface_address(access, [8, 1, 0]), Ok(None));
    }

    #[test]
    fn words_carry_what_instructions_say() {
        for geometry in GEOMETRIES {
            for bits in 0..8 {
                let sampling = Sampling {
                    geometry,
                    has_integer_coordinates: bits & 1 != 0,
                    has_level: bits & 2 != 0,
                    gathered: (bits & 4 != 0).then_some(3),
                };
                assert_eq!(Sampling::from_bits(sampling.to_bits()), sampling);
            }
        }
    }
}
