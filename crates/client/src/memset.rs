//! Memsets that CUDA calls synchronous: queued like the others, since they touch nothing on this machine.

use sluice_cuda::*;

use crate::generated::stubs;
use crate::session;

// The entry points. CUDA Driver API, section "Memory Management".

pub(crate) unsafe fn cuMemsetD8_v2(
    dstDevice: CUdeviceptr,
    uc: u8,
    N: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: no pointers of this process.
    unsafe { stubs::cuMemsetD8Async(session::enter()?, dstDevice, uc, N, stream) }
}

pub(crate) unsafe fn cuMemsetD16_v2(
    dstDevice: CUdeviceptr,
    us: u16,
    N: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: no pointers of this process.
    unsafe { stubs::cuMemsetD16Async(session::enter()?, dstDevice, us, N, stream) }
}

pub(crate) unsafe fn cuMemsetD32_v2(
    dstDevice: CUdeviceptr,
    ui: u32,
    N: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: no pointers of this process.
    unsafe { stubs::cuMemsetD32Async(session::enter()?, dstDevice, ui, N, stream) }
}
