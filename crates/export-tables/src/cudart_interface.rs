//! CUDART_INTERFACE: how the CUDA runtime loads modules and finds primary contexts. Every runtime
//! requires it.

use std::ffi::c_void;

use sluice_cuda::{CUcontext, CUdevice, CUmodule, CUresult};

use crate::{Table, driver, entered, write};

/// 6BD5FB6C-5BF4-E74A-8987-D93912FD9DF9
pub(crate) const UUID: [u8; 16] = 0x6BD5FB6C_5BF4_E74A_8987_D93912FD9DF9_u128.to_be_bytes();

/// The integrity answer covers this table's address.
pub(crate) static TABLE: Table<13> = Table::sized()
    .with(1, load_wrapper as *const c_void)
    .with(2, primary_context as *const c_void)
    .with(6, load_wrapper_with_options as *const c_void)
    .with(7, notify as *const c_void)
    .with(8, load_fatbin_with_options as *const c_void)
    .with(12, load_compilers as *const c_void);

pub(crate) fn address() -> *const c_void {
    TABLE.address()
}

/// Slot 1 (public): loads a module from a fat binary's wrapper; older runtimes only.
unsafe extern "C" fn load_wrapper(module: *mut CUmodule, wrapper: *const c_void) -> CUresult {
    // SAFETY: the runtime passes a place for the module and a wrapper that the compiler laid down.
    entered(|| unsafe { write(module, driver().and_then(|driver| driver.load_module(wrapper))) })
}

/// Slot 2 (public, measured): the primary context of a device, without retaining it.
unsafe extern "C" fn primary_context(ctx: *mut CUcontext, device: CUdevice) -> CUresult {
    // SAFETY: the runtime passes a place for the context.
    entered(|| unsafe { write(ctx, driver().and_then(|driver| driver.primary_context(device))) })
}

/// Slot 6 (public): as slot 1, with three options that have only been seen as zero.
unsafe extern "C" fn load_wrapper_with_options(
    module: *mut CUmodule,
    wrapper: *const c_void,
    option_a: usize,
    option_b: usize,
    option_c: u32,
) -> CUresult {
    if option_a != 0 || option_b != 0 || option_c != 0 {
        return CUresult::NOT_SUPPORTED;
    }
    // SAFETY: as for slot 1.
    unsafe { load_wrapper(module, wrapper) }
}

/// Slot 7 (public): called with one word, answers nothing; its purpose is unknown and nothing
/// depends on it.
extern "C" fn notify(_: usize) {}

/// Slot 8 (public): as slot 6, from the fat binary itself, which comes first.
unsafe extern "C" fn load_fatbin_with_options(
    fatbin: *const c_void,
    module: *mut CUmodule,
    option_a: usize,
    option_b: usize,
    option_c: u32,
) -> CUresult {
    // SAFETY: as for slot 6.
    unsafe { load_wrapper_with_options(module, fatbin, option_a, option_b, option_c) }
}

/// Slot 12 (public, measured): NVIDIA's driver loads its compilers here. Ours are on the node and
/// always loaded.
extern "C" fn load_compilers() -> CUresult {
    CUresult::SUCCESS
}
