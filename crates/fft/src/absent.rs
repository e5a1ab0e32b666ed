//! Functions that are not built. They exist, because programs that are linked with cuFFT start only
//! if all functions that they mention do.

use sluice_library_base::entry::report_missing;

use crate::abi::Status;

/// The caller's arguments are of no interest, so none are declared: under the C calling convention
/// of x86-64 and of 64-bit Arm the caller passes and removes them.
macro_rules! absent {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> Status {
                report_missing(stringify!($name));
                Status::NOT_SUPPORTED
            }
        )*
    };
}

absent! {
    __cufftXtSetJITCallback_12_7
    cufftGetPlanPropertyInt64
    cufftResetPlanProperty
    cufftSetPlanPropertyInt64
    cufftXtClearCallback
    cufftXtExecDescriptor
    cufftXtExecDescriptorC2C
    cufftXtExecDescriptorC2R
    cufftXtExecDescriptorD2Z
    cufftXtExecDescriptorR2C
    cufftXtExecDescriptorZ2D
    cufftXtExecDescriptorZ2Z
    cufftXtFree
    cufftXtMalloc
    cufftXtMemcpy
    cufftXtQueryPlan
    cufftXtSetCallback
    cufftXtSetCallbackSharedSize
    cufftXtSetGPUs
    cufftXtSetJITCallback
    cufftXtSetWorkArea
    cufftXtSetWorkAreaPolicy
}
