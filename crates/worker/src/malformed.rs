//! A session of the worker whose client says anything, before the hostile driver: what the test of
//! malformed commands and the fuzz target of commands play in.

// The fuzzer needs less of it than the test.
#![cfg_attr(not(test), allow(dead_code))]

pub(crate) mod honest;
pub(crate) mod known;
pub(crate) mod stage;

use std::sync::LazyLock;

use sluice_cuda::CUresult;
use sluice_wire::sequences::{EXPANSION_MAX, Expander};
use sluice_wire::{Frame, Header, Kind, Op, sample};

use self::known::{Known, Progress};
use self::stage::Stage;
use crate::memory::chunks::CHUNK;
use crate::session::execute::Refusal;

/// Numbers in an order that the seed decides (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}

/// Numbers that sizes, counts and pitches go wrong at.
pub(crate) const EDGES: &[u64] = &[
    0,
    1,
    2,
    7,
    8,
    255,
    4096,
    CHUNK - 1,
    CHUNK,
    CHUNK + 1,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 33,
    1 << 47,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - CHUNK + 1,
    u64::MAX,
];

/// All that a command can ask for.
pub(crate) fn operations() -> Vec<Op> {
    (0..=u16::MAX).map(Op).filter(|op| sample::payload(*op, &[], &|_, raw| raw).is_some()).collect()
}

/// Plays a session that begins with one of everything. Each command is an operation (2 bytes), its
/// form (1 byte), a length (1 byte) and that number of bytes: fields of which numbers choose among
/// what is live, or the payload as it is.
///
/// Ends the process when the driver gets what was not checked.
pub fn session(mut script: &[u8]) {
    static OPERATIONS: LazyLock<Vec<Op>> = LazyLock::new(operations);
    let (stage, mut known) = (Stage::new(), Known::default());
    honest::populate(&stage, &mut known, 1);
    while let Some((&[low, high, telling, length], rest)) = script.split_first_chunk() {
        let (said, rest) = rest.split_at(rest.len().min(length.into()));
        script = rest;
        let op = OPERATIONS[usize::from(u16::from_le_bytes([low, high])) % OPERATIONS.len()];
        known.begin();
        let payload = match telling % 4 {
            0 => said.to_vec(),
            _ => sample::payload(op, said, &|of, raw| known.plausible(&stage, of, raw))
                .expect("it is an operation"),
        };
        let progress = match stage.send(op, &payload) {
            // Work has come to memory that is gone: the end of a session, here as on a real GPU.
            Err(Refusal::Failed(CUresult::ILLEGAL_ADDRESS)) => return,
            Err(_) => Progress::Refused,
            Ok(_) => Progress::Done,
        };
        known.settle(op, None, progress);
    }
}

/// Plays a session that begins with one of everything, and whose commands are delta encoded: frames
/// of a length (1 byte) and that number of bytes of entries. What cannot be decoded ends it.
///
/// Ends the process when the driver gets what was not checked.
pub fn told(mut script: &[u8]) {
    let (stage, mut known) = (Stage::new(), Known::default());
    honest::populate(&stage, &mut known, 1);
    let header = Header { kind: Kind::Commands, device: 0, op: 0, lane: 1, sequence: 0 };
    let mut expander = Expander::new();
    while let Some((&length, rest)) = script.split_first() {
        let (entries, rest) = rest.split_at(rest.len().min(length.into()));
        script = rest;
        expander.begin(&Frame { header, payload: entries });
        let before = expander.told();
        loop {
            match expander.next_command() {
                Ok(Some(command)) => {
                    if let Err(Refusal::Failed(CUresult::ILLEGAL_ADDRESS)) =
                        stage.send(Op(command.header.op), command.payload)
                    {
                        return;
                    }
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
        assert!(expander.told() - before <= EXPANSION_MAX as u64);
    }
}
