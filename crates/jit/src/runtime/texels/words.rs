//! Points of images whose elements are single words, read as they are: floats above all. These are
//! the reads that kernels make in place of plain loads, so this is written with the processor's
//! vectors; what comes out is what the loops over lanes give.

use sluice_ir::texture::{AddressMode, Axis, Channel, PlainRead};

use super::vector::Vector;
use super::{Operation, Part};
use crate::context::LANES;
use crate::runtime::textures::Words;

/// Whether this file reads an image: points of elements of one word, whose places are counted by
/// coordinates, and blends of floats within the edges.
#[inline(always)]
pub(super) fn can_read(read: &PlainRead) -> bool {
    let is_word = read.channels == 1 && read.channel.bytes() == 4;
    let is_counted = read.has_integer_coordinates || !read.is_normalized;
    let stays = |axis: &Axis| axis.mode == AddressMode::Clamp;
    let is_usual = match read.is_linear {
        true => read.channel == Channel::F32 && read.axes.iter().all(stays),
        false => is_word && is_counted,
    };
    is_usual && read.layers.is_none()
}

/// Reads for each active lane; what others have stays.
///
/// # Safety
/// The image lies in memory that can be read; each array is null or can be read, those of results
/// also written. The processor has the vectors, and [`can_read`] holds.
#[inline(always)]
pub(super) unsafe fn read<V: Vector>(operation: &Operation<'_>, active: u32) {
    let all = u32::MAX >> (u32::BITS as usize - V::WIDTH);
    for first in (0..LANES).step_by(V::WIDTH) {
        let part = Part { operation, read: operation.read, first, active: active >> first & all };
        match (part.active, part.read.is_linear) {
            (0, _) => {}
            // SAFETY: by this function's contract.
            (_, false) => unsafe { part.word_points::<V>() },
            // SAFETY: as above.
            (_, true) => unsafe { part.word_blends::<V>() },
        }
    }
}

impl Part<'_> {
    /// Words of an operand.
    ///
    /// # Safety
    /// See [`read`].
    #[inline(always)]
    unsafe fn words<V: Vector>(&self, words: Words) -> V {
        // SAFETY: by this function's contract.
        unsafe {
            if words.is_null() { V::splat(0) } else { V::load_stored(words.cast::<u32>().add(self.first)) }
        }
    }

    /// Gives the active lanes a result.
    ///
    /// # Safety
    /// See [`read`].
    #[inline(always)]
    unsafe fn write_words<V: Vector>(&self, words: Words, values: V) {
        let is_full = self.active == u32::MAX >> (u32::BITS as usize - V::WIDTH);
        // SAFETY: by this function's contract.
        unsafe {
            let to = words.cast::<u32>().add(self.first);
            let values = if is_full { values } else { values.or_else(V::load(to), V::of_bits(self.active)) };
            values.store(to);
        }
    }

    /// The word at each offset from an address, where elements are single words or not.
    ///
    /// # Safety
    /// See [`read`].
    #[inline(always)]
    unsafe fn gather_words<V: Vector>(&self, base: u64, offsets: V) -> V {
        // SAFETY: by this function's contract.
        unsafe {
            let start = offsets.first();
            let are_neighbours = self.read.channels == 1 && offsets.is_equal(V::steps().add(V::splat(start)));
            match are_neighbours {
                true => V::load((base + u64::from(start)) as *const u32),
                false => offsets.gather(base),
            }
        }
    }

    /// The element at each lane's place.
    ///
    /// # Safety
    /// See [`read`].
    #[inline(always)]
    unsafe fn word_points<V: Vector>(&self) {
        let read = self.read;
        // SAFETY: by this function's contract.
        unsafe {
            let (mut offsets, mut inside) = (V::splat(0), V::splat(u32::MAX));
            for (axis, &words) in read.axes.iter().zip(&self.operation.operands) {
                let at = place(read, axis, self.words(words), &mut inside);
                offsets = offsets.add(at.multiply(V::splat(axis.stride)));
            }
            let values: V = self.gather_words(read.base, offsets);
            for (channel, &words) in self.operation.results.iter().enumerate() {
                if words.is_null() {
                    continue;
                }
                let value = if channel == 0 { values } else { V::splat(read.absent[channel]) };
                let value = match read.may_be_outside {
                    true => value.or_else(V::splat(read.outside[channel]), inside),
                    false => value,
                };
                self.write_words(words, value);
            }
        }
    }

    /// The blend of the elements around each lane's place.
    ///
    /// # Safety
    /// See [`read`].
    #[inline(always)]
    unsafe fn word_blends<V: Vector>(&self) {
        let read = self.read;
        // SAFETY: by this function's contract.
        unsafe {
            let one = V::splat(1.0_f32.to_bits());
            let (mut offsets, mut shares) = ([V::splat(0); NEIGHBOURS_MAX], [one; NEIGHBOURS_MAX]);
            // Each axis has neighbours below and above of all that there are before it.
            let mut count = 1;
            for (axis, &words) in read.axes.iter().zip(&self.operation.operands) {
                let scale = if read.is_normalized { f64::from(axis.size) } else { 1.0 };
                let around = self.words::<V>(words).around(scale, f64::from(axis.size - 1));
                let stride = V::splat(axis.stride);
                let (lower, upper) = (around.lower.multiply(stride), around.upper.multiply(stride));
                let rest = around.share.rest();
                for before in 0..count {
                    offsets[count + before] = offsets[before].add(upper);
                    shares[count + before] = shares[before].times(around.share);
                    offsets[before] = offsets[before].add(lower);
                    shares[before] = shares[before].times(rest);
                }
                count *= 2;
            }
            for (channel, &words) in self.operation.results.iter().enumerate() {
                if words.is_null() {
                    continue;
                }
                let mut sum = V::splat(0);
                if channel < usize::from(read.channels) {
                    for (&offsets, &share) in offsets[..count].iter().zip(&shares) {
                        sum = sum.plus(share, self.gather_words(read.base + 4 * channel as u64, offsets));
                    }
                } else {
                    for &share in &shares[..count] {
                        sum = sum.plus(share, V::splat(read.absent[channel]));
                    }
                }
                self.write_words(words, sum);
            }
        }
    }
}

/// Elements around a place in three dimensions.
const NEIGHBOURS_MAX: usize = 8;

/// The nearest elements on an axis. What is not an element is taken out of `inside`.
///
/// # Safety
/// The processor has the vectors.
#[inline(always)]
unsafe fn place<V: Vector>(read: &PlainRead, axis: &Axis, words: V, inside: &mut V) -> V {
    // SAFETY: by this function's contract.
    unsafe {
        // As integers without a sign, negative ones are beyond.
        let wholes = if read.has_integer_coordinates { words } else { words.wholes() };
        let at = wholes.min(V::splat(axis.size - 1));
        if read.may_be_outside {
            if read.has_integer_coordinates || axis.mode == AddressMode::Border {
                *inside = inside.and(at.is_same(wholes));
            }
            if !read.has_integer_coordinates && axis.mode == AddressMode::Border {
                *inside = V::splat(0).or_else(*inside, words.is_below_zero());
            }
        }
        at
    }
}
