//! Whoever asks for a session or a lease again, since a cut came in between, gets the same: one of
//! each, wherever the cut was.

use std::net::Shutdown;

use sluice_wire::control::{Control, SessionOpen, SessionOpened, UsageRequest};
use sluice_wire::handshake::{Hello, Once, Purpose};

use crate::raw::{Connection, ELSEWHERE, Lease, Session, hello, lease, once, request};
use crate::{MIB, TestNode, synchronize};

/// What a client says on its first connection, and behind which byte its session's stream begins.
fn first_words(lease: &Lease, once: Once) -> (Vec<u8>, usize) {
    let mut words = hello(Purpose::Session { token: lease.granted.token, once }, ELSEWHERE);
    let begins = words.len();
    Control::from(open()).frame(&mut words).unwrap();
    (words, begins)
}

fn open() -> SessionOpen {
    SessionOpen { ranges: vec![(0x2000_0000_0000, 1 << 40)], recognises: false, unpacks: false, forks: false }
}

/// Asks again on another connection, after the node has had so many bytes of the stream at most.
fn ask_again(node: &TestNode, lease: &Lease, once: Once, sent: usize) -> (Connection, SessionOpened) {
    let (words, begins) = first_words(lease, once);
    let mut connection = Connection::say(&node.address, &words[..begins]);
    let received = connection.heard_before() as usize;
    assert!(received <= sent, "{received} bytes have come of {sent}");
    connection.send(&words[begins + received..]);
    match connection.control() {
        Control::SessionOpened(opened) => (connection, opened),
        other => panic!("no session: {other:?}"),
    }
}

fn sessions_of(lease: &mut Lease) -> u64 {
    match lease.connection.ask(UsageRequest {}) {
        Control::Usage(usage) => usage.sessions,
        other => panic!("no usage: {other:?}"),
    }
}

/// The client's words end anywhere.
pub(crate) fn a_session_that_is_asked_for_again_is_one(node: &TestNode) {
    let length = first_words(&lease(&node.address, request(1000, MIB)), once()).0.len();
    node.wait_until_idle();
    // The places where something begins, and some between.
    let hello = hello(Purpose::Session { token: crate::LeaseToken([0; 32]), once: once() }, ELSEWHERE).len();
    let places =
        (0..length).step_by(13).chain([1, 2, hello - 1, hello, hello + 1, hello + 20, length - 1, length]);
    for cut in places {
        let (mut lease, first) = (lease(&node.address, request(200_000, 64 * MIB)), once());
        let (words, begins) = first_words(&lease, first);
        let mut connection = Connection::connect(&node.address);
        connection.send(&words[..cut]);
        // The node may have hung up by now, on what cannot be a beginning.
        let _ = connection.stream.shutdown(Shutdown::Both);
        let sent = cut.saturating_sub(begins);
        let (connection, opened) = ask_again(node, &lease, Once { attempt: 1, ..first }, sent);
        assert_eq!(
            (node.status().sessions.len(), sessions_of(&mut lease)),
            (1, 1),
            "a cut after {cut} bytes"
        );
        synchronize(&mut Session::of(connection, opened)).unwrap();
        drop(lease);
        node.wait_until_idle();
    }
}

/// A process that is killed right after its first words, before a busy node has read them, is not
/// taken for one behind a cut link.
pub(crate) fn who_has_ended_before_it_is_heard_gets_no_lease(node: &TestNode) {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let process = child.id();
    child.wait().unwrap();
    let process_space = sluice_transport::process::space();
    let mut words = Hello { purpose: Purpose::Control, process, process_space }.to_bytes();
    Control::from(request(200_000, 64 * MIB)).frame(&mut words).unwrap();
    let mut connection = Connection::say(&node.address, &words);
    assert!(connection.next().is_none(), "somebody who has ended is answered");
    assert!(node.status().gpus.iter().all(|gpu| gpu.share_leased_ppm == 0));
}

/// The answer is lost, once and again.
pub(crate) fn a_session_is_found_after_its_answer_was_lost(node: &TestNode) {
    let (mut lease, first) = (lease(&node.address, request(200_000, 64 * MIB)), once());
    let (words, begins) = first_words(&lease, first);
    let mut connection = Connection::say(&node.address, &words);
    let Control::SessionOpened(opened) = connection.control() else { panic!("no session") };
    let mut connections = vec![connection];
    for attempt in [1, 2, 5] {
        // The last one still lives: a cut is not always seen on both sides.
        let (connection, again) = ask_again(node, &lease, Once { attempt, ..first }, words.len() - begins);
        assert_eq!(again, opened, "another session");
        connections.push(connection);
    }
    // What was under way for long comes too late, and changes nothing.
    let mut stale = Connection::say(&node.address, &words[..begins]);
    let Control::SessionRefused(refused) = stale.control() else { panic!("a stale attempt is taken") };
    assert!(refused.reason.contains("on another connection meanwhile"), "{}", refused.reason);
    let mut session = Session::of(connections.pop().unwrap(), opened);
    synchronize(&mut session).unwrap();
    // From here on it continues as any other; earlier attempts are stale.
    session.resume(&node.address, 6);
    synchronize(&mut session).unwrap();
    assert_eq!((node.status().sessions.len(), sessions_of(&mut lease)), (1, 1));
    drop((session, connections, lease));
    node.wait_until_idle();
}

/// One that ends with its connection is made anew, and the first does not stay.
pub(crate) fn a_session_that_cannot_be_resumed_is_made_anew(node: &TestNode) {
    let (lease, first) = (lease(&node.address, request(200_000, 64 * MIB)), once());
    let purpose = |attempt| Purpose::Session { token: lease.granted.token, once: Once { attempt, ..first } };
    let mut one = Connection::greet(&node.address, purpose(0));
    let Control::SessionOpened(opened) = one.ask(open()) else { panic!("no session") };
    assert!(opened.resume.is_none());
    let mut other = Connection::greet(&node.address, purpose(1));
    assert_eq!(other.heard_before(), 0);
    one.wait_for_end();
    let Control::SessionOpened(again) = other.ask(open()) else { panic!("no session") };
    assert_ne!(again.session, opened.session);
    assert_eq!(node.status().sessions.len(), 1);
    drop((one, other, lease));
    node.wait_until_idle();
}

/// A client that nobody has told of its lease asks for it again, and holds it.
pub(crate) fn a_lease_that_is_asked_for_again_is_one(node: &TestNode) {
    let ask = request(600_000, 64 * MIB);
    let again = |attempt| {
        let again = sluice_wire::control::LeaseRequest { once: Once { attempt, ..ask.once }, ..ask.clone() };
        let mut connection = Connection::say(&node.address, &hello(Purpose::Control, ELSEWHERE));
        let answer = connection.ask(again);
        (connection, answer)
    };
    let (first, granted) = again(0);
    let Control::LeaseGranted(granted) = granted else { panic!("no lease: {granted:?}") };
    // The node has not seen that its end is near; there would be no room for a second one.
    for attempt in [1, 3] {
        let (connection, answer) = again(attempt);
        assert_eq!(answer, Control::LeaseGranted(granted.clone()));
        drop(connection);
    }
    drop(first);
    let (mut holder, answer) = again(4);
    assert_eq!(answer, Control::LeaseGranted(granted));
    assert_eq!(node.status().gpus[0].share_leased_ppm, 600_000);
    // Whoever comes too late changes nothing, and whoever made up another number asks for another
    // lease.
    let (mut late, answer) = again(2);
    let Control::LeaseRefused(refused) = answer else { panic!("a stale attempt holds it") };
    assert!(refused.reason.contains("on another connection meanwhile"), "{}", refused.reason);
    assert!(matches!(late.ask(request(600_000, MIB)), Control::LeaseRefused(_)), "room for two");
    assert!(matches!(holder.ask(UsageRequest {}), Control::Usage(_)), "it holds the lease");
    let mut end = Vec::new();
    Control::from(sluice_wire::control::LeaseEnd {}).frame(&mut end).unwrap();
    holder.send(&end);
    drop((holder, late));
    node.wait_until_idle();
}
