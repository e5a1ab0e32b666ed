//! Which bytes of a page have changed.

use std::ops::Range;

/// A page that has changed in more places than this is sent whole.
const CHANGES_MAX: usize = 16;

/// Where `new` differs from `old`; everywhere, if that is in many places.
pub(super) fn changes(old: &[u8], new: &[u8]) -> Vec<Range<usize>> {
    if old == new {
        return Vec::new();
    }
    let changes: Vec<_> = differences(old, new).take(CHANGES_MAX + 1).collect();
    if changes.len() > CHANGES_MAX { std::iter::once(0..new.len()).collect() } else { changes }
}

/// The runs of bytes in which two pages of one size differ.
pub(super) fn differences(old: &[u8], new: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + old[at..].iter().zip(&new[at..]).position(|(old, new)| old != new)?;
        let same = old[start..].iter().zip(&new[start..]).position(|(old, new)| old == new);
        at = same.map_or(new.len(), |length| start + length);
        Some(start..at)
    })
}
