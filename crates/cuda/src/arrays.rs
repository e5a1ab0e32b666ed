//! Sizes of arrays (CUDA Driver API, `cuArray3DCreate`).

use crate::enums::CUarray_format;
use crate::structs::CUDA_ARRAY3D_DESCRIPTOR;

/// Flag of an array: `Depth` counts layers, each an image of its own.
pub const CUDA_ARRAY3D_LAYERED: u32 = 1;
/// Surfaces may be bound to the array.
pub const CUDA_ARRAY3D_SURFACE_LDST: u32 = 2;
/// Six square layers per cube.
pub const CUDA_ARRAY3D_CUBEMAP: u32 = 4;
/// `tex2Dgather` may read it.
pub const CUDA_ARRAY3D_TEXTURE_GATHER: u32 = 8;

/// Flags of a texture (CUDA Driver API, `cuTexObjectCreate`): integers are read as they are, not as
/// numbers of [0, 1].
pub const CU_TRSF_READ_AS_INTEGER: u32 = 1;
/// The only flag with which an array is bound to a texture reference (`cuTexRefSetArray`): the
/// texture has its format.
pub const CU_TRSA_OVERRIDE_FORMAT: u32 = 1;
/// The only texture unit of `cuParamSetTexRef`: whichever the reference has.
pub const CU_PARAM_TR_DEFAULT: i32 = -1;
/// Coordinates run from 0 to 1.
pub const CU_TRSF_NORMALIZED_COORDINATES: u32 = 2;

impl CUarray_format {
    /// Bytes of a channel, for the formats whose channels are numbers of their own.
    pub fn channel_bytes(self) -> Option<u64> {
        Some(match self {
            CUarray_format::UNSIGNED_INT8 | CUarray_format::SIGNED_INT8 => 1,
            CUarray_format::UNSIGNED_INT16 | CUarray_format::SIGNED_INT16 | CUarray_format::HALF => 2,
            CUarray_format::UNSIGNED_INT32 | CUarray_format::SIGNED_INT32 | CUarray_format::FLOAT => 4,
            _ => return None,
        })
    }
}

/// Bytes of a row, rows of a slice, and slices or layers of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayExtent {
    pub row_bytes: u64,
    pub rows: u64,
    pub slices: u64,
}

impl CUDA_ARRAY3D_DESCRIPTOR {
    /// Bytes of an element, if there are one, two or four channels of a known format.
    pub fn element_bytes(&self) -> Option<u64> {
        let channels = matches!(self.NumChannels, 1 | 2 | 4).then_some(u64::from(self.NumChannels))?;
        Some(channels * self.Format.channel_bytes()?)
    }

    /// What a level of the array holds; level 0 is the array itself. Each further one is half as
    /// large, layers remain.
    pub fn extent(&self, level: u32) -> Option<ArrayExtent> {
        let halved = |size: usize| ((size as u64).checked_shr(level).unwrap_or(0)).max(1);
        let is_layered = self.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0;
        let slices = if is_layered { (self.Depth as u64).max(1) } else { halved(self.Depth) };
        let row_bytes = halved(self.Width).checked_mul(self.element_bytes()?)?;
        Some(ArrayExtent { row_bytes, rows: halved(self.Height), slices })
    }
}

impl CUDA_ARRAY3D_DESCRIPTOR {
    /// Bytes of device memory that a level counts as. What a driver adds to lay it out is not
    /// known.
    pub fn charge(&self, level: u32) -> Option<u64> {
        const STEP: u64 = 512;
        self.extent(level)?.bytes()?.checked_next_multiple_of(STEP)
    }
}

impl ArrayExtent {
    /// All bytes, if they can be counted.
    pub fn bytes(&self) -> Option<u64> {
        self.row_bytes.checked_mul(self.rows)?.checked_mul(self.slices)
    }

    /// Whether a box lies inside: its corner and its size, each as bytes, rows, slices.
    pub fn holds(&self, corner: [u64; 3], size: [u64; 3]) -> bool {
        let limits = [self.row_bytes, self.rows, self.slices];
        corner
            .iter()
            .zip(size)
            .zip(limits)
            .all(|((at, size), limit)| at.checked_add(size).is_some_and(|end| end <= limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_halve_and_layers_remain() {
        let mut array = CUDA_ARRAY3D_DESCRIPTOR {
            Width: 20,
            Height: 6,
            Depth: 5,
            Format: CUarray_format::HALF,
            NumChannels: 2,
            Flags: 0,
        };
        assert_eq!(array.extent(0), Some(ArrayExtent { row_bytes: 80, rows: 6, slices: 5 }));
        assert_eq!(array.extent(2), Some(ArrayExtent { row_bytes: 20, rows: 1, slices: 1 }));
        array.Flags = CUDA_ARRAY3D_LAYERED;
        assert_eq!(array.extent(1), Some(ArrayExtent { row_bytes: 40, rows: 3, slices: 5 }));
        (array.Height, array.Depth) = (0, 0);
        assert_eq!(array.extent(0), Some(ArrayExtent { row_bytes: 80, rows: 1, slices: 1 }));
        array.NumChannels = 3;
        assert_eq!(array.extent(0), None);
        let huge = CUDA_ARRAY3D_DESCRIPTOR { Width: usize::MAX, NumChannels: 4, ..array };
        assert_eq!(huge.extent(0), None);
    }

    #[test]
    fn boxes_that_wrap_are_outside() {
        let extent = ArrayExtent { row_bytes: 16, rows: 4, slices: 1 };
        assert!(extent.holds([4, 1, 0], [12, 3, 1]));
        assert!(!extent.holds([4, 1, 0], [13, 3, 1]));
        assert!(!extent.holds([u64::MAX, 0, 0], [2, 1, 1]));
    }
}
