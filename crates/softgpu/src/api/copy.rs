//! Copies and fills (CUDA Driver API: Memory Management).

use std::ffi::c_void;

use sluice_cuda::{
    CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER, CUarray, CUcontext, CUdeviceptr, CUmemorytype,
    CUresult, CUstream,
};

use crate::base::status::{Result, Status, call, require};
use crate::context;
use crate::device::address_space;
use crate::image::array;
use crate::memory::copy::{BoxLayout, Extent, Fill, require_device};
use crate::submit;
use crate::submit::copies;

/// A copy of one row.
fn line(to: u64, from: u64, size: usize, stream: CUstream, synchronous: bool) -> Result<()> {
    let target = submit::target(stream)?;
    copies::submit(
        &target,
        BoxLayout::line(to),
        BoxLayout::line(from),
        Extent::line(size as u64),
        synchronous,
    )
}

pub(crate) unsafe extern "C" fn cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, size: usize) -> CUresult {
    call(|| line(to, from, size, CUstream::LEGACY, true))
}

pub(crate) unsafe extern "C" fn cuMemcpyAsync(
    to: CUdeviceptr,
    from: CUdeviceptr,
    size: usize,
    s: CUstream,
) -> CUresult {
    call(|| line(to, from, size, s, false))
}

/// Refuses a nonempty copy whose device side is not an address of a device.
fn device_side(address: CUdeviceptr, size: usize) -> Result<()> {
    if size == 0 { Ok(()) } else { require_device(address) }
}

pub(crate) unsafe extern "C" fn cuMemcpyHtoD_v2(
    to: CUdeviceptr,
    from: *const c_void,
    size: usize,
) -> CUresult {
    call(|| {
        submit::target(CUstream::LEGACY)?;
        device_side(to, size)?;
        line(to, from as u64, size, CUstream::LEGACY, true)
    })
}

pub(crate) unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: CUdeviceptr,
    from: *const c_void,
    size: usize,
    s: CUstream,
) -> CUresult {
    call(|| {
        submit::target(s)?;
        device_side(to, size)?;
        line(to, from as u64, size, s, false)
    })
}

pub(crate) unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, size: usize) -> CUresult {
    call(|| {
        submit::target(CUstream::LEGACY)?;
        device_side(from, size)?;
        line(to as u64, from, size, CUstream::LEGACY, true)
    })
}

pub(crate) unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: CUdeviceptr,
    size: usize,
    s: CUstream,
) -> CUresult {
    call(|| {
        submit::target(s)?;
        device_side(from, size)?;
        line(to as u64, from, size, s, false)
    })
}

pub(crate) unsafe extern "C" fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, size: usize) -> CUresult {
    // Within a device the call does not wait (CUDA Driver API, API synchronization behavior).
    // SAFETY: passed on.
    unsafe { cuMemcpyDtoDAsync_v2(to, from, size, CUstream::LEGACY) }
}

pub(crate) unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    to: CUdeviceptr,
    from: CUdeviceptr,
    size: usize,
    s: CUstream,
) -> CUresult {
    call(|| {
        submit::target(s)?;
        device_side(to, size)?;
        device_side(from, size)?;
        line(to, from, size, s, false)
    })
}

pub(crate) unsafe extern "C" fn cuMemcpyPeer(
    to: CUdeviceptr,
    to_context: CUcontext,
    from: CUdeviceptr,
    from_context: CUcontext,
    size: usize,
) -> CUresult {
    // SAFETY: passed on.
    unsafe { cuMemcpyPeerAsync(to, to_context, from, from_context, size, CUstream::LEGACY) }
}

pub(crate) unsafe extern "C" fn cuMemcpyPeerAsync(
    to: CUdeviceptr,
    to_context: CUcontext,
    from: CUdeviceptr,
    from_context: CUcontext,
    size: usize,
    s: CUstream,
) -> CUresult {
    call(|| {
        let target = submit::target(s)?;
        device_side(to, size)?;
        device_side(from, size)?;
        let to = (BoxLayout::line(to), ordinal(to_context)?);
        let from = (BoxLayout::line(from), ordinal(from_context)?);
        copies::submit_peer(&target, to, from, Extent::line(size as u64))
    })
}

/// The device of a context; null means the current one.
fn ordinal(ctx: CUcontext) -> Result<usize> {
    Ok(context::named(ctx)?.device.ordinal)
}

/// One side of a strided copy as the structures describe it.
struct Side {
    kind: CUmemorytype,
    host: u64,
    device: u64,
    array: CUarray,
    x: usize,
    y: usize,
    z: usize,
    pitch: usize,
    /// Rows per slice; 0 where there is one slice.
    height: usize,
}

impl Side {
    fn place(&self, extent: Extent) -> Result<BoxLayout> {
        let base = match self.kind {
            CUmemorytype::HOST => self.host,
            CUmemorytype::DEVICE | CUmemorytype::UNIFIED => self.device,
            CUmemorytype::ARRAY => {
                let corner = [self.x as u64, self.y as u64, self.z as u64];
                return array::place(self.array, corner, extent);
            }
            _ => return Err(Status::INVALID_VALUE),
        };
        let pitch = if self.pitch == 0 { extent.width } else { self.pitch as u64 };
        let rows = if self.height == 0 { extent.height } else { self.height as u64 };
        let overflow = Status::INVALID_VALUE;
        let slice = pitch.checked_mul(rows).ok_or(overflow)?;
        let offset = (self.z as u64).checked_mul(slice).ok_or(overflow)?;
        let offset =
            (self.y as u64).checked_mul(pitch).and_then(|y| y.checked_add(offset)).ok_or(overflow)?;
        let offset = offset.checked_add(self.x as u64).ok_or(overflow)?;
        let address = base.checked_add(offset).ok_or(overflow)?;
        if self.kind == CUmemorytype::DEVICE && !extent.is_empty() {
            require_device(address)?;
        }
        // An offset does not lead from one side's memory into the other's.
        if address_space::contains(base) != address_space::contains(address) {
            return Err(overflow);
        }
        Ok(BoxLayout { address, pitch, slice })
    }
}

/// Destination, source and size of a two-dimensional copy.
fn places_2d(copy: &CUDA_MEMCPY2D) -> Result<(BoxLayout, BoxLayout, Extent)> {
    let extent = Extent { width: copy.WidthInBytes as u64, height: copy.Height as u64, depth: 1 };
    let from = Side {
        kind: copy.srcMemoryType,
        host: copy.srcHost as u64,
        device: copy.srcDevice,
        array: copy.srcArray,
        x: copy.srcXInBytes,
        y: copy.srcY,
        z: 0,
        pitch: copy.srcPitch,
        height: 0,
    };
    let to = Side {
        kind: copy.dstMemoryType,
        host: copy.dstHost as u64,
        device: copy.dstDevice,
        array: copy.dstArray,
        x: copy.dstXInBytes,
        y: copy.dstY,
        z: 0,
        pitch: copy.dstPitch,
        height: 0,
    };
    Ok((to.place(extent)?, from.place(extent)?, extent))
}

/// Destination, source and size of a three-dimensional copy.
pub(super) fn places_3d(copy: &CUDA_MEMCPY3D) -> Result<(BoxLayout, BoxLayout, Extent)> {
    let extent =
        Extent { width: copy.WidthInBytes as u64, height: copy.Height as u64, depth: copy.Depth as u64 };
    let from = Side {
        kind: copy.srcMemoryType,
        host: copy.srcHost as u64,
        device: copy.srcDevice,
        array: copy.srcArray,
        x: copy.srcXInBytes,
        y: copy.srcY,
        z: copy.srcZ,
        pitch: copy.srcPitch,
        height: copy.srcHeight,
    };
    let to = Side {
        kind: copy.dstMemoryType,
        host: copy.dstHost as u64,
        device: copy.dstDevice,
        array: copy.dstArray,
        x: copy.dstXInBytes,
        y: copy.dstY,
        z: copy.dstZ,
        pitch: copy.dstPitch,
        height: copy.dstHeight,
    };
    Ok((to.place(extent)?, from.place(extent)?, extent))
}

/// # Safety
/// `copy` is null or an input structure.
unsafe fn submit_2d(copy: *const CUDA_MEMCPY2D, s: CUstream, synchronous: bool) -> Result<()> {
    require(copy)?;
    let target = submit::target(s)?;
    // SAFETY: by this function's contract.
    let (to, from, extent) = places_2d(&unsafe { copy.read_unaligned() })?;
    copies::submit(&target, to, from, extent, synchronous)
}

/// # Safety
/// `copy` is null or an input structure.
unsafe fn submit_3d(copy: *const CUDA_MEMCPY3D, s: CUstream, synchronous: bool) -> Result<()> {
    require(copy)?;
    let target = submit::target(s)?;
    // SAFETY: by this function's contract.
    let (to, from, extent) = places_3d(&unsafe { copy.read_unaligned() })?;
    copies::submit(&target, to, from, extent, synchronous)
}

pub(crate) unsafe extern "C" fn cuMemcpy2D_v2(copy: *const CUDA_MEMCPY2D) -> CUresult {
    // SAFETY: passed on.
    call(|| unsafe { submit_2d(copy, CUstream::LEGACY, true) })
}

pub(crate) unsafe extern "C" fn cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D, s: CUstream) -> CUresult {
    // SAFETY: passed on.
    call(|| unsafe { submit_2d(copy, s, false) })
}

pub(crate) unsafe extern "C" fn cuMemcpy3D_v2(copy: *const CUDA_MEMCPY3D) -> CUresult {
    // SAFETY: passed on.
    call(|| unsafe { submit_3d(copy, CUstream::LEGACY, true) })
}

pub(crate) unsafe extern "C" fn cuMemcpy3DAsync_v2(copy: *const CUDA_MEMCPY3D, s: CUstream) -> CUresult {
    // SAFETY: passed on.
    call(|| unsafe { submit_3d(copy, s, false) })
}

/// # Safety
/// `copy` is null or an input structure.
unsafe fn submit_peer(copy: *const CUDA_MEMCPY3D_PEER, s: CUstream) -> Result<()> {
    require(copy)?;
    // SAFETY: by this function's contract; the two structures differ only in that the contexts
    // stand where the other has reserved pointers, which are not read.
    let (copy, contexts) = unsafe { (copy.cast::<CUDA_MEMCPY3D>().read_unaligned(), copy.read_unaligned()) };
    let (to, from, extent) = places_3d(&copy)?;
    // An array knows whose it is, and host memory has no owner.
    let device = |kind, ctx| if kind == CUmemorytype::ARRAY { Ok(0) } else { ordinal(ctx) };
    let to = (to, device(contexts.dstMemoryType, contexts.dstContext)?);
    let from = (from, device(contexts.srcMemoryType, contexts.srcContext)?);
    copies::submit_peer(&submit::target(s)?, to, from, extent)
}

pub(crate) unsafe extern "C" fn cuMemcpy3DPeer(copy: *const CUDA_MEMCPY3D_PEER) -> CUresult {
    // SAFETY: passed on.
    call(|| unsafe { submit_peer(copy, CUstream::LEGACY) })
}

pub(crate) unsafe extern "C" fn cuMemcpy3DPeerAsync(
    copy: *const CUDA_MEMCPY3D_PEER,
    s: CUstream,
) -> CUresult {
    // SAFETY: passed on.
    call(|| unsafe { submit_peer(copy, s) })
}

fn fill(
    address: CUdeviceptr,
    pitch: usize,
    value: u32,
    element: u32,
    width: usize,
    height: usize,
    s: CUstream,
) -> CUresult {
    call(|| {
        let target = submit::target(s)?;
        let (width, height) = (width as u64, height as u64);
        copies::submit_fill(&target, Fill { address, pitch: pitch as u64, value, element, width, height })
    })
}

pub(crate) unsafe extern "C" fn cuMemsetD8_v2(to: CUdeviceptr, value: u8, n: usize) -> CUresult {
    fill(to, 0, value.into(), 1, n, 1, CUstream::LEGACY)
}

pub(crate) unsafe extern "C" fn cuMemsetD16_v2(to: CUdeviceptr, value: u16, n: usize) -> CUresult {
    fill(to, 0, value.into(), 2, n, 1, CUstream::LEGACY)
}

pub(crate) unsafe extern "C" fn cuMemsetD32_v2(to: CUdeviceptr, value: u32, n: usize) -> CUresult {
    fill(to, 0, value, 4, n, 1, CUstream::LEGACY)
}

pub(crate) unsafe extern "C" fn cuMemsetD8Async(
    to: CUdeviceptr,
    value: u8,
    n: usize,
    s: CUstream,
) -> CUresult {
    fill(to, 0, value.into(), 1, n, 1, s)
}

pub(crate) unsafe extern "C" fn cuMemsetD16Async(
    to: CUdeviceptr,
    value: u16,
    n: usize,
    s: CUstream,
) -> CUresult {
    fill(to, 0, value.into(), 2, n, 1, s)
}

pub(crate) unsafe extern "C" fn cuMemsetD32Async(
    to: CUdeviceptr,
    value: u32,
    n: usize,
    s: CUstream,
) -> CUresult {
    fill(to, 0, value, 4, n, 1, s)
}

macro_rules! fill_2d {
    ($($sync:ident, $queued:ident, $ty:ty, $element:expr;)*) => {$(
        pub(crate) unsafe extern "C" fn $sync(to: CUdeviceptr, pitch: usize, v: $ty, width: usize, height: usize) -> CUresult {
            fill(to, pitch, v.into(), $element, width, height, CUstream::LEGACY)
        }

        pub(crate) unsafe extern "C" fn $queued(
            to: CUdeviceptr,
            pitch: usize,
            v: $ty,
            width: usize,
            height: usize,
            s: CUstream,
        ) -> CUresult {
            fill(to, pitch, v.into(), $element, width, height, s)
        }
    )*};
}

fill_2d! {
    cuMemsetD2D8_v2, cuMemsetD2D8Async, u8, 1;
    cuMemsetD2D16_v2, cuMemsetD2D16Async, u16, 2;
    cuMemsetD2D32_v2, cuMemsetD2D32Async, u32, 4;
}
