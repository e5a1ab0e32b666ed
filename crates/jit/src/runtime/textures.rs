//! Textures and surfaces, as [`sluice_ir::texture`] reads them, on device memory.

use std::convert::Infallible;

use sluice_ir::texture::{self, Sampling, SurfaceAccess, Texels};

use crate::context::WarpContext;
use crate::fault::FaultKind;

use super::run;

/// Device memory at its own addresses. An image that a driver has entered lies in the device's range; where that is no
/// longer mapped, the read ends the grid.
struct DeviceTexels;

impl Texels for DeviceTexels {
    type Error = Infallible;

    fn read(&mut self, address: u64, to: &mut [u8]) -> Result<(), Infallible> {
        // SAFETY: inside an image, which was checked to lie in the device's range when it was entered.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, to.as_mut_ptr(), to.len()) };
        Ok(())
    }
}

/// Two of the four results of a texture instruction. A number that is no texture's traps.
pub(crate) unsafe extern "C" fn sample(
    warp: *mut WarpContext,
    object: u64,
    what: u32,
    x: u32,
    y: u32,
    z: u32,
    level: u32,
) -> u64 {
    let Some(look) = texture::look(object, Sampling::from_bits(what), f32::from_bits(level)) else {
        // SAFETY: compiled code passes its own warp, here and below.
        unsafe { run(warp) }.leave(FaultKind::Trap)
    };
    let Ok(pair) = look.sample([x, y, z, 0], &mut DeviceTexels);
    pair
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
    let address = texture::surface(object).map(|surface| surface.surface_address(access, place));
    match address {
        Some(Ok(address)) => address,
        // SAFETY: by this function's contract.
        _ => unsafe { run(warp) }.leave(FaultKind::Trap),
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
