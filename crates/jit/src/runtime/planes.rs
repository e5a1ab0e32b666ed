//! Reads of textures that are planes of floats, for all lanes of a warp at a time.
//!
//! Each stage is a loop over the lanes without branches, which becomes vector instructions of the
//! width that the processor has. What comes out is what [`sluice_ir::texture::Texture::sample`]
//! reads, to the last bit.

use sluice_ir::texture::Plane;

use super::textures::Words;
use crate::context::LANES;

/// For each lane, the lower and the upper neighbour on an axis, and the upper one's share.
struct Axis {
    places: [[u32; LANES]; 2],
    weights: [f32; LANES],
}

impl Axis {
    #[inline(always)]
    fn new(words: &[u32; LANES], scale: f64, size: u32, is_linear: bool) -> Axis {
        let last = f64::from(size - 1);
        let mut axis = Axis { places: [[0; LANES]; 2], weights: [0.0; LANES] };
        for (lane, &word) in words.iter().enumerate() {
            let at = f64::from(f32::from_bits(word)) * scale;
            let at = if is_linear { at - 0.5 } else { at };
            let low = at.floor();
            // Of a NaN the first element is read.
            axis.places[0][lane] = low.max(0.0).min(last) as u32;
            axis.places[1][lane] = (low + 1.0).max(0.0).min(last) as u32;
            // Hardware keeps eight bits of the fraction.
            let steps = ((at - low) * 256.0).clamp(0.0, 256.0);
            axis.weights[lane] = ((steps + 0.5).floor().max(0.0) / 256.0) as f32;
        }
        axis
    }
}

/// The channel of an element in each lane.
///
/// # Safety
/// The plane lies in memory that can be read.
#[inline(always)]
unsafe fn texels(plane: &Plane, channel: usize, x: &[u32; LANES], y: &[u32; LANES]) -> [f32; LANES] {
    std::array::from_fn(|lane| {
        let element = u64::from(x[lane]) * u64::from(plane.channels) + channel as u64;
        let address = plane.base + u64::from(y[lane]) * plane.pitch + 4 * element;
        // SAFETY: both places are inside the plane's size; the rest is this function's contract.
        unsafe { (address as *const f32).read_unaligned() }
    })
}

/// # Safety
/// The plane lies in memory that can be read; each array is null or can be read, those of results
/// also written.
#[inline(always)]
unsafe fn sample(plane: &Plane, active: u32, [x, y]: [Words; 2], results: [Words; 4]) {
    // SAFETY: by this function's contract. Results may take the operands' places.
    let [x, y] = [x, y].map(|words| if words.is_null() { [0; LANES] } else { unsafe { *words } });
    let x = Axis::new(&x, plane.scale[0], plane.size[0], plane.is_linear);
    let has_rows = plane.scale[1] != 0.0;
    let y = Axis::new(&y, plane.scale[1], plane.size[1], plane.is_linear && has_rows);
    for (channel, words) in results.into_iter().enumerate().filter(|(_, words)| !words.is_null()) {
        // SAFETY: by this function's contract.
        let words = unsafe { &mut *words };
        let values = match channel < usize::from(plane.channels) {
            // SAFETY: by this function's contract.
            true if !plane.is_linear => unsafe { texels(plane, channel, &x.places[0], &y.places[0]) },
            // SAFETY: as above.
            true => unsafe { blended(plane, channel, &x, &y) },
            false if channel == 3 => [1.0; LANES],
            false => [0.0; LANES],
        };
        for lane in 0..LANES {
            let is_active = active >> lane & 1 != 0;
            words[lane] = if is_active { values[lane].to_bits() } else { words[lane] };
        }
    }
}

/// # Safety
/// See [`texels`].
#[inline(always)]
unsafe fn blended(plane: &Plane, channel: usize, x: &Axis, y: &Axis) -> [f32; LANES] {
    let mut sums = [0.0; LANES];
    for (right, below) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        // SAFETY: by this function's contract.
        let texels = unsafe { texels(plane, channel, &x.places[right], &y.places[below]) };
        for lane in 0..LANES {
            let share = |axis: &Axis, side: usize| match side {
                0 => 1.0 - axis.weights[lane],
                _ => axis.weights[lane],
            };
            let share = share(x, right) * share(y, below);
            // An infinite neighbour without a share does not count.
            let part = if share == 0.0 { 0.0 } else { share * texels[lane] };
            sums[lane] += part;
        }
    }
    sums
}

/// Reads for each active lane; what others have stays.
///
/// # Safety
/// The plane lies in memory that can be read; each array is null or can be read, those of results
/// also written.
pub(super) unsafe fn sample_plane(plane: &Plane, active: u32, places: [Words; 2], results: [Words; 4]) {
    #[cfg(target_arch = "x86_64")]
    {
        if std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("avx512dq") {
            // SAFETY: the processor has AVX-512; the rest is this function's contract.
            return unsafe { sample_wide(plane, active, places, results) };
        }
        if std::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2; the rest is this function's contract.
            return unsafe { sample_medium(plane, active, places, results) };
        }
    }
    // SAFETY: by this function's contract.
    unsafe { sample(plane, active, places, results) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl")]
unsafe fn sample_wide(plane: &Plane, active: u32, places: [Words; 2], results: [Words; 4]) {
    // SAFETY: as for the caller.
    unsafe { sample(plane, active, places, results) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn sample_medium(plane: &Plane, active: u32, places: [Words; 2], results: [Words; 4]) {
    // SAFETY: as for the caller.
    unsafe { sample(plane, active, places, results) }
}
