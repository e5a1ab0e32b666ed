//! The receiver: entries become commands again. Nothing that they say is trusted.

use super::history::History;
use super::{CHANGED, COMMAND_SIZE_MAX, ELSEWHERE, EXPANSION_MAX, HEAD_SIZE, PREFIX_SIZE, SAME, take_number};
use crate::codec::{Decode, Encode, Reader};
use crate::error::WireError;
use crate::frame::{Frame, Header, Kind};

/// Makes commands of frames of kind `Commands`.
#[derive(Debug)]
pub struct Expander {
    history: History,
    /// The number of the command that is expected next.
    cursor: u64,
    /// The frame's payload, and how much of it was taken.
    entries: Vec<u8>,
    taken: usize,
    /// Commands that the last entry still tells.
    same: u64,
    lane: u32,
    sequence: u64,
    /// Bytes of commands that the frame may still tell.
    room: usize,
    told: u64,
}

impl Default for Expander {
    fn default() -> Expander {
        Expander::new()
    }
}

impl Expander {
    pub fn new() -> Expander {
        Expander {
            history: History::new(),
            cursor: 0,
            entries: Vec::new(),
            taken: 0,
            same: 0,
            lane: 0,
            sequence: 0,
            room: 0,
            told: 0,
        }
    }

    /// What it remembers, between two frames.
    pub fn saved(&self) -> Vec<u8> {
        let mut saved = Vec::new();
        self.cursor.encode(&mut saved);
        self.told.encode(&mut saved);
        self.history.saved(&mut saved);
        saved
    }

    /// An expander that continues where another one was saved.
    pub fn restored(saved: &[u8]) -> Result<Expander, WireError> {
        let mut saved = Reader::new(saved);
        let (cursor, told) = Decode::decode(&mut saved)?;
        let history = History::restored(&mut saved)?;
        saved.end()?;
        Ok(Expander { history, cursor, told, ..Expander::new() })
    }

    /// Bytes of the commands that were received, as frames of their own, since the session began.
    pub fn told(&self) -> u64 {
        self.told
    }

    /// Takes the next frame; of the one before all commands have been given out.
    pub fn begin(&mut self, frame: &Frame<'_>) {
        self.entries.clear();
        self.entries.extend_from_slice(frame.payload);
        (self.taken, self.same, self.room) = (0, 0, EXPANSION_MAX);
        (self.lane, self.sequence) = (frame.header.lane, frame.header.sequence);
    }

    /// The next command of the frame. After an error the session is of no more use.
    pub fn next_command(&mut self) -> Result<Option<Frame<'_>>, WireError> {
        if self.same == 0 && !self.take_entry()? {
            return Ok(None);
        }
        if self.same > 0 {
            self.same -= 1;
            self.check(self.cursor)?;
            self.history.push_again(self.cursor);
        }
        self.cursor += 1;
        // Just added.
        let command = self.history.get(self.history.count() - 1).ok_or(WireError::Truncated)?;
        let size = HEAD_SIZE + command.len();
        let too_much =
            WireError::Value { what: "the size of recognised commands", value: EXPANSION_MAX as u64 + 1 };
        self.room = self.room.checked_sub(size).ok_or(too_much)?;
        self.told += size as u64;
        let Some((&[device, low, high], payload)) = command.split_first_chunk::<PREFIX_SIZE>() else {
            return Err(WireError::Truncated);
        };
        let op = u16::from_le_bytes([low, high]);
        let header = Header { kind: Kind::Command, device, op, lane: self.lane, sequence: self.sequence };
        self.sequence = self.sequence.wrapping_add(1);
        Ok(Some(Frame { header, payload }))
    }

    /// Reads an entry, and adds its command to the history or counts in `same`; false at the
    /// frame's end.
    fn take_entry(&mut self) -> Result<bool, WireError> {
        let mut rest = &self.entries[self.taken..];
        if rest.is_empty() {
            return Ok(false);
        }
        let number = take_number(&mut rest)?;
        let count = number >> 2;
        match number & 3 {
            SAME if count == 0 => {
                return Err(WireError::Value { what: "a count of recognised commands", value: 0 });
            }
            SAME => self.same = count,
            CHANGED => {
                self.check(self.cursor)?;
                change(self.history.push_copy(self.cursor), &mut rest, count)?;
            }
            ELSEWHERE => {
                let distance = take_number(&mut rest)?;
                self.cursor = self.history.count().checked_sub(distance).ok_or_else(|| unknown(distance))?;
                self.check(self.cursor)?;
                change(self.history.push_copy(self.cursor), &mut rest, count)?;
            }
            _ => {
                let sizes = PREFIX_SIZE as u64..=(COMMAND_SIZE_MAX - HEAD_SIZE) as u64;
                if !sizes.contains(&count) {
                    return Err(WireError::Value { what: "the size of a command to remember", value: count });
                }
                let (command, after) = rest.split_at_checked(count as usize).ok_or(WireError::Truncated)?;
                self.history.push(command);
                rest = after;
            }
        }
        self.taken = self.entries.len() - rest.len();
        Ok(true)
    }

    /// Whether a command is remembered.
    fn check(&self, number: u64) -> Result<(), WireError> {
        let distance = self.history.count().saturating_sub(number);
        self.history.get(number).map(drop).ok_or_else(|| unknown(distance))
    }
}

fn unknown(distance: u64) -> WireError {
    WireError::Value { what: "the distance to a recognised command", value: distance }
}

/// Reads `count` changes and makes them.
fn change(command: &mut [u8], bytes: &mut &[u8], count: u64) -> Result<(), WireError> {
    let mut rest = command;
    // Each takes two bytes at least, so a wild count ends with the bytes.
    for _ in 0..count {
        let number = take_number(bytes)?;
        let size = (number & 7) as usize + 1;
        let outside =
            || WireError::Value { what: "the place of a change in a recognised command", value: number >> 3 };
        let stays = usize::try_from(number >> 3).map_err(|_| outside())?;
        let at = rest.split_at_mut_checked(stays).ok_or_else(outside)?.1;
        let (place, after) = at.split_at_mut_checked(size).ok_or_else(outside)?;
        let (new, left) = bytes.split_at_checked(size).ok_or(WireError::Truncated)?;
        place.copy_from_slice(new);
        (rest, *bytes) = (after, left);
    }
    Ok(())
}
