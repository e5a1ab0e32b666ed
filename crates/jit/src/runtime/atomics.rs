//! Atomics that processors lack, by compare and exchange. Addresses have been checked by the
//! caller.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::math;

macro_rules! update {
    ($($(#[$doc:meta])* $name:ident($atomic:ty, $value:ty, $old:ident, $arg:ident) $new:expr;)*) => {$(
        $(#[$doc])*
        pub(crate) unsafe extern "C" fn $name(address: u64, $arg: $value) -> $value {
            // SAFETY: compiled code checked that the address is in device memory; one that is not
            // aligned is still one step on x86. What else touches that memory are other lanes'
            // atomics, or races of the program.
            let cell = unsafe { &*(address as *const $atomic) };
            let mut bits = cell.load(Ordering::Relaxed);
            loop {
                let $old = <$value as Bits<_>>::from_bits_of(bits);
                let new = <$value as Bits<_>>::to_bits_of($new);
                match cell.compare_exchange_weak(bits, new, Ordering::SeqCst, Ordering::Relaxed) {
                    Ok(_) => return $old,
                    Err(now) => bits = now,
                }
            }
        }
    )*};
}

update! {
    atomic_add_f32(AtomicU32, f32, old, arg) old + arg;
    atomic_add_f64(AtomicU64, f64, old, arg) old + arg;
    atomic_inc(AtomicU32, u32, old, arg) if old >= arg { 0 } else { old + 1 };
    atomic_dec(AtomicU32, u32, old, arg) if old == 0 || old > arg { arg } else { old - 1 };
    /// One half.
    atomic_add_half(AtomicU16, u16, old, arg) add_half(old, arg);
    /// Two halves in one step.
    atomic_add_half2(AtomicU32, u32, old, arg) in_pairs(old, arg, add_half);
    atomic_add_bfloat(AtomicU16, u16, old, arg) add_bfloat(old, arg);
    atomic_add_bfloat2(AtomicU32, u32, old, arg) in_pairs(old, arg, add_bfloat);
}

/// A value and the integer that its atomic cell holds.
trait Bits<B> {
    fn from_bits_of(bits: B) -> Self;
    fn to_bits_of(self) -> B;
}

impl Bits<u32> for f32 {
    fn from_bits_of(bits: u32) -> f32 {
        f32::from_bits(bits)
    }

    fn to_bits_of(self) -> u32 {
        self.to_bits()
    }
}

impl Bits<u64> for f64 {
    fn from_bits_of(bits: u64) -> f64 {
        f64::from_bits(bits)
    }

    fn to_bits_of(self) -> u64 {
        self.to_bits()
    }
}

impl<T> Bits<T> for T {
    fn from_bits_of(bits: T) -> T {
        bits
    }

    fn to_bits_of(self) -> T {
        self
    }
}

fn add_half(a: u16, b: u16) -> u16 {
    let sum = f64::from(math::half_to_float(u32::from(a))) + f64::from(math::half_to_float(u32::from(b)));
    math::to_half(sum, 0) as u16
}

fn add_bfloat(a: u16, b: u16) -> u16 {
    let wide = |bits: u16| f64::from(f32::from_bits(u32::from(bits) << 16));
    math::to_bfloat(wide(a) + wide(b), 0) as u16
}

fn in_pairs(a: u32, b: u32, add: fn(u16, u16) -> u16) -> u32 {
    u32::from(add((a >> 16) as u16, (b >> 16) as u16)) << 16 | u32::from(add(a as u16, b as u16))
}
