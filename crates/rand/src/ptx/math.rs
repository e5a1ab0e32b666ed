//! Logarithm, exponential and trigonometric functions of doubles, for which PTX has no
//! instructions, and the quantiles of the normal distribution.

use sluice_library_base::writer::{Class, Register, Writer, emit};

/// A double as PTX's literal.
fn literal(value: f64) -> String {
    format!("0d{:016x}", value.to_bits())
}

pub(super) fn constant(w: &mut Writer, value: f64) -> Register {
    let register = w.register(Class::F64);
    emit!(w, "mov.f64 {register}, {}", literal(value));
    register
}

pub(super) fn multiply(w: &mut Writer, a: Register, b: Register) -> Register {
    w.binary("mul.rn.f64", a, b)
}

pub(super) fn scale(w: &mut Writer, a: Register, factor: f64) -> Register {
    w.binary("mul.rn.f64", a, literal(factor))
}

pub(super) fn fma(w: &mut Writer, a: Register, b: Register, c: Register) -> Register {
    let result = w.register(Class::F64);
    emit!(w, "fma.rn.f64 {result}, {a}, {b}, {c}");
    result
}

pub(super) fn square_root(w: &mut Writer, a: Register) -> Register {
    let result = w.register(Class::F64);
    emit!(w, "sqrt.rn.f64 {result}, {a}");
    result
}

/// A polynomial by Horner's rule, the highest coefficient first.
fn polynomial(w: &mut Writer, x: Register, coefficients: &[f64]) -> Register {
    let mut sum = constant(w, coefficients[0]);
    for &coefficient in &coefficients[1..] {
        let coefficient = constant(w, coefficient);
        sum = fma(w, sum, x, coefficient);
    }
    sum
}

/// The natural logarithm of a normal number above 0: that of the mantissa, between the square roots
/// of a half and of 2, by the series of the inverse hyperbolic tangent.
pub(super) fn logarithm(w: &mut Writer, x: Register) -> Register {
    let bits = w.register(Class::B64);
    emit!(w, "mov.b64 {bits}, {x}");
    // The bits of the square root of a half are taken off, so that the exponent is the nearest one.
    let root = std::f64::consts::FRAC_1_SQRT_2.to_bits() as i64;
    let above = w.add(bits, -root);
    let exponent = w.binary("shr.s64", above, 52);
    let whole = w.binary("shl.b64", exponent, 52);
    let mantissa = w.binary("sub.s64", bits, whole);
    let m = w.register(Class::F64);
    emit!(w, "mov.b64 {m}, {mantissa}");
    let one = constant(w, 1.0);
    let (difference, sum) = (w.binary("sub.rn.f64", m, one), w.binary("add.rn.f64", m, one));
    let s = w.binary("div.rn.f64", difference, sum);
    let square = multiply(w, s, s);
    let coefficients: Vec<f64> = (0..12).rev().map(|n| 2.0 / f64::from(2 * n + 1)).collect();
    let series = polynomial(w, square, &coefficients);
    let log = multiply(w, s, series);
    let e = w.register(Class::F64);
    emit!(w, "cvt.rn.f64.s64 {e}, {exponent}");
    let ln2 = constant(w, std::f64::consts::LN_2);
    fma(w, e, ln2, log)
}

/// The exponential: that of the remainder of a multiple of ln 2, times a power of 2 in two steps,
/// so that subnormal and infinite results come out.
pub(super) fn exponential(w: &mut Writer, x: Register) -> Register {
    // ln 2 in two parts, the first of which has few bits, so that its multiples are exact.
    const LN2: [f64; 2] = [6.931_471_803_691_238e-1, 1.908_214_929_270_587_7e-10];
    let x = w.binary("max.f64", x, literal(-800.0));
    let x = w.binary("min.f64", x, literal(800.0));
    let quotient = scale(w, x, std::f64::consts::LOG2_E);
    let k = w.register(Class::F64);
    emit!(w, "cvt.rni.f64.f64 {k}, {quotient}");
    let mut r = x;
    for part in LN2 {
        let part = constant(w, -part);
        r = fma(w, k, part, r);
    }
    let coefficients: Vec<f64> =
        (0..15).rev().map(|n| 1.0 / (1..=n).map(f64::from).product::<f64>()).collect();
    let mut result = polynomial(w, r, &coefficients);
    let exponent = w.register(Class::B64);
    emit!(w, "cvt.rni.s64.f64 {exponent}, {k}");
    let half = w.binary("shr.s64", exponent, 1);
    let other = w.binary("sub.s64", exponent, half);
    for part in [half, other] {
        let biased = w.add(part, 1023);
        let bits = w.binary("shl.b64", biased, 52);
        let power = w.register(Class::F64);
        emit!(w, "mov.b64 {power}, {bits}");
        result = multiply(w, result, power);
    }
    result
}

/// Sine and cosine of `2 pi` times a number from 0 to 1: those of the remainder of a quarter,
/// turned by the quarters.
pub(super) fn sine_and_cosine_of_turns(w: &mut Writer, x: Register) -> [Register; 2] {
    let four = scale(w, x, 4.0);
    let quarters = w.register(Class::F64);
    emit!(w, "cvt.rni.f64.f64 {quarters}, {four}");
    let rest = w.binary("sub.rn.f64", four, quarters);
    let angle = scale(w, rest, std::f64::consts::FRAC_PI_2);
    let square = multiply(w, angle, angle);
    // (-1)^n / k!, for k from 18 or 17 down in steps of 2.
    let series = |first: i32| -> Vec<f64> {
        let terms = (0..9).rev().map(|n| (n, 2 * n + first));
        terms.map(|(n, k)| (-1.0_f64).powi(n) / (1..=k).map(f64::from).product::<f64>()).collect()
    };
    let (even, odd) = (polynomial(w, square, &series(0)), polynomial(w, square, &series(1)));
    let sine = multiply(w, angle, odd);
    let number = w.register(Class::B64);
    emit!(w, "cvt.rni.s64.f64 {number}, {quarters}");
    let low = w.binary("and.b64", number, 1);
    let is_odd = w.compare("eq.s64", low, 1);
    let chosen = [w.select(is_odd, even, sine), w.select(is_odd, sine, even)];
    // The sine is negative in the last two quarters, the cosine in the middle two.
    [(chosen[0], 0), (chosen[1], 1)].map(|(value, ahead)| {
        let quarter = w.add(number, ahead);
        let second = w.binary("and.b64", quarter, 2);
        let is_negative = w.compare("ne.s64", second, 0);
        let negative = w.register(Class::F64);
        emit!(w, "neg.f64 {negative}, {value}");
        w.select(is_negative, negative, value)
    })
}

/// The quantile of the standard normal distribution, by M. J. Wichura's algorithm PPND16
/// ("Algorithm AS 241", Applied Statistics 37, 1988).
pub(super) fn normal_quantile(w: &mut Writer, p: Register) -> Register {
    let q = w.binary("add.rn.f64", p, literal(-0.5));
    let magnitude = w.register(Class::F64);
    emit!(w, "abs.f64 {magnitude}, {q}");
    let zero = constant(w, 0.0);
    let result = w.variable(zero);
    let is_central = w.compare("le.f64", magnitude, literal(0.425));
    w.either(
        is_central,
        |w| {
            let square = multiply(w, q, q);
            let centre = constant(w, 0.180625);
            let r = w.binary("sub.rn.f64", centre, square);
            let value = ratio(w, r, &CENTRE);
            let value = multiply(w, value, q);
            w.assign(result, value);
        },
        |w| {
            let one = constant(w, 1.0);
            let above = w.binary("sub.rn.f64", one, p);
            let tail = w.binary("min.f64", p, above);
            // A probability of 1 comes from the largest word; half a step less is as good.
            let tail = w.binary("max.f64", tail, literal(2.0_f64.powi(-54)));
            let log = logarithm(w, tail);
            let negative = scale(w, log, -1.0);
            let r = square_root(w, negative);
            let value = w.variable(zero);
            let is_near = w.compare("le.f64", r, literal(5.0));
            for (condition, start, coefficients) in [(true, 1.6, &MIDDLE), (false, 5.0, &TAIL)] {
                let body = |w: &mut Writer| {
                    let x = w.binary("add.rn.f64", r, literal(-start));
                    let found = ratio(w, x, coefficients);
                    w.assign(value, found);
                };
                match condition {
                    true => w.when(is_near, body),
                    false => w.either(is_near, |_| {}, body),
                }
            }
            let is_low = w.compare("lt.f64", q, literal(0.0));
            let negative = scale(w, value, -1.0);
            let signed = w.select(is_low, negative, value);
            w.assign(result, signed);
        },
    );
    result
}

/// A ratio of polynomials, the coefficients of the higher powers first.
fn ratio(w: &mut Writer, x: Register, [above, below]: &[[f64; 8]; 2]) -> Register {
    let (above, below) = (polynomial(w, x, above), polynomial(w, x, below));
    w.binary("div.rn.f64", above, below)
}

/// The coefficients of AS 241 for the middle of the distribution: numerator and denominator.
#[rustfmt::skip]
const CENTRE: [[f64; 8]; 2] = [
    [
        2_509.080_928_730_122_7, 33_430.575_583_588_13,
        67_265.770_927_008_7, 45_921.953_931_549_87,
        13_731.693_765_509_46, 1_971.590_950_306_551_3,
        133.141_667_891_784_38, 3.387_132_872_796_366_5,
    ],
    [
        5_226.495_278_852_854, 28_729.085_735_721_943,
        39_307.895_800_092_71, 21_213.794_301_586_597,
        5_394.196_021_424_751, 687.187_007_492_057_9,
        42.313_330_701_600_91, 1.0,
    ],
];

/// The coefficients of AS 241 between the middle and the tails: numerator and denominator.
#[rustfmt::skip]
const MIDDLE: [[f64; 8]; 2] = [
    [
        0.000_774_545_014_278_341_4, 0.022_723_844_989_269_184,
        0.241_780_725_177_450_6, 1.270_458_252_452_368_4,
        3.647_848_324_763_204_5, 5.769_497_221_460_691,
        4.630_337_846_156_546, 1.423_437_110_749_683_5,
    ],
    [
        1.050_750_071_644_416_9e-09, 0.000_547_593_808_499_534_5,
        0.015_198_666_563_616_457, 0.148_103_976_427_480_08,
        0.689_767_334_985_1, 1.676_384_830_183_803_8,
        2.053_191_626_637_759, 1.0,
    ],
];

/// The coefficients of AS 241 for the tails: numerator and denominator.
#[rustfmt::skip]
const TAIL: [[f64; 8]; 2] = [
    [
        2.010_334_399_292_288_1e-07, 2.711_555_568_743_487_6e-05,
        0.001_242_660_947_388_078_4, 0.026_532_189_526_576_124,
        0.296_560_571_828_504_87, 1.784_826_539_917_291_3,
        5.463_784_911_164_114, 6.657_904_643_501_103,
    ],
    [
        2.044_263_103_389_939_7e-15, 1.421_511_758_316_446e-07,
        1.846_318_317_510_054_8e-05, 0.000_786_869_131_145_613_3,
        0.014_875_361_290_850_615, 0.136_929_880_922_735_8,
        0.599_832_206_555_888, 1.0,
    ],
];
