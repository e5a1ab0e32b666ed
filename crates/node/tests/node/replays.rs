//! Who says that a session or a lease is theirs, and is wrong: refused, and its client does not
//! notice.

use std::net::Shutdown;

use sluice_wire::control::{Control, LeaseEnd, LeaseResume, UsageRequest};
use sluice_wire::handshake::{LeaseToken, Purpose, Resume, SessionSecret};

use crate::hostile::Neighbour;
use crate::raw::{Connection, ELSEWHERE, Lease, Session, hello, lease, request};
use crate::{MIB, TestNode};

/// A program that computes, under a lease of its own, and that may come back after a cut.
fn victim(node: &TestNode) -> (Lease, Neighbour) {
    let lease = lease(&node.address, request(200_000, 64 * MIB));
    let session = Session::open_resumable(&node.address, lease.granted.token);
    let mut victim = Neighbour::new(session);
    victim.computes();
    (lease, victim)
}

/// Why these first words are refused.
fn refusal(node: &TestNode, hello: &[u8]) -> String {
    let mut connection = Connection::say(&node.address, hello);
    let Control::SessionRefused(refused) = connection.control() else { panic!("not refused") };
    connection.wait_for_end();
    refused.reason
}

fn refusal_of(node: &TestNode, resume: Resume) -> String {
    refusal(node, &hello(Purpose::Resume(resume), ELSEWHERE))
}

pub(crate) fn a_wrong_secret_resumes_nothing(node: &TestNode) {
    let (lease, mut victim) = victim(node);
    let right = victim.session.resumption(1);
    for bit in [0, 7, 128, 255] {
        let mut wrong = right.secret;
        wrong.0[bit / 8] ^= 1 << (bit % 8);
        let reason = refusal_of(node, Resume { secret: wrong, ..right });
        assert!(reason.contains("no session goes by that number and secret"), "{reason}");
        victim.computes();
    }
    // What proves the lease does not prove the session.
    let of_lease = SessionSecret(lease.granted.token.0);
    for secret in [of_lease, SessionSecret([0; 32])] {
        let reason = refusal_of(node, Resume { secret, ..right });
        assert!(reason.contains("no session goes by that number and secret"), "{reason}");
    }
    victim.computes();
    drop((lease, victim));
    node.wait_until_idle();
}

pub(crate) fn a_secret_is_of_one_session(node: &TestNode) {
    let (ones_lease, mut one) = victim(node);
    let (others_lease, mut other) = victim(node);
    let (of_one, of_other) = (one.session.resumption(1), other.session.resumption(1));
    for (number, secret) in [
        (of_one.session, of_other.secret),
        (of_other.session, of_one.secret),
        (of_other.session + 1, of_other.secret),
        (u64::MAX, of_one.secret),
    ] {
        let reason = refusal_of(node, Resume { session: number, secret, ..of_one });
        assert!(reason.contains("no session goes by that number and secret"), "{reason}");
        one.computes();
        other.computes();
    }
    // Neither attempt was counted: both go on by their first.
    one.session.resume(&node.address, 1);
    other.session.resume(&node.address, 1);
    one.computes();
    other.computes();
    drop((one, other, ones_lease, others_lease));
    node.wait_until_idle();
}

pub(crate) fn a_stale_or_replayed_attempt_is_refused(node: &TestNode) {
    const MEANWHILE: &str = "the client has come back on another connection meanwhile";
    let (lease, mut victim) = victim(node);
    let recorded = victim.session.resume(&node.address, 5);
    victim.computes();
    let earlier = hello(Purpose::Resume(victim.session.resumption(4)), ELSEWHERE);
    let first = hello(Purpose::Resume(victim.session.resumption(0)), ELSEWHERE);
    for stale in [&recorded, &earlier, &first] {
        assert_eq!(refusal(node, stale), MEANWHILE);
        victim.computes();
    }
    // Also while its client is away.
    victim.session.connection.stream.shutdown(Shutdown::Both).unwrap();
    node.wait_until_parted();
    for stale in [&recorded, &earlier, &first] {
        assert_eq!(refusal(node, stale), MEANWHILE);
    }
    let last = victim.session.resume(&node.address, 6);
    victim.computes();
    for stale in [&recorded, &last] {
        assert_eq!(refusal(node, stale), MEANWHILE);
        victim.computes();
    }
    drop((lease, victim));
    node.wait_until_idle();
    // And after its end.
    let reason = refusal(node, &last);
    assert!(reason.contains("the session has ended"), "{reason}");
}

pub(crate) fn a_foreign_token_resumes_no_lease(node: &TestNode) {
    let (mut mine, mut victim) = victim(node);
    let (mut foreign, session) = (lease(&node.address, request(200_000, 64 * MIB)), victim.session.secret());
    let mut wrong = mine.granted.token;
    wrong.0[0] ^= 1;
    for token in [wrong, LeaseToken(session.0), LeaseToken([0; 32])] {
        let mut connection = Connection::greet(&node.address, Purpose::Control);
        let Control::Refused(refused) = connection.ask(LeaseResume { token }) else { panic!("not refused") };
        assert!(refused.reason.contains("no lease has this token"), "{}", refused.reason);
        // It holds nothing, and nothing ends with it.
        assert!(matches!(connection.ask(UsageRequest {}), Control::Refused(_)));
    }
    // One lease's token takes that one over, and none beside it.
    let mut taken = Connection::greet(&node.address, Purpose::Control);
    let token = foreign.granted.token;
    assert!(matches!(taken.ask(LeaseResume { token }), Control::LeaseResumed(_)));
    foreign.connection.wait_for_end();
    let Control::Usage(usage) = taken.ask(UsageRequest {}) else { panic!("no usage") };
    assert_eq!(usage.sessions, 0);
    drop((taken, foreign));
    let Control::Usage(usage) = mine.connection.ask(UsageRequest {}) else { panic!("no usage") };
    assert_eq!(usage.sessions, 1);
    victim.computes();

    let mut end = Vec::new();
    Control::from(LeaseEnd {}).frame(&mut end).unwrap();
    mine.connection.send(&end);
    let token = mine.granted.token;
    drop((mine, victim));
    node.wait_until_idle();
    let mut late = Connection::greet(&node.address, Purpose::Control);
    assert!(matches!(late.ask(LeaseResume { token }), Control::Refused(_)));
}
