//! Flag bits and sentinels of the CUDA Driver API.

pub const CU_CTX_SCHED_AUTO: u32 = 0;
pub const CU_CTX_SCHED_SPIN: u32 = 1;
pub const CU_CTX_SCHED_YIELD: u32 = 2;
pub const CU_CTX_SCHED_BLOCKING_SYNC: u32 = 4;
pub const CU_CTX_SCHED_MASK: u32 = 7;
pub const CU_CTX_MAP_HOST: u32 = 8;
pub const CU_CTX_LMEM_RESIZE_TO_MAX: u32 = 16;
pub const CU_CTX_COREDUMP_ENABLE: u32 = 32;
pub const CU_CTX_USER_COREDUMP_ENABLE: u32 = 64;
pub const CU_CTX_SYNC_MEMOPS: u32 = 128;
pub const CU_CTX_FLAGS_MASK: u32 = 255;

pub const CU_STREAM_DEFAULT: u32 = 0;
pub const CU_STREAM_NON_BLOCKING: u32 = 1;

pub const CU_EVENT_DEFAULT: u32 = 0;
pub const CU_EVENT_BLOCKING_SYNC: u32 = 1;
pub const CU_EVENT_DISABLE_TIMING: u32 = 2;
pub const CU_EVENT_INTERPROCESS: u32 = 4;
pub const CU_EVENT_RECORD_EXTERNAL: u32 = 1;
pub const CU_EVENT_WAIT_EXTERNAL: u32 = 1;

pub const CU_MEMHOSTALLOC_PORTABLE: u32 = 1;
pub const CU_MEMHOSTALLOC_DEVICEMAP: u32 = 2;
pub const CU_MEMHOSTALLOC_WRITECOMBINED: u32 = 4;
pub const CU_MEMHOSTREGISTER_PORTABLE: u32 = 1;
pub const CU_MEMHOSTREGISTER_DEVICEMAP: u32 = 2;
pub const CU_MEMHOSTREGISTER_IOMEMORY: u32 = 4;
pub const CU_MEMHOSTREGISTER_READ_ONLY: u32 = 8;

pub const CU_MEM_ATTACH_GLOBAL: u32 = 1;
pub const CU_MEM_ATTACH_HOST: u32 = 2;
pub const CU_MEM_ATTACH_SINGLE: u32 = 4;

pub const CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE: u32 = 1;

/// `cuGetProcAddress`: versions that use the legacy default stream.
pub const CU_GET_PROC_ADDRESS_LEGACY_STREAM: u64 = 1;
/// `cuGetProcAddress`: versions that use the calling thread's default stream.
pub const CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM: u64 = 2;

/// In `cuLaunchKernel`'s `extra`: the list ends here.
pub const CU_LAUNCH_PARAM_END: usize = 0;
/// In `cuLaunchKernel`'s `extra`: a pointer to all parameters, laid out as the kernel wants them.
pub const CU_LAUNCH_PARAM_BUFFER_POINTER: usize = 1;
/// In `cuLaunchKernel`'s `extra`: a pointer to the size of that buffer, in bytes.
pub const CU_LAUNCH_PARAM_BUFFER_SIZE: usize = 2;

pub const CU_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH: u64 = 1;
pub const CU_GRAPH_INSTANTIATE_FLAG_UPLOAD: u64 = 2;
pub const CU_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH: u64 = 4;
pub const CU_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY: u64 = 8;
