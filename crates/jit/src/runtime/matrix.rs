//! Products of matrices by a warp: the fragments of all lanes are put together to whole matrices,
//! which are multiplied in vectors as wide as the processor's.
//!
//! Each sum is computed in the order of the program, with one rounding a step, so the results are
//! those of the reference interpreter to the last bit.

use sluice_ir::{MatrixElement, MatrixForm};

use crate::context::LANES;

type Words = [u32; LANES];

/// Multiplies fragments in a warp's memory. `places` has the offset of the words of each register
/// from the start of that memory: those of A, B, C and D, as [`sluice_ir::matrix`] counts them.
/// `form` is [`MatrixForm::to_bits`]. Lanes that are not in `active` get no results.
///
/// # Safety
/// `warp` is what compiled code was entered with, and the places are in its memory.
pub(crate) unsafe extern "C" fn matrix_multiply(warp: *mut u8, places: *const u32, form: u32, active: u32) {
    let Some(form) = MatrixForm::from_bits(form) else { return };
    let count = form.a_registers() + form.b_registers() + 2 * form.sums();
    // SAFETY: compiled code has written the places of all registers.
    let places = unsafe { std::slice::from_raw_parts(places, count) };
    let fragments = Fragments { warp, places, form, active };
    #[cfg(target_arch = "x86_64")]
    if x86::is_supported() {
        // SAFETY: the processor has the instructions, and the places are as promised.
        return unsafe { x86::multiply(&fragments) };
    }
    // SAFETY: the places are as promised.
    unsafe { multiply(&fragments, halves_to_floats) }
}

struct Fragments<'a> {
    warp: *mut u8,
    places: &'a [u32],
    form: MatrixForm,
    active: u32,
}

impl Fragments<'_> {
    /// The words of a register: 0 in lanes that are not active, whose slots may never have been
    /// written.
    ///
    /// # Safety
    /// The places are in the warp's memory, and active lanes have written them.
    #[inline(always)]
    unsafe fn words(&self, register: usize) -> Words {
        // SAFETY: the place is in the warp's memory; slots are aligned for vectors.
        let place = unsafe { self.warp.add(self.places[register] as usize).cast::<u32>() };
        if self.active == u32::MAX {
            // SAFETY: all lanes have written theirs.
            return unsafe { *place.cast::<Words>() };
        }
        std::array::from_fn(|lane| match self.active >> lane & 1 {
            0 => 0,
            // SAFETY: an active lane has written its own.
            _ => unsafe { *place.add(lane) },
        })
    }

    /// # Safety
    /// As [`Fragments::words`].
    #[inline(always)]
    unsafe fn set_words(&self, register: usize, words: &Words) {
        // SAFETY: the place is in the warp's memory. It may be that of an operand, which has been
        // read.
        let place = unsafe { self.warp.add(self.places[register] as usize).cast::<u32>() };
        if self.active == u32::MAX {
            // SAFETY: as above.
            unsafe { *place.cast::<Words>() = *words };
            return;
        }
        for lane in (0..LANES).filter(|lane| self.active >> lane & 1 != 0) {
            // SAFETY: as above.
            unsafe { *place.add(lane) = words[lane] };
        }
    }
}

/// What is multiplied and added.
trait Number: Copy + Default {
    fn from_word(word: u32) -> Self;
    fn to_word(self) -> u32;
    /// `self * factor + sum`, with one rounding.
    fn multiply_add(self, factor: Self, sum: Self) -> Self;
}

impl Number for f32 {
    #[inline(always)]
    fn from_word(word: u32) -> f32 {
        f32::from_bits(word)
    }

    #[inline(always)]
    fn to_word(self) -> u32 {
        self.to_bits()
    }

    #[inline(always)]
    fn multiply_add(self, factor: f32, sum: f32) -> f32 {
        self.mul_add(factor, sum)
    }
}

impl Number for i32 {
    #[inline(always)]
    fn from_word(word: u32) -> i32 {
        word as i32
    }

    #[inline(always)]
    fn to_word(self) -> u32 {
        self as u32
    }

    #[inline(always)]
    fn multiply_add(self, factor: i32, sum: i32) -> i32 {
        self.wrapping_mul(factor).wrapping_add(sum)
    }
}

/// The elements of a register in all lanes, in the order of lanes: up to four for each.
struct Unpacked<T>([T; 4 * LANES]);

/// Converts the halves in 32 words to floats.
type Halves = unsafe fn(&Words, &mut [f32; 2 * LANES]);

/// # Safety
/// As [`Halves`] demands.
#[inline(always)]
unsafe fn floats(element: MatrixElement, words: &Words, halves: Halves) -> Unpacked<f32> {
    let mut out = Unpacked([0.0; 4 * LANES]);
    match element {
        MatrixElement::Half => {
            if let Some(first) = out.0.first_chunk_mut() {
                // SAFETY: the caller's promise.
                unsafe { halves(words, first) };
            }
        }
        MatrixElement::Bfloat => {
            for (pair, word) in out.0.chunks_exact_mut(2).zip(words) {
                pair[0] = f32::from_bits(word << 16);
                pair[1] = f32::from_bits(word & 0xffff_0000);
            }
        }
        // The hardware does not look at the low bits.
        _ => {
            for (to, word) in out.0.iter_mut().zip(words) {
                *to = f32::from_bits(word & 0xffff_e000);
            }
        }
    }
    out
}

#[inline(always)]
fn integers(element: MatrixElement, words: &Words) -> Unpacked<i32> {
    let mut out = Unpacked([0; 4 * LANES]);
    for (bytes, word) in out.0.chunks_exact_mut(4).zip(words) {
        for (to, byte) in bytes.iter_mut().zip(word.to_le_bytes()) {
            *to = if element == MatrixElement::S8 { i32::from(byte as i8) } else { i32::from(byte) };
        }
    }
    out
}

/// # Safety
/// The places of the fragments are in the warp's memory, and `halves` may be called.
#[inline(always)]
unsafe fn multiply(fragments: &Fragments<'_>, halves: Halves) {
    let MatrixForm { m, n, k, a, .. } = fragments.form;
    macro_rules! shapes {
        ($number:ty: $($m:literal x $n:literal x $k:literal,)*) => {
            match (m, n, k) {
                // SAFETY: the caller's promise.
                $(($m, $n, $k) => unsafe { whole::<$number, $m, $n, $k, true>(fragments, halves) },)*
                // SAFETY: the caller's promise; sides are within the largest.
                _ => unsafe { whole::<$number, SIDE, SIDE, SIDE, false>(fragments, halves) },
            }
        };
    }
    const SIDE: usize = MatrixForm::SIDE_MAX as usize;
    if a.is_integer() {
        shapes!(i32: 16 x 8 x 32, 16 x 8 x 16, 8 x 8 x 16, 16 x 16 x 16, 32 x 8 x 16, 8 x 32 x 16,);
    } else {
        shapes!(f32: 16 x 8 x 16, 16 x 8 x 8, 16 x 8 x 4, 16 x 16 x 16, 16 x 16 x 8, 32 x 8 x 16, 8 x 32 x 16,);
    }
}

/// Numbers of one kind, taken out of registers.
trait Element: Number {
    /// # Safety
    /// `halves` may be called.
    unsafe fn unpack(element: MatrixElement, words: &Words, halves: Halves) -> Unpacked<Self>;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn unpack(element: MatrixElement, words: &Words, halves: Halves) -> Unpacked<f32> {
        // SAFETY: the caller's promise.
        unsafe { floats(element, words, halves) }
    }
}

impl Element for i32 {
    #[inline(always)]
    unsafe fn unpack(element: MatrixElement, words: &Words, _: Halves) -> Unpacked<i32> {
        integers(element, words)
    }
}

/// Multiplies matrices of at most these sides, or of exactly these.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
unsafe fn whole<T: Element, const M: usize, const N: usize, const K: usize, const IS_EXACT: bool>(
    fragments: &Fragments<'_>,
    halves: Halves,
) {
    let form = fragments.form;
    let [rows, columns, depth] = match IS_EXACT {
        // The compiler knows the bounds of all loops then.
        true => [M, N, K],
        false => [form.m, form.n, form.k].map(usize::from),
    };
    let (m_tiles, n_tiles, chunks) = (rows / 8, columns / 8, form.chunks());
    let width = 4 * form.a.per_register() as usize;
    let (b_first, c_first) = (form.a_registers(), form.a_registers() + form.b_registers());
    let d_first = c_first + form.sums();
    let mut a = [[T::default(); K]; M];
    let mut b = [[T::default(); N]; K];
    let mut c = [[T::default(); N]; M];
    for chunk in 0..chunks {
        for tile in 0..m_tiles {
            // SAFETY: the caller's promises.
            let part = unsafe { T::unpack(form.a, &fragments.words(chunk * m_tiles + tile), halves) };
            for (g, row) in part.0.chunks_exact(width).take(8).enumerate() {
                a[8 * tile + g][width * chunk..][..width].copy_from_slice(row);
            }
        }
        for tile in 0..n_tiles {
            // SAFETY: the caller's promises.
            let part =
                unsafe { T::unpack(form.b, &fragments.words(b_first + tile * chunks + chunk), halves) };
            for (g, column) in part.0.chunks_exact(width).take(8).enumerate() {
                for (at, value) in column.iter().enumerate() {
                    b[width * chunk + at][8 * tile + g] = *value;
                }
            }
        }
    }
    for tile in 0..m_tiles * n_tiles {
        let (row, column) = (tile % m_tiles * 8, tile / m_tiles * 8);
        // SAFETY: the caller's promise.
        let [even, odd] = [0, 1].map(|i| unsafe { fragments.words(c_first + 2 * tile + i) });
        for lane in 0..LANES {
            let pair = &mut c[row + lane / 4][column + lane % 4 * 2..][..2];
            pair[0] = T::from_word(even[lane]);
            pair[1] = T::from_word(odd[lane]);
        }
    }
    for row in 0..rows {
        let mut sums = c[row];
        for at in 0..depth {
            for (sum, factor) in sums.iter_mut().zip(&b[at]) {
                *sum = a[row][at].multiply_add(*factor, *sum);
            }
        }
        c[row] = sums;
    }
    for tile in 0..m_tiles * n_tiles {
        let (row, column) = (tile % m_tiles * 8, tile / m_tiles * 8);
        for i in 0..2 {
            let words: Words =
                std::array::from_fn(|lane| c[row + lane / 4][column + lane % 4 * 2 + i].to_word());
            // SAFETY: the caller's promise.
            unsafe { fragments.set_words(d_first + 2 * tile + i, &words) };
        }
    }
}

/// As [`Halves`], by integer arithmetic.
fn halves_to_floats(words: &Words, out: &mut [f32; 2 * LANES]) {
    let widen = |half: u32| {
        let (sign, magnitude) = (half << 16 & 0x8000_0000, half & 0x7fff);
        let bits = match magnitude >> 10 {
            // A subnormal half is a multiple of 2^-24.
            0 => (magnitude as f32 * f32::from_bits(0x3380_0000)).to_bits(),
            // Infinities and NaNs, which are quiet.
            31 => 0x7f80_0000 | magnitude << 13 | u32::from(magnitude > 0x7c00) << 22,
            _ => (magnitude << 13) + (112 << 23),
        };
        f32::from_bits(sign | bits)
    };
    for (pair, word) in out.chunks_exact_mut(2).zip(words) {
        pair[0] = widen(word & 0xffff);
        pair[1] = widen(word >> 16);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};

    use super::{Fragments, LANES, Words};

    pub(super) fn is_supported() -> bool {
        std::is_x86_feature_detected!("avx2")
            && std::is_x86_feature_detected!("fma")
            && std::is_x86_feature_detected!("f16c")
    }

    /// # Safety
    /// The processor has the instructions, and the fragments are in the warp's memory.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn multiply(fragments: &Fragments<'_>) {
        // SAFETY: the caller's promises.
        unsafe { super::multiply(fragments, halves_to_floats) }
    }

    /// # Safety
    /// The processor has the instructions.
    #[target_feature(enable = "avx,f16c")]
    unsafe fn halves_to_floats(words: &Words, out: &mut [f32; 2 * LANES]) {
        for (four, eight) in words.chunks_exact(4).zip(out.chunks_exact_mut(8)) {
            // SAFETY: four words and eight floats.
            unsafe {
                let halves = _mm_loadu_si128(four.as_ptr().cast());
                _mm256_storeu_ps(eight.as_mut_ptr(), _mm256_cvtph_ps(halves));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn halves_are_those_of_the_processor() {
        use std::arch::x86_64::{_mm_cvtph_ps, _mm_cvtss_f32, _mm_set1_epi16};
        if !x86::is_supported() {
            eprintln!("skipped: the processor does not convert halves");
            return;
        }
        #[target_feature(enable = "f16c")]
        fn of_processor(half: u16) -> f32 {
            _mm_cvtss_f32(_mm_cvtph_ps(_mm_set1_epi16(half as i16)))
        }
        for half in 0..=u16::MAX {
            let mut out = [0.0; 2 * LANES];
            halves_to_floats(&[u32::from(half); LANES], &mut out);
            // SAFETY: asked for above.
            let expected = unsafe { of_processor(half) };
            assert_eq!(out[0].to_bits(), expected.to_bits(), "{half:#x}");
        }
    }
}
