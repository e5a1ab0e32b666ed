//! Scalar arguments such as `alpha`, in host or in device memory.

use std::ffi::c_void;

use crate::abi::{Element, Outcome, PointerMode, Status};

/// The three words that kernels take for a scalar: the address of its value in device memory or 0,
/// and the bits of its real and imaginary parts otherwise.
pub(crate) type Words = [u64; 3];

/// The scalar that a caller passes by address.
///
/// # Safety
/// In host mode a scalar of this type is at the address, unless that is null.
pub(crate) unsafe fn scalar(address: *const c_void, element: Element, mode: PointerMode) -> Outcome<Words> {
    if address.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    if mode == PointerMode::Device {
        return Ok([address as u64, 0, 0]);
    }
    let component = element.component();
    let part = |place: usize| {
        // SAFETY: the caller's promise; callers align scalars to their components.
        unsafe {
            match component.bytes() {
                1 => u64::from(*address.cast::<u8>().add(place)),
                2 => u64::from(*address.cast::<u16>().add(place)),
                4 => u64::from(*address.cast::<u32>().add(place)),
                _ => *address.cast::<u64>().add(place),
            }
        }
    };
    Ok([0, part(0), if element.is_complex() { part(1) } else { 0 }])
}

/// The number -1, 0 or 1 as a scalar.
pub(crate) fn constant(value: i8, element: Element) -> Words {
    let value = f32::from(value);
    let bits = match element.component() {
        Element::F64 => f64::from(value).to_bits(),
        Element::F32 => u64::from(value.to_bits()),
        // The upper half of a float is a bfloat16; 1 is 0x3c00 as a half.
        Element::Bf16 => u64::from(value.to_bits() >> 16),
        Element::F16 => [0xbc00, 0, 0x3c00][(value as i8 + 1) as usize],
        _ => value as i64 as u64,
    };
    [0, bits, 0]
}
