//! Green contexts: parts of a device, and contexts over them.
//!
//! A driver describes a part in a structure that it trusts when it comes back. That structure stays
//! here; the client has a number for it, and of its contents only what programs may read. A context
//! over a part is named in the headers of commands as a device is, by a place from [`GREEN_PLACES`]
//! on, which the client chooses when it makes the context.

pub(crate) mod contexts;

use std::sync::PoisonError;

use sluice_cuda::*;
use sluice_wire::{
    ChosenResource, DevResource, GREEN_PLACES, GreenCtxId, GroupParams, Id, ResourceDescId, StreamId,
    commands,
};

use self::contexts::{Context, KnownResource, Owner};
use crate::graphs;
use crate::session::Session;
use crate::session::checks;
use crate::session::execute::Execute;

/// Most groups of a split, and most resources of a descriptor: more than a device has
/// multiprocessors.
const GROUPS_MAX: usize = 1024;
/// All of `CUdevSmResourceSplit_flags`, and of `CUdevSmResourceGroup_flags`.
const SPLIT_FLAGS: u64 = 3;
const GROUP_FLAGS: u64 = 7;
/// `CU_GREEN_CTX_DEFAULT_STREAM`.
const DEFAULT_STREAM: u64 = 1;
/// The last `CUdevWorkqueueConfigScope`.
const SCOPE_LAST: u32 = 1;
/// The number of places, which seven bits distinguish.
const PLACES: usize = 128;

pub(crate) const KINDS: &[CUdevResourceType] =
    &[CUdevResourceType::SM, CUdevResourceType::WORKQUEUE_CONFIG, CUdevResourceType::WORKQUEUE];

pub(crate) fn of_device(
    session: &Session,
    command: commands::cuDeviceGetDevResource,
) -> Result<DevResource, CUresult> {
    let get = session.table.cuDeviceGetDevResource.ok_or(CUresult::NOT_SUPPORTED)?;
    let device = session.devices.get(command.device as usize).ok_or(CUresult::INVALID_DEVICE)?;
    checks::one_of(command.kind, KINDS)?;
    let mut resource = CUdevResource::default();
    // SAFETY: the driver writes one resource to a local.
    unsafe { get(device.ordinal, &mut resource, command.kind) }.ok()?;
    let known = KnownResource { resource, device: command.device };
    session.green.resources().keep(known, Some(Owner::Device(command.device)))
}

pub(crate) fn of_context(
    session: &Session,
    command: commands::cuGreenCtxGetDevResource,
) -> Result<DevResource, CUresult> {
    let get = session.table.cuGreenCtxGetDevResource.ok_or(CUresult::NOT_SUPPORTED)?;
    let green = session.find(command.hCtx)?;
    checks::one_of(command.kind, KINDS)?;
    let contexts = session.green.contexts.read().unwrap_or_else(PoisonError::into_inner);
    let found = contexts.values().find(|context| context.id == command.hCtx);
    let device = found.ok_or(CUresult::INVALID_CONTEXT)?.device.into();
    drop(contexts);
    let mut resource = CUdevResource::default();
    // SAFETY: the green context is live, and the driver writes one resource to a local.
    unsafe { get(green, &mut resource, command.kind) }.ok()?;
    session.green.resources().keep(KnownResource { resource, device }, Some(Owner::Green(command.hCtx)))
}

/// Groups of a split, and what was left, as the driver described them.
struct Split {
    groups: Vec<CUdevResource>,
    remainder: CUdevResource,
}

impl Split {
    fn keep(
        &self,
        session: &Session,
        device: u32,
        is_wanted: bool,
    ) -> Result<(Vec<DevResource>, Vec<DevResource>), CUresult> {
        let mut resources = session.green.resources();
        let mut keep =
            |resource: &CUdevResource| resources.keep(KnownResource { resource: *resource, device }, None);
        let groups = match is_wanted {
            true => self.groups.iter().map(&mut keep).collect::<Result<_, _>>()?,
            false => Vec::new(),
        };
        let is_left = self.remainder.kind == CUdevResourceType::SM;
        let left = is_left.then(|| keep(&self.remainder)).transpose()?;
        Ok((groups, left.into_iter().collect()))
    }
}

pub(crate) fn split_by_count(
    session: &Session,
    command: commands::cuDevSmResourceSplitByCount,
) -> Result<commands::cuDevSmResourceSplitByCountReply, CUresult> {
    let split = session.table.cuDevSmResourceSplitByCount.ok_or(CUresult::NOT_SUPPORTED)?;
    checks::bits(command.flags.into(), SPLIT_FLAGS)?;
    let input = session.green.known(command.input)?;
    let mut count = command.nbGroups.min(GROUPS_MAX as u32);
    let room = if command.has_result { count } else { 0 };
    let mut parts =
        Split { groups: vec![CUdevResource::default(); room as usize], remainder: CUdevResource::default() };
    let result = match command.has_result {
        true => parts.groups.as_mut_ptr(),
        false => std::ptr::null_mut(),
    };
    // SAFETY: the input is the driver's own; it writes at most `count` groups, one remainder and a
    // number to locals.
    unsafe {
        split(result, &mut count, &input.resource, &mut parts.remainder, command.flags, command.minCount)
    }
    .ok()?;
    parts.groups.truncate(count as usize);
    let (groups, remainder) = parts.keep(session, input.device, command.has_result)?;
    Ok(commands::cuDevSmResourceSplitByCountReply { nbGroups: count, groups, remainder })
}

pub(crate) fn split(
    session: &Session,
    command: &commands::cuDevSmResourceSplit,
) -> Result<commands::cuDevSmResourceSplitReply, CUresult> {
    let split = session.table.cuDevSmResourceSplit.ok_or(CUresult::NOT_SUPPORTED)?;
    if command.flags != 0 || !(1..=GROUPS_MAX).contains(&command.groups.len()) {
        return Err(CUresult::INVALID_VALUE);
    }
    let input = session.green.known(command.input)?;
    let mut params = command.groups.iter().map(group_params).collect::<Result<Vec<_>, _>>()?;
    let room = if command.has_result { params.len() } else { 0 };
    let mut parts =
        Split { groups: vec![CUdevResource::default(); room], remainder: CUdevResource::default() };
    let result = match command.has_result {
        true => parts.groups.as_mut_ptr(),
        false => std::ptr::null_mut(),
    };
    let count = params.len() as u32;
    // SAFETY: the input is the driver's own; there are `count` parameters, and as many places for
    // groups, if any.
    unsafe { split(result, count, &input.resource, &mut parts.remainder, 0, params.as_mut_ptr()) }.ok()?;
    let (groups, remainder) = parts.keep(session, input.device, command.has_result)?;
    let counts = params.iter().map(|params| params.smCount).collect();
    Ok(commands::cuDevSmResourceSplitReply { counts, groups, remainder })
}

fn group_params(of: &GroupParams) -> Result<CU_DEV_SM_RESOURCE_GROUP_PARAMS, CUresult> {
    checks::bits(of.flags.into(), GROUP_FLAGS)?;
    Ok(CU_DEV_SM_RESOURCE_GROUP_PARAMS {
        smCount: of.count,
        coscheduledSmCount: of.coscheduled,
        preferredCoscheduledSmCount: of.preferred,
        flags: of.flags,
        localityDomainId: of.locality,
        reserved: [0; 11],
    })
}

pub(crate) fn describe(
    session: &Session,
    command: &commands::cuDevResourceGenerateDesc,
) -> Result<(), CUresult> {
    let generate = session.table.cuDevResourceGenerateDesc.ok_or(CUresult::NOT_SUPPORTED)?;
    session.vacant(command.phDesc)?;
    if !(1..=GROUPS_MAX).contains(&command.resources.len()) {
        return Err(CUresult::INVALID_VALUE);
    }
    let chosen = command.resources.iter().map(|chosen| configured(session, chosen));
    let mut chosen = chosen.collect::<Result<Vec<_>, _>>()?;
    let mut desc = CUdevResourceDesc::NULL;
    // SAFETY: all of them are the driver's own, that number is there, and it writes one handle to a
    // local.
    unsafe { generate(&mut desc, chosen.as_mut_ptr(), chosen.len() as u32) }.ok()?;
    session.insert(command.phDesc, desc)
}

/// A resource with what the program may have changed of it.
fn configured(session: &Session, chosen: &ChosenResource) -> Result<CUdevResource, CUresult> {
    let mut resource = session.green.known(chosen.id)?.resource;
    if resource.kind == CUdevResourceType::WORKQUEUE_CONFIG {
        if chosen.scope > SCOPE_LAST {
            return Err(CUresult::INVALID_VALUE);
        }
        // `CUdevWorkqueueConfigResource`: the device, the concurrency, the scope, 32 bits each.
        let device = resource.words[0] & u64::from(u32::MAX);
        resource.words[0] = device | u64::from(chosen.concurrency) << 32;
        resource.words[1] = chosen.scope.into();
    }
    Ok(resource)
}

pub(crate) fn create(session: &Session, command: &commands::cuGreenCtxCreate) -> Result<(), CUresult> {
    let create = session.table.cuGreenCtxCreate.ok_or(CUresult::NOT_SUPPORTED)?;
    let convert = session.table.cuCtxFromGreenCtx.ok_or(CUresult::NOT_SUPPORTED)?;
    let destroy = session.table.cuGreenCtxDestroy.ok_or(CUresult::NOT_SUPPORTED)?;
    session.vacant(command.phCtx)?;
    checks::bits(command.flags.into(), DEFAULT_STREAM)?;
    let device = session.devices.get(command.device as usize).ok_or(CUresult::INVALID_DEVICE)?;
    let desc: CUdevResourceDesc = session.find::<ResourceDescId>(command.desc)?;
    let place = u8::try_from(command.place).map_err(|_| CUresult::INVALID_VALUE)?;
    let mut contexts = session.green.contexts.write().unwrap_or_else(PoisonError::into_inner);
    if place < GREEN_PLACES || contexts.contains_key(&place) || contexts.len() >= PLACES {
        return Err(CUresult::INVALID_VALUE);
    }
    let (mut green, mut context) = (CUgreenCtx::NULL, CUcontext::NULL);
    // SAFETY: the descriptor is the driver's own, and it writes one handle to a local.
    unsafe { create(&mut green, desc, device.ordinal, command.flags) }.ok()?;
    // SAFETY: the green context has just been made, and the driver writes one handle to a local.
    let converted = unsafe { convert(&mut context, green) }.ok();
    if let Err(error) = converted.and_then(|()| session.insert(command.phCtx, green)) {
        // SAFETY: it is not known elsewhere yet.
        unsafe { destroy(green) }.ok()?;
        return Err(error);
    }
    contexts.insert(place, Context { id: command.phCtx, context, device: command.device as u8 });
    Ok(())
}

/// Streams that were made in it end first: a driver need not know them afterwards.
pub(crate) fn destroy(session: &Session, id: GreenCtxId) -> Result<(), CUresult> {
    let destroy = session.table.cuGreenCtxDestroy.ok_or(CUresult::NOT_SUPPORTED)?;
    let green = session.remove(id)?;
    let mut contexts = session.green.contexts.write().unwrap_or_else(PoisonError::into_inner);
    let place = contexts.iter().find(|(_, context)| context.id == id).map(|(place, _)| *place);
    let place = place.ok_or(CUresult::INVALID_CONTEXT)?;
    let context = contexts.remove(&place).ok_or(CUresult::INVALID_CONTEXT)?;
    drop(contexts);
    let device = session.devices.get(usize::from(context.device)).ok_or(CUresult::INVALID_DEVICE)?;
    session.green.streams().retain(|stream, of| {
        if *of == id {
            // One that has been destroyed already is no longer known.
            let _ = graphs::destroy_stream(session, *stream);
        }
        *of != id
    });
    session.end_thread_streams(place)?;
    crate::session::current::make_current(&session.table, context.context)?;
    // What its work failed with is the session's to find.
    let _ = session.synchronize();
    crate::session::current::make_current(&session.table, device.context)?;
    let mut resources = session.green.resources();
    let asked: Vec<_> = resources.asked.keys().filter(|(of, _)| *of == Owner::Green(id)).copied().collect();
    for question in asked {
        if let Some(number) = resources.asked.remove(&question) {
            resources.known.remove(&number);
        }
    }
    drop(resources);
    // SAFETY: it was live until now, and nothing in our tables names it any more.
    unsafe { destroy(green) }.ok()
}

pub(crate) fn create_stream(
    session: &Session,
    command: commands::cuGreenCtxStreamCreate,
) -> Result<(), CUresult> {
    let create = session.table.cuGreenCtxStreamCreate.ok_or(CUresult::NOT_SUPPORTED)?;
    session.vacant(command.phStream)?;
    checks::one_of(command.flags, &[CU_STREAM_NON_BLOCKING])?;
    let green = session.find(command.greenCtx)?;
    let mut stream = CUstream::NULL;
    // SAFETY: the green context is live, and the driver writes one handle to a local.
    unsafe { create(&mut stream, green, command.flags, command.priority) }.ok()?;
    session.insert(command.phStream, stream)?;
    session.green.note_stream(&session.objects, StreamId::new(command.phStream.number()), command.greenCtx);
    Ok(())
}
