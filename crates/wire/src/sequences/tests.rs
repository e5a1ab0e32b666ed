//! Both ends, through a connection that is cut anywhere, and against entries that nobody would
//! make.

use std::io::IoSlice;

use proptest::prelude::*;

use super::*;
use crate::frame::{Frame, FrameDecoder, Header, Kind};
use crate::resume::SendBuffer;

type Command = (Header, Vec<u8>);

fn header(op: u16, lane: u32, sequence: u64) -> Header {
    Header { kind: Kind::Command, device: op as u8 & 1, op, lane, sequence }
}

/// The client's side: what it said, and the bytes on their way.
struct Sender {
    recogniser: Recogniser,
    buffer: SendBuffer<Vec<u8>>,
    said: Vec<Command>,
}

impl Sender {
    fn new() -> Sender {
        Sender { recogniser: Recogniser::new(), buffer: SendBuffer::new(0, true), said: Vec::new() }
    }

    fn say(&mut self, header: Header, payload: &[u8]) {
        self.recogniser.write(header, |out| out.extend_from_slice(payload)).unwrap();
        self.buffer.append(|out| self.recogniser.add(header, out)).unwrap();
        self.said.push((header, payload.to_vec()));
    }

    fn flush(&mut self) {
        self.buffer.append(|out| self.recogniser.end(out)).unwrap();
    }

    /// The connection takes up to so many bytes.
    fn send(&mut self, most: usize) -> Vec<u8> {
        let mut parts = [IoSlice::new(&[]); 4];
        let count = self.buffer.next_parts(&mut parts);
        let bytes: Vec<u8> = parts[..count].iter().flat_map(|part| part.iter().copied()).take(most).collect();
        self.buffer.sent(bytes.len());
        bytes
    }
}

/// The worker's side: what it understood.
#[derive(Default)]
struct Receiver {
    decoder: FrameDecoder,
    expander: Expander,
    arrived: u64,
    heard: Vec<Command>,
}

impl Receiver {
    fn receive(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        self.arrived += bytes.len() as u64;
        self.decoder.push(bytes);
        while let Some(frame) = self.decoder.next_frame()? {
            if frame.header.kind == Kind::Command {
                self.heard.push((frame.header, frame.payload.to_vec()));
                continue;
            }
            self.expander.begin(&frame);
            while let Some(Frame { header, payload }) = self.expander.next_command()? {
                self.heard.push((header, payload.to_vec()));
            }
        }
        Ok(())
    }
}

/// Says all of it, and hears it at the other end; the answer is how many bytes went.
fn through(commands: &[Command]) -> u64 {
    let (mut sender, mut receiver) = (Sender::new(), Receiver::default());
    for (header, payload) in commands {
        sender.say(*header, payload);
    }
    sender.flush();
    while sender.buffer.unsent() > 0 {
        let bytes = sender.send(usize::MAX);
        receiver.receive(&bytes).unwrap();
    }
    assert!(receiver.heard == commands);
    sender.buffer.end()
}

/// A step of launches, of which each third has another value in its middle.
fn step(number: u64, launches: u64) -> Vec<Command> {
    let launch = |nth: u64| {
        let mut payload: Vec<u8> = (0..200).map(|byte| (byte * nth) as u8).collect();
        if nth.is_multiple_of(3) {
            payload[100..108].copy_from_slice(&(number * 1000 + nth).to_le_bytes());
        }
        (header(40 + nth as u16 % 5, 1, number * launches + nth), payload)
    };
    (0..launches).map(launch).collect()
}

#[test]
fn a_repeated_step_takes_few_bytes() {
    let steps: Vec<Command> = (0..50).flat_map(|number| step(number, 300)).collect();
    let plain: usize = steps.iter().map(|(_, payload)| HEADER_SIZE + payload.len()).sum();
    let sent = through(&steps);
    assert!(sent < plain as u64 / 25, "{sent} of {plain} bytes");
}

#[test]
fn a_step_that_only_repeats_is_a_number() {
    let (mut sender, mut receiver) = (Sender::new(), Receiver::default());
    let plain = step(7, 250);
    for round in 0..20 {
        for (nth, (header, payload)) in plain.iter().enumerate() {
            sender.say(Header { sequence: round * 250 + nth as u64, ..*header }, payload);
        }
        sender.flush();
        let before = receiver.arrived;
        let bytes = sender.send(usize::MAX);
        receiver.receive(&bytes).unwrap();
        // The header, and where in the history it begins at most.
        assert!(round < 2 || receiver.arrived - before < 64, "{} bytes", receiver.arrived - before);
    }
    assert!(receiver.heard == sender.said);
}

#[test]
fn commands_of_all_sizes_arrive_as_they_were() {
    let sizes = [0, 1, 7, 8, 9, 100, COMMAND_SIZE_MAX - HEADER_SIZE, COMMAND_SIZE_MAX, 100_000];
    let mut commands = Vec::new();
    for round in 0..3_u8 {
        for size in sizes {
            let mut payload = vec![5; size];
            if let Some(last) = payload.last_mut() {
                *last = round;
            }
            commands.push((header(9, 3, commands.len() as u64), payload));
        }
    }
    through(&commands);
}

#[test]
fn lanes_and_gaps_in_their_sequences_are_kept() {
    let place = |nth: u64| (1 + (nth % 7 / 3) as u32, nth + nth / 10);
    let commands: Vec<Command> = (0..200)
        .map(|nth| {
            let (lane, sequence) = place(nth);
            (header(3, lane, sequence), vec![1; 40])
        })
        .collect();
    through(&commands);
    // To the end of the numbers.
    through(&[
        (header(1, 1, u64::MAX - 1), vec![]),
        (header(1, 1, u64::MAX), vec![]),
        (header(1, 1, 0), vec![]),
    ]);
}

#[test]
fn a_frame_tells_no_more_than_it_may() {
    let mut sender = Sender::new();
    let mut receiver = Receiver::default();
    for sequence in 0..1000 {
        sender.say(header(2, 1, sequence), &[3; 1000]);
        assert!(sender.recogniser.pending() <= EXPANSION_MAX);
    }
    sender.flush();
    while sender.buffer.unsent() > 0 {
        let bytes = sender.send(usize::MAX);
        receiver.receive(&bytes).unwrap();
    }
    assert!(receiver.heard == sender.said);
}

/// What a random program does.
#[derive(Clone, Debug)]
enum Act {
    /// Commands from a small alphabet, so that they repeat.
    Say {
        seed: u8,
        count: u8,
        lane: u8,
    },
    /// Repeats the command `distance` places before, with one byte changed or none.
    Again {
        distance: u16,
        count: u8,
        change: Option<(u16, u8)>,
    },
    Flush,
    Send(u16),
    Deliver(u16),
    Acknowledge,
    Cut,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (any::<u8>(), 1..40_u8, 0..3_u8).prop_map(|(seed, count, lane)| Act::Say { seed, count, lane }),
        4 => (1..600_u16, 1..200_u8, prop::option::of((any::<u16>(), any::<u8>())))
            .prop_map(|(distance, count, change)| Act::Again { distance, count, change }),
        3 => Just(Act::Flush),
        4 => any::<u16>().prop_map(Act::Send),
        4 => any::<u16>().prop_map(Act::Deliver),
        1 => Just(Act::Acknowledge),
        2 => Just(Act::Cut),
    ]
}

fn random_payload(seed: u8, nth: u8) -> Vec<u8> {
    let size = match seed % 8 {
        0 => 5000,
        1 => 0,
        kind => usize::from(kind) * 30 + usize::from(nth % 3),
    };
    (0..size).map(|byte| (byte / 16) as u8 ^ seed.wrapping_mul(nth % 5)).collect()
}

/// The next command of a lane.
fn say(sender: &mut Sender, sequences: &mut [u64; 3], op: u16, lane: u32, payload: &[u8]) {
    let sequence = &mut sequences[lane as usize % 3];
    sender.say(header(op, lane, *sequence), payload);
    *sequence += 1;
}

proptest! {
    #[test]
    fn the_worker_hears_what_was_said_whatever_is_cut(acts in prop::collection::vec(act(), 1..120)) {
        let (mut sender, mut receiver) = (Sender::new(), Receiver::default());
        let mut sequences = [0; 3];
        let mut in_flight = Vec::new();
        for act in acts {
            match act {
                Act::Say { seed, count, lane } => for nth in 0..count {
                    let op = u16::from(seed % 11);
                    say(&mut sender, &mut sequences, op, lane.into(), &random_payload(seed, nth));
                },
                Act::Again { distance, count, change } => for _ in 0..count {
                    let Some(before) = sender.said.len().checked_sub(distance.into()) else { break };
                    let (header, mut payload) = sender.said[before].clone();
                    if let Some((at, value)) = change && !payload.is_empty() {
                        let at = usize::from(at) % payload.len();
                        payload[at] = value;
                    }
                    say(&mut sender, &mut sequences, header.op, header.lane, &payload);
                },
                Act::Flush => sender.flush(),
                Act::Send(most) => in_flight.extend(sender.send(most.into())),
                Act::Deliver(most) => {
                    let count = in_flight.len().min(most.into());
                    let bytes: Vec<u8> = in_flight.drain(..count).collect();
                    receiver.receive(&bytes).unwrap();
                }
                Act::Acknowledge => sender.buffer.acknowledge(receiver.arrived).unwrap(),
                Act::Cut => {
                    in_flight.clear();
                    sender.buffer.resume(receiver.arrived).unwrap();
                }
            }
            prop_assert!(sender.said.starts_with(&receiver.heard));
        }
        sender.flush();
        sender.buffer.resume(receiver.arrived).unwrap();
        while sender.buffer.unsent() > 0 {
            let bytes = sender.send(usize::MAX);
            receiver.receive(&bytes).unwrap();
        }
        prop_assert!(sender.said == receiver.heard);
        prop_assert!(receiver.decoder.is_between_frames());
    }

    #[test]
    fn no_entries_make_it_panic(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 1..20),
    ) {
        let _ = expand(&frames);
    }

    #[test]
    fn changed_entries_are_understood_or_refused(at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut sender = Sender::new();
        for (header, payload) in (0..3).flat_map(|number| step(number, 20)) {
            sender.say(header, &payload);
        }
        sender.flush();
        let mut entries = sender.send(usize::MAX).split_off(HEADER_SIZE);
        let at = at.index(entries.len());
        entries[at] = to;
        let _ = expand(&[entries]);
    }
}

/// Commands of frames with these entries, and the first error.
fn expand(frames: &[Vec<u8>]) -> Result<usize, WireError> {
    let mut expander = Expander::new();
    let mut count = 0;
    for entries in frames {
        expander
            .begin(&Frame { header: Header { kind: Kind::Commands, ..header(0, 1, 0) }, payload: entries });
        let mut bytes = 0;
        while let Some(frame) = expander.next_command()? {
            bytes += HEADER_SIZE + frame.payload.len();
            count += 1;
        }
        assert!(bytes <= EXPANSION_MAX);
    }
    Ok(count)
}

/// A new command of ten bytes, then `entries`.
fn after_one(entries: &[u64]) -> Result<usize, WireError> {
    let mut bytes = Vec::new();
    put_number(&mut bytes, 10 << 2 | NEW);
    bytes.extend_from_slice(&[1; 10]);
    entries.iter().for_each(|number| put_number(&mut bytes, *number));
    expand(&[bytes])
}

#[test]
fn entries_that_nobody_makes_are_refused() {
    let check = |entries: &[u64], expect: Result<usize, &str>| {
        let found = after_one(entries).map_err(|error| error.to_string());
        match (&found, expect) {
            (Ok(found), Ok(expect)) => assert_eq!(*found, expect),
            (Err(error), Err(part)) => assert!(error.contains(part), "{entries:?}: {error}"),
            _ => panic!("{entries:?}: {found:?}, not {expect:?}"),
        }
    };
    check(&[ELSEWHERE, 1], Ok(2));
    check(&[ELSEWHERE, 1, 4 << 2 | SAME], Ok(6));
    // Nothing there.
    check(&[SAME | 1 << 2], Err("the distance to a recognised command cannot be 0"));
    check(&[ELSEWHERE, 0], Err("the distance to a recognised command cannot be 0"));
    check(&[ELSEWHERE, 2], Err("the distance to a recognised command cannot be 2"));
    check(&[ELSEWHERE, u64::MAX], Err("the distance to a recognised command cannot be"));
    check(&[CHANGED], Err("the distance to a recognised command cannot be 0"));
    // Counts beyond what a frame may tell.
    check(&[SAME], Err("a count of recognised commands cannot be 0"));
    check(&[ELSEWHERE, 1, SAME | 1 << 20], Err("the size of recognised commands cannot be 262145"));
    check(&[ELSEWHERE, 1, SAME | u64::MAX << 2], Err("the size of recognised commands cannot be 262145"));
    // Changes outside, or that are not there.
    check(&[ELSEWHERE | 1 << 2, 1, 9 << 3, 7], Ok(2));
    check(
        &[ELSEWHERE | 1 << 2, 1, 10 << 3, 7],
        Err("the place of a change in a recognised command cannot be 10"),
    );
    check(&[ELSEWHERE | 1 << 2, 1, 9 << 3 | 1, 7, 7], Err("the place of a change"));
    check(&[ELSEWHERE | 1 << 2, 1, u64::MAX, 7], Err("the place of a change"));
    check(&[ELSEWHERE | 1 << 2, 1, 0], Err("ends before its fields do"));
    check(&[ELSEWHERE | u64::MAX << 2, 1], Err("ends before its fields do"));
    // New commands of no possible size, or cut short.
    check(&[NEW], Err("the size of a command to remember cannot be 0"));
    check(&[NEW | 5000 << 2], Err("the size of a command to remember cannot be 5000"));
    check(&[NEW | u64::MAX << 2], Err("the size of a command to remember cannot be"));
    check(&[NEW | 100 << 2], Err("ends before its fields do"));
}

#[test]
fn numbers_end_within_64_bits() {
    for number in [0, 1, 127, 128, 16_383, 16_384, u64::MAX - 1, u64::MAX] {
        let mut bytes = Vec::new();
        put_number(&mut bytes, number);
        let mut rest = bytes.as_slice();
        assert_eq!((take_number(&mut rest), rest), (Ok(number), &[][..]));
        for cut in 0..bytes.len() {
            assert_eq!(take_number(&mut &bytes[..cut]), Err(WireError::Truncated));
        }
    }
    let mut long = [0x80; 20].as_slice();
    assert!(matches!(take_number(&mut long), Err(WireError::Value { .. })));
}

#[test]
fn what_lies_too_far_back_is_refused() {
    let mut expander = Expander::new();
    let mut entries = Vec::new();
    for _ in 0..200 {
        put_number(&mut entries, 1000 << 2 | NEW);
        entries.extend_from_slice(&[1; 1000]);
    }
    let frame = Frame { header: Header { kind: Kind::Commands, ..header(0, 1, 0) }, payload: &entries };
    for _ in 0..40 {
        expander.begin(&frame);
        while expander.next_command().unwrap().is_some() {}
    }
    let mut back = Vec::new();
    put_number(&mut back, ELSEWHERE);
    put_number(&mut back, 5000);
    expander.begin(&Frame { payload: &back, ..frame });
    let error = expander.next_command().unwrap_err();
    assert_eq!(error, WireError::Value { what: "the distance to a recognised command", value: 5000 });
}
