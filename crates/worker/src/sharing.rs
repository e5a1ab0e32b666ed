//! Memory and events that processes of one lease share.
//!
//! What a session exports goes to the daemon as a descriptor, or as the driver's own name for it,
//! and has a number from then on that only the exporter's client knows, and whom it tells. The
//! daemon keeps it while any session holds it, counts shared memory once, and gives it to no
//! session of another lease.

pub(crate) mod peers;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use sluice_cuda::*;
use sluice_wire::{DevicePtr, EventId, ExportToken, commands};

use crate::driver::EventSharing;
use crate::link::Export;
use crate::memory::Backing;
use crate::memory::extent::{Extent, Location};
use crate::memory::physical::Physical;
use crate::memory::swap;
use crate::outbox::Push;
use crate::session::Session;
use crate::session::current::current;
use crate::session::execute::Execute;

/// What a driver's memory is created with so that it can be shared later.
const FILE: CUmemAllocationHandleType = CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR;

/// How long memory of several extents waits for the session's work before it is made one.
const JOIN_PATIENCE: Duration = Duration::from_secs(10);

/// Exports the memory behind an allocation; its number, and where it starts.
pub(crate) fn export_allocation(
    session: &Session,
    address: DevicePtr,
) -> Result<(ExportToken, DevicePtr), CUresult> {
    loop {
        if let Some(exported) = export_joined(session, address)? {
            session.memory.trim_spare();
            return Ok(exported);
        }
        // A descriptor is of one piece of memory. To make one of several, all that may use them has
        // to be over.
        let joined = session.presence.outside(|| swap::join(session, address.0, JOIN_PATIENCE));
        session.enter(current())?;
        if let Err(error) = joined {
            let text = format!("memory could not be shared with other processes: {error}");
            session.outbox.push(Push::Notice(text));
            return Err(CUresult::OUT_OF_MEMORY);
        }
    }
}

/// Exports the memory behind an allocation if it is one extent; nothing where it is several.
fn export_joined(
    session: &Session,
    address: DevicePtr,
) -> Result<Option<(ExportToken, DevicePtr)>, CUresult> {
    let mut memory = session.memory.lock();
    let (start, bytes, backing) = memory.chunks.run_of(address.0).ok_or(CUresult::INVALID_VALUE)?;
    let Backing::Committed { extents, gpu, export, .. } = backing else {
        return Err(CUresult::INVALID_VALUE);
    };
    let [Extent { place: Location::Device(handle), .. }] = extents.as_slice() else { return Ok(None) };
    let token = match *export {
        Some(token) => token,
        None => {
            let token = export_memory(session, *handle, *gpu, bytes)?;
            session.memory.is_pinned(bytes);
            *export.insert(token)
        }
    };
    Ok(Some((token, DevicePtr(start))))
}

/// Exports memory that the program made.
pub(crate) fn export_physical(
    session: &Session,
    command: &commands::cuMemExportToShareableHandle,
) -> Result<ExportToken, CUresult> {
    let memory = session.memory.lock();
    let physical = memory.physical.get(&command.handle.0).ok_or(CUresult::INVALID_HANDLE)?;
    physical.exported(|| export_memory(session, physical.handle, physical.gpu, physical.bytes))
}

/// The memory goes from the session's account to the lease's.
fn export_memory(
    session: &Session,
    handle: CUmemGenericAllocationHandle,
    gpu: u32,
    bytes: u64,
) -> Result<ExportToken, CUresult> {
    let export = session.table.cuMemExportToShareableHandle.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut fd: RawFd = -1;
    // SAFETY: the handle is live, and the driver writes one descriptor to a local.
    unsafe { export(std::ptr::from_mut(&mut fd).cast(), handle, FILE, 0) }.ok()?;
    // SAFETY: the driver has opened it for its caller.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    session.budget.export(Export::Memory { gpu, bytes }, Some(file))
}

/// Memory that another process of the lease has exported, or this one.
pub(crate) fn import_memory(
    session: &Session,
    command: &commands::cuMemImportFromShareableHandle,
) -> Result<commands::cuMemImportFromShareableHandleReply, CUresult> {
    let import = session.table.cuMemImportFromShareableHandle.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut memory = session.memory.lock();
    memory.check_vacant(command.handle.0)?;
    let imported = session.budget.import(command.token)?;
    let give_up = || session.budget.drop_export(command.token);
    let (Export::Memory { gpu, bytes }, Some(file)) = (imported.export, imported.file) else {
        give_up();
        return Err(CUresult::INVALID_HANDLE);
    };
    let mut handle = CUmemGenericAllocationHandle::NULL;
    let name = file.as_raw_fd() as usize as *mut c_void;
    // SAFETY: for this type the handle is an open descriptor; the driver writes one handle to a
    // local.
    let result = on_device(session, gpu, || unsafe { import(&mut handle, name, FILE) }.ok());
    if let Err(error) = result {
        give_up();
        return Err(error);
    }
    memory.physical.insert(command.handle.0, Physical::imported(handle, gpu, bytes, command.token).into());
    Ok(commands::cuMemImportFromShareableHandleReply { device: gpu, bytes, is_own: imported.is_own })
}

/// Does something with the context of another GPU of the lease current.
fn on_device(
    session: &Session,
    gpu: u32,
    action: impl FnOnce() -> Result<(), CUresult>,
) -> Result<(), CUresult> {
    let there = session.devices.get(gpu as usize).ok_or(CUresult::INVALID_DEVICE)?;
    let (_, here) = session.device()?;
    crate::session::current::make_current(&session.table, there.context)?;
    let result = action();
    crate::session::current::make_current(&session.table, here.context)?;
    result
}

pub(crate) fn export_event(session: &Session, id: EventId) -> Result<ExportToken, CUresult> {
    let event = session.find(id)?;
    let mut exports = session.event_exports.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&token) = exports.get(&id) {
        return Ok(token);
    }
    let token = match session.event_sharing {
        EventSharing::Files => {
            let file = sluice_softgpu::export_event(event)?;
            session.budget.export(Export::Event { name: Vec::new() }, Some(file))
        }
        EventSharing::Names => {
            let get = session.table.cuIpcGetEventHandle.ok_or(CUresult::NOT_SUPPORTED)?;
            let mut name = CUipcEventHandle { reserved: [0; 64] };
            // SAFETY: the event is live, and the driver writes one name to a local.
            unsafe { get(&mut name, event) }.ok()?;
            session.budget.export(Export::Event { name: name.reserved.to_vec() }, None)
        }
    }?;
    exports.insert(id, token);
    Ok(token)
}

/// An event is about to go.
pub(crate) fn forget_event(session: &Session, id: EventId) {
    let mut exports = session.event_exports.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(token) = exports.remove(&id) {
        session.budget.drop_export(token);
    }
}

pub(crate) fn import_event(session: &Session, command: &commands::EventImport) -> Result<(), CUresult> {
    session.imports_events.store(true, Relaxed);
    session.vacant(command.event)?;
    let imported = session.budget.import(command.token)?;
    // Events cost nothing: who has opened one needs no account of it.
    session.budget.drop_export(command.token);
    let Export::Event { name } = imported.export else { return Err(CUresult::INVALID_HANDLE) };
    let event = match (session.event_sharing, imported.file, <[u8; 64]>::try_from(name)) {
        (EventSharing::Files, Some(file), _) => sluice_softgpu::import_event(file)?,
        (EventSharing::Names, _, Ok(reserved)) => {
            let open = session.table.cuIpcOpenEventHandle.ok_or(CUresult::NOT_SUPPORTED)?;
            let mut event = CUevent::NULL;
            // SAFETY: the name is one that the driver has given; it writes one handle to a local.
            unsafe { open(&mut event, CUipcEventHandle { reserved }) }.ok()?;
            event
        }
        _ => return Err(CUresult::INVALID_HANDLE),
    };
    session.insert(command.event, event)
}
