//! Structures of the CUDA Driver API. Field names are CUDA's; layouts are checked against cudarc's
//! in `tests/layout.rs`.

use std::ffi::{c_char, c_void};

use crate::{attributes::*, enums::*, handles::*, sparse::ArrayPart};

/// Sixteen bytes that name a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct CUuuid {
    pub bytes: [u8; 16],
}

/// Properties of a device as `cuDeviceGetProperties` (deprecated) gives them.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CUdevprop {
    pub maxThreadsPerBlock: i32,
    pub maxThreadsDim: [i32; 3],
    pub maxGridSize: [i32; 3],
    pub sharedMemPerBlock: i32,
    pub totalConstantMemory: i32,
    pub SIMDWidth: i32,
    pub memPitch: i32,
    pub regsPerBlock: i32,
    pub clockRate: i32,
    pub textureAlign: i32,
}

/// How `cuCtxCreate_v4` makes a context; both pointers may be null.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUctxCreateParams {
    pub execAffinityParams: *mut CUexecAffinityParam,
    pub numExecAffinityParams: i32,
    pub cigParams: *mut c_void,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CUexecAffinityParam {
    pub kind: CUexecAffinityType,
    pub smCount: u32,
}

/// A strided rectangle copy; pitches in bytes, 0 for tight rows (`cuMemcpy2D`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_MEMCPY2D {
    pub srcXInBytes: usize,
    pub srcY: usize,
    pub srcMemoryType: CUmemorytype,
    pub srcHost: *const c_void,
    pub srcDevice: CUdeviceptr,
    pub srcArray: CUarray,
    pub srcPitch: usize,
    pub dstXInBytes: usize,
    pub dstY: usize,
    pub dstMemoryType: CUmemorytype,
    pub dstHost: *mut c_void,
    pub dstDevice: CUdeviceptr,
    pub dstArray: CUarray,
    pub dstPitch: usize,
    pub WidthInBytes: usize,
    pub Height: usize,
}

/// A strided box copy; heights in rows (`cuMemcpy3D`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_MEMCPY3D {
    pub srcXInBytes: usize,
    pub srcY: usize,
    pub srcZ: usize,
    pub srcLOD: usize,
    pub srcMemoryType: CUmemorytype,
    pub srcHost: *const c_void,
    pub srcDevice: CUdeviceptr,
    pub srcArray: CUarray,
    pub reserved0: *mut c_void,
    pub srcPitch: usize,
    pub srcHeight: usize,
    pub dstXInBytes: usize,
    pub dstY: usize,
    pub dstZ: usize,
    pub dstLOD: usize,
    pub dstMemoryType: CUmemorytype,
    pub dstHost: *mut c_void,
    pub dstDevice: CUdeviceptr,
    pub dstArray: CUarray,
    pub reserved1: *mut c_void,
    pub dstPitch: usize,
    pub dstHeight: usize,
    pub WidthInBytes: usize,
    pub Height: usize,
    pub Depth: usize,
}

/// As `CUDA_MEMCPY3D`, with a context on each side (`cuMemcpy3DPeer`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_MEMCPY3D_PEER {
    pub srcXInBytes: usize,
    pub srcY: usize,
    pub srcZ: usize,
    pub srcLOD: usize,
    pub srcMemoryType: CUmemorytype,
    pub srcHost: *const c_void,
    pub srcDevice: CUdeviceptr,
    pub srcArray: CUarray,
    pub srcContext: CUcontext,
    pub srcPitch: usize,
    pub srcHeight: usize,
    pub dstXInBytes: usize,
    pub dstY: usize,
    pub dstZ: usize,
    pub dstLOD: usize,
    pub dstMemoryType: CUmemorytype,
    pub dstHost: *mut c_void,
    pub dstDevice: CUdeviceptr,
    pub dstArray: CUarray,
    pub dstContext: CUcontext,
    pub dstPitch: usize,
    pub dstHeight: usize,
    pub WidthInBytes: usize,
    pub Height: usize,
    pub Depth: usize,
}

/// Shape of a one- or two-dimensional array, in elements.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CUDA_ARRAY_DESCRIPTOR {
    pub Width: usize,
    pub Height: usize,
    pub Format: CUarray_format,
    pub NumChannels: u32,
}

/// Shape of a three-dimensional, layered or cubemap array, in elements.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CUDA_ARRAY3D_DESCRIPTOR {
    pub Width: usize,
    pub Height: usize,
    pub Depth: usize,
    pub Format: CUarray_format,
    pub NumChannels: u32,
    pub Flags: u32,
}

/// How a sparse array is cut into tiles.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CUDA_ARRAY_SPARSE_PROPERTIES {
    /// Elements in each direction.
    pub tileExtent: [u32; 3],
    pub miptailFirstLevel: u32,
    pub miptailSize: u64,
    pub flags: u32,
    pub reserved: [u32; 4],
}

/// What memory an array wants whose memory is mapped later.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CUDA_ARRAY_MEMORY_REQUIREMENTS {
    pub size: usize,
    pub alignment: usize,
    pub reserved: [u32; 4],
}

/// One mapping of memory to a part of an array. `subresource` holds a union; the accessors read it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUarrayMapInfo {
    pub resourceType: CUresourcetype,
    /// A `CUarray` or a `CUmipmappedArray`.
    pub resource: usize,
    pub subresourceType: CUarraySparseSubresourceType,
    pub subresource: [u64; 4],
    pub memOperationType: CUmemOperationType,
    pub memHandleType: CUmemHandleType,
    pub memHandle: CUmemGenericAllocationHandle,
    pub offset: u64,
    pub deviceBitMask: u32,
    pub flags: u32,
    pub reserved: [u32; 2],
}

impl CUarrayMapInfo {
    /// The part of the array that is named, if the type of it is one that CUDA defines.
    pub fn part(&self) -> Option<ArrayPart> {
        let words = self.subresource;
        let half = |at: usize| (words[at / 2] >> (32 * (at % 2))) as u32;
        Some(match self.subresourceType {
            CUarraySparseSubresourceType::SPARSE_LEVEL => ArrayPart::Level {
                level: half(0),
                layer: half(1),
                offset: [half(2), half(3), half(4)],
                extent: [half(5), half(6), half(7)],
            },
            CUarraySparseSubresourceType::MIPTAIL => {
                ArrayPart::Tail { layer: half(0), offset: words[1], bytes: words[2] }
            }
            _ => return None,
        })
    }

    /// Names a part. Of an array that is mapped whole, what is named does not matter.
    pub fn set_part(&mut self, part: &ArrayPart) {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        (self.subresourceType, self.subresource) = match *part {
            ArrayPart::Level { level, layer, offset: [x, y, z], extent: [width, height, depth] } => (
                CUarraySparseSubresourceType::SPARSE_LEVEL,
                [pair(level, layer), pair(x, y), pair(z, width), pair(height, depth)],
            ),
            ArrayPart::Tail { layer, offset, bytes } => {
                (CUarraySparseSubresourceType::MIPTAIL, [layer.into(), offset, bytes, 0])
            }
            ArrayPart::Whole => (CUarraySparseSubresourceType::SPARSE_LEVEL, [0; 4]),
        };
    }
}

/// The value of one launch attribute. `words` holds any of them; the accessors read the usual ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C, align(8))]
pub struct CUlaunchAttributeValue {
    pub words: [u32; 16],
}

impl CUlaunchAttributeValue {
    /// For the attributes that are one number: cooperative, priority, programmatic stream
    /// serialisation, ...
    pub fn number(&self) -> i32 {
        self.words[0] as i32
    }

    /// For `CLUSTER_DIMENSION` and `PREFERRED_CLUSTER_DIMENSION`: x, y and z, in blocks.
    pub fn dimension(&self) -> [u32; 3] {
        [self.words[0], self.words[1], self.words[2]]
    }

    /// Address and bytes of the window, if this is the value of `ACCESS_POLICY_WINDOW`.
    pub fn window(&self, id: CUlaunchAttributeID) -> Option<(CUdeviceptr, u64)> {
        let word = |at: usize| u64::from(self.words[at]) | u64::from(self.words[at + 1]) << 32;
        (id == CUlaunchAttributeID::ACCESS_POLICY_WINDOW).then(|| (word(0), word(2)))
    }

    /// For `PROGRAMMATIC_EVENT` and `LAUNCH_COMPLETION_EVENT`: the event to record.
    pub fn event(&self) -> CUevent {
        CUevent((u64::from(self.words[0]) | u64::from(self.words[1]) << 32) as usize)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct CUlaunchAttribute {
    pub id: CUlaunchAttributeID,
    pub pad: [u8; 4],
    pub value: CUlaunchAttributeValue,
}

/// How `cuLaunchKernelEx` launches: grid in blocks, block in threads, dynamic shared memory in
/// bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUlaunchConfig {
    pub gridDimX: u32,
    pub gridDimY: u32,
    pub gridDimZ: u32,
    pub blockDimX: u32,
    pub blockDimY: u32,
    pub blockDimZ: u32,
    pub sharedMemBytes: u32,
    pub hStream: CUstream,
    pub attrs: *mut CUlaunchAttribute,
    pub numAttrs: u32,
}

/// A device, the host, or a NUMA node of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct CUmemLocation {
    pub kind: CUmemLocationType,
    pub id: i32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct CUmemAccessDesc {
    pub location: CUmemLocation,
    pub flags: CUmemAccess_flags,
}

/// What `cuMemCreate` allocates.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUmemAllocationProp {
    pub kind: CUmemAllocationType,
    pub requestedHandleTypes: CUmemAllocationHandleType,
    pub location: CUmemLocation,
    pub win32HandleMetaData: *mut c_void,
    pub compressionType: u8,
    pub gpuDirectRDMACapable: u8,
    pub usage: u16,
    pub reserved: [u8; 4],
}

/// What `cuMemPoolCreate` makes; `maxSize` in bytes, 0 for the driver's choice.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUmemPoolProps {
    pub allocType: CUmemAllocationType,
    pub handleTypes: CUmemAllocationHandleType,
    pub location: CUmemLocation,
    pub win32SecurityAttributes: *mut c_void,
    pub maxSize: usize,
    pub usage: u16,
    pub gpuDirectRDMACapable: u8,
    pub reserved: [u8; 53],
}

/// How one copy of a batch orders its reads, and where its operands are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct CUmemcpyAttributes {
    pub srcAccessOrder: u32,
    pub srcLocHint: CUmemLocation,
    pub dstLocHint: CUmemLocation,
    pub flags: u32,
}

/// A name for device memory that another process can open.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUipcMemHandle {
    pub reserved: [u8; 64],
}

/// A name for an event that another process can open.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUipcEventHandle {
    pub reserved: [u8; 64],
}

/// A name for an allocation of an exported pool.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUmemPoolPtrExportData {
    pub reserved: [u8; 64],
}

/// A function that the driver calls on the host, in stream order.
pub type CUhostFn = Option<unsafe extern "C" fn(user_data: *mut c_void)>;
/// A function that the driver calls on the host when a stream gets there, with the stream's state.
pub type CUstreamCallback =
    Option<unsafe extern "C" fn(stream: CUstream, status: crate::CUresult, user_data: *mut c_void)>;
/// A function that gets the driver's log messages: `message` has `length` bytes and a NUL behind
/// them.
pub type CUlogsCallback = Option<
    unsafe extern "C" fn(user_data: *mut c_void, level: CUlogLevel, message: *mut c_char, length: usize),
>;
/// Dynamic shared memory, in bytes, that a block of this many threads needs.
pub type CUoccupancyB2DSize = Option<unsafe extern "C" fn(block_size: i32) -> usize>;

/// A kernel node of a graph, as CUDA 11 has it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_KERNEL_NODE_PARAMS_v1 {
    pub func: CUfunction,
    pub gridDimX: u32,
    pub gridDimY: u32,
    pub gridDimZ: u32,
    pub blockDimX: u32,
    pub blockDimY: u32,
    pub blockDimZ: u32,
    pub sharedMemBytes: u32,
    pub kernelParams: *mut *mut c_void,
    pub extra: *mut *mut c_void,
}

/// A kernel node of a graph; `kern` is used when `func` is null, and `ctx` is then its context.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_KERNEL_NODE_PARAMS {
    pub func: CUfunction,
    pub gridDimX: u32,
    pub gridDimY: u32,
    pub gridDimZ: u32,
    pub blockDimX: u32,
    pub blockDimY: u32,
    pub blockDimZ: u32,
    pub sharedMemBytes: u32,
    pub kernelParams: *mut *mut c_void,
    pub extra: *mut *mut c_void,
    pub kern: CUkernel,
    pub ctx: CUcontext,
}

/// A memset node of a graph: `height` rows of `width` elements of `elementSize` bytes, rows `pitch`
/// bytes apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct CUDA_MEMSET_NODE_PARAMS {
    pub dst: CUdeviceptr,
    pub pitch: usize,
    pub value: u32,
    pub elementSize: u32,
    pub width: usize,
    pub height: usize,
}

/// A host node of a graph.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_HOST_NODE_PARAMS {
    pub fn_: CUhostFn,
    pub userData: *mut c_void,
}

/// An allocation node of a graph; the driver fills in `dptr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_MEM_ALLOC_NODE_PARAMS {
    pub poolProps: CUmemPoolProps,
    pub accessDescs: *const CUmemAccessDesc,
    pub accessDescCount: usize,
    pub bytesize: usize,
    pub dptr: CUdeviceptr,
}

/// How `cuGraphInstantiateWithParams` instantiates, and its two results.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_GRAPH_INSTANTIATE_PARAMS {
    pub flags: u64,
    pub hUploadStream: CUstream,
    pub hErrNode_out: CUgraphNode,
    pub result_out: u32,
}

/// Why `cuGraphExecUpdate_v2` refused, and where.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CUgraphExecUpdateResultInfo {
    pub result: CUgraphExecUpdateResult,
    pub errorNode: CUgraphNode,
    pub errorFromNode: CUgraphNode,
}

/// What an edge of a graph carries; all zero for a full dependency.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct CUgraphEdgeData {
    pub from_port: u8,
    pub to_port: u8,
    pub kind: u8,
    pub reserved: [u8; 5],
}

/// Parameters of any node; `words` holds the structure that `kind` names (`cuGraphAddNode`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUgraphNodeParams {
    pub kind: CUgraphNodeType,
    pub reserved0: [i32; 3],
    pub words: [u64; 29],
    pub reserved2: i64,
}

/// What a texture or surface object reads; `words` holds the structure that `resType` names.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_RESOURCE_DESC {
    pub resType: CUresourcetype,
    pub words: [u64; 16],
    pub flags: u32,
}

/// How a texture object reads.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_TEXTURE_DESC {
    pub addressMode: [CUaddress_mode; 3],
    pub filterMode: CUfilter_mode,
    pub flags: u32,
    pub maxAnisotropy: u32,
    pub mipmapFilterMode: CUfilter_mode,
    pub mipmapLevelBias: f32,
    pub minMipmapLevelClamp: f32,
    pub maxMipmapLevelClamp: f32,
    pub borderColor: [f32; 4],
    pub reserved: [i32; 12],
}

/// A view of an array in another format.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_RESOURCE_VIEW_DESC {
    pub format: u32,
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub firstMipmapLevel: u32,
    pub lastMipmapLevel: u32,
    pub firstLayer: u32,
    pub lastLayer: u32,
    pub reserved: [u32; 16],
}

/// A descriptor for tensor copies, opaque to everyone but the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C, align(64))]
pub struct CUtensorMap {
    pub opaque: [u64; 16],
}

/// Part of a device (multiprocessors, work queues); `words` holds the structure that `kind` names.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUdevResource {
    pub kind: CUdevResourceType,
    pub _internal_padding: [u8; 92],
    pub words: [u64; 5],
    pub nextResource: *mut CUdevResource,
}

impl Default for CUdevResource {
    fn default() -> Self {
        let (kind, words) = (CUdevResourceType::default(), [0; 5]);
        CUdevResource { kind, _internal_padding: [0; 92], words, nextResource: std::ptr::null_mut() }
    }
}

/// What a group of multiprocessors is to be like.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CU_DEV_SM_RESOURCE_GROUP_PARAMS {
    pub smCount: u32,
    pub coscheduledSmCount: u32,
    pub preferredCoscheduledSmCount: u32,
    pub flags: u32,
    pub localityDomainId: u32,
    pub reserved: [u32; 11],
}

/// One operation of `cuStreamBatchMemOp`; `words` holds the structure that the first word names.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUstreamBatchMemOpParams {
    pub words: [u64; 6],
}
