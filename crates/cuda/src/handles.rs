//! Opaque handles of the CUDA Driver API, and the numbers that name what is not opaque.

use crate::abi::abi_handle;

/// A device's ordinal, as `cuDeviceGet` gives it.
pub type CUdevice = i32;
/// An address in device memory.
pub type CUdeviceptr = u64;
/// A texture object: device code sees this number, so it is always the driver's own.
pub type CUtexObject = u64;
/// A surface object: device code sees this number, so it is always the driver's own.
pub type CUsurfObject = u64;

abi_handle! {
    CUcontext
    CUstream
    CUevent
    CUmodule
    CUfunction
    CUlibrary
    CUkernel
    CUlinkState
    CUgraph
    CUgraphNode
    CUgraphExec
    CUmemoryPool
    CUarray
    CUmipmappedArray
    CUtexref
    CUsurfref
    CUgreenCtx
    CUdevResourceDesc
    CUuserObject
    CUexternalMemory
    CUexternalSemaphore
    CUgraphicsResource
    CUgraphDeviceNode
    CUasyncCallbackHandle
    CUlogsCallbackHandle
    CUcoredumpCallbackHandle
    /// Physical memory made by `cuMemCreate`; in C a number of 64 bits.
    CUmemGenericAllocationHandle
}

impl CUstream {
    /// The stream that synchronises with every blocking stream of its context (`CU_STREAM_LEGACY`).
    pub const LEGACY: CUstream = CUstream(1);
    /// The calling thread's own default stream (`CU_STREAM_PER_THREAD`).
    pub const PER_THREAD: CUstream = CUstream(2);
}
