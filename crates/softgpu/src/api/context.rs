//! Contexts (CUDA Driver API: Primary Context Management, Context Management, Peer Context Memory
//! Access).

use sluice_cuda::{
    CU_CTX_FLAGS_MASK, CU_CTX_MAP_HOST, CU_CTX_SCHED_MASK, CUcontext, CUctxCreateParams, CUdevice,
    CUexecAffinityParam, CUfunc_cache, CUlimit, CUresult, CUsharedconfig,
};

use crate::base::status::{Result, Status, call, put, put_optional};
use crate::context::stream::PRIORITIES;
use crate::context::{self, Context, current, current_or_none, current_unchecked, named};
use crate::device::pool;
use crate::device::{device, driver};
use crate::graph::capture;
use crate::lifetime;
use crate::work::engine;

use std::sync::atomic::Ordering;

/// The bits of context flags that a program may set.
fn check_flags(flags: u32) -> Result<()> {
    let one_policy = matches!(flags & CU_CTX_SCHED_MASK, 0 | 1 | 2 | 4);
    if flags & !CU_CTX_FLAGS_MASK == 0 && one_policy { Ok(()) } else { Err(Status::INVALID_VALUE) }
}

pub(crate) unsafe extern "C" fn cuDevicePrimaryCtxRetain(place: *mut CUcontext, dev: CUdevice) -> CUresult {
    call(|| {
        crate::base::status::require(place)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUcontext(context::retain_primary(device(dev)?).handle)) }
    })
}

pub(crate) unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) -> CUresult {
    call(|| lifetime::release_primary(device(dev)?))
}

pub(crate) unsafe extern "C" fn cuDevicePrimaryCtxReset_v2(dev: CUdevice) -> CUresult {
    call(|| {
        lifetime::reset_primary(device(dev)?);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    dev: CUdevice,
    flags: *mut u32,
    active: *mut i32,
) -> CUresult {
    call(|| {
        let primary = context::primary(device(dev)?);
        let in_use = primary.context.as_ref().map(|context| context.flags.load(Ordering::Relaxed));
        // SAFETY: output arguments by contract.
        unsafe { put_optional(flags, in_use.unwrap_or(primary.flags)) };
        // SAFETY: as above.
        unsafe { put_optional(active, i32::from(in_use.is_some())) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: u32) -> CUresult {
    call(|| {
        check_flags(flags)?;
        let mut primary = context::primary(device(dev)?);
        primary.flags = flags;
        if let Some(context) = &primary.context {
            context.flags.store(flags, Ordering::Relaxed);
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuCtxCreate_v2(place: *mut CUcontext, flags: u32, dev: CUdevice) -> CUresult {
    call(|| {
        crate::base::status::require(place)?;
        check_flags(flags)?;
        // Mapped host memory is always possible, as CUDA's documentation says it is since unified
        // addressing.
        let context = Context::create(device(dev)?, flags | CU_CTX_MAP_HOST);
        let handle = CUcontext(context.handle);
        context::push(context);
        // SAFETY: an output argument by contract.
        unsafe { put(place, handle) }
    })
}

pub(crate) unsafe extern "C" fn cuCtxCreate_v3(
    place: *mut CUcontext,
    _affinity: *mut CUexecAffinityParam,
    count: i32,
    flags: u32,
    dev: CUdevice,
) -> CUresult {
    if count != 0 {
        return Status::UNSUPPORTED_EXEC_AFFINITY;
    }
    // SAFETY: passed on.
    unsafe { cuCtxCreate_v2(place, flags, dev) }
}

pub(crate) unsafe extern "C" fn cuCtxCreate_v4(
    place: *mut CUcontext,
    params: *mut CUctxCreateParams,
    flags: u32,
    dev: CUdevice,
) -> CUresult {
    if !params.is_null() {
        // SAFETY: an input structure by contract.
        let params = unsafe { params.read_unaligned() };
        if params.numExecAffinityParams != 0 {
            return Status::UNSUPPORTED_EXEC_AFFINITY;
        }
        if !params.cigParams.is_null() {
            return Status::NOT_SUPPORTED;
        }
    }
    // SAFETY: passed on.
    unsafe { cuCtxCreate_v2(place, flags, dev) }
}

pub(crate) unsafe extern "C" fn cuCtxDestroy_v2(ctx: CUcontext) -> CUresult {
    call(|| {
        let destroyed = context::context(ctx)?;
        if destroyed.is_primary || destroyed.green.is_some() {
            return Err(Status::INVALID_CONTEXT);
        }
        if current_or_none().ok().flatten().is_some_and(|current| current.handle == destroyed.handle) {
            context::pop()?;
        }
        destroyed.destroy();
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuCtxPushCurrent_v2(ctx: CUcontext) -> CUresult {
    call(|| {
        context::push(context::context_to_use(ctx)?);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuCtxPopCurrent_v2(place: *mut CUcontext) -> CUresult {
    call(|| {
        driver()?;
        let popped = context::pop()?;
        // SAFETY: an output argument by contract.
        unsafe { put_optional(place, CUcontext(popped)) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuCtxSetCurrent(ctx: CUcontext) -> CUresult {
    call(|| {
        driver()?;
        let context = if ctx.is_null() { None } else { Some(context::context_to_use(ctx)?) };
        context::set_current(context);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuCtxGetCurrent(place: *mut CUcontext) -> CUresult {
    call(|| {
        let current = current_or_none()?.map_or(CUcontext::NULL, |context| CUcontext(context.handle));
        // SAFETY: an output argument by contract.
        unsafe { put(place, current) }
    })
}

pub(crate) unsafe extern "C" fn cuCtxGetDevice(place: *mut CUdevice) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(place, current_unchecked()?.device.ordinal as CUdevice) })
}

pub(crate) unsafe extern "C" fn cuCtxGetDevice_v2(place: *mut CUdevice, ctx: CUcontext) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(place, named(ctx)?.device.ordinal as CUdevice) })
}

pub(crate) unsafe extern "C" fn cuCtxGetFlags(place: *mut u32) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(place, current_unchecked()?.flags.load(Ordering::Relaxed)) })
}

pub(crate) unsafe extern "C" fn cuCtxSetFlags(flags: u32) -> CUresult {
    call(|| {
        check_flags(flags)?;
        current_unchecked()?.flags.store(flags, Ordering::Relaxed);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuCtxGetId(ctx: CUcontext, place: *mut u64) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(place, named(ctx)?.id) })
}

pub(crate) unsafe extern "C" fn cuCtxGetApiVersion(ctx: CUcontext, place: *mut u32) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(place, named(ctx)?.api_version) })
}

pub(crate) unsafe extern "C" fn cuCtxGetLimit(place: *mut usize, limit: CUlimit) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(place, current_unchecked()?.limit(limit)? as usize) })
}

pub(crate) unsafe extern "C" fn cuCtxSetLimit(limit: CUlimit, value: usize) -> CUresult {
    call(|| current()?.set_limit(limit, value as u64))
}

pub(crate) unsafe extern "C" fn cuCtxGetCacheConfig(place: *mut CUfunc_cache) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(place, CUfunc_cache(current_unchecked()?.cache_config.load(Ordering::Relaxed))) })
}

pub(crate) unsafe extern "C" fn cuCtxSetCacheConfig(config: CUfunc_cache) -> CUresult {
    call(|| {
        if config > CUfunc_cache::EQUAL {
            return Err(Status::INVALID_VALUE);
        }
        // A preference between caches that this device does not have.
        current_unchecked()?.cache_config.store(config.0, Ordering::Relaxed);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuCtxGetSharedMemConfig(place: *mut CUsharedconfig) -> CUresult {
    call(|| {
        current_unchecked()?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUsharedconfig::FOUR_BYTE_BANK_SIZE) }
    })
}

/// Banks are four bytes wide on every device since compute capability 5.0.
pub(crate) unsafe extern "C" fn cuCtxSetSharedMemConfig(config: CUsharedconfig) -> CUresult {
    call(|| {
        current_unchecked()?;
        if config.name().is_some() { Ok(()) } else { Err(Status::INVALID_VALUE) }
    })
}

/// There is no cache whose lines could persist.
pub(crate) unsafe extern "C" fn cuCtxResetPersistingL2Cache() -> CUresult {
    call(|| current_unchecked().map(drop))
}

pub(crate) unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) -> CUresult {
    call(|| {
        current_unchecked()?;
        // SAFETY: output arguments by contract.
        unsafe { put_optional(least, PRIORITIES.0) };
        // SAFETY: as above.
        unsafe { put_optional(greatest, PRIORITIES.1) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuCtxSynchronize() -> CUresult {
    call(|| synchronize(&*current()?))
}

pub(crate) unsafe extern "C" fn cuCtxSynchronize_v2(ctx: CUcontext) -> CUresult {
    call(|| synchronize(&*named(ctx)?))
}

fn synchronize(context: &Context) -> Result<()> {
    context.check()?;
    // In every mode, and from every thread (CUDA Programming Guide, "Prohibited and Unhandled
    // Operations").
    if capture::interrupt(context.handle) {
        return Err(Status::STREAM_CAPTURE_UNSUPPORTED);
    }
    engine::wait_context(context.handle);
    pool::waited();
    context.check()
}

/// Memory of all devices is reachable from all of them anyway; what is checked is that the peer
/// exists.
pub(crate) unsafe extern "C" fn cuCtxEnablePeerAccess(peer: CUcontext, flags: u32) -> CUresult {
    call(|| {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let (own, peer) = (current()?, context::context(peer)?);
        if own.device.ordinal == peer.device.ordinal { Err(Status::INVALID_DEVICE) } else { Ok(()) }
    })
}

pub(crate) unsafe extern "C" fn cuCtxDisablePeerAccess(peer: CUcontext) -> CUresult {
    call(|| {
        let (own, peer) = (current()?, context::context(peer)?);
        let same = own.device.ordinal == peer.device.ordinal;
        if same { Err(Status::PEER_ACCESS_NOT_ENABLED) } else { Ok(()) }
    })
}
