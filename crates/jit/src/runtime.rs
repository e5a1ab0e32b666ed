//! Functions that compiled code calls.
//!
//! Each gets the warp first where it needs it. They may end the grid ([`BlockRun::leave`]) or be
//! left by a signal when device memory turns out to be unmapped, so none of them holds a lock or
//! owns anything while it touches device memory.

pub(crate) mod atomics;
mod checks;
pub(crate) mod lanes;
mod matrix;
mod printf;
mod texels;
mod textures;

use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) use atomics::*;
pub(crate) use checks::*;
pub(crate) use lanes::{matching, redux, shuffle, union, vote};
pub(crate) use matrix::matrix_multiply;
pub(crate) use textures::*;

use crate::block::BlockRun;
use crate::context::{BARRIERS, LANES, WarpContext};
use crate::control;
use crate::fault::FaultKind;

/// Kinds of fault as compiled code names them.
pub(crate) mod fault_code {
    pub(crate) const ILLEGAL_ADDRESS: u32 = 0;
    pub(crate) const OUT_OF_WINDOW: u32 = 1;
    pub(crate) const TRAP: u32 = 2;

    /// The kind of a failed access that had to be a multiple of `align`: it may have been
    /// misaligned instead.
    pub(crate) fn of_access(code: u32, align: u32) -> u32 {
        code | align << 8
    }
}

/// The block that runs this warp.
///
/// # Safety
/// `warp` is what compiled code was entered with.
unsafe fn run<'a>(warp: *const WarpContext) -> &'a BlockRun<'a> {
    // SAFETY: `BlockRun::start` stored a pointer to itself, and it runs the warp now.
    unsafe { &*(*warp).run.cast() }
}

/// Number of the warp in its block.
unsafe fn number(warp: *const WarpContext) -> u32 {
    // SAFETY: as `run`.
    unsafe { (*warp).warp_index }
}

/// Ends the grid.
pub(crate) unsafe extern "C" fn fault(warp: *mut WarpContext, code: u32, address: u64) {
    let align = u64::from(code >> 8);
    let kind = match code & 0xff {
        _ if align != 0 && !address.is_multiple_of(align) => FaultKind::MisalignedAddress { address },
        fault_code::ILLEGAL_ADDRESS => FaultKind::IllegalAddress { address },
        fault_code::OUT_OF_WINDOW => FaultKind::OutOfWindow { address },
        _ => FaultKind::Trap,
    };
    // SAFETY: compiled code passes its own warp, in this function and in all below.
    unsafe { run(warp) }.leave(kind)
}

/// What the compiler could not do was reached: ends the grid.
pub(crate) unsafe extern "C" fn missing(warp: *mut WarpContext, what: u32) {
    // SAFETY: see `fault`.
    unsafe { run(warp) }.leave(FaultKind::Missing { what })
}

/// A call does not fit into the thread's stack: ends the grid.
pub(crate) unsafe extern "C" fn stack_overflow(warp: *mut WarpContext) {
    // SAFETY: see `fault`.
    unsafe { run(warp) }.leave(FaultKind::StackOverflow)
}

/// Waits while the launch is paused; ends it where it has been cancelled.
pub(crate) unsafe extern "C" fn safepoint(warp: *mut WarpContext) {
    // SAFETY: see `fault`.
    let run = unsafe { run(warp) };
    if !run.control.at_safepoint() {
        run.leave(FaultKind::Cancelled);
    }
}

/// The warp has ended, and code that continues by itself takes the next one of `lanes` lanes in the
/// same memory: that of the block, or the first of the next block. Returns its lanes; 0 where there
/// is none, or the launch is asked to stop.
pub(crate) unsafe extern "C" fn next_warp(warp: *mut WarpContext, lanes: u32) -> u32 {
    // SAFETY: compiled code passes its own warp.
    let warp = unsafe { &mut *warp };
    if warp.threads_left > 0 {
        let members = warp.threads_left.min(lanes);
        warp.threads_left -= members;
        warp.warp_index += 1;
        warp.local_base += u64::from(lanes) * warp.local_stride;
        warp.tid0[0] += lanes;
        if warp.tid0[0] >= warp.ntid[0] {
            step(&mut warp.tid0, warp.ntid, 1);
            warp.tid0[0] = 0;
        }
        return u32::MAX >> (u32::BITS - members);
    }
    // SAFETY: the launch's control word outlives its code.
    let is_asked = unsafe { (*warp.control).load(Ordering::Relaxed) } != 0;
    if warp.blocks_left == 0 || is_asked {
        return 0;
    }
    warp.blocks_left -= 1;
    warp.threads_left = warp.first_threads_left;
    warp.warp_index = 0;
    warp.tid0 = [0; 3];
    warp.local_base = warp.local_start;
    step(&mut warp.ctaid, warp.nctaid, 0);
    warp.first_members
}

/// The next index, from an axis on: that of the next row where one is at its end.
fn step(index: &mut [u32; 3], size: [u32; 3], first: usize) {
    for axis in first..3 {
        index[axis] += 1;
        if index[axis] < size[axis] {
            return;
        }
        index[axis] = 0;
    }
}

/// Lanes have exited.
pub(crate) unsafe extern "C" fn exited(warp: *mut WarpContext, lanes: u32) {
    // SAFETY: see `fault`.
    unsafe { run(warp).exited(number(warp), lanes) }
}

/// Lanes come to a barrier of `threads` threads (0: all); they continue at `node`, or do not stop
/// (-1).
pub(crate) unsafe extern "C" fn barrier(
    warp: *mut WarpContext,
    id: u32,
    threads: u32,
    node: u32,
    lanes: u32,
    votes: u32,
) {
    let node = (node != u32::MAX).then_some(node);
    // SAFETY: see `fault`.
    unsafe { run(warp).arrive(id, threads, number(warp), node, lanes, votes) }
}

/// Lanes come to the barrier of their cluster. They continue at `node` when all threads have
/// arrived, or do not stop (-1).
pub(crate) unsafe extern "C" fn cluster_barrier(warp: *mut WarpContext, node: u32, lanes: u32) {
    let node = (node != u32::MAX).then_some(node);
    // SAFETY: see `fault`.
    unsafe { run(warp).arrive_at_cluster(number(warp), node, lanes) }
}

/// What reducing barriers gave, by lane: their counts to `out` and, as bits, whether all or any of
/// their threads voted.
pub(crate) unsafe extern "C" fn barrier_results(
    warp: *const WarpContext,
    barriers: *const [u32; LANES],
    active: u32,
    is_all: u32,
    is_any: u32,
    out: *mut [u32; LANES],
) -> u32 {
    // SAFETY: see `fault`; the arrays are of the warp's memory.
    let (warp, barriers, out) = unsafe { (&*warp, &*barriers, &mut *out) };
    let mut bits = 0;
    for lane in (0..LANES).filter(|lane| active >> lane & 1 != 0) {
        let barrier = barriers[lane] as usize % BARRIERS;
        let (votes, arrived) = (warp.barrier_votes[barrier], warp.barrier_arrived[barrier]);
        let is_true = (is_all != 0 && votes == arrived) || (is_any != 0 && votes != 0);
        bits |= u32::from(is_true) << lane;
        if is_all == 0 && is_any == 0 {
            out[lane] = votes;
        }
    }
    bits
}

/// `lanes` are at a collective instruction of `members`. Returns 1 if they continue; else they have
/// been left pending at `node`, until others come. With the last to come the node becomes ready,
/// and all come again together.
pub(crate) unsafe extern "C" fn gather(warp: *mut WarpContext, node: u32, lanes: u32, members: u32) -> u32 {
    // SAFETY: see `fault`; the node is the code's.
    unsafe {
        let missing = members & (*warp).live & !lanes;
        if missing == 0 || (*warp).force != 0 {
            (*warp).force = 0;
            run(warp).waited(number(warp), node);
            return 1;
        }
        let frame = run(warp).shape.code.traits.frame;
        // A jump brings its own lanes alone; those that came before are pending.
        if missing & !frame.pending(warp, node) == 0 {
            frame.make_ready(warp, node, lanes);
            return 0;
        }
        frame.leave_pending(warp, node, lanes);
        run(warp).wait(number(warp), node);
        0
    }
}

/// Picks a ready node in turn, by the warp's rotation, and returns it. It stays ready.
pub(crate) unsafe extern "C" fn rotate(warp: *mut WarpContext, nodes: u32) -> u32 {
    // SAFETY: see `fault`.
    unsafe {
        let frame = run(warp).shape.code.traits.frame;
        let ready: u32 = (0..nodes).filter(|&node| frame.is_ready(warp, node)).count() as u32;
        let turn = (*warp).rotation % ready.max(1);
        (0..nodes).filter(|&node| frame.is_ready(warp, node)).nth(turn as usize).unwrap_or(0)
    }
}

/// A counter that only grows, at about the rate of a clock (`%clock64`).
pub(crate) extern "C" fn clock() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has it.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    global_timer()
}

/// What the warp has written is to be seen outside the device before what it writes next.
pub(crate) unsafe extern "C" fn system_release(warp: *mut WarpContext) {
    std::sync::atomic::fence(Ordering::SeqCst);
    let Some(order) = control::system_order() else { return };
    while !(order.released)() {
        // SAFETY: see `fault`.
        if !unsafe { run(warp) }.control.at_safepoint() {
            // The warp learns of it at its own next safepoint.
            return;
        }
    }
}

/// What the warp has read was written outside the device, and it is about to read what was written
/// before that.
pub(crate) extern "C" fn system_acquire() {
    if let Some(order) = control::system_order() {
        (order.acquired)();
    }
}

/// Nanoseconds of the wall clock (`%globaltimer`).
pub(crate) extern "C" fn global_timer() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

pub(crate) unsafe extern "C" fn malloc(warp: *mut WarpContext, bytes: u64) -> u64 {
    // SAFETY: see `fault`.
    unsafe { run(warp) }.heap.map_or(0, |heap| heap.allocate(bytes))
}

pub(crate) unsafe extern "C" fn free(warp: *mut WarpContext, address: u64) {
    // SAFETY: see `fault`.
    if let Some(heap) = unsafe { run(warp) }.heap {
        heap.free(address);
    }
}

/// `printf`: formats and hands the text to the launch's output. Returns the number of arguments, or
/// -1.
pub(crate) unsafe extern "C" fn vprintf(warp: *mut WarpContext, format: u64, arguments: u64) -> i32 {
    // SAFETY: see `fault`.
    let run = unsafe { run(warp) };
    let mut text = printf::Text::new();
    let count = printf::format(&printf::DeviceMemory::of(run), format, arguments, &mut text);
    run.control.print(text.bytes());
    count
}

/// A failed assertion: prints where, and ends the grid.
pub(crate) unsafe extern "C" fn assert_fail(
    warp: *mut WarpContext,
    message: u64,
    file: u64,
    line: u32,
    function: u64,
    _char_bytes: u64,
) {
    // SAFETY: see `fault`.
    let (run, lane0, block) = unsafe { (run(warp), (*warp).tid0, (*warp).ctaid) };
    let memory = printf::DeviceMemory::of(run);
    let mut text = printf::Text::new();
    memory.copy_string(file, &mut text);
    text.push_format(format_args!(":{line}: "));
    memory.copy_string(function, &mut text);
    text.push_format(format_args!(": block: {block:?}, warp of thread: {lane0:?} Assertion `"));
    memory.copy_string(message, &mut text);
    text.push_format(format_args!("` failed.\n"));
    run.control.print(text.bytes());
    run.leave(FaultKind::Assert)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_step_through_rows_and_planes() {
        let mut index = [1, 0, 0];
        step(&mut index, [2, 2, 2], 0);
        assert_eq!(index, [0, 1, 0]);
        let mut index = [1, 1, 0];
        step(&mut index, [2, 2, 2], 0);
        assert_eq!(index, [0, 0, 1]);
        let mut index = [96, 2, 0];
        step(&mut index, [128, 3, 2], 1);
        assert_eq!(index, [96, 0, 1]);
    }
}
