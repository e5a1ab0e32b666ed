//! TOOLS_MODULE: the functions of a module. Only cuFFT requires it.

use std::ffi::c_void;

use sluice_cuda::{CUcontext, CUfunction, CUmodule, CUresult};

use crate::{Table, driver, entered};

/// 6E163FBE-B958-444D-835C-E182AFF1991E
pub(crate) const UUID: [u8; 16] = 0x6E163FBE_B958_444D_835C_E182AFF1991E_u128.to_be_bytes();

static TABLE: Table<80> = Table::sized().with(7, for_each_function as *const c_void);

pub(crate) fn address() -> *const c_void {
    TABLE.address()
}

type Visit = extern "C" fn(user: *mut c_void, function: CUfunction, module: CUmodule);

/// Slot 7 (public in scuda; the result measured): visits every function of a module. Answers 1, not
/// `CUDA_SUCCESS`: cuFFT takes 0 for a failure.
extern "C" fn for_each_function(
    _: CUcontext,
    module: CUmodule,
    visit: Option<Visit>,
    user: *mut c_void,
) -> u32 {
    let (Some(visit), Ok(driver)) = (visit, driver()) else { return 0 };
    let mut functions = Vec::new();
    // The program's function is called outside: it may call the driver.
    let list = || match driver.module_functions(module) {
        Ok(found) => {
            functions = found;
            CUresult::SUCCESS
        }
        Err(error) => error,
    };
    if !entered(list).is_success() {
        return 0;
    }
    for function in functions {
        visit(user, function, module);
    }
    1
}
