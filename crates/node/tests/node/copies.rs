//! Sessions that are copied, stopped and restored, by messages made by hand.

use sluice_wire::checkpoint::{ChunkTag, NO_HASH, chunks};
use sluice_wire::control::{
    Checkpoint, CheckpointBegun, CheckpointDecided, Control, LeaseName, LeaseQuestion, LeaseRestored,
    LeaseResume, MoveDecided, MovePiece,
};
use sluice_wire::handshake::{LeaseToken, Purpose, SessionSecret};
use sluice_wire::migration::SessionState;
use sluice_wire::{Encode, decode};

use crate::clones::clone;
use crate::elastic::{check, fill};
use crate::raw::{Connection, ELSEWHERE, Lease, Session, hello, lease, request};
use crate::{MIB, TestNode, commit};

/// What the machine that keeps a copy has of it.
struct Copy {
    connection: Connection,
    begun: CheckpointBegun,
    piece: Vec<u8>,
    state: SessionState,
    /// Of all chunks, with zeros where they are zero.
    contents: Vec<u8>,
    tags: Vec<ChunkTag>,
}

impl Copy {
    fn refusal(node: &TestNode, number: u64) -> String {
        let mut connection = Connection::greet(&node.address, Purpose::Control);
        match connection.ask(Checkpoint { lease: LeaseName::Numbered(number) }) {
            Control::CheckpointBegun(_) => {}
            Control::Refused(refused) => return refused.reason,
            other => panic!("no answer to that: {other:?}"),
        }
        match connection.control() {
            Control::Refused(refused) => refused.reason,
            other => panic!("it is not refused: {other:?}"),
        }
    }

    fn take(node: &TestNode, number: u64) -> Copy {
        let mut connection = Connection::greet(&node.address, Purpose::Control);
        let Control::CheckpointBegun(begun) =
            connection.ask(Checkpoint { lease: LeaseName::Numbered(number) })
        else {
            panic!("no copy")
        };
        let mut piece = Vec::new();
        let size = take(&mut connection, &mut piece, 8);
        let size = u64::from_le_bytes(size.try_into().unwrap());
        let state: SessionState = decode(&take(&mut connection, &mut piece, size as usize)).unwrap();
        let hashes = chunks(&state).flat_map(|_| NO_HASH).collect();
        say(&mut connection, MovePiece { bytes: hashes });
        let mut copy = Copy { connection, begun, piece, state, contents: Vec::new(), tags: Vec::new() };
        copy.take_contents();
        copy
    }

    fn take_contents(&mut self) {
        for place in chunks(&self.state) {
            let tag = take(&mut self.connection, &mut self.piece, 1)[0];
            let tag = ChunkTag::from_byte(tag).unwrap();
            let bytes = match tag {
                ChunkTag::Bytes => take(&mut self.connection, &mut self.piece, place.bytes as usize),
                _ => vec![0; place.bytes as usize],
            };
            self.tags.push(tag);
            self.contents.extend(bytes);
        }
    }

    fn decide(&mut self, stops: bool) {
        match self.connection.ask(CheckpointDecided { stops }) {
            Control::Checkpointed(done) => assert_eq!(done.stopped, stops),
            other => panic!("it is not done: {other:?}"),
        }
    }

    /// As it goes to a worker.
    fn bytes(&self) -> Vec<u8> {
        let mut state = Vec::new();
        self.state.encode(&mut state);
        [&(state.len() as u64).to_le_bytes()[..], &state, &self.contents].concat()
    }
}

/// The next bytes that the worker has said.
fn take(connection: &mut Connection, rest: &mut Vec<u8>, count: usize) -> Vec<u8> {
    while rest.len() < count {
        match connection.control() {
            Control::MovePiece(piece) => rest.extend(piece.bytes),
            other => panic!("no piece of a session: {other:?}"),
        }
    }
    let later = rest.split_off(count);
    std::mem::replace(rest, later)
}

fn say(connection: &mut Connection, message: impl Into<Control>) {
    let mut bytes = Vec::new();
    message.into().frame(&mut bytes).unwrap();
    connection.send(&bytes);
}

/// A program that has numbers in its memory, and where.
pub(crate) fn program(node: &TestNode) -> (Lease, Session, u64) {
    let lease = lease(&node.address, request(200_000, 64 * MIB));
    let mut session = Session::open_resumable(&node.address, lease.granted.token);
    let place = commit(&mut session, 0, 16 * MIB).unwrap();
    fill(&mut session, place, 8 * MIB, 1);
    (lease, session, place)
}

pub(crate) fn a_session_that_was_copied_goes_on(node: &TestNode) {
    let (lease, mut session, place) = program(node);
    let mut copy = Copy::take(node, lease.granted.lease);
    assert_eq!(copy.begun.session, session.opened.session);
    assert!(copy.tags.contains(&ChunkTag::Bytes) && copy.tags.contains(&ChunkTag::Zero), "{:?}", copy.tags);
    copy.decide(false);
    session.resume(&node.address, 1);
    check(&mut session, place, 8 * MIB, 1);
    // One that keeps a copy and is gone, and one that never says what it has.
    drop(Copy::take(node, lease.granted.lease));
    session.resume(&node.address, 2);
    check(&mut session, place, 8 * MIB, 1);
    let mut silent = Connection::greet(&node.address, Purpose::Control);
    let asked = Checkpoint { lease: LeaseName::Numbered(lease.granted.lease) };
    assert!(matches!(silent.ask(asked), Control::CheckpointBegun(_)));
    drop(silent);
    session.resume(&node.address, 3);
    fill(&mut session, place, 8 * MIB, 2);
    check(&mut session, place, 8 * MIB, 2);
    drop((session, lease));
    node.wait_until_idle();
}

pub(crate) fn a_stopped_session_waits_and_is_restored(node: &TestNode) {
    let (mut lease, mut session, place) = program(node);
    let (token, number) = (lease.granted.token, lease.granted.lease);
    let mut copy = Copy::take(node, number);
    copy.decide(true);
    lease.connection.wait_for_end();
    session.connection.wait_for_end();
    node.wait_until_idle();
    // Its client and its holder wait, and others learn nothing.
    let stored = |hello: &[u8]| Connection::say(&node.address, hello).control();
    let resumption = hello(Purpose::Resume(session.resumption(1)), ELSEWHERE);
    assert!(matches!(stored(&resumption), Control::LeaseStored(_)));
    let mut wrong = session.resumption(1);
    wrong.secret = SessionSecret([3; 32]);
    assert!(matches!(stored(&hello(Purpose::Resume(wrong), ELSEWHERE)), Control::SessionRefused(_)));
    let ask = |question: Control| Connection::greet(&node.address, Purpose::Control).ask(question);
    assert!(matches!(ask(LeaseResume { token }.into()), Control::LeaseStored(_)));
    assert!(matches!(ask(LeaseQuestion { token }.into()), Control::LeaseStored(_)));
    let foreign = LeaseToken([3; 32]);
    assert!(matches!(ask(LeaseQuestion { token: foreign }.into()), Control::Refused(_)));
    // Only who has its secret may say where it is.
    let elsewhere =
        |secret, session| LeaseRestored { token, secret, session, node: "127.0.0.1:1".into(), there: 1 };
    for message in
        [elsewhere(SessionSecret([3; 32]), session.opened.session), elsewhere(session.secret(), 7777)]
    {
        assert!(matches!(ask(message.into()), Control::Refused(_)));
    }
    assert!(matches!(ask(LeaseQuestion { token }.into()), Control::LeaseStored(_)));
    // The restore.
    let mut restoring = Connection::greet(&node.address, Purpose::Control);
    let Control::MoveAccepted(accepted) = restoring.ask(copy.begun.offer.clone()) else {
        panic!("it is not taken back")
    };
    for piece in copy.bytes().chunks(256 << 10) {
        say(&mut restoring, MovePiece { bytes: piece.to_vec() });
    }
    assert!(matches!(restoring.control(), Control::MoveArrived(_)));
    say(&mut restoring, MoveDecided { moves: true, used: None, recorded_until_ms: None });
    restoring.wait_for_end();
    let mut holder = Connection::greet(&node.address, Purpose::Control);
    assert!(matches!(holder.ask(LeaseResume { token }), Control::LeaseResumed(_)));
    assert!(matches!(ask(LeaseQuestion { token }.into()), Control::LeaseHere(_)));
    // By the number and the secret that it had.
    assert_ne!(accepted.session, session.opened.session);
    session.resume(&node.address, 2);
    check(&mut session, place, 8 * MIB, 1);
    fill(&mut session, place, 8 * MIB, 5);
    check(&mut session, place, 8 * MIB, 5);
    drop((session, holder));
    node.wait_until_idle();
}

pub(crate) fn a_session_is_found_by_a_number_that_another_has(node: &TestNode) {
    let (lease, mut session, place) = program(node);
    let (_other_lease, other, _) = program(node);
    // As after a restore on a daemon whose numbers have begun anew.
    let (there, former) = (session.opened.session, other.opened.session);
    let restored = LeaseRestored {
        token: lease.granted.token,
        secret: session.secret(),
        session: former,
        node: node.address.clone(),
        there,
    };
    let answer = Connection::greet(&node.address, Purpose::Control).ask(restored);
    assert!(matches!(answer, Control::LeaseRestored(_)), "{answer:?}");
    session.opened.session = former;
    session.resume(&node.address, 1);
    check(&mut session, place, 8 * MIB, 1);
    drop(clone(node, &session));
    drop((session, lease, other, _other_lease));
    node.wait_until_idle();
}

pub(crate) fn copies_are_refused_by_name(node: &TestNode) {
    let (lease, session, _) = program(node);
    let reason = Copy::refusal(node, 9999);
    assert!(reason.contains("no lease or session 9999"), "{reason}");
    // No message makes a lease that is here one that is elsewhere.
    let (token, here) = (lease.granted.token, session.opened.session);
    let elsewhere =
        |secret, there| LeaseRestored { token, secret, session: 1, node: "127.0.0.1:1".into(), there };
    let mut connection = Connection::greet(&node.address, Purpose::Control);
    for message in [elsewhere(session.secret(), 7777), elsewhere(SessionSecret([1; 32]), here)] {
        assert!(matches!(connection.ask(message), Control::Refused(_)));
    }
    // A session that ends with its connection.
    drop((session, lease));
    node.wait_until_idle();
    let (lease, mut near) = node.session();
    commit(&mut near, 0, 2 * MIB).unwrap();
    let reason = Copy::refusal(node, lease.granted.lease);
    assert!(reason.contains("cannot be taken up again"), "{reason}");
    commit(&mut near, 2 * MIB, 2 * MIB).unwrap();
    drop((near, lease));
    node.wait_until_idle();
}
