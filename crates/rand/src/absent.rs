//! Functions that are not built. They exist, because programs that are linked with cuRAND start
//! only if all functions that they mention do. cuRAND has no status for what is not supported; a
//! wrong type is the nearest.

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
                Status::TYPE_ERROR
            }
        )*
    };
}

absent! {
    curandCreateGeneratorHost
    curandCreatePoissonDistribution
    curandDestroyDistribution
    curandGenerateLongLong
    curandGeneratePoissonMethod
    curandGenerateBinomial
    curandGenerateBinomialMethod
    curandGetDirectionVectors32
    curandGetDirectionVectors64
    curandGetScrambleConstants32
    curandGetScrambleConstants64
}
