//! Vectors of 256 bits (AVX2).

use std::arch::x86_64::*;

use super::{Around, MIDDLE, Vector};
use crate::runtime::texels::places::BEYOND;

impl Vector for __m256i {
    const WIDTH: usize = 8;

    #[inline(always)]
    unsafe fn load(from: *const u32) -> Self {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_stored(from: *const u32) -> Self {
        // SAFETY: by the trait's contract.
        unsafe {
            let from = from.cast::<__m128i>();
            let words = _mm256_castsi128_si256(from.read_volatile());
            _mm256_inserti128_si256::<1>(words, from.add(1).read_volatile())
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u32) {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_storeu_si256(to.cast(), self) }
    }
    #[inline(always)]
    unsafe fn splat(word: u32) -> Self {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_set1_epi32(word as i32) }
    }
    #[inline(always)]
    unsafe fn of_bits(bits: u32) -> Self {
        // SAFETY: by the trait's contract.
        unsafe {
            let each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            _mm256_cmpeq_epi32(_mm256_and_si256(Self::splat(bits), each), each)
        }
    }
    #[inline(always)]
    unsafe fn first(self) -> u32 {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_cvtsi256_si32(self) as u32 }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_add_epi32(self, other) }
    }
    #[inline(always)]
    unsafe fn multiply(self, other: Self) -> Self {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_mullo_epi32(self, other) }
    }
    #[inline(always)]
    unsafe fn and(self, other: Self) -> Self {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_and_si256(self, other) }
    }
    #[inline(always)]
    unsafe fn or_else(self, other: Self, mask: Self) -> Self {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_blendv_epi8(other, self, mask) }
    }
    #[inline(always)]
    unsafe fn is_equal(self, other: Self) -> bool {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_movemask_epi8(_mm256_cmpeq_epi32(self, other)) == -1 }
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_min_epu32(self, other) }
    }
    #[inline(always)]
    unsafe fn wholes(self) -> Self {
        // SAFETY: by the trait's contract.
        unsafe {
            let at = _mm256_max_ps(_mm256_castsi256_ps(self), _mm256_setzero_ps());
            _mm256_cvttps_epi32(_mm256_min_ps(at, _mm256_set1_ps(BEYOND as f32)))
        }
    }
    #[inline(always)]
    unsafe fn is_below_zero(self) -> Self {
        // SAFETY: by the trait's contract.
        unsafe {
            let at = _mm256_castsi256_ps(self);
            _mm256_castps_si256(_mm256_cmp_ps::<_CMP_LT_OQ>(at, _mm256_setzero_ps()))
        }
    }
    #[inline(always)]
    unsafe fn is_same(self, other: Self) -> Self {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_cmpeq_epi32(self, other) }
    }
    #[inline(always)]
    unsafe fn gather(self, base: u64) -> Self {
        // SAFETY: by the trait's contract.
        unsafe {
            let distances = _mm256_xor_si256(self, Self::splat(MIDDLE));
            _mm256_i32gather_epi32::<1>((base + u64::from(MIDDLE)) as *const i32, distances)
        }
    }
    #[inline(always)]
    unsafe fn steps() -> Self {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28) }
    }
    #[inline(always)]
    unsafe fn around(self, scale: f64, last: f64) -> Around<Self> {
        // SAFETY: by the trait's contract.
        unsafe {
            let first = around_4(_mm256_castsi256_si128(self), scale, last);
            let second = around_4(_mm256_extracti128_si256::<1>(self), scale, last);
            Around {
                lower: _mm256_set_m128i(second.lower, first.lower),
                upper: _mm256_set_m128i(second.upper, first.upper),
                share: _mm256_set_m128i(second.share, first.share),
            }
        }
    }
    #[inline(always)]
    unsafe fn rest(self) -> Self {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_castps_si256(_mm256_sub_ps(_mm256_set1_ps(1.0), _mm256_castsi256_ps(self))) }
    }
    #[inline(always)]
    unsafe fn times(self, other: Self) -> Self {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_castps_si256(_mm256_mul_ps(_mm256_castsi256_ps(self), _mm256_castsi256_ps(other))) }
    }
    #[inline(always)]
    unsafe fn plus(self, share: Self, value: Self) -> Self {
        // SAFETY: by the trait's contract.
        unsafe {
            let (share, value) = (_mm256_castsi256_ps(share), _mm256_castsi256_ps(value));
            let counts = _mm256_cmp_ps::<_CMP_NEQ_UQ>(share, _mm256_setzero_ps());
            let part = _mm256_and_ps(counts, _mm256_mul_ps(share, value));
            _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(self), part))
        }
    }
}

/// [`Vector::around`] of four floats.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn around_4(floats: __m128i, scale: f64, last: f64) -> Around<__m128i> {
    // SAFETY: by this function's contract.
    unsafe {
        let at = _mm256_mul_pd(_mm256_cvtps_pd(_mm_castsi128_ps(floats)), _mm256_set1_pd(scale));
        let at = _mm256_sub_pd(at, _mm256_set1_pd(0.5));
        let low = _mm256_floor_pd(at);
        let high = _mm256_add_pd(low, _mm256_set1_pd(1.0));
        let (zero, last) = (_mm256_setzero_pd(), _mm256_set1_pd(last));
        // Hardware keeps eight bits of the fraction. Of what is no number there is none.
        let steps = _mm256_mul_pd(_mm256_sub_pd(at, low), _mm256_set1_pd(256.0));
        let steps = _mm256_min_pd(_mm256_max_pd(steps, zero), _mm256_set1_pd(256.0));
        let steps = _mm256_floor_pd(_mm256_add_pd(steps, _mm256_set1_pd(0.5)));
        let share = _mm256_cvtpd_ps(_mm256_mul_pd(steps, _mm256_set1_pd(1.0 / 256.0)));
        Around {
            lower: _mm256_cvttpd_epi32(_mm256_min_pd(_mm256_max_pd(low, zero), last)),
            upper: _mm256_cvttpd_epi32(_mm256_min_pd(_mm256_max_pd(high, zero), last)),
            share: _mm_castps_si128(share),
        }
    }
}
