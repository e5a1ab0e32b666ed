//! What `driver.api` does not say of arguments: structures and what they point to, lists, and
//! numbers with a meaning.

#![allow(non_snake_case)] // CUDA's names
#![allow(unused_variables)] // prototypes are those of the list

use std::ffi::{c_char, c_void};

use sluice_cuda::*;
use sluice_wire::{product, rows};

use crate::call::{Call, Violation};
use crate::generated::Check;
use crate::objects;
use crate::structures::*;

pub(crate) struct ByHand;

impl Check for ByHand {
    // Devices and contexts.

    fn cuDriverGetVersion(call: &Call, driverVersion: *mut i32) -> Result<(), Violation> {
        call.out(driverVersion)
    }

    fn cuDeviceGetCount(call: &Call, count: *mut i32) -> Result<(), Violation> {
        call.out(count)
    }

    fn cuDeviceGetName(call: &Call, name: *mut c_char, len: i32, dev: CUdevice) -> Result<(), Violation> {
        call.within(len as u64, 1..=4096)?;
        call.out_list(name.cast::<u8>(), len as u64)
    }

    fn cuDeviceGetUuid(call: &Call, uuid: *mut CUuuid, dev: CUdevice) -> Result<(), Violation> {
        call.out(uuid)
    }

    fn cuDeviceGetUuid_v2(call: &Call, uuid: *mut CUuuid, dev: CUdevice) -> Result<(), Violation> {
        call.out(uuid)
    }

    fn cuDeviceTotalMem_v2(call: &Call, bytes: *mut usize, dev: CUdevice) -> Result<(), Violation> {
        call.out(bytes)
    }

    fn cuDeviceGetAttribute(
        call: &Call,
        pi: *mut i32,
        attrib: CUdevice_attribute,
        dev: CUdevice,
    ) -> Result<(), Violation> {
        call.out(pi)
    }

    fn cuDeviceGetDevResource(
        call: &Call,
        device: CUdevice,
        resource: *mut CUdevResource,
        kind: CUdevResourceType,
    ) -> Result<(), Violation> {
        call.one_of(kind, DEVICE_RESOURCES)?;
        call.out(resource)
    }

    fn cuGreenCtxGetDevResource(
        call: &Call,
        hCtx: CUgreenCtx,
        resource: *mut CUdevResource,
        kind: CUdevResourceType,
    ) -> Result<(), Violation> {
        call.one_of(kind, DEVICE_RESOURCES)?;
        call.out(resource)
    }

    fn cuDevSmResourceSplitByCount(
        call: &Call,
        result: *mut CUdevResource,
        nbGroups: *mut u32,
        input: *const CUdevResource,
        remainder: *mut CUdevResource,
        flags: u32,
        minCount: u32,
    ) -> Result<(), Violation> {
        call.multiprocessors(input)?;
        call.bits(flags.into(), 3)?;
        let count = call.read(nbGroups)?;
        if !result.is_null() && count > 0 {
            call.out_list(result, count.into())?;
        }
        call.out(remainder)
    }

    fn cuDevSmResourceSplit(
        call: &Call,
        result: *mut CUdevResource,
        nbGroups: u32,
        input: *const CUdevResource,
        remainder: *mut CUdevResource,
        flags: u32,
        groupParams: *mut CU_DEV_SM_RESOURCE_GROUP_PARAMS,
    ) -> Result<(), Violation> {
        call.multiprocessors(input)?;
        call.bits(flags.into(), 0)?;
        call.within(nbGroups.into(), 1..=1024)?;
        for params in call.list(groupParams, nbGroups.into())? {
            call.bits(params.flags.into(), 7)?;
            call.one_of(params.reserved, &[[0; 11]])?;
        }
        if !result.is_null() {
            call.out_list(result, nbGroups.into())?;
        }
        call.out(remainder)
    }

    fn cuDevResourceGenerateDesc(
        call: &Call,
        phDesc: *mut CUdevResourceDesc,
        resources: *mut CUdevResource,
        nbResources: u32,
    ) -> Result<(), Violation> {
        call.out(phDesc)?;
        call.within(nbResources.into(), 1..=1024)?;
        (0..nbResources as usize).try_for_each(|index| call.multiprocessors(resources.wrapping_add(index)))
    }

    fn cuGreenCtxCreate(
        call: &Call,
        phCtx: *mut CUgreenCtx,
        desc: CUdevResourceDesc,
        dev: CUdevice,
        flags: u32,
    ) -> Result<(), Violation> {
        call.out(phCtx)?;
        call.bits(flags.into(), 1)
    }

    fn cuCtxFromGreenCtx(call: &Call, pContext: *mut CUcontext, hCtx: CUgreenCtx) -> Result<(), Violation> {
        call.out(pContext)
    }

    fn cuGreenCtxStreamCreate(
        call: &Call,
        phStream: *mut CUstream,
        greenCtx: CUgreenCtx,
        flags: u32,
        priority: i32,
    ) -> Result<(), Violation> {
        call.out(phStream)?;
        call.one_of(flags, &[CU_STREAM_NON_BLOCKING])
    }

    fn cuDevicePrimaryCtxRetain(call: &Call, pctx: *mut CUcontext, dev: CUdevice) -> Result<(), Violation> {
        call.out(pctx)
    }

    fn cuCtxGetCurrent(call: &Call, pctx: *mut CUcontext) -> Result<(), Violation> {
        call.out(pctx)
    }

    fn cuCtxGetLimit(call: &Call, pvalue: *mut usize, limit: CUlimit) -> Result<(), Violation> {
        call.out(pvalue)
    }

    fn cuCtxGetStreamPriorityRange(
        call: &Call,
        leastPriority: *mut i32,
        greatestPriority: *mut i32,
    ) -> Result<(), Violation> {
        call.out(leastPriority)?;
        call.out(greatestPriority)
    }

    fn cuCtxSetLimit(call: &Call, limit: CUlimit, value: usize) -> Result<(), Violation> {
        call.within(limit.0.into(), 0..=u64::from(CUlimit::MAX.0) - 1)
    }

    // Modules and functions.

    fn cuModuleLoadData(call: &Call, module: *mut CUmodule, image: *const c_void) -> Result<(), Violation> {
        call.out(module)?;
        call.image(image)
    }

    fn cuModuleLoadDataEx(
        call: &Call,
        module: *mut CUmodule,
        image: *const c_void,
        numOptions: u32,
        options: *mut CUjit_option,
        optionValues: *mut *mut c_void,
    ) -> Result<(), Violation> {
        call.out(module)?;
        call.image(image)?;
        let names = call.list(options, numOptions.into())?;
        let values = call.list(optionValues, numOptions.into())?;
        call.jit_options(&names, &values)
    }

    fn cuModuleGetFunction(
        call: &Call,
        hfunc: *mut CUfunction,
        hmod: CUmodule,
        name: *const c_char,
    ) -> Result<(), Violation> {
        call.out(hfunc)?;
        call.text(name)
    }

    fn cuModuleGetGlobal_v2(
        call: &Call,
        dptr: *mut CUdeviceptr,
        bytes: *mut usize,
        hmod: CUmodule,
        name: *const c_char,
    ) -> Result<(), Violation> {
        call.out(dptr)?;
        call.out(bytes)?;
        call.text(name)
    }

    fn cuPointerGetAttribute(
        call: &Call,
        data: *mut c_void,
        attribute: CUpointer_attribute,
        ptr: CUdeviceptr,
    ) -> Result<(), Violation> {
        call.out(data.cast::<u64>())?;
        call.one_of(attribute, &[CUpointer_attribute::IS_MANAGED])?;
        call.device(ptr, 1)
    }

    fn cuModuleEnumerateFunctions(
        call: &Call,
        functions: *mut CUfunction,
        numFunctions: u32,
        hmod: CUmodule,
    ) -> Result<(), Violation> {
        call.out_list(functions, numFunctions.into())
    }

    fn cuFuncGetName(call: &Call, name: *mut *const c_char, hfunc: CUfunction) -> Result<(), Violation> {
        call.out(name)
    }

    fn cuFuncGetAttribute(
        call: &Call,
        pi: *mut i32,
        attrib: CUfunction_attribute,
        hfunc: CUfunction,
    ) -> Result<(), Violation> {
        call.out(pi)
    }

    fn cuFuncGetParamInfo(
        call: &Call,
        func: CUfunction,
        paramIndex: usize,
        paramOffset: *mut usize,
        paramSize: *mut usize,
    ) -> Result<(), Violation> {
        call.out(paramOffset)?;
        call.out(paramSize)
    }

    fn cuFuncSetAttribute(
        call: &Call,
        hfunc: CUfunction,
        attrib: CUfunction_attribute,
        value: i32,
    ) -> Result<(), Violation> {
        call.one_of(attrib, SETTABLE)
    }

    // Memory.

    fn cuMemGetInfo_v2(call: &Call, free: *mut usize, total: *mut usize) -> Result<(), Violation> {
        call.out(free)?;
        call.out(total)
    }

    fn cuMemAlloc_v2(call: &Call, dptr: *mut CUdeviceptr, bytesize: usize) -> Result<(), Violation> {
        call.out(dptr)
    }

    fn cuMemFree_v2(call: &Call, dptr: CUdeviceptr) -> Result<(), Violation> {
        call.device(dptr, 1)
    }

    fn cuMemHostAlloc(
        call: &Call,
        pp: *mut *mut c_void,
        bytesize: usize,
        Flags: u32,
    ) -> Result<(), Violation> {
        call.out(pp)?;
        call.bits(Flags.into(), 7)
    }

    fn cuMemFreeHost(call: &Call, p: *mut c_void) -> Result<(), Violation> {
        call.read(p.cast::<u8>()).map(drop)
    }

    fn cuMemHostRegister_v2(
        call: &Call,
        p: *mut c_void,
        bytesize: usize,
        Flags: u32,
    ) -> Result<(), Violation> {
        let bytes = p.cast::<u8>();
        call.read(bytes)?;
        call.read(bytes.wrapping_add(bytesize.saturating_sub(1)))?;
        call.bits(Flags.into(), 0xf)
    }

    fn cuMemHostUnregister(call: &Call, p: *mut c_void) -> Result<(), Violation> {
        call.read(p.cast::<u8>()).map(drop)
    }

    fn cuMemcpyHtoDAsync_v2(
        call: &Call,
        dstDevice: CUdeviceptr,
        srcHost: *const c_void,
        ByteCount: usize,
        hStream: CUstream,
    ) -> Result<(), Violation> {
        call.list(srcHost.cast::<u8>(), ByteCount as u64)?;
        call.device(dstDevice, ByteCount as u64)
    }

    fn cuMemcpyDtoHAsync_v2(
        call: &Call,
        dstHost: *mut c_void,
        srcDevice: CUdeviceptr,
        ByteCount: usize,
        hStream: CUstream,
    ) -> Result<(), Violation> {
        call.host(dstHost, ByteCount as u64)?;
        call.device(srcDevice, ByteCount as u64)
    }

    fn cuMemcpyHtoD_v2(
        call: &Call,
        dstDevice: CUdeviceptr,
        srcHost: *const c_void,
        ByteCount: usize,
    ) -> Result<(), Violation> {
        call.list(srcHost.cast::<u8>(), ByteCount as u64)?;
        call.device(dstDevice, ByteCount as u64)
    }

    fn cuMemcpyDtoH_v2(
        call: &Call,
        dstHost: *mut c_void,
        srcDevice: CUdeviceptr,
        ByteCount: usize,
    ) -> Result<(), Violation> {
        call.host(dstHost, ByteCount as u64)?;
        call.device(srcDevice, ByteCount as u64)
    }

    fn cuMemcpy3DAsync_v2(
        call: &Call,
        pCopy: *const CUDA_MEMCPY3D,
        hStream: CUstream,
    ) -> Result<(), Violation> {
        call.copy(&call.read(pCopy)?)
    }

    fn cuMemsetD2D8Async(
        call: &Call,
        dstDevice: CUdeviceptr,
        dstPitch: usize,
        uc: u8,
        Width: usize,
        Height: usize,
        hStream: CUstream,
    ) -> Result<(), Violation> {
        call.aligned(dstDevice, 1)?;
        call.pitch(dstPitch as u64, product(&[Width as u64, 1]), Height as u64)
    }

    fn cuMemsetD2D16Async(
        call: &Call,
        dstDevice: CUdeviceptr,
        dstPitch: usize,
        us: u16,
        Width: usize,
        Height: usize,
        hStream: CUstream,
    ) -> Result<(), Violation> {
        call.aligned(dstDevice, 2)?;
        call.pitch(dstPitch as u64, product(&[Width as u64, 2]), Height as u64)
    }

    fn cuMemsetD2D32Async(
        call: &Call,
        dstDevice: CUdeviceptr,
        dstPitch: usize,
        ui: u32,
        Width: usize,
        Height: usize,
        hStream: CUstream,
    ) -> Result<(), Violation> {
        call.aligned(dstDevice, 4)?;
        call.pitch(dstPitch as u64, product(&[Width as u64, 4]), Height as u64)
    }

    fn cuMemsetD16Async(
        call: &Call,
        dstDevice: CUdeviceptr,
        us: u16,
        N: usize,
        hStream: CUstream,
    ) -> Result<(), Violation> {
        call.aligned(dstDevice, 2)
    }

    fn cuMemsetD32Async(
        call: &Call,
        dstDevice: CUdeviceptr,
        ui: u32,
        N: usize,
        hStream: CUstream,
    ) -> Result<(), Violation> {
        call.aligned(dstDevice, 4)
    }

    // Virtual memory.

    fn cuMemAddressReserve(
        call: &Call,
        ptr: *mut CUdeviceptr,
        size: usize,
        alignment: usize,
        addr: CUdeviceptr,
        flags: u64,
    ) -> Result<(), Violation> {
        call.out(ptr)?;
        call.bits(flags, 0)
    }

    fn cuMemAddressFree(call: &Call, ptr: CUdeviceptr, size: usize) -> Result<(), Violation> {
        Ok(())
    }

    fn cuMemCreate(
        call: &Call,
        handle: *mut CUmemGenericAllocationHandle,
        size: usize,
        prop: *const CUmemAllocationProp,
        flags: u64,
    ) -> Result<(), Violation> {
        call.out(handle)?;
        call.bits(flags, 0)?;
        call.within(size as u64, 1..=1 << 47)?;
        call.property(&call.read(prop)?)
    }

    fn cuMemGetAllocationGranularity(
        call: &Call,
        granularity: *mut usize,
        prop: *const CUmemAllocationProp,
        option: CUmemAllocationGranularity_flags,
    ) -> Result<(), Violation> {
        call.out(granularity)?;
        call.within(option.0.into(), 0..=1)?;
        call.property(&call.read(prop)?)
    }

    fn cuMemExportToShareableHandle(
        call: &Call,
        shareableHandle: *mut c_void,
        handle: CUmemGenericAllocationHandle,
        handleType: CUmemAllocationHandleType,
        flags: u64,
    ) -> Result<(), Violation> {
        call.one_of(handleType, &[FILE])?;
        call.bits(flags, 0)?;
        call.out(shareableHandle.cast::<i32>())
    }

    fn cuMemImportFromShareableHandle(
        call: &Call,
        handle: *mut CUmemGenericAllocationHandle,
        osHandle: *mut c_void,
        shHandleType: CUmemAllocationHandleType,
    ) -> Result<(), Violation> {
        call.out(handle)?;
        call.one_of(shHandleType, &[FILE])?;
        call.within(osHandle as u64, 0..=1 << 20)
    }

    fn cuMemMap(
        call: &Call,
        ptr: CUdeviceptr,
        size: usize,
        offset: usize,
        handle: CUmemGenericAllocationHandle,
        flags: u64,
    ) -> Result<(), Violation> {
        call.bits(flags, 0)?;
        call.mapping(ptr, size as u64, offset as u64)
    }

    fn cuMemUnmap(call: &Call, ptr: CUdeviceptr, size: usize) -> Result<(), Violation> {
        call.mapped(ptr, size as u64)
    }

    fn cuMemSetAccess(
        call: &Call,
        ptr: CUdeviceptr,
        size: usize,
        desc: *const CUmemAccessDesc,
        count: usize,
    ) -> Result<(), Violation> {
        call.mapped(ptr, size as u64)?;
        call.within(count as u64, 1..=64)?;
        call.list(desc, count as u64)?.iter().try_for_each(|desc| call.access(desc))
    }

    // Streams and events.

    fn cuStreamCreate(call: &Call, phStream: *mut CUstream, Flags: u32) -> Result<(), Violation> {
        call.out(phStream)?;
        call.bits(Flags.into(), 1)
    }

    fn cuStreamCreateWithPriority(
        call: &Call,
        phStream: *mut CUstream,
        flags: u32,
        priority: i32,
    ) -> Result<(), Violation> {
        call.bits(flags.into(), 1)
    }

    fn cuStreamBeginCapture_v2(
        call: &Call,
        hStream: CUstream,
        mode: CUstreamCaptureMode,
    ) -> Result<(), Violation> {
        call.within(mode.0.into(), 0..=2)
    }

    fn cuStreamBeginCaptureToGraph(
        call: &Call,
        hStream: CUstream,
        hGraph: CUgraph,
        dependencies: *const CUgraphNode,
        dependencyData: *const CUgraphEdgeData,
        numDependencies: usize,
        mode: CUstreamCaptureMode,
    ) -> Result<(), Violation> {
        call.nodes(dependencies, numDependencies)?;
        call.within(mode.0.into(), 0..=2)?;
        if dependencyData.is_null() {
            Ok(())
        } else {
            call.list(dependencyData, numDependencies as u64).map(drop)
        }
    }

    fn cuStreamGetCaptureInfo_v2(
        call: &Call,
        hStream: CUstream,
        captureStatus_out: *mut CUstreamCaptureStatus,
        id_out: *mut u64,
        graph_out: *mut CUgraph,
        dependencies_out: *mut *const CUgraphNode,
        numDependencies_out: *mut usize,
    ) -> Result<(), Violation> {
        call.out(captureStatus_out)?;
        call.out(id_out)?;
        call.out(graph_out)?;
        call.out(dependencies_out)?;
        call.out(numDependencies_out)
    }

    fn cuStreamGetCaptureInfo_v3(
        call: &Call,
        hStream: CUstream,
        captureStatus_out: *mut CUstreamCaptureStatus,
        id_out: *mut u64,
        graph_out: *mut CUgraph,
        dependencies_out: *mut *const CUgraphNode,
        edgeData_out: *mut *const CUgraphEdgeData,
        numDependencies_out: *mut usize,
    ) -> Result<(), Violation> {
        call.out(captureStatus_out)?;
        call.out(id_out)?;
        call.out(graph_out)?;
        call.out(dependencies_out)?;
        call.out(edgeData_out)?;
        call.out(numDependencies_out)
    }

    fn cuStreamIsCapturing(
        call: &Call,
        hStream: CUstream,
        captureStatus: *mut CUstreamCaptureStatus,
    ) -> Result<(), Violation> {
        call.out(captureStatus)
    }

    fn cuStreamUpdateCaptureDependencies(
        call: &Call,
        hStream: CUstream,
        dependencies: *mut CUgraphNode,
        numDependencies: usize,
        flags: u32,
    ) -> Result<(), Violation> {
        call.nodes(dependencies, numDependencies)?;
        call.within(flags.into(), 0..=1)
    }

    fn cuStreamUpdateCaptureDependencies_v2(
        call: &Call,
        hStream: CUstream,
        dependencies: *mut CUgraphNode,
        dependencyData: *const CUgraphEdgeData,
        numDependencies: usize,
        flags: u32,
    ) -> Result<(), Violation> {
        call.nodes(dependencies, numDependencies)?;
        call.within(flags.into(), 0..=1)?;
        if dependencyData.is_null() {
            Ok(())
        } else {
            call.list(dependencyData, numDependencies as u64).map(drop)
        }
    }

    fn cuStreamWaitValue32(
        call: &Call,
        stream: CUstream,
        addr: CUdeviceptr,
        value: u32,
        flags: u32,
    ) -> Result<(), Violation> {
        call.aligned(addr, 4)
    }

    fn cuStreamWriteValue32(
        call: &Call,
        stream: CUstream,
        addr: CUdeviceptr,
        value: u32,
        flags: u32,
    ) -> Result<(), Violation> {
        call.aligned(addr, 4)
    }

    fn cuStreamWaitValue32_v2(
        call: &Call,
        stream: CUstream,
        addr: CUdeviceptr,
        value: u32,
        flags: u32,
    ) -> Result<(), Violation> {
        call.aligned(addr, 4)
    }

    fn cuStreamWriteValue32_v2(
        call: &Call,
        stream: CUstream,
        addr: CUdeviceptr,
        value: u32,
        flags: u32,
    ) -> Result<(), Violation> {
        call.aligned(addr, 4)
    }

    fn cuStreamWaitValue64(
        call: &Call,
        stream: CUstream,
        addr: CUdeviceptr,
        value: u64,
        flags: u32,
    ) -> Result<(), Violation> {
        call.aligned(addr, 8)
    }

    fn cuStreamWriteValue64(
        call: &Call,
        stream: CUstream,
        addr: CUdeviceptr,
        value: u64,
        flags: u32,
    ) -> Result<(), Violation> {
        call.aligned(addr, 8)
    }

    fn cuStreamWaitValue64_v2(
        call: &Call,
        stream: CUstream,
        addr: CUdeviceptr,
        value: u64,
        flags: u32,
    ) -> Result<(), Violation> {
        call.aligned(addr, 8)
    }

    fn cuStreamWriteValue64_v2(
        call: &Call,
        stream: CUstream,
        addr: CUdeviceptr,
        value: u64,
        flags: u32,
    ) -> Result<(), Violation> {
        call.aligned(addr, 8)
    }

    fn cuEventCreate(call: &Call, phEvent: *mut CUevent, Flags: u32) -> Result<(), Violation> {
        call.bits(Flags.into(), 7)?;
        if Flags & 4 != 0 { call.one_of(Flags & 2, &[2]) } else { Ok(()) }
    }

    fn cuIpcGetEventHandle(
        call: &Call,
        pHandle: *mut CUipcEventHandle,
        event: CUevent,
    ) -> Result<(), Violation> {
        call.out(pHandle)
    }

    fn cuIpcOpenEventHandle(
        call: &Call,
        phEvent: *mut CUevent,
        handle: CUipcEventHandle,
    ) -> Result<(), Violation> {
        call.out(phEvent)
    }

    fn cuStreamGetAttribute(
        call: &Call,
        hStream: CUstream,
        attr: u32,
        value_out: *mut c_void,
    ) -> Result<(), Violation> {
        call.within(attr.into(), 0..=ATTRIBUTE_LAST)?;
        call.out(value_out.cast::<CUlaunchAttributeValue>())
    }

    fn cuStreamSetAttribute(
        call: &Call,
        hStream: CUstream,
        attr: u32,
        value: *const c_void,
    ) -> Result<(), Violation> {
        call.stream_attribute(attr, &call.read(value.cast::<CUlaunchAttributeValue>())?)
    }

    // Arrays.

    fn cuArray3DCreate_v2(
        call: &Call,
        pHandle: *mut CUarray,
        pAllocateArray: *const CUDA_ARRAY3D_DESCRIPTOR,
    ) -> Result<(), Violation> {
        call.out(pHandle)?;
        call.read(pAllocateArray).map(drop)
    }

    fn cuMipmappedArrayCreate(
        call: &Call,
        pHandle: *mut CUmipmappedArray,
        pMipmappedArrayDesc: *const CUDA_ARRAY3D_DESCRIPTOR,
        numMipmapLevels: u32,
    ) -> Result<(), Violation> {
        call.out(pHandle)?;
        call.within(numMipmapLevels.into(), 1..=64)?;
        call.read(pMipmappedArrayDesc).map(drop)
    }

    fn cuMipmappedArrayGetLevel(
        call: &Call,
        pLevelArray: *mut CUarray,
        hMipmappedArray: CUmipmappedArray,
        level: u32,
    ) -> Result<(), Violation> {
        call.out(pLevelArray)?;
        call.within(level.into(), 0..=63)
    }

    fn cuArrayGetSparseProperties(
        call: &Call,
        sparseProperties: *mut CUDA_ARRAY_SPARSE_PROPERTIES,
        array: CUarray,
    ) -> Result<(), Violation> {
        call.out(sparseProperties)
    }

    fn cuMipmappedArrayGetSparseProperties(
        call: &Call,
        sparseProperties: *mut CUDA_ARRAY_SPARSE_PROPERTIES,
        mipmap: CUmipmappedArray,
    ) -> Result<(), Violation> {
        call.out(sparseProperties)
    }

    fn cuArrayGetMemoryRequirements(
        call: &Call,
        memoryRequirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS,
        array: CUarray,
        device: CUdevice,
    ) -> Result<(), Violation> {
        call.out(memoryRequirements)?;
        call.one_of(device, &[0])
    }

    fn cuMipmappedArrayGetMemoryRequirements(
        call: &Call,
        memoryRequirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS,
        mipmap: CUmipmappedArray,
        device: CUdevice,
    ) -> Result<(), Violation> {
        call.out(memoryRequirements)?;
        call.one_of(device, &[0])
    }

    fn cuMemMapArrayAsync(
        call: &Call,
        mapInfoList: *mut CUarrayMapInfo,
        count: u32,
        hStream: CUstream,
    ) -> Result<(), Violation> {
        let list = call.list(mapInfoList.cast_const(), count.into())?;
        list.iter().try_for_each(|info| call.array_map(info))
    }

    fn cuTexObjectCreate(
        call: &Call,
        pTexObject: *mut CUtexObject,
        pResDesc: *const CUDA_RESOURCE_DESC,
        pTexDesc: *const CUDA_TEXTURE_DESC,
        pResViewDesc: *const CUDA_RESOURCE_VIEW_DESC,
    ) -> Result<(), Violation> {
        call.out(pTexObject)?;
        call.resource(&call.read(pResDesc)?)?;
        call.read(pTexDesc)?;
        if pResViewDesc.is_null() { Ok(()) } else { call.read(pResViewDesc).map(drop) }
    }

    fn cuSurfObjectCreate(
        call: &Call,
        pSurfObject: *mut CUsurfObject,
        pResDesc: *const CUDA_RESOURCE_DESC,
    ) -> Result<(), Violation> {
        call.out(pSurfObject)?;
        call.resource(&call.read(pResDesc)?)
    }

    fn cuModuleGetSurfRef(
        call: &Call,
        pSurfRef: *mut CUsurfref,
        hmod: CUmodule,
        name: *const c_char,
    ) -> Result<(), Violation> {
        call.live(hmod)?;
        call.out(pSurfRef)?;
        call.text(name)
    }

    /// One of a module ends with the module only.
    fn cuTexRefDestroy(call: &Call, hTexRef: CUtexref) -> Result<(), Violation> {
        if objects::is_of_module(hTexRef) {
            return Err(format!("{hTexRef:?} is a variable of a module"));
        }
        Ok(())
    }

    fn cuTexRefGetArray(call: &Call, phArray: *mut CUarray, hTexRef: CUtexref) -> Result<(), Violation> {
        call.out(phArray)
    }

    fn cuTexRefGetMipmappedArray(
        call: &Call,
        phMipmappedArray: *mut CUmipmappedArray,
        hTexRef: CUtexref,
    ) -> Result<(), Violation> {
        call.out(phMipmappedArray)
    }

    fn cuTexRefGetBorderColor(
        call: &Call,
        pBorderColor: *mut f32,
        hTexRef: CUtexref,
    ) -> Result<(), Violation> {
        call.out_list(pBorderColor, 4)
    }

    fn cuTexRefSetAddress2D_v3(
        call: &Call,
        hTexRef: CUtexref,
        desc: *const CUDA_ARRAY_DESCRIPTOR,
        dptr: CUdeviceptr,
        Pitch: usize,
    ) -> Result<(), Violation> {
        let it = call.read(desc)?;
        let channel = it.Format.channel_bytes().ok_or_else(|| format!("format {:?}", it.Format))?;
        let row = product(&[it.Width as u64, channel, it.NumChannels.into()]);
        call.device(dptr, rows(it.Height as u64, row, Pitch as u64))
    }

    fn cuSurfRefGetArray(call: &Call, phArray: *mut CUarray, hSurfRef: CUsurfref) -> Result<(), Violation> {
        call.out(phArray)
    }

    // Launches.

    fn cuLaunchKernel(
        call: &Call,
        f: CUfunction,
        gridDimX: u32,
        gridDimY: u32,
        gridDimZ: u32,
        blockDimX: u32,
        blockDimY: u32,
        blockDimZ: u32,
        sharedMemBytes: u32,
        hStream: CUstream,
        kernelParams: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Result<(), Violation> {
        call.shape([gridDimX, gridDimY, gridDimZ], [blockDimX, blockDimY, blockDimZ])?;
        call.parameters(f, kernelParams, extra)
    }

    fn cuLaunchKernelEx(
        call: &Call,
        config: *const CUlaunchConfig,
        f: CUfunction,
        kernelParams: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Result<(), Violation> {
        call.config(&call.read(config)?)?;
        call.parameters(f, kernelParams, extra)
    }

    fn cuLaunchHostFunc(
        call: &Call,
        hStream: CUstream,
        func: CUhostFn,
        userData: *mut c_void,
    ) -> Result<(), Violation> {
        call.callback(func, userData)
    }

    fn cuStreamAddCallback(
        call: &Call,
        hStream: CUstream,
        callback: CUstreamCallback,
        userData: *mut c_void,
        flags: u32,
    ) -> Result<(), Violation> {
        if callback.is_none() || userData.is_null() || flags != 0 {
            return Err("no function to call".into());
        }
        Ok(())
    }

    fn cuOccupancyMaxActiveClusters(
        call: &Call,
        numClusters: *mut i32,
        func: CUfunction,
        config: *const CUlaunchConfig,
    ) -> Result<(), Violation> {
        call.out(numClusters)?;
        call.config(&call.read(config)?)
    }

    fn cuOccupancyMaxPotentialClusterSize(
        call: &Call,
        clusterSize: *mut i32,
        func: CUfunction,
        config: *const CUlaunchConfig,
    ) -> Result<(), Violation> {
        call.out(clusterSize)?;
        call.config(&call.read(config)?)
    }

    // Graphs.

    fn cuGraphInstantiateWithFlags(
        call: &Call,
        phGraphExec: *mut CUgraphExec,
        hGraph: CUgraph,
        flags: u64,
    ) -> Result<(), Violation> {
        call.bits(flags, 15)
    }

    fn cuGraphAddEmptyNode(
        call: &Call,
        phGraphNode: *mut CUgraphNode,
        hGraph: CUgraph,
        dependencies: *const CUgraphNode,
        numDependencies: usize,
    ) -> Result<(), Violation> {
        call.out(phGraphNode)?;
        call.nodes(dependencies, numDependencies)?;
        Ok(())
    }

    fn cuGraphConditionalHandleCreate(
        call: &Call,
        pHandle_out: *mut u64,
        hGraph: CUgraph,
        ctx: CUcontext,
        defaultLaunchValue: u32,
        flags: u32,
    ) -> Result<(), Violation> {
        call.out(pHandle_out)?;
        call.bits(flags.into(), 1)
    }

    fn cuGraphAddNode_v2(
        call: &Call,
        phGraphNode: *mut CUgraphNode,
        hGraph: CUgraph,
        dependencies: *const CUgraphNode,
        dependencyData: *const CUgraphEdgeData,
        numDependencies: usize,
        nodeParams: *mut CUgraphNodeParams,
    ) -> Result<(), Violation> {
        call.out(phGraphNode)?;
        call.nodes(dependencies, numDependencies)?;
        let params = call.read(nodeParams)?;
        call.one_of(params.kind, &[CUgraphNodeType::CONDITIONAL])?;
        call.live(CUcontext(params.words[3] as usize))?;
        match (params.words[1] as u32, params.words[1] >> 32) {
            (0, 1 | 2) | (1, 1) | (2, 1..=4096) => Ok(()),
            (kind, bodies) => Err(format!("a conditional node of kind {kind} with {bodies} bodies")),
        }
    }

    fn cuGraphAddChildGraphNode(
        call: &Call,
        phGraphNode: *mut CUgraphNode,
        hGraph: CUgraph,
        dependencies: *const CUgraphNode,
        numDependencies: usize,
        childGraph: CUgraph,
    ) -> Result<(), Violation> {
        call.out(phGraphNode)?;
        call.nodes(dependencies, numDependencies)?;
        Ok(())
    }

    fn cuGraphAddEventRecordNode(
        call: &Call,
        phGraphNode: *mut CUgraphNode,
        hGraph: CUgraph,
        dependencies: *const CUgraphNode,
        numDependencies: usize,
        event: CUevent,
    ) -> Result<(), Violation> {
        call.out(phGraphNode)?;
        call.nodes(dependencies, numDependencies)?;
        Ok(())
    }

    fn cuGraphAddEventWaitNode(
        call: &Call,
        phGraphNode: *mut CUgraphNode,
        hGraph: CUgraph,
        dependencies: *const CUgraphNode,
        numDependencies: usize,
        event: CUevent,
    ) -> Result<(), Violation> {
        call.out(phGraphNode)?;
        call.nodes(dependencies, numDependencies)?;
        Ok(())
    }

    fn cuGraphAddKernelNode_v2(
        call: &Call,
        phGraphNode: *mut CUgraphNode,
        hGraph: CUgraph,
        dependencies: *const CUgraphNode,
        numDependencies: usize,
        nodeParams: *const CUDA_KERNEL_NODE_PARAMS,
    ) -> Result<(), Violation> {
        call.out(phGraphNode)?;
        call.nodes(dependencies, numDependencies)?;
        call.kernel(&call.read(nodeParams)?)
    }

    fn cuGraphAddMemcpyNode(
        call: &Call,
        phGraphNode: *mut CUgraphNode,
        hGraph: CUgraph,
        dependencies: *const CUgraphNode,
        numDependencies: usize,
        copyParams: *const CUDA_MEMCPY3D,
        ctx: CUcontext,
    ) -> Result<(), Violation> {
        call.out(phGraphNode)?;
        call.nodes(dependencies, numDependencies)?;
        call.copy(&call.read(copyParams)?)
    }

    fn cuGraphAddMemsetNode(
        call: &Call,
        phGraphNode: *mut CUgraphNode,
        hGraph: CUgraph,
        dependencies: *const CUgraphNode,
        numDependencies: usize,
        memsetParams: *const CUDA_MEMSET_NODE_PARAMS,
        ctx: CUcontext,
    ) -> Result<(), Violation> {
        call.out(phGraphNode)?;
        call.nodes(dependencies, numDependencies)?;
        call.fill(&call.read(memsetParams)?)
    }

    fn cuGraphAddHostNode(
        call: &Call,
        phGraphNode: *mut CUgraphNode,
        hGraph: CUgraph,
        dependencies: *const CUgraphNode,
        numDependencies: usize,
        nodeParams: *const CUDA_HOST_NODE_PARAMS,
    ) -> Result<(), Violation> {
        call.out(phGraphNode)?;
        call.nodes(dependencies, numDependencies)?;
        call.host_node(&call.read(nodeParams)?)
    }

    fn cuGraphAddBatchMemOpNode(
        call: &Call,
        phGraphNode: *mut CUgraphNode,
        hGraph: CUgraph,
        dependencies: *const CUgraphNode,
        numDependencies: usize,
        nodeParams: *const c_void,
    ) -> Result<(), Violation> {
        call.out(phGraphNode)?;
        call.nodes(dependencies, numDependencies)?;
        call.memory_ops(nodeParams)
    }

    fn cuGraphKernelNodeSetParams_v2(
        call: &Call,
        hNode: CUgraphNode,
        nodeParams: *const CUDA_KERNEL_NODE_PARAMS,
    ) -> Result<(), Violation> {
        call.kernel(&call.read(nodeParams)?)
    }

    fn cuGraphMemcpyNodeSetParams(
        call: &Call,
        hNode: CUgraphNode,
        nodeParams: *const CUDA_MEMCPY3D,
    ) -> Result<(), Violation> {
        call.copy(&call.read(nodeParams)?)
    }

    fn cuGraphMemsetNodeSetParams(
        call: &Call,
        hNode: CUgraphNode,
        nodeParams: *const CUDA_MEMSET_NODE_PARAMS,
    ) -> Result<(), Violation> {
        call.fill(&call.read(nodeParams)?)
    }

    fn cuGraphHostNodeSetParams(
        call: &Call,
        hNode: CUgraphNode,
        nodeParams: *const CUDA_HOST_NODE_PARAMS,
    ) -> Result<(), Violation> {
        call.host_node(&call.read(nodeParams)?)
    }

    fn cuGraphBatchMemOpNodeSetParams(
        call: &Call,
        hNode: CUgraphNode,
        nodeParams: *const c_void,
    ) -> Result<(), Violation> {
        call.memory_ops(nodeParams)
    }

    fn cuGraphExecKernelNodeSetParams_v2(
        call: &Call,
        hGraphExec: CUgraphExec,
        hNode: CUgraphNode,
        nodeParams: *const CUDA_KERNEL_NODE_PARAMS,
    ) -> Result<(), Violation> {
        call.kernel(&call.read(nodeParams)?)
    }

    fn cuGraphExecMemcpyNodeSetParams(
        call: &Call,
        hGraphExec: CUgraphExec,
        hNode: CUgraphNode,
        copyParams: *const CUDA_MEMCPY3D,
        ctx: CUcontext,
    ) -> Result<(), Violation> {
        call.copy(&call.read(copyParams)?)
    }

    fn cuGraphExecMemsetNodeSetParams(
        call: &Call,
        hGraphExec: CUgraphExec,
        hNode: CUgraphNode,
        memsetParams: *const CUDA_MEMSET_NODE_PARAMS,
        ctx: CUcontext,
    ) -> Result<(), Violation> {
        call.fill(&call.read(memsetParams)?)
    }

    fn cuGraphExecHostNodeSetParams(
        call: &Call,
        hGraphExec: CUgraphExec,
        hNode: CUgraphNode,
        nodeParams: *const CUDA_HOST_NODE_PARAMS,
    ) -> Result<(), Violation> {
        call.host_node(&call.read(nodeParams)?)
    }

    fn cuGraphExecBatchMemOpNodeSetParams(
        call: &Call,
        hGraphExec: CUgraphExec,
        hNode: CUgraphNode,
        nodeParams: *const c_void,
    ) -> Result<(), Violation> {
        call.memory_ops(nodeParams)
    }

    fn cuGraphBatchMemOpNodeGetParams(
        call: &Call,
        hNode: CUgraphNode,
        nodeParams_out: *mut c_void,
    ) -> Result<(), Violation> {
        call.out(nodeParams_out.cast::<BatchParams>())
    }

    fn cuGraphKernelNodeGetParams_v2(
        call: &Call,
        hNode: CUgraphNode,
        nodeParams: *mut CUDA_KERNEL_NODE_PARAMS,
    ) -> Result<(), Violation> {
        call.out(nodeParams)
    }

    fn cuGraphMemcpyNodeGetParams(
        call: &Call,
        hNode: CUgraphNode,
        nodeParams: *mut CUDA_MEMCPY3D,
    ) -> Result<(), Violation> {
        call.out(nodeParams)
    }

    fn cuGraphMemsetNodeGetParams(
        call: &Call,
        hNode: CUgraphNode,
        nodeParams: *mut CUDA_MEMSET_NODE_PARAMS,
    ) -> Result<(), Violation> {
        call.out(nodeParams)
    }

    fn cuGraphHostNodeGetParams(
        call: &Call,
        hNode: CUgraphNode,
        nodeParams: *mut CUDA_HOST_NODE_PARAMS,
    ) -> Result<(), Violation> {
        call.out(nodeParams)
    }

    fn cuGraphEventRecordNodeGetEvent(
        call: &Call,
        hNode: CUgraphNode,
        event_out: *mut CUevent,
    ) -> Result<(), Violation> {
        call.out(event_out)
    }

    fn cuGraphEventWaitNodeGetEvent(
        call: &Call,
        hNode: CUgraphNode,
        event_out: *mut CUevent,
    ) -> Result<(), Violation> {
        call.out(event_out)
    }

    fn cuGraphChildGraphNodeGetGraph(
        call: &Call,
        hNode: CUgraphNode,
        phGraph: *mut CUgraph,
    ) -> Result<(), Violation> {
        call.out(phGraph)
    }

    fn cuGraphNodeFindInClone(
        call: &Call,
        phNode: *mut CUgraphNode,
        hOriginalNode: CUgraphNode,
        hClonedGraph: CUgraph,
    ) -> Result<(), Violation> {
        call.out(phNode)
    }

    fn cuGraphNodeGetContainingGraph(
        call: &Call,
        hNode: CUgraphNode,
        phGraph: *mut CUgraph,
    ) -> Result<(), Violation> {
        call.out(phGraph)
    }

    fn cuGraphExecUpdate_v2(
        call: &Call,
        hGraphExec: CUgraphExec,
        hGraph: CUgraph,
        resultInfo: *mut CUgraphExecUpdateResultInfo,
    ) -> Result<(), Violation> {
        call.out(resultInfo)
    }

    fn cuGraphKernelNodeGetAttribute(
        call: &Call,
        hNode: CUgraphNode,
        attr: u32,
        value_out: *mut c_void,
    ) -> Result<(), Violation> {
        call.within(attr.into(), 0..=ATTRIBUTE_LAST)?;
        call.out(value_out.cast::<CUlaunchAttributeValue>())
    }

    fn cuGraphKernelNodeSetAttribute(
        call: &Call,
        hNode: CUgraphNode,
        attr: u32,
        value: *const c_void,
    ) -> Result<(), Violation> {
        call.attribute(attr, &call.read(value.cast::<CUlaunchAttributeValue>())?)
    }

    fn cuGraphGetNodes(
        call: &Call,
        hGraph: CUgraph,
        nodes: *mut CUgraphNode,
        numNodes: *mut usize,
    ) -> Result<(), Violation> {
        let count = call.read(numNodes.cast_const())?;
        call.room(nodes, count)?;
        Ok(())
    }

    fn cuGraphGetRootNodes(
        call: &Call,
        hGraph: CUgraph,
        rootNodes: *mut CUgraphNode,
        numRootNodes: *mut usize,
    ) -> Result<(), Violation> {
        let count = call.read(numRootNodes.cast_const())?;
        call.room(rootNodes, count)?;
        Ok(())
    }

    fn cuGraphGetEdges(
        call: &Call,
        hGraph: CUgraph,
        from_: *mut CUgraphNode,
        to_: *mut CUgraphNode,
        numEdges: *mut usize,
    ) -> Result<(), Violation> {
        let count = call.read(numEdges.cast_const())?;
        call.room(from_, count)?;
        call.room(to_, count)?;
        Ok(())
    }

    fn cuGraphGetEdges_v2(
        call: &Call,
        hGraph: CUgraph,
        from_: *mut CUgraphNode,
        to_: *mut CUgraphNode,
        edgeData: *mut CUgraphEdgeData,
        numEdges: *mut usize,
    ) -> Result<(), Violation> {
        let count = call.read(numEdges.cast_const())?;
        call.room(from_, count)?;
        call.room(to_, count)?;
        call.room(edgeData, count)?;
        Ok(())
    }

    fn cuGraphNodeGetDependencies(
        call: &Call,
        hNode: CUgraphNode,
        dependencies: *mut CUgraphNode,
        numDependencies: *mut usize,
    ) -> Result<(), Violation> {
        let count = call.read(numDependencies.cast_const())?;
        call.room(dependencies, count)?;
        Ok(())
    }

    fn cuGraphNodeGetDependencies_v2(
        call: &Call,
        hNode: CUgraphNode,
        dependencies: *mut CUgraphNode,
        edgeData: *mut CUgraphEdgeData,
        numDependencies: *mut usize,
    ) -> Result<(), Violation> {
        let count = call.read(numDependencies.cast_const())?;
        call.room(dependencies, count)?;
        call.room(edgeData, count)?;
        Ok(())
    }

    fn cuGraphNodeGetDependentNodes(
        call: &Call,
        hNode: CUgraphNode,
        dependentNodes: *mut CUgraphNode,
        numDependentNodes: *mut usize,
    ) -> Result<(), Violation> {
        let count = call.read(numDependentNodes.cast_const())?;
        call.room(dependentNodes, count)?;
        Ok(())
    }

    fn cuGraphNodeGetDependentNodes_v2(
        call: &Call,
        hNode: CUgraphNode,
        dependentNodes: *mut CUgraphNode,
        edgeData: *mut CUgraphEdgeData,
        numDependentNodes: *mut usize,
    ) -> Result<(), Violation> {
        let count = call.read(numDependentNodes.cast_const())?;
        call.room(dependentNodes, count)?;
        call.room(edgeData, count)?;
        Ok(())
    }

    fn cuUserObjectRetain(call: &Call, object: CUuserObject, count: u32) -> Result<(), Violation> {
        objects::retain(object, count);
        Ok(())
    }

    fn cuUserObjectRelease(call: &Call, object: CUuserObject, count: u32) -> Result<(), Violation> {
        objects::release(object, count)
    }

    fn cuGraphRetainUserObject(
        call: &Call,
        graph: CUgraph,
        object: CUuserObject,
        count: u32,
        flags: u32,
    ) -> Result<(), Violation> {
        objects::graph_retains(graph, object, count, flags)
    }

    fn cuGraphReleaseUserObject(
        call: &Call,
        graph: CUgraph,
        object: CUuserObject,
        count: u32,
    ) -> Result<(), Violation> {
        objects::graph_releases(graph, object, count)
    }
}
