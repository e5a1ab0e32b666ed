//! The new worker: makes the session anew from what the old one sends.

use std::fs::File;
use std::io::{self, Read};

use sluice_cuda::{CUdevice_attribute, CUresult};
use sluice_wire::control::DeviceSnapshot;
use sluice_wire::migration::{Recipe, STATE_MAX, SessionState, Variable};
use sluice_wire::{Command, Header, Kind, ModuleId, Op, WireError, commands, decode};

use super::cloned;
use crate::generated::dispatch::dispatch;
use crate::memory::contents::Contents;
use crate::memory::swap::{NotMoved, while_drivers_run};
use crate::session::Session;
use crate::session::execute::{Execute, Refusal};

/// Why a session does not arrive; it continues where it was.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotArrived {
    #[error("the old worker sent no session: {0}")]
    Io(#[from] io::Error),
    #[error("the old worker sent nonsense: {0}")]
    Wire(#[from] WireError),
    #[error("the state of a session has {0} bytes, more than any has")]
    TooLarge(u64),
    #[error("GPU {place} of the lease would be another model: {what} differs")]
    OtherModel { place: usize, what: String },
    #[error("its addresses are not free in the new worker")]
    Addresses,
    #[error("{} cannot be repeated: {refusal}", .op.name())]
    Recipe { op: Op, refusal: Refusal },
    #[error("the variable {0} of one of its modules would be at another address")]
    Variable(String),
    #[error("its memory cannot be made there ({0})")]
    Memory(CUresult),
    #[error(transparent)]
    Contents(#[from] NotMoved),
}

/// Where a session comes from.
pub(crate) struct Origin {
    pub(crate) file: File,
    /// It is another session's clone.
    pub(crate) is_clone: bool,
}

/// The session's state, which comes before the contents of its memory.
pub(crate) fn read_state(from: &mut File) -> Result<SessionState, NotArrived> {
    let mut size = [0; 8];
    from.read_exact(&mut size)?;
    let size = u64::from_le_bytes(size);
    if size > STATE_MAX {
        return Err(NotArrived::TooLarge(size));
    }
    // The buffer grows with what comes.
    let mut bytes = Vec::new();
    if from.take(size).read_to_end(&mut bytes)? as u64 != size {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok(decode(&bytes)?)
}

/// Whether the client would find the GPUs as it knows them.
pub(crate) fn check_models(there: &[DeviceSnapshot], here: &[DeviceSnapshot]) -> Result<(), NotArrived> {
    /// What differs between two GPUs of a model.
    const OF_ONE_GPU: [CUdevice_attribute; 5] = [
        CUdevice_attribute::MULTI_GPU_BOARD_GROUP_ID,
        CUdevice_attribute::PCI_BUS_ID,
        CUdevice_attribute::PCI_DEVICE_ID,
        CUdevice_attribute::PCI_DOMAIN_ID,
        CUdevice_attribute::HOST_NUMA_ID,
    ];
    if there.len() != here.len() {
        return Err(NotArrived::OtherModel {
            place: there.len().min(here.len()),
            what: "their number".into(),
        });
    }
    for (place, (there, here)) in there.iter().zip(here).enumerate() {
        let other = |what: String| Err(NotArrived::OtherModel { place, what });
        if there.name != here.name {
            return other(format!("its name, {} instead of {},", here.name, there.name));
        }
        for (attribute, value) in there.attributes.iter().filter(|(name, _)| !OF_ONE_GPU.contains(name)) {
            match here.attribute(*attribute) {
                Some(now) if now == *value => {}
                now => return other(format!("attribute {} ({value}, and {now:?} there)", attribute.0)),
            }
        }
        if (there.driver_version, &there.limits, &there.functions)
            != (here.driver_version, &here.limits, &here.functions)
        {
            return other("its driver".into());
        }
    }
    Ok(())
}

/// Makes the objects and the memory of the session, and fills the memory.
pub(crate) fn take_over(
    session: &Session,
    state: &SessionState,
    from: &mut Origin,
) -> Result<(), NotArrived> {
    session.counters.movable.store(0, std::sync::atomic::Ordering::Relaxed);
    while_drivers_run(session, || {
        for (hash, bytes) in &state.images {
            session.images.receive(*hash, 0, bytes.len() as u64, bytes).map_err(NotArrived::Memory)?;
        }
        for hash in &state.promised {
            session.images.promise(*hash);
        }
        // Variables get their places in the order in which they had got them.
        let asks = |recipe: &&Recipe| recipe.op == commands::cuModuleGetGlobal_v2::OP.0;
        state.recipes.iter().filter(|recipe| !asks(recipe)).try_for_each(|recipe| repeat(session, recipe))?;
        state.variables.iter().try_for_each(|variable| place(session, variable))?;
        state.recipes.iter().filter(asks).try_for_each(|recipe| repeat(session, recipe))?;
        for committed in &state.memory {
            let made = session.memory.adopt(&session.table, &session.devices, committed);
            made.map_err(NotArrived::Memory)?;
        }
        for (gpu, (&taken, &(allowed, _))) in (0..).zip(state.taken.iter().zip(&state.allowances)) {
            session.budget.adopt(gpu, taken, allowed).map_err(NotArrived::Memory)?;
        }
        if from.is_clone {
            receive(session, state.contents_of_variables(), &mut from.file)?;
            return cloned::receive(session, &from.file);
        }
        receive(session, state.contents(), &mut from.file)
    })
}

fn receive(
    session: &Session,
    ranges: impl Iterator<Item = (u32, u64, u64)>,
    from: &mut File,
) -> Result<(), NotArrived> {
    let mut contents = Contents::new(session)?;
    for (gpu, address, bytes) in ranges {
        contents.receive::<NotArrived>(gpu, (address, bytes), |piece| from.read_exact(piece))?;
    }
    Ok(())
}

fn repeat(session: &Session, recipe: &Recipe) -> Result<(), NotArrived> {
    let &Recipe { device, lane, op, ref payload } = recipe;
    let header = Header { kind: Kind::Command, device, op, lane, sequence: 0 };
    let failed = |refusal| NotArrived::Recipe { op: Op(op), refusal };
    session.enter(header).map_err(|result| failed(result.into()))?;
    dispatch(session, Op(op), payload, &mut Vec::new()).map_err(failed)?;
    session.recipes.note(header, payload, |module| session.objects.find(module).is_ok());
    Ok(())
}

fn place(session: &Session, variable: &Variable) -> Result<(), NotArrived> {
    let module = session.find(ModuleId(variable.module)).map_err(NotArrived::Memory)?;
    match sluice_softgpu::place_variable(module, &variable.name) {
        Some(address) if address == variable.address => Ok(()),
        _ => Err(NotArrived::Variable(variable.name.clone())),
    }
}
