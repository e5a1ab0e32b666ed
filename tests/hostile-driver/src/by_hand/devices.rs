//! Devices, contexts and green contexts.

#![allow(non_snake_case)] // CUDA's names
#![allow(unused_variables)] // prototypes are those of the list

use std::ffi::c_char;

use sluice_cuda::*;

use super::ByHand;
use crate::call::{Call, Violation};
use crate::generated::{Contexts, Devices, ErrorsStartVersions, GreenContexts};
use crate::structures::*;

impl ErrorsStartVersions for ByHand {
    fn cuDriverGetVersion(call: &Call, driverVersion: *mut i32) -> Result<(), Violation> {
        call.out(driverVersion)
    }
}

impl Devices for ByHand {
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
}

impl Contexts for ByHand {
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
}

impl GreenContexts for ByHand {
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
}
