//! Elements of lanes, and their channels.

use sluice_ir::texture::{Channel, PlainRead};

use super::{Chunk, each};

/// The elements that lanes read, one word of each at a time.
pub(super) struct Elements<'r, const N: usize> {
    read: &'r PlainRead,
    /// From the first byte of the image.
    offsets: &'r Chunk<u32, N>,
    /// The word of each that was read last, and its number.
    last: Option<(usize, Chunk<u32, N>)>,
}

impl<'r, const N: usize> Elements<'r, N> {
    #[inline(always)]
    pub(super) fn new(read: &'r PlainRead, offsets: &'r Chunk<u32, N>) -> Elements<'r, N> {
        Elements { read, offsets, last: None }
    }

    /// A channel of each element: integers, or the bits of floats.
    ///
    /// # Safety
    /// The image can be read, and elements at all offsets are inside.
    #[inline(always)]
    pub(super) unsafe fn channel(&mut self, channel: usize) -> Chunk<u32, N> {
        if channel >= usize::from(self.read.channels) {
            return [self.read.absent[channel % 4]; N];
        }
        let first_byte = channel * self.read.channel.bytes() as usize;
        let number = first_byte / 4;
        let words = match self.last {
            Some((known, words)) if known == number => words,
            // SAFETY: by this function's contract.
            _ => unsafe { self.word(number) },
        };
        self.last = Some((number, words));
        values(self.read, &words, 8 * (first_byte % 4) as u32)
    }

    /// The word of this number of each element; of shorter elements, all of it.
    ///
    /// # Safety
    /// As [`Elements::channel`]; the channel is in this word.
    #[inline(always)]
    unsafe fn word(&self, number: usize) -> Chunk<u32, N> {
        let base = self.read.base + 4 * number as u64;
        let element = self.read.channel.bytes() as usize * usize::from(self.read.channels);
        // SAFETY: by this function's contract.
        unsafe {
            match element {
                1 => gather::<1, u8, N>(base, self.offsets),
                2 => gather::<2, u16, N>(base, self.offsets),
                4 => gather::<4, u32, N>(base, self.offsets),
                8 => gather::<8, u32, N>(base, self.offsets),
                _ => gather::<16, u32, N>(base, self.offsets),
            }
        }
    }
}

/// What lies at each offset from an address, in elements of `BYTES`.
///
/// # Safety
/// Memory at all the places can be read.
#[inline(always)]
unsafe fn gather<const BYTES: u32, T: Copy + Into<u32>, const N: usize>(
    base: u64,
    offsets: &Chunk<u32, N>,
) -> Chunk<u32, N> {
    let neighbours: Chunk<u32, N> = each(|lane| offsets[0].wrapping_add(BYTES * lane as u32));
    if neighbours == *offsets {
        let first = (base + u64::from(offsets[0])) as *const u8;
        // SAFETY: by this function's contract: it is the lane's own place.
        each(|lane| unsafe { first.add(BYTES as usize * lane).cast::<T>().read_unaligned() }.into())
    } else {
        each(|lane| {
            let place = (base + u64::from(offsets[lane])) as *const T;
            // SAFETY: by this function's contract.
            unsafe { place.read_unaligned() }.into()
        })
    }
}

/// A channel, from the words that hold it from bit `shift` on.
#[inline(always)]
fn values<const N: usize>(read: &PlainRead, words: &Chunk<u32, N>, shift: u32) -> Chunk<u32, N> {
    // The kind is a constant in each loop.
    macro_rules! all {
        ($channel:ident, $is_float:literal) => {
            each(|lane| Channel::$channel.value(words[lane] >> shift, $is_float))
        };
    }
    match (read.channel, read.is_float) {
        (Channel::U32 | Channel::S32 | Channel::F32, _) => *words,
        (Channel::F16, _) => all!(F16, true),
        (Channel::U8, true) => all!(U8, true),
        (Channel::U8, false) => all!(U8, false),
        (Channel::S8, true) => all!(S8, true),
        (Channel::S8, false) => all!(S8, false),
        (Channel::U16, true) => all!(U16, true),
        (Channel::U16, false) => all!(U16, false),
        (Channel::S16, true) => all!(S16, true),
        (Channel::S16, false) => all!(S16, false),
    }
}
