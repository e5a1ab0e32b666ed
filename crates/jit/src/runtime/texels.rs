//! Reads of images that lie in memory as they are, for all lanes of a warp at a time.
//!
//! Each stage is a loop over the lanes without branches, which becomes vector instructions of the
//! width that the processor has: coordinates become [`places`] on each axis, these become distances
//! from the image's first byte, and those the words of elements ([`memory`]), of which channels are
//! made. What comes out is what [`sluice_ir::texture::Texture::sample`] reads, to the last bit.

mod memory;
mod places;
#[cfg(target_arch = "x86_64")]
mod vector;
#[cfg(target_arch = "x86_64")]
mod words;

use sluice_ir::texture::PlainRead;

use self::memory::Elements;
use self::places::{Neighbours, OutOfRange, Places};
use super::textures::Words;
use crate::context::LANES;

/// A value of each lane of a chunk.
type Chunk<T, const N: usize> = [T; N];

/// In a value that says yes or no of a lane: yes.
const YES: u32 = u32::MAX;

/// A value that is made for each lane.
#[inline(always)]
fn each<T: Copy + Default, const N: usize>(mut of: impl FnMut(usize) -> T) -> Chunk<T, N> {
    let mut values = [T::default(); N];
    for (lane, value) in values.iter_mut().enumerate() {
        *value = of(lane);
    }
    values
}

/// What an instruction reads, and the arrays of its operands and of its results.
pub(super) struct Operation<'r> {
    pub(super) read: &'r PlainRead,
    pub(super) operands: [Words; 3],
    pub(super) results: [Words; 4],
}

/// Lanes that are read at a time.
struct Part<'o> {
    operation: &'o Operation<'o>,
    read: &'o PlainRead,
    first: usize,
    /// The active ones, the first as the lowest bit.
    active: u32,
}

/// Where each lane reads an element.
#[derive(Clone, Copy)]
struct Spot<const N: usize> {
    /// Bytes from the first of the image to the element, which lies in the image even where another
    /// value is read.
    offsets: Chunk<u32, N>,
    /// All ones where the element is read, zero where that is read which is outside.
    inside: Chunk<u32, N>,
}

impl<const N: usize> Spot<N> {
    /// Goes along an axis.
    #[inline(always)]
    fn go(self, stride: u32, places: &Places<N>) -> Spot<N> {
        Spot {
            offsets: each(|lane| self.offsets[lane].wrapping_add(places.at[lane].wrapping_mul(stride))),
            inside: each(|lane| self.inside[lane] & places.inside[lane]),
        }
    }
}

impl Part<'_> {
    /// The words of an operand.
    ///
    /// # Safety
    /// The array is null or can be read.
    #[inline(always)]
    unsafe fn operand<const N: usize>(&self, number: usize) -> Chunk<u32, N> {
        let words = self.operation.operands[number];
        if words.is_null() {
            return [0; N];
        }
        // SAFETY: by this function's contract; chunks are parts of the array.
        unsafe { words.cast::<u32>().add(self.first).cast::<Chunk<u32, N>>().read_unaligned() }
    }

    /// The operand with the coordinate on an axis.
    #[inline(always)]
    fn coordinate(&self, axis: usize) -> usize {
        axis + usize::from(self.read.layers.is_some())
    }

    /// The first element of the layer that each lane reads.
    ///
    /// # Safety
    /// As [`Part::operand`].
    #[inline(always)]
    unsafe fn layer<const N: usize>(&self) -> Spot<N> {
        let spot = Spot { offsets: [0; N], inside: [YES; N] };
        let Some(layers) = self.read.layers.filter(|_| self.read.layers.is_some()) else { return spot };
        let last = (layers.count - 1).min(i32::MAX as u32) as i32;
        // SAFETY: by this function's contract.
        let numbers: Chunk<u32, N> = unsafe { self.operand(0) };
        Spot { offsets: each(|lane| (numbers[lane] as i32).clamp(0, last) as u32 * layers.stride), ..spot }
    }

    /// Gives the active lanes a result.
    ///
    /// # Safety
    /// The array can be read and written.
    #[inline(always)]
    unsafe fn write<const N: usize>(&self, channel: usize, values: Chunk<u32, N>) {
        // SAFETY: by this function's contract; chunks are parts of the array.
        let to =
            unsafe { self.operation.results[channel].cast::<u32>().add(self.first).cast::<Chunk<u32, N>>() };
        let is_full = self.active == u32::MAX >> (u32::BITS - N as u32);
        let values = match is_full {
            true => values,
            false => {
                // SAFETY: as above.
                let before = unsafe { to.read_unaligned() };
                each(|lane| if self.active >> lane & 1 != 0 { values[lane] } else { before[lane] })
            }
        };
        // SAFETY: as above.
        unsafe { to.write_unaligned(values) };
    }

    /// The values of a channel, or what is read outside.
    #[inline(always)]
    fn of_spot<const N: usize>(
        &self,
        channel: usize,
        spot: &Spot<N>,
        values: Chunk<u32, N>,
    ) -> Chunk<u32, N> {
        let outside = self.read.outside[channel];
        each(|lane| values[lane] & spot.inside[lane] | outside & !spot.inside[lane])
    }

    /// The element at each lane's place.
    ///
    /// # Safety
    /// See [`Operation::run`].
    #[inline(always)]
    unsafe fn points<const N: usize, const HAS_OUTSIDE: bool>(&self) -> Result<(), OutOfRange> {
        // SAFETY: by this function's contract.
        let mut spot: Spot<N> = unsafe { self.layer() };
        for (number, axis) in self.read.axes.iter().enumerate() {
            // SAFETY: by this function's contract.
            let words = unsafe { self.operand(self.coordinate(number)) };
            spot = spot.go(axis.stride, &Places::of_points(self.read, axis, &words, self.active)?);
        }
        let mut elements = Elements::new(self.read, &spot.offsets);
        for channel in 0..self.operation.results.len() {
            if self.operation.results[channel].is_null() {
                continue;
            }
            // SAFETY: by this function's contract; the offsets are inside the image.
            let values = unsafe { elements.channel(channel) };
            let values = if HAS_OUTSIDE { self.of_spot(channel, &spot, values) } else { values };
            // SAFETY: by this function's contract.
            unsafe { self.write(channel, values) };
        }
        Ok(())
    }

    /// The blend of the elements around each lane's place.
    ///
    /// # Safety
    /// See [`Operation::run`].
    #[inline(always)]
    unsafe fn blends<const N: usize, const HAS_OUTSIDE: bool>(&self) -> Result<(), OutOfRange> {
        let mut around = [Neighbours::<N>::NONE; 3];
        for (number, axis) in self.read.axes.iter().enumerate() {
            // SAFETY: by this function's contract.
            let words = unsafe { self.operand(self.coordinate(number)) };
            around[number] = Neighbours::of(self.read, axis, &words, self.active)?;
        }
        let mut sums = [[0.0_f32; N]; 4];
        // SAFETY: by this function's contract.
        let layer: Spot<N> = unsafe { self.layer() };
        for neighbour in 0..1_usize << self.read.axes.len() {
            let (mut spot, mut share) = (layer, [1.0_f32; N]);
            for (number, axis) in self.read.axes.iter().enumerate() {
                let (around, is_upper) = (&around[number], neighbour >> number & 1 != 0);
                spot = spot.go(axis.stride, if is_upper { &around.upper } else { &around.lower });
                share = match is_upper {
                    true => each(|lane| share[lane] * around.weights[lane]),
                    false => each(|lane| share[lane] * (1.0 - around.weights[lane])),
                };
            }
            let mut elements = Elements::new(self.read, &spot.offsets);
            for (channel, sums) in sums.iter_mut().enumerate() {
                if self.operation.results[channel].is_null() {
                    continue;
                }
                // SAFETY: by this function's contract; the offsets are inside the image.
                let texels = unsafe { elements.channel(channel) };
                let texels = if HAS_OUTSIDE { self.of_spot(channel, &spot, texels) } else { texels };
                *sums = each(|lane| {
                    // An infinite neighbour without a share does not count.
                    let part =
                        if share[lane] == 0.0 { 0.0 } else { share[lane] * f32::from_bits(texels[lane]) };
                    sums[lane] + part
                });
            }
        }
        for (channel, sums) in sums.iter().enumerate() {
            if !self.operation.results[channel].is_null() {
                // SAFETY: by this function's contract.
                unsafe { self.write(channel, each::<_, N>(|lane| sums[lane].to_bits())) };
            }
        }
        Ok(())
    }
}

impl Operation<'_> {
    /// Reads for all chunks of `N` lanes. Returns the active lanes that it has left alone.
    ///
    /// # Safety
    /// See [`Operation::run`].
    #[inline(always)]
    unsafe fn chunks<const N: usize>(&self, active: u32) -> u32 {
        let mut left = 0;
        for first in (0..LANES).step_by(N) {
            let lanes = active >> first & u32::MAX >> (u32::BITS - N as u32);
            if lanes == 0 {
                continue;
            }
            let part = Part { operation: self, read: self.read, first, active: lanes };
            let done = match (self.read.is_linear, self.read.may_be_outside) {
                // SAFETY: by this function's contract.
                (false, false) => unsafe { part.points::<N, false>() },
                // SAFETY: as above.
                (false, true) => unsafe { part.points::<N, true>() },
                // SAFETY: as above.
                (true, false) => unsafe { part.blends::<N, false>() },
                // SAFETY: as above.
                (true, true) => unsafe { part.blends::<N, true>() },
            };
            if done.is_err() {
                left |= lanes << first;
            }
        }
        left
    }

    /// Reads for each active lane; what others have stays. Returns the active lanes that are still
    /// to be read, since a coordinate is beyond what vectors can repeat.
    ///
    /// # Safety
    /// The image lies in memory that can be read; each array is null or can be read, those of
    /// results also written, in the eighth and the half of a warp that have active lanes.
    pub(super) unsafe fn run(&self, active: u32) -> u32 {
        #[cfg(target_arch = "x86_64")]
        {
            if has_wide() && active >= 1 << 8 {
                // SAFETY: the processor has AVX-512; the rest is this function's contract.
                return unsafe { wide(self, active) };
            }
            if std::is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has AVX2; the rest is this function's contract.
                return unsafe { medium(self, active) };
            }
        }
        // SAFETY: by this function's contract.
        unsafe { self.chunks::<8>(active) }
    }
}

/// Whether the processor has the parts of AVX-512 that [`wide`] is compiled for.
#[cfg(target_arch = "x86_64")]
fn has_wide() -> bool {
    std::is_x86_feature_detected!("avx512f")
        && std::is_x86_feature_detected!("avx512bw")
        && std::is_x86_feature_detected!("avx512dq")
        && std::is_x86_feature_detected!("avx512vl")
}

/// # Safety
/// See [`Operation::run`]; the processor has AVX-512, and warps have more than eight lanes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn wide(operation: &Operation<'_>, active: u32) -> u32 {
    if words::can_read(operation.read) {
        // SAFETY: as for the caller.
        unsafe { words::read::<std::arch::x86_64::__m512i>(operation, active) };
        return 0;
    }
    // SAFETY: as above.
    unsafe { operation.chunks::<16>(active) }
}

/// # Safety
/// See [`Operation::run`]; and the processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn medium(operation: &Operation<'_>, active: u32) -> u32 {
    if words::can_read(operation.read) {
        // SAFETY: as for the caller.
        unsafe { words::read::<std::arch::x86_64::__m256i>(operation, active) };
        return 0;
    }
    // SAFETY: as above.
    unsafe { operation.chunks::<8>(active) }
}

#[cfg(test)]
mod tests;
