//! Vectors of the processor, for [`super::words`].

mod medium;
mod wide;

/// Words of as many lanes as the processor's vectors have.
///
/// # Safety
/// The processor has the vectors, for all functions.
pub(in crate::runtime::texels) trait Vector: Copy {
    /// How many lanes.
    const WIDTH: usize;

    unsafe fn load(from: *const u32) -> Self;
    /// Words from a place aligned to 16 bytes, where they were stored just before, four at a time.
    /// As many are loaded at a time, since processors do not pass on to one load what several
    /// stores have written.
    unsafe fn load_stored(from: *const u32) -> Self;
    unsafe fn store(self, to: *mut u32);
    unsafe fn splat(word: u32) -> Self;
    /// All ones in the lanes whose bits are set.
    unsafe fn of_bits(bits: u32) -> Self;
    unsafe fn first(self) -> u32;
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn multiply(self, other: Self) -> Self;
    unsafe fn and(self, other: Self) -> Self;
    /// The words of this one where the mask has ones, and of the other where it has zeros.
    unsafe fn or_else(self, other: Self, mask: Self) -> Self;
    unsafe fn is_equal(self, other: Self) -> bool;
    /// The smaller ones of unsigned words.
    unsafe fn min(self, other: Self) -> Self;
    /// Of bits of floats the integers below, at least zero and at most `places::BEYOND`; of what is
    /// no number zero.
    unsafe fn wholes(self) -> Self;
    /// All ones where a float is below zero.
    unsafe fn is_below_zero(self) -> Self;
    /// All ones where both words are the same.
    unsafe fn is_same(self, other: Self) -> Self;
    /// Words at these distances in bytes.
    unsafe fn gather(self, base: u64) -> Self;
    /// 0, 4, 8 and so on.
    unsafe fn steps() -> Self;

    /// Of floats times a scale the elements on both sides, at least the first and at most the last
    /// one, and the upper one's share as a float.
    unsafe fn around(self, scale: f64, last: f64) -> Around<Self>;
    /// 1 less a float.
    unsafe fn rest(self) -> Self;
    /// The product of two floats.
    unsafe fn times(self, other: Self) -> Self;
    /// A float and the product of two others, each rounded; a product with zero is zero, whatever
    /// the other is.
    unsafe fn plus(self, share: Self, value: Self) -> Self;
}

/// The elements on both sides of places on an axis, and the upper one's share.
#[derive(Clone, Copy)]
pub(in crate::runtime::texels) struct Around<V> {
    pub(in crate::runtime::texels) lower: V,
    pub(in crate::runtime::texels) upper: V,
    pub(in crate::runtime::texels) share: V,
}

/// Distances of a gather are signed: they are taken from the middle of what 32 bits count.
const MIDDLE: u32 = 1 << 31;
