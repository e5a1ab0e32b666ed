//! Vectors of 512 bits (AVX-512 with its parts BW, DQ and VL).

use std::arch::x86_64::*;

use super::{Around, MIDDLE, Vector};
use crate::runtime::texels::places::BEYOND;

impl Vector for __m512i {
    const WIDTH: usize = 16;

    #[inline(always)]
    unsafe fn load(from: *const u32) -> Self {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_stored(from: *const u32) -> Self {
        // SAFETY: by the trait's contract.
        unsafe {
            let from = from.cast::<__m128i>();
            let words = _mm512_castsi128_si512(from.read_volatile());
            let words = _mm512_inserti32x4::<1>(words, from.add(1).read_volatile());
            let words = _mm512_inserti32x4::<2>(words, from.add(2).read_volatile());
            _mm512_inserti32x4::<3>(words, from.add(3).read_volatile())
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u32) {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_storeu_si512(to.cast(), self) }
    }
    #[inline(always)]
    unsafe fn splat(word: u32) -> Self {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_set1_epi32(word as i32) }
    }
    #[inline(always)]
    unsafe fn of_bits(bits: u32) -> Self {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_movm_epi32(bits as u16) }
    }
    #[inline(always)]
    unsafe fn first(self) -> u32 {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_cvtsi512_si32(self) as u32 }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_add_epi32(self, other) }
    }
    #[inline(always)]
    unsafe fn multiply(self, other: Self) -> Self {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_mullo_epi32(self, other) }
    }
    #[inline(always)]
    unsafe fn and(self, other: Self) -> Self {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_and_si512(self, other) }
    }
    #[inline(always)]
    unsafe fn or_else(self, other: Self, mask: Self) -> Self {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_or_si512(_mm512_and_si512(mask, self), _mm512_andnot_si512(mask, other)) }
    }
    #[inline(always)]
    unsafe fn is_equal(self, other: Self) -> bool {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_cmpneq_epi32_mask(self, other) == 0 }
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_min_epu32(self, other) }
    }
    #[inline(always)]
    unsafe fn wholes(self) -> Self {
        // SAFETY: by the trait's contract.
        unsafe {
            let at = _mm512_max_ps(_mm512_castsi512_ps(self), _mm512_setzero_ps());
            _mm512_cvttps_epi32(_mm512_min_ps(at, _mm512_set1_ps(BEYOND as f32)))
        }
    }
    #[inline(always)]
    unsafe fn is_below_zero(self) -> Self {
        // SAFETY: by the trait's contract.
        unsafe {
            let at = _mm512_castsi512_ps(self);
            _mm512_movm_epi32(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(at, _mm512_setzero_ps()))
        }
    }
    #[inline(always)]
    unsafe fn is_same(self, other: Self) -> Self {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_movm_epi32(_mm512_cmpeq_epi32_mask(self, other)) }
    }
    #[inline(always)]
    unsafe fn gather(self, base: u64) -> Self {
        // SAFETY: by the trait's contract.
        unsafe {
            let distances = _mm512_xor_si512(self, Self::splat(MIDDLE));
            _mm512_i32gather_epi32::<1>(distances, (base + u64::from(MIDDLE)) as *const i32)
        }
    }
    #[inline(always)]
    unsafe fn steps() -> Self {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60) }
    }
    #[inline(always)]
    unsafe fn around(self, scale: f64, last: f64) -> Around<Self> {
        // SAFETY: by the trait's contract.
        unsafe {
            let first = around_8(_mm512_castsi512_si256(self), scale, last);
            let second = around_8(_mm512_extracti64x4_epi64::<1>(self), scale, last);
            Around {
                lower: _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first.lower), second.lower),
                upper: _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first.upper), second.upper),
                share: _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first.share), second.share),
            }
        }
    }
    #[inline(always)]
    unsafe fn rest(self) -> Self {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_castps_si512(_mm512_sub_ps(_mm512_set1_ps(1.0), _mm512_castsi512_ps(self))) }
    }
    #[inline(always)]
    unsafe fn times(self, other: Self) -> Self {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_castps_si512(_mm512_mul_ps(_mm512_castsi512_ps(self), _mm512_castsi512_ps(other))) }
    }
    #[inline(always)]
    unsafe fn plus(self, share: Self, value: Self) -> Self {
        // SAFETY: by the trait's contract.
        unsafe {
            let (share, value) = (_mm512_castsi512_ps(share), _mm512_castsi512_ps(value));
            let counts = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(share, _mm512_setzero_ps());
            let part = _mm512_maskz_mul_ps(counts, share, value);
            _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(self), part))
        }
    }
}

/// [`Vector::around`] of eight floats.
///
/// # Safety
/// The processor has AVX-512.
#[inline(always)]
unsafe fn around_8(floats: __m256i, scale: f64, last: f64) -> Around<__m256i> {
    // SAFETY: by this function's contract.
    unsafe {
        let at = _mm512_mul_pd(_mm512_cvtps_pd(_mm256_castsi256_ps(floats)), _mm512_set1_pd(scale));
        let at = _mm512_sub_pd(at, _mm512_set1_pd(0.5));
        let low = _mm512_roundscale_pd::<DOWN>(at);
        let high = _mm512_add_pd(low, _mm512_set1_pd(1.0));
        let (zero, last) = (_mm512_setzero_pd(), _mm512_set1_pd(last));
        // Hardware keeps eight bits of the fraction. Of what is no number there is none.
        let steps = _mm512_mul_pd(_mm512_sub_pd(at, low), _mm512_set1_pd(256.0));
        let steps = _mm512_min_pd(_mm512_max_pd(steps, zero), _mm512_set1_pd(256.0));
        let steps = _mm512_roundscale_pd::<DOWN>(_mm512_add_pd(steps, _mm512_set1_pd(0.5)));
        let share = _mm512_cvtpd_ps(_mm512_mul_pd(steps, _mm512_set1_pd(1.0 / 256.0)));
        Around {
            lower: _mm512_cvttpd_epi32(_mm512_min_pd(_mm512_max_pd(low, zero), last)),
            upper: _mm512_cvttpd_epi32(_mm512_min_pd(_mm512_max_pd(high, zero), last)),
            share: _mm256_castps_si256(share),
        }
    }
}

/// Rounding to the next integer below.
const DOWN: i32 = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
