//! Bytes that no client of Sluice would send.

use std::time::{Duration, Instant};

use sluice_cuda::{CUresult, Fn};
use sluice_wire::control::Control;
use sluice_wire::handshake::{LeaseToken, Purpose};
use sluice_wire::{DevicePtr, EventId, FunctionId, Header, Kind, ModuleId, Op, StreamId, commands};

use super::raw::{Connection, Session, lease, once, request};
use super::{GIB, MIB, NULL, PATIENCE, TestNode, commit, main, read, synchronize};

pub(super) fn garbage_is_turned_away_and_nobody_notices(node: &TestNode) {
    let (_lease, mut session) = node.session();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], &[0xFF; 64], b"\x10\0SLCE", b"SLCE"] {
        let mut connection = Connection::connect(&node.address);
        connection.send(garbage);
        // The node may have hung up by now.
        let _ = connection.stream.shutdown(std::net::Shutdown::Write);
        connection.wait_for_end();
    }
    // Control frames that are none.
    for garbage in
        [&[0_u8; 20][..], &[0xFF; 40], &[16, 0, 0, 0, 6, 0, 99, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]]
    {
        let mut connection = Connection::greet(&node.address, Purpose::Control);
        connection.send(garbage);
        connection.wait_for_end();
    }
    synchronize(&mut session).unwrap();
}

pub(super) fn a_wrong_token_opens_no_session(node: &TestNode) {
    let (lease, _session) = node.session();
    let mut wrong = lease.granted.token;
    wrong.0[31] ^= 1;
    for token in [wrong, LeaseToken([0; 32])] {
        let mut connection = Connection::greet(&node.address, Purpose::Session { token, once: once() });
        let (header, payload) = connection.next().expect("a refusal");
        let Ok(Control::SessionRefused(refused)) = Control::decode(header.op, &payload) else {
            panic!("not refused")
        };
        assert!(refused.reason.contains("lease"), "{}", refused.reason);
        connection.wait_for_end();
    }
    assert_eq!(node.status().sessions.len(), 1);
}

pub(super) fn forged_ids_and_addresses_get_cuda_errors(node: &TestNode) {
    let (_lease, mut session) = node.session();
    let place = commit(&mut session, 0, 2 * MIB).unwrap();
    for forged in [3, 100, 0x7FFF_FFFF_FFFF, u64::MAX, place] {
        let invalid = Err(CUresult::INVALID_HANDLE);
        assert_eq!(session.call(&commands::cuStreamSynchronize { hStream: StreamId(forged) }), invalid);
        assert_eq!(session.call(&commands::cuEventSynchronize { hEvent: EventId(forged) }), invalid);
        let (hfunc, name) = (FunctionId(1), c"bump");
        assert_eq!(
            session.call(&commands::cuModuleGetFunction { hfunc, hmod: ModuleId(forged), name }),
            invalid
        );
    }
    for (address, bytes) in [
        (0, 4),
        (place - 1, 1),
        (place + 2 * MIB - 1, 2),
        (place, 2 * MIB + 1),
        (place, u64::MAX),
        (u64::MAX, 2),
        (session.base() + GIB, 4),
        (main as fn() as usize as u64, 4),
    ] {
        assert!(read(&mut session, address, bytes).is_err(), "{address:#x}, {bytes} bytes");
    }
    assert_eq!(commit(&mut session, 0, 2 * MIB), Err(CUresult::INVALID_VALUE));
    assert_eq!(commit(&mut session, 1 << 50, 2 * MIB), Err(CUresult::INVALID_VALUE));
    synchronize(&mut session).unwrap();
    // A queued command that fails is the end of its session, and says so.
    let dptr = DevicePtr(place + GIB);
    session.queue(&commands::cuMemsetD8Async { dstDevice: dptr, uc: 1, N: 16, hStream: NULL });
    assert_eq!(synchronize(&mut session), Err(CUresult::INVALID_VALUE));
}

pub(super) fn half_frames_and_nonsense_end_one_session(node: &TestNode) {
    let (_neighbours_lease, mut neighbour) = node.session();
    let lease = lease(&node.address, request(100_000, 64 * MIB));
    let token = lease.granted.token;
    // A message that ends too early, one that continues, operations that do not exist.
    for (op, payload) in [
        (Op::of(Fn::cuMemsetD8Async), &[0_u8; 3][..]),
        (Op::of(Fn::cuMemsetD8Async), &[0; 64]),
        (Op::of(Fn::cuModuleGetFunction), &[0xFF; 40]),
        (Op(0x7FFF), &[]),
        (Op(0xFFFF), &[1, 2, 3]),
    ] {
        let mut session = Session::open(&node.address, token);
        let frame = session.frame(op, payload);
        session.connection.send(&frame);
        session.connection.wait_for_end();
    }
    // Commands told by what was never sent: one that should be at the cursor, one 100 back, new
    // ones without their bytes.
    for entries in [&[1 << 2][..], &[2, 100], &[3], &[0xFF; 9], &[0x2B, 0, 1, 0]] {
        let mut session = Session::open(&node.address, token);
        let header = Header { kind: Kind::Commands, device: 0, op: 0, lane: 0, sequence: 1 };
        let mut frame = Vec::new();
        header.frame(&mut frame, |out| out.extend_from_slice(entries)).unwrap();
        session.connection.send(&frame);
        session.connection.wait_for_end();
    }
    // A header that announces more than is allowed, and half a frame.
    let mut session = Session::open(&node.address, token);
    session.connection.send(&[0xFF; 20]);
    session.connection.wait_for_end();
    let mut session = Session::open(&node.address, token);
    let frame = session.frame(Op::of(Fn::cuCtxSynchronize), &[]);
    session.connection.send(&frame[..frame.len() / 2]);
    drop(session);
    synchronize(&mut neighbour).unwrap();
    drop(lease);
    let deadline = Instant::now() + PATIENCE;
    while node.status().sessions.len() > 1 {
        assert!(Instant::now() < deadline, "{:?}", node.status());
        std::thread::sleep(Duration::from_millis(5));
    }
}
