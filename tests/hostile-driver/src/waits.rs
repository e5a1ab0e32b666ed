//! Waits for values in memory are checked and not done: what would write the value may never come.

#![allow(non_snake_case)] // CUDA's names

use sluice_cuda::{CUdeviceptr, CUresult, CUstream};

use crate::call::{Call, checked};

macro_rules! waits {
    ($($name:ident($value:ident),)*) => {$(
        pub(crate) unsafe extern "C" fn $name(
            stream: CUstream,
            addr: CUdeviceptr,
            _value: $value,
            flags: u32,
        ) -> CUresult {
            let check = |call: &Call| {
                call.live(stream)?;
                call.aligned(addr, size_of::<$value>() as u64)?;
                call.device(addr, size_of::<$value>() as u64)?;
                call.bits(flags.into(), 0x4000_0003)
            };
            checked(stringify!($name), check, || Some(CUresult::SUCCESS))
        }
    )*};
}

waits! {
    cuStreamWaitValue32(u32),
    cuStreamWaitValue32_v2(u32),
    cuStreamWaitValue64(u64),
    cuStreamWaitValue64_v2(u64),
}
