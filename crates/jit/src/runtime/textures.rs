//! Textures and surfaces, as [`sluice_ir::texture`] reads them, on device memory.

use std::convert::Infallible;

use sluice_ir::texture::{Element, Row, Sampling, SurfaceAccess, Texels, Texture};

use crate::context::{LANES, WarpContext};
use crate::fault::FaultKind;

use super::{planes, run};

/// A word of each lane; null for zeros, or for what nothing uses.
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
    // SAFETY: a texture is used up to the end of its instruction.
    let Some(texture) = (unsafe { run.images.texture(object) }) else { run.leave(FaultKind::Trap) };
    let sampling = Sampling::from_bits(how);
    if let Some(row) = texture.row(sampling) {
        // SAFETY: arrays of the warp's memory, or null; the row is of a texture.
        return unsafe { fetch_lanes(row, active, x, [red, green, blue, alpha]) };
    }
    if let Some(plane) = texture.plane(sampling) {
        // SAFETY: arrays of the warp's memory, or null; the plane was checked to lie in the
        // device's range when it was entered.
        return unsafe { planes::sample_plane(&plane, active, [x, y], [red, green, blue, alpha]) };
    }
    // SAFETY: arrays of the warp's memory, or null.
    unsafe { sample_lanes(texture, sampling, active, [x, y, z, level], [red, green, blue, alpha]) }
}

/// Reads an element of a row for each active lane.
///
/// # Safety
/// Each array is null or can be read and written; the row is inside an image that a driver has
/// entered.
unsafe fn fetch_lanes(row: Row, active: u32, x: Words, results: [Words; 4]) {
    // SAFETY: by this function's contract.
    let places = if x.is_null() { [0; LANES] } else { unsafe { *x } };
    let channels = usize::from(row.channels);
    let wanted = results.into_iter().enumerate().filter(|(_, words)| !words.is_null());
    for (channel, words) in wanted {
        // SAFETY: by this function's contract.
        let words = unsafe { &mut *words };
        let absent = if channel == 3 { row.one } else { 0 };
        for (lane, &place) in places.iter().enumerate().filter(|(lane, _)| active >> lane & 1 != 0) {
            words[lane] = match place < row.elements {
                false => 0,
                true if channel >= channels => absent,
                true => {
                    let index = u64::from(place) * channels as u64 + channel as u64;
                    // SAFETY: inside the image, which was checked to lie in the device's range when
                    // it was entered.
                    unsafe { ((row.base + 4 * index) as *const u32).read_unaligned() }
                }
            };
        }
    }
}

/// Reads for each active lane; its operands before its results are written, which may be in the
/// same place.
///
/// # Safety
/// Each array is null or can be read, those of results also written.
unsafe fn sample_lanes(
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

#[cfg(test)]
mod tests {
    use sluice_ir::texture::{AddressMode, Channel, Geometry, Image, Sampler};

    use super::*;

    const ELEMENTS: u32 = 24;

    fn texture(memory: &[u32], channel: Channel, channels: u8) -> Texture {
        let (base, size) = (memory.as_ptr() as u64, [ELEMENTS, 1, 1]);
        let sampler = Sampler {
            address_modes: [AddressMode::Border; 3],
            is_linear: false,
            is_normalized: false,
            reads_integers: true,
            border: [5.0; 4],
            is_linear_between_levels: false,
            level_bias: 0.0,
            level_min: 0.0,
            level_max: 0.0,
        };
        let image = Image { base, pieces: None, pitch: 0, slice: 0, size, channel, channels };
        Texture { levels: vec![image], sampler }
    }

    #[test]
    fn a_row_reads_what_any_texture_reads() {
        let memory: Vec<u32> = (0..ELEMENTS * 4).map(|word| word * 7 + 1).collect();
        let sampling = Sampling {
            geometry: Geometry::D1,
            has_integer_coordinates: true,
            has_level: false,
            gathered: None,
        };
        // Some lanes are outside, below and above.
        let x: [u32; LANES] = std::array::from_fn(|lane| (lane as u32 * 5).wrapping_sub(9));
        for (channel, channels, active) in [
            (Channel::F32, 1, u32::MAX),
            (Channel::F32, 2, 0x0f0f_3333),
            (Channel::U32, 4, u32::MAX),
            (Channel::S32, 1, 1 << 31 | 1),
        ] {
            let texture = texture(&memory, channel, channels);
            let row = texture.row(sampling).expect("a plain row");
            let null = std::ptr::null_mut();
            let (mut place, mut own) = (x, x);
            let [mut one, mut other] = [[[9; LANES]; 3]; 2];
            let [green, blue, alpha] = one.each_mut().map(|words| &raw mut *words);
            // SAFETY: arrays of words, of which the first takes its operand's place, and an image
            // that is memory.
            unsafe { fetch_lanes(row, active, &raw mut place, [&raw mut place, green, blue, alpha]) };
            let [green, blue, alpha] = other.each_mut().map(|words| &raw mut *words);
            let operands = [&raw mut own, null, null, null];
            // SAFETY: as above.
            unsafe { sample_lanes(&texture, sampling, active, operands, [&raw mut own, green, blue, alpha]) };
            assert_eq!((place, one), (own, other), "{channels} of {channel:?}");
        }
    }

    #[test]
    fn a_plane_reads_what_any_texture_reads() {
        let memory: Vec<u32> = (0..ELEMENTS * 4).map(|word| (word as f32 * 0.37 - 9.0).to_bits()).collect();
        // Inside, between, at and beyond the edges, and what is no place.
        let coordinates = [0.0, 0.5, 1.25, 2.999, 5.5, 6.0, -0.25, -7.0, 1e30, f32::INFINITY, f32::NAN];
        let place = |step: usize| -> [u32; LANES] {
            std::array::from_fn(|lane| coordinates[(lane * step) % coordinates.len()].to_bits())
        };
        for (geometry, channels, is_linear, is_normalized, active) in [
            (Geometry::D2, 1, false, false, u32::MAX),
            (Geometry::D2, 1, true, false, u32::MAX),
            (Geometry::D2, 4, true, true, 0x00ff_3333),
            (Geometry::D1, 2, true, false, u32::MAX),
            (Geometry::D1, 1, false, true, 1 << 31 | 1),
        ] {
            let mut texture = texture(&memory, Channel::F32, channels);
            texture.levels[0].size = [6, 4, 1];
            texture.levels[0].pitch = 6 * 4 * u64::from(channels);
            texture.sampler.address_modes = [AddressMode::Clamp; 3];
            (texture.sampler.is_linear, texture.sampler.is_normalized) = (is_linear, is_normalized);
            let sampling =
                Sampling { geometry, has_integer_coordinates: false, has_level: false, gathered: None };
            let plane = texture.plane(sampling).expect("a plane");
            let null = std::ptr::null_mut();
            let [mut one, mut other] = [[[9; LANES]; 4]; 2];
            let (mut x, mut y) = (place(1), place(3));
            let (x, y) = (&raw mut x, &raw mut y);
            // SAFETY: arrays of words, and an image that is memory.
            unsafe {
                planes::sample_plane(&plane, active, [x, y], one.each_mut().map(|words| &raw mut *words));
                let results = other.each_mut().map(|words| &raw mut *words);
                sample_lanes(&texture, sampling, active, [x, y, null, null], results);
            }
            assert_eq!(one, other, "{geometry:?}, {channels} channels, linear: {is_linear}");
        }
    }
}
