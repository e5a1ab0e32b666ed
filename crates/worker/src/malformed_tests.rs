//! Commands that no honest client sends, for every operation: forged ids, foreign addresses, overflowing sizes, counts
//! beyond limits, payloads cut short, in any order. Behind the worker is the hostile driver, which follows every pointer
//! and reports whatever it gets that nobody can vouch for. A panic on any thread fails the test, the driver's too.
//!
//! `SLUICE_SEED` repeats a run, `SLUICE_FRAMES` sets its length; ten million take minutes.

mod stage;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use sluice_cuda::CUresult;
use sluice_wire::{Op, sample};

use self::stage::{Known, Stage};
use crate::chunks::CHUNK;
use crate::execute::Refusal;

const FRAMES: u64 = 20_000;
/// How often the session gets one of everything anew.
const POPULATE_EVERY: u64 = 500;

/// Numbers in an order that the seed decides (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}

/// Numbers that sizes, counts and pitches go wrong at.
const EDGES: &[u64] = &[
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

/// An honest payload, of which some fields are replaced, some bits flipped, some of it cut, or which more follows.
fn spoil(random: &mut Random, payload: &mut Vec<u8>) {
    for _ in 0..random.below(4) {
        let Some(last) = payload.len().checked_sub(8) else { break };
        let at = (random.below(last as u64 + 1) / 4 * 4) as usize;
        payload[at..at + 8].copy_from_slice(&random.one_of(EDGES).to_le_bytes());
    }
    if !payload.is_empty() && random.below(4) == 0 {
        let at = random.below(payload.len() as u64) as usize;
        payload[at] ^= 1 << random.below(8);
    }
    match random.below(16) {
        0 => payload.truncate(random.below(payload.len() as u64 + 1) as usize),
        1 => payload.extend((0..random.below(64)).map(|_| random.next() as u8)),
        _ => {}
    }
}

/// The next command: one that was honest once, or one of plausible fields; half of them spoilt.
fn command(random: &mut Random, known: &Known, ops: &[Op]) -> (Op, Vec<u8>) {
    let mut noise = [0_u8; 512];
    noise.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&random.next().to_le_bytes()));
    known.begin();
    let (op, mut payload) = match random.below(8) {
        0 => known.said(random.next()),
        _ => {
            let op = random.one_of(ops);
            let palette = |of: &'static str, raw: u64| known.plausible(of, raw);
            (op, sample::payload(op, &noise, &palette).expect("it is an operation"))
        }
    };
    if random.below(2) == 0 {
        spoil(random, &mut payload);
    }
    (op, payload)
}

/// Panics since the test began: those that the driver turns into errors, and those of other threads.
static PANICS: AtomicU64 = AtomicU64::new(0);

fn count_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Relaxed);
        report(panic);
    }));
}

/// What reached the driver that nobody can vouch for: the first such argument of each function, and the command.
static VIOLATIONS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
/// The command that is being executed.
static COMMAND: Mutex<String> = Mutex::new(String::new());

fn note(violation: &str) {
    let function = violation.split(':').next().unwrap_or_default().to_owned();
    let command = COMMAND.lock().unwrap().clone();
    VIOLATIONS.lock().unwrap().entry(function).or_insert_with(|| format!("{violation}; {command}"));
}

fn number_from(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// How often a command was executed, refused with an error of CUDA's, and recognised as no message at all.
#[derive(Clone, Copy, Default)]
struct Outcomes {
    done: u64,
    refused: u64,
    nonsense: u64,
}

#[test]
fn malformed_commands_are_refused() {
    let seed = number_from("SLUICE_SEED", 1);
    let frames = number_from("SLUICE_FRAMES", FRAMES);
    println!("SLUICE_SEED={seed} SLUICE_FRAMES={frames}");
    count_panics();
    hostile_driver::on_violation(note);
    let mut random = Random(seed);
    let (mut stage, mut stages) = (Stage::new(0), 1);
    let mut known = Known::default();
    let ops: Vec<Op> =
        (0..=u16::MAX).map(Op).filter(|op| sample::payload(*op, &[], &|_, raw| raw).is_some()).collect();
    let mut outcomes: BTreeMap<&str, Outcomes> =
        ops.iter().map(|op| (op.name(), Outcomes::default())).collect();
    let panics_before = PANICS.load(Relaxed);
    for frame in 0..frames {
        if frame % POPULATE_EVERY == 0 {
            stage.populate(&mut known, random.next());
        }
        let (op, payload) = command(&mut random, &known, &ops);
        let outcome = outcomes.get_mut(op.name()).expect("an operation");
        *COMMAND.lock().unwrap() = format!("frame {frame}, {}", op.name());
        match stage.send(op, &payload) {
            Ok(_) => {
                outcome.done += 1;
                known.settle();
            }
            Err(Refusal::Failed(CUresult::ILLEGAL_ADDRESS)) => {
                // Work has come to memory that is gone: the end of a session, here as on a card.
                outcome.refused += 1;
                (stage, stages) = (Stage::new(stages), stages + 1);
                known = Known::default();
                stage.populate(&mut known, random.next());
            }
            Err(Refusal::Failed(_)) => outcome.refused += 1,
            Err(Refusal::Malformed(_) | Refusal::UnknownOp(_)) => outcome.nonsense += 1,
        }
        let panics = PANICS.load(Relaxed) - panics_before;
        assert_eq!(panics, 0, "SLUICE_SEED={seed}, frame {frame}, {}: {payload:02x?}", op.name());
    }
    let sum = |of: fn(&Outcomes) -> u64| outcomes.values().map(of).sum::<u64>();
    let [done, refused, nonsense] = [sum(|o| o.done), sum(|o| o.refused), sum(|o| o.nonsense)];
    println!("{done} done, {refused} refused, {nonsense} no messages, in {stages} sessions");
    let never: Vec<_> = outcomes.iter().filter(|(_, o)| o.done == 0).map(|(name, _)| *name).collect();
    println!("never done: {never:?}");
    let violations = VIOLATIONS.lock().unwrap();
    assert!(violations.is_empty(), "SLUICE_SEED={seed}: reached the driver: {violations:#?}");
    assert!(done > frames / 100 && refused > frames / 100 && nonsense > frames / 100);
}
