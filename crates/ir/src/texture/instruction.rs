//! What an instruction says of a read, in the bits that kernels hand over.

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

pub(super) const GEOMETRIES: [Geometry; 6] =
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
