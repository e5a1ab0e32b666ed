//! Messages in flight: late, twice, out of order, or never.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::extract::Request;
use fastrand::Rng;

/// Who sends and receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Party {
    Server(usize),
    Node(usize),
    Program(usize),
    Administrator,
}

#[derive(Clone)]
pub(super) enum Payload {
    Request(std::sync::Arc<Request<Bytes>>),
    Answer { status: u16, body: Bytes },
}

#[derive(Clone)]
pub(super) struct Message {
    pub(super) from: Party,
    pub(super) to: Party,
    /// An answer has that of its request.
    pub(super) exchange: u64,
    pub(super) payload: Payload,
}

/// How bad it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    /// Of a thousand messages.
    pub(super) lost: u32,
    pub(super) doubled: u32,
    /// Messages so late that the receiver has given up.
    pub(super) stray: u32,
}

pub(super) const FAIR: Weather = Weather { lost: 0, doubled: 0, stray: 0 };
pub(super) const FOUL: Weather = Weather { lost: 15, doubled: 40, stray: 15 };

#[derive(Default)]
pub(super) struct Network {
    /// By the moment of arrival, and the order in which they were sent.
    on_their_way: BTreeMap<(u64, u64), Message>,
    sent: u64,
    /// Pairs that do not reach each other, and until when.
    cuts: BTreeMap<(Party, Party), u64>,
    pub(super) faults: u64,
}

impl Network {
    pub(super) fn send(&mut self, message: Message, now_ms: u64, weather: Weather, rng: &mut Rng) {
        let mut chance = |of_thousand: u32| rng.u32(..1000) < of_thousand;
        if self.is_cut(message.from, message.to, now_ms) || chance(weather.lost) {
            self.faults += 1;
            return;
        }
        let copies = 1 + u32::from(chance(weather.doubled));
        for copy in 0..copies {
            let stray = rng.u32(..1000) < weather.stray;
            self.faults += u64::from(copy > 0) + u64::from(stray);
            let delay_ms = match (copy, stray) {
                (0, false) => rng.u64(1..80),
                (_, false) => rng.u64(1..5_000),
                (_, true) => rng.u64(5_000..60_000),
            };
            self.sent += 1;
            self.on_their_way.insert((now_ms + delay_ms, self.sent), message.clone());
        }
    }

    /// What arrives until now.
    pub(super) fn arrived(&mut self, now_ms: u64) -> Vec<Message> {
        let later = self.on_their_way.split_off(&(now_ms + 1, 0));
        std::mem::replace(&mut self.on_their_way, later).into_values().collect()
    }

    pub(super) fn cut(&mut self, a: Party, b: Party, until_ms: u64) {
        self.faults += 1;
        self.cuts.insert((a.min(b), a.max(b)), until_ms);
    }

    pub(super) fn is_cut(&self, a: Party, b: Party, now_ms: u64) -> bool {
        self.cuts.get(&(a.min(b), a.max(b))).is_some_and(|&until_ms| now_ms < until_ms)
    }

    pub(super) fn heal(&mut self) {
        self.cuts.clear();
    }
}
