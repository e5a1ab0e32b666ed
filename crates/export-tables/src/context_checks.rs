//! CONTEXT_CHECKS: bits of a context that were never seen set. The runtime of CUDA 13 requires it.

use std::ffi::c_void;

use sluice_cuda::{CUcontext, CUresult};

use crate::{Table, write};

/// 263E8860-7CD2-6143-92F6-BBD5006DFA7E
pub(crate) const UUID: [u8; 16] = 0x263E8860_7CD2_6143_92F6_BBD5006DFA7E_u128.to_be_bytes();

static TABLE: Table<4> =
    Table::sized().with(2, context_check as *const c_void).with(3, process_check as *const c_void);

pub(crate) fn address() -> *const c_void {
    TABLE.address()
}

/// Slot 2 (public, measured): zero for every context; the third argument is left alone.
unsafe extern "C" fn context_check(_: CUcontext, flags: *mut u32, _: *mut *const c_void) -> CUresult {
    // SAFETY: the runtime passes a place for the flags.
    unsafe { write(flags, Ok(0)) }
}

/// Slot 3 (public, measured): zero.
extern "C" fn process_check() -> u32 {
    0
}
