//! Arithmetic with a rounding direction other than to nearest, by the processor's rounding control.
//!
//! Compiled code calls these with a mode from [`mode`]; they leave the rounding control as it was.

use std::hint::black_box;

use sluice_ir::Rounding;

/// How a rounding direction is handed to the functions here: the encoding of x86's MXCSR.RC.
pub(crate) fn mode(rounding: Rounding) -> u32 {
    match rounding {
        Rounding::Near => 0,
        Rounding::Down => 1,
        Rounding::Up => 2,
        Rounding::Zero => 3,
        Rounding::NearAway => 4,
    }
}

/// Runs `operation` under the rounding direction `mode`. Its operands must come out of a
/// `black_box` inside and its result go into one, which keeps the compiler from moving it out.
fn rounded<T>(mode: u32, operation: impl FnOnce() -> T) -> T {
    let before = set_control(mode);
    let result = black_box(operation());
    restore_control(before);
    result
}

#[cfg(target_arch = "x86_64")]
fn set_control(mode: u32) -> u64 {
    let mut before = 0u32;
    // SAFETY: stores MXCSR in a local.
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &mut before, options(nostack)) };
    restore_control(u64::from(before & !(3 << 13) | (mode & 3) << 13));
    u64::from(before)
}

#[cfg(target_arch = "x86_64")]
fn restore_control(control: u64) {
    let control = control as u32;
    // SAFETY: loads an MXCSR whose exception masks and reserved bits are as they were.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &control, options(nostack, readonly)) };
}

#[cfg(target_arch = "aarch64")]
fn set_control(mode: u32) -> u64 {
    let before: u64;
    // SAFETY: reads FPCR.
    unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) before, options(nomem, nostack)) };
    // FPCR.RMode: 0 nearest, 1 up, 2 down, 3 zero.
    let rounding = match mode {
        1 => 2,
        2 => 1,
        other => u64::from(other & 3),
    };
    restore_control(before & !(3 << 22) | rounding << 22);
    before
}

#[cfg(target_arch = "aarch64")]
fn restore_control(control: u64) {
    // SAFETY: writes an FPCR in which only the rounding mode may differ.
    unsafe { std::arch::asm!("msr fpcr, {}", in(reg) control, options(nomem, nostack)) };
}

macro_rules! binary {
    ($($name:ident, $ty:ty, $op:tt;)*) => {$(
        pub(crate) extern "C" fn $name(a: $ty, b: $ty, mode: u32) -> $ty {
            rounded(mode, || black_box(a) $op black_box(b))
        }
    )*};
}

binary! {
    add32, f32, +;
    sub32, f32, -;
    mul32, f32, *;
    div32, f32, /;
    add64, f64, +;
    sub64, f64, -;
    mul64, f64, *;
    div64, f64, /;
}

macro_rules! from_int {
    ($($name:ident, $from:ty, $to:ty;)*) => {$(
        pub(crate) extern "C" fn $name(value: $from, mode: u32) -> $to {
            rounded(mode, || black_box(value) as $to)
        }
    )*};
}

from_int! {
    signed_to_float32, i64, f32;
    signed_to_float64, i64, f64;
    demote, f64, f32;
}

macro_rules! from_unsigned {
    ($($name:ident, $signed:ident, $to:ty;)*) => {$(
        pub(crate) extern "C" fn $name(value: u64, mode: u32) -> $to {
            match i64::try_from(value) {
                Ok(value) => $signed(value, mode),
                // Halved with the lost bit kept as sticky: the same rounding, and doubling is
                // exact.
                Err(_) => $signed((value >> 1 | value & 1) as i64, mode) * 2.0,
            }
        }
    )*};
}

from_unsigned! {
    unsigned_to_float32, signed_to_float32, f32;
    unsigned_to_float64, signed_to_float64, f64;
}

pub(crate) extern "C" fn sqrt32(value: f32, mode: u32) -> f32 {
    rounded(mode, || black_box(value).sqrt())
}

pub(crate) extern "C" fn sqrt64(value: f64, mode: u32) -> f64 {
    rounded(mode, || black_box(value).sqrt())
}

pub(crate) extern "C" fn fma32(a: f32, b: f32, c: f32, mode: u32) -> f32 {
    rounded(mode, || fused32(black_box(a), black_box(b), black_box(c)))
}

pub(crate) extern "C" fn fma64(a: f64, b: f64, c: f64, mode: u32) -> f64 {
    rounded(mode, || fused64(black_box(a), black_box(b), black_box(c)))
}

#[cfg(target_arch = "x86_64")]
fn fused32(a: f32, b: f32, c: f32) -> f32 {
    if !std::is_x86_feature_detected!("fma") {
        return a.mul_add(b, c);
    }
    let mut result = a;
    // SAFETY: the processor has FMA.
    unsafe {
        std::arch::asm!("vfmadd213ss {}, {}, {}", inout(xmm_reg) result, in(xmm_reg) b, in(xmm_reg) c,
            options(pure, nomem, nostack));
    }
    result
}

#[cfg(target_arch = "x86_64")]
fn fused64(a: f64, b: f64, c: f64) -> f64 {
    if !std::is_x86_feature_detected!("fma") {
        return a.mul_add(b, c);
    }
    let mut result = a;
    // SAFETY: the processor has FMA.
    unsafe {
        std::arch::asm!("vfmadd213sd {}, {}, {}", inout(xmm_reg) result, in(xmm_reg) b, in(xmm_reg) c,
            options(pure, nomem, nostack));
    }
    result
}

#[cfg(not(target_arch = "x86_64"))]
fn fused32(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}

#[cfg(not(target_arch = "x86_64"))]
fn fused64(a: f64, b: f64, c: f64) -> f64 {
    a.mul_add(b, c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_bracket_the_exact_result() {
        let (down, up, zero) = (mode(Rounding::Down), mode(Rounding::Up), mode(Rounding::Zero));
        assert!(div32(1.0, 3.0, down) < div32(1.0, 3.0, up));
        assert_eq!(div32(-1.0, 3.0, zero), -div32(1.0, 3.0, down));
        assert_eq!(add64(1.0, 1e-300, up), 1.0 + f64::EPSILON);
        assert_eq!(add64(1.0, 1e-300, down), 1.0);
        assert_eq!(signed_to_float32(i64::from(i32::MAX), down), 2147483520.0);
        assert_eq!(unsigned_to_float64(u64::MAX, down), 18446744073709549568.0);
        assert_eq!(unsigned_to_float64(u64::MAX, up), 18446744073709551616.0);
        assert_eq!(fma32(1.0, 1.0, 1e-30, up), 1.0 + f32::EPSILON);
        assert!(sqrt64(2.0, down) < sqrt64(2.0, up));
        assert_eq!(1.0f64 / 3.0, div64(1.0, 3.0, 0), "rounding control is restored");
    }
}
