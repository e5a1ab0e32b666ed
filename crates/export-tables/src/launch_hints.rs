//! 1734DC26-...: a table without a public name. cuBLASLt asks for it before bf16 products on sm_90,
//! presumably for the shape of a launch, and crashes if the table is refused. All of it is
//! measured.

use std::ffi::c_void;

use sluice_cuda::CUresult;

use crate::Table;

/// 1734DC26-800D-4745-8726-C0F1E7DD8BCA
pub(crate) const UUID: [u8; 16] = 0x1734DC26_800D_4745_8726_C0F1E7DD8BCA_u128.to_be_bytes();

static TABLE: Table<16> = Table::sized().with(4, hints as *const c_void);

pub(crate) fn address() -> *const c_void {
    TABLE.address()
}

/// Slot 4 (measured): callers accept this error and decide for themselves. Success would have to
/// come with two words that they follow as addresses.
extern "C" fn hints(_: *mut u64, _: *mut u64) -> CUresult {
    CUresult::NOT_SUPPORTED
}
