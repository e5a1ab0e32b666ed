//! Textures and surfaces, as [`sluice_ir::texture`] reads them, on device memory.

use std::convert::Infallible;

use sluice_ir::texture::{Element, Sampling, SurfaceAccess, Texels, Texture};

use crate::context::{LANES, WarpContext};
use crate::fault::FaultKind;

use super::run;
use super::texels::Operation;

/// A word of each lane that the warp has, aligned to 16 bytes; null for zeros, or for what nothing
/// uses.
pub(super) type Words = *mut [u32; LANES];

/// Device memory at its own addresses. An image that a driver has entered lies in the device's
/// range; where that is no longer mapped, the read ends the grid.
struct DeviceTexels;

impl Texels for DeviceTexels {
    type Error = Infallible;

    #[inline(always)]
    fn read(&mut self, address: u64, to: &mut [u8]) -> Result<(), Infallible> {
        // SAFETY: inside an image, which was checked to lie in the device's range when it was
        // entered.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, to.as_mut_ptr(), to.len()) };
        Ok(())
    }
}

/// A texture instruction of the active lanes. A number that is no texture's traps.
pub(crate) unsafe extern "C" fn sample(
    warp: *mut WarpContext,
    object: u64,
    how: u32,
    active: u32,
    x: Words,
    y: Words,
    z: Words,
    level: Words,
    red: Words,
    green: Words,
    blue: Words,
    alpha: Words,
) {
    // SAFETY: compiled code passes its own warp, here and below.
    let run = unsafe { run(warp) };
    // SAFETY: a reading is used up to the end of its instruction.
    let reading = unsafe { run.images.reading(object, how) };
    let Some(reading) = reading else { run.leave(FaultKind::Trap) };
    let results = [red, green, blue, alpha];
    let left = match &reading.plain {
        // SAFETY: arrays of the warp's memory, or null; the image was checked to lie in the
        // device's range when it was entered.
        Some(read) => unsafe { Operation { read, operands: [x, y, z], results }.run(active) },
        None => active,
    };
    if left != 0 {
        // SAFETY: arrays of the warp's memory, or null.
        unsafe { sample_lanes(&reading.texture, reading.sampling, left, [x, y, z, level], results) }
    }
}

/// Reads for each active lane; its operands before its results are written, which may be in the
/// same place.
///
/// # Safety
/// Each array is null or can be read, those of results also written.
pub(super) unsafe fn sample_lanes(
    texture: &Texture,
    sampling: Sampling,
    active: u32,
    operands: [Words; 4],
    results: [Words; 4],
) {
    for lane in (0..LANES).filter(|lane| active >> lane & 1 != 0) {
        let [x, y, z, level] = operands.map(|words| match words.is_null() {
            true => 0,
            // SAFETY: by this function's contract.
            false => unsafe { (*words)[lane] },
        });
        let Ok(element): Result<Element, Infallible> =
            texture.sample(sampling, [x, y, z], f32::from_bits(level), &mut DeviceTexels);
        for (words, bits) in results.into_iter().zip(element) {
            if !words.is_null() {
                // SAFETY: by this function's contract.
                unsafe { (*words)[lane] = bits };
            }
        }
    }
}

/// Where a surface instruction reads or writes; None where it does nothing.
///
/// # Safety
/// `warp` is what compiled code was entered with.
unsafe fn surface_address(
    warp: *mut WarpContext,
    object: u64,
    access: SurfaceAccess,
    place: [u32; 3],
) -> Option<u64> {
    // SAFETY: by this function's contract.
    let run = unsafe { run(warp) };
    // SAFETY: the image is used up to the end of this statement.
    let address = unsafe { run.images.surface(object) }.map(|surface| surface.surface_address(access, place));
    match address {
        Some(Ok(address)) => address,
        _ => run.leave(FaultKind::Trap),
    }
}

pub(crate) unsafe extern "C" fn surface_load(
    warp: *mut WarpContext,
    object: u64,
    what: u32,
    x: u32,
    y: u32,
    z: u32,
) -> u64 {
    let access = SurfaceAccess::from_bits(what);
    // SAFETY: see `sample`.
    let Some(address) = (unsafe { surface_address(warp, object, access, [x, y, z]) }) else { return 0 };
    let mut bytes = [0; 8];
    let offset = if access.is_second_half { 8 } else { 0 };
    let Ok(()) = DeviceTexels.read(address + offset, &mut bytes[..access.bytes.min(8) as usize]);
    u64::from_le_bytes(bytes)
}

pub(crate) unsafe extern "C" fn surface_store(
    warp: *mut WarpContext,
    object: u64,
    what: u32,
    x: u32,
    y: u32,
    z: u32,
    low: u64,
    high: u64,
) {
    let access = SurfaceAccess::from_bits(what);
    // SAFETY: see `sample`.
    let Some(address) = (unsafe { surface_address(warp, object, access, [x, y, z]) }) else { return };
    let words = u128::from(low) | u128::from(high) << 64;
    let bytes = &words.to_le_bytes()[..access.bytes as usize];
    // SAFETY: inside the surface's image, as for a read.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
}
