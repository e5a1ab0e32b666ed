//! TOOLS_TLS: the calling thread's state. Every runtime requires the table; cuBLAS calls one slot
//! of it.

use std::ffi::c_void;

use sluice_cuda::{CUcontext, CUresult};

use crate::{Table, driver, entered, write};

/// 42D85A81-23F6-CB47-8298-F6E78A3AECDC
pub(crate) const UUID: [u8; 16] = 0x42D85A81_23F6_CB47_8298_F6E78A3AECDC_u128.to_be_bytes();

static TABLE: Table<4> = Table::sized().with(2, thread_context as *const c_void);

pub(crate) fn address() -> *const c_void {
    TABLE.address()
}

/// Slot 2 (name public, behaviour measured): the calling thread's context. What callers leave in
/// the second argument register is junk.
unsafe extern "C" fn thread_context(ctx: *mut CUcontext) -> CUresult {
    // SAFETY: callers pass a place for the context.
    entered(|| unsafe { write(ctx, driver().and_then(|driver| driver.current_context())) })
}
