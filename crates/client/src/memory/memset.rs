//! Memsets that CUDA calls synchronous: queued like the others, since they touch nothing on this
//! machine unless the memory is the program's too.

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
    let session = session::enter()?;
    // SAFETY: no pointers of this process.
    unsafe { stubs::cuMemsetD8Async(session, dstDevice, uc, N, stream)? };
    session.settle(&[dstDevice], stream)
}

pub(crate) unsafe fn cuMemsetD16_v2(
    dstDevice: CUdeviceptr,
    us: u16,
    N: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    // SAFETY: no pointers of this process.
    unsafe { stubs::cuMemsetD16Async(session, dstDevice, us, N, stream)? };
    session.settle(&[dstDevice], stream)
}

pub(crate) unsafe fn cuMemsetD32_v2(
    dstDevice: CUdeviceptr,
    ui: u32,
    N: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    // SAFETY: no pointers of this process.
    unsafe { stubs::cuMemsetD32Async(session, dstDevice, ui, N, stream)? };
    session.settle(&[dstDevice], stream)
}

pub(crate) unsafe fn cuMemsetD2D8_v2(
    dstDevice: CUdeviceptr,
    dstPitch: usize,
    uc: u8,
    Width: usize,
    Height: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    // SAFETY: no pointers of this process.
    unsafe { stubs::cuMemsetD2D8Async(session, dstDevice, dstPitch, uc, Width, Height, stream)? };
    session.settle(&[dstDevice], stream)
}

pub(crate) unsafe fn cuMemsetD2D16_v2(
    dstDevice: CUdeviceptr,
    dstPitch: usize,
    us: u16,
    Width: usize,
    Height: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    // SAFETY: no pointers of this process.
    unsafe { stubs::cuMemsetD2D16Async(session, dstDevice, dstPitch, us, Width, Height, stream)? };
    session.settle(&[dstDevice], stream)
}

pub(crate) unsafe fn cuMemsetD2D32_v2(
    dstDevice: CUdeviceptr,
    dstPitch: usize,
    ui: u32,
    Width: usize,
    Height: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    // SAFETY: no pointers of this process.
    unsafe { stubs::cuMemsetD2D32Async(session, dstDevice, dstPitch, ui, Width, Height, stream)? };
    session.settle(&[dstDevice], stream)
}
