//! The modelled GPUs, from their public specifications (data sheets, and CUDA C++ Programming
//! Guide, Technical Specifications per Compute Capability).

use sluice_cuda::CUdevice_attribute as A;
use sluice_softgpu::Card;

/// A GPU that can be modelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Model {
    #[default]
    H200,
    A100,
    Rtx5090,
}

impl Model {
    pub const ALL: [Model; 3] = [Model::H200, Model::A100, Model::Rtx5090];

    /// As people write it: `h200`.
    pub fn name(self) -> &'static str {
        match self {
            Model::H200 => "h200",
            Model::A100 => "a100",
            Model::Rtx5090 => "rtx5090",
        }
    }

    pub fn from_name(name: &str) -> Option<Model> {
        Model::ALL.into_iter().find(|model| model.name() == name)
    }

    fn specification(self) -> &'static Specification {
        match self {
            Model::H200 => &H200,
            Model::A100 => &A100,
            Model::Rtx5090 => &RTX_5090,
        }
    }
}

/// What differs between the GPUs.
struct Specification {
    name: &'static str,
    memory_mib: u64,
    capability: (i32, i32),
    multiprocessors: i32,
    /// Per multiprocessor.
    threads: i32,
    blocks: i32,
    shared_kib: i32,
    clock_mhz: i32,
    memory_clock_mhz: i32,
    memory_bits: i32,
    l2_mib: i32,
    copy_engines: i32,
    /// Throughput of single over double precision.
    double_ratio: i32,
    /// PCI device and vendor.
    pci: u32,
    /// Whether it is for data centres: error correction, NVLink.
    server: bool,
}

const H200: Specification = Specification {
    name: "NVIDIA H200",
    memory_mib: 143_771,
    capability: (9, 0),
    multiprocessors: 132,
    threads: 2048,
    blocks: 32,
    shared_kib: 228,
    clock_mhz: 1980,
    memory_clock_mhz: 3201,
    memory_bits: 6144,
    l2_mib: 60,
    copy_engines: 3,
    double_ratio: 2,
    pci: 0x2335_10de,
    server: true,
};

const A100: Specification = Specification {
    name: "NVIDIA A100-SXM4-80GB",
    memory_mib: 81_153,
    capability: (8, 0),
    multiprocessors: 108,
    threads: 2048,
    blocks: 32,
    shared_kib: 164,
    clock_mhz: 1410,
    memory_clock_mhz: 1593,
    memory_bits: 5120,
    l2_mib: 40,
    copy_engines: 3,
    double_ratio: 2,
    pci: 0x20b2_10de,
    server: true,
};

const RTX_5090: Specification = Specification {
    name: "NVIDIA GeForce RTX 5090",
    memory_mib: 32_607,
    capability: (12, 0),
    multiprocessors: 170,
    threads: 1536,
    blocks: 24,
    shared_kib: 100,
    clock_mhz: 2407,
    memory_clock_mhz: 14_001,
    memory_bits: 512,
    l2_mib: 96,
    copy_engines: 2,
    double_ratio: 64,
    pci: 0x2b85_10de,
    server: false,
};

/// The modelled GPU that is device `ordinal`.
pub(crate) fn card(model: Model, ordinal: usize) -> Card {
    let specification = model.specification();
    let mut attributes = COMMON.to_vec();
    attributes.extend(own(specification, ordinal as i32));
    Card { name: specification.name.to_owned(), memory: specification.memory_mib << 20, attributes }
}

fn own(card: &Specification, ordinal: i32) -> Vec<(A, i32)> {
    /// Bytes of shared memory that each block costs beyond what it asks for.
    const RESERVED: i32 = 1 << 10;
    /// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
    const POSIX: i32 = 1;
    let shared = card.shared_kib << 10;
    let since = |major| i32::from(card.capability.0 >= major);
    vec![
        (A::COMPUTE_CAPABILITY_MAJOR, card.capability.0),
        (A::COMPUTE_CAPABILITY_MINOR, card.capability.1),
        (A::MULTIPROCESSOR_COUNT, card.multiprocessors),
        (A::MAX_THREADS_PER_MULTIPROCESSOR, card.threads),
        (A::MAX_BLOCKS_PER_MULTIPROCESSOR, card.blocks),
        (A::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, shared),
        (A::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, shared - RESERVED),
        (A::RESERVED_SHARED_MEMORY_PER_BLOCK, RESERVED),
        (A::CLOCK_RATE, card.clock_mhz * 1000),
        (A::MEMORY_CLOCK_RATE, card.memory_clock_mhz * 1000),
        (A::GLOBAL_MEMORY_BUS_WIDTH, card.memory_bits),
        (A::L2_CACHE_SIZE, card.l2_mib << 20),
        // Five eighths to three quarters of the cache may be set aside.
        (A::MAX_PERSISTING_L2_CACHE_SIZE, (card.l2_mib << 20) / 16 * 11),
        (A::ASYNC_ENGINE_COUNT, card.copy_engines),
        (A::SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, card.double_ratio),
        (A::ECC_ENABLED, i32::from(card.server)),
        (A::PCI_BUS_ID, 0x19 + 0x10 * ordinal),
        (A::PCI_DEVICE_ID, 0),
        (A::GPU_PCI_DEVICE_ID, card.pci.cast_signed()),
        (A::MULTI_GPU_BOARD_GROUP_ID, ordinal),
        (A::GPU_DIRECT_RDMA_SUPPORTED, i32::from(card.server)),
        (A::GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, i32::from(card.server)),
        (A::GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, i32::from(card.server)),
        (A::GPU_DIRECT_RDMA_WRITES_ORDERING, 100 * i32::from(card.server)),
        (A::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1),
        (A::MEMPOOL_SUPPORTED_HANDLE_TYPES, POSIX),
        (A::CLUSTER_LAUNCH, since(9)),
        (A::TENSOR_MAP_ACCESS_SUPPORTED, since(9)),
        (A::MEM_SYNC_DOMAIN_COUNT, if card.capability.0 >= 9 { 4 } else { 1 }),
        (A::UNIFIED_FUNCTION_POINTERS, since(9)),
    ]
}

/// What every GPU of compute capability 8.0 to 12.0 answers.
const COMMON: &[(A, i32)] = &[
    (A::MAX_THREADS_PER_BLOCK, 1024),
    (A::MAX_BLOCK_DIM_X, 1024),
    (A::MAX_BLOCK_DIM_Y, 1024),
    (A::MAX_BLOCK_DIM_Z, 64),
    (A::MAX_GRID_DIM_X, i32::MAX),
    (A::MAX_GRID_DIM_Y, 65535),
    (A::MAX_GRID_DIM_Z, 65535),
    (A::MAX_SHARED_MEMORY_PER_BLOCK, 48 << 10),
    (A::TOTAL_CONSTANT_MEMORY, 64 << 10),
    (A::WARP_SIZE, 32),
    (A::MAX_PITCH, i32::MAX),
    (A::MAX_REGISTERS_PER_BLOCK, 65536),
    (A::MAX_REGISTERS_PER_MULTIPROCESSOR, 65536),
    (A::TEXTURE_ALIGNMENT, 512),
    (A::TEXTURE_PITCH_ALIGNMENT, 32),
    (A::SURFACE_ALIGNMENT, 512),
    (A::GPU_OVERLAP, 1),
    (A::CAN_MAP_HOST_MEMORY, 1),
    (A::CONCURRENT_KERNELS, 1),
    (A::UNIFIED_ADDRESSING, 1),
    (A::CAN_TEX2D_GATHER, 1),
    (A::STREAM_PRIORITIES_SUPPORTED, 1),
    (A::GLOBAL_L1_CACHE_SUPPORTED, 1),
    (A::LOCAL_L1_CACHE_SUPPORTED, 1),
    (A::MANAGED_MEMORY, 1),
    (A::CONCURRENT_MANAGED_ACCESS, 1),
    (A::COMPUTE_PREEMPTION_SUPPORTED, 1),
    (A::CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1),
    (A::CAN_USE_STREAM_MEM_OPS_V1, 1),
    (A::CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 1),
    (A::CAN_USE_STREAM_WAIT_VALUE_NOR_V1, 1),
    (A::CAN_USE_64_BIT_STREAM_MEM_OPS, 1),
    (A::CAN_USE_STREAM_WAIT_VALUE_NOR, 1),
    (A::COOPERATIVE_LAUNCH, 1),
    (A::CAN_FLUSH_REMOTE_WRITES, 0),
    (A::HOST_REGISTER_SUPPORTED, 1),
    (A::VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED, 1),
    (A::GENERIC_COMPRESSION_SUPPORTED, 1),
    (A::MAX_ACCESS_POLICY_WINDOW_SIZE, 134_213_632),
    (A::SPARSE_CUDA_ARRAY_SUPPORTED, 1),
    (A::READ_ONLY_HOST_REGISTER_SUPPORTED, 1),
    (A::TIMELINE_SEMAPHORE_INTEROP_SUPPORTED, 1),
    (A::MEMORY_POOLS_SUPPORTED, 1),
    (A::DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED, 1),
    (A::IPC_EVENT_SUPPORTED, 1),
    (A::NUMA_ID, -1),
    (A::HOST_NUMA_ID, 0),
    // Textures and surfaces.
    (A::MAXIMUM_TEXTURE1D_WIDTH, 131_072),
    (A::MAXIMUM_TEXTURE2D_WIDTH, 131_072),
    (A::MAXIMUM_TEXTURE2D_HEIGHT, 65536),
    (A::MAXIMUM_TEXTURE3D_WIDTH, 16384),
    (A::MAXIMUM_TEXTURE3D_HEIGHT, 16384),
    (A::MAXIMUM_TEXTURE3D_DEPTH, 16384),
    (A::MAXIMUM_TEXTURE2D_LAYERED_WIDTH, 32768),
    (A::MAXIMUM_TEXTURE2D_LAYERED_HEIGHT, 32768),
    (A::MAXIMUM_TEXTURE2D_LAYERED_LAYERS, 2048),
    (A::MAXIMUM_TEXTURE1D_LAYERED_WIDTH, 32768),
    (A::MAXIMUM_TEXTURE1D_LAYERED_LAYERS, 2048),
    (A::MAXIMUM_TEXTURE2D_GATHER_WIDTH, 32768),
    (A::MAXIMUM_TEXTURE2D_GATHER_HEIGHT, 32768),
    (A::MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE, 8192),
    (A::MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE, 8192),
    (A::MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE, 32768),
    (A::MAXIMUM_TEXTURECUBEMAP_WIDTH, 32768),
    (A::MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH, 32768),
    (A::MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS, 2046),
    (A::MAXIMUM_TEXTURE1D_LINEAR_WIDTH, 1 << 28),
    (A::MAXIMUM_TEXTURE2D_LINEAR_WIDTH, 131_072),
    (A::MAXIMUM_TEXTURE2D_LINEAR_HEIGHT, 65000),
    (A::MAXIMUM_TEXTURE2D_LINEAR_PITCH, 2_097_120),
    (A::MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH, 32768),
    (A::MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT, 32768),
    (A::MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH, 32768),
    (A::MAXIMUM_SURFACE1D_WIDTH, 32768),
    (A::MAXIMUM_SURFACE2D_WIDTH, 131_072),
    (A::MAXIMUM_SURFACE2D_HEIGHT, 65536),
    (A::MAXIMUM_SURFACE3D_WIDTH, 16384),
    (A::MAXIMUM_SURFACE3D_HEIGHT, 16384),
    (A::MAXIMUM_SURFACE3D_DEPTH, 16384),
    (A::MAXIMUM_SURFACE1D_LAYERED_WIDTH, 32768),
    (A::MAXIMUM_SURFACE1D_LAYERED_LAYERS, 2048),
    (A::MAXIMUM_SURFACE2D_LAYERED_WIDTH, 32768),
    (A::MAXIMUM_SURFACE2D_LAYERED_HEIGHT, 32768),
    (A::MAXIMUM_SURFACE2D_LAYERED_LAYERS, 2048),
    (A::MAXIMUM_SURFACECUBEMAP_WIDTH, 32768),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attribute_has_one_value() {
        for model in Model::ALL {
            let mut known: Vec<A> =
                card(model, 1).attributes.iter().map(|(attribute, _)| *attribute).collect();
            let all = known.len();
            known.sort();
            known.dedup();
            assert_eq!(known.len(), all, "{model:?}");
        }
    }

    #[test]
    fn names_lead_back_to_their_models() {
        for model in Model::ALL {
            assert_eq!(Model::from_name(model.name()), Some(model));
        }
        assert_eq!(Model::from_name("h100"), None);
    }
}
