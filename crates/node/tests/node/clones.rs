//! Sessions that are cloned for a child of their client, by messages made by hand.

use std::time::Instant;

use sluice_node::NodeConfig;
use sluice_wire::control::{Control, ProcessesRequest, SessionCloned, UsageRequest};
use sluice_wire::handshake::{CloneOf, CloneProof, Purpose, Resume, SessionSecret, Stripe};
use sluice_wire::{GraphId, commands};

use crate::copies::program;
use crate::elastic::{check, fill};
use crate::raw::{Connection, ELSEWHERE, Lease, Session, hello};
use crate::{MIB, PATIENCE, TestNode};

/// A connection on which a clone of a session is asked for.
fn asked(node: &TestNode, session: u64, secret: SessionSecret) -> Connection {
    let of = CloneOf { session, proof: CloneProof(secret.0) };
    Connection::say(&node.address, &hello(Purpose::Clone(of), ELSEWHERE))
}

fn refusal(node: &TestNode, session: u64, secret: SessionSecret) -> String {
    match asked(node, session, secret).control() {
        Control::SessionNotCloned(refused) => refused.reason,
        other => panic!("it is not refused: {other:?}"),
    }
}

/// A clone, and the connection that stands for the child.
pub(crate) fn clone(node: &TestNode, session: &Session) -> (Connection, SessionCloned) {
    let mut connection = asked(node, session.opened.session, session.secret());
    match connection.control() {
        Control::SessionCloned(cloned) => (connection, cloned),
        other => panic!("no clone: {other:?}"),
    }
}

/// Sessions that the lease has had, and processes of which it knows.
fn counted(lease: &mut Lease) -> (u64, usize) {
    let Control::Usage(usage) = lease.connection.ask(UsageRequest {}) else { panic!("no usage") };
    let Control::Processes(all) = lease.connection.ask(ProcessesRequest {}) else { panic!("no processes") };
    (usage.sessions, all.processes.len())
}

fn wait_for_sessions(node: &TestNode, count: usize) {
    let deadline = Instant::now() + PATIENCE;
    while node.status().sessions.len() != count {
        assert!(Instant::now() < deadline, "not {count} sessions: {:?}", node.status().sessions);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

pub(crate) fn a_clone_counts_once_a_child_has_it(node: &TestNode) {
    let (mut lease, mut session, place) = program(node);
    let (number, secret) = (session.opened.session, session.secret());
    for wrong in [SessionSecret([0; 32]), SessionSecret(lease.granted.token.0)] {
        let reason = refusal(node, number, wrong);
        assert!(reason.contains("no session goes by that number and secret"), "{reason}");
    }
    // The worker of the session refuses it, after another one has started.
    let graph = GraphId(session.id());
    session.call(&commands::cuGraphCreate { phGraph: graph, flags: 0 }).unwrap();
    let reason = refusal(node, number, secret);
    assert!(reason.contains("it holds graphs"), "{reason}");
    session.call(&commands::cuGraphDestroy { hGraph: graph }).unwrap();
    assert_eq!(counted(&mut lease), (1, 1), "a refused clone counts");
    // One ends with the connection, one with an error of that: unread bytes reset it.
    drop(clone(node, &session));
    wait_for_sessions(node, 1);
    let connection = asked(node, number, secret);
    assert_eq!(connection.stream.peek(&mut [0]).unwrap(), 1);
    drop(connection);
    wait_for_sessions(node, 1);
    assert_eq!(counted(&mut lease), (1, 1), "a clone without a child counts");
    let (standing, cloned) = clone(node, &session);
    fill(&mut session, place, 8 * MIB, 2);
    let SessionCloned { session: number, secret, .. } = cloned;
    let resume = Resume { session: number, secret, attempt: 1, received: 0, stripe: Stripe::ONLY };
    let mut child = Connection::say(&node.address, &hello(Purpose::Resume(resume), ELSEWHERE));
    assert!(matches!(child.control(), Control::SessionResumed(_)));
    assert_eq!(counted(&mut lease), (2, 2));
    // The child has a connection of its own by now.
    drop(standing);
    check(&mut session, place, 8 * MIB, 2);
    assert_eq!(node.status().sessions.len(), 2);
    drop((child, session, lease));
    node.wait_until_idle();
}

/// On a node of its own.
pub(crate) fn a_node_without_a_place_says_so_to_a_fork(_: &TestNode) {
    // One for the lease, one for the session.
    let node = TestNode::start_with(NodeConfig { connections_max: 2, ..NodeConfig::default() });
    let (lease, mut session, place) = program(&node);
    let reason = refusal(&node, session.opened.session, session.secret());
    assert!(reason.contains("serves 2 leases and sessions at a time"), "{reason}");
    check(&mut session, place, 8 * MIB, 1);
    drop((session, lease));
    node.wait_until_idle();
}
