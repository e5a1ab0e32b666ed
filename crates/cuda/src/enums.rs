//! Enumerations of the CUDA Driver API, section "Data types used by CUDA driver".

use crate::abi::abi_enum;

abi_enum! {
    /// Where memory is, in copies and in pointer queries.
    pub struct CUmemorytype(u32) {
        HOST = 1,
        DEVICE = 2,
        ARRAY = 3,
        UNIFIED = 4,
    }
}

abi_enum! {
    /// Who may open contexts on a device.
    pub struct CUcomputemode(u32) {
        DEFAULT = 0,
        PROHIBITED = 2,
        EXCLUSIVE_PROCESS = 3,
    }
}

abi_enum! {
    /// Preference between L1 cache and shared memory.
    pub struct CUfunc_cache(u32) {
        NONE = 0,
        SHARED = 1,
        L1 = 2,
        EQUAL = 3,
    }
}

abi_enum! {
    /// Width of shared memory banks; deprecated and without effect.
    pub struct CUsharedconfig(u32) {
        DEFAULT_BANK_SIZE = 0,
        FOUR_BYTE_BANK_SIZE = 1,
        EIGHT_BYTE_BANK_SIZE = 2,
    }
}

abi_enum! {
    /// Options of `cuModuleLoadDataEx` and `cuLinkCreate`.
    pub struct CUjit_option(u32) {
        MAX_REGISTERS = 0,
        THREADS_PER_BLOCK = 1,
        WALL_TIME = 2,
        INFO_LOG_BUFFER = 3,
        INFO_LOG_BUFFER_SIZE_BYTES = 4,
        ERROR_LOG_BUFFER = 5,
        ERROR_LOG_BUFFER_SIZE_BYTES = 6,
        OPTIMIZATION_LEVEL = 7,
        TARGET_FROM_CUCONTEXT = 8,
        TARGET = 9,
        FALLBACK_STRATEGY = 10,
        GENERATE_DEBUG_INFO = 11,
        LOG_VERBOSE = 12,
        GENERATE_LINE_INFO = 13,
        CACHE_MODE = 14,
        NEW_SM3X_OPT = 15,
        FAST_COMPILE = 16,
        GLOBAL_SYMBOL_NAMES = 17,
        GLOBAL_SYMBOL_ADDRESSES = 18,
        GLOBAL_SYMBOL_COUNT = 19,
        LTO = 20,
        FTZ = 21,
        PREC_DIV = 22,
        PREC_SQRT = 23,
        FMA = 24,
        REFERENCED_KERNEL_NAMES = 25,
        REFERENCED_KERNEL_COUNT = 26,
        REFERENCED_VARIABLE_NAMES = 27,
        REFERENCED_VARIABLE_COUNT = 28,
        OPTIMIZE_UNUSED_DEVICE_VARIABLES = 29,
        POSITION_INDEPENDENT_CODE = 30,
        MIN_CTA_PER_SM = 31,
        MAX_THREADS_PER_BLOCK = 32,
        OVERRIDE_DIRECTIVE_VALUES = 33,
        SPLIT_COMPILE = 34,
        BINARY_LOADER_THREAD_COUNT = 35,
        NUM_OPTIONS = 36,
    }
}

abi_enum! {
    /// Kinds of linker input.
    pub struct CUjitInputType(u32) {
        INPUT_CUBIN = 0,
        INPUT_PTX = 1,
        INPUT_FATBINARY = 2,
        INPUT_OBJECT = 3,
        INPUT_LIBRARY = 4,
        INPUT_NVVM = 5,
        NUM_INPUT_TYPES = 6,
    }
}

abi_enum! {
    /// Options of `cuLibraryLoadData`.
    pub struct CUlibraryOption(u32) {
        HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE = 0,
        BINARY_IS_PRESERVED = 1,
        NUM_OPTIONS = 2,
    }
}

abi_enum! {
    /// When the code of a module is loaded.
    pub struct CUmoduleLoadingMode(u32) {
        EAGER_LOADING = 1,
        LAZY_LOADING = 2,
    }
}

abi_enum! {
    /// Whether the code of a function is loaded yet.
    pub struct CUfunctionLoadingState(u32) {
        UNLOADED = 0,
        LOADED = 1,
        MAX = 2,
    }
}

abi_enum! {
    /// Whether a stream records into a graph.
    pub struct CUstreamCaptureStatus(u32) {
        NONE = 0,
        ACTIVE = 1,
        INVALIDATED = 2,
    }
}

abi_enum! {
    /// Which unsafe calls a capture forbids.
    pub struct CUstreamCaptureMode(u32) {
        GLOBAL = 0,
        THREAD_LOCAL = 1,
        RELAXED = 2,
    }
}

abi_enum! {
    /// How a host thread waits for a stream.
    pub struct CUsynchronizationPolicy(u32) {
        AUTO = 1,
        SPIN = 2,
        YIELD = 3,
        BLOCKING_SYNC = 4,
    }
}

abi_enum! {
    /// How blocks of a cluster are placed.
    pub struct CUclusterSchedulingPolicy(u32) {
        DEFAULT = 0,
        SPREAD = 1,
        LOAD_BALANCING = 2,
        RUBIN_DSMEM_LOCALITY = 3,
    }
}

abi_enum! {
    /// Kind of physical memory.
    pub struct CUmemAllocationType(u32) {
        INVALID = 0,
        PINNED = 1,
        MANAGED = 2,
        MAX = 0x7fffffff,
    }
}

abi_enum! {
    /// How an allocation can be shared with other processes.
    pub struct CUmemAllocationHandleType(u32) {
        NONE = 0,
        POSIX_FILE_DESCRIPTOR = 1,
        WIN32 = 2,
        WIN32_KMT = 4,
        FABRIC = 8,
    }
}

abi_enum! {
    /// Kind of place memory can live in.
    pub struct CUmemLocationType(u32) {
        INVALID = 0,
        DEVICE = 1,
        HOST = 2,
        HOST_NUMA = 3,
        HOST_NUMA_CURRENT = 4,
        INVISIBLE = 5,
        DEVICE_LOCALITY_DOMAIN = 6,
        MAX = 0x7fffffff,
    }
}

abi_enum! {
    /// Access that a location has to a mapping.
    pub struct CUmemAccess_flags(u32) {
        NONE = 0,
        READ = 1,
        READWRITE = 3,
        MAX = 0x7fffffff,
    }
}

abi_enum! {
    /// Which granularity is asked for.
    pub struct CUmemAllocationGranularity_flags(u32) {
        MINIMUM = 0,
        RECOMMENDED = 1,
    }
}

abi_enum! {
    /// Advice about managed memory.
    pub struct CUmem_advise(u32) {
        SET_READ_MOSTLY = 1,
        UNSET_READ_MOSTLY = 2,
        SET_PREFERRED_LOCATION = 3,
        UNSET_PREFERRED_LOCATION = 4,
        SET_ACCESSED_BY = 5,
        UNSET_ACCESSED_BY = 6,
    }
}

abi_enum! {
    /// Format of one component of an array element.
    pub struct CUarray_format(u32) {
        UNSIGNED_INT8 = 1,
        UNSIGNED_INT16 = 2,
        UNSIGNED_INT32 = 3,
        SIGNED_INT8 = 8,
        SIGNED_INT16 = 9,
        SIGNED_INT32 = 10,
        HALF = 16,
        FLOAT = 32,
        UNORM_INT_101010_2 = 80,
        UINT8_PACKED_422 = 81,
        UINT8_PACKED_444 = 82,
        UINT8_SEMIPLANAR_420 = 83,
        UINT16_SEMIPLANAR_420 = 84,
        UINT8_SEMIPLANAR_422 = 85,
        UINT16_SEMIPLANAR_422 = 86,
        UINT8_SEMIPLANAR_444 = 87,
        UINT16_SEMIPLANAR_444 = 88,
        UINT8_PLANAR_420 = 89,
        UINT16_PLANAR_420 = 90,
        UINT8_PLANAR_422 = 91,
        UINT16_PLANAR_422 = 92,
        UINT8_PLANAR_444 = 93,
        UINT16_PLANAR_444 = 94,
        BC1_UNORM = 145,
        BC1_UNORM_SRGB = 146,
        BC2_UNORM = 147,
        BC2_UNORM_SRGB = 148,
        BC3_UNORM = 149,
        BC3_UNORM_SRGB = 150,
        BC4_UNORM = 151,
        BC4_SNORM = 152,
        BC5_UNORM = 153,
        BC5_SNORM = 154,
        BC6H_UF16 = 155,
        BC6H_SF16 = 156,
        BC7_UNORM = 157,
        BC7_UNORM_SRGB = 158,
        P010 = 159,
        P016 = 161,
        NV16 = 162,
        P210 = 163,
        P216 = 164,
        YUY2 = 165,
        Y210 = 166,
        Y216 = 167,
        AYUV = 168,
        Y410 = 169,
        NV12 = 176,
        Y416 = 177,
        Y444_PLANAR8 = 178,
        Y444_PLANAR10 = 179,
        YUV444_8bit_SemiPlanar = 180,
        YUV444_16bit_SemiPlanar = 181,
        UNORM_INT8X1 = 192,
        UNORM_INT8X2 = 193,
        UNORM_INT8X4 = 194,
        UNORM_INT16X1 = 195,
        UNORM_INT16X2 = 196,
        UNORM_INT16X4 = 197,
        SNORM_INT8X1 = 198,
        SNORM_INT8X2 = 199,
        SNORM_INT8X4 = 200,
        SNORM_INT16X1 = 201,
        SNORM_INT16X2 = 202,
        SNORM_INT16X4 = 203,
        MAX = 0x7fffffff,
    }
}

abi_enum! {
    /// What a texture or surface object reads.
    pub struct CUresourcetype(u32) {
        ARRAY = 0,
        MIPMAPPED_ARRAY = 1,
        LINEAR = 2,
        PITCH2D = 3,
    }
}

abi_enum! {
    /// Which part of a sparse array is mapped.
    pub struct CUarraySparseSubresourceType(u32) {
        SPARSE_LEVEL = 0,
        MIPTAIL = 1,
    }
}

abi_enum! {
    /// What is done to the memory of an array.
    pub struct CUmemOperationType(u32) {
        MAP = 1,
        UNMAP = 2,
    }
}

abi_enum! {
    /// What memory is named by.
    pub struct CUmemHandleType(u32) {
        GENERIC = 0,
    }
}

abi_enum! {
    /// What a texture does outside its range.
    pub struct CUaddress_mode(u32) {
        WRAP = 0,
        CLAMP = 1,
        MIRROR = 2,
        BORDER = 3,
    }
}

abi_enum! {
    /// Why `cuGetProcAddress` found something or did not.
    pub struct CUdriverProcAddressQueryResult(u32) {
        SUCCESS = 0,
        SYMBOL_NOT_FOUND = 1,
        VERSION_NOT_SUFFICIENT = 2,
    }
}

abi_enum! {
    /// How a texture reads between its elements.
    pub struct CUfilter_mode(u32) {
        POINT = 0,
        LINEAR = 1,
    }
}

abi_enum! {
    /// Kind of a device resource.
    pub struct CUdevResourceType(u32) {
        INVALID = 0,
        SM = 1,
        WORKQUEUE_CONFIG = 1000,
        WORKQUEUE = 10000,
    }
}

abi_enum! {
    /// Kind of execution affinity.
    pub struct CUexecAffinityType(u32) {
        SM_COUNT = 0,
        MAX = 1,
    }
}

abi_enum! {
    /// Kind of a graph node.
    pub struct CUgraphNodeType(u32) {
        KERNEL = 0,
        MEMCPY = 1,
        MEMSET = 2,
        HOST = 3,
        GRAPH = 4,
        EMPTY = 5,
        WAIT_EVENT = 6,
        EVENT_RECORD = 7,
        EXT_SEMAS_SIGNAL = 8,
        EXT_SEMAS_WAIT = 9,
        MEM_ALLOC = 10,
        MEM_FREE = 11,
        BATCH_MEM_OP = 12,
        CONDITIONAL = 13,
        RESERVED_16 = 16,
    }
}

abi_enum! {
    /// Why a graph update was refused.
    pub struct CUgraphExecUpdateResult(u32) {
        SUCCESS = 0,
        ERROR = 1,
        ERROR_TOPOLOGY_CHANGED = 2,
        ERROR_NODE_TYPE_CHANGED = 3,
        ERROR_FUNCTION_CHANGED = 4,
        ERROR_PARAMETERS_CHANGED = 5,
        ERROR_NOT_SUPPORTED = 6,
        ERROR_UNSUPPORTED_FUNCTION_CHANGE = 7,
        ERROR_ATTRIBUTES_CHANGED = 8,
    }
}

abi_enum! {
    /// Kind of a stream memory operation.
    pub struct CUstreamBatchMemOpType(u32) {
        WAIT_VALUE_32 = 1,
        WRITE_VALUE_32 = 2,
        FLUSH_REMOTE_WRITES = 3,
        WAIT_VALUE_64 = 4,
        WRITE_VALUE_64 = 5,
        BARRIER = 6,
        ATOMIC_REDUCTION = 8,
    }
}

abi_enum! {
    /// How bad a log message is.
    pub struct CUlogLevel(u32) {
        ERROR = 0,
        WARNING = 1,
    }
}
