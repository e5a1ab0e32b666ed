//! What the exports forward to.

#![allow(non_snake_case)] // CUDA's names

use std::ffi::{CStr, c_char, c_void};
use std::sync::LazyLock;

use sluice_cuda::{
    CUdriverProcAddressQueryResult, CUresult, CUstream, DriverTable, FnInfo, find_proc_address,
};
use sluice_softgpu::{Config, DRIVER_VERSION};

use crate::export_tables::cuGetExportTable;
use crate::generated::exports;

/// The software GPU's functions, configured from the environment on the first call.
pub(crate) fn table() -> &'static DriverTable {
    static TABLE: LazyLock<DriverTable> = LazyLock::new(|| {
        sluice_softgpu::configure(Config::from_env());
        sluice_softgpu::set_optimizes(true);
        sluice_softgpu::on_context_destroyed(sluice_export_tables::context_destroyed);
        DriverTable { cuGetExportTable: Some(cuGetExportTable), ..sluice_softgpu::table() }
    });
    &TABLE
}

/// # Safety
///
/// As the CUDA Driver API says: pointers are null or valid, and `symbol` is a string.
pub(crate) unsafe fn cuGetProcAddress(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: i32,
    flags: u64,
) -> CUresult {
    // SAFETY: as for this function; a null status is allowed.
    unsafe { cuGetProcAddress_v2(symbol, pfn, version, flags, std::ptr::null_mut(), CUstream::LEGACY) }
}

/// # Safety
///
/// As the CUDA Driver API says: pointers are null or valid, and `symbol` is a string.
pub(crate) unsafe fn cuGetProcAddress_v2(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: i32,
    flags: u64,
    status: *mut CUdriverProcAddressQueryResult,
    default_stream: CUstream,
) -> CUresult {
    if symbol.is_null() || pfn.is_null() {
        return CUresult::INVALID_VALUE;
    }
    // SAFETY: not null, and a string as the caller says.
    let symbol = unsafe { CStr::from_ptr(symbol) }.to_string_lossy();
    let flags = match flags {
        0 if default_stream == CUstream::PER_THREAD => {
            sluice_cuda::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
        }
        flags => flags,
    };
    // A function that is not built answers CUDA_ERROR_NOT_SUPPORTED, whether it is looked up or
    // linked.
    let is_present = |info: &FnInfo| info.version.is_some_and(|since| since <= DRIVER_VERSION as u32);
    let found = find_proc_address(&symbol, version.try_into().unwrap_or(0), flags, is_present);
    let (address, answer, result) = match found {
        Ok(found) => {
            let address = exports::address(found.function, found.per_thread);
            (address, CUdriverProcAddressQueryResult::SUCCESS, CUresult::SUCCESS)
        }
        Err(why) => (std::ptr::null_mut(), why, CUresult::NOT_FOUND),
    };
    // SAFETY: `pfn` is not null, `status` is checked, and both are the caller's to be written.
    unsafe {
        pfn.write(address);
        if !status.is_null() {
            status.write(answer);
        }
    }
    result
}
