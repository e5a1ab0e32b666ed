//! A node and its workers against a client that speaks the protocol by hand.
//!
//! This program is its own worker: the node starts it again with the argument `worker`.

#![allow(non_snake_case)] // fields of commands bear CUDA's names

mod attacks;
mod copies;
mod elastic;
mod hostile;
mod idle;
mod openings;
mod overcommit;
mod own_memory;
mod raw;
mod replays;
mod resize;
mod shares;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use attacks::*;
use copies::*;
use elastic::*;
use hostile::a_hostile_client_harms_nobody;
use idle::*;
use openings::*;
use overcommit::*;
use own_memory::*;
use raw::{Connection, Session, lease, once, request};
use replays::*;
use resize::*;
use sluice_cuda::{CUresult, Fn};
use sluice_node::{GpuSelection, Listen, Node, NodeConfig, Stopper, WorkerCommand};
use sluice_wire::control::{Control, Status, StatusRequest, UsageRequest};
use sluice_wire::handshake::{LeaseToken, Purpose};
use sluice_wire::{
    Allowance, DevicePtr, EventId, FunctionId, Header, Kind, ModuleId, Op, StreamId, commands,
};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const NULL: StreamId = StreamId(0);

/// Nothing here takes longer, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// One thread in each block adds 1 to a number of its own; the second entry never ends.
const PTX: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry bump(.param .u64 place) {
    .reg .u64 %rd<4>;
    .reg .u32 %r<3>;
    .reg .pred %p;
    ld.param.u64 %rd1, [place];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    ld.global.u32 %r2, [%rd3];
    add.u32 %r2, %r2, 1;
    st.global.u32 [%rd3], %r2;
    ret;
}
.visible .entry endless(.param .u64 place) {
    .reg .u64 %rd<2>;
    .reg .u32 %r<2>;
    ld.param.u64 %rd1, [place];
again:
    ld.volatile.global.u32 %r1, [%rd1];
    bra again;
}
";

/// Counts down for a while on all lanes.
const SPIN: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 rounds) {
    .reg .u64 %rd<2>;
    .reg .pred %p;
    ld.param.u64 %rd1, [rounds];
again:
    sub.u64 %rd1, %rd1, 1;
    setp.ne.u64 %p, %rd1, 0;
    @%p bra again;
    ret;
}
";

fn main() {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "worker") {
        sluice_worker::main(&arguments[1..]);
    }
    if arguments.first().is_some_and(|first| first == "--shares") {
        return shares::print(&TestNode::start());
    }
    if arguments.first().is_some_and(|first| first == "--attacks") {
        return attacks::print();
    }
    let filter = arguments.iter().filter_map(|a| a.to_str()).find(|a| !a.starts_with('-'));
    let (mut passed, mut failed) = (0, 0);
    let plain = TESTS.iter().map(|test| (test, "", NodeConfig::default()));
    let moved = MOVED.iter().map(|test| (test, " (its memory moves)", moving(NodeConfig::default())));
    let shared = OVERCOMMITTED.iter().map(|test| (test, " (overcommitted)", overcommitted()));
    let both = OVERCOMMITTED_AND_MOVED.iter();
    let both = both.map(|test| (test, " (overcommitted, and moves)", moving(overcommitted())));
    let idle = IDLE.iter().map(|test| (test, "", suspends_idle_ones()));
    for ((name, test), how, config) in plain.chain(moved).chain(shared).chain(both).chain(idle) {
        let name = format!("{name}{how}");
        if filter.is_some_and(|filter| !name.contains(filter)) {
            continue;
        }
        let started = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| test(&TestNode::start_with(config))));
        println!(
            "test {name} ... {} ({:.1?})",
            if result.is_ok() { "ok" } else { "FAILED" },
            started.elapsed()
        );
        passed += i32::from(result.is_ok());
        failed += i32::from(result.is_err());
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {word}. {passed} passed; {failed} failed");
    std::process::exit(failed.min(1));
}

type Test = (&'static str, fn(&TestNode));

macro_rules! tests {
    ($($name:ident)*) => { &[$((stringify!($name), $name as fn(&TestNode))),*] };
}

/// On a node that suspends idle leases.
const IDLE: &[Test] = tests! {
    an_idle_lease_leaves_its_gpu_and_comes_back_at_the_next_call
};

const TESTS: &[Test] = tests! {
    a_kernel_adds
    garbage_is_turned_away_and_nobody_notices
    a_wrong_token_opens_no_session
    forged_ids_and_addresses_get_cuda_errors
    half_frames_and_nonsense_end_one_session
    the_memory_limit_is_the_leases
    what_is_allowed_needs_no_answer
    nobody_uses_more_than_is_allowed
    a_lease_beyond_what_is_free_is_refused
    the_end_of_a_lease_ends_its_sessions
    an_endless_kernel_dies_with_its_client
    an_endless_kernel_times_out
    clients_killed_at_random_leave_nothing
    a_hostile_client_harms_nobody
    a_session_that_is_asked_for_again_is_one
    a_session_is_found_after_its_answer_was_lost
    who_has_ended_before_it_is_heard_gets_no_lease
    a_session_that_cannot_be_resumed_is_made_anew
    a_lease_that_is_asked_for_again_is_one
    a_wrong_secret_resumes_nothing
    a_secret_is_of_one_session
    a_stale_or_replayed_attempt_is_refused
    a_foreign_token_resumes_no_lease
    what_a_program_loads_and_launches_counts_towards_its_lease
    strangers_keep_nobody_out
    whoever_does_not_get_to_the_end_of_a_message_is_cut_off
    a_large_message_is_refused_at_its_header
    a_running_program_sees_its_new_memory
    a_lease_is_resized_by_its_owner_and_by_its_number
    shares_change_while_programs_compute
    a_suspended_session_waits_and_goes_on_where_it_was
    a_suspended_lease_gives_its_share_back
    the_memory_of_a_suspended_lease_is_for_others
    a_program_whose_memory_moves_computes_the_same
    a_session_that_was_copied_goes_on
    a_stopped_session_waits_and_is_restored
    copies_are_refused_by_name
    a_session_is_found_by_a_number_that_another_has
};

/// Run again on a node that moves the memory of sessions at random moments.
const MOVED: &[Test] = tests! {
    a_kernel_adds
    forged_ids_and_addresses_get_cuda_errors
    the_memory_limit_is_the_leases
    what_is_allowed_needs_no_answer
    a_session_that_is_asked_for_again_is_one
    what_a_program_loads_and_launches_counts_towards_its_lease
    a_running_program_sees_its_new_memory
    a_program_whose_memory_moves_computes_the_same
};

/// On a node whose memory is leased beyond what its GPU has.
const OVERCOMMITTED: &[Test] = tests! {
    programs_that_do_not_fit_together_share_a_gpu
    a_program_that_fits_alone_never_lacks_memory
    programs_that_wait_for_each_others_memory_both_get_it
    memory_that_cannot_leave_is_named
    a_program_that_ends_while_it_waits_for_memory_leaves_nothing
    suspended_programs_return_to_an_overcommitted_gpu
    leases_beyond_what_is_overcommitted_are_refused
    memory_beyond_the_lease_is_refused_at_once
    a_kernel_adds
    what_a_program_loads_and_launches_counts_towards_its_lease
};

/// On such a node that moves the memory of sessions at random moments as well.
const OVERCOMMITTED_AND_MOVED: &[Test] = tests! {
    programs_that_do_not_fit_together_share_a_gpu
    programs_that_wait_for_each_others_memory_both_get_it
    a_program_that_ends_while_it_waits_for_memory_leaves_nothing
};

fn moving(config: NodeConfig) -> NodeConfig {
    NodeConfig { churn: Some(1), ..config }
}

fn overcommitted() -> NodeConfig {
    NodeConfig {
        gpus: overcommit::GPU,
        memory_overcommit_ppm: OVERCOMMIT_PPM,
        swap_memory: Some(4 * GIB),
        ..NodeConfig::default()
    }
}

/// A node in this process, on a free port.
struct TestNode {
    address: String,
    stopper: Stopper,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl TestNode {
    fn start() -> TestNode {
        TestNode::start_with(NodeConfig::default())
    }

    fn start_with(config: NodeConfig) -> TestNode {
        let worker = WorkerCommand { arguments: vec!["worker".into()], ..WorkerCommand::default() };
        let config = NodeConfig {
            listen: vec![Listen::Tcp("127.0.0.1:0".into())],
            gpus: match config.gpus {
                GpuSelection::Auto => GpuSelection::Software { count: 1, memory: Some(GIB) },
                gpus => gpus,
            },
            worker,
            cache: None,
            ..config
        };
        let node = Node::bind(&config).unwrap();
        let (address, stopper) = (node.addresses().remove(0), node.stopper());
        let thread = std::thread::spawn(move || node.run().unwrap());
        TestNode { address, stopper, thread: Some(thread) }
    }

    fn status(&self) -> Status {
        match Connection::greet(&self.address, Purpose::Control).ask(StatusRequest {}) {
            Control::Status(status) => status,
            other => panic!("no status: {other:?}"),
        }
    }

    /// Waits until the node is as if nobody had ever come.
    fn wait_until_idle(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.status();
            let gpu = &status.gpus[0];
            let workers = children();
            let released = status.sessions.is_empty() && gpu.memory_used == 0 && gpu.share_leased_ppm == 0;
            if released && workers.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "left behind: {status:?}, workers {workers:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the only session's connection is gone.
    fn wait_until_parted(&self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.status().sessions[0].parted {
            assert!(Instant::now() < deadline, "the cut is not noticed");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn session(&self) -> (raw::Lease, Session) {
        let lease = lease(&self.address, request(500_000, 256 * MIB));
        let session = Session::open(&self.address, lease.granted.token);
        (lease, session)
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The child processes of this one.
fn children() -> Vec<u32> {
    let mut children = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        children.extend(text.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    children
}

fn commit(session: &mut Session, offset: u64, bytes: u64) -> Result<u64, CUresult> {
    let address = session.base() + offset;
    session
        .call(&commands::MemoryCommit { address: DevicePtr(address), bytes, on_host: false, by_all: false })
        .map(|_| address)
}

fn synchronize(session: &mut Session) -> Result<(), CUresult> {
    session.call(&commands::cuCtxSynchronize {}).map(|_| ())
}

fn read(session: &mut Session, address: u64, bytes: u64) -> Result<Vec<u8>, CUresult> {
    let command = commands::cuMemcpyDtoH_v2 {
        ticket: 0,
        srcDevice: DevicePtr(address),
        ByteCount: bytes,
        hStream: NULL,
    };
    let fields = session.call(&command)?;
    Ok(sluice_wire::decode::<commands::cuMemcpyDtoH_v2Reply<'_>>(&fields).unwrap().dstHost.to_vec())
}

fn a_kernel_adds(node: &TestNode) {
    let (mut lease, mut session) = node.session();
    let place = commit(&mut session, 0, 2 * MIB).unwrap();
    let module = session.load(PTX);
    let bump = session.function(module, c"bump");
    let start: Vec<u8> = (0..32_u32).flat_map(|i| (i * 10).to_le_bytes()).collect();
    session.queue(&commands::cuMemcpyHtoDAsync_v2 {
        dstDevice: DevicePtr(place),
        srcHost: &start,
        hStream: NULL,
    });
    for _ in 0..3 {
        session.launch(bump, 1, &[place]);
    }
    let got = read(&mut session, place, 128).unwrap();
    let want: Vec<u8> = (0..32_u32).flat_map(|i| (i * 10 + 3).to_le_bytes()).collect();
    assert_eq!(got, want);
    let status = node.status();
    assert_eq!(status.sessions.len(), 1);
    assert_eq!((status.sessions[0].kernels, status.sessions[0].memory_used), (3, 2 * MIB));
    let Control::Usage(usage) = lease.connection.ask(UsageRequest {}) else { panic!("no usage") };
    assert_eq!((usage.sessions, usage.kernels, usage.memory_peak), (1, 3, 2 * MIB));
    drop((session, lease));
    node.wait_until_idle();
}

fn garbage_is_turned_away_and_nobody_notices(node: &TestNode) {
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

fn a_wrong_token_opens_no_session(node: &TestNode) {
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

fn forged_ids_and_addresses_get_cuda_errors(node: &TestNode) {
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

fn half_frames_and_nonsense_end_one_session(node: &TestNode) {
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

fn the_memory_limit_is_the_leases(node: &TestNode) {
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
fn free(session: &mut Session) -> u64 {
    let info: commands::cuMemGetInfo_v2Reply = session.read(&commands::cuMemGetInfo_v2 {}).unwrap();
    assert_eq!(info.total, 256 * MIB);
    info.free
}

/// Another session of the lease is about to end.
fn commit_when_free(session: &mut Session, offset: u64, bytes: u64) {
    let deadline = Instant::now() + PATIENCE;
    while commit(session, offset, bytes).is_err() {
        assert!(Instant::now() < deadline, "it does not come back");
    }
}

/// Commits without waiting.
fn commit_unasked(session: &mut Session, offset: u64, bytes: u64) {
    let address = DevicePtr(session.base() + offset);
    session.queue(&commands::MemoryCommitAllowed { address, bytes });
}

fn what_is_allowed_needs_no_answer(node: &TestNode) {
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
fn nobody_uses_more_than_is_allowed(node: &TestNode) {
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

fn a_lease_beyond_what_is_free_is_refused(node: &TestNode) {
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

fn the_end_of_a_lease_ends_its_sessions(node: &TestNode) {
    let (lease, mut session) = node.session();
    commit(&mut session, 0, 2 * MIB).unwrap();
    drop(lease);
    session.connection.wait_for_end();
    node.wait_until_idle();
}

fn start_endless(session: &mut Session) {
    let place = commit(session, 0, 2 * MIB).unwrap();
    let module = session.load(PTX);
    let endless = session.function(module, c"endless");
    session.launch(endless, 4, &[place]);
}

fn an_endless_kernel_dies_with_its_client(node: &TestNode) {
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

fn an_endless_kernel_times_out(node: &TestNode) {
    let request = sluice_wire::control::LeaseRequest { kernel_timeout_ms: 200, ..request(500_000, 64 * MIB) };
    let lease = lease(&node.address, request);
    let mut session = Session::open(&node.address, lease.granted.token);
    start_endless(&mut session);
    assert_eq!(synchronize(&mut session), Err(CUresult::LAUNCH_TIMEOUT));
}

/// What a client does before it dies: more with every step.
fn live(session: &mut Session, steps: u64) {
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

fn clients_killed_at_random_leave_nothing(node: &TestNode) {
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
