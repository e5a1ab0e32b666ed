//! Copies between memory whose ends are not aligned alike, and copies with non-temporal stores.
//!
//! From a few KiB on the C library copies with `rep movsb`. Where source and target lie at
//! different places of their cache lines, as data behind a frame's header in a ring do, AMD's
//! processors take two to three times as long for that as for a loop over words.
//!
//! Where the core that writes and the core that reads share no cache, a line that one has written
//! is fetched out of the other's, and non-temporal stores are two to three times as fast; where
//! they share one it is the other way round (`docs/benchmarks/calls.md`). A caller that
//! knows which it is says so around the copies ([`with`]).

use std::cell::Cell;

/// What stores of large copies do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stores {
    #[default]
    ThroughCaches,
    PastCaches,
}

/// Below this the C library has loops of its own, and above it goes past the cache, however its
/// ends are aligned.
const COPIED_BY_WORDS: std::ops::Range<usize> = 4 << 10..8 << 20;
/// Smaller copies never use non-temporal stores: their data are read soon.
const PAST_CACHES_MIN: usize = 32 << 10;
/// Bytes of a cache line.
const LINE: usize = 64;

thread_local! {
    static STORES: Cell<Stores> = const { Cell::new(Stores::ThroughCaches) };
}

/// Large copies that `work` makes in this thread have such stores.
pub fn with<R>(stores: Stores, work: impl FnOnce() -> R) -> R {
    /// What was said before, also after a panic.
    struct Before(Stores);
    impl Drop for Before {
        fn drop(&mut self) {
            STORES.set(self.0);
        }
    }
    let _before = Before(STORES.replace(stores));
    work()
}

/// What large copies of this thread do now.
pub fn stores() -> Stores {
    STORES.get()
}

/// As [`std::ptr::copy`], of bytes.
///
/// # Safety
/// As for [`std::ptr::copy`].
pub unsafe fn copy(from: *const u8, to: *mut u8, count: usize) {
    let are_apart = from.addr().abs_diff(to.addr()) >= count;
    let are_alike = from.addr() % LINE == to.addr() % LINE;
    if cfg!(target_arch = "x86_64") && are_apart && count >= PAST_CACHES_MIN && stores() == Stores::PastCaches
    {
        // SAFETY: the caller's promise, and the ends do not overlap.
        unsafe { copy_by_words::<true>(from, to, count) }
    } else if cfg!(target_arch = "x86_64") && are_apart && COPIED_BY_WORDS.contains(&count) && !are_alike {
        // SAFETY: as above.
        unsafe { copy_by_words::<false>(from, to, count) }
    } else {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy(from, to, count) }
    }
}

/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
#[cfg(target_arch = "x86_64")]
unsafe fn copy_by_words<const PAST_CACHES: bool>(from: *const u8, to: *mut u8, count: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_store_si128, _mm_stream_si128};
    const WORD: usize = size_of::<__m128i>();
    let head = to.align_offset(LINE).min(count);
    let lines = (count - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: all places are below `count`, so the caller's promise covers them; stores are
    // aligned, since the target is from `head` on. Every x86-64 processor has these instructions
    // (SSE2). The non-temporal stores are ordered before all later stores.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for line in 0..lines {
            let at = head + line * LINE;
            let word = |index: usize| _mm_loadu_si128(from.add(at + index * WORD).cast());
            let words = [word(0), word(1), word(2), word(3)];
            for (index, word) in words.into_iter().enumerate() {
                let to = to.add(at + index * WORD).cast();
                if PAST_CACHES { _mm_stream_si128(to, word) } else { _mm_store_si128(to, word) }
            }
        }
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), count - tail);
        if PAST_CACHES {
            _mm_sfence();
        }
    }
}

/// # Safety
/// As for [`std::ptr::copy`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_by_words<const PAST_CACHES: bool>(from: *const u8, to: *mut u8, count: usize) {
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
            to in 0..80_000_usize,
            count in prop_oneof![0..300_usize, 4_000..5_000_usize, 0..40_000_usize, PAST_CACHES_MIN..40_000],
            stores in prop_oneof![Just(Stores::ThroughCaches), Just(Stores::PastCaches)],
        ) {
            let mut bytes: Vec<u8> = (0..120_000_u32).map(|i| (i % 251) as u8).collect();
            let mut expected = bytes.clone();
            expected.copy_within(from..from + count, to);
            // SAFETY: both ends lie within the vector.
            with(stores, || unsafe { copy(bytes.as_ptr().add(from), bytes.as_mut_ptr().add(to), count) });
            prop_assert!(bytes == expected);
        }
    }

    #[test]
    fn what_was_said_of_stores_ends_with_its_work() {
        let failed = std::panic::catch_unwind(|| with(Stores::PastCaches, || panic!("in the work")));
        assert!(failed.is_err());
        assert_eq!(stores(), Stores::ThroughCaches);
        with(Stores::PastCaches, || assert_eq!(stores(), Stores::PastCaches));
    }
}
