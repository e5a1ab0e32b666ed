//! Memory of a lease: what may be used unasked, and no more.

use std::time::{Duration, Instant};

use sluice_cuda::CUresult;
use sluice_wire::control::Control;
use sluice_wire::handshake::Purpose;
use sluice_wire::{Allowance, DevicePtr, Kind, commands};

use super::raw::{Connection, Session, lease, request};
use super::{GIB, MIB, NULL, PATIENCE, TestNode, commit, read, synchronize};

pub(super) fn the_memory_limit_is_the_leases(node: &TestNode) {
    let (lease, mut first) = node.session();
    let mut second = Session::open(&node.address, lease.granted.token);
    // A little is kept for each: a sixty-fourth of the lease, and half of what the first leaves of
    // twice that.
    assert_eq!(
        (&first.opened.allowances[..], &second.opened.allowances[..]),
        (&[4 * MIB][..], &[2 * MIB][..])
    );
    commit(&mut first, 0, 200 * MIB).unwrap();
    assert_eq!(commit(&mut second, 0, 54 * MIB), Err(CUresult::OUT_OF_MEMORY));
    commit(&mut second, 0, 52 * MIB).unwrap();
    // What is kept for the first is not taken, and so free to whoever looks.
    assert_eq!((free(&mut first), free(&mut second)), (4 * MIB, 4 * MIB));
    assert_eq!(commit(&mut second, GIB, 2 * MIB), Err(CUresult::OUT_OF_MEMORY));
    assert_eq!(commit(&mut first, GIB, 6 * MIB), Err(CUresult::OUT_OF_MEMORY));
    commit(&mut first, GIB, 4 * MIB).unwrap();
    assert_eq!((free(&mut first), free(&mut second)), (0, 0));
    assert_eq!(commit(&mut first, 2 * GIB, 2 * MIB), Err(CUresult::OUT_OF_MEMORY));
    let address = DevicePtr(first.base());
    first.queue(&commands::MemoryDecommit { address, bytes: 200 * MIB });
    assert_eq!(free(&mut first), 200 * MIB);
    drop(first);
    commit_when_free(&mut second, GIB, 204 * MIB);
    assert_eq!(free(&mut second), 0);
}

/// Bytes that are left for a session.
pub(super) fn free(session: &mut Session) -> u64 {
    let info: commands::cuMemGetInfo_v2Reply = session.read(&commands::cuMemGetInfo_v2 {}).unwrap();
    assert_eq!(info.total, 256 * MIB);
    info.free
}

/// Another session of the lease is about to end.
pub(super) fn commit_when_free(session: &mut Session, offset: u64, bytes: u64) {
    let deadline = Instant::now() + PATIENCE;
    while commit(session, offset, bytes).is_err() {
        assert!(Instant::now() < deadline, "it does not come back");
    }
}

/// Commits without waiting.
pub(super) fn commit_unasked(session: &mut Session, offset: u64, bytes: u64) {
    let address = DevicePtr(session.base() + offset);
    session.queue(&commands::MemoryCommitAllowed { address, bytes });
}

pub(super) fn what_is_allowed_needs_no_answer(node: &TestNode) {
    let (lease, mut session) = node.session();
    let mut allowed = session.opened.allowances[0];
    assert_eq!(allowed, 4 * MIB);
    // As an honest client: it uses what it is allowed, and hears of more.
    for chunk in 0..126 {
        while allowed < 2 * MIB {
            let (header, payload) = session.connection.next().expect("the worker allows more");
            assert_eq!(header.kind, Kind::Allowance);
            let allowance: Allowance = sluice_wire::decode(&payload).unwrap();
            allowed = allowed.checked_add_signed(allowance.change).unwrap();
        }
        commit_unasked(&mut session, chunk * 2 * MIB, 2 * MIB);
        allowed -= 2 * MIB;
    }
    assert_eq!(free(&mut session), 4 * MIB);
    let used = node.status().sessions[0].memory_used;
    assert_eq!(used, 252 * MIB);
    // The rest is only kept: whoever waits for it gets it.
    assert_eq!(commit(&mut session, GIB, 6 * MIB), Err(CUresult::OUT_OF_MEMORY));
    commit(&mut session, GIB, 4 * MIB).unwrap();
    assert_eq!(free(&mut session), 0);
    let place = session.base() + GIB;
    session.queue(&commands::cuMemsetD8Async { dstDevice: DevicePtr(place), uc: 7, N: 4, hStream: NULL });
    assert_eq!(read(&mut session, place, 4).unwrap(), [7; 4]);
    // And now nothing is allowed any more.
    commit_unasked(&mut session, 2 * GIB, 2 * MIB);
    assert_eq!(synchronize(&mut session), Err(CUresult::OUT_OF_MEMORY));
    drop((session, lease));
    node.wait_until_idle();
}

/// Who uses more than it is allowed, whatever the lease has left, is refused all of it, and has no
/// session any more.
pub(super) fn nobody_uses_more_than_is_allowed(node: &TestNode) {
    let (lease, mut neighbour) = node.session();
    for bytes in [6 * MIB, 256 * MIB, u64::MAX - 2 * MIB + 1, GIB] {
        let mut session = Session::open(&node.address, lease.granted.token);
        commit_unasked(&mut session, 0, bytes);
        let refused = synchronize(&mut session).unwrap_err();
        assert!([CUresult::OUT_OF_MEMORY, CUresult::INVALID_VALUE].contains(&refused), "{refused}");
        let used: u64 = node.status().sessions.iter().map(|session| session.memory_used).sum();
        assert_eq!(used, 0, "{bytes} bytes");
    }
    // Asked for and unasked at a time, over and over: the lease's memory is all that there is.
    let mut session = Session::open(&node.address, lease.granted.token);
    for chunk in 0..300 {
        let address = DevicePtr(session.base() + GIB + chunk * 2 * MIB);
        session.queue(&commands::MemoryCommit { address, bytes: 2 * MIB, on_host: false, by_all: false });
        commit_unasked(&mut session, chunk * 2 * MIB, 2 * MIB);
    }
    assert_eq!(synchronize(&mut session), Err(CUresult::OUT_OF_MEMORY));
    let used: u64 = node.status().sessions.iter().map(|session| session.memory_used).sum();
    assert!(used <= 256 * MIB, "{used} bytes of the lease are used");
    drop(session);
    // It may have been refused before it had much, so what it had does not keep others from theirs.
    let deadline = Instant::now() + PATIENCE;
    while node.status().sessions.len() > 1 {
        assert!(Instant::now() < deadline, "it does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
    commit_when_free(&mut neighbour, 0, 252 * MIB);
    assert_eq!(free(&mut neighbour), 4 * MIB);
}

pub(super) fn a_lease_beyond_what_is_free_is_refused(node: &TestNode) {
    let _held = lease(&node.address, request(750_000, 512 * MIB));
    let mut connection = Connection::greet(&node.address, Purpose::Control);
    for (request, says) in [
        (request(300_000, MIB), "25 %"),
        (request(100_000, 600 * MIB), "512.0 MiB"),
        (request(100_000, 2 * GIB), "largest"),
        (request(0, MIB), "share"),
        (request(1_000_001, MIB), "share"),
    ] {
        let Control::LeaseRefused(refused) = connection.ask(request) else { panic!("not refused") };
        assert!(refused.reason.contains(says), "{}", refused.reason);
        assert_eq!(refused.free[0].share_ppm, 250_000);
    }
}
