//! Tensor maps: what kernels read when they copy boxes of tensors ([`sluice_ir::tensor`] has their
//! layout).

use sluice_cuda::{CUdeviceptr, CUtensorMap};
use sluice_ir::tensor::{self, MAP_BYTES, RANK_MAX, SWIZZLES};

use crate::base::status::{Result, Status};

/// What bounds the arguments of `cuTensorMapEncodeTiled` (CUDA Driver API, "Tensor Map Object
/// Management").
const DIMENSION_MAX: u64 = 1 << 32;
const STRIDE_LIMIT: u64 = 1 << 40;
const BOX_MAX: u32 = 256;
const STEP_MAX: u32 = 8;
const INTERLEAVES: u32 = 3;
const ALL_SWIZZLES: u32 = 7;
const TYPES: u32 = 16;
const PROMOTIONS: u32 = 4;
/// `CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA`.
const FILL_NAN: u32 = 1;
/// The first type of PTX's numbers that is a float.
const FIRST_FLOAT: u32 = 6;

const ADDRESS_ALIGN: u64 = 16;
const PIECE_BYTES: u32 = 16;

/// The arguments of `cuTensorMapEncodeTiled`; the lists have an element for each dimension, that of
/// strides one less.
pub(crate) struct Tiled<'a> {
    pub(crate) data_type: u32,
    pub(crate) address: CUdeviceptr,
    pub(crate) dimensions: &'a [u64],
    pub(crate) strides: &'a [u64],
    pub(crate) extents: &'a [u32],
    pub(crate) steps: &'a [u32],
    pub(crate) interleave: u32,
    pub(crate) swizzle: u32,
    pub(crate) promotion: u32,
    pub(crate) fill: u32,
}

impl Tiled<'_> {
    /// Returns the map. Elements below a byte, interleaved layouts and the swizzles of the
    /// architectures from 10.0 on are not supported.
    pub(crate) fn encode(&self) -> Result<CUtensorMap> {
        self.check()?;
        let element_type = tensor::element_type(self.data_type).ok_or(Status::NOT_SUPPORTED)?;
        if self.interleave != 0 || self.swizzle >= SWIZZLES {
            return Err(Status::NOT_SUPPORTED);
        }
        let bytes = tensor::element_bytes(element_type).ok_or(Status::NOT_SUPPORTED)?;
        let row = self.extents[0] * bytes;
        let fits_swizzle = self.swizzle == 0 || row <= PIECE_BYTES << self.swizzle;
        let fills = self.fill != FILL_NAN || element_type >= FIRST_FLOAT;
        if !row.is_multiple_of(PIECE_BYTES) || !fits_swizzle || !fills {
            return Err(Status::INVALID_VALUE);
        }
        let mut fields = Fields([0; MAP_BYTES]);
        fields.put(tensor::GLOBAL_ADDRESS, self.address.to_le_bytes());
        for (index, stride) in self.strides.iter().enumerate() {
            fields.put(tensor::GLOBAL_STRIDES + 8 * index, stride.to_le_bytes());
        }
        for index in 0..self.dimensions.len() {
            // Coordinates have 32 bits, so the last element of 2^32 is out of reach.
            let size = u32::try_from(self.dimensions[index]).unwrap_or(u32::MAX);
            fields.put(tensor::GLOBAL_DIMENSIONS + 4 * index, size.to_le_bytes());
            fields.put(tensor::BOX_DIMENSIONS + 4 * index, self.extents[index].to_le_bytes());
            fields.put(tensor::ELEMENT_STRIDES + 4 * index, self.steps[index].to_le_bytes());
        }
        let rank = self.dimensions.len() as u32 - 1;
        for (offset, value) in [
            (tensor::RANK, rank),
            (tensor::ELEMENT_TYPE, element_type),
            (tensor::INTERLEAVE, self.interleave),
            (tensor::SWIZZLE, self.swizzle),
            (tensor::FILL, self.fill),
        ] {
            fields.put(offset, value.to_le_bytes());
        }
        Ok(fields.map())
    }

    fn check(&self) -> Result<()> {
        let rank = self.dimensions.len();
        let lists = [self.strides.len() + 1, self.extents.len(), self.steps.len()];
        let modes = self.data_type < TYPES
            && self.interleave < INTERLEAVES
            && self.swizzle < ALL_SWIZZLES
            && self.promotion < PROMOTIONS
            && self.fill <= FILL_NAN;
        let valid = (1..=RANK_MAX).contains(&rank)
            && lists.iter().all(|&length| length == rank)
            && modes
            && self.address != 0
            && self.address.is_multiple_of(ADDRESS_ALIGN)
            && self.dimensions.iter().all(|size| (1..=DIMENSION_MAX).contains(size))
            && self.strides.iter().all(|&bytes| bytes.is_multiple_of(ADDRESS_ALIGN) && bytes < STRIDE_LIMIT)
            && self.extents.iter().all(|size| (1..=BOX_MAX).contains(size))
            && self.steps.iter().all(|step| (1..=STEP_MAX).contains(step));
        if valid { Ok(()) } else { Err(Status::INVALID_VALUE) }
    }
}

/// The map with another address.
pub(crate) fn replace_address(map: CUtensorMap, address: CUdeviceptr) -> Result<CUtensorMap> {
    if address == 0 || !address.is_multiple_of(ADDRESS_ALIGN) {
        return Err(Status::INVALID_VALUE);
    }
    let mut fields = Fields::of(map);
    fields.put(tensor::GLOBAL_ADDRESS, address.to_le_bytes());
    Ok(fields.map())
}

struct Fields([u8; MAP_BYTES]);

impl Fields {
    fn of(map: CUtensorMap) -> Fields {
        let mut bytes = [0; MAP_BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(map.opaque) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        Fields(bytes)
    }

    fn put<const N: usize>(&mut self, offset: usize, value: [u8; N]) {
        self.0[offset..offset + N].copy_from_slice(&value);
    }

    fn map(&self) -> CUtensorMap {
        let mut map = CUtensorMap::default();
        for (word, bytes) in map.opaque.iter_mut().zip(self.0.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Tiled<'_> = Tiled {
        data_type: 7,
        address: 0x1000,
        dimensions: &[64, 32],
        strides: &[256],
        extents: &[8, 4],
        steps: &[1, 1],
        interleave: 0,
        swizzle: 0,
        promotion: 0,
        fill: 0,
    };

    #[test]
    fn a_map_has_what_it_was_made_of() {
        let map = GOOD.encode().unwrap();
        assert_eq!(map.opaque[..2], [0x1000, 256]);
        let Fields(bytes) = Fields::of(map);
        assert_eq!(bytes[tensor::GLOBAL_DIMENSIONS..][..8], [64, 0, 0, 0, 32, 0, 0, 0]);
        assert_eq!((bytes[tensor::RANK], bytes[tensor::ELEMENT_TYPE]), (1, 7));
        let other = replace_address(map, 0x2000).unwrap();
        assert_eq!((other.opaque[0], &other.opaque[1..]), (0x2000, &map.opaque[1..]));
        assert_eq!(replace_address(map, 0x2001), Err(Status::INVALID_VALUE));
    }

    #[test]
    fn what_is_wrong_and_what_is_missing_have_different_answers() {
        let wrong = [
            Tiled { address: 0x1008, ..GOOD },
            Tiled { dimensions: &[64, 0], ..GOOD },
            Tiled { strides: &[250], ..GOOD },
            Tiled { extents: &[8, 257], ..GOOD },
            // 12 bytes are no multiple of 16.
            Tiled { extents: &[3, 4], ..GOOD },
            // 64 bytes do not fit into a swizzle of 32.
            Tiled { extents: &[16, 4], swizzle: 1, ..GOOD },
            Tiled { steps: &[1, 9], ..GOOD },
            Tiled { data_type: 16, ..GOOD },
            Tiled { data_type: 2, fill: 1, ..GOOD },
            Tiled { dimensions: &[], strides: &[], extents: &[], steps: &[], ..GOOD },
        ];
        for (index, tiled) in wrong.iter().enumerate() {
            assert_eq!(tiled.encode(), Err(Status::INVALID_VALUE), "{index}");
        }
        let missing =
            [Tiled { data_type: 13, ..GOOD }, Tiled { interleave: 1, ..GOOD }, Tiled { swizzle: 4, ..GOOD }];
        for (index, tiled) in missing.iter().enumerate() {
            assert_eq!(tiled.encode(), Err(Status::NOT_SUPPORTED), "{index}");
        }
    }
}
