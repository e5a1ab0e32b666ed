//! Leases that get more and less, or nothing for a while, while their programs run.

use std::time::{Duration, Instant};

use sluice_cuda::CUresult;
use sluice_wire::control::{Control, LeaseName, LeaseResize, LeaseResized, Suspend};
use sluice_wire::handshake::Purpose;
use sluice_wire::{EventId, commands};

use crate::raw::{Connection, Lease, Session, lease, request};
use crate::{GIB, MIB, NULL, PATIENCE, SPIN, TestNode, commit, synchronize};

const WHOLE_PPM: u32 = 1_000_000;

fn unchanged(lease: LeaseName) -> LeaseResize {
    LeaseResize { lease, share_ppm: None, memory: None, limit_ppm: None }
}

/// Asks over a connection of its own, as `sluice resize` does.
fn ask(node: &TestNode, resize: LeaseResize) -> Result<LeaseResized, String> {
    match Connection::greet(&node.address, Purpose::Control).ask(resize) {
        Control::LeaseResized(resized) => Ok(resized),
        Control::Refused(refused) => Err(refused.reason),
        other => panic!("no answer to that: {other:?}"),
    }
}

fn of(lease: &Lease) -> LeaseResize {
    unchanged(LeaseName::Own(lease.granted.token))
}

/// Free and total bytes, as the program is told.
fn memory_info(session: &mut Session) -> (u64, u64) {
    let info: commands::cuMemGetInfo_v2Reply = session.read(&commands::cuMemGetInfo_v2 {}).unwrap();
    (info.free, info.total)
}

/// The worker hears of it over a link of its own.
fn wait_for_total(session: &mut Session, total: u64) {
    let deadline = Instant::now() + PATIENCE;
    while memory_info(session).1 != total {
        assert!(Instant::now() < deadline, "{:?}, not {total}", memory_info(session));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A program gets more memory without a restart, gives back what it does not hold, and keeps what
/// it holds. Elsewhere that takes a restart (HAMi #740, #1224, #1674; HAMi-core #21), or ends the
/// program (MPS with soft limits).
pub(crate) fn a_running_program_sees_its_new_memory(node: &TestNode) {
    let (lease, mut session) = node.session();
    commit(&mut session, 0, 128 * MIB).unwrap();
    wait_for_total(&mut session, 256 * MIB);
    assert_eq!(commit(&mut session, GIB, 256 * MIB), Err(CUresult::OUT_OF_MEMORY));
    let up = ask(node, LeaseResize { memory: Some(512 * MIB), ..of(&lease) }).unwrap();
    assert_eq!((up.share_ppm, up.limit_ppm, up.memory), (500_000, WHOLE_PPM, 512 * MIB));
    commit(&mut session, GIB, 256 * MIB).expect("what the node says counts at once");
    wait_for_total(&mut session, 512 * MIB);
    assert_eq!(memory_info(&mut session).0, 128 * MIB);

    let less = |memory| LeaseResize { memory: Some(memory), ..of(&lease) };
    let refused = ask(node, less(300 * MIB)).unwrap_err();
    assert!(
        refused.contains("of memory on GPU 0") && refused.contains("Free memory in the program first"),
        "{refused}"
    );
    assert_eq!(memory_info(&mut session), (128 * MIB, 512 * MIB), "nothing has changed");
    session.queue(&commands::MemoryDecommit { address: session_address(&session, GIB), bytes: 256 * MIB });
    synchronize(&mut session).unwrap();
    ask(node, less(192 * MIB)).unwrap();
    wait_for_total(&mut session, 192 * MIB);
    assert_eq!(commit(&mut session, GIB, 128 * MIB), Err(CUresult::OUT_OF_MEMORY));
    let status = node.status();
    assert_eq!((status.sessions[0].memory, status.gpus[0].memory_leased), (192 * MIB, 192 * MIB));
    let refused = ask(node, LeaseResize { memory: Some(2 * GIB), ..of(&lease) }).unwrap_err();
    assert!(refused.contains("up to 100 % of the compute and 1.0 GiB of memory"), "{refused}");
    drop((session, lease));
    node.wait_until_idle();
}

fn session_address(session: &Session, offset: u64) -> sluice_wire::DevicePtr {
    sluice_wire::DevicePtr(session.base() + offset)
}

/// The lease is named by its number, by that of a session, or by its token; what is named otherwise
/// is refused.
pub(crate) fn a_lease_is_resized_by_its_owner_and_by_its_number(node: &TestNode) {
    let (lease, session) = node.session();
    let number = session.opened.session;
    let share = |lease, share_ppm| LeaseResize { share_ppm: Some(share_ppm), ..unchanged(lease) };
    for (name, share_ppm) in [
        (LeaseName::Own(lease.granted.token), 100_000),
        (LeaseName::Numbered(lease.granted.lease), 200_000),
        (LeaseName::Numbered(number), 300_000),
    ] {
        let resized = ask(node, share(name, share_ppm)).unwrap();
        assert_eq!((resized.lease, resized.share_ppm), (lease.granted.lease, share_ppm));
        assert_eq!(node.status().sessions[0].share_ppm, share_ppm);
    }
    let mut wrong = lease.granted.token;
    wrong.0[0] ^= 1;
    assert!(ask(node, share(LeaseName::Own(wrong), 1)).unwrap_err().contains("no lease has this token"));
    let nobody = ask(node, share(LeaseName::Numbered(number + 1000), 1)).unwrap_err();
    assert!(nobody.contains("no lease or session"), "{nobody}");
    for (share_ppm, limit_ppm) in [(0, None), (WHOLE_PPM + 1, None), (500_000, Some(499_999))] {
        let resize = LeaseResize { limit_ppm, ..share(LeaseName::Numbered(number), share_ppm) };
        assert!(ask(node, resize).is_err(), "{share_ppm} {limit_ppm:?}");
    }
    assert_eq!(node.status().sessions[0].share_ppm, 300_000);
}

/// A session that always has kernels of some milliseconds queued.
struct Load {
    lease: Lease,
    session: Session,
    function: sluice_wire::FunctionId,
    events: [EventId; 2],
    batch: usize,
}

impl Load {
    fn start(node: &TestNode, share_ppm: u32) -> Load {
        let lease = lease(&node.address, request(share_ppm, 64 * MIB));
        let mut session = Session::open(&node.address, lease.granted.token);
        let module = session.load(SPIN);
        let function = session.function(module, c"spin");
        session.launch(function, 1, &[1]);
        synchronize(&mut session).unwrap();
        let events = [0, 1].map(|_| EventId(session.id()));
        for phEvent in events {
            session.queue(&commands::cuEventCreate { phEvent, Flags: 2 });
        }
        Load { lease, session, function, events, batch: 0 }
    }

    /// Queues one batch and waits for the one before it.
    fn step(&mut self) {
        for _ in 0..4 {
            self.session.launch(self.function, 64, &[20_000]);
        }
        let [this, before] = [0, 1].map(|i| self.events[(self.batch + i) % 2]);
        self.session.queue(&commands::cuEventRecord { hEvent: this, hStream: NULL });
        if self.batch > 0 {
            self.session.call(&commands::cuEventSynchronize { hEvent: before }).unwrap();
        }
        self.batch += 1;
    }
}

/// GPU time of both sessions from one moment to the other: the first one's part.
fn part(node: &TestNode, sessions: [u64; 2], over: Duration) -> f64 {
    let used = || {
        let status = node.status();
        sessions.map(|s| status.sessions.iter().find(|status| status.session == s).unwrap().busy_us as f64)
    };
    let before = used();
    std::thread::sleep(over);
    let after = used();
    let [first, second] = [0, 1].map(|i| after[i] - before[i]);
    first / (first + second)
}

/// Two programs compute without pause, and what they get of the GPU is what their shares are at
/// that time (HAMi #332, #737: a limit of cores without effect).
pub(crate) fn shares_change_while_programs_compute(node: &TestNode) {
    let mut loads = [Load::start(node, 250_000), Load::start(node, 250_000)];
    let sessions = [0, 1].map(|i| loads[i].session.opened.session);
    let tokens = [0, 1].map(|i| loads[i].lease.granted.token);
    let share = |i: usize, share_ppm| {
        let resize = LeaseResize { share_ppm: Some(share_ppm), ..unchanged(LeaseName::Own(tokens[i])) };
        ask(node, resize).unwrap()
    };
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for load in &mut loads {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    load.step();
                }
            });
        }
        let mut parts = Vec::new();
        for shares in [[250_000, 250_000], [750_000, 250_000], [100_000, 800_000]] {
            // Down before up: both together are never more than the GPU.
            let order = if shares[0] < 250_000 { [0, 1] } else { [1, 0] };
            for i in order {
                share(i, shares[i]);
            }
            parts.push(part(node, sessions, Duration::from_secs(2)));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        println!("     parts of the first: {parts:.3?}");
        for (got, want) in parts.into_iter().zip([0.5, 0.75, 1.0 / 9.0]) {
            // Without shares it would be a half each time.
            assert!((got - want).abs() < 0.1, "{got:.3} instead of {want:.3}");
        }
    });
}

/// GPU time of a session so far, in microseconds, and whether it is shown as suspended.
fn seen(node: &TestNode, session: u64) -> (u64, bool) {
    let status = node.status();
    let found = status.sessions.iter().find(|status| status.session == session).unwrap();
    (found.busy_us, found.suspended)
}

fn suspend(node: &TestNode, number: u64, suspended: bool) -> Result<Vec<u64>, String> {
    let lease = LeaseName::Numbered(number);
    match Connection::greet(&node.address, Purpose::Control).ask(Suspend { lease, suspended }) {
        Control::Suspended(answer) => Ok(answer.sessions),
        Control::Refused(refused) => Err(refused.reason),
        other => panic!("no answer to that: {other:?}"),
    }
}

/// A suspended session uses no GPU time, its calls wait, its memory stays and its results are right
/// in the end.
pub(crate) fn a_suspended_session_waits_and_goes_on_where_it_was(node: &TestNode) {
    let mut load = Load::start(node, 500_000);
    let session = load.session.opened.session;
    let place = commit(&mut load.session, 0, 2 * MIB).unwrap();
    let module = load.session.load(crate::PTX);
    let bump = load.session.function(module, c"bump");
    let zero = [0; 4];
    let clear = commands::cuMemcpyHtoDAsync_v2 {
        dstDevice: sluice_wire::DevicePtr(place),
        srcHost: &zero,
        hStream: NULL,
    };
    load.session.queue(&clear);
    load.step();
    assert_eq!(suspend(node, session, true), Ok(vec![session]));
    // A turn that continues is over within this time; from then on nothing runs.
    std::thread::sleep(Duration::from_millis(300));
    let (busy_us, suspended) = seen(node, session);
    assert!(suspended);
    let mut done = false;
    std::thread::scope(|scope| {
        let (load, done) = (&mut load, &mut done);
        let waits = scope.spawn(move || {
            for _ in 0..100 {
                load.session.launch(bump, 1, &[place]);
            }
            synchronize(&mut load.session).unwrap();
            *done = true;
        });
        std::thread::sleep(Duration::from_millis(500));
        assert!(!waits.is_finished(), "the program's call waits");
        assert_eq!(seen(node, session).0, busy_us, "and the GPU does nothing for it");
        assert_eq!(suspend(node, session, false), Ok(vec![session]));
        waits.join().unwrap();
    });
    let got = crate::read(&mut load.session, place, 4).unwrap();
    assert_eq!(u32::from_le_bytes(got[..].try_into().unwrap()), 100);
    let deadline = Instant::now() + PATIENCE;
    while seen(node, session).0 <= busy_us {
        assert!(Instant::now() < deadline, "{:?}", seen(node, session));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!seen(node, session).1);
}

/// Another program gets the compute of a lease that is suspended, which waits for it when it is to
/// go on.
pub(crate) fn a_suspended_lease_gives_its_share_back(node: &TestNode) {
    let (first, session) = node.session();
    let (lease, number) = (first.granted.lease, session.opened.session);
    assert_eq!(suspend(node, lease, true), Ok(vec![number]));
    assert_eq!(node.status().gpus[0].share_leased_ppm, 0);
    assert!(suspend(node, number, false).unwrap_err().contains("suspended as a whole"));
    let late = Session::open(&node.address, first.granted.token);
    assert!(seen(node, late.opened.session).1, "what begins later is suspended, too");
    let other = crate::raw::lease(&node.address, request(750_000, 256 * MIB));
    let refused = suspend(node, lease, false).unwrap_err();
    assert!(refused.contains("25 % of the compute of GPU 0 are free now"), "{refused}");
    drop(other);
    let deadline = Instant::now() + PATIENCE;
    while suspend(node, lease, false).is_err() {
        assert!(Instant::now() < deadline, "it does not go on");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((seen(node, number).1, seen(node, late.opened.session).1), (false, false));
    assert!(suspend(node, 9999, true).unwrap_err().contains("no lease or session 9999"));
}
