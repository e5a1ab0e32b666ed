//! Green contexts (CUDA Driver API, section "Green Contexts").
//!
//! A resource that a program holds is a structure of bytes, of which it reads some. The driver's
//! own is on the node; the number by which that is known there, and the device, are in the padding
//! of the program's.
//!
//! A green context is one of the contexts of [`crate::context`], with a place of its own among
//! those that commands name. What is made in it, streams aside, belongs to the device's primary
//! context, as CUDA has it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;
use sluice_wire::{
    ChosenResource, DevResource, GREEN_PLACES, GreenCtxId, GroupParams, ResourceDescId, StreamId, commands,
};

use crate::abi::ids::{self, Kind, Table};
use crate::abi::out;
use crate::context::{self, Context, Green};
use crate::lifecycle::contexts;
use crate::session::issue::{Issue, wanted};
use crate::session::{self, Session};
use crate::stream::{self, capture, event};

/// Resources of one call at most: more than a device has multiprocessors.
const RESOURCES_MAX: u32 = 1024;
/// What the padding of a resource begins with.
const MARK: [u8; 4] = *b"Slui";

static GREENS: Table<Arc<Context>> = Table::new();
/// Descriptors with their devices; they last as long as the process.
static DESCRIPTORS: Table<CUdevice> = Table::new();

/// The sessions' places that are taken: session and place.
static TAKEN: Mutex<Vec<(u8, u8)>> = Mutex::new(Vec::new());

fn taken() -> MutexGuard<'static, Vec<(u8, u8)>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The green contexts of a session that is lost end with it.
pub(crate) fn forget_all() {
    GREENS.clear();
    DESCRIPTORS.clear();
    context::all_green_ended();
    taken().clear();
}

fn take_place(session: &Session) -> Result<u8, CUresult> {
    let mut taken = taken();
    let mut places = GREEN_PLACES..=u8::MAX;
    let place = places.find(|place| !taken.contains(&(session.index, *place))).ok_or_else(|| {
        crate::say_once!("a session has at most 128 green contexts at a time: destroy some");
        CUresult::OUT_OF_MEMORY
    })?;
    taken.push((session.index, place));
    Ok(place)
}

fn give_place_back(session: &Session, place: u8) {
    taken().retain(|taken| *taken != (session.index, place));
}

/// A live green context.
fn named(handle: CUgreenCtx) -> Result<Arc<Context>, CUresult> {
    session::get()?;
    if !ids::is_of(Kind::GreenCtx, handle.0 as u64) {
        return Err(CUresult::INVALID_CONTEXT);
    }
    let context = GREENS.get(handle.0 as u64).ok_or(CUresult::CONTEXT_IS_DESTROYED)?;
    if context.is_alive() { Ok(Arc::clone(&context)) } else { Err(CUresult::CONTEXT_IS_DESTROYED) }
}

pub(crate) fn exists(number: u64) -> bool {
    GREENS.contains(number)
}

pub(crate) fn descriptor_exists(number: u64) -> bool {
    DESCRIPTORS.contains(number)
}

fn of(context: &Context) -> Result<&Green, CUresult> {
    context.green.as_ref().ok_or(CUresult::INVALID_CONTEXT)
}

/// Ends a green context unless it has ended already; its streams can only be destroyed.
fn end(context: &Context) -> Result<(), CUresult> {
    let green = of(context)?;
    if GREENS.remove(green.handle.0 as u64).is_none() {
        return Err(CUresult::CONTEXT_IS_DESTROYED);
    }
    context::green_ended();
    context.kill();
    let session = session::of(context.device)?;
    capture::end_in(context.handle);
    stream::detach(context.handle);
    let ended = context::at_device(context.device, || {
        session.call(&commands::cuGreenCtxDestroy { hCtx: GreenCtxId(green.handle.0 as u64) }, |()| ())
    });
    give_place_back(session, green.place);
    context::forget(context);
    ended
}

/// The green contexts of a device end with its primary context.
pub(crate) fn primary_ended(device: CUdevice) -> Result<(), CUresult> {
    let all = GREENS.find(|context| context.device == device);
    all.into_iter().filter_map(|handle| GREENS.get(handle)).try_for_each(|context| end(&context))
}

/// The program's structure for a part of a device.
fn to_c(device: CUdevice, resource: &DevResource) -> CUdevResource {
    let mut padding = [0; 92];
    padding[..4].copy_from_slice(&MARK);
    padding[4..8].copy_from_slice(&device.to_le_bytes());
    padding[8..16].copy_from_slice(&resource.id.to_le_bytes());
    let (kind, mut words) = (resource.kind, resource.words);
    if kind == CUdevResourceType::WORKQUEUE_CONFIG {
        words[0] = words[0] & !u64::from(u32::MAX) | u64::from(device as u32);
    }
    CUdevResource { kind, _internal_padding: padding, words, nextResource: std::ptr::null_mut() }
}

/// Device and number of what a program's structure stands for.
fn from_c(resource: &CUdevResource) -> Result<(CUdevice, u64), CUresult> {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ..] = resource._internal_padding;
    if [a, b, c, d] != MARK {
        return Err(match resource.kind {
            CUdevResourceType::SM => CUresult::INVALID_VALUE,
            _ => CUresult::INVALID_RESOURCE_TYPE,
        });
    }
    Ok((CUdevice::from_le_bytes([e, f, g, h]), u64::from_le_bytes([i, j, k, l, m, n, o, p])))
}

/// # Safety
/// `resource` is null or points to one.
unsafe fn read_sm(resource: *const CUdevResource) -> Result<(CUdevice, u64), CUresult> {
    wanted(resource.cast_mut())?;
    // SAFETY: not null, and the program's.
    let resource = unsafe { resource.read_unaligned() };
    if resource.kind != CUdevResourceType::SM {
        return Err(CUresult::INVALID_RESOURCE_TYPE);
    }
    from_c(&resource)
}

fn check_kind(kind: CUdevResourceType) -> Result<(), CUresult> {
    let known = kind.name().is_some() && kind != CUdevResourceType::INVALID;
    if known { Ok(()) } else { Err(CUresult::INVALID_RESOURCE_TYPE) }
}

/// # Safety
/// `result` is null or has places for `groups`, and `remainder` is null or has one.
unsafe fn write(
    device: CUdevice,
    (result, groups): (*mut CUdevResource, &[DevResource]),
    (remainder, left): (*mut CUdevResource, &[DevResource]),
) -> Result<(), CUresult> {
    for (index, group) in groups.iter().enumerate() {
        // SAFETY: by this function's contract.
        unsafe { out::write(result.wrapping_add(index), to_c(device, group))? };
    }
    let left = left.first().map_or_else(CUdevResource::default, |left| to_c(device, left));
    // SAFETY: by this function's contract.
    unsafe { out::write_if_wanted(remainder, left) };
    Ok(())
}

// The entry points.

/// How many multiprocessors a device has, and other parts of it.
pub(crate) unsafe fn cuDeviceGetDevResource(
    device: CUdevice,
    resource: *mut CUdevResource,
    kind: CUdevResourceType,
) -> Result<(), CUresult> {
    let session = session::of(device)?;
    let place = session.device(device)?.place.into();
    wanted(resource)?;
    check_kind(kind)?;
    let command = commands::cuDeviceGetDevResource { device: place, kind };
    let found = session.call(&command, |answer| answer.resource)?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(resource, to_c(device, &found)) }
}

/// A context has all of its device, but for a green one.
pub(crate) unsafe fn cuCtxGetDevResource(
    hCtx: CUcontext,
    resource: *mut CUdevResource,
    kind: CUdevResourceType,
) -> Result<(), CUresult> {
    session::get()?;
    let context = context::named_or_current(hCtx)?;
    // SAFETY: the same contract.
    unsafe {
        match &context.green {
            Some(green) => cuGreenCtxGetDevResource(green.handle, resource, kind),
            None => cuDeviceGetDevResource(context.device, resource, kind),
        }
    }
}

pub(crate) unsafe fn cuStreamGetDevResource(
    hStream: CUstream,
    resource: *mut CUdevResource,
    kind: CUdevResourceType,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuCtxGetDevResource(stream::context_of(hStream)?.handle, resource, kind) }
}

pub(crate) unsafe fn cuGreenCtxGetDevResource(
    hCtx: CUgreenCtx,
    resource: *mut CUdevResource,
    kind: CUdevResourceType,
) -> Result<(), CUresult> {
    let context = named(hCtx)?;
    wanted(resource)?;
    check_kind(kind)?;
    let command = commands::cuGreenCtxGetDevResource { hCtx: GreenCtxId(hCtx.0 as u64), kind };
    let found = session::of(context.device)?.call(&command, |answer| answer.resource)?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(resource, to_c(context.device, &found)) }
}

pub(crate) unsafe fn cuDevSmResourceSplitByCount(
    result: *mut CUdevResource,
    nbGroups: *mut u32,
    input: *const CUdevResource,
    remainder: *mut CUdevResource,
    flags: u32,
    minCount: u32,
) -> Result<(), CUresult> {
    session::get()?;
    wanted(nbGroups)?;
    // SAFETY: the program passes a resource and a number.
    let ((device, input), count) = unsafe { (read_sm(input)?, nbGroups.read_unaligned()) };
    let session = session::of(device)?;
    let command = commands::cuDevSmResourceSplitByCount {
        input,
        nbGroups: count,
        has_result: !result.is_null(),
        flags,
        minCount,
    };
    let answer = session.call(&command, |answer| answer)?;
    if answer.groups.len() > count as usize {
        return Err(CUresult::UNKNOWN);
    }
    // SAFETY: the program passes as many places as it says there are.
    unsafe {
        out::write(nbGroups, answer.nbGroups)?;
        write(device, (result, &answer.groups), (remainder, &answer.remainder))
    }
}

pub(crate) unsafe fn cuDevSmResourceSplit(
    result: *mut CUdevResource,
    nbGroups: u32,
    input: *const CUdevResource,
    remainder: *mut CUdevResource,
    flags: u32,
    groupParams: *mut CU_DEV_SM_RESOURCE_GROUP_PARAMS,
) -> Result<(), CUresult> {
    session::get()?;
    wanted(groupParams)?;
    if !(1..=RESOURCES_MAX).contains(&nbGroups) {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the program passes a resource, and `nbGroups` parameters.
    let ((device, input), params) = unsafe {
        let params = |index| groupParams.add(index).read_unaligned();
        (read_sm(input)?, (0..nbGroups as usize).map(params).collect::<Vec<_>>())
    };
    let groups = params.iter().map(|params| GroupParams {
        count: params.smCount,
        coscheduled: params.coscheduledSmCount,
        preferred: params.preferredCoscheduledSmCount,
        flags: params.flags,
        locality: params.localityDomainId,
    });
    let command = commands::cuDevSmResourceSplit {
        input,
        groups: groups.collect(),
        has_result: !result.is_null(),
        flags,
    };
    let answer = session::of(device)?.call(&command, |answer| answer)?;
    if answer.counts.len() != params.len() || answer.groups.len() > params.len() {
        return Err(CUresult::UNKNOWN);
    }
    // SAFETY: the program passes as many places as there are parameters.
    unsafe {
        for (index, (params, count)) in params.into_iter().zip(answer.counts).enumerate() {
            let params = CU_DEV_SM_RESOURCE_GROUP_PARAMS { smCount: count, ..params };
            out::write(groupParams.add(index), params)?;
        }
        write(device, (result, &answer.groups), (remainder, &answer.remainder))
    }
}

pub(crate) unsafe fn cuDevResourceGenerateDesc(
    phDesc: *mut CUdevResourceDesc,
    resources: *mut CUdevResource,
    nbResources: u32,
) -> Result<(), CUresult> {
    session::get()?;
    wanted(phDesc)?;
    wanted(resources)?;
    if !(1..=RESOURCES_MAX).contains(&nbResources) {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the program passes that many resources.
    let all = (0..nbResources as usize).map(|index| unsafe { resources.add(index).read_unaligned() });
    let all: Vec<CUdevResource> = all.collect();
    let known = all.iter().map(from_c).collect::<Result<Vec<_>, _>>()?;
    let device = known[0].0;
    if known.iter().any(|(of, _)| *of != device) {
        return Err(CUresult::INVALID_RESOURCE_CONFIGURATION);
    }
    let chosen = all.iter().zip(&known).map(|(resource, (_, id))| ChosenResource {
        id: *id,
        concurrency: (resource.words[0] >> 32) as u32,
        scope: resource.words[1] as u32,
    });
    let handle = ids::mint_on(device, Kind::ResourceDesc);
    let command =
        commands::cuDevResourceGenerateDesc { phDesc: ResourceDescId(handle), resources: chosen.collect() };
    session::of(device)?.call(&command, |()| ())?;
    DESCRIPTORS.insert(handle, device);
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(phDesc, CUdevResourceDesc(handle as usize)) }
}

pub(crate) unsafe fn cuGreenCtxCreate(
    phCtx: *mut CUgreenCtx,
    desc: CUdevResourceDesc,
    dev: CUdevice,
    flags: u32,
) -> Result<(), CUresult> {
    let session = session::of(dev)?;
    let device = session.device(dev)?;
    wanted(phCtx)?;
    let of = DESCRIPTORS.get(desc.0 as u64).ok_or(CUresult::INVALID_VALUE)?;
    if *of != dev {
        return Err(CUresult::INVALID_VALUE);
    }
    let place = take_place(session)?;
    let handle = ids::mint_on(dev, Kind::GreenCtx);
    let command = commands::cuGreenCtxCreate {
        phCtx: GreenCtxId(handle),
        place: place.into(),
        desc: ResourceDescId(desc.0 as u64),
        device: device.place.into(),
        flags,
    };
    session.call(&command, |()| ()).inspect_err(|_| give_place_back(session, place))?;
    let green = Green { handle: CUgreenCtx(handle as usize), place };
    GREENS.insert(handle, device.primary.create_green(green));
    context::green_began();
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(phCtx, CUgreenCtx(handle as usize)) }
}

pub(crate) unsafe fn cuGreenCtxDestroy(hCtx: CUgreenCtx) -> Result<(), CUresult> {
    let context = named(hCtx)?;
    end(&context)?;
    // The reference that its creation took.
    contexts::release(&session::device(context.device)?.primary)
}

pub(crate) unsafe fn cuCtxFromGreenCtx(pContext: *mut CUcontext, hCtx: CUgreenCtx) -> Result<(), CUresult> {
    // SAFETY: the program passes a place for the context.
    unsafe { out::write(pContext, named(hCtx)?.handle) }
}

pub(crate) unsafe fn cuGreenCtxGetId(greenCtx: CUgreenCtx, greenCtxId: *mut u64) -> Result<(), CUresult> {
    // SAFETY: the program passes a place for the number.
    unsafe { out::write(greenCtxId, named(greenCtx)?.number) }
}

pub(crate) unsafe fn cuGreenCtxStreamCreate(
    phStream: *mut CUstream,
    greenCtx: CUgreenCtx,
    flags: u32,
    priority: i32,
) -> Result<(), CUresult> {
    let context = named(greenCtx)?;
    wanted(phStream)?;
    if flags != CU_STREAM_NON_BLOCKING {
        return Err(CUresult::INVALID_VALUE);
    }
    let session = session::of(context.device)?;
    let created = stream::create(session, &context, flags, priority, |session, phStream, priority| {
        let greenCtx = GreenCtxId(greenCtx.0 as u64);
        session.queue_quietly(&commands::cuGreenCtxStreamCreate {
            phStream: StreamId(phStream.0),
            greenCtx,
            flags,
            priority,
        })
    })?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(phStream, created) }
}

/// What stands before `cuGreenCtxRecordEvent`.
pub(crate) fn before_record(hCtx: CUgreenCtx, hEvent: CUevent) -> Result<(), CUresult> {
    let context = named(hCtx)?;
    if event::device_of(hEvent)? != context.device {
        return Err(CUresult::INVALID_HANDLE);
    }
    capture::check_context(context.handle)?;
    event::recorded(hEvent, None)
}

/// What stands before `cuGreenCtxWaitEvent`.
pub(crate) fn before_wait(hCtx: CUgreenCtx, hEvent: CUevent) -> Result<(), CUresult> {
    let context = named(hCtx)?;
    capture::check_context(context.handle)?;
    if let (_, Some(capture)) = event::capture_of(hEvent)? {
        capture.invalidate();
        return Err(CUresult::STREAM_CAPTURE_UNSUPPORTED);
    }
    Ok(())
}
