//! What instrumented code calls.

use super::run;
use crate::context::{LANES, WarpContext};

/// Whether a lane may make the access that follows, in place of its guard.
pub(crate) unsafe extern "C" fn check_access(
    warp: *mut WarpContext,
    lane: u64,
    address: u64,
    guard: u32,
    site: u32,
    value: u64,
) -> u8 {
    if guard & 1 == 0 {
        return 0;
    }
    // SAFETY: compiled code passes its own warp, in this function and in all below.
    unsafe { run(warp).may_access(&*warp, lane as u32, site, (address, value)).into() }
}

/// Lanes execute a collective instruction of the warp at a line, each with its member mask.
pub(crate) unsafe extern "C" fn watch_collective(
    warp: *mut WarpContext,
    lanes: u32,
    masks: *const [u32; LANES],
    line: u32,
    is_sync: u32,
) {
    // SAFETY: see `check_access`; the masks are in the warp's memory.
    let (warp, masks, run) = unsafe { (&*warp, &*masks, run(warp)) };
    if let Some(mut block) = run.watched_block_of(warp) {
        block.collective(warp.warp_index, lanes, masks, (line, is_sync != 0));
    }
}

/// Lanes execute a fence, of their block alone or of more.
pub(crate) unsafe extern "C" fn watch_fence(warp: *mut WarpContext, lanes: u32, is_wide: u32) {
    // SAFETY: see `check_access`.
    let (warp, run) = unsafe { (&*warp, run(warp)) };
    if let Some(mut block) = run.watched_block_of(warp) {
        block.fence(warp.warp_index, lanes, is_wide != 0);
    }
}

/// Lanes of the warp come to a barrier, or wait for others of the warp, at a line.
pub(crate) unsafe extern "C" fn watch_arrival(warp: *mut WarpContext, line: u32) {
    // SAFETY: see `check_access`.
    let (warp, run) = unsafe { (&*warp, run(warp)) };
    if let Some(mut block) = run.watched_block_of(warp) {
        block.comes_to_barrier(warp.warp_index, line);
    }
}
