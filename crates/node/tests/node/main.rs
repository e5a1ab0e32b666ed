//! A node and its workers against a client that speaks the protocol by hand.
//!
//! This program is its own worker: the node starts it again with the argument `worker`.

#![allow(non_snake_case)] // fields of commands bear CUDA's names

mod allowance;
mod attacks;
mod clones;
mod copies;
mod elastic;
mod ends;
mod forged;
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

use sluice_cuda::CUresult;
use sluice_node::{GpuSelection, Listen, Node, NodeConfig, Stopper, SwapFileConfig, WorkerCommand};
use sluice_wire::control::{Control, Status, StatusRequest, UsageRequest};
use sluice_wire::handshake::{LeaseToken, Purpose};
use sluice_wire::{DevicePtr, StreamId, commands};

use allowance::{
    a_lease_beyond_what_is_free_is_refused, nobody_uses_more_than_is_allowed, the_memory_limit_is_the_leases,
    what_is_allowed_needs_no_answer,
};
use attacks::*;
use clones::*;
use copies::*;
use elastic::*;
use ends::{
    an_endless_kernel_dies_with_its_client, an_endless_kernel_times_out,
    clients_killed_at_random_leave_nothing, the_end_of_a_lease_ends_its_sessions,
};
use forged::{
    a_wrong_token_opens_no_session, forged_ids_and_addresses_get_cuda_errors,
    garbage_is_turned_away_and_nobody_notices, half_frames_and_nonsense_end_one_session,
};
use hostile::a_hostile_client_harms_nobody;
use idle::*;
use openings::*;
use overcommit::*;
use own_memory::*;
use raw::{Connection, Session, lease, request};
use replays::*;
use resize::*;

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
    let filed = SWAPPED_TO_A_FILE.iter().map(|test| (test, " (swapped to a file)", swapped_to_a_file()));
    let idle = IDLE.iter().map(|test| (test, "", suspends_idle_ones()));
    for ((name, test), how, config) in plain.chain(moved).chain(shared).chain(both).chain(filed).chain(idle) {
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
    a_clone_counts_once_a_child_has_it
    a_node_without_a_place_says_so_to_a_fork
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

/// On such a node that has little host memory, and a file.
const SWAPPED_TO_A_FILE: &[Test] = tests! {
    programs_that_do_not_fit_together_share_a_gpu
    memory_that_is_away_is_in_the_file
    programs_that_wait_for_each_others_memory_both_get_it
    a_program_that_ends_while_it_waits_for_memory_leaves_nothing
    suspended_programs_return_to_an_overcommitted_gpu
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

fn swapped_to_a_file() -> NodeConfig {
    let file = SwapFileConfig { folder: env!("CARGO_TARGET_TMPDIR").into(), bytes: Some(GIB) };
    NodeConfig { swap_memory: Some(SWAP_MEMORY), swap_file: Some(file), ..overcommitted() }
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
