//! Chains of fused multiply-adds, the inner loop of every matrix product: for all lanes of a warp
//! at once, `sum[lane] = fma(factor[i], row[i][lane], sum[lane])` for one `i` after the other.
//!
//! Cranelift's vectors have 128 bits. These are as wide as the processor's, and what they compute
//! is the same to the last bit: each step is rounded once, in the order of the program.

/// The function for warps of `lanes` lanes; `None` where the processor would do the steps in
/// software.
pub(crate) fn fma_chain(lanes: usize) -> Option<*const ()> {
    #[cfg(target_arch = "x86_64")]
    {
        if std::is_x86_feature_detected!("avx512f") && lanes >= 16 {
            return Some(if lanes == 32 { wide::<32> as *const () } else { wide::<16> as *const () });
        }
        if !std::is_x86_feature_detected!("avx2") || !std::is_x86_feature_detected!("fma") {
            return None;
        }
        Some(match lanes {
            32 => medium::<32> as *const (),
            16 => medium::<16> as *const (),
            _ => medium::<8> as *const (),
        })
    }
    #[cfg(not(target_arch = "x86_64"))]
    Some(match lanes {
        32 => plain::<32> as *const (),
        16 => plain::<16> as *const (),
        _ => plain::<8> as *const (),
    })
}

/// Bytes from one factor to the next (low half) and from one row to the next (high half).
pub(crate) fn strides(factor: i32, row: i32) -> u64 {
    u64::from(factor as u32) | u64::from(row as u32) << 32
}

/// # Safety
/// `sums` and `results` have `LANES` elements and may be the same; there are `count` factors, and
/// `count` rows of `LANES` elements each, at their strides, at addresses that are multiples of 4.
#[inline(always)]
unsafe fn chain<const LANES: usize>(
    results: *mut f32,
    sums: *const f32,
    mut factor: *const f32,
    mut row: *const f32,
    strides: u64,
    count: u64,
) {
    let (factor_stride, row_stride) = (strides as i32 as isize, (strides >> 32) as i32 as isize);
    // SAFETY: the caller's promise; the addresses behind the last factor and row are not used.
    unsafe {
        let mut sum = sums.cast::<[f32; LANES]>().read_unaligned();
        for _ in 0..count {
            let own = row.cast::<[f32; LANES]>().read_unaligned();
            for lane in 0..LANES {
                sum[lane] = (*factor).mul_add(own[lane], sum[lane]);
            }
            factor = factor.wrapping_byte_offset(factor_stride);
            row = row.wrapping_byte_offset(row_stride);
        }
        results.cast::<[f32; LANES]>().write_unaligned(sum);
    }
}

macro_rules! versions {
    ($($(#[$attribute:meta])* $name:ident;)*) => {$(
        /// # Safety
        /// As [`chain`], on a processor that has these instructions.
        $(#[$attribute])*
        unsafe extern "C" fn $name<const LANES: usize>(
            results: *mut f32,
            sums: *const f32,
            factor: *const f32,
            row: *const f32,
            strides: u64,
            count: u64,
        ) {
            // SAFETY: the caller's promise.
            unsafe { chain::<LANES>(results, sums, factor, row, strides, count) }
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
versions! {
    #[target_feature(enable = "avx512f,fma")] wide;
    #[target_feature(enable = "avx2,fma")] medium;
}

#[cfg(not(target_arch = "x86_64"))]
versions! { plain; }

#[cfg(test)]
mod tests {
    use super::*;

    type Chain = unsafe extern "C" fn(*mut f32, *const f32, *const f32, *const f32, u64, u64);

    #[test]
    fn a_chain_is_its_steps() {
        for lanes in [8, 16, 32] {
            let Some(function) = fma_chain(lanes) else { continue };
            // SAFETY: it is a function of this type.
            let function = unsafe { std::mem::transmute::<*const (), Chain>(function) };
            let factors: Vec<f32> = (0..10).map(|i| 0.1 * i as f32 - 0.3).collect();
            let rows: Vec<f32> = (0..5 * 40).map(|i| (i as f32).sqrt()).collect();
            let mut sums: Vec<f32> = (0..lanes).map(|lane| lane as f32 / 3.0).collect();
            let wanted: Vec<f32> = (0..lanes)
                .map(|lane| {
                    (0..5).fold(sums[lane], |sum, i| factors[2 * i].mul_add(rows[40 * i + lane], sum))
                })
                .collect();
            let own = sums.as_mut_ptr();
            // SAFETY: five of ten factors, and of each of five rows of 40 the first `lanes`.
            unsafe { function(own, own, factors.as_ptr(), rows.as_ptr(), strides(8, 160), 5) };
            assert_eq!(sums, wanted);
        }
    }
}
