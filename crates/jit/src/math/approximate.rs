//! The approximations of PTX (`ex2.approx`, `lg2.approx`, `sin.approx`, `cos.approx`,
//! `tanh.approx`), to about two units in the last place, and the logarithm to three.
//!
//! Each is a formula without branches, so that the loop over an array becomes vector instructions.
//! Compiled code calls the array form for whole chunks and the single form for single lanes; both
//! give the same bits.

use std::f32::consts::{FRAC_2_PI, LN_2, LOG2_E};

/// Adding and subtracting it rounds a float below 2^22 to an integer, which also is in the low bits
/// of the sum.
const ROUNDER: f32 = 12582912.0;

macro_rules! functions {
    ($($(#[$doc:meta])* $single:ident, $array:ident, $wide:ident => $formula:ident;)*) => {$(
        $(#[$doc])*
        pub(crate) extern "C" fn $single(value: f32) -> f32 {
            $formula(value)
        }

        /// Computes it for `count` values in place.
        pub(crate) unsafe extern "C" fn $array(values: *mut f32, count: usize) {
            // SAFETY: compiled code passes an array of its warp's scratch and its length.
            let values = unsafe { std::slice::from_raw_parts_mut(values, count) };
            #[cfg(target_arch = "x86_64")]
            if std::is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has AVX2.
                return unsafe { $wide(values) };
            }
            values.iter_mut().for_each(|value| *value = $formula(*value));
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2")]
        fn $wide(values: &mut [f32]) {
            values.iter_mut().for_each(|value| *value = $formula(*value));
        }
    )*};
}

functions! {
    ex2, ex2_array, ex2_wide => power_of_two;
    lg2, lg2_array, lg2_wide => logarithm;
    sin, sin_array, sin_wide => sine;
    cos, cos_array, cos_wide => cosine;
    tanh, tanh_array, tanh_wide => hyperbolic_tangent;
}

/// `2^x`: the nearest integer goes to the exponent, the rest through the series of `2^f`.
#[inline(always)]
fn power_of_two(x: f32) -> f32 {
    // Beyond these everything is infinite or zero.
    let bounded = if x > 129.0 { 129.0 } else { x };
    let bounded = if bounded < -151.0 { -151.0 } else { bounded };
    let sum = bounded + ROUNDER;
    let whole = (sum.to_bits() as i32).wrapping_sub(ROUNDER.to_bits() as i32);
    let f = bounded - (sum - ROUNDER);
    let series =
        [1.525_273_4e-5, 1.540_353_1e-4, 1.333_355_8e-3, 9.618_129e-3, 5.550_411e-2, 0.240_226_5, LN_2];
    let power = series.iter().skip(1).fold(series[0], |sum, coefficient| sum * f + coefficient) * f + 1.0;
    // In two steps, since 2^whole need not be a normal number.
    let half = whole >> 1;
    let scale = |power: i32| f32::from_bits(((power + 127) << 23) as u32);
    let result = power * scale(half) * scale(whole - half);
    if x.is_nan() { x } else { result }
}

/// `log2(x)`: the exponent plus the series of the mantissa's logarithm in `(m - 1) / (m + 1)`.
#[inline(always)]
fn logarithm(x: f32) -> f32 {
    const TWO_23: f32 = 8388608.0;
    let is_subnormal = x < f32::MIN_POSITIVE;
    let normal = if is_subnormal { x * TWO_23 } else { x };
    let bits = normal.to_bits();
    // The mantissa between sqrt(1/2) and sqrt(2).
    let offset = bits.wrapping_sub(0x3f35_04f3);
    let exponent = (offset as i32 >> 23) as f32 - if is_subnormal { 23.0 } else { 0.0 };
    let mantissa = f32::from_bits((offset & 0x007f_ffff).wrapping_add(0x3f35_04f3));
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    let z = t * t;
    let series = ((((1.0 / 9.0) * z + 1.0 / 7.0) * z + 0.2) * z + 1.0 / 3.0) * z;
    let result = exponent + (t * series + t) * (2.0 * LOG2_E);
    let result = if x == 0.0 { f32::NEG_INFINITY } else { result };
    let result = if x < 0.0 { f32::NAN } else { result };
    if x.is_nan() || x == f32::INFINITY { x } else { result }
}

#[inline(always)]
fn sine(x: f32) -> f32 {
    circular(x, 0, f32::sin)
}

#[inline(always)]
fn cosine(x: f32) -> f32 {
    circular(x, 1, f32::cos)
}

/// Sine of `x` plus `quarters` quarter turns; `exact` is for arguments too large for the reduction.
#[inline(always)]
fn circular(x: f32, quarters: i32, exact: fn(f32) -> f32) -> f32 {
    if x.abs().is_nan() || x.abs() >= 8192.0 {
        return exact(x);
    }
    let sum = x * FRAC_2_PI + ROUNDER;
    let quadrant = (sum.to_bits() as i32).wrapping_sub(ROUNDER.to_bits() as i32).wrapping_add(quarters);
    let n = sum - ROUNDER;
    // Half of pi in three parts, the first two with few enough bits that their multiples are exact.
    let r = ((x - n * 1.570_312_5) - n * 4.837_513e-4) - n * 7.549_79e-8;
    let z = r * r;
    let sine = ((-1.951_529_6e-4 * z + 8.332_161e-3) * z - 1.666_665_5e-1) * z * r + r;
    let cosine = ((2.443_315_7e-5 * z - 1.388_731_6e-3) * z + 4.166_664_6e-2) * z * z - 0.5 * z + 1.0;
    let value = if quadrant & 1 == 0 { sine } else { cosine };
    f32::from_bits(value.to_bits() ^ ((quadrant as u32 & 2) << 30))
}

#[inline(always)]
fn hyperbolic_tangent(x: f32) -> f32 {
    let size = x.abs();
    let bounded = if size > 10.0 { 10.0 } else { size };
    let large = 1.0 - 2.0 / (power_of_two(bounded * (2.0 * LOG2_E)) + 1.0);
    let z = x * x;
    let series = [-5.704_988_7e-3, 2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1];
    let small =
        series.iter().skip(1).fold(series[0], |sum, coefficient| sum * z + coefficient) * z * size + size;
    let result = if size < 0.625 { small } else { large };
    if x.is_nan() { x } else { result.copysign(x) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Greatest error in units of the last place of the exact result (at least of `floor`), over
    /// many arguments.
    fn error(range: (f32, f32), floor: f32, formula: fn(f32) -> f32, exact: fn(f64) -> f64) -> f64 {
        const STEPS: usize = 200_000;
        let at = |step: usize| range.0 + (range.1 - range.0) * (step as f32 / STEPS as f32);
        (0..=STEPS)
            .map(|step| {
                let (found, wanted) = (f64::from(formula(at(step))), exact(f64::from(at(step))));
                let unit = (wanted.abs() as f32).max(floor);
                (found - wanted).abs() / f64::from(unit.next_up() - unit)
            })
            .fold(0.0, f64::max)
    }

    #[test]
    fn errors_are_small() {
        assert!(error((-126.0, 127.9), 0.0, power_of_two, f64::exp2) < 2.0);
        assert!(error((0.3, 4.0), 0.25, logarithm, f64::log2) < 3.0);
        assert!(error((1e-3, 3e38), 0.25, logarithm, f64::log2) < 3.0);
        assert!(error((-10.0, 10.0), 0.1, sine, f64::sin) < 2.0);
        assert!(error((-8000.0, 8000.0), 0.5, cosine, f64::cos) < 4.0);
        assert!(error((-12.0, 12.0), 0.0, hyperbolic_tangent, f64::tanh) < 3.0);
    }

    #[test]
    fn special_values() {
        assert_eq!(power_of_two(f32::INFINITY), f32::INFINITY);
        assert_eq!(power_of_two(f32::NEG_INFINITY), 0.0);
        assert_eq!(power_of_two(-149.0), f32::from_bits(1));
        assert_eq!(power_of_two(10.0), 1024.0);
        assert!(power_of_two(f32::NAN).is_nan());
        assert_eq!(logarithm(0.0), f32::NEG_INFINITY);
        assert_eq!(logarithm(f32::from_bits(1)), -149.0);
        assert_eq!(logarithm(f32::INFINITY), f32::INFINITY);
        assert_eq!(logarithm(1.0), 0.0);
        assert!(logarithm(-1.0).is_nan());
        assert!(sine(f32::INFINITY).is_nan());
        assert_eq!(sine(0.0), 0.0);
        assert_eq!(cosine(0.0), 1.0);
        assert_eq!(hyperbolic_tangent(f32::INFINITY), 1.0);
        assert_eq!(hyperbolic_tangent(-0.0).to_bits(), (-0.0f32).to_bits());
    }

    #[test]
    fn arrays_give_the_same_bits() {
        let arguments: [f32; 32] = std::array::from_fn(|index| (index as f32 - 16.0) * 0.37);
        type Pair = (extern "C" fn(f32) -> f32, unsafe extern "C" fn(*mut f32, usize));
        let pairs: [Pair; 5] =
            [(ex2, ex2_array), (lg2, lg2_array), (sin, sin_array), (cos, cos_array), (tanh, tanh_array)];
        for (single, array) in pairs {
            let mut values = arguments;
            // SAFETY: the array is this long.
            unsafe { array(values.as_mut_ptr(), values.len()) };
            for (value, argument) in values.iter().zip(arguments) {
                assert!(value.to_bits() == single(argument).to_bits() || value.is_nan());
            }
        }
    }
}
