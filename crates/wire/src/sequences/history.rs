//! The last commands that both ends know.

use crate::codec::{Decode, Encode, Reader};
use crate::error::WireError;

/// Bytes of commands that are remembered: many steps of most programs, one of a very large one.
const BYTES: usize = 2 << 20;
/// Most commands that are remembered.
const COMMANDS: usize = 16 << 10;

/// A ring of commands, counted from the session's first; the memory is used as it fills. One that
/// repeats shares its bytes with the one it repeats, which stay in the cache.
#[derive(Debug)]
pub(super) struct History {
    bytes: Vec<u8>,
    /// Bytes used so far, those left free at the ring's end included.
    end: u64,
    commands: Vec<Span>,
    /// Commands so far, and so the number of the next.
    count: u64,
}

/// Where a command lies, in bytes used before it.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    start: u64,
    size: u32,
}

impl History {
    pub(super) fn new() -> History {
        History { bytes: vec![0; BYTES], end: 0, commands: vec![Span::default(); COMMANDS], count: 0 }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// A command by its number, while it is remembered.
    pub(super) fn get(&self, number: u64) -> Option<&[u8]> {
        if number >= self.count || self.count - number > COMMANDS as u64 {
            return None;
        }
        let Span { start, size } = self.commands[number as usize % COMMANDS];
        if self.end > start + BYTES as u64 {
            return None;
        }
        let offset = start as usize % BYTES;
        self.bytes.get(offset..offset + size as usize)
    }

    /// Everything that is remembered, as [`History::restored`] reads it.
    pub(super) fn saved(&self, out: &mut Vec<u8>) {
        self.end.encode(out);
        self.count.encode(out);
        self.commands.iter().for_each(|place| (place.start, place.size).encode(out));
        out.extend_from_slice(&self.bytes);
    }

    /// What another history has saved. Places that are none of the ring's are never looked at: they
    /// count as forgotten, or [`History::get`] finds nothing there.
    pub(super) fn restored(saved: &mut Reader<'_>) -> Result<History, WireError> {
        let mut history = History::new();
        history.end = u64::decode(saved)?;
        history.count = u64::decode(saved)?;
        for place in &mut history.commands {
            let (start, size) = Decode::decode(saved)?;
            *place = Span { start, size };
            let is_inside = start <= history.end && start as usize % BYTES + size as usize <= BYTES;
            if !is_inside {
                return Err(WireError::Value { what: "the place of a remembered command", value: start });
            }
        }
        history.bytes.copy_from_slice(saved.take(BYTES)?);
        Ok(history)
    }

    /// Adds a command, which is smaller than the ring by far.
    pub(super) fn push(&mut self, command: &[u8]) {
        let offset = self.add_place(command.len());
        self.bytes[offset..offset + command.len()].copy_from_slice(command);
    }

    /// Adds a command that is remembered already.
    pub(super) fn push_again(&mut self, number: u64) {
        let place = self.commands[number as usize % COMMANDS];
        if self.end - place.start > BYTES as u64 / 2 {
            // It would be forgotten before others that are as old.
            self.push_copy(number);
            return;
        }
        self.commands[self.count as usize % COMMANDS] = place;
        self.count += 1;
    }

    /// Adds what begins as a copy of a remembered command, and gives its bytes.
    pub(super) fn push_copy(&mut self, number: u64) -> &mut [u8] {
        let Span { start, size } = self.commands[number as usize % COMMANDS];
        let (from, size) = (start as usize % BYTES, size as usize);
        let offset = self.add_place(size);
        self.bytes.copy_within(from..from + size, offset);
        &mut self.bytes[offset..offset + size]
    }

    /// Room for the next command; the answer is where in the ring.
    fn add_place(&mut self, size: usize) -> usize {
        let mut offset = self.end as usize % BYTES;
        if offset + size > BYTES {
            self.end += (BYTES - offset) as u64;
            offset = 0;
        }
        self.commands[self.count as usize % COMMANDS] = Span { start: self.end, size: size as u32 };
        self.end += size as u64;
        self.count += 1;
        offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(number: u64) -> Vec<u8> {
        vec![number as u8; 3 + number as usize * 37 % 4000]
    }

    #[test]
    fn the_last_commands_are_remembered_as_they_were() {
        let mut history = History::new();
        for number in 0..5000 {
            history.push(&command(number));
            let oldest = (0..=number).find(|&number| history.get(number).is_some()).unwrap();
            if number % 97 == 0 {
                for number in oldest..=number {
                    assert_eq!(history.get(number), Some(command(number).as_slice()));
                }
            }
        }
        assert_eq!(history.get(5000), None);
        assert_eq!(history.get(0), None, "its bytes are others by now");
        assert!(history.get(5000 - 700).is_some());
    }

    #[test]
    fn what_is_restored_is_what_was_saved() {
        let mut history = History::new();
        (0..3000).for_each(|number| history.push(&command(number)));
        let mut saved = Vec::new();
        history.saved(&mut saved);
        let mut restored = History::restored(&mut Reader::new(&saved)).unwrap();
        for history in [&mut history, &mut restored] {
            history.push_copy(2999)[0] = 1;
        }
        for number in 0..3001 {
            assert_eq!(restored.get(number), history.get(number));
        }
        let short = &saved[..saved.len() - 1];
        assert_eq!(History::restored(&mut Reader::new(short)).err(), Some(WireError::Truncated));
        // A place beyond the ring.
        saved[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
        let beyond = History::restored(&mut Reader::new(&saved)).err();
        assert!(matches!(beyond, Some(WireError::Value { value: u64::MAX, .. })), "{beyond:?}");
    }

    #[test]
    fn a_command_that_repeats_is_never_forgotten() {
        let mut history = History::new();
        history.push(&[7; 1000]);
        for round in 0..20_000 {
            let number = history.count() - 1;
            match round % 3 {
                0 => history.push(&[round as u8; 1000]),
                1 => history.push_copy(number)[0] = round as u8,
                _ => history.push_again(number),
            }
            history.push_again(number);
            assert_eq!(history.get(history.count() - 1), Some(&[7; 1000][..]));
        }
    }

    #[test]
    fn no_more_commands_are_remembered_than_there_are_places() {
        let mut history = History::new();
        (0..2 * COMMANDS as u64).for_each(|_| history.push(&[1, 2, 3]));
        assert!(history.get(COMMANDS as u64 - 1).is_none());
        assert!(history.get(COMMANDS as u64).is_some());
    }
}
