//! Which calls may be made: from a function that a stream calls, before `cuInit`, and after the
//! context is lost.

use sluice_cuda::{CUresult, Class, Fn};

use crate::abi::call::check_permitted;
use crate::session;

/// Refuses a call that may not be made now.
pub(crate) fn check(function: Fn) -> Result<(), CUresult> {
    check_permitted(function)?;
    if !session::is_initialized() && !is_early(function) {
        return Err(session::absence().unwrap_or(CUresult::NOT_INITIALIZED));
    }
    if touches_device(function) { session::check_failure() } else { Ok(()) }
}

/// Whether a call tells a program what there is to initialize, so that it may come before `cuInit`.
fn is_early(function: Fn) -> bool {
    matches!(
        function,
        Fn::cuInit
            | Fn::cuDriverGetVersion
            | Fn::cuGetErrorName
            | Fn::cuGetErrorString
            | Fn::cuGetProcAddress
            | Fn::cuGetProcAddress_v2
            | Fn::cuGetExportTable
    )
}

/// Whether a call has to do with the device's memory or work, so that it returns the error of a
/// context that is lost (CUDA Driver API, `CUDA_ERROR_ILLEGAL_ADDRESS` and others): all that
/// travel, and those that the client answers on the device's behalf.
fn touches_device(function: Fn) -> bool {
    match function.info().class {
        Class::Queued | Class::Waiting | Class::Via(_) => true,
        Class::Absent(_) => false,
        Class::Local => matches!(
            function,
            Fn::cuMemAddressFree
                | Fn::cuMemAddressReserve
                | Fn::cuMemAdvise
                | Fn::cuMemAdvise_v2
                | Fn::cuMemAllocHost
                | Fn::cuMemAllocHost_v2
                | Fn::cuMemDiscardAndPrefetchBatchAsync
                | Fn::cuMemDiscardBatchAsync
                | Fn::cuMemFreeHost
                | Fn::cuMemHostAlloc
                | Fn::cuMemHostRegister
                | Fn::cuMemHostRegister_v2
                | Fn::cuMemHostUnregister
                | Fn::cuMemPoolCreate
                | Fn::cuMemPoolDestroy
                | Fn::cuMemPoolTrimTo
                | Fn::cuMemPrefetchAsync
                | Fn::cuMemPrefetchAsync_v2
                | Fn::cuMemPrefetchBatchAsync
                | Fn::cuMemRangeGetAttribute
                | Fn::cuMemRangeGetAttributes
                | Fn::cuProfilerStart
                | Fn::cuProfilerStop
                | Fn::cuStreamAttachMemAsync
        ),
    }
}

#[cfg(test)]
mod tests {
    use sluice_cuda::FUNCTIONS;

    use super::*;

    #[test]
    fn before_initialization_every_call_is_refused_but_for_a_few() {
        let permitted: Vec<&str> =
            FUNCTIONS.iter().filter(|info| check(info.function).is_ok()).map(|info| info.name).collect();
        assert_eq!(
            permitted,
            [
                "cuGetErrorString",
                "cuGetErrorName",
                "cuInit",
                "cuDriverGetVersion",
                "cuGetProcAddress",
                "cuGetProcAddress_v2",
                "cuGetExportTable"
            ]
        );
    }

    #[test]
    fn what_travels_touches_the_device_and_questions_about_contexts_do_not() {
        for function in [Fn::cuLaunchKernel, Fn::cuMemAlloc_v2, Fn::cuMemAllocHost_v2, Fn::cuEventQuery] {
            assert!(touches_device(function), "{function:?}");
        }
        for function in [Fn::cuCtxGetDevice, Fn::cuDeviceGetAttribute, Fn::cuDevicePrimaryCtxReset_v2] {
            assert!(!touches_device(function), "{function:?}");
        }
    }
}
