//! Memory that program and device both use while device code runs: finding what one side has
//! changed, telling it, and making it the other side's.
//!
//! Each side has memory of its own, and a copy of what both had when they last agreed. What differs
//! from that copy was changed here. It travels as aligned words of eight bytes with a mask of the
//! bytes that changed, and the other side puts those bytes in with one atomic exchange of the word:
//! a counter is never seen half written, and what that side writes into the rest of the word stays.
//!
//! # Order
//!
//! Program and device hand each other data by writing them and then a flag. The flag must not be
//! seen before its data. A look at memory takes time, and shows neither a moment nor in which order
//! words were written, so two things are needed: what is sent together has to have its causes with
//! it, and what is applied together has to be applied causes first.
//!
//! - *Fences.* Where the writer says that what it has written comes before what it writes next, and
//!   can be held up there (the software GPU, at a fence or a release of system scope), it continues
//!   only after a look that began later. What is before the fence is then in an earlier look than
//!   what is behind it, and looks are applied one after the other: nothing else is needed.
//! - *Two looks that agree.* A processor's stores cannot be held up. But what was seen in one look
//!   has all its causes in every look that begins after it. When two looks in a row find the same,
//!   that is a state in which each flag has its data ([`capture`]).
//! - *A stream of changes* must not keep a flag back for ever. After [`LOOKS_MAX`] looks only those
//!   changes have to stand still that are few in their page, as flags are; what changes in many
//!   places of a page is taken for data, as the last look saw it. So it is right unless a flag lies
//!   among data that keep changing.
//! - *Data first.* Words of one capture are applied in this order: long runs, then what else has
//!   changed in pages with many changes, then the rest, and of each kind first where more bytes
//!   have changed. A thread that reads while they are being applied, and cannot be held up, is
//!   right if the flag is a counter or the like, of which few bytes change, and does not lie right
//!   before its data.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::codec::{Decode, Encode, Reader};
use crate::error::WireError;

/// Bytes of a word.
pub const WORD: usize = size_of::<u64>();
/// Most bytes of a session's memory that is kept equal like this: a change of all of it takes
/// several times as much for a moment.
pub const LIVE_BYTES_MAX: u64 = 32 << 20;
/// Words that are compared at a time.
const LINE: usize = 8;
/// Words of a page.
const PAGE: u32 = 512;
/// More changed words make all of a page data.
const FLAGS_MAX: usize = 8;
/// Looks in the hope that nothing changes meanwhile, and after that in the hope that no flag does.
pub const LOOKS_MAX: usize = 8;
/// Most bytes of words that are sent in one message.
const PART: usize = 256 << 10;

/// A word that was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// The memory that it is in.
    pub mirror: u32,
    /// Its place there, in words.
    pub index: u32,
    /// Which of its bytes were changed, as a bit for each.
    pub mask: u8,
    /// All of it.
    pub value: u64,
}

/// Memory that others may write to at any time.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: it is read and written with atomic operations only.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// `None` unless `start` is a multiple of eight.
    ///
    /// # Safety
    /// `bytes` bytes from there on can be read and written for as long as the value and its copies
    /// are used.
    pub unsafe fn new(start: *mut u8, bytes: usize) -> Option<Memory> {
        start.cast::<u64>().is_aligned().then_some(Memory { start, bytes })
    }

    /// Whole words.
    fn words(&self) -> usize {
        self.bytes / WORD
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.words());
        // SAFETY: the word is inside, aligned, and there by the contract of `new`.
        unsafe { AtomicU64::from_ptr(self.start.cast::<u64>().add(index)) }
    }

    /// Bytes behind the last whole word, and where they begin.
    fn rest(&self) -> (usize, usize) {
        (self.words() * WORD, self.bytes % WORD)
    }

    /// A word, or the bytes behind the last one.
    fn load(&self, index: usize) -> u64 {
        // Acquire: words are read in the order in which they are asked for.
        if index < self.words() {
            return self.word(index).load(Ordering::Acquire);
        }
        let (start, count) = self.rest();
        let mut bytes = [0; WORD];
        for (at, byte) in bytes.iter_mut().enumerate().take(count) {
            // SAFETY: as for whole words.
            *byte = unsafe { self.start.add(start + at).read_volatile() };
        }
        u64::from_le_bytes(bytes)
    }

    /// Puts the bytes of `mask` into a word, and leaves the others to a thread that writes them
    /// now.
    fn store(&self, index: usize, mask: u8, value: u64) {
        let bits = bits_of(mask);
        if index < self.words() {
            let word = self.word(index);
            if mask == u8::MAX {
                return word.store(value, Ordering::Release);
            }
            let put = |old: u64| Some(old & !bits | value & bits);
            // What is returned is the word as it was.
            let _ = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, put);
            return;
        }
        let (start, count) = self.rest();
        for (at, byte) in value.to_le_bytes().into_iter().enumerate().take(count) {
            if mask & 1 << at != 0 {
                // SAFETY: as for whole words.
                unsafe { self.start.add(start + at).write_volatile(byte) };
            }
        }
    }

    /// Finds the words that differ from what both sides had, in the order of their addresses.
    pub fn look(&self, mirror: u32, agreed: &[u8], found: &mut Vec<Word>) {
        let agreed = &agreed[..self.bytes];
        let mut lines = agreed.chunks_exact(LINE * WORD);
        for (line, before) in (&mut lines).enumerate() {
            let first = line * LINE;
            let differs = before.chunks_exact(WORD).enumerate().fold(0, |differs, (at, word)| {
                differs | (self.word(first + at).load(Ordering::Acquire) ^ word_of(word))
            });
            if differs != 0 {
                self.look_closely(mirror, first, before, found);
            }
        }
        let first = agreed.len() / (LINE * WORD) * LINE;
        self.look_closely(mirror, first, lines.remainder(), found);
    }

    fn look_closely(&self, mirror: u32, first: usize, before: &[u8], found: &mut Vec<Word>) {
        for (at, before) in before.chunks(WORD).enumerate() {
            let value = self.load(first + at);
            let mask = mask_of(value ^ word_of(before));
            if mask != 0 {
                found.push(Word { mirror, index: (first + at) as u32, mask, value });
            }
        }
    }

    /// Makes words of the other side's this side's, too. False if there is no such word.
    pub fn apply(&self, agreed: &mut [u8], word: &Word) -> bool {
        if word.index as usize >= self.bytes.div_ceil(WORD) {
            return false;
        }
        self.store(word.index as usize, word.mask, word.value);
        agree(agreed, word);
        true
    }
}

/// Notes that the other side has this word, or that it is being sent.
pub fn agree(agreed: &mut [u8], word: &Word) {
    let start = word.index as usize * WORD;
    let bytes = agreed[start..].iter_mut().zip(word.value.to_le_bytes()).enumerate();
    for (at, (old, new)) in bytes.take(WORD) {
        if word.mask & 1 << at != 0 {
            *old = new;
        }
    }
}

fn word_of(bytes: &[u8]) -> u64 {
    match bytes.first_chunk() {
        Some(word) => u64::from_le_bytes(*word),
        None => {
            let mut word = [0; WORD];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        }
    }
}

fn mask_of(difference: u64) -> u8 {
    let differs = |mask, (at, byte): (usize, &u8)| mask | u8::from(*byte != 0) << at;
    difference.to_le_bytes().iter().enumerate().fold(0, differs)
}

fn bits_of(mask: u8) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|at| if mask & 1 << at != 0 { u8::MAX } else { 0 }))
}

/// What a writer that cannot be held up has changed, as `look` finds it: with all its causes, and
/// in the order in which it is to be applied. See [the module](self).
pub fn capture(mut look: impl FnMut() -> Vec<Word>) -> Vec<Word> {
    let mut before = look();
    if before.is_empty() {
        return before;
    }
    for _ in 0..LOOKS_MAX {
        let now = look();
        if now == before {
            return data_first(now);
        }
        before = now;
    }
    for _ in 0..LOOKS_MAX {
        let now = look();
        if Split::of(&now).flags == Split::of(&before).flags {
            return data_first(now);
        }
        before = now;
    }
    // Some flag changes at each look, as a clock does: it has its causes as it was before the last
    // one. A flag that is new is left for later.
    let now = look();
    let (Split { data: old, flags }, Split { data, flags: left }) = (Split::of(&before), Split::of(&now));
    let place = |word: &Word| (word.mirror, word.index);
    let [flagged, known] = [&flags, &old].map(|words| words.iter().map(place).collect::<HashSet<_>>());
    let data = data.iter().filter(|word| !flagged.contains(&place(word)));
    // Of a page that has fewer changes than before, since some were undone.
    let remains = left.iter().filter(|word| known.contains(&place(word)));
    data_first(data.chain(remains).chain(&flags).copied().collect())
}

/// Changes that are many in their page, and changes that are few.
struct Split {
    data: Vec<Word>,
    flags: Vec<Word>,
}

impl Split {
    /// Of words in the order of their addresses.
    fn of(words: &[Word]) -> Split {
        let mut split = Split { data: Vec::new(), flags: Vec::new() };
        for page in words.chunk_by(|a, b| (a.mirror, a.index / PAGE) == (b.mirror, b.index / PAGE)) {
            let kind = if page.len() > FLAGS_MAX { &mut split.data } else { &mut split.flags };
            kind.extend_from_slice(page);
        }
        split
    }
}

/// Orders changes as they are to be applied.
pub fn data_first(mut words: Vec<Word>) -> Vec<Word> {
    words.sort_by_key(|word| (word.mirror, word.index));
    let (long, short): (Vec<&[Word]>, Vec<&[Word]>) =
        words.chunk_by(follows).partition(|run| run.len() > FLAGS_MAX);
    // Beside a long run a page's other words may well be flags.
    let Split { data, flags } = Split::of(&short.concat());
    let mut ordered = long.concat();
    for words in [data, flags] {
        let mut runs: Vec<&[Word]> = words.chunk_by(follows).collect();
        runs.sort_by_key(|run| std::cmp::Reverse(run.iter().map(|word| word.mask.count_ones()).sum::<u32>()));
        ordered.extend(runs.into_iter().flatten());
    }
    ordered
}

fn follows(a: &Word, b: &Word) -> bool {
    a.mirror == b.mirror && b.index == a.index.wrapping_add(1)
}

/// Words as bytes, in parts that fit into a message each and are applied in this order.
pub fn tell(words: &[Word]) -> Vec<Vec<u8>> {
    let mut parts: Vec<Vec<u8>> = Vec::new();
    for run in words.chunk_by(follows).flat_map(|run| run.chunks(PAGE as usize)) {
        if parts.last().is_none_or(|part| part.len() > PART) {
            parts.push(Vec::new());
        }
        let Some(part) = parts.last_mut() else { continue };
        for number in [run[0].mirror, run[0].index, run.len() as u32] {
            number.encode(part);
        }
        part.extend(run.iter().map(|word| word.mask));
        run.iter().for_each(|word| word.value.encode(part));
    }
    parts
}

/// Reads what [`tell`] wrote, word by word.
pub fn told(part: &[u8], mut each: impl FnMut(Word)) -> Result<(), WireError> {
    let mut reader = Reader::new(part);
    while reader.end().is_err() {
        let [mirror, first, count] =
            [u32::decode(&mut reader)?, u32::decode(&mut reader)?, u32::decode(&mut reader)?];
        let Some(end) = first.checked_add(count) else {
            return Err(WireError::Value { what: "the end of a run of words", value: first.into() });
        };
        let masks = reader.take(count as usize)?;
        let bytes = (count as usize).checked_mul(WORD).ok_or(WireError::Truncated)?;
        let values = reader.take(bytes)?.chunks_exact(WORD);
        for ((index, &mask), value) in (first..end).zip(masks).zip(values) {
            each(Word { mirror, index, mask, value: word_of(value) });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
