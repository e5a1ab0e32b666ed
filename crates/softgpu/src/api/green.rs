//! Green contexts (CUDA Driver API: Green Contexts).

use std::sync::Arc;

use sluice_cuda::{
    CU_DEV_SM_RESOURCE_GROUP_PARAMS, CU_STREAM_NON_BLOCKING, CUcontext, CUdevResource, CUdevResourceDesc,
    CUdevResourceType, CUdevice, CUevent, CUgreenCtx, CUresult, CUstream,
};

use super::event::{record_context, wait_in_context};
use crate::base::status::{Result, Status, call, put, put_optional, require};
use crate::context::GREENS;
use crate::context::{Context, named};
use crate::device::multiprocessors::{DESCRIPTORS, Resource, Wish};
use crate::device::{device, driver};
use crate::submit::{self, target_unchecked};

/// Resources that one call may pass.
const RESOURCES_MAX: u32 = 1024;

fn green(handle: CUgreenCtx) -> Result<Arc<Context>> {
    driver()?;
    GREENS.get(handle.0).ok_or(Status::INVALID_CONTEXT)
}

/// Multiprocessors are all that can be had; there are no queues in hardware to be configured.
fn check_kind(kind: CUdevResourceType) -> Result<()> {
    if kind == CUdevResourceType::SM { Ok(()) } else { Err(Status::INVALID_RESOURCE_TYPE) }
}

/// # Safety
/// `resource` is null or points to one, as the CUDA Driver API demands.
unsafe fn read(resource: *const CUdevResource) -> Result<Resource> {
    require(resource)?;
    // SAFETY: not null, and readable by this function's contract.
    Resource::from_c(&unsafe { resource.read_unaligned() })
}

/// # Safety
/// `result` is null or has room for as many as there are groups; `remainder` is null or has room
/// for one.
unsafe fn write(
    (groups, left): (Vec<Resource>, Option<Resource>),
    result: *mut CUdevResource,
    remainder: *mut CUdevResource,
) -> Result<()> {
    if !result.is_null() {
        for (index, group) in groups.into_iter().enumerate() {
            // SAFETY: by this function's contract.
            unsafe { put(result.add(index), group.to_c())? };
        }
    }
    // SAFETY: by this function's contract.
    unsafe { put_optional(remainder, left.map(Resource::to_c).unwrap_or_default()) };
    Ok(())
}

pub(crate) unsafe extern "C" fn cuDeviceGetDevResource(
    dev: CUdevice,
    place: *mut CUdevResource,
    kind: CUdevResourceType,
) -> CUresult {
    call(|| {
        check_kind(kind)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, Resource::of(device(dev)?)?.to_c()) }
    })
}

pub(crate) unsafe extern "C" fn cuCtxGetDevResource(
    ctx: CUcontext,
    place: *mut CUdevResource,
    kind: CUdevResourceType,
) -> CUresult {
    call(|| {
        check_kind(kind)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, named(ctx)?.resource()?.to_c()) }
    })
}

pub(crate) unsafe extern "C" fn cuGreenCtxGetDevResource(
    ctx: CUgreenCtx,
    place: *mut CUdevResource,
    kind: CUdevResourceType,
) -> CUresult {
    call(|| {
        check_kind(kind)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, green(ctx)?.resource()?.to_c()) }
    })
}

pub(crate) unsafe extern "C" fn cuStreamGetDevResource(
    s: CUstream,
    place: *mut CUdevResource,
    kind: CUdevResourceType,
) -> CUresult {
    call(|| {
        check_kind(kind)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, target_unchecked(s)?.context.resource()?.to_c()) }
    })
}

pub(crate) unsafe extern "C" fn cuDevSmResourceSplitByCount(
    result: *mut CUdevResource,
    count: *mut u32,
    input: *const CUdevResource,
    remainder: *mut CUdevResource,
    flags: u32,
    least: u32,
) -> CUresult {
    call(|| {
        require(count)?;
        // SAFETY: an input and output argument by contract.
        let wanted = (!result.is_null()).then(|| unsafe { count.read_unaligned() });
        // SAFETY: an input argument by contract.
        let parts = unsafe { read(input)? }.split_by_count(wanted, flags, least)?;
        // SAFETY: output arguments by contract, `result` with as many places as `count` said.
        unsafe {
            put(count, parts.0.len() as u32)?;
            write(parts, result, remainder)
        }
    })
}

pub(crate) unsafe extern "C" fn cuDevSmResourceSplit(
    result: *mut CUdevResource,
    count: u32,
    input: *const CUdevResource,
    remainder: *mut CUdevResource,
    flags: u32,
    params: *mut CU_DEV_SM_RESOURCE_GROUP_PARAMS,
) -> CUresult {
    call(|| {
        require(params)?;
        if flags != 0 || !(1..=RESOURCES_MAX).contains(&count) {
            return Err(Status::INVALID_VALUE);
        }
        let mut wishes = Vec::with_capacity(count as usize);
        for index in 0..count as usize {
            // SAFETY: the program passes `count` of them.
            let params = unsafe { params.add(index).read_unaligned() };
            let (count, coscheduled, flags) = (params.smCount, params.coscheduledSmCount, params.flags);
            wishes.push(Wish { count, coscheduled, flags });
        }
        // SAFETY: an input argument by contract.
        let parts = unsafe { read(input)? }.split(&mut wishes, result.is_null())?;
        for (index, wish) in wishes.iter().enumerate() {
            // SAFETY: as above, and the program's to be written.
            unsafe { (&raw mut (*params.add(index)).smCount).write_unaligned(wish.count) };
        }
        // SAFETY: output arguments by contract, `result` with `count` places.
        unsafe { write(parts, result, remainder) }
    })
}

pub(crate) unsafe extern "C" fn cuDevResourceGenerateDesc(
    place: *mut CUdevResourceDesc,
    resources: *mut CUdevResource,
    count: u32,
) -> CUresult {
    call(|| {
        require(place)?;
        if count > RESOURCES_MAX {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the program passes `count` of them.
        let parts = (0..count as usize).map(|index| unsafe { read(resources.add(index)) });
        let joined = Resource::join(&parts.collect::<Result<Vec<_>>>()?)?;
        let handle = DESCRIPTORS.mint();
        DESCRIPTORS.insert_at(handle, Arc::new(joined));
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUdevResourceDesc(handle)) }
    })
}

pub(crate) unsafe extern "C" fn cuGreenCtxCreate(
    place: *mut CUgreenCtx,
    desc: CUdevResourceDesc,
    dev: CUdevice,
    flags: u32,
) -> CUresult {
    /// `CU_GREEN_CTX_DEFAULT_STREAM`. Every context here has one, whether or not it is asked for.
    const DEFAULT_STREAM: u32 = 1;
    call(|| {
        require(place)?;
        let device = device(dev)?;
        let resource = DESCRIPTORS.get(desc.0).ok_or(Status::INVALID_VALUE)?;
        if flags & !DEFAULT_STREAM != 0 || resource.device()?.ordinal != device.ordinal {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUgreenCtx(Context::create_green(device, *resource))) }
    })
}

pub(crate) unsafe extern "C" fn cuGreenCtxDestroy(ctx: CUgreenCtx) -> CUresult {
    call(|| green(ctx)?.destroy_green())
}

pub(crate) unsafe extern "C" fn cuCtxFromGreenCtx(place: *mut CUcontext, ctx: CUgreenCtx) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(place, CUcontext(green(ctx)?.handle)) })
}

pub(crate) unsafe extern "C" fn cuGreenCtxGetId(ctx: CUgreenCtx, place: *mut u64) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(place, green(ctx)?.id) })
}

pub(crate) unsafe extern "C" fn cuGreenCtxStreamCreate(
    place: *mut CUstream,
    ctx: CUgreenCtx,
    flags: u32,
    priority: i32,
) -> CUresult {
    call(|| {
        require(place)?;
        let context = green(ctx)?;
        if flags != CU_STREAM_NON_BLOCKING {
            return Err(Status::INVALID_VALUE);
        }
        context.check()?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUstream(submit::create(&context, flags, priority)?.handle)) }
    })
}

pub(crate) unsafe extern "C" fn cuGreenCtxRecordEvent(ctx: CUgreenCtx, event: CUevent) -> CUresult {
    call(|| record_context(green(ctx)?, event))
}

pub(crate) unsafe extern "C" fn cuGreenCtxWaitEvent(ctx: CUgreenCtx, event: CUevent) -> CUresult {
    call(|| wait_in_context(&*green(ctx)?, event))
}
