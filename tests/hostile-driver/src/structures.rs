//! The structures of the API, as far as the CUDA Driver API says what is in them.

use std::ffi::c_void;
use std::ptr::null_mut;

use sluice_cuda::*;
use sluice_wire::{product, rows};

use crate::call::{Call, Violation};
use crate::inner;

/// How memory is shared here.
pub(crate) const FILE: CUmemAllocationHandleType = CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR;

pub(crate) const DEVICE_RESOURCES: &[CUdevResourceType] =
    &[CUdevResourceType::SM, CUdevResourceType::WORKQUEUE_CONFIG, CUdevResourceType::WORKQUEUE];

/// What `cuFuncSetAttribute` sets.
pub(crate) const SETTABLE: &[CUfunction_attribute] = &[
    CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES,
    CUfunction_attribute::PREFERRED_SHARED_MEMORY_CARVEOUT,
    CUfunction_attribute::REQUIRED_CLUSTER_WIDTH,
    CUfunction_attribute::REQUIRED_CLUSTER_HEIGHT,
    CUfunction_attribute::REQUIRED_CLUSTER_DEPTH,
    CUfunction_attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
    CUfunction_attribute::CLUSTER_SCHEDULING_POLICY_PREFERENCE,
];

/// The last `CUlaunchAttributeID` that CUDA 13 defines.
pub(crate) const ATTRIBUTE_LAST: u64 = 18;
/// Bytes of a kernel's parameters at most (CUDA C++ Programming Guide, Function Parameters).
const PARAMETERS_MAX: u64 = 32_764;
/// Most memory operations of one call (CUDA Driver API, `cuStreamBatchMemOp`).
const OPERATIONS_MAX: u64 = 256;

/// The parameters of a node of memory operations (CUDA Driver API,
/// `CUDA_BATCH_MEM_OP_NODE_PARAMS`).
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct BatchParams {
    context: CUcontext,
    count: u32,
    operations: *mut CUstreamBatchMemOpParams,
    flags: u32,
}

impl Call {
    /// An image, which has to be whole: where it ends it says itself.
    pub(crate) fn image(&self, image: *const c_void) -> Result<(), Violation> {
        /// A record of pointers, as the CUDA runtime passes it for code inside a program.
        const WRAPPER: u32 = 0x4662_43b1;
        let first = self.read(image.cast::<u8>())?;
        if first != 0 && self.read(image.cast::<u32>())? == WRAPPER {
            return Err("an image that points to others".into());
        }
        Ok(())
    }

    /// Multiprocessors as this driver described them: what a program could have made up follows no
    /// pointers here, but a driver may.
    pub(crate) fn multiprocessors(&self, resource: *const CUdevResource) -> Result<(), Violation> {
        let copy = self.read(resource)?;
        let split = inner().cuDevSmResourceSplitByCount.ok_or("the driver behind has no green contexts")?;
        let mut count = 0;
        // SAFETY: a resource, and a place for a number. A group of a split is known, though not to
        // be split.
        let result = unsafe { split(null_mut(), &mut count, &copy, null_mut(), 0, 0) };
        match result {
            CUresult::SUCCESS | CUresult::INVALID_RESOURCE_CONFIGURATION => Ok(()),
            _ => Err(format!("a resource of nobody's: {:?}", copy.kind)),
        }
    }

    /// Options of a compiler: plain numbers, and buffers of which each has a size.
    pub(crate) fn jit_options(
        &self,
        names: &[CUjit_option],
        values: &[*mut c_void],
    ) -> Result<(), Violation> {
        use CUjit_option as O;
        let value = |name| Some(values[names.iter().position(|other| *other == name)?]);
        for (buffer, size) in [
            (O::INFO_LOG_BUFFER, O::INFO_LOG_BUFFER_SIZE_BYTES),
            (O::ERROR_LOG_BUFFER, O::ERROR_LOG_BUFFER_SIZE_BYTES),
        ] {
            if let Some(start) = value(buffer) {
                self.host(start, value(size).map_or(0, |bytes| bytes.addr() as u64))?;
            }
        }
        // Names of symbols and of what a program uses are addresses of lists.
        const NUMBERS: &[u32] = &[0, 3, 4, 5, 6, 7, 11, 12, 13, 14, 31, 32, 33];
        names.iter().try_for_each(|name| self.one_of(name.0, NUMBERS))
    }

    /// Host memory that the device writes.
    pub(crate) fn host(&self, start: *mut c_void, bytes: u64) -> Result<(), Violation> {
        if bytes == 0 {
            return Ok(());
        }
        let last = start.cast::<u8>().cast_const().wrapping_add(bytes as usize - 1);
        self.read(start.cast::<u8>().cast_const()).and(self.read(last)).map(drop)
    }

    /// Rows so far apart that none begins inside the one before.
    pub(crate) fn pitch(&self, pitch: u64, width: u64, rows: u64) -> Result<(), Violation> {
        if rows > 1 { self.within(pitch, width..=u64::MAX) } else { Ok(()) }
    }

    pub(crate) fn property(&self, prop: &CUmemAllocationProp) -> Result<(), Violation> {
        self.one_of(prop.kind, &[CUmemAllocationType::PINNED])?;
        self.one_of(prop.requestedHandleTypes, &[CUmemAllocationHandleType::NONE, FILE])?;
        self.location(prop.location)?;
        if !prop.win32HandleMetaData.is_null() || prop.reserved != [0; 4] {
            return Err("properties that nobody defines".into());
        }
        self.within(prop.compressionType.into(), 0..=1)?;
        self.within(prop.gpuDirectRDMACapable.into(), 0..=1)?;
        self.bits(prop.usage.into(), 3)
    }

    fn location(&self, location: CUmemLocation) -> Result<(), Violation> {
        self.one_of(location.kind, &[CUmemLocationType::DEVICE, CUmemLocationType::HOST_NUMA])?;
        self.one_of(location.id, &[0])
    }

    pub(crate) fn access(&self, desc: &CUmemAccessDesc) -> Result<(), Violation> {
        self.location(desc.location)?;
        let defined = [CUmemAccess_flags::NONE, CUmemAccess_flags::READ, CUmemAccess_flags::READWRITE];
        self.one_of(desc.flags, &defined)
    }

    /// Where memory is about to be mapped there is none yet.
    pub(crate) fn mapping(&self, start: CUdeviceptr, bytes: u64, offset: u64) -> Result<(), Violation> {
        self.within(bytes, 1..=1 << 47)?;
        if start.checked_add(bytes).is_none() || offset.checked_add(bytes).is_none() {
            return Err(format!("a mapping of {bytes} bytes at {start:#x}, from {offset}"));
        }
        match granules(start, bytes).any(is_mapped) {
            true => Err(format!("{start:#x} is mapped already")),
            false => Ok(()),
        }
    }

    /// Memory that is mapped, with access or without.
    pub(crate) fn mapped(&self, start: CUdeviceptr, bytes: u64) -> Result<(), Violation> {
        self.within(bytes, 1..=1 << 47)?;
        match granules(start, bytes).all(is_mapped) {
            true => Ok(()),
            false => Err(format!("{bytes} bytes at {start:#x} are not all mapped")),
        }
    }

    /// An attribute of a stream: a number, or a window on memory.
    pub(crate) fn stream_attribute(&self, id: u32, value: &CUlaunchAttributeValue) -> Result<(), Violation> {
        match value.window(CUlaunchAttributeID(id)) {
            Some((_, 0)) => Ok(()),
            Some((start, bytes)) => self.device(start, bytes),
            None => self.attribute(id, value),
        }
    }

    pub(crate) fn nodes(&self, start: *const CUgraphNode, count: usize) -> Result<(), Violation> {
        self.live_list(start, count as u64)
    }

    /// Room for a list that is asked for, or none.
    pub(crate) fn room<T>(&self, start: *mut T, count: usize) -> Result<(), Violation> {
        if start.is_null() { Ok(()) } else { self.out_list(start, count as u64) }
    }

    pub(crate) fn callback(&self, function: CUhostFn, data: *mut c_void) -> Result<(), Violation> {
        if function.is_none() || data.is_null() { Err("no function to call".into()) } else { Ok(()) }
    }

    pub(crate) fn host_node(&self, node: &CUDA_HOST_NODE_PARAMS) -> Result<(), Violation> {
        self.callback(node.fn_, node.userData)
    }

    /// Limits of every device (CUDA C++ Programming Guide, Technical Specifications per Compute
    /// Capability).
    pub(crate) fn shape(&self, grid: [u32; 3], block: [u32; 3]) -> Result<(), Violation> {
        let limits = [(grid, [i32::MAX as u64, 65535, 65535]), (block, [1024, 1024, 64])];
        for (size, most) in limits {
            size.into_iter().zip(most).try_for_each(|(n, most)| self.within(n.into(), 1..=most))?;
        }
        self.within(block.into_iter().map(u64::from).product(), 1..=1024)
    }

    pub(crate) fn config(&self, config: &CUlaunchConfig) -> Result<(), Violation> {
        let grid = [config.gridDimX, config.gridDimY, config.gridDimZ];
        self.shape(grid, [config.blockDimX, config.blockDimY, config.blockDimZ])?;
        self.live(config.hStream)?;
        self.within(config.numAttrs.into(), 0..=64)?;
        let attributes = self.list(config.attrs.cast_const(), config.numAttrs.into())?;
        attributes.iter().try_for_each(|attribute| self.attribute(attribute.id.0, &attribute.value))
    }

    /// One that is a number; what is a handle or an address of the client's must not arrive.
    pub(crate) fn attribute(&self, id: u32, value: &CUlaunchAttributeValue) -> Result<(), Violation> {
        use CUlaunchAttributeID as A;
        let dimension = value.dimension();
        match A(id) {
            A::IGNORE | A::PRIORITY | A::CLUSTER_SCHEDULING_POLICY_PREFERENCE => Ok(()),
            A::COOPERATIVE | A::PROGRAMMATIC_STREAM_SERIALIZATION | A::MEM_SYNC_DOMAIN_MAP => Ok(()),
            A::MEM_SYNC_DOMAIN => self.within(value.words[0].into(), 0..=1),
            A::SYNCHRONIZATION_POLICY => self.within(value.words[0].into(), 1..=4),
            A::CLUSTER_DIMENSION | A::PREFERRED_CLUSTER_DIMENSION => {
                dimension.into_iter().try_for_each(|n| self.within(n.into(), 1..=16))
            }
            A::PREFERRED_SHARED_MEMORY_CARVEOUT => {
                self.within(value.words[0].wrapping_add(1).into(), 0..=101)
            }
            other => Err(format!("launch attribute {other:?}")),
        }
    }

    /// Packed parameters: as many bytes as the function reads, at least.
    pub(crate) fn parameters(
        &self,
        function: CUfunction,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Result<(), Violation> {
        if !params.is_null() {
            return Err("parameters by address".into());
        }
        let extra = self.list(extra.cast_const(), 5)?;
        let tags = [extra[0], extra[2], extra[4]].map(|tag| tag as usize);
        let expected = [CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END];
        self.one_of(tags, &[expected])?;
        let bytes = self.read(extra[3].cast::<usize>().cast_const())? as u64;
        self.within(bytes, needed(function)..=PARAMETERS_MAX)?;
        self.list(extra[1].cast::<u8>().cast_const(), bytes).map(drop)
    }

    pub(crate) fn kernel(&self, node: &CUDA_KERNEL_NODE_PARAMS) -> Result<(), Violation> {
        self.live(node.func)?;
        self.shape(
            [node.gridDimX, node.gridDimY, node.gridDimZ],
            [node.blockDimX, node.blockDimY, node.blockDimZ],
        )?;
        self.parameters(node.func, node.kernelParams, node.extra)
    }

    pub(crate) fn fill(&self, fill: &CUDA_MEMSET_NODE_PARAMS) -> Result<(), Violation> {
        let (element, width, height) = (u64::from(fill.elementSize), fill.width as u64, fill.height as u64);
        self.one_of(element, &[1, 2, 4])?;
        self.within(width.min(height), 1..=u64::MAX)?;
        self.aligned(fill.dst, element)?;
        let bytes = product(&[width, element]);
        self.pitch(fill.pitch as u64, bytes, height)?;
        self.device(fill.dst, rows(height, bytes, fill.pitch as u64))
    }

    pub(crate) fn copy(&self, copy: &CUDA_MEMCPY3D) -> Result<(), Violation> {
        let extent = [copy.WidthInBytes, copy.Height, copy.Depth].map(|n| n as u64);
        self.side(
            copy.srcMemoryType,
            (copy.srcDevice, copy.srcHost.cast_mut(), copy.srcArray),
            [copy.srcXInBytes, copy.srcY, copy.srcZ, copy.srcLOD, copy.srcPitch, copy.srcHeight],
            extent,
        )?;
        self.side(
            copy.dstMemoryType,
            (copy.dstDevice, copy.dstHost, copy.dstArray),
            [copy.dstXInBytes, copy.dstY, copy.dstZ, copy.dstLOD, copy.dstPitch, copy.dstHeight],
            extent,
        )
    }

    /// One side of a copy; the corner is always the first byte here, but for arrays, whose extent
    /// the driver knows.
    fn side(
        &self,
        kind: CUmemorytype,
        (device, host, array): (CUdeviceptr, *mut c_void, CUarray),
        [x, y, z, level, pitch, height]: [usize; 6],
        [width, rows_wanted, slices]: [u64; 3],
    ) -> Result<(), Violation> {
        if kind == CUmemorytype::ARRAY {
            return self.live(array);
        }
        self.one_of([x, y, z, level, array.0], &[[0; 5]])?;
        let all_rows = product(&[rows_wanted, slices]);
        self.pitch(pitch as u64, width, all_rows)?;
        self.pitch(height as u64, rows_wanted, slices)?;
        let rows_between = rows(slices, rows_wanted, height as u64);
        let bytes = if width == 0 { 0 } else { rows(rows_between, width, pitch as u64) };
        match kind {
            CUmemorytype::DEVICE => self.device(device, bytes),
            CUmemorytype::HOST => self.host(host, bytes),
            other => Err(format!("memory type {other:?}")),
        }
    }

    /// What a texture or a surface object reads.
    pub(crate) fn resource(&self, resource: &CUDA_RESOURCE_DESC) -> Result<(), Violation> {
        let [first, _, bytes, ..] = resource.words;
        match resource.resType {
            CUresourcetype::ARRAY => self.live(CUarray(first as usize)),
            CUresourcetype::MIPMAPPED_ARRAY => self.live(CUmipmappedArray(first as usize)),
            CUresourcetype::LINEAR => self.device(first, bytes),
            CUresourcetype::PITCH2D => self.device(first, 1),
            other => Err(format!("resource type {other:?}")),
        }
    }

    /// Tiles of an array, all of which it has, and memory from where one may begin.
    pub(crate) fn array_map(&self, info: &CUarrayMapInfo) -> Result<(), Violation> {
        self.one_of((info.flags, info.reserved, info.deviceBitMask), &[(0, [0; 2], 1)])?;
        self.one_of(info.memHandleType, &[CUmemHandleType::GENERIC])?;
        match info.memOperationType {
            CUmemOperationType::MAP => self.live(info.memHandle)?,
            CUmemOperationType::UNMAP if info.memHandle.is_null() && info.offset == 0 => {}
            other => return Err(format!("operation {other:?} with {:?}", info.memHandle)),
        }
        self.aligned(info.offset, TILE_BYTES)?;
        let part = info.part().ok_or("a part of no type")?;
        match info.resourceType {
            CUresourcetype::ARRAY => self.part_of(CUarray(info.resource), &part),
            CUresourcetype::MIPMAPPED_ARRAY => self.live(CUmipmappedArray(info.resource)),
            other => Err(format!("resource type {other:?}")),
        }
    }

    /// A part of an array of one level, as the driver says that it is cut.
    fn part_of(&self, array: CUarray, part: &ArrayPart) -> Result<(), Violation> {
        let (mut desc, mut cut) = Default::default();
        let (shape, tiles) = (inner().cuArray3DGetDescriptor_v2, inner().cuArrayGetSparseProperties);
        // SAFETY: places for what is asked, which looks the handle up.
        let known = unsafe { shape.is_some_and(|ask| ask(&mut desc, array).is_success()) };
        if !known {
            return Err(format!("{array:?} is not live"));
        }
        // SAFETY: as above. A deferred array has no tiles, and of it no part is meant.
        if !unsafe { tiles.is_some_and(|ask| ask(&mut cut, array).is_success()) } {
            return if desc.is_deferred() { Ok(()) } else { Err(format!("{array:?} has its memory")) };
        }
        let layers = if desc.Flags & CUDA_ARRAY3D_LAYERED == 0 { 1 } else { desc.Depth };
        match *part {
            ArrayPart::Level { level, layer, offset, extent } => {
                self.one_of(level, &[0])?;
                self.within(layer.into(), 0..=layers as u64 - 1)?;
                let depth = if layers == 1 { desc.Depth.max(1) } else { 1 };
                for (axis, size) in [desc.Width, desc.Height, depth].into_iter().enumerate() {
                    let [start, length, tile] =
                        [offset[axis], extent[axis], cut.tileExtent[axis]].map(u64::from);
                    self.aligned(start, tile)?;
                    self.within(length, 1..=(size as u64).next_multiple_of(tile).saturating_sub(start))?;
                }
                Ok(())
            }
            ArrayPart::Tail { layer, offset, bytes } => {
                self.one_of(layer, &[0])?;
                self.aligned(offset, TILE_BYTES)?;
                self.within(bytes, 1..=cut.miptailSize.saturating_sub(offset))
            }
            ArrayPart::Whole => Err("the whole of an array in tiles".into()),
        }
    }

    pub(crate) fn memory_ops(&self, params: *const c_void) -> Result<(), Violation> {
        let params = self.read(params.cast::<BatchParams>())?;
        self.live(params.context)?;
        self.bits(params.flags.into(), 0)?;
        self.within(params.count.into(), 1..=OPERATIONS_MAX)?;
        let operations = self.list(params.operations.cast_const(), params.count.into())?;
        operations.iter().try_for_each(|operation| self.memory_op(operation))
    }

    fn memory_op(&self, operation: &CUstreamBatchMemOpParams) -> Result<(), Violation> {
        use CUstreamBatchMemOpType as T;
        let [kind, address, _, flags, ..] = operation.words;
        let kind = T(kind as u32);
        let width = if [T::WAIT_VALUE_64, T::WRITE_VALUE_64].contains(&kind) { 8 } else { 4 };
        match kind {
            T::WAIT_VALUE_32 | T::WAIT_VALUE_64 => self.bits(flags, 0x4000_0003)?,
            T::WRITE_VALUE_32 | T::WRITE_VALUE_64 => self.bits(flags, 1)?,
            other => return Err(format!("memory operation {other:?}")),
        }
        self.aligned(address, width)?;
        self.device(address, width)
    }
}

/// Mappings are whole multiples of this, in bytes.
pub(crate) const GRANULE: u64 = 2 << 20;

/// The addresses that stand for whole mappings.
fn granules(start: CUdeviceptr, bytes: u64) -> impl Iterator<Item = CUdeviceptr> {
    (start..start.saturating_add(bytes)).step_by(GRANULE as usize)
}

fn is_mapped(address: CUdeviceptr) -> bool {
    access(address).is_some()
}

pub(crate) fn is_readable(address: CUdeviceptr) -> bool {
    access(address).is_some_and(|flags| flags != 0)
}

/// The card's access to what is mapped at an address.
fn access(address: CUdeviceptr) -> Option<u64> {
    let location = CUmemLocation { kind: CUmemLocationType::DEVICE, id: 0 };
    let mut flags = 0;
    // SAFETY: a place for flags, and a location to read.
    unsafe { inner().cuMemGetAccess?(&mut flags, &location, address) }.is_success().then_some(flags)
}

/// Bytes of parameters that a function reads.
fn needed(function: CUfunction) -> u64 {
    let Some(ask) = inner().cuFuncGetParamInfo else { return 0 };
    let of = |index| {
        let (mut offset, mut size) = (0_usize, 0_usize);
        // SAFETY: two places for numbers.
        let known = unsafe { ask(function, index, &mut offset, &mut size) }.is_success();
        known.then_some((offset + size) as u64)
    };
    (0..).map_while(of).max().unwrap_or(0)
}
