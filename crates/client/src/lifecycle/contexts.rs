//! The entry points about contexts, and the end of a context.

use std::sync::atomic::Ordering;

use sluice_cuda::*;
use sluice_wire::commands;

use crate::context::{
    self, Context, Primary, check_current, current, innermost, named, named_or_current, with_stack,
};
use crate::lifecycle::{green, init};
use crate::session;
use crate::session::issue::Issue;
use crate::stream::{capture, event};

/// Everything that belongs to a context goes with it; the device's memory follows in the order of
/// the session.
fn end(context: &Context) -> Result<(), CUresult> {
    if !context.alive.swap(false, Ordering::AcqRel) {
        return Ok(());
    }
    sluice_export_tables::context_destroyed(context.handle);
    session::get()?;
    if context.primary {
        green::primary_ended(context.device)?;
    }
    session::of(context.device)?.context_ended(context)
}

/// Gives up one reference to a primary context, which ends with the last one.
pub(super) fn release(primary: &Primary) -> Result<(), CUresult> {
    if primary.release()? { end(&primary.context) } else { Ok(()) }
}

fn checked_flags(flags: u32) -> Result<u32, CUresult> {
    let schedule = flags & CU_CTX_SCHED_MASK;
    let known = matches!(
        schedule,
        CU_CTX_SCHED_AUTO | CU_CTX_SCHED_SPIN | CU_CTX_SCHED_YIELD | CU_CTX_SCHED_BLOCKING_SYNC
    );
    if flags & !CU_CTX_FLAGS_MASK == 0 && known { Ok(flags) } else { Err(CUresult::INVALID_VALUE) }
}

fn create(pctx: *mut CUcontext, flags: u32, device: CUdevice) -> Result<(), CUresult> {
    session::device(device)?;
    let flags = checked_flags(flags)?;
    let context = Context::create(device, false, flags);
    let handle = context.handle;
    with_stack(|stack| stack.push(Some(context)))?;
    // SAFETY: the program passes a place for the context.
    unsafe { crate::abi::out::write(pctx, handle) }
}

fn primary(device: CUdevice) -> Result<&'static Primary, CUresult> {
    Ok(&session::device(device)?.primary)
}

// The entry points. CUDA Driver API, sections "Primary Context Management" and "Context
// Management".

pub(crate) unsafe fn cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) -> Result<(), CUresult> {
    let handle = primary(dev)?.retain();
    // SAFETY: the program passes a place for the context.
    unsafe { crate::abi::out::write(pctx, handle) }
}

pub(crate) unsafe fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) -> Result<(), CUresult> {
    release(primary(dev)?)
}

pub(crate) unsafe fn cuDevicePrimaryCtxReset_v2(dev: CUdevice) -> Result<(), CUresult> {
    let session = session::of(dev)?;
    if session.link.check().is_err() {
        return init::replace(session);
    }
    end(&primary(dev)?.context)
}

pub(crate) unsafe fn cuDevicePrimaryCtxGetState(
    dev: CUdevice,
    flags: *mut u32,
    active: *mut i32,
) -> Result<(), CUresult> {
    let context = &primary(dev)?.context;
    // SAFETY: the program passes two places.
    unsafe {
        crate::abi::out::write(flags, context.flags.load(Ordering::Relaxed))?;
        crate::abi::out::write(active, i32::from(context.is_alive()))
    }
}

/// A primary context always maps host memory: the flag for that is not to be set.
pub(crate) unsafe fn cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: u32) -> Result<(), CUresult> {
    if flags & CU_CTX_MAP_HOST != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    primary(dev)?.context.flags.store(checked_flags(flags)?, Ordering::Relaxed);
    Ok(())
}

pub(crate) unsafe fn cuCtxCreate(pctx: *mut CUcontext, flags: u32, dev: CUdevice) -> Result<(), CUresult> {
    create(pctx, flags, dev)
}

pub(crate) unsafe fn cuCtxCreate_v2(pctx: *mut CUcontext, flags: u32, dev: CUdevice) -> Result<(), CUresult> {
    create(pctx, flags, dev)
}

pub(crate) unsafe fn cuCtxCreate_v3(
    pctx: *mut CUcontext,
    _: *mut CUexecAffinityParam,
    affinities: i32,
    flags: u32,
    dev: CUdevice,
) -> Result<(), CUresult> {
    if affinities != 0 {
        return Err(CUresult::UNSUPPORTED_EXEC_AFFINITY);
    }
    create(pctx, flags, dev)
}

pub(crate) unsafe fn cuCtxCreate_v4(
    pctx: *mut CUcontext,
    params: *mut CUctxCreateParams,
    flags: u32,
    dev: CUdevice,
) -> Result<(), CUresult> {
    // SAFETY: the program passes null or parameters.
    if let Some(params) = unsafe { params.as_ref() }
        && (params.numExecAffinityParams != 0 || !params.cigParams.is_null())
    {
        return Err(CUresult::NOT_SUPPORTED);
    }
    create(pctx, flags, dev)
}

pub(crate) unsafe fn cuCtxDestroy_v2(ctx: CUcontext) -> Result<(), CUresult> {
    let context = named(ctx)?;
    if context.primary || context.green.is_some() {
        return Err(CUresult::INVALID_CONTEXT);
    }
    with_stack(|stack| {
        // Only the innermost place: other threads, and places further out, keep a destroyed
        // context.
        if stack.last().and_then(Option::as_ref).is_some_and(|top| top.handle == ctx) {
            stack.pop();
        }
    })?;
    end(&context)?;
    context::forget(&context);
    Ok(())
}

pub(crate) unsafe fn cuCtxAttach(pctx: *mut CUcontext, flags: u32) -> Result<(), CUresult> {
    session::get()?;
    let context = current()?;
    if flags != 0 || pctx.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    context.attached.fetch_add(1, Ordering::Relaxed);
    // SAFETY: not null, and the program's to be written.
    unsafe { crate::abi::out::write(pctx, context.handle) }
}

/// The context has to be the calling thread's; it ends with its last reference.
pub(crate) unsafe fn cuCtxDetach(ctx: CUcontext) -> Result<(), CUresult> {
    session::get()?;
    let context = current()?;
    if context.handle != ctx || context.primary || context.green.is_some() {
        return Err(CUresult::INVALID_CONTEXT);
    }
    if context.attached.fetch_sub(1, Ordering::AcqRel) > 1 {
        return Ok(());
    }
    // SAFETY: no pointers of this process.
    unsafe { cuCtxDestroy_v2(ctx) }
}

pub(crate) unsafe fn cuCtxGetExecAffinity(
    pExecAffinity: *mut CUexecAffinityParam,
    kind: CUexecAffinityType,
) -> Result<(), CUresult> {
    session::get()?;
    check_current()?;
    match kind {
        _ if pExecAffinity.is_null() => Err(CUresult::INVALID_VALUE),
        CUexecAffinityType::SM_COUNT => Err(CUresult::UNSUPPORTED_EXEC_AFFINITY),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

pub(crate) unsafe fn cuCtxPushCurrent_v2(ctx: CUcontext) -> Result<(), CUresult> {
    session::get()?;
    if ctx.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let context = named(ctx)?;
    with_stack(|stack| stack.push(Some(context)))
}

pub(crate) unsafe fn cuCtxPopCurrent_v2(pctx: *mut CUcontext) -> Result<(), CUresult> {
    session::get()?;
    let popped = with_stack(Vec::pop)?.flatten().ok_or(CUresult::INVALID_CONTEXT)?;
    // SAFETY: the program passes null or a place for the context.
    unsafe { crate::abi::out::write_if_wanted(pctx, popped.handle) };
    Ok(())
}

pub(crate) unsafe fn cuCtxSetCurrent(ctx: CUcontext) -> Result<(), CUresult> {
    session::get()?;
    let context = if ctx.is_null() { None } else { Some(named(ctx)?) };
    with_stack(|stack| {
        stack.pop();
        if context.is_some() {
            stack.push(context);
        }
    })
}

pub(crate) unsafe fn cuCtxGetCurrent(pctx: *mut CUcontext) -> Result<(), CUresult> {
    session::get()?;
    let handle = innermost().map_or(CUcontext::NULL, |context| context.handle);
    // SAFETY: the program passes a place for the context.
    unsafe { crate::abi::out::write(pctx, handle) }
}

pub(crate) unsafe fn cuCtxGetDevice(device: *mut CUdevice) -> Result<(), CUresult> {
    session::get()?;
    // SAFETY: the program passes a place for the device.
    unsafe { crate::abi::out::write(device, current()?.device) }
}

pub(crate) unsafe fn cuCtxGetDevice_v2(device: *mut CUdevice, ctx: CUcontext) -> Result<(), CUresult> {
    session::get()?;
    // SAFETY: the program passes a place for the device.
    unsafe { crate::abi::out::write(device, named_or_current(ctx)?.device) }
}

pub(crate) unsafe fn cuCtxGetFlags(flags: *mut u32) -> Result<(), CUresult> {
    session::get()?;
    // SAFETY: the program passes a place for the flags.
    unsafe { crate::abi::out::write(flags, current()?.flags.load(Ordering::Relaxed)) }
}

pub(crate) unsafe fn cuCtxGetId(ctx: CUcontext, id: *mut u64) -> Result<(), CUresult> {
    session::get()?;
    // SAFETY: the program passes a place for the number.
    unsafe { crate::abi::out::write(id, named_or_current(ctx)?.number) }
}

/// The version since which contexts have looked as they do now; what NVIDIA's driver answers too.
const API_VERSION: u32 = 3020;

pub(crate) unsafe fn cuCtxGetApiVersion(ctx: CUcontext, version: *mut u32) -> Result<(), CUresult> {
    session::get()?;
    named_or_current(ctx)?;
    // SAFETY: the program passes a place for the version.
    unsafe { crate::abi::out::write(version, API_VERSION) }
}

pub(crate) unsafe fn cuCtxGetCacheConfig(config: *mut CUfunc_cache) -> Result<(), CUresult> {
    session::get()?;
    let value = CUfunc_cache(current()?.cache_config.load(Ordering::Relaxed));
    // SAFETY: the program passes a place for the preference.
    unsafe { crate::abi::out::write(config, value) }
}

/// A preference only, which devices with a unified cache ignore: remembered, not sent.
pub(crate) unsafe fn cuCtxSetCacheConfig(config: CUfunc_cache) -> Result<(), CUresult> {
    session::get()?;
    if config.name().is_none() {
        return Err(CUresult::INVALID_VALUE);
    }
    current()?.cache_config.store(config.0, Ordering::Relaxed);
    Ok(())
}

pub(crate) unsafe fn cuCtxSetFlags(flags: u32) -> Result<(), CUresult> {
    session::get()?;
    if flags & !CU_CTX_FLAGS_MASK != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    current()?.flags.store(flags, Ordering::Relaxed);
    Ok(())
}

/// Devices since compute capability 5.0 have banks of four bytes, whatever is asked for.
pub(crate) unsafe fn cuCtxGetSharedMemConfig(pConfig: *mut CUsharedconfig) -> Result<(), CUresult> {
    session::get()?;
    current()?;
    // SAFETY: the program passes a place for the width.
    unsafe { crate::abi::out::write(pConfig, CUsharedconfig::FOUR_BYTE_BANK_SIZE) }
}

pub(crate) unsafe fn cuCtxSetSharedMemConfig(config: CUsharedconfig) -> Result<(), CUresult> {
    session::get()?;
    current()?;
    if config.name().is_some() { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
}

/// Access windows are not sent to the node, so no line of its cache persists for this session.
pub(crate) unsafe fn cuCtxResetPersistingL2Cache() -> Result<(), CUresult> {
    session::get()?;
    current().map(drop)
}

/// As `cuDeviceCanAccessPeer` says: no device of a lease reaches into another. One is no peer of
/// itself.
pub(crate) unsafe fn cuCtxEnablePeerAccess(peerContext: CUcontext, Flags: u32) -> Result<(), CUresult> {
    session::get()?;
    let (here, peer) = (current()?, named(peerContext)?);
    Err(match Flags {
        0 if here.device == peer.device => CUresult::INVALID_DEVICE,
        0 => CUresult::PEER_ACCESS_UNSUPPORTED,
        _ => CUresult::INVALID_VALUE,
    })
}

pub(crate) unsafe fn cuCtxDisablePeerAccess(peerContext: CUcontext) -> Result<(), CUresult> {
    session::get()?;
    current()?;
    named(peerContext)?;
    Err(CUresult::PEER_ACCESS_NOT_ENABLED)
}

// Names from before CUDA gave these functions their `_v2`; the meaning is the same.

pub(crate) unsafe fn cuDevicePrimaryCtxRelease(dev: CUdevice) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuDevicePrimaryCtxRelease_v2(dev) }
}

pub(crate) unsafe fn cuDevicePrimaryCtxReset(dev: CUdevice) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuDevicePrimaryCtxReset_v2(dev) }
}

pub(crate) unsafe fn cuDevicePrimaryCtxSetFlags(dev: CUdevice, flags: u32) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuDevicePrimaryCtxSetFlags_v2(dev, flags) }
}

pub(crate) unsafe fn cuCtxDestroy(ctx: CUcontext) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuCtxDestroy_v2(ctx) }
}

pub(crate) unsafe fn cuCtxPushCurrent(ctx: CUcontext) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuCtxPushCurrent_v2(ctx) }
}

pub(crate) unsafe fn cuCtxPopCurrent(pctx: *mut CUcontext) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuCtxPopCurrent_v2(pctx) }
}

/// Starts what a profiler has attached to this process collects. None can attach to a GPU that is
/// elsewhere, and without one CUDA's own call does nothing either.
pub(crate) unsafe fn cuProfilerStart() -> Result<(), CUresult> {
    session::get()?;
    current().map(drop)
}

/// As [`cuProfilerStart`].
pub(crate) unsafe fn cuProfilerStop() -> Result<(), CUresult> {
    session::get()?;
    current().map(drop)
}

/// Everything that was given to the context until now, in all of its streams. A green one has its
/// own; on the node a session has one context per device, so that other contexts of the program on
/// the same device are covered, too.
pub(crate) unsafe fn cuCtxRecordEvent(hCtx: CUcontext, hEvent: CUevent) -> Result<(), CUresult> {
    let context = named_or_current(hCtx)?;
    let session = session::of(context.device)?;
    if let Some(green) = &context.green {
        green::before_record(green.handle, hEvent)?;
        let (hCtx, hEvent) = (session.find(green.handle)?, session.find(hEvent)?);
        return session.queue(&commands::cuGreenCtxRecordEvent { hCtx, hEvent });
    }
    if event::device_of(hEvent)? != context.device {
        return Err(CUresult::INVALID_HANDLE);
    }
    capture::check_context(context.handle)?;
    event::recorded(hEvent, None)?;
    session.queue(&commands::cuCtxRecordEvent {
        device: session.device(context.device)?.place.into(),
        hEvent: session.find(hEvent)?,
    })
}
