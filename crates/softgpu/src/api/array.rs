//! Arrays (CUDA Driver API: Memory Management).

use std::ffi::c_void;

use sluice_cuda::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, CUarray, CUdeviceptr, CUmipmappedArray, CUresult,
    CUstream,
};

use crate::base::status::{Result, call, put, require};
use crate::context::current;
use crate::image::array;
use crate::memory::copy::{BoxLayout, Extent, require_device};
use crate::submit;
use crate::submit::copies;
use crate::submit::frees;

pub(crate) unsafe extern "C" fn cuArrayCreate_v2(
    place: *mut CUarray,
    desc: *const CUDA_ARRAY_DESCRIPTOR,
) -> CUresult {
    call(|| {
        require(place)?;
        require(desc)?;
        // SAFETY: an input structure by contract.
        let flat = unsafe { desc.read_unaligned() };
        let desc = CUDA_ARRAY3D_DESCRIPTOR {
            Width: flat.Width,
            Height: flat.Height,
            Depth: 0,
            Format: flat.Format,
            NumChannels: flat.NumChannels,
            Flags: 0,
        };
        let array = array::create(&*current()?, desc)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUarray(array.handle)) }
    })
}

pub(crate) unsafe extern "C" fn cuArray3DCreate_v2(
    place: *mut CUarray,
    desc: *const CUDA_ARRAY3D_DESCRIPTOR,
) -> CUresult {
    call(|| {
        require(place)?;
        require(desc)?;
        // SAFETY: an input structure by contract.
        let array = array::create(&*current()?, unsafe { desc.read_unaligned() })?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUarray(array.handle)) }
    })
}

pub(crate) unsafe extern "C" fn cuArrayGetDescriptor_v2(
    place: *mut CUDA_ARRAY_DESCRIPTOR,
    handle: CUarray,
) -> CUresult {
    call(|| {
        let desc = array::array(handle)?.desc;
        let flat = CUDA_ARRAY_DESCRIPTOR {
            Width: desc.Width,
            Height: desc.Height,
            Format: desc.Format,
            NumChannels: desc.NumChannels,
        };
        // SAFETY: an output argument by contract.
        unsafe { put(place, flat) }
    })
}

pub(crate) unsafe extern "C" fn cuArray3DGetDescriptor_v2(
    place: *mut CUDA_ARRAY3D_DESCRIPTOR,
    handle: CUarray,
) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(place, array::array(handle)?.desc) })
}

pub(crate) unsafe extern "C" fn cuArrayDestroy(handle: CUarray) -> CUresult {
    call(|| frees::destroy_array(handle))
}

pub(crate) unsafe extern "C" fn cuMipmappedArrayCreate(
    place: *mut CUmipmappedArray,
    desc: *const CUDA_ARRAY3D_DESCRIPTOR,
    levels: u32,
) -> CUresult {
    call(|| {
        require(place)?;
        require(desc)?;
        // SAFETY: an input structure by contract.
        let handle = array::create_mipmapped(&*current()?, unsafe { desc.read_unaligned() }, levels)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUmipmappedArray(handle)) }
    })
}

pub(crate) unsafe extern "C" fn cuMipmappedArrayDestroy(handle: CUmipmappedArray) -> CUresult {
    call(|| frees::destroy_mipmapped_array(handle))
}

pub(crate) unsafe extern "C" fn cuMipmappedArrayGetLevel(
    place: *mut CUarray,
    handle: CUmipmappedArray,
    level: u32,
) -> CUresult {
    call(|| {
        require(place)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUarray(array::level(handle, level)?)) }
    })
}

/// Bytes of a one-dimensional array.
fn bytes_of(handle: CUarray, offset: usize, size: usize) -> Result<BoxLayout> {
    array::place(handle, [offset as u64, 0, 0], Extent::line(size as u64))
}

/// Bytes of device memory.
fn device(address: CUdeviceptr, size: usize) -> Result<BoxLayout> {
    if size > 0 {
        require_device(address)?;
    }
    Ok(BoxLayout::line(address))
}

fn line(
    to: Result<BoxLayout>,
    from: Result<BoxLayout>,
    size: usize,
    s: CUstream,
    synchronous: bool,
) -> Result<()> {
    let target = submit::target(s)?;
    copies::submit(&target, to?, from?, Extent::line(size as u64), synchronous)
}

pub(crate) unsafe extern "C" fn cuMemcpyAtoA_v2(
    to: CUarray,
    to_offset: usize,
    from: CUarray,
    from_offset: usize,
    size: usize,
) -> CUresult {
    call(|| {
        let (to, from) = (bytes_of(to, to_offset, size), bytes_of(from, from_offset, size));
        line(to, from, size, CUstream::LEGACY, false)
    })
}

pub(crate) unsafe extern "C" fn cuMemcpyAtoD_v2(
    to: CUdeviceptr,
    from: CUarray,
    offset: usize,
    size: usize,
) -> CUresult {
    call(|| line(device(to, size), bytes_of(from, offset, size), size, CUstream::LEGACY, false))
}

pub(crate) unsafe extern "C" fn cuMemcpyDtoA_v2(
    to: CUarray,
    offset: usize,
    from: CUdeviceptr,
    size: usize,
) -> CUresult {
    call(|| line(bytes_of(to, offset, size), device(from, size), size, CUstream::LEGACY, false))
}

pub(crate) unsafe extern "C" fn cuMemcpyHtoA_v2(
    to: CUarray,
    offset: usize,
    from: *const c_void,
    size: usize,
) -> CUresult {
    let from = Ok(BoxLayout::line(from as u64));
    call(|| line(bytes_of(to, offset, size), from, size, CUstream::LEGACY, true))
}

pub(crate) unsafe extern "C" fn cuMemcpyHtoAAsync_v2(
    to: CUarray,
    offset: usize,
    from: *const c_void,
    size: usize,
    s: CUstream,
) -> CUresult {
    call(|| line(bytes_of(to, offset, size), Ok(BoxLayout::line(from as u64)), size, s, false))
}

pub(crate) unsafe extern "C" fn cuMemcpyAtoH_v2(
    to: *mut c_void,
    from: CUarray,
    offset: usize,
    size: usize,
) -> CUresult {
    let to = Ok(BoxLayout::line(to as u64));
    call(|| line(to, bytes_of(from, offset, size), size, CUstream::LEGACY, true))
}

pub(crate) unsafe extern "C" fn cuMemcpyAtoHAsync_v2(
    to: *mut c_void,
    from: CUarray,
    offset: usize,
    size: usize,
    s: CUstream,
) -> CUresult {
    call(|| line(Ok(BoxLayout::line(to as u64)), bytes_of(from, offset, size), size, s, false))
}
