//! Two ends and a connection between them that is cut anywhere.

use proptest::prelude::*;

use super::*;
use crate::{Encode, FrameDecoder, Header, Kind};

/// One direction: what is sent, what the connection carries, what has arrived.
struct Direction {
    buffer: SendBuffer<Vec<u8>>,
    in_flight: Vec<u8>,
    arrived: Vec<u8>,
    said: Vec<u8>,
}

impl Direction {
    fn new() -> Direction {
        Direction { buffer: SendBuffer::new(0, true), in_flight: vec![], arrived: vec![], said: vec![] }
    }

    fn say(&mut self, bytes: &[u8], is_lent: bool) {
        self.said.extend_from_slice(bytes);
        match is_lent {
            true => self.buffer.lend(bytes.to_vec()),
            false => self.buffer.append(|out| out.extend_from_slice(bytes)),
        }
    }

    /// The connection takes up to `most` bytes.
    fn send(&mut self, most: usize) {
        let mut parts = [IoSlice::new(&[]); 3];
        let count = self.buffer.next_parts(&mut parts);
        let bytes: Vec<u8> = parts[..count].iter().flat_map(|part| part.iter().copied()).take(most).collect();
        self.buffer.sent(bytes.len());
        self.in_flight.extend(bytes);
    }

    fn deliver(&mut self, most: usize) {
        let count = most.min(self.in_flight.len());
        self.arrived.extend(self.in_flight.drain(..count));
    }

    fn acknowledge(&mut self) {
        self.buffer.acknowledge(self.arrived.len() as u64).unwrap();
    }

    /// What is on its way is lost; both sides agree on where to continue.
    fn cut(&mut self) {
        self.in_flight.clear();
        self.buffer.resume(self.arrived.len() as u64).unwrap();
    }

    fn finish(&mut self) {
        while self.buffer.unsent() > 0 {
            self.send(usize::MAX);
        }
        self.deliver(usize::MAX);
    }
}

proptest! {
    #[test]
    fn every_byte_arrives_once_whatever_is_cut(
        steps in prop::collection::vec((0_u8..6, 0_usize..200_000), 1..200),
    ) {
        let mut direction = Direction::new();
        let mut next = 0_u8;
        for (step, size) in steps {
            match step {
                0 | 1 => {
                    let bytes: Vec<u8> = (0..size % 70_000).map(|i| (i as u8).wrapping_add(next)).collect();
                    next = next.wrapping_add(41);
                    direction.say(&bytes, step == 1);
                }
                2 => direction.send(size),
                3 => direction.deliver(size),
                4 => direction.acknowledge(),
                _ => direction.cut(),
            }
            prop_assert!(direction.said.starts_with(&direction.arrived));
        }
        direction.finish();
        prop_assert!(direction.arrived == direction.said);
        direction.acknowledge();
        prop_assert_eq!(direction.buffer.start, direction.buffer.end);
    }
}

/// A recorded exchange of frames, cut once at each of its bytes and again at each of what is sent
/// then.
#[test]
fn a_cut_at_any_byte_changes_nothing() {
    let header = Header { kind: Kind::Command, device: 0, op: 1, lane: 2, sequence: 3 };
    let frames: Vec<Vec<u8>> = (0..6_usize).map(|size| vec![size as u8; size * 7]).collect();
    let say_all = || {
        let mut direction = Direction::new();
        for payload in &frames {
            let mut frame = Vec::new();
            header.frame(&mut frame, |out| payload.as_slice().encode(out)).unwrap();
            direction.say(&frame, payload.len() > 20);
        }
        direction
    };
    let total = say_all().said.len();
    for first in 0..=total {
        for second in 0..=total - first {
            let mut direction = say_all();
            for cut in [first, second] {
                direction.send(usize::MAX);
                direction.send(usize::MAX);
                direction.deliver(cut);
                direction.cut();
            }
            direction.finish();
            let mut decoder = FrameDecoder::new();
            decoder.push(&direction.arrived);
            for payload in &frames {
                let frame = decoder.next_frame().unwrap().unwrap();
                assert_eq!(&frame.payload[4..], payload, "cut at {first} and {second}");
            }
            assert!(decoder.is_between_frames());
        }
    }
}

#[test]
fn positions_outside_the_window_are_refused() {
    let mut direction = Direction::new();
    direction.say(&[1; 100], false);
    let end = direction.buffer.end();
    assert!(direction.buffer.acknowledge(end + 1).is_err(), "there is no such byte");
    direction.send(60);
    assert!(direction.buffer.resume(end + 1).is_err(), "nor here");
    direction.deliver(60);
    direction.send(40);
    direction.deliver(40);
    direction.acknowledge();
    assert!(direction.buffer.resume(99).is_err(), "these are gone");
    // One that came late.
    direction.buffer.acknowledge(30).unwrap();
    direction.cut();
    direction.say(&[2; 10], false);
    direction.finish();
    assert_eq!(direction.arrived, direction.said);
}

/// A record that a connection took in part counts as sent once all of it is, and may be with the
/// peer before.
#[test]
fn the_peer_may_have_more_than_counts_as_sent() {
    let mut buffer: SendBuffer<Vec<u8>> = SendBuffer::new(0, true);
    buffer.append(|out| out.extend_from_slice(&[7; 100]));
    buffer.sent(40);
    buffer.acknowledge(70).unwrap();
    assert_eq!((buffer.start(), buffer.unsent()), (0, 60), "it is held until it counts as sent");
    buffer.resume(70).unwrap();
    assert_eq!(buffer.unsent(), 30);
    buffer.sent(30);
    buffer.acknowledge(100).unwrap();
    assert_eq!(buffer.start(), 100);
}

#[test]
fn what_cannot_be_resumed_is_not_kept() {
    let mut buffer: SendBuffer<Vec<u8>> = SendBuffer::new(0, false);
    for _ in 0..100 {
        buffer.append(|out| out.extend_from_slice(&[7; 1 << 20]));
        buffer.sent(1 << 20);
        assert!(buffer.pieces.is_empty() && !buffer.is_full());
    }
    assert_eq!(buffer.spare.len(), 1, "one piece of memory serves all");
}

#[test]
fn what_is_held_can_be_abandoned() {
    let mut buffer: SendBuffer<Vec<u8>> = SendBuffer::new(7, false);
    buffer.append(|out| out.extend_from_slice(b"one"));
    buffer.lend(b"two".to_vec());
    buffer.sent(4);
    assert_eq!(buffer.start(), 10, "what was sent whole is not held");
    buffer.abandon();
    assert_eq!((buffer.unsent(), buffer.start(), buffer.end()), (0, 13, 13));
    buffer.append(|out| out.extend_from_slice(b"three"));
    assert_eq!(buffer.unsent(), 5);
    assert_eq!(buffer.next_parts(&mut [IoSlice::new(&[])]), 1);
}

#[test]
fn small_portions_have_the_least_window_and_large_ones_all_of_it() {
    let mut buffer: SendBuffer<Vec<u8>> = SendBuffer::new(0, true);
    buffer.pace = Pace::of(WINDOW_MAX);
    let add = |buffer: &mut SendBuffer<Vec<u8>>, bytes: usize| {
        buffer.append(|out| out.resize(out.len() + bytes, 1));
        let unsent = buffer.unsent() as usize;
        buffer.sent(unsent);
    };
    for _ in 0..2 * WINDOW as usize / LARGE {
        add(&mut buffer, LARGE);
        buffer.lend(vec![2; LARGE]);
    }
    assert!(!buffer.is_full());
    let large = buffer.end();
    for _ in 0..WINDOW / 1024 {
        assert!(!buffer.is_full());
        add(&mut buffer, 1024);
    }
    assert!(buffer.is_full() && buffer.room_after() > large, "{}", buffer.room_after());
    // What the peer has said leaves room for more, if little.
    let room_after = buffer.room_after();
    buffer.acknowledge(room_after - 1).unwrap();
    assert!(buffer.is_full());
    buffer.acknowledge(room_after).unwrap();
    assert!(!buffer.is_full());
    assert_eq!(buffer.small, buffer.pieces.iter().map(Piece::small).sum::<u64>());
    while !buffer.is_full() {
        add(&mut buffer, 1 << 20);
    }
    assert!(buffer.end() - buffer.start() >= WINDOW_MAX);
    buffer.acknowledge(buffer.room_after()).unwrap();
    assert!(buffer.end() - buffer.start() < WINDOW_MAX + LARGE as u64);
    buffer.acknowledge(buffer.end()).unwrap();
    assert_eq!(buffer.small, 0);
}

#[test]
fn another_connection_begins_with_the_least_window() {
    let mut buffer: SendBuffer<Vec<u8>> = SendBuffer::new(0, true);
    buffer.pace = Pace::of(WINDOW_MAX);
    buffer.lend(vec![1; 2 * WINDOW as usize]);
    buffer.sent(100);
    assert!(!buffer.is_full());
    buffer.resume(50).unwrap();
    assert_eq!(buffer.window(), WINDOW);
    assert!(buffer.is_full(), "nothing is lost");
    assert_eq!(buffer.unsent(), 2 * WINDOW - 50);
}
