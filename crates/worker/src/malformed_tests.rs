//! Commands that no honest client sends, for every operation: forged ids, foreign addresses,
//! overflowing sizes, counts beyond limits, payloads cut short, in any order. Behind the worker is
//! the hostile driver, which follows every pointer and reports whatever it gets that nobody can
//! vouch for. A panic on any thread fails the test, the driver's too.
//!
//! `SLUICE_SEED` repeats a run, `SLUICE_FRAMES` sets its length; ten million take minutes:
//! `SLUICE_FRAMES=10000000 cargo test --release -p sluice-worker --lib --
//! --nocapture malformed_commands`.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, Once};
use std::time::Instant;

use sluice_cuda::{CUresult, CUstreamCaptureMode};
use sluice_wire::{ArrayId, ArrayPlace, Command, DevicePtr, Encode, GraphId, Op, StreamId, commands, sample};

use crate::malformed::honest::populate;
use crate::malformed::known::{Known, Noise, Progress};
use crate::malformed::stage::{RESERVATION, Stage};
use crate::malformed::{EDGES, Random, operations};
use crate::memory::chunks::CHUNK;
use crate::pipeline::kinds::BULK_MIN;
use crate::session::execute::Refusal;

const FRAMES: u64 = 20_000;
/// How often the session gets one of everything anew.
const POPULATE_EVERY: u64 = 500;
/// How long a session lives, unless it comes to its end before: then its tables are full of what
/// nobody names any more.
const SESSION_FRAMES: u64 = 10_000;
const REPORT_EVERY: u64 = 1_000_000;

/// A payload, of which a field or two are replaced, a bit is flipped, some is cut, or which more
/// follows.
fn spoil(random: &mut Random, known: &Known, payload: &mut Vec<u8>) {
    for _ in 0..random.below(3) {
        let width = random.one_of(&[1, 4, 8, 8]);
        let Some(last) = payload.len().checked_sub(width) else { break };
        let step = random.one_of(&[1, 4, 4, 4]);
        let at = (random.below(last as u64 + 1) / step * step) as usize;
        let value = match random.below(3) {
            0 => known.any_live(random),
            _ => random.one_of(EDGES),
        };
        payload[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
    }
    match random.below(16) {
        0 => payload.truncate(random.below(payload.len() as u64 + 1) as usize),
        1 => payload.extend((0..random.below(64)).map(|_| random.next() as u8)),
        2 | 3 if !payload.is_empty() => {
            let at = random.below(payload.len() as u64) as usize;
            payload[at] ^= 1 << random.below(8);
        }
        _ => {}
    }
}

/// The next command: an honest one, one made as a good one was but for a field or two, or one of
/// plausible fields; a third of them spoilt. With it comes what it was made of.
pub(crate) fn command(random: &mut Random, known: &Known, stage: &Stage, op: Op) -> (Vec<u8>, Option<Noise>) {
    known.begin();
    let of_noise = |noise: &Noise| {
        let bytes: Vec<u8> = noise.iter().flat_map(|word| word.to_le_bytes()).collect();
        let palette = |of: &'static str, raw: u64| known.plausible(stage, of, raw);
        sample::payload(op, &bytes, &palette).expect("it is an operation")
    };
    let choice = random.next();
    let (mut payload, noise) = match random.below(8) {
        0..3 if let Some(said) = known.said(op, choice) => (said, None),
        0..6 if let Some(mut noise) = known.recipe(op, choice) => {
            for _ in 0..random.below(3) {
                noise[random.below(16) as usize] = random.next();
            }
            (of_noise(&noise), Some(noise))
        }
        _ => {
            let noise = std::array::from_fn(|_| random.next());
            (of_noise(&noise), Some(noise))
        }
    };
    if random.below(3) > 0 {
        return (payload, noise);
    }
    spoil(random, known, &mut payload);
    (payload, None)
}

/// Panics since the test began: those that the driver turns into errors, and those of other
/// threads.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Panics so far; they are counted from the first call on.
pub(crate) fn panics() -> u64 {
    static COUNTS: Once = Once::new();
    COUNTS.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.fetch_add(1, Relaxed);
            report(panic);
        }));
    });
    PANICS.load(Relaxed)
}

/// What reached the driver that nobody can vouch for: the first such argument of each function, and
/// the command.
static VIOLATIONS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
/// The command that is being executed.
static COMMAND: Mutex<String> = Mutex::new(String::new());

/// From now on violations are of this command.
pub(crate) fn watch(command: impl FnOnce() -> String) {
    hostile_driver::on_violation(note);
    *COMMAND.lock().unwrap() = command();
}

pub(crate) fn assert_nothing_reached_the_driver(seed: u64) {
    let violations = VIOLATIONS.lock().unwrap();
    assert!(violations.is_empty(), "SLUICE_SEED={seed}: reached the driver: {violations:#?}");
}

fn note(violation: &str) {
    let function = violation.split(':').next().unwrap_or_default().to_owned();
    let command = COMMAND.lock().unwrap().clone();
    VIOLATIONS.lock().unwrap().entry(function).or_insert_with(|| format!("{violation}; {command}"));
}

pub(crate) fn number_from(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// How often a command was executed, refused with an error of CUDA's, and recognised as no message
/// at all; and how often the driver was asked for it.
#[derive(Clone, Copy, Default)]
struct Outcomes {
    done: u64,
    refused: u64,
    nonsense: u64,
    reached: u64,
}

/// A session and what its client knows of it.
struct Play {
    random: Random,
    known: Known,
    stage: Option<Stage>,
    sessions: u64,
}

impl Play {
    /// The session, another one from time to time, with one of everything made anew now and then.
    fn stage(&mut self, frame: u64) -> &Stage {
        if frame.is_multiple_of(SESSION_FRAMES) {
            self.end_session();
        }
        let is_new = self.stage.is_none();
        let stage = self.stage.get_or_insert_with(Stage::new);
        if is_new || frame.is_multiple_of(POPULATE_EVERY) {
            let surprised = populate(stage, &mut self.known, self.random.next());
            self.sessions += u64::from(is_new);
            let names: Vec<_> = surprised.iter().map(|op| op.name()).collect();
            assert!(
                !is_new || names.is_empty(),
                "an honest client was answered as it should not be: {names:?}"
            );
        }
        stage
    }

    /// One ends before the next begins.
    fn end_session(&mut self) {
        self.stage = None;
        self.known.forget_session();
    }

    /// Sends one command and answers how far it got.
    fn frame(&mut self, frame: u64, op: Op) -> Outcomes {
        self.stage(frame);
        let stage = self.stage.as_ref().expect("made above");
        let (payload, noise) = command(&mut self.random, &self.known, stage, op);
        watch(|| format!("frame {frame}, {}: {payload:02x?}", op.name()));
        let calls = hostile_driver::calls();
        let answer = stage.send(op, &payload);
        let reached = u64::from(hostile_driver::calls() > calls);
        let (progress, outcomes) = match &answer {
            Ok(_) => (Progress::Done, Outcomes { done: 1, ..Outcomes::default() }),
            Err(Refusal::Failed(_)) => {
                let progress = if reached > 0 { Progress::Reached } else { Progress::Refused };
                (progress, Outcomes { refused: 1, ..Outcomes::default() })
            }
            Err(_) => (Progress::Refused, Outcomes { nonsense: 1, ..Outcomes::default() }),
        };
        self.known.settle(op, noise, progress);
        // Work has come to memory that is gone: the end of a session, here as on a card.
        if answer == Err(Refusal::Failed(CUresult::ILLEGAL_ADDRESS)) {
            self.end_session();
        }
        Outcomes { reached, ..outcomes }
    }
}

/// Says how far a long run has come, and what it needs.
fn report_progress(frame: u64, begin: Instant, sessions: u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = |name| status.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    let (resident, threads) = (line("VmRSS"), line("Threads"));
    println!("{frame} frames, {:?}, {sessions} sessions, {resident}, {threads}", begin.elapsed());
}

#[test]
fn malformed_commands_are_refused() {
    let seed = number_from("SLUICE_SEED", 1);
    let frames = number_from("SLUICE_FRAMES", FRAMES);
    println!("SLUICE_SEED={seed} SLUICE_FRAMES={frames}");
    let ops = operations();
    let mut outcomes: BTreeMap<&str, Outcomes> =
        ops.iter().map(|op| (op.name(), Outcomes::default())).collect();
    let mut play = Play { random: Random(seed), known: Known::default(), stage: None, sessions: 0 };
    let (panics_before, begin) = (panics(), Instant::now());
    for frame in 0..frames {
        let op = play.random.one_of(&ops);
        let one = play.frame(frame, op);
        let sum = outcomes.get_mut(op.name()).expect("an operation");
        sum.done += one.done;
        sum.refused += one.refused;
        sum.nonsense += one.nonsense;
        sum.reached += one.reached;
        assert_eq!(panics(), panics_before, "SLUICE_SEED={seed}, {}", COMMAND.lock().unwrap());
        if (frame + 1) % REPORT_EVERY == 0 {
            report_progress(frame + 1, begin, play.sessions);
        }
    }
    println!("done, refused, no message, reached the driver:");
    for (name, o) in &outcomes {
        println!("  {name}: {}, {}, {}, {}", o.done, o.refused, o.nonsense, o.reached);
    }
    let sum = |of: fn(&Outcomes) -> u64| outcomes.values().map(of).sum::<u64>();
    let [done, refused, nonsense] = [sum(|o| o.done), sum(|o| o.refused), sum(|o| o.nonsense)];
    let (reached, sessions) = (sum(|o| o.reached), play.sessions);
    println!("{done} done, {refused} refused, {nonsense} no messages, in {sessions} sessions");
    println!("{reached} reached the driver, in {:?}", begin.elapsed());
    let never = |of: fn(&Outcomes) -> u64| {
        outcomes.iter().filter(move |(_, o)| of(o) == 0).map(|(name, _)| *name).collect::<Vec<_>>()
    };
    println!("never done: {:?}", never(|o| o.done));
    println!("never reached the driver: {:?}", never(|o| o.reached));
    assert_nothing_reached_the_driver(seed);
    assert!(done > frames / 10 && refused > frames / 10 && nonsense > frames / 200);
}

/// A node of a graph would keep the address of what is long gone when the graph runs.
#[test]
fn a_capture_takes_no_copy_of_memory_that_goes_with_its_command() {
    hostile_driver::on_violation(note);
    let (stage, mut known) = (Stage::new(), Known::default());
    assert_eq!(populate(&stage, &mut known, 1), []);
    let (stream, start) = (StreamId(known.minted), DevicePtr(RESERVATION + 8 * CHUNK));
    let send = |op, message: &dyn Encode| {
        let mut payload = Vec::new();
        message.encode(&mut payload);
        stage.send(op, &payload).map(drop)
    };
    let begin = commands::cuStreamBeginCapture_v2 { hStream: stream, mode: CUstreamCaptureMode::RELAXED };
    let end = commands::cuStreamEndCapture { hStream: stream, phGraph: GraphId(1 << 20) };
    let to_device = commands::cuMemcpyHtoDAsync_v2 { dstDevice: start, hStream: stream, srcHost: &[7; 8] };
    let to_host = commands::cuMemcpyDtoH_v2 { ticket: 0, srcDevice: start, ByteCount: 8, hStream: stream };
    let later = commands::cuMemcpyDtoHAsync_v2 {
        ticket: 1,
        offset: 0,
        srcDevice: start,
        ByteCount: 8,
        hStream: stream,
    };
    let place = ArrayPlace { array: ArrayId(known.minted + 18), x: 0, y: 0, z: 0 };
    let (width, height, depth) = (8, 1, 1);
    let to_array = commands::cuMemcpyHtoAAsync_v2 {
        dst: place.clone(),
        width,
        height,
        depth,
        srcHost: &[7; 8],
        hStream: stream,
    };
    let from_array =
        commands::cuMemcpyAtoHAsync_v2 { ticket: 1, src: place, width, height, depth, hStream: stream };
    let many = commands::cuMemcpyHtoDAsync_v2 { dstDevice: start, hStream: stream, srcHost: &[7; BULK_MIN] };
    let copies: [(Op, &dyn Encode); 6] = [
        (commands::cuMemcpyHtoDAsync_v2::OP, &to_device),
        (commands::cuMemcpyHtoDAsync_v2::OP, &many),
        (commands::cuMemcpyDtoH_v2::OP, &to_host),
        (commands::cuMemcpyDtoHAsync_v2::OP, &later),
        (commands::cuMemcpyHtoAAsync_v2::OP, &to_array),
        (commands::cuMemcpyAtoHAsync_v2::OP, &from_array),
    ];
    assert_eq!(send(commands::cuStreamBeginCapture_v2::OP, &begin), Ok(()));
    for (op, copy) in copies {
        let refused = Err(Refusal::Failed(CUresult::STREAM_CAPTURE_UNSUPPORTED));
        assert_eq!(send(op, copy), refused, "{}", op.name());
    }
    assert_eq!(send(commands::cuStreamEndCapture::OP, &end), Ok(()));
    for (op, copy) in copies {
        assert_eq!(send(op, copy), Ok(()), "{}", op.name());
    }
}
