//! Any frames of commands that are told by what changed: a length and so many bytes of entries, again and again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_wire::sequences::{EXPANSION_MAX, Expander};
use sluice_wire::{Frame, Header, Kind};

fuzz_target!(|bytes: &[u8]| {
    let header = Header { kind: Kind::Commands, device: 0, op: 0, lane: 1, sequence: 0 };
    let mut expander = Expander::new();
    let mut rest = bytes;
    while let Some((&length, after)) = rest.split_first() {
        let (entries, after) = after.split_at(after.len().min(length.into()));
        rest = after;
        expander.begin(&Frame { header, payload: entries });
        let before = expander.told();
        loop {
            match expander.next_command() {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
        assert!(expander.told() - before <= EXPANSION_MAX as u64);
    }
});
