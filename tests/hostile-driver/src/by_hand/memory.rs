//! Memory of the host and of devices, and copies.

#![allow(non_snake_case)] // CUDA's names
#![allow(unused_variables)] // prototypes are those of the list

use std::ffi::c_void;

use sluice_cuda::*;
use sluice_wire::product;

use super::ByHand;
use crate::call::{Call, Violation};
use crate::generated::{Copies, HostMemoryAndAddresses, Memsets, OtherProcessesAndDevices, VirtualMemory};
use crate::structures::*;

impl HostMemoryAndAddresses for ByHand {
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
}

impl Copies for ByHand {
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
}

impl Memsets for ByHand {
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
}

impl VirtualMemory for ByHand {
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

    fn cuMemMapArrayAsync(
        call: &Call,
        mapInfoList: *mut CUarrayMapInfo,
        count: u32,
        hStream: CUstream,
    ) -> Result<(), Violation> {
        let list = call.list(mapInfoList.cast_const(), count.into())?;
        list.iter().try_for_each(|info| call.array_map(info))
    }
}

impl OtherProcessesAndDevices for ByHand {
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
}
