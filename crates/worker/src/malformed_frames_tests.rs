//! Malformed bytes, over a socket: the commands of [`malformed_tests`](crate::malformed_tests) in
//! frames with wrong lengths, kinds, operations and devices, halves of frames, frames of kinds that
//! no client sends, sequences that tell nothing, and streams that end anywhere. What comes out of
//! the decoder is executed as the reader's frames are, before the hostile driver. What would end a
//! session ends its connection, and only one time in many the session, which continues behind the
//! next one: a session takes as long to make as some two hundred frames. Nothing ends the process.
//!
//! `SLUICE_SEED` and `SLUICE_FRAMES` as there:
//! `SLUICE_FRAMES=10000000 cargo test --release -p sluice-worker --lib --
//! --nocapture malformed_frames`.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use sluice_cuda::CUresult;
use sluice_wire::sequences::Expander;
use sluice_wire::{FrameDecoder, Header, Kind, Op, Received, WireError, decode};

use crate::malformed::honest::populate;
use crate::malformed::known::{Known, Noise, Progress};
use crate::malformed::stage::Stage;
use crate::malformed::{EDGES, Random, operations};
use crate::malformed_tests::{command, number_from, panics, watch};
use crate::session::execute::Refusal;

const FRAMES: u64 = 6_000;
/// Frames that are written at once.
const BATCH: u64 = 16;
/// How often a session gets one of everything anew.
const POPULATE_EVERY: u64 = 16;
/// One frame of so many is not as it should be, and most of those end their connection.
const SPOILT: u64 = 32;
/// One connection of so many takes its session along.
const LAST: u64 = 64;
/// Batches of a session that nothing ends.
const BATCHES_MAX: u64 = 512;
const REPORT_EVERY: u64 = 1_000_000;

/// The client's end of a connection: a thread that writes, since a socket holds less than a batch
/// may be.
struct Client {
    batches: Sender<Vec<u8>>,
    thread: JoinHandle<()>,
}

impl Client {
    fn new() -> (Client, UnixStream) {
        let (mut socket, theirs) = UnixStream::pair().unwrap();
        let (batches, written) = channel::<Vec<u8>>();
        let thread = std::thread::spawn(move || {
            for bytes in written {
                // The worker hangs up where it does not understand.
                if socket.write_all(&bytes).is_err() {
                    return;
                }
            }
        });
        (Client { batches, thread }, theirs)
    }

    fn end(self) {
        drop(self.batches);
        self.thread.join().unwrap();
    }
}

/// How far frames got, and what ended sessions.
#[derive(Debug, Default)]
struct Counts {
    written: u64,
    spoilt: u64,
    /// Out of the decoder.
    decoded: u64,
    /// Of these, and of what was told as what changed.
    commands: u64,
    done: u64,
    refused: u64,
    /// For which the driver was asked.
    reached: u64,
    sessions: u64,
    connections: u64,
    /// Ended by a frame that is none, half a frame, a kind that no client sends, a payload that is
    /// no message, memory that is gone, and the end of the session.
    by_frame: u64,
    by_half: u64,
    by_kind: u64,
    by_payload: u64,
    by_address: u64,
    by_end: u64,
}

/// A command as it was written, and what it was made of.
type Said = (Op, Vec<u8>, Option<Noise>);

/// Why a connection has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Frame,
    Half,
    Kind,
    Payload,
    /// The context has failed, and with it the session.
    Address,
    /// The session has said all that it may.
    Session,
}

struct Play {
    random: Random,
    known: Known,
    counts: Counts,
    ops: Vec<Op>,
}

impl Play {
    /// A session to its end, or to the last frame.
    fn session(&mut self, frames: u64) {
        let stage = Stage::new();
        self.known.forget_session();
        self.counts.sessions += 1;
        let mut batches = 0;
        loop {
            let end = self.connection(&stage, &mut batches, frames);
            let count = match end {
                End::Frame => &mut self.counts.by_frame,
                End::Half => &mut self.counts.by_half,
                End::Kind => &mut self.counts.by_kind,
                End::Payload => &mut self.counts.by_payload,
                End::Address => &mut self.counts.by_address,
                End::Session => &mut self.counts.by_end,
            };
            *count += 1;
            if matches!(end, End::Address | End::Session) || self.random.below(LAST) == 0 {
                return;
            }
        }
    }

    /// A connection until something ends it.
    fn connection(&mut self, stage: &Stage, batches: &mut u64, frames: u64) -> End {
        self.counts.connections += 1;
        let (client, mut socket) = Client::new();
        let (mut decoder, mut expander) = (FrameDecoder::new(), Expander::new());
        let end = loop {
            if self.counts.written >= frames || *batches == BATCHES_MAX {
                break End::Session;
            }
            if batches.is_multiple_of(POPULATE_EVERY) {
                populate(stage, &mut self.known, self.random.next());
            }
            *batches += 1;
            let (bytes, mut said) = self.batch(stage, BATCH.min(frames - self.counts.written));
            let (mut missing, decoded) = (bytes.len(), self.counts.decoded);
            let _ = client.batches.send(bytes);
            let ended = loop {
                match self.take_all(stage, &mut decoder, &mut expander, &mut said) {
                    Ok(()) if missing == 0 => break None,
                    Ok(()) => {}
                    Err(end) => break Some(end),
                }
                let count = socket.read(decoder.space(64 << 10)).unwrap();
                assert!(count > 0, "the client has said all of a batch");
                decoder.received(count);
                missing -= count;
            };
            if let Some(end) = ended {
                break end;
            }
            // It waits for the rest of a frame that would swallow many: the client hangs up.
            if self.counts.decoded == decoded {
                break End::Half;
            }
        };
        drop(socket);
        client.end();
        end
    }

    fn batch(&mut self, stage: &Stage, frames: u64) -> (Vec<u8>, VecDeque<Said>) {
        let (mut bytes, mut said) = (Vec::new(), VecDeque::new());
        for _ in 0..frames {
            let op = self.random.one_of(&self.ops);
            let (payload, noise) = command(&mut self.random, &self.known, stage, op);
            let header =
                Header { kind: Kind::Command, device: 0, op: op.0, lane: 1, sequence: self.counts.written };
            let start = bytes.len();
            header.frame(&mut bytes, |out| out.extend_from_slice(&payload)).unwrap();
            said.push_back((op, payload, noise));
            self.counts.written += 1;
            if self.random.below(SPOILT) == 0 {
                self.counts.spoilt += 1;
                spoil(&mut self.random, &mut bytes, start);
            }
        }
        (bytes, said)
    }

    /// Executes what has come whole, as the worker's reader hands it on.
    fn take_all(
        &mut self,
        stage: &Stage,
        decoder: &mut FrameDecoder,
        expander: &mut Expander,
        said: &mut VecDeque<Said>,
    ) -> Result<(), End> {
        // The reader asks for what is missing, and for large frames before they are whole.
        while let Some(frame) = decoder.next_frame().map_err(|_| End::Frame)? {
            self.counts.decoded += 1;
            match frame.header.kind {
                Kind::Command => self.execute(stage, frame.header, frame.payload, said)?,
                Kind::Received => {
                    let received = decode::<Received>(frame.payload).map_err(|_| End::Payload)?;
                    // As if all that a session could have said were acknowledged: what is more is
                    // refused.
                    stage.acknowledge(received).map_err(|_| End::Payload)?;
                }
                Kind::Commands => {
                    expander.begin(&frame);
                    while let Some(frame) = expander.next_command().map_err(|_: WireError| End::Payload)? {
                        self.execute(stage, frame.header, frame.payload, said)?;
                    }
                }
                _ => return Err(End::Kind),
            }
        }
        decoder.begun().map_err(|_| End::Frame)?;
        Ok(())
    }

    fn execute(
        &mut self,
        stage: &Stage,
        header: Header,
        payload: &[u8],
        said: &mut VecDeque<Said>,
    ) -> Result<(), End> {
        self.counts.commands += 1;
        let calls = hostile_driver::calls();
        watch(|| format!("frame {} of {:?}, {header:?}: {payload:02x?}", self.counts.decoded, self.counts));
        let answer = stage.execute(header, payload);
        let reached = hostile_driver::calls() > calls;
        self.counts.reached += u64::from(reached);
        let progress = match &answer {
            Ok(_) => Progress::Done,
            Err(Refusal::Failed(_)) if reached => Progress::Reached,
            Err(_) => Progress::Refused,
        };
        if let Some((op, as_said, noise)) = said.pop_front()
            && op.0 == header.op
            && as_said == payload
        {
            self.known.settle(op, noise, progress);
        }
        match answer {
            Ok(_) => self.counts.done += 1,
            Err(Refusal::Failed(CUresult::ILLEGAL_ADDRESS)) => return Err(End::Address),
            Err(Refusal::Failed(_)) => self.counts.refused += 1,
            Err(_) => return Err(End::Payload),
        }
        Ok(())
    }
}

/// Makes something else of the frame from `start` on, which is the last.
fn spoil(random: &mut Random, bytes: &mut Vec<u8>, start: usize) {
    let length = (bytes.len() - start) as u64;
    match random.below(9) {
        // Its length is another, by little or by much.
        0 => {
            let count = (length as u32 - 4).wrapping_add(random.below(64) as u32).wrapping_sub(32);
            bytes[start..start + 4].copy_from_slice(&count.to_le_bytes());
        }
        1 => {
            let count = random.one_of(EDGES) as u32;
            bytes[start..start + 4].copy_from_slice(&count.to_le_bytes());
        }
        // Its kind, its device or its operation.
        2 => bytes[start + 4] = random.below(Kind::ALL.len() as u64 + 3) as u8,
        3 => bytes[start + 5] = random.next() as u8,
        4 => bytes[start + 6..start + 8].copy_from_slice(&(random.next() as u16).to_le_bytes()),
        // A bit of its head.
        5 => bytes[start + random.below(20) as usize] ^= 1 << random.below(8),
        // It ends early, and the next begins there.
        6 => bytes.truncate(start + random.below(length) as usize),
        // A sequence, or an acknowledgement, of whatever it was.
        7 => bytes[start + 4] = Kind::Commands as u8,
        _ => bytes[start + 4] = Kind::Received as u8,
    }
}

#[test]
fn malformed_frames_end_sessions_and_nothing_else() {
    let (seed, frames) = (number_from("SLUICE_SEED", 1), number_from("SLUICE_FRAMES", FRAMES));
    println!("SLUICE_SEED={seed} SLUICE_FRAMES={frames}");
    let (counts, known) = (Counts::default(), Known::default());
    let mut play = Play { random: Random(seed), known, counts, ops: operations() };
    let (panics_before, begin) = (panics(), Instant::now());
    while play.counts.written < frames {
        let reported = play.counts.written / REPORT_EVERY;
        play.session(frames);
        assert_eq!(panics(), panics_before, "SLUICE_SEED={seed}, a thread panicked");
        if play.counts.written / REPORT_EVERY > reported {
            println!("{:?}, {:?}", begin.elapsed(), play.counts);
        }
    }
    let counts = play.counts;
    println!("{counts:?}, in {:?}", begin.elapsed());
    crate::malformed_tests::assert_nothing_reached_the_driver(seed);
    assert!(counts.decoded > frames / 8 && counts.done > frames / 32 && counts.reached > frames / 32);
    assert!(counts.by_frame > 0 && counts.by_payload > 0, "{counts:?}");
}
