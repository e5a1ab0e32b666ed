//! Sessions that end, and what is left of them.

use std::time::Instant;

use sluice_cuda::{CUresult, Fn};
use sluice_wire::handshake::Purpose;
use sluice_wire::{DevicePtr, Op, commands};

use super::raw::{Connection, Session, lease, once, request};
use super::{MIB, NULL, PATIENCE, PTX, TestNode, commit, synchronize};

pub(super) fn the_end_of_a_lease_ends_its_sessions(node: &TestNode) {
    let (lease, mut session) = node.session();
    commit(&mut session, 0, 2 * MIB).unwrap();
    drop(lease);
    session.connection.wait_for_end();
    node.wait_until_idle();
}

pub(super) fn start_endless(session: &mut Session) {
    let place = commit(session, 0, 2 * MIB).unwrap();
    let module = session.load(PTX);
    let endless = session.function(module, c"endless");
    session.launch(endless, 4, &[place]);
}

pub(super) fn an_endless_kernel_dies_with_its_client(node: &TestNode) {
    let (lease, mut session) = node.session();
    start_endless(&mut session);
    assert_eq!(session.call(&commands::cuStreamQuery { hStream: NULL }), Err(CUresult::NOT_READY));
    drop(session);
    let deadline = Instant::now() + PATIENCE;
    while !node.status().sessions.is_empty() {
        assert!(Instant::now() < deadline, "it lives on");
    }
    drop(lease);
    node.wait_until_idle();
}

pub(super) fn an_endless_kernel_times_out(node: &TestNode) {
    let request = sluice_wire::control::LeaseRequest { kernel_timeout_ms: 200, ..request(500_000, 64 * MIB) };
    let lease = lease(&node.address, request);
    let mut session = Session::open(&node.address, lease.granted.token);
    start_endless(&mut session);
    assert_eq!(synchronize(&mut session), Err(CUresult::LAUNCH_TIMEOUT));
}

/// What a client does before it dies: more with every step.
pub(super) fn live(session: &mut Session, steps: u64) {
    let place = session.base();
    let commitment =
        commands::MemoryCommit { address: DevicePtr(place), bytes: 8 * MIB, on_host: false, by_all: false };
    if steps == 1 {
        session.queue(&commitment);
    }
    if steps > 1 {
        // A commitment is answered, and what needs it is said only after its answer.
        session.call(&commitment).unwrap();
        let data = vec![7; MIB as usize];
        session.queue(&commands::cuMemcpyHtoDAsync_v2 {
            dstDevice: DevicePtr(place),
            srcHost: &data,
            hStream: NULL,
        });
    }
    if steps > 2 {
        let module = session.load(PTX);
        let endless = session.function(module, c"endless");
        session.launch(endless, 2, &[place]);
    }
    if steps > 3 {
        session.queue(&commands::cuCtxSynchronize {});
    }
}

pub(super) fn clients_killed_at_random_leave_nothing(node: &TestNode) {
    let given = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = given.unwrap_or_else(|| std::process::id().into());
    println!("SEED={seed}");
    let mut state = seed.wrapping_mul(0x9E37_79B9) | 1;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for _ in 0..100 {
        let lease = lease(&node.address, request(200_000, 64 * MIB));
        match random(6) {
            // Dies with the connection just made, before it has read that it is welcome.
            0 => drop(Connection::greet(
                &node.address,
                Purpose::Session { token: lease.granted.token, once: once() },
            )),
            steps => {
                let mut session = Session::open(&node.address, lease.granted.token);
                live(&mut session, steps - 1);
                // A reset, as the kernel sends for a killed process with unread data, or an end of
                // file.
                if random(2) == 0 {
                    let frame = session.frame(Op::of(Fn::cuCtxSynchronize), &[]);
                    session.connection.send(&frame[..random(20) as usize]);
                }
            }
        }
        if random(2) == 0 {
            drop(lease);
        }
    }
    node.wait_until_idle();
}
