//! `cuGetProcAddress`: what is here, and what the nodes' drivers have.

use std::ffi::{CStr, c_char, c_void};

use sluice_cuda::*;

use crate::abi::out;
use crate::device::entry_points;
use crate::generated::exports;
use crate::lifecycle::init;

/// Whether the node's driver has what travels under this name, or should have it by its version:
/// then the call itself says that it is not supported, as with functions that are absent here.
fn is_there(function: Fn, driver_version: u32) -> bool {
    let info = function.info();
    if info.version.is_some_and(|since| since <= driver_version) {
        return true;
    }
    let travels = match info.class {
        Class::Queued | Class::Waiting => function,
        Class::Via(other) => other,
        Class::Local | Class::Absent(_) => return true,
    };
    // Without a session every function says so itself.
    init::connect()
        .map_or(true, |sessions| sessions.list.iter().all(|session| session.functions.contains(travels)))
}

fn find(symbol: &CStr, version: i32, flags: u64) -> Result<*mut c_void, CUdriverProcAddressQueryResult> {
    let symbol = symbol.to_str().map_err(|_| CUdriverProcAddressQueryResult::SYMBOL_NOT_FOUND)?;
    let version = u32::try_from(version).unwrap_or(0);
    // Without a session each function says so itself.
    let driver_version = entry_points::driver_version().unwrap_or(u32::MAX);
    let found = find_proc_address(symbol, version, flags, |info| info.is_exported_by(driver_version))?;
    if !is_there(found.function, driver_version) {
        return Err(CUdriverProcAddressQueryResult::SYMBOL_NOT_FOUND);
    }
    Ok(exports::address(found.function, found.per_thread))
}

/// CUDA Driver API, section "Driver Entry Point Access". Works before `cuInit`.
pub(crate) unsafe fn cuGetProcAddress(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    cudaVersion: i32,
    flags: u64,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, std::ptr::null_mut(), CUstream::LEGACY) }
}

pub(crate) unsafe fn cuGetProcAddress_v2(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    cudaVersion: i32,
    flags: u64,
    symbolStatus: *mut CUdriverProcAddressQueryResult,
    variant: CUstream,
) -> Result<(), CUresult> {
    if symbol.is_null() || pfn.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // Called by its own per-thread name, it looks for per-thread variants unless a flag says
    // otherwise.
    let own = if variant == CUstream::PER_THREAD { CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM } else { 0 };
    let flags = if flags & CU_GET_PROC_ADDRESS_LEGACY_STREAM != 0 { flags } else { flags | own };
    // SAFETY: not null, and the program passes a string.
    let found = find(unsafe { CStr::from_ptr(symbol) }, cudaVersion, flags);
    let (address, status) = match found {
        Ok(address) => (address, CUdriverProcAddressQueryResult::SUCCESS),
        Err(status) => (std::ptr::null_mut(), status),
    };
    // SAFETY: the program passes a place for the address, and null or one for the status.
    unsafe {
        out::write(pfn, address)?;
        out::write_if_wanted(symbolStatus, status);
    }
    if address.is_null() { Err(CUresult::NOT_FOUND) } else { Ok(()) }
}
