//! The sender: finds for each command one that was sent before, and says what changed.
//!
//! First comes the command at the cursor, which is right for as long as the program repeats itself.
//! Where that is of another kind, or much of it changed, two tables name others: the last one that
//! followed the same two commands, and the last one of the same kind. What a kind is, and which
//! candidate is taken, is the sender's business alone.

use super::history::History;
use super::{
    CHANGED, COMMAND_SIZE_MAX, ELSEWHERE, EXPANSION_MAX, HEAD_SIZE, NEW, PREFIX_SIZE, SAME, put_number,
};
use crate::error::WireError;
use crate::frame::{HEADER_SIZE, Header, Kind};

/// Entries of each table, a power of two.
const TABLE: usize = 4 << 10;
/// With changes of no more bytes the command at the cursor is taken without a look at others.
const GOOD_ENOUGH: usize = 16;
/// A larger buffer is not kept.
const SPARE_BYTES_MAX: usize = 64 << 10;

/// Makes frames of kind `Commands` of commands.
#[derive(Debug)]
pub struct Recogniser {
    history: History,
    cursor: u64,
    /// The number after that of the last command which followed these two kinds, and which was of
    /// this kind; 0 for none.
    after: Vec<u64>,
    of_kind: Vec<u64>,
    /// The kinds of the last two commands.
    last: [u64; 2],
    /// The frame that is being made.
    open: Option<Open>,
    entries: Vec<u8>,
    /// The command as a frame.
    frame: Vec<u8>,
    changes: [Vec<u8>; 2],
    told: u64,
}

#[derive(Debug)]
struct Open {
    lane: u32,
    first: u64,
    next: u64,
    /// Commands at the cursor that no entry tells yet.
    same: u64,
    /// Bytes of its commands' frames.
    bytes: usize,
}

/// The best encoding of a command.
struct Best {
    number: u64,
    changes: u64,
    /// Bytes that it takes.
    size: usize,
}

impl Default for Recogniser {
    fn default() -> Recogniser {
        Recogniser::new()
    }
}

impl Recogniser {
    pub fn new() -> Recogniser {
        Recogniser {
            history: History::new(),
            cursor: 0,
            after: vec![0; TABLE],
            of_kind: vec![0; TABLE],
            last: [0; 2],
            open: None,
            entries: Vec::new(),
            frame: Vec::new(),
            changes: [Vec::new(), Vec::new()],
            told: 0,
        }
    }

    /// Bytes of the commands' frames that ended frames of `Commands` tell, since the session began.
    pub fn told(&self) -> u64 {
        self.told
    }

    /// Bytes of the commands' frames that are in the frame being made.
    pub fn pending(&self) -> usize {
        self.open.as_ref().map_or(0, |open| open.bytes)
    }

    /// Writes a command as a frame of its own, which [`Recogniser::add`] then delta encodes.
    pub fn write(&mut self, header: Header, payload: impl FnOnce(&mut Vec<u8>)) -> Result<&[u8], WireError> {
        self.frame.clear();
        self.frame.shrink_to(SPARE_BYTES_MAX);
        header.frame(&mut self.frame, payload)?;
        Ok(&self.frame)
    }

    /// Adds the command that was written last, of this header. Frames of `Commands` that it ends,
    /// and the command itself where it is too large to be remembered, are appended to `out`.
    pub fn add(&mut self, header: Header, out: &mut Vec<u8>) -> Result<(), WireError> {
        let size = self.frame.len();
        if size > COMMAND_SIZE_MAX {
            self.end(out)?;
            out.extend_from_slice(&self.frame);
            return Ok(());
        }
        let goes_on = |open: &Open| {
            open.lane == header.lane && open.next == header.sequence && open.bytes + size <= EXPANSION_MAX
        };
        if !self.open.as_ref().is_some_and(goes_on) {
            self.end(out)?;
        }
        let (lane, first) = (header.lane, header.sequence);
        let open = self.open.get_or_insert(Open { lane, first, next: first, same: 0, bytes: 0 });
        open.next = open.next.wrapping_add(1);
        open.bytes += size;
        self.tell(header);
        Ok(())
    }

    /// Appends the frame that is being made, if there is one.
    pub fn end(&mut self, out: &mut Vec<u8>) -> Result<(), WireError> {
        self.end_same();
        let Some(open) = self.open.take() else { return Ok(()) };
        self.told += open.bytes as u64;
        let (lane, sequence) = (open.lane, open.first);
        let header = Header { kind: Kind::Commands, device: 0, op: 0, lane, sequence };
        header.frame(out, |out| out.append(&mut self.entries))
    }

    /// Adds an entry for the command in `frame`.
    fn tell(&mut self, header: Header) {
        // Before the payload, in place of the end of the sequence, which the frame's header tells.
        let [low, high] = header.op.to_le_bytes();
        self.frame[HEAD_SIZE..HEADER_SIZE].copy_from_slice(&[header.device, low, high]);
        let command = &self.frame[HEAD_SIZE..];
        let kind = kind_of(command);
        let after = slot(self.last[0].rotate_left(7) ^ self.last[1]);
        let of_kind = slot(kind);
        if self.history.get(self.cursor) == Some(command) {
            if let Some(open) = &mut self.open {
                open.same += 1;
            }
            self.history.push_again(self.cursor);
        } else {
            self.end_same();
            self.tell_changes([self.after[after], self.of_kind[of_kind]]);
            self.history.push(&self.frame[HEAD_SIZE..]);
        }
        self.cursor += 1;
        let number = self.history.count();
        (self.after[after], self.of_kind[of_kind]) = (number, number);
        self.last = [self.last[1], kind];
    }

    /// Tells the command by the one that it is most like: that at the cursor, or one of these, each
    /// a number above its own.
    fn tell_changes(&mut self, others: [u64; 2]) {
        let command = &self.frame[HEAD_SIZE..];
        let [best_changes, changes] = &mut self.changes;
        let mut best = Best { number: self.cursor, changes: 0, size: command.len() };
        let mut is_known = false;
        for (nth, number) in [self.cursor + 1, others[0], others[1]].into_iter().enumerate() {
            let Some(number) = number.checked_sub(1) else { continue };
            let Some(old) = self.history.get(number).filter(|old| are_alike(old, command)) else { continue };
            // Another place costs its distance.
            let cost = if nth == 0 { 0 } else { 3 };
            changes.clear();
            let Some(count) = find_changes(old, command, changes, best.size.saturating_sub(cost)) else {
                continue;
            };
            best = Best { number, changes: count, size: changes.len() + cost };
            is_known = true;
            std::mem::swap(best_changes, changes);
            if best.size <= GOOD_ENOUGH {
                break;
            }
        }
        let out = &mut self.entries;
        if !is_known {
            put_number(out, (command.len() as u64) << 2 | NEW);
            out.extend_from_slice(command);
            return;
        }
        let what = if best.number == self.cursor { CHANGED } else { ELSEWHERE };
        put_number(out, best.changes << 2 | what);
        if what == ELSEWHERE {
            put_number(out, self.history.count() - best.number);
            self.cursor = best.number;
        }
        out.extend_from_slice(best_changes);
    }

    fn end_same(&mut self) {
        if let Some(open) = &mut self.open
            && open.same > 0
        {
            put_number(&mut self.entries, open.same << 2 | SAME);
            open.same = 0;
        }
    }
}

/// Bytes by which a kind is recognised: device, operation, and the payload's first, which mostly
/// are an object's number.
const KIND_BYTES: usize = PREFIX_SIZE + 8;

fn kind_of(command: &[u8]) -> u64 {
    let mut kind = [0; 16];
    let count = command.len().min(KIND_BYTES);
    kind[..count].copy_from_slice(&command[..count]);
    kind[12..].copy_from_slice(&(command.len() as u32).to_le_bytes());
    let number = u128::from_le_bytes(kind);
    spread(number as u64).rotate_left(32) ^ spread((number >> 64) as u64)
}

/// Whether one is worth a comparison with the other.
fn are_alike(old: &[u8], command: &[u8]) -> bool {
    let count = command.len().min(KIND_BYTES);
    old.len() == command.len() && old[..count] == command[..count]
}

/// Fibonacci hashing.
fn spread(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn slot(number: u64) -> usize {
    (spread(number) >> 32) as usize % TABLE
}

/// Appends what makes `old` the equally long `new`; the answer is how many changes. `None` if they
/// would take `limit` bytes or more.
fn find_changes(old: &[u8], new: &[u8], out: &mut Vec<u8>, limit: usize) -> Option<u64> {
    const WORD: usize = 8;
    let word = |bytes: &[u8]| {
        let mut word = [0; WORD];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    let (mut count, mut told) = (0, 0);
    for (nth, (old, new)) in old.chunks(WORD).zip(new.chunks(WORD)).enumerate() {
        let differs = match (old.first_chunk::<WORD>(), new.first_chunk::<WORD>()) {
            (Some(old), Some(new)) => u64::from_le_bytes(*old) ^ u64::from_le_bytes(*new),
            _ => word(old) ^ word(new),
        };
        if differs == 0 {
            continue;
        }
        let first = (differs.trailing_zeros() / 8) as usize;
        let last = (7 - differs.leading_zeros() / 8) as usize;
        let at = nth * WORD + first;
        put_number(out, ((at - told) << 3 | (last - first)) as u64);
        out.extend_from_slice(&new[first..=last]);
        told = nth * WORD + last + 1;
        count += 1;
        if out.len() >= limit {
            return None;
        }
    }
    Some(count)
}
