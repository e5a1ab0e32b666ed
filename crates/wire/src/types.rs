//! Types of the fields of commands: ids, addresses, shapes.

use std::fmt;

use sluice_cuda::*;

use crate::{
    codec::{Decode, Encode, Reader, message},
    error::WireError,
};

/// A handle that both sides know by a number which the client minted.
pub trait Handle: Copy + Eq + fmt::Debug {
    /// The number.
    type Id: Id<Handle = Self>;
}

/// The number of a stream, an event, a module, ...; unique in its session and kind, never used
/// twice.
pub trait Id: Copy + Eq + std::hash::Hash + fmt::Debug {
    /// The C handle that it stands for.
    type Handle: Handle<Id = Self>;
    const KIND: HandleKind;

    fn new(number: u64) -> Self;
    fn number(self) -> u64;
    fn handle_from(number: usize) -> Self::Handle;
    fn handle_number(handle: Self::Handle) -> usize;
}

macro_rules! ids {
    ($($kind:ident $id:ident $handle:ident)*) => {
        /// What a handle is a handle of.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum HandleKind {
            $($kind,)*
        }

        $(
            #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
            pub struct $id(pub u64);

            impl Id for $id {
                type Handle = $handle;
                const KIND: HandleKind = HandleKind::$kind;

                fn new(number: u64) -> Self {
                    $id(number)
                }

                fn number(self) -> u64 {
                    self.0
                }

                fn handle_from(number: usize) -> $handle {
                    $handle(number)
                }

                fn handle_number(handle: $handle) -> usize {
                    handle.0
                }
            }

            impl Handle for $handle {
                type Id = $id;
            }

            impl Encode for $id {
                fn encode(&self, out: &mut Vec<u8>) {
                    self.0.encode(out);
                }
            }

            impl Decode<'_> for $id {
                fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
                    Ok($id(u64::decode(reader)?))
                }
            }
        )*
    };
}

ids! {
    Stream StreamId CUstream
    Event EventId CUevent
    Module ModuleId CUmodule
    Function FunctionId CUfunction
    Graph GraphId CUgraph
    GraphNode GraphNodeId CUgraphNode
    GraphExec GraphExecId CUgraphExec
    Array ArrayId CUarray
    Physical PhysicalId CUmemGenericAllocationHandle
    UserObject UserObjectId CUuserObject
    MipmappedArray MipmappedArrayId CUmipmappedArray
    GreenCtx GreenCtxId CUgreenCtx
    ResourceDesc ResourceDescId CUdevResourceDesc
    TexRef TexRefId CUtexref
    SurfRef SurfRefId CUsurfref
}

macro_rules! enumerations {
    ($($name:ident)*) => {$(
        impl Encode for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                self.0.encode(out);
            }
        }

        impl Decode<'_> for $name {
            fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
                Ok($name(u32::decode(reader)?))
            }
        }
    )*};
}

// Any number may arrive: what a driver does not know, it refuses.
enumerations! {
    CUlimit CUfunction_attribute CUdevice_attribute CUstreamCaptureMode CUlaunchAttributeID
    CUmemAllocationType CUmemAllocationHandleType CUmemAllocationGranularity_flags CUmemLocationType
    CUmemAccess_flags CUgraphNodeType CUdevResourceType CUstreamBatchMemOpType CUarray_format CUaddress_mode
    CUfilter_mode CUjit_option
}

/// An address in device memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DevicePtr(pub u64);

impl fmt::Debug for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DevicePtr({:#x})", self.0)
    }
}

impl Encode for DevicePtr {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
}

impl Decode<'_> for DevicePtr {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(DevicePtr(u64::decode(reader)?))
    }
}

/// The content hash of a code image (BLAKE3).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ImageHash(pub [u8; 32]);

impl fmt::Debug for ImageHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(8).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Encode for ImageHash {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
}

impl Decode<'_> for ImageHash {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(ImageHash(Decode::decode(reader)?))
    }
}

/// What a process exported to others of its lease, by a number that only they can know.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct ExportToken(pub [u8; 32]);

impl fmt::Debug for ExportToken {
    /// Nothing of the number: who knows it may use what it stands for.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExportToken")
    }
}

impl Encode for ExportToken {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
}

impl Decode<'_> for ExportToken {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(ExportToken(Decode::decode(reader)?))
    }
}

/// Memory that program and device both use is compared in pages of this many bytes.
pub const MIRROR_PAGE: usize = 4096;

/// Names the contents of a page (BLAKE3, cut).
pub fn page_hash(page: &[u8]) -> u64 {
    let hash = blake3::hash(page);
    hash.as_bytes().first_chunk().map_or(0, |first| u64::from_le_bytes(*first))
}

/// Grid or block: x, y, z.
pub type Dim = [u32; 3];

message! {
    /// A strided box in device memory: one operand of a 2D or 3D copy.
    pub struct Pitched {
        /// The first byte of the box.
        start: DevicePtr,
        /// From one row to the next, in bytes.
        pitch: u64,
        /// From one slice to the next, in rows.
        height: u64,
    }
}

message! {
    /// A parameter of a kernel: where in the parameter buffer, in bytes.
    pub struct Parameter { offset: u32, size: u32 }
}

message! {
    /// What a client knows of a function from its first mention on.
    pub struct FunctionInfo {
        parameters: Vec<Parameter>,
        /// Each attribute that the driver gave, with its value.
        attributes: Vec<(CUfunction_attribute, i32)>,
    }
}

message! {
    /// How the driver is to compile a module: one of the options that are numbers.
    pub struct JitOption { option: CUjit_option, value: u32 }
}

message! {
    /// A function of a module that was loaded just now.
    pub struct NamedFunction { name: String, info: FunctionInfo }
}

message! {
    /// What a client has learned of an image on a device, and keeps for other processes.
    pub struct ImageFacts {
        image: ImageHash,
        /// How it was compiled.
        options: Vec<JitOption>,
        /// What the compiler said.
        log: Vec<u8>,
        functions: Vec<NamedFunction>,
        /// Names of functions that the node has not described, where it has named them.
        names: Vec<String>,
        /// Of functions, by name: a question, without the function's handle, and its answer.
        answers: Vec<(String, (Vec<u8>, Vec<u8>))>,
    }
}

impl Encode for CUlaunchAttribute {
    fn encode(&self, out: &mut Vec<u8>) {
        self.id.encode(out);
        self.value.words.encode(out);
    }
}

impl Decode<'_> for CUlaunchAttribute {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let id = CUlaunchAttributeID::decode(reader)?;
        let value = CUlaunchAttributeValue { words: Decode::decode(reader)? };
        Ok(CUlaunchAttribute { id, pad: [0; 4], value })
    }
}

impl Encode for CUtensorMap {
    fn encode(&self, out: &mut Vec<u8>) {
        self.opaque.encode(out);
    }
}

impl Decode<'_> for CUtensorMap {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(CUtensorMap { opaque: Decode::decode(reader)? })
    }
}

impl Encode for CUmemLocation {
    fn encode(&self, out: &mut Vec<u8>) {
        self.kind.encode(out);
        self.id.encode(out);
    }
}

impl Decode<'_> for CUmemLocation {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(CUmemLocation { kind: Decode::decode(reader)?, id: Decode::decode(reader)? })
    }
}

impl Encode for CUmemAccessDesc {
    fn encode(&self, out: &mut Vec<u8>) {
        self.location.encode(out);
        self.flags.encode(out);
    }
}

impl Decode<'_> for CUmemAccessDesc {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(CUmemAccessDesc { location: Decode::decode(reader)?, flags: Decode::decode(reader)? })
    }
}

message! {
    /// What physical memory is wanted: `CUmemAllocationProp` without what only Windows has. Devices
    /// count within the lease.
    pub struct PhysicalProp {
        kind: CUmemAllocationType,
        handle_types: CUmemAllocationHandleType,
        location: CUmemLocation,
        compression_type: u8,
        gpu_direct_rdma: u8,
        usage: u16,
    }
}

message! {
    /// A part of a device as the program sees it: what the worker knows it by, and the words that
    /// are the program's to read. Devices count within the lease.
    pub struct DevResource { id: u64, kind: CUdevResourceType, words: [u64; 5] }
}

message! {
    /// One that a program has chosen for a green context, with what it may have changed of a
    /// configuration of work queues: the concurrency that is expected, and who shares them.
    pub struct ChosenResource { id: u64, concurrency: u32, scope: u32 }
}

message! {
    /// What a group of multiprocessors is to be like: the fields of
    /// `CU_DEV_SM_RESOURCE_GROUP_PARAMS`.
    pub struct GroupParams { count: u32, coscheduled: u32, preferred: u32, flags: u32, locality: u32 }
}

/// In the header of a command, a device from here on is a green context: what it was given as its
/// place.
pub const GREEN_PLACES: u8 = 128;

impl PhysicalProp {
    pub fn new(prop: &CUmemAllocationProp) -> PhysicalProp {
        PhysicalProp {
            kind: prop.kind,
            handle_types: prop.requestedHandleTypes,
            location: prop.location,
            compression_type: prop.compressionType,
            gpu_direct_rdma: prop.gpuDirectRDMACapable,
            usage: prop.usage,
        }
    }

    pub fn to_c(&self) -> CUmemAllocationProp {
        CUmemAllocationProp {
            kind: self.kind,
            requestedHandleTypes: self.handle_types,
            location: self.location,
            win32HandleMetaData: std::ptr::null_mut(),
            compressionType: self.compression_type,
            gpuDirectRDMACapable: self.gpu_direct_rdma,
            usage: self.usage,
            reserved: [0; 4],
        }
    }
}
