//! The planner in simulated time, on a GPU on which moves take time by their bytes.

use std::collections::BTreeSet;

use super::*;

const GIB: u64 = 1 << 30;
const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;

fn key(number: u64) -> SessionKey {
    SessionKey(number)
}

/// A card in virtual time, on which moves take time by their bytes.
struct Card {
    planner: Planner,
    now_ns: u64,
    /// Bytes in a nanosecond.
    bandwidth: u64,
    /// Moves that have begun, by the time at which they end.
    moves: BTreeSet<(u64, Move)>,
    granted: Vec<SessionKey>,
    wake_at_ns: Option<u64>,
    moving_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Move {
    Out(SessionKey),
    In(SessionKey),
}

impl Card {
    fn new(room: u64) -> Card {
        Card {
            planner: Planner::new(SlicePolicy::default(), room, 0),
            now_ns: 0,
            bandwidth: 50,
            moves: BTreeSet::new(),
            granted: Vec::new(),
            wake_at_ns: None,
            moving_ns: 0,
        }
    }

    fn step(&mut self) {
        let decision = self.planner.step(self.now_ns);
        for action in decision.actions {
            let (key, of): (SessionKey, fn(SessionKey) -> Move) = match action {
                Action::MoveOut(key) => (key, Move::Out),
                Action::MoveIn(key) => (key, Move::In),
                Action::Grant(key) => {
                    self.granted.push(key);
                    continue;
                }
                Action::Refuse(_) => continue,
            };
            let took = self.planner.sessions[&key].movable() / self.bandwidth;
            self.moving_ns += took;
            self.moves.insert((self.now_ns + took, of(key)));
        }
        self.wake_at_ns = decision.wake_at_ns;
        assert!(self.planner.held() <= self.planner.capacity(), "the card has no more");
    }

    /// Lets time pass until then, and does what falls due.
    fn run(&mut self, until_ns: u64) {
        self.step();
        loop {
            let next_move = self.moves.first().map(|(at, _)| *at);
            let next = next_move.into_iter().chain(self.wake_at_ns).min().filter(|at| *at <= until_ns);
            let Some(next) = next else { break };
            self.now_ns = self.now_ns.max(next);
            while let Some(&(at, of)) = self.moves.first().filter(|(at, _)| *at <= self.now_ns) {
                self.moves.remove(&(at, of));
                match of {
                    Move::Out(key) => self.planner.moved_out(self.now_ns, key, 0),
                    Move::In(key) => self.planner.moved_in(self.now_ns, key),
                }
            }
            self.step();
        }
        self.now_ns = until_ns;
    }

    fn with_session(&mut self, number: u64, bytes: u64) {
        self.planner.join(self.now_ns, key(number), false);
        self.planner.request(key(number), bytes);
        self.planner.want(key(number));
    }
}

#[test]
fn sessions_that_fit_together_never_move() {
    let mut card = Card::new(10 * GIB);
    for number in 1..=5 {
        card.with_session(number, 2 * GIB);
    }
    card.run(100 * S);
    assert_eq!((card.granted.len(), card.moving_ns, card.planner.held()), (5, 0, 10 * GIB));
    card.planner.request(key(1), 9 * GIB);
    assert_eq!(card.planner.step(card.now_ns).actions, [Action::Refuse(key(1))], "the card never has that");
}

#[test]
fn sessions_that_do_not_fit_alternate_and_a_tenth_of_the_time_goes_to_swapping() {
    let mut card = Card::new(10 * GIB);
    for number in 1..=3 {
        card.with_session(number, 7 * GIB);
    }
    let hour = 3_600 * S;
    let mut here = [0_u64; 4];
    while card.now_ns < hour {
        let before = card.now_ns;
        card.run(before + 50 * MS);
        for number in 1..=3 {
            // Each always has work.
            card.planner.want(key(number));
            if card.planner.is_present(key(number)) && card.planner.sessions[&key(number)].bytes > 0 {
                here[number as usize] += 50 * MS;
            }
        }
    }
    let all: u64 = here.iter().sum();
    assert!(all > hour * 88 / 100, "{all} of {hour}");
    for number in 1..=3 {
        assert!(here[number] > hour * 27 / 100, "{here:?}");
    }
}

#[test]
fn an_idle_session_makes_room_early() {
    let mut card = Card::new(10 * GIB);
    card.with_session(1, 8 * GIB);
    card.run(10 * MS);
    card.planner.idle(card.now_ns, key(1));
    card.with_session(2, 8 * GIB);
    card.run(card.now_ns + S);
    assert_eq!(card.granted, [key(1), key(2)]);
    assert!(card.planner.is_present(key(2)) && !card.planner.is_present(key(1)));
}

#[test]
fn two_that_wait_for_more_do_not_wait_for_each_other() {
    let mut card = Card::new(10 * GIB);
    card.with_session(1, 5 * GIB);
    card.with_session(2, 5 * GIB);
    card.run(MS);
    card.planner.request(key(1), 3 * GIB);
    card.planner.request(key(2), 3 * GIB);
    card.run(card.now_ns + 100 * S);
    assert_eq!(card.granted[2..], [key(1), key(2)], "each has it some time");
}

#[test]
fn one_that_cannot_leave_is_left_alone_for_a_while() {
    let mut planner = Planner::new(SlicePolicy::default(), 10 * GIB, 0);
    for number in [1, 2] {
        planner.join(0, key(number), false);
        planner.request(key(number), 8 * GIB);
        planner.want(key(number));
    }
    assert_eq!(planner.step(0).actions, [Action::Grant(key(1))]);
    assert_eq!(planner.step(30 * S).actions, [Action::MoveOut(key(1))]);
    planner.not_moved_out(40 * S, key(1), false);
    let decision = planner.step(40 * S);
    assert_eq!((decision.actions, decision.wake_at_ns), (vec![], Some(50 * S)));
    assert_eq!(planner.step(50 * S).actions, [Action::MoveOut(key(1))]);
    planner.not_moved_out(60 * S, key(1), true);
    let decision = planner.step(60 * S);
    assert_eq!((decision.actions, decision.wake_at_ns), (vec![], Some(61 * S)));
    assert_eq!(planner.step(61 * S).actions, [Action::MoveOut(key(1))]);
}

/// Mixes of sessions of any size, which work, rest, grow, shrink, cannot leave and end.
#[test]
fn no_session_starves_in_any_mix_and_nothing_is_held_at_the_end() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let room = random.u64(4..=64) * GIB;
        let mut card = Card::new(room);
        let count = random.u64(1..=8);
        let mut waits_since = BTreeMap::new();
        for number in 1..=count {
            card.with_session(number, random.u64(1..=room));
            waits_since.insert(number, card.now_ns);
        }
        for _ in 0..400 {
            card.run(card.now_ns + random.u64(1..=2_000) * MS);
            let number = random.u64(1..=count);
            match random.u8(0..6) {
                0 => card.planner.idle(card.now_ns, key(number)),
                1 => card.planner.request(key(number), random.u64(0..=room / 8)),
                2 => card.planner.give_back(key(number), random.u64(0..=room / 8)),
                3 if random.u8(0..20) == 0 => {
                    card.planner.leave(key(number));
                    card.moves
                        .retain(|(_, of)| !matches!(of, Move::Out(k) | Move::In(k) if *k == key(number)));
                    card.planner.join(card.now_ns, key(number), false);
                }
                _ => card.planner.want(key(number)),
            }
            for number in 1..=count {
                match card.planner.sessions[&key(number)].ticket {
                    None => _ = waits_since.remove(&number),
                    Some(_) => _ = waits_since.entry(number).or_insert(card.now_ns),
                }
            }
            // The slices of all before it, and the moves.
            let bound = 31 * S + 8 * count * room / card.bandwidth + 2 * S * count;
            for (number, since) in &waits_since {
                let waited = card.now_ns - since;
                assert!(
                    waited <= bound,
                    "seed {seed}: session {number} waits for {waited} ns, bound {bound}"
                );
            }
        }
        for number in 1..=count {
            card.planner.leave(key(number));
        }
        assert_eq!((card.planner.held(), card.planner.sessions.len()), (0, 0));
        assert_eq!(card.planner.step(card.now_ns), Decision::default());
    }
}

#[test]
fn a_suspended_session_leaves_and_asks_for_nothing_until_it_is_resumed() {
    let mut card = Card::new(10 * GIB);
    card.with_session(1, 8 * GIB);
    card.run(MS);
    card.planner.set_suspended(key(1), true);
    card.run(S);
    assert_eq!((card.planner.is_present(key(1)), card.planner.held()), (false, 0));
    card.planner.want(key(1));
    card.planner.request(key(1), GIB);
    card.with_session(2, 8 * GIB);
    card.run(2 * S);
    assert_eq!(card.granted, [key(1), key(2)], "what waits for a resume is passed over");
    card.planner.set_suspended(key(1), false);
    card.run(60 * S);
    assert!(card.planner.is_present(key(1)));
    assert_eq!(card.granted, [key(1), key(2), key(1)]);
}

#[test]
fn memory_that_cannot_leave_refuses_what_it_leaves_no_room_for() {
    let mut planner = Planner::new(SlicePolicy::default(), 10 * GIB, 0);
    for number in [1, 2] {
        planner.join(0, key(number), false);
        planner.request(key(number), 6 * GIB);
    }
    assert_eq!(planner.step(0).actions, [Action::Grant(key(1))]);
    assert_eq!(planner.step(S).actions, [Action::MoveOut(key(1))]);
    planner.moved_out(S, key(1), 5 * GIB);
    assert_eq!(planner.step(S).actions, [Action::Refuse(key(2))]);
    assert_eq!(planner.immovable().collect::<Vec<_>>(), [(key(1), 5 * GIB)]);
    // It has given back what could not leave.
    planner.limit_pinned(key(1), GIB);
    planner.request(key(2), 6 * GIB);
    assert_eq!(planner.step(S).actions, [Action::Grant(key(2))]);
}

#[test]
fn fixed_sessions_never_leave_and_have_others_leave() {
    let mut planner = Planner::new(SlicePolicy::default(), 10 * GIB, 0);
    planner.join(0, key(1), false);
    planner.request(key(1), 8 * GIB);
    assert_eq!(planner.step(0).actions, [Action::Grant(key(1))]);
    planner.join(0, key(2), true);
    planner.request(key(2), 4 * GIB);
    assert_eq!(planner.step(S).actions, [Action::MoveOut(key(1))]);
    planner.moved_out(S, key(1), 0);
    assert_eq!(planner.step(S).actions, [Action::Grant(key(2))]);
    planner.want(key(1));
    assert_eq!(planner.step(100 * S).actions, [], "it does not fit beside the fixed one");
    planner.leave(key(2));
    assert_eq!(planner.step(100 * S).actions, [Action::MoveIn(key(1))]);
}

#[test]
fn memory_that_could_not_return_is_tried_again() {
    let mut planner = Planner::new(SlicePolicy::default(), 10 * GIB, 0);
    planner.join(0, key(1), false);
    planner.request(key(1), 8 * GIB);
    planner.step(0);
    planner.evict(key(1));
    assert_eq!(planner.step(0).actions, [Action::MoveOut(key(1))]);
    planner.want(key(1));
    planner.moved_out(0, key(1), 0);
    assert_eq!(planner.step(0).actions, [Action::MoveIn(key(1))]);
    planner.not_moved_in(0, key(1));
    assert_eq!(planner.step(0), Decision { actions: vec![], wake_at_ns: Some(S) });
    assert_eq!(planner.step(S).actions, [Action::MoveIn(key(1))]);
}

#[test]
fn memory_that_is_pinned_at_once_makes_others_leave() {
    let mut planner = Planner::new(SlicePolicy::default(), 10 * GIB, 0);
    for number in [1, 2] {
        planner.join(0, key(number), false);
        planner.request(key(number), 5 * GIB);
    }
    planner.step(0);
    planner.pin(key(2), GIB);
    assert_eq!(planner.step(S).actions, [Action::MoveOut(key(1))]);
    planner.moved_out(S, key(1), 0);
    assert_eq!(planner.held(), 6 * GIB);
}

#[test]
fn what_the_driver_refuses_does_not_fit_for_a_while() {
    let mut planner = Planner::new(SlicePolicy::default(), 10 * GIB, 0);
    for number in [1, 2] {
        planner.join(0, key(number), false);
        planner.request(key(number), 5 * GIB);
    }
    assert_eq!(planner.step(0).actions, [Action::Grant(key(1)), Action::Grant(key(2))]);
    // Something else has half a GiB of the GPU, so the second gives back what it was granted.
    planner.give_back(key(2), 5 * GIB);
    planner.card_is_full(0, key(2), 5 * GIB - GIB / 2);
    assert_eq!(planner.used_by_others(), GIB / 2);
    planner.card_is_full(0, key(2), 0);
    assert_eq!(planner.used_by_others(), GIB / 2, "it was refused once");
    planner.request(key(2), 5 * GIB);
    assert_eq!(planner.step(S).actions, [Action::MoveOut(key(1))]);
    planner.moved_out(S, key(1), 0);
    assert_eq!(planner.step(S).actions, [Action::Grant(key(2))]);
    planner.step(10 * S);
    assert_eq!(planner.used_by_others(), 0);
}

#[test]
fn memory_that_could_not_return_for_something_else_returns_later() {
    let mut planner = Planner::new(SlicePolicy::default(), 10 * GIB, 0);
    planner.join(0, key(1), false);
    planner.request(key(1), 8 * GIB);
    planner.step(0);
    planner.evict(key(1));
    planner.step(0);
    planner.want(key(1));
    planner.moved_out(0, key(1), 0);
    assert_eq!(planner.step(0).actions, [Action::MoveIn(key(1))]);
    planner.not_moved_in(0, key(1));
    planner.card_is_full(0, key(1), 2 * GIB);
    assert_eq!(planner.step(5 * S), Decision { actions: vec![], wake_at_ns: Some(10 * S) });
    assert_eq!(planner.step(10 * S).actions, [Action::MoveIn(key(1))]);
}

#[test]
fn contexts_take_memory_and_grants_leave_room_for_one_more() {
    let mut planner = Planner::new(SlicePolicy::default(), 10 * GIB, GIB);
    planner.join(0, key(1), false);
    planner.request(key(1), 9 * GIB);
    assert_eq!(planner.step(0).actions, [Action::Refuse(key(1))], "there would be no second context");
    planner.request(key(1), 8 * GIB);
    assert_eq!(planner.step(0).actions, [Action::Grant(key(1))]);
    planner.join(S, key(2), false);
    assert_eq!(planner.step(2 * S).actions, [], "both contexts fit beside it");
    planner.request(key(2), GIB);
    assert_eq!(planner.step(2 * S).actions, [Action::MoveOut(key(1))]);
    planner.moved_out(2 * S, key(1), 0);
    assert_eq!(planner.step(2 * S).actions, [Action::Grant(key(2))]);
    planner.want(key(1));
    assert_eq!(planner.step(4 * S).actions, [Action::MoveOut(key(2))]);
    planner.moved_out(4 * S, key(2), 0);
    assert_eq!(planner.step(4 * S).actions, [Action::MoveIn(key(1))]);
    // What sessions share has no context.
    planner.join_shared(4 * S, key(3));
    assert_eq!(planner.used_by_others(), 2 * GIB);
}
