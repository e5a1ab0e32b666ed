//! Memory that leaves the GPU while its program runs.

use std::time::{Duration, Instant};

use sluice_wire::control::{Control, LeaseName, SessionStatus, Suspend, Suspended};
use sluice_wire::handshake::Purpose;
use sluice_wire::{DevicePtr, commands};

use crate::raw::{Connection, Session, lease, request};
use crate::{GIB, MIB, NULL, PATIENCE, PTX, TestNode, commit, read, synchronize};

pub(crate) fn suspend(node: &TestNode, number: u64, suspended: bool) -> Result<Suspended, String> {
    let lease = LeaseName::Numbered(number);
    match Connection::greet(&node.address, Purpose::Control).ask(Suspend { lease, suspended }) {
        Control::Suspended(answer) => Ok(answer),
        Control::Refused(refused) => Err(refused.reason),
        other => panic!("no answer to that: {other:?}"),
    }
}

pub(crate) fn seen(node: &TestNode, session: u64) -> SessionStatus {
    let status = node.status();
    status.sessions.into_iter().find(|status| status.session == session).unwrap()
}

/// Writes numbers that follow from the seed to the beginning of every mebibyte.
pub(crate) fn fill(session: &mut Session, place: u64, bytes: u64, seed: u64) {
    for at in (0..bytes).step_by(MIB as usize) {
        let numbers: Vec<u8> = (0..8).flat_map(|nth| (seed + at + nth).to_le_bytes()).collect();
        let dstDevice = DevicePtr(place + at);
        session.queue(&commands::cuMemcpyHtoDAsync_v2 { dstDevice, srcHost: &numbers, hStream: NULL });
    }
    synchronize(session).unwrap();
}

pub(crate) fn check(session: &mut Session, place: u64, bytes: u64, seed: u64) {
    for at in (0..bytes).step_by(MIB as usize) {
        let numbers: Vec<u8> = (0..8).flat_map(|nth| (seed + at + nth).to_le_bytes()).collect();
        assert_eq!(read(session, place + at, 64).unwrap(), numbers, "at {at}");
    }
}

/// Two programs of 600 MiB each on a GPU of 1 GiB: the second runs while the first is suspended,
/// which then finds its memory as it was, at the same addresses (vllm #32714: sleeping frees a part
/// only; #36651: garbage after waking up).
pub(crate) fn the_memory_of_a_suspended_lease_is_for_others(node: &TestNode) {
    let (bytes, memory) = (600 * MIB, 700 * MIB);
    let first = lease(&node.address, request(400_000, memory));
    let mut one = Session::open(&node.address, first.granted.token);
    let (number, session) = (first.granted.lease, one.opened.session);
    let place = commit(&mut one, 0, bytes).unwrap();
    fill(&mut one, place, bytes, 1);
    let before = seen(node, session);
    assert_eq!((before.memory_used, before.memory_swapped, before.memory_state.as_str()), (bytes, 0, ""));
    assert_eq!(before.memory_pinned, 0);
    for round in 0..2 {
        let answer = suspend(node, number, true).unwrap();
        assert_eq!((answer.sessions, answer.swapped, answer.notes), (vec![session], bytes, vec![]));
        let status = node.status();
        assert_eq!((status.gpus[0].memory_used, status.gpus[0].memory_leased), (0, 0));
        assert_eq!((seen(node, session).memory_used, seen(node, session).memory_swapped), (bytes, bytes));

        let second = lease(&node.address, request(400_000, memory));
        let mut two = Session::open(&node.address, second.granted.token);
        let there = commit(&mut two, 0, bytes).unwrap();
        fill(&mut two, there, bytes, 2);
        let refused = suspend(node, number, false).unwrap_err();
        assert!(refused.contains("of the memory of GPU 0 are free now"), "{refused}");
        check(&mut two, there, bytes, 2);
        drop((two, second));
        let deadline = Instant::now() + PATIENCE;
        while let Err(reason) = suspend(node, number, false) {
            assert!(Instant::now() < deadline, "it does not come back: {reason}");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((seen(node, session).memory_swapped, node.status().gpus[0].memory_used), (0, bytes));
        assert_eq!(seen(node, session).memory_moves, round + 1);
        check(&mut one, place, bytes, 1);
    }
    drop((one, first));
    node.wait_until_idle();
}

/// Launches and copies of a program give what they always do, on a node that moves its memory
/// meanwhile too.
pub(crate) fn a_program_whose_memory_moves_computes_the_same(node: &TestNode) {
    let lease = lease(&node.address, request(500_000, GIB / 2));
    let mut session = Session::open(&node.address, lease.granted.token);
    let number = session.opened.session;
    let (place, bytes) = (commit(&mut session, 0, 70 * MIB).unwrap(), 70 * MIB);
    let counted = commit(&mut session, 128 * MIB, 2 * MIB).unwrap();
    fill(&mut session, place, bytes, 3);
    let module = session.load(PTX);
    let bump = session.function(module, c"bump");
    let zero = [0; 4];
    let dstDevice = DevicePtr(counted);
    session.queue(&commands::cuMemcpyHtoDAsync_v2 { dstDevice, srcHost: &zero, hStream: NULL });
    let (mut launched, deadline) = (0_u32, Instant::now() + PATIENCE);
    let moves = |node: &TestNode| seen(node, number).memory_moves;
    // Where nothing moves by itself, it does here.
    let moves_itself = |node: &TestNode| moves(node) > 0;
    for round in 0.. {
        for _ in 0..50 {
            session.launch(bump, 1, &[counted]);
            launched += 1;
        }
        if !moves_itself(node) && round >= 20 {
            suspend(node, number, true).unwrap();
            suspend(node, number, false).unwrap();
        }
        synchronize(&mut session).unwrap();
        let got = read(&mut session, counted, 4).unwrap();
        assert_eq!(u32::from_le_bytes(got[..].try_into().unwrap()), launched);
        if moves(node) >= 5 || (round > 25 && moves(node) > 0) {
            break;
        }
        assert!(Instant::now() < deadline, "nothing moves");
    }
    check(&mut session, place, bytes, 3);
    drop((session, lease));
    node.wait_until_idle();
}
