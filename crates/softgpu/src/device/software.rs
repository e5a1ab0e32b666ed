//! What the software GPU says of itself.

use sluice_cuda::CUdevice_attribute as A;

use crate::module::launch::{BLOCK_MAX, GRID_MAX};

/// The compute capability of every device.
const CAPABILITY: (i32, i32) = (12, 0);
/// Bytes of shared memory per block: without asking, with `MAX_DYNAMIC_SHARED_SIZE_BYTES`, and per
/// multiprocessor.
const SHARED_DEFAULT: i32 = 48 << 10;
const SHARED_OPT_IN: i32 = 99 << 10;
const SHARED_PER_MULTIPROCESSOR: i32 = 100 << 10;
/// Of those, bytes that each block costs beyond what it asks for.
const SHARED_RESERVED: i32 = 1 << 10;
/// The fewest multiprocessors of a device, however few threads the executor has: each thread takes
/// on several blocks of a cooperative grid and switches between them where they wait. With fewer,
/// programs that are made for a real GPU find no room for a cooperative grid of 20 blocks and more.
const MULTIPROCESSORS_MIN: i32 = 64;
/// A multiprocessor runs one block at a time. A cooperative launch takes as many blocks as the
/// occupancy says for all multiprocessors together.
const BLOCKS_MAX: i32 = 1;
const THREADS_MAX: i32 = 1024;

/// The attributes of the device `ordinal`, with at least one multiprocessor per thread. Clocks, bus
/// widths and caches do not exist here; programs divide by some of them, so these have plausible
/// values: a 1 GHz clock and a 64-bit bus.
pub(super) fn attributes(ordinal: usize, threads: usize, same_process: bool) -> Vec<(A, i32)> {
    let managed = i32::from(same_process);
    let ordinal = ordinal as i32;
    vec![
        (A::MAX_THREADS_PER_BLOCK, 1024),
        (A::MAX_BLOCK_DIM_X, BLOCK_MAX[0] as i32),
        (A::MAX_BLOCK_DIM_Y, BLOCK_MAX[1] as i32),
        (A::MAX_BLOCK_DIM_Z, BLOCK_MAX[2] as i32),
        (A::MAX_GRID_DIM_X, GRID_MAX[0] as i32),
        (A::MAX_GRID_DIM_Y, GRID_MAX[1] as i32),
        (A::MAX_GRID_DIM_Z, GRID_MAX[2] as i32),
        (A::MAX_SHARED_MEMORY_PER_BLOCK, SHARED_DEFAULT),
        (A::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, SHARED_OPT_IN),
        (A::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, SHARED_PER_MULTIPROCESSOR),
        (A::RESERVED_SHARED_MEMORY_PER_BLOCK, SHARED_RESERVED),
        (A::TOTAL_CONSTANT_MEMORY, 64 << 10),
        (A::WARP_SIZE, 32),
        (A::MAX_PITCH, i32::MAX),
        (A::MAX_REGISTERS_PER_BLOCK, 65536),
        (A::MAX_REGISTERS_PER_MULTIPROCESSOR, 65536),
        (A::CLOCK_RATE, 1_000_000),
        (A::MEMORY_CLOCK_RATE, 1_000_000),
        (A::GLOBAL_MEMORY_BUS_WIDTH, 64),
        (A::L2_CACHE_SIZE, 1 << 20),
        (A::TEXTURE_ALIGNMENT, 512),
        (A::SURFACE_ALIGNMENT, 512),
        (A::TEXTURE_PITCH_ALIGNMENT, 32),
        (A::MULTIPROCESSOR_COUNT, (threads as i32).max(MULTIPROCESSORS_MIN)),
        (A::MAX_THREADS_PER_MULTIPROCESSOR, THREADS_MAX),
        (A::MAX_BLOCKS_PER_MULTIPROCESSOR, BLOCKS_MAX),
        (A::COMPUTE_CAPABILITY_MAJOR, CAPABILITY.0),
        (A::COMPUTE_CAPABILITY_MINOR, CAPABILITY.1),
        // A device that is on no bus: the ordinal as the device number.
        (A::PCI_DEVICE_ID, ordinal),
        (A::MULTI_GPU_BOARD_GROUP_ID, ordinal),
        (A::NUMA_ID, -1),
        // What the device can do and what it is.
        (A::UNIFIED_ADDRESSING, 1),
        (A::CAN_MAP_HOST_MEMORY, 1),
        (A::STREAM_PRIORITIES_SUPPORTED, 1),
        (A::GLOBAL_L1_CACHE_SUPPORTED, 1),
        (A::LOCAL_L1_CACHE_SUPPORTED, 1),
        (A::MEMORY_POOLS_SUPPORTED, 1),
        (A::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1),
        // A node carries their descriptors.
        (A::IPC_EVENT_SUPPORTED, i32::from(!same_process)),
        (A::VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED, 1),
        (A::HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1),
        (A::SPARSE_CUDA_ARRAY_SUPPORTED, 1),
        (A::DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED, 1),
        (A::COOPERATIVE_LAUNCH, 1),
        (A::CLUSTER_LAUNCH, 1),
        (A::TENSOR_MAP_ACCESS_SUPPORTED, 1),
        (A::CAN_USE_64_BIT_STREAM_MEM_OPS, 1),
        (A::CAN_USE_STREAM_WAIT_VALUE_NOR, 1),
        (A::HOST_REGISTER_SUPPORTED, 1),
        (A::COMPUTE_PREEMPTION_SUPPORTED, 1),
        (A::INTEGRATED, 1),
        (A::SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 1),
        (A::MAXIMUM_TEXTURE1D_WIDTH, 131_072),
        (A::MAXIMUM_TEXTURE2D_WIDTH, 131_072),
        (A::MAXIMUM_TEXTURE2D_HEIGHT, 65536),
        (A::MAXIMUM_TEXTURE3D_WIDTH, 16384),
        (A::MAXIMUM_TEXTURE3D_HEIGHT, 16384),
        (A::MAXIMUM_TEXTURE3D_DEPTH, 16384),
        (A::MAXIMUM_TEXTURE1D_LINEAR_WIDTH, 1 << 28),
        (A::MAXIMUM_TEXTURE2D_LINEAR_WIDTH, 131_072),
        (A::MAXIMUM_TEXTURE2D_LINEAR_HEIGHT, 65000),
        (A::MAXIMUM_TEXTURE2D_LINEAR_PITCH, 2_097_120),
        (A::MAXIMUM_SURFACE1D_WIDTH, 32768),
        (A::MAXIMUM_SURFACE2D_WIDTH, 131_072),
        (A::MAXIMUM_SURFACE2D_HEIGHT, 65536),
        (A::MAXIMUM_SURFACE3D_WIDTH, 16384),
        (A::MAXIMUM_SURFACE3D_HEIGHT, 16384),
        (A::MAXIMUM_SURFACE3D_DEPTH, 16384),
        (A::MANAGED_MEMORY, managed),
        (A::CONCURRENT_MANAGED_ACCESS, managed),
        (A::DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, managed),
    ]
}
