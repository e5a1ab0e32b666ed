//! Which waits count for a promise.

use super::*;

/// Half of the GPU, with a promise of 5 ms.
fn promising(share_ppm: u32, limit_ppm: u32) -> Weight {
    Weight { share_ppm, limit_ppm, premium: false, wait_ns: 5 * MS }
}

/// A promising lease with two sessions, and another one beside it.
fn promised_beside(weight: Weight) -> (Arbiter, [SessionKey; 3]) {
    let mut arbiter = Arbiter::new(Pace::default());
    let [a, sibling, b] = [1, 2, 3].map(SessionKey);
    let plain = Weight { share_ppm: 500_000, limit_ppm: PPM as u32, premium: false, wait_ns: 0 };
    [(a, 1, weight), (sibling, 1, weight), (b, 2, plain)]
        .into_iter()
        .for_each(|(session, lease, weight)| arbiter.join(0, session, LeaseKey(lease), weight));
    (arbiter, [a, sibling, b])
}

fn turn(arbiter: &mut Arbiter, session: SessionKey, (wants, begins, ends): (u64, u64, u64)) {
    arbiter.want(wants, session);
    arbiter.step(wants);
    arbiter.step(begins);
    arbiter.done(ends, session, Use::whole(ends - begins), false);
    arbiter.step(ends);
}

fn promised(arbiter: &Arbiter, lease: u64) -> (u64, u64) {
    let PromisedWaits { waits, within } = arbiter.waits(10 * SECOND)[&LeaseKey(lease)].promised;
    (waits, within)
}

#[test]
fn a_promise_is_about_waits_of_a_lease_within_its_share() {
    let (mut arbiter, [a, _, b]) = promised_beside(promising(500_000, PPM as u32));
    for (waits_ms, expect) in [(3, (1, 1)), (5, (2, 2)), (6, (3, 2))] {
        let from = 100 * waits_ms * MS;
        arbiter.want(from, b);
        arbiter.step(from);
        arbiter.want(from + MS, a);
        arbiter.step(from + MS);
        let until = from + MS + waits_ms * MS;
        arbiter.done(until, b, Use::whole(until - from), false);
        assert_eq!(arbiter.step(until).actions[0], Action::Grant(a));
        arbiter.done(until + MS, a, Use::whole(MS), false);
        assert_eq!(promised(&arbiter, 1), expect, "after a wait of {waits_ms} ms");
    }
    assert_eq!(promised(&arbiter, 2), (0, 0), "nothing is promised to it");
}

#[test]
fn what_a_lease_waits_for_beyond_its_share_or_at_its_limit_is_not_promised() {
    let tenth = 100_000;
    for (limit_ppm, why) in [(PPM as u32, "beyond its share"), (tenth, "at its limit")] {
        let (mut arbiter, [a, _, b]) = promised_beside(promising(tenth, limit_ppm));
        turn(&mut arbiter, a, (0, 0, SECOND));
        assert_eq!(promised(&arbiter, 1), (1, 1), "the first turn is within its share");
        arbiter.want(SECOND, b);
        arbiter.step(SECOND);
        arbiter.want(SECOND, a);
        arbiter.done(2 * SECOND, b, Use::whole(SECOND), false);
        arbiter.step(2 * SECOND);
        assert_eq!(promised(&arbiter, 1), (1, 1), "{why}");
    }
}

#[test]
fn sessions_of_one_lease_that_wait_for_each_other_miss_no_promise() {
    let (mut arbiter, [a, sibling, _]) = promised_beside(promising(500_000, PPM as u32));
    arbiter.want(0, a);
    arbiter.step(0);
    arbiter.want(0, sibling);
    arbiter.done(20 * MS, a, Use::whole(20 * MS), false);
    assert_eq!(arbiter.step(20 * MS).actions[0], Action::Grant(sibling));
    assert_eq!(promised(&arbiter, 1), (2, 2));
}

#[test]
fn a_session_that_gives_up_while_its_own_lease_has_the_gpu_misses_no_promise() {
    let (mut arbiter, [a, sibling, _]) = promised_beside(promising(500_000, PPM as u32));
    arbiter.want(0, a);
    arbiter.step(0);
    arbiter.want(0, sibling);
    arbiter.leave(30 * MS, sibling);
    assert_eq!(promised(&arbiter, 1), (1, 1));
}

#[test]
fn more_share_gives_back_nothing_that_was_used_beyond_it() {
    let (mut arbiter, [a, _, b]) = promised_beside(promising(100_000, PPM as u32));
    turn(&mut arbiter, a, (0, 0, SECOND));
    arbiter.set_weight(SECOND, LeaseKey(1), promising(101_000, PPM as u32));
    arbiter.want(SECOND, b);
    arbiter.step(SECOND);
    arbiter.want(SECOND, a);
    arbiter.done(2 * SECOND, b, Use::whole(SECOND), false);
    arbiter.step(2 * SECOND);
    assert_eq!(promised(&arbiter, 1), (1, 1));
}

#[test]
fn a_session_that_ends_while_it_waits_for_too_long_has_missed_its_promise() {
    for (gives_up_ms, expect) in [(5, (0, 0)), (6, (1, 0))] {
        let (mut arbiter, [a, _, b]) = promised_beside(promising(500_000, PPM as u32));
        arbiter.want(0, b);
        arbiter.step(0);
        arbiter.want(0, a);
        arbiter.leave(gives_up_ms * MS, a);
        assert_eq!(promised(&arbiter, 1), expect, "after {gives_up_ms} ms");
    }
}
