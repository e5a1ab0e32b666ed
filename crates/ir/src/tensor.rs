//! Tensor maps as software GPUs have them (CUDA Driver API, "Tensor Map Object Management"; PTX
//! ISA, "Tensors").
//!
//! A map is 128 opaque bytes that the driver encodes, `tensormap.replace` changes and tensor copies
//! read. Here they are the fields below, one after the other; a map of zeros whose fields are all
//! replaced is a whole one.

/// Dimensions that a tensor has at most.
pub const RANK_MAX: usize = 5;
/// Size of a map in bytes.
pub const MAP_BYTES: usize = 128;

/// Offsets of the fields in bytes. Lists have an element for each dimension, the innermost first;
/// strides, in bytes, begin with the second dimension.
pub const GLOBAL_ADDRESS: usize = 0;
pub const GLOBAL_STRIDES: usize = 8;
pub const GLOBAL_DIMENSIONS: usize = 40;
pub const BOX_DIMENSIONS: usize = 60;
pub const ELEMENT_STRIDES: usize = 80;
/// One less than the number of dimensions.
pub const RANK: usize = 100;
pub const ELEMENT_TYPE: usize = 104;
pub const INTERLEAVE: usize = 108;
pub const SWIZZLE: usize = 112;
pub const FILL: usize = 116;

/// Logarithms to base 2 of the sizes of elements in bytes, 4 bits each, by the number that PTX
/// gives a type ("tensormap.replace", `.elemtype`). Types packed below a byte are not supported.
pub(crate) const SIZES: u64 = {
    let sizes = [0, 1, 2, 2, 3, 3, 1, 2, 2, 3, 1, 2, 2];
    let (mut packed, mut at) = (!0, 0);
    while at < sizes.len() {
        packed = packed & !(0xf << (4 * at)) | sizes[at] << (4 * at);
        at += 1;
    }
    packed
};
pub(crate) const NO_SIZE: u64 = 0xf;

/// Swizzles of 0, 32, 64 and 128 bytes, in this order; others are not supported.
pub const SWIZZLES: u32 = 4;

/// The number that PTX gives to a type of `CUtensorMapDataType`; none for types that are not
/// supported.
pub fn element_type(data_type: u32) -> Option<u32> {
    const TYPES: [u32; 13] = [0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 8, 11, 12];
    TYPES.get(data_type as usize).copied()
}

/// The size of an element in bytes, by the number that PTX gives its type.
pub fn element_bytes(element_type: u32) -> Option<u32> {
    let size = SIZES.checked_shr(element_type.checked_mul(4)?)? & 0xf;
    (size != NO_SIZE).then_some(1 << size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_the_driver_have_their_sizes() {
        let sizes: Vec<_> = (0..14).map(|ty| element_type(ty).and_then(element_bytes)).collect();
        let bytes = [1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4];
        assert_eq!(sizes[..13], bytes.map(Some));
        assert_eq!(sizes[13], None);
        assert_eq!(element_bytes(u32::MAX), None);
    }
}
