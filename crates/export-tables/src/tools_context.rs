//! TOOLS_CONTEXT: contexts as tools see them. Required by the runtime of CUDA 13, by cuBLAS and by
//! cuFFT.

use std::ffi::c_void;

use sluice_cuda::{CUcontext, CUresult};

use crate::{Table, driver, entered, write};

/// 21318C60-9714-3248-8CA6-41FF7324C8F2
pub(crate) const UUID: [u8; 16] = 0x21318C60_9714_3248_8CA6_41FF7324C8F2_u128.to_be_bytes();

/// 95 words, as recent drivers have.
static TABLE: Table<95> = Table::sized()
    .with(4, context_number as *const c_void)
    .with(39, accepted as *const c_void)
    .with(51, accepted as *const c_void);

pub(crate) fn address() -> *const c_void {
    TABLE.address()
}

/// Slot 4 (public in scuda, measured): a number that tells contexts apart, also from destroyed
/// ones.
unsafe extern "C" fn context_number(ctx: CUcontext, number: *mut u64) -> CUresult {
    entered(|| {
        let value = driver().and_then(|driver| {
            let ctx = if ctx.is_null() { driver.current_context()? } else { ctx };
            if ctx.is_null() { Err(CUresult::INVALID_CONTEXT) } else { driver.context_number(ctx) }
        });
        // SAFETY: callers pass a place for the number.
        unsafe { write(number, value) }
    })
}

/// Slots 39 and 51 (measured): cuBLAS calls each once and continues if the call succeeds; it reads
/// nothing back.
extern "C" fn accepted() -> CUresult {
    CUresult::SUCCESS
}
