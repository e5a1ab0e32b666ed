//! Copies between memory whose ends are not aligned alike.
//!
//! From a few KiB on the C library copies with `rep movsb`. Where source and target lie at different places of their cache lines, as
//! data behind a frame's header in a ring do, AMD's processors take two to three times as long for that as for a loop over words
//! (`docs/benchmarks.md`, "Remoting").

/// Below this the C library has loops of its own, and above it goes past the cache, however its ends are aligned.
const COPIED_BY_WORDS: std::ops::Range<usize> = 4 << 10..8 << 20;
/// Bytes of a cache line.
const LINE: usize = 64;

/// As [`std::ptr::copy`], of bytes.
///
/// # Safety
/// As for [`std::ptr::copy`].
pub unsafe fn copy(from: *const u8, to: *mut u8, count: usize) {
    let are_apart = from.addr().abs_diff(to.addr()) >= count;
    let are_alike = from.addr() % LINE == to.addr() % LINE;
    if cfg!(target_arch = "x86_64") && COPIED_BY_WORDS.contains(&count) && are_apart && !are_alike {
        // SAFETY: the caller's promise, and the ends do not overlap.
        unsafe { copy_by_words(from, to, count) }
    } else {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy(from, to, count) }
    }
}

/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
#[cfg(target_arch = "x86_64")]
unsafe fn copy_by_words(from: *const u8, to: *mut u8, count: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_store_si128};
    const WORD: usize = size_of::<__m128i>();
    let head = to.align_offset(LINE).min(count);
    let lines = (count - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: all places are below `count`, so the caller's promise covers them; stores are aligned, since the target is from `head` on.
    // Every x86-64 processor has these instructions (SSE2).
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for line in 0..lines {
            let at = head + line * LINE;
            let word = |index: usize| _mm_loadu_si128(from.add(at + index * WORD).cast());
            let words = [word(0), word(1), word(2), word(3)];
            for (index, word) in words.into_iter().enumerate() {
                _mm_store_si128(to.add(at + index * WORD).cast(), word);
            }
        }
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), count - tail);
    }
}

/// # Safety
/// As for [`std::ptr::copy`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_by_words(from: *const u8, to: *mut u8, count: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy(from, to, count) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_copied_is_what_the_standard_library_copies(
            from in 0..200_usize,
            to in 0..40_000_usize,
            count in prop_oneof![0..300_usize, 4_000..5_000_usize, 0..30_000_usize],
        ) {
            let mut bytes: Vec<u8> = (0..80_000_u32).map(|i| (i % 251) as u8).collect();
            let mut expected = bytes.clone();
            expected.copy_within(from..from + count, to);
            // SAFETY: both ends lie within the vector.
            unsafe { copy(bytes.as_ptr().add(from), bytes.as_mut_ptr().add(to), count) };
            prop_assert!(bytes == expected);
        }
    }
}
