//! Functions that compiled code calls for what the processor has no instruction for.

mod approximate;
mod fma_tile;

pub(crate) use approximate::*;
pub(crate) use fma_tile::{Column, Tile, fma_tile};

/// `prmt` in its default mode (PTX ISA, "prmt"): four bytes picked by the nibbles of `selector`.
pub(crate) extern "C" fn permute(low: u32, high: u32, selector: u32) -> u32 {
    let bytes = (u64::from(high) << 32 | u64::from(low)).to_le_bytes();
    let pick = |index: u32| {
        let nibble = selector >> (4 * index) & 0xf;
        let byte = bytes[nibble as usize & 7];
        if nibble & 8 == 0 { byte } else { (byte as i8 >> 7) as u8 }
    };
    u32::from_le_bytes([pick(0), pick(1), pick(2), pick(3)])
}

/// To the nearest integer, ties away from zero.
pub(crate) extern "C" fn round_away32(value: f32) -> f32 {
    value.round()
}

pub(crate) extern "C" fn round_away64(value: f64) -> f64 {
    value.round()
}

/// The value of a half given by its bits, exact.
pub(crate) extern "C" fn half_to_float(bits: u32) -> f32 {
    let sign = (bits & 0x8000) << 16;
    let rest = bits & 0x7fff;
    if rest >= 0x7c00 {
        // Infinity, or a NaN, which stays one.
        return f32::from_bits(sign | 0x7f80_0000 | (rest & 0x3ff) << 13);
    }
    // As a float of the same fields the value is 2^-112 times what it should be, subnormals
    // included.
    let magnitude = f32::from_bits(rest << 13) * f32::from_bits(0x7780_0000);
    f32::from_bits(sign | magnitude.to_bits())
}

/// The bits of the half nearest in direction `mode` ([`crate::round::mode`]).
pub(crate) extern "C" fn to_half(value: f64, mode: u32) -> u32 {
    narrow(value, 10, 5, mode)
}

/// The bits of the bfloat16 nearest in direction `mode`.
pub(crate) extern "C" fn to_bfloat(value: f64, mode: u32) -> u32 {
    narrow(value, 7, 8, mode)
}

/// Rounds to tf32, a float with 10 mantissa bits.
pub(crate) extern "C" fn to_tf32(value: f32, mode: u32) -> f32 {
    if !value.is_finite() {
        return value;
    }
    f32::from_bits(narrow(f64::from(value), 10, 8, mode) << 13)
}

/// Rounds once to a binary format of `mantissa` stored bits and `exponent` bits, sign on top.
fn narrow(value: f64, mantissa: u32, exponent: u32, mode: u32) -> u32 {
    let sign_bit = u32::from(value.is_sign_negative()) << (mantissa + exponent);
    let infinity = ((1 << exponent) - 1) << mantissa;
    if value.is_nan() {
        return (1 << (mantissa + exponent)) - 1;
    }
    if value.is_infinite() {
        return sign_bit | infinity;
    }
    let bits = value.to_bits();
    let stored = (bits >> 52 & 0x7ff) as i32;
    let significand = bits & ((1 << 52) - 1) | u64::from(stored != 0) << 52;
    let power = stored.max(1) - 1023;
    let power_min = 2 - (1 << (exponent - 1));
    let shift = (power.max(power_min) - mantissa as i32) - (power - 52);
    let (kept, lost, half) = match shift {
        // Far below the smallest number of the format.
        64.. => (0, u64::from(significand != 0), 2),
        _ => (significand >> shift, significand & ((1 << shift) - 1), 1 << (shift - 1)),
    };
    let is_up = match mode {
        0 => lost > half || (lost == half && kept & 1 == 1),
        1 => sign_bit != 0 && lost != 0,
        2 => sign_bit == 0 && lost != 0,
        4 => lost >= half,
        _ => false,
    };
    let rounded = kept as u32 + u32::from(is_up);
    // A carry out of the mantissa moves into the exponent, which is what it should do.
    let magnitude = if power < power_min {
        rounded
    } else {
        (((power - power_min + 1) as u32) << mantissa) + rounded - (1 << mantissa)
    };
    if magnitude < infinity {
        return sign_bit | magnitude;
    }
    let stays_finite = mode == 3 || (mode == 1 && sign_bit == 0) || (mode == 2 && sign_bit != 0);
    sign_bit | if stays_finite { infinity - 1 } else { infinity }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_survives_the_way_to_float_and_back() {
        for bits in 0..=0xffffu32 {
            let value = half_to_float(bits);
            match value.is_nan() {
                true => assert!(bits & 0x7fff > 0x7c00),
                false => assert_eq!(to_half(f64::from(value), 0), bits, "{value}"),
            }
        }
    }

    #[test]
    fn halves_round_once_and_overflow_by_direction() {
        assert_eq!(to_half(65519.9, 0), 0x7bff);
        assert_eq!(to_half(65520.0, 0), 0x7c00);
        assert_eq!(to_half(1e9, 3), 0x7bff);
        assert_eq!(to_half(-1e9, 2), 0xfbff);
        assert_eq!(to_half(1.0 + 2f64.powi(-11), 0), 0x3c00);
        assert_eq!(to_half(1.0 + 2f64.powi(-11) + 2f64.powi(-40), 0), 0x3c01);
        assert_eq!(to_half(2f64.powi(-25), 0), 0);
        assert_eq!(to_half(2f64.powi(-25) * 1.01, 0), 1);
        assert_eq!(to_half(5e-324, 2), 1);
    }

    #[test]
    fn bfloats_are_the_upper_half_of_floats() {
        for bits in (0..=0xffffu32).filter(|bits| bits & 0x7fff <= 0x7f80) {
            assert_eq!(to_bfloat(f64::from(f32::from_bits(bits << 16)), 0), bits);
        }
    }

    #[test]
    fn permute_replicates_signs() {
        assert_eq!(permute(0x33221100, 0x77665584, 0x4321), 0x84332211);
        assert_eq!(permute(0x33221100, 0x77665584, 0xc0c8), 0xff00ff00);
    }
}
