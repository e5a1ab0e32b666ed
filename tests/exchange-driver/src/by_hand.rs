//! Entry points whose arguments the list of functions does not describe.

use std::ffi::c_void;

use sluice_cuda::*;

use crate::call::{Call, forget, note, number_of};
use crate::memory::{DOWN, UP, copied};
use crate::table;

/// Calls the driver behind.
macro_rules! forward {
    ($function:ident($($argument:expr),*)) => {
        match table().$function {
            // SAFETY: the arguments are the caller's.
            Some(entry) => unsafe { entry($($argument),*) },
            None => CUresult::NOT_SUPPORTED,
        }
    };
}

pub(crate) use forward;

// Copies.

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoD_v2(
    dstDevice: CUdeviceptr,
    srcHost: *const c_void,
    ByteCount: usize,
) -> CUresult {
    copied(CUstream::NULL, UP, ByteCount, forward!(cuMemcpyHtoD_v2(dstDevice, srcHost, ByteCount)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    dstDevice: CUdeviceptr,
    srcHost: *const c_void,
    ByteCount: usize,
    hStream: CUstream,
) -> CUresult {
    copied(hStream, UP, ByteCount, forward!(cuMemcpyHtoDAsync_v2(dstDevice, srcHost, ByteCount, hStream)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoH_v2(
    dstHost: *mut c_void,
    srcDevice: CUdeviceptr,
    ByteCount: usize,
) -> CUresult {
    copied(CUstream::NULL, DOWN, ByteCount, forward!(cuMemcpyDtoH_v2(dstHost, srcDevice, ByteCount)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    dstHost: *mut c_void,
    srcDevice: CUdeviceptr,
    ByteCount: usize,
    hStream: CUstream,
) -> CUresult {
    copied(hStream, DOWN, ByteCount, forward!(cuMemcpyDtoHAsync_v2(dstHost, srcDevice, ByteCount, hStream)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpy3DAsync_v2(pCopy: *const CUDA_MEMCPY3D, hStream: CUstream) -> CUresult {
    // SAFETY: the caller's description.
    let copy = unsafe { pCopy.read() };
    let bytes = copy.WidthInBytes * copy.Height * copy.Depth;
    let (from_host, to_host) =
        (CUmemorytype::HOST == copy.srcMemoryType, CUmemorytype::HOST == copy.dstMemoryType);
    let mut call = Call::new("cuMemcpy3DAsync_v2");
    sides(&mut call, &copy);
    call.values_of(&[copy.WidthInBytes, copy.Height, copy.Depth]);
    call.handle("Stream", hStream.0);
    call.answer(false);
    let result = forward!(cuMemcpy3DAsync_v2(pCopy, hStream));
    match (from_host, to_host) {
        (true, _) => copied(hStream, UP, bytes, result),
        (_, true) => copied(hStream, DOWN, bytes, result),
        _ => result,
    }
}

/// Both sides of a box copy: an array by its number, memory of the host as nothing but that.
pub(crate) fn sides(call: &mut Call, it: &CUDA_MEMCPY3D) {
    let dst = [it.dstXInBytes, it.dstY, it.dstZ, it.dstPitch, it.dstHeight];
    side(call, it.dstMemoryType, (it.dstDevice, it.dstArray), dst);
    let src = [it.srcXInBytes, it.srcY, it.srcZ, it.srcPitch, it.srcHeight];
    side(call, it.srcMemoryType, (it.srcDevice, it.srcArray), src);
}

/// One side of a box copy: corner, and distances of rows and slices.
fn side(
    call: &mut Call,
    kind: CUmemorytype,
    (device, array): (CUdeviceptr, CUarray),
    [x, y, z, pitch, height]: [usize; 5],
) {
    call.value(kind.0);
    match kind {
        CUmemorytype::DEVICE => {
            call.value(device + ((z * height + y) * pitch + x) as u64);
            call.values_of(&[pitch, height]);
        }
        CUmemorytype::ARRAY => {
            call.handle("Array", array.0);
            call.values_of(&[x, y, z]);
        }
        _ => {}
    }
}

// Launches.

#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernel(
    f: CUfunction,
    gridDimX: u32,
    gridDimY: u32,
    gridDimZ: u32,
    blockDimX: u32,
    blockDimY: u32,
    blockDimZ: u32,
    sharedMemBytes: u32,
    hStream: CUstream,
    _kernelParams: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    let mut call = Call::new("cuLaunchKernel");
    call.handle("Function", f.0);
    call.values_of(&[gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes]);
    call.handle("Stream", hStream.0);
    // SAFETY: the caller's list.
    unsafe { parameters(&mut call, extra) };
    call.answer(false).result()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernelEx(
    config: *const CUlaunchConfig,
    f: CUfunction,
    _kernelParams: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    // SAFETY: the caller's description.
    let it = unsafe { config.read() };
    let mut call = Call::new("cuLaunchKernelEx");
    call.handle("Function", f.0);
    call.values_of(&[it.gridDimX, it.gridDimY, it.gridDimZ, it.blockDimX, it.blockDimY, it.blockDimZ]);
    call.value(it.sharedMemBytes);
    call.handle("Stream", it.hStream.0);
    // SAFETY: the caller's description.
    unsafe { attributes(&mut call, &it) };
    // SAFETY: the caller's list.
    unsafe { parameters(&mut call, extra) };
    call.answer(false).result()
}

/// # Safety
/// The description has as many attributes as it says.
unsafe fn attributes(call: &mut Call, config: &CUlaunchConfig) {
    call.value(config.numAttrs);
    for index in 0..config.numAttrs as usize {
        // SAFETY: by this function's contract.
        let attribute = unsafe { config.attrs.add(index).read() };
        call.value(attribute.id.0);
        call.value(attribute.value);
    }
}

/// The parameters of a kernel, as a worker passes them: in one buffer.
///
/// # Safety
/// `extra` is a list as `cuLaunchKernel` takes it: buffer, and its size.
pub(crate) unsafe fn parameters(call: &mut Call, extra: *mut *mut c_void) {
    // SAFETY: by this function's contract.
    let list = unsafe { std::slice::from_raw_parts(extra, 5) };
    let tags = [0, 2, 4].map(|index: usize| list[index] as usize);
    assert_eq!(tags, [CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END]);
    // SAFETY: by this function's contract.
    unsafe {
        let size = list[3].cast::<usize>().read();
        call.value(size);
        call.values(list[1].cast::<u8>(), size as u64);
    }
}

/// Functions that answer how many clusters of a launch there can be.
macro_rules! clusters {
    ($name:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            answer_out: *mut i32,
            func: CUfunction,
            config: *const CUlaunchConfig,
        ) -> CUresult {
            // SAFETY: the caller's description.
            let it = unsafe { config.read() };
            let mut call = Call::new(stringify!($name));
            call.handle("Function", func.0);
            call.values_of(&[it.gridDimX, it.gridDimY, it.gridDimZ]);
            call.values_of(&[it.blockDimX, it.blockDimY, it.blockDimZ, it.sharedMemBytes]);
            // SAFETY: the caller's description.
            unsafe { attributes(&mut call, &it) };
            let mut answer = call.answer(true);
            // SAFETY: the caller's place.
            unsafe { answer.write(answer_out) };
            answer.result()
        }
    };
}

clusters!(cuOccupancyMaxActiveClusters);
clusters!(cuOccupancyMaxPotentialClusterSize);

// Streams, events, and what is set.

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreateWithPriority(
    phStream: *mut CUstream,
    flags: u32,
    priority: i32,
) -> CUresult {
    let mut call = Call::new("cuStreamCreateWithPriority");
    call.value(flags);
    call.value(priority);
    call.answer(false);
    forward!(cuStreamCreateWithPriority(phStream, flags, priority))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamDestroy_v2(hStream: CUstream) -> CUresult {
    let mut call = Call::new("cuStreamDestroy_v2");
    call.handle("Stream", hStream.0);
    call.answer(false);
    forget("Stream", hStream.0);
    forward!(cuStreamDestroy_v2(hStream))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(phEvent: *mut CUevent, Flags: u32) -> CUresult {
    let mut call = Call::new("cuEventCreate");
    call.value(Flags);
    call.answer(false);
    forward!(cuEventCreate(phEvent, Flags))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventDestroy_v2(hEvent: CUevent) -> CUresult {
    if is_workers(hEvent) {
        return forward!(cuEventDestroy_v2(hEvent));
    }
    let mut call = Call::new("cuEventDestroy_v2");
    call.handle("Event", hEvent.0);
    call.answer(false);
    forget("Event", hEvent.0);
    forward!(cuEventDestroy_v2(hEvent))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventRecord(hEvent: CUevent, hStream: CUstream) -> CUresult {
    if is_workers(hEvent) {
        return forward!(cuEventRecord(hEvent, hStream));
    }
    let mut call = Call::new("cuEventRecord");
    call.handle("Event", hEvent.0);
    call.handle("Stream", hStream.0);
    call.answer(false).result()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventQuery(hEvent: CUevent) -> CUresult {
    if is_workers(hEvent) {
        return forward!(cuEventQuery(hEvent));
    }
    let mut call = Call::new("cuEventQuery");
    call.handle("Event", hEvent.0);
    call.answer(true).result()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventSynchronize(hEvent: CUevent) -> CUresult {
    if is_workers(hEvent) {
        return forward!(cuEventSynchronize(hEvent));
    }
    let mut call = Call::new("cuEventSynchronize");
    call.handle("Event", hEvent.0);
    call.answer(true).result()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamWaitEvent(hStream: CUstream, hEvent: CUevent, Flags: u32) -> CUresult {
    if is_workers(hEvent) {
        return forward!(cuStreamWaitEvent(hStream, hEvent, Flags));
    }
    let mut call = Call::new("cuStreamWaitEvent");
    call.handle("Stream", hStream.0);
    call.handle("Event", hEvent.0);
    call.value(Flags);
    call.answer(false).result()
}

/// Whether worker or client have made an event for themselves, by which they know when streams are
/// done, or hold them back: it is live, and the program has not said what it calls it.
fn is_workers(event: CUevent) -> bool {
    number_of("Event", event.0).is_none() && forward!(cuEventQuery(event)) != CUresult::INVALID_HANDLE
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamGetAttribute(hStream: CUstream, attr: u32, value_out: *mut c_void) -> CUresult {
    let mut call = Call::new("cuStreamGetAttribute");
    call.handle("Stream", hStream.0);
    call.value(attr);
    let mut answer = call.answer(true);
    // SAFETY: the caller's place.
    unsafe { answer.write(value_out.cast::<CUlaunchAttributeValue>()) };
    answer.result()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamSetAttribute(hStream: CUstream, attr: u32, value: *const c_void) -> CUresult {
    let mut call = Call::new("cuStreamSetAttribute");
    call.handle("Stream", hStream.0);
    call.value(attr);
    // SAFETY: the caller's value.
    call.value(unsafe { value.cast::<CUlaunchAttributeValue>().read() });
    call.answer(true).result()
}

/// There is one context only, which no caller made.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxRecordEvent(_hCtx: CUcontext, hEvent: CUevent) -> CUresult {
    let mut call = Call::new("cuCtxRecordEvent");
    call.handle("Event", hEvent.0);
    call.answer(false).result()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxWaitEvent(_hCtx: CUcontext, hEvent: CUevent) -> CUresult {
    let mut call = Call::new("cuCtxWaitEvent");
    call.handle("Event", hEvent.0);
    call.answer(false).result()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxSetLimit(limit: CUlimit, value: usize) -> CUresult {
    let mut call = Call::new("cuCtxSetLimit");
    call.value(limit.0);
    call.value(value);
    call.answer(false).result()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFuncSetAttribute(
    hfunc: CUfunction,
    attrib: CUfunction_attribute,
    value: i32,
) -> CUresult {
    let mut call = Call::new("cuFuncSetAttribute");
    call.handle("Function", hfunc.0);
    call.value(attrib.0);
    call.value(value);
    call.answer(false).result()
}

// Arrays, which are the driver's behind.

#[unsafe(no_mangle)]
unsafe extern "C" fn cuArray3DCreate_v2(
    pHandle: *mut CUarray,
    pAllocateArray: *const CUDA_ARRAY3D_DESCRIPTOR,
) -> CUresult {
    // SAFETY: the caller's description.
    let it = unsafe { pAllocateArray.read() };
    let mut call = Call::new("cuArray3DCreate_v2");
    call.values_of(&[it.Width, it.Height, it.Depth]);
    call.values_of(&[it.Format.0, it.NumChannels, it.Flags]);
    call.answer(false);
    let result = forward!(cuArray3DCreate_v2(pHandle, pAllocateArray));
    if result.is_success() {
        // SAFETY: written just now.
        note("Array", unsafe { pHandle.read() }.0);
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuArrayDestroy(hArray: CUarray) -> CUresult {
    let mut call = Call::new("cuArrayDestroy");
    call.handle("Array", hArray.0);
    call.answer(false);
    forget("Array", hArray.0);
    forward!(cuArrayDestroy(hArray))
}
