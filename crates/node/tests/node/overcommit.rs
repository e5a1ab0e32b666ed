//! GPUs whose memory is leased beyond what they have. The node has one of 256 MiB.

use std::time::{Duration, Instant};

use sluice_cuda::CUresult;
use sluice_wire::control::SessionStatus;
use sluice_wire::{DevicePtr, commands};

use crate::elastic::{check, fill, seen, suspend};
use crate::own_memory::variable;
use crate::raw::{Lease, Session, lease, request};
use crate::{GpuSelection, MIB, PATIENCE, PTX, TestNode, commit, read, synchronize};

pub(crate) const GPU: GpuSelection = GpuSelection::Software { count: 1, memory: Some(256 * MIB) };
pub(crate) const OVERCOMMIT_PPM: u64 = 3_000_000;
/// Host memory where there is a file too: for a part of one program.
pub(crate) const SWAP_MEMORY: u64 = 96 * MIB;

/// A program with 0.7 of the GPU.
struct Program {
    lease: Lease,
    session: Session,
    place: u64,
    seed: u64,
}

const LEASED: u64 = 179 * MIB;
const HELD: u64 = 160 * MIB;

impl Program {
    fn begin(node: &TestNode, seed: u64) -> Program {
        let lease = lease(&node.address, request(300_000, LEASED));
        let session = Session::open(&node.address, lease.granted.token);
        Program { lease, session, place: 0, seed }
    }

    fn fill(&mut self) {
        self.place = commit(&mut self.session, 0, HELD).expect("it waits for others");
        fill(&mut self.session, self.place, HELD, self.seed);
    }

    fn check(&mut self) {
        check(&mut self.session, self.place, HELD, self.seed);
    }

    fn seen(&self, node: &TestNode) -> SessionStatus {
        seen(node, self.session.opened.session)
    }
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Elsewhere the second program ends without memory (HAMi #705, #2630; nvshare #26; kvcached #221).
pub(crate) fn programs_that_do_not_fit_together_share_a_gpu(node: &TestNode) {
    let mut programs: Vec<Program> = (1..4).map(|seed| Program::begin(node, seed)).collect();
    assert_eq!(node.status().gpus[0].memory_leased, 3 * LEASED);
    for program in &mut programs {
        program.fill();
        assert!(node.status().gpus[0].memory_used <= 256 * MIB, "{:?}", node.status());
    }
    for program in &mut programs {
        let module = program.session.load(PTX);
        let bump = program.session.function(module, c"bump");
        program.session.launch(bump, 1, &[program.place + HELD / 2 + 512]);
        synchronize(&mut program.session).unwrap();
        let bumped = read(&mut program.session, program.place + HELD / 2 + 512, 4).unwrap();
        assert_eq!(bumped, 1_u32.to_le_bytes());
    }
    for _ in 0..2 {
        programs.iter_mut().for_each(Program::check);
    }
    let moves: u64 = programs.iter().map(|program| program.seen(node).memory_moves).sum();
    assert!(moves >= 8, "{moves}");
    for program in &programs {
        let seen = program.seen(node);
        assert_eq!((seen.memory_used, seen.memory_pinned), (HELD, 0));
        assert!(seen.memory_moving_us > 0 && !seen.suspended, "{seen:?}");
    }
    drop(programs);
    node.wait_until_idle();
}

/// Host memory is used first, and never more than may be.
pub(crate) fn memory_that_is_away_is_in_the_file(node: &TestNode) {
    let mut programs: Vec<Program> = (1..4).map(|seed| Program::begin(node, seed)).collect();
    programs.iter_mut().for_each(Program::fill);
    for _ in 0..2 {
        programs.iter_mut().for_each(Program::check);
        let seen: Vec<SessionStatus> = programs.iter().map(|program| program.seen(node)).collect();
        let swapped: u64 = seen.iter().map(|seen| seen.memory_swapped).sum();
        let in_file: u64 = seen.iter().map(|seen| seen.memory_in_file).sum();
        assert_eq!(swapped, 2 * HELD, "{seen:?}");
        assert!((1..=SWAP_MEMORY).contains(&(swapped - in_file)), "{seen:?}");
    }
    programs.truncate(1);
    programs[0].check();
    let seen = programs[0].seen(node);
    assert_eq!((seen.memory_swapped, seen.memory_in_file), (0, 0));
    drop(programs);
    node.wait_until_idle();
}

/// (HAMi #705, #2630.)
pub(crate) fn a_program_that_fits_alone_never_lacks_memory(node: &TestNode) {
    let (mut one, mut two) = (Program::begin(node, 1), Program::begin(node, 2));
    one.fill();
    for round in 0..2_000 {
        let (at, bytes) = ((round % 7) * 8 * MIB, (1 + round % 3) * 2 * MIB);
        let address = commit(&mut two.session, at, bytes).expect("the other one makes room");
        two.session.queue(&commands::MemoryDecommit { address: DevicePtr(address), bytes });
    }
    two.fill();
    one.check();
    two.check();
    drop((one, two));
    node.wait_until_idle();
}

/// Each holds what the other waits for.
pub(crate) fn programs_that_wait_for_each_others_memory_both_get_it(node: &TestNode) {
    let mut programs: Vec<Program> = (1..3).map(|seed| Program::begin(node, seed)).collect();
    let places: Vec<u64> =
        programs.iter_mut().map(|program| commit(&mut program.session, 0, 120 * MIB).unwrap()).collect();
    programs.iter_mut().zip(&places).for_each(|(program, place)| {
        fill(&mut program.session, *place, 120 * MIB, program.seed);
    });
    std::thread::scope(|scope| {
        for (program, place) in programs.iter_mut().zip(&places) {
            scope.spawn(move || {
                let more = commit(&mut program.session, 128 * MIB, 40 * MIB).unwrap();
                fill(&mut program.session, more, 40 * MIB, program.seed);
                let info: commands::cuMemGetInfo_v2Reply =
                    program.session.read(&commands::cuMemGetInfo_v2 {}).unwrap();
                assert_eq!((info.total, info.free), (LEASED, LEASED - 160 * MIB));
                check(&mut program.session, *place, 120 * MIB, program.seed);
                check(&mut program.session, more, 40 * MIB, program.seed);
            });
        }
    });
    drop(programs);
    node.wait_until_idle();
}

/// What cannot leave is in the way of others, who are told so by name.
pub(crate) fn memory_that_cannot_leave_is_named(node: &TestNode) {
    let mut one = Program::begin(node, 1);
    assert_eq!(variable(&mut one.session, 128), Ok(128 * MIB));
    assert_eq!(one.seen(node).memory_pinned, 128 * MIB);
    let mut two = Program::begin(node, 2);
    let (address, bytes) = (DevicePtr(two.session.base()), 160 * MIB);
    two.session.queue(&commands::MemoryCommit { address, bytes, on_host: false, by_all: false });
    let notice = two.session.notice();
    let number = one.session.opened.session;
    assert!(
        notice.contains("no room for 160.0 MiB")
            && notice.contains(&format!("128.0 MiB is of session {number}")),
        "{notice}"
    );
    assert_eq!(two.seen(node).memory_used, 0, "what was refused is given back");
    commit(&mut two.session, 0, 120 * MIB).expect("there is room for that");
    drop(one);
    wait_until("the other one ends", || node.status().sessions.len() == 1);
    commit(&mut two.session, 128 * MIB, 40 * MIB).expect("it is free");
    drop(two);
    node.wait_until_idle();
}

pub(crate) fn a_program_that_ends_while_it_waits_for_memory_leaves_nothing(node: &TestNode) {
    let (mut one, two) = (Program::begin(node, 1), Program::begin(node, 2));
    one.fill();
    let Program { lease, mut session, .. } = two;
    let (address, bytes) = (DevicePtr(session.base()), HELD);
    session.queue(&commands::MemoryCommit { address, bytes, on_host: false, by_all: false });
    drop((session, lease));
    one.check();
    wait_until("the other one ends", || node.status().sessions.len() == 1);
    assert_eq!(node.status().gpus[0].memory_leased, LEASED);
    one.check();
    drop(one);
    node.wait_until_idle();
}

/// A suspended program comes back by `resume` alone, and its neighbour's memory leaves for that.
pub(crate) fn suspended_programs_return_to_an_overcommitted_gpu(node: &TestNode) {
    let (mut one, mut two) = (Program::begin(node, 1), Program::begin(node, 2));
    one.fill();
    let number = one.lease.granted.lease;
    let answer = suspend(node, number, true).unwrap();
    assert_eq!((answer.swapped, answer.notes), (HELD, vec![]));
    two.fill();
    assert_eq!((one.seen(node).memory_swapped, two.seen(node).memory_swapped), (HELD, 0));
    assert!(one.seen(node).suspended);
    suspend(node, number, false).unwrap();
    wait_until("it comes back", || one.seen(node).memory_swapped == 0);
    assert_eq!(two.seen(node).memory_swapped, HELD);
    two.check();
    one.check();
    // It does not come back while it is suspended, though its program wants it.
    suspend(node, number, true).unwrap();
    one.session.queue(&commands::cuCtxSynchronize {});
    two.check();
    assert_eq!((one.seen(node).memory_swapped, one.seen(node).suspended), (HELD, true));
    suspend(node, number, false).unwrap();
    one.check();
    drop((one, two));
    node.wait_until_idle();
}

pub(crate) fn leases_beyond_what_is_overcommitted_are_refused(node: &TestNode) {
    let leases: Vec<Lease> = (0..3).map(|_| lease(&node.address, request(100_000, 256 * MIB))).collect();
    let refused = crate::raw::refused(&node.address, request(100_000, MIB));
    assert!(refused.contains("70 % and 0 B"), "{refused}");
    let refused = crate::raw::refused(&node.address, request(100_000, 257 * MIB));
    assert!(refused.contains("more than any GPU of this node has"), "{refused}");
    drop(leases);
    node.wait_until_idle();
}

/// A program that has no lease any more is not waited for.
pub(crate) fn memory_beyond_the_lease_is_refused_at_once(node: &TestNode) {
    let mut one = Program::begin(node, 1);
    assert_eq!(commit(&mut one.session, 0, LEASED + MIB), Err(CUresult::OUT_OF_MEMORY));
    one.fill();
    one.check();
    drop(one);
    node.wait_until_idle();
}
