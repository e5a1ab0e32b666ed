//! What makes a session outlive its connections: each direction is one stream of bytes with
//! positions.
//!
//! The sender keeps what the receiver has not acknowledged ([`SendBuffer`]). After a cut both sides
//! say how many bytes they have received, in any frame's middle, and both continue to send from
//! there, on a new connection. So nothing is lost and nothing arrives twice, and the layers above
//! never know.
//!
//! ```text
//!  start                      next                end
//!    | sent, not acknowledged   | not sent yet      |     end - start >= window: the sender waits
//!    +--------------------------+-------------------+
//!    ^ acknowledge: start moves ^ sent: next moves  ^ append, lend: end moves
//!      resume: both move to where the receiver is
//! ```
//!
//! Acknowledgements are frames of kind `Received` inside the opposite stream, one for
//! [`ACKNOWLEDGE_EVERY`] bytes at least. They are sent also when the window is full, or two full
//! windows would wait for each other.
//!
//! The window begins with [`WINDOW`] and grows with what the link holds ([`pace`]), up to
//! [`WINDOW_MAX`]. Both are the same on both sides, so that neither has to say what is in force: a
//! receiver is ready for the largest. Only what is large may fill it: frames below [`LARGE`] wait
//! once `WINDOW` bytes of them are unacknowledged, since many small ones take the receiver many
//! times their bytes.

mod pace;
mod slowness;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::Instant;

use self::pace::Pace;
use crate::error::WireError;

/// The least window: a sender with fewer unacknowledged bytes never waits.
pub const WINDOW: u64 = 8 << 20;
/// The largest window, which a link of 10 Gb/s fills at a round trip of 107 ms.
pub const WINDOW_MAX: u64 = 128 << 20;
/// What is added at once and has this number of bytes may use the whole window.
pub const LARGE: usize = 64 << 10;
/// A receiver acknowledges after this many bytes.
pub const ACKNOWLEDGE_EVERY: u64 = 1 << 20;
/// Bytes that are collected in one piece of memory.
const PIECE: usize = 64 << 10;
/// Most memory that is kept for reuse.
const SPARE_BYTES_MAX: usize = 4 << 20;

/// Bytes in flight to the peer, until it has acknowledged them. `B` is memory that is sent as it
/// is, without a copy.
#[derive(Debug)]
pub struct SendBuffer<B> {
    pieces: VecDeque<Piece<B>>,
    /// Position of the first byte in `pieces`; everything before has been acknowledged.
    start: u64,
    /// Position of the first byte that this connection has not taken.
    next: u64,
    /// The piece with the byte at `next`, and the byte's place in it.
    place: (usize, usize),
    end: u64,
    /// Whether sent bytes are kept until they are acknowledged.
    keeps: bool,
    /// Bytes in `pieces` that came in small portions.
    small: u64,
    pace: Pace,
    spare: Vec<Vec<u8>>,
}

#[derive(Debug)]
enum Piece<B> {
    /// Collected bytes, and how many of them came in small portions.
    Copied(Vec<u8>, u64),
    Lent(B),
}

impl<B: AsRef<[u8]>> Piece<B> {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Copied(bytes, _) => bytes,
            Piece::Lent(bytes) => bytes.as_ref(),
        }
    }

    fn small(&self) -> u64 {
        match self {
            Piece::Copied(_, small) => *small,
            Piece::Lent(_) => 0,
        }
    }
}

impl<B: AsRef<[u8]>> SendBuffer<B> {
    /// A stream that continues at `position`: what is before has arrived already. One that cannot
    /// be resumed does not keep what was sent.
    pub fn new(position: u64, keeps: bool) -> SendBuffer<B> {
        SendBuffer {
            pieces: VecDeque::new(),
            start: position,
            next: position,
            place: (0, 0),
            end: position,
            keeps,
            small: 0,
            pace: Pace::from(position),
            spare: vec![Vec::with_capacity(2 * PIECE)],
        }
    }

    /// Whether sent bytes are kept until they are acknowledged.
    pub fn keeps(&self) -> bool {
        self.keeps
    }

    /// Adds what `write` appends.
    pub fn append<T>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        if !matches!(self.pieces.back(), Some(Piece::Copied(bytes, _)) if bytes.len() < PIECE) {
            self.pieces.push_back(Piece::Copied(self.spare.pop().unwrap_or_default(), 0));
        }
        let Some(Piece::Copied(bytes, small)) = self.pieces.back_mut() else { unreachable!("pushed above") };
        let before = bytes.len();
        let written = write(bytes);
        let count = bytes.len() - before;
        if count < LARGE {
            *small += count as u64;
            self.small += count as u64;
        }
        self.end += count as u64;
        written
    }

    /// Adds memory that is held until the peer has it.
    pub fn lend(&mut self, bytes: B) {
        self.end += bytes.as_ref().len() as u64;
        self.pieces.push_back(Piece::Lent(bytes));
    }

    /// Calls `change` with all memory that is held, which it may replace by other memory of the
    /// same bytes.
    pub fn for_each_lent(&mut self, mut change: impl FnMut(&mut B)) {
        for piece in &mut self.pieces {
            if let Piece::Lent(bytes) = piece {
                let before = bytes.as_ref().len();
                change(bytes);
                debug_assert_eq!(bytes.as_ref().len(), before, "positions in the stream stay what they are");
            }
        }
    }

    /// Bytes that this connection has not taken yet.
    pub fn unsent(&self) -> u64 {
        self.end - self.next
    }

    /// Fills `parts` with the beginning of what is to be sent next; the answer is how many of them.
    pub fn next_parts<'a>(&'a self, parts: &mut [IoSlice<'a>]) -> usize {
        let (index, offset) = self.place;
        let rest = self.pieces.iter().skip(index).map(Piece::bytes).enumerate();
        let rest = rest.map(|(nth, bytes)| if nth == 0 { &bytes[offset..] } else { bytes });
        let mut count = 0;
        for (part, bytes) in parts.iter_mut().zip(rest.filter(|bytes| !bytes.is_empty())) {
            *part = IoSlice::new(bytes);
            count += 1;
        }
        count
    }

    /// The connection has taken this many bytes.
    pub fn sent(&mut self, count: usize) {
        self.next = (self.next + count as u64).min(self.end);
        let (mut index, mut offset) = self.place;
        offset += count;
        // A piece that is sent to its end may still grow.
        while index + 1 < self.pieces.len() && offset >= self.pieces[index].bytes().len() {
            offset -= self.pieces[index].bytes().len();
            index += 1;
        }
        self.place = (index, offset);
        if self.keeps {
            self.pace.sent(self.next, self.next == self.end, self.start, Instant::now);
        } else {
            self.release(self.next);
        }
    }

    /// Bytes that may be unacknowledged.
    pub fn window(&self) -> u64 {
        self.pace.window()
    }

    /// Whether the link is slower than large data can be packed, and so slow that packing gains.
    pub fn is_slow(&self) -> bool {
        self.keeps && self.pace.is_slow()
    }

    /// Counts bytes that have been packed.
    pub fn packed(&mut self, bytes: u64) {
        self.pace.packed(bytes);
    }

    /// Whether the sender has to wait for an acknowledgement.
    pub fn is_full(&self) -> bool {
        self.keeps && (self.end - self.start >= self.window() || !self.has_room_for_small())
    }

    /// Whether few enough bytes of what is small are unacknowledged. With more of them than that
    /// the peer acknowledges some as soon as it reads.
    pub fn has_room_for_small(&self) -> bool {
        !self.keeps || self.small < WINDOW
    }

    /// The least position whose acknowledgement leaves room for more.
    pub fn room_after(&self) -> u64 {
        if !self.keeps {
            return 0;
        }
        let (mut small, mut position) = (self.small, self.start);
        for piece in &self.pieces {
            if small < WINDOW {
                break;
            }
            small -= piece.small();
            position += piece.bytes().len() as u64;
        }
        position.max((self.end + 1).saturating_sub(self.window()))
    }

    /// Position after the last byte so far.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The peer has everything before `position`. An acknowledgement that came late changes
    /// nothing. It may have more than counts as sent: what a connection has taken in part. Where
    /// nothing is kept, the peer says with it that it is there, and no more.
    pub fn acknowledge(&mut self, position: u64) -> Result<(), WireError> {
        if !self.keeps {
            return Ok(());
        }
        if position > self.end {
            return Err(WireError::Value { what: "an acknowledgement", value: position });
        }
        let position = position.min(self.next);
        self.pace.acknowledged(position, Instant::now);
        self.release(position);
        Ok(())
    }

    /// Continues from `position` on another connection. Nothing has changed after an error.
    pub fn resume(&mut self, position: u64) -> Result<(), WireError> {
        if position < self.start || position > self.end {
            return Err(WireError::Value { what: "a position to resume at", value: position });
        }
        self.release(position);
        // Another connection may be another way.
        self.pace = Pace::from(position);
        self.next = position;
        self.place = (0, (position - self.start) as usize);
        self.sent(0);
        Ok(())
    }

    /// The bytes that are still held, piece by piece.
    pub fn held(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(Piece::bytes)
    }

    /// Memory that is held and is sent as it is.
    pub fn lent(&self) -> impl Iterator<Item = &B> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Lent(bytes) => Some(bytes),
            Piece::Copied(..) => None,
        })
    }

    /// Position of the first byte that is still held.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Forgets everything, after the last connection has ended.
    pub fn abandon(&mut self) {
        self.pieces.clear();
        self.small = 0;
        self.place = (0, 0);
        (self.start, self.next) = (self.end, self.end);
    }

    /// Lets go of whole pieces before `position`.
    fn release(&mut self, position: u64) {
        while let Some(piece) = self.pieces.front() {
            let size = piece.bytes().len() as u64;
            if self.start + size > position {
                return;
            }
            self.start += size;
            self.small -= piece.small();
            if let Some(Piece::Copied(bytes, _)) = self.pieces.pop_front() {
                self.reuse(bytes);
            }
            self.place = match self.place {
                (0, _) => (0, 0),
                (index, offset) => (index - 1, offset),
            };
        }
    }

    fn reuse(&mut self, mut bytes: Vec<u8>) {
        let spare: usize = self.spare.iter().map(Vec::capacity).sum();
        if spare + bytes.capacity() <= SPARE_BYTES_MAX {
            bytes.clear();
            self.spare.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests;
