//! References of user objects: how many are the program's, and how many a graph's. To release one
//! that has another owner is undefined in CUDA (CUDA Driver API, `cuUserObjectRelease`), so the
//! driver is called only for what is there.

use std::collections::HashMap;
use std::hash::Hash;

use sluice_cuda::{CUresult, CUuserObject};
use sluice_wire::{UserObjectId, commands};

use super::references::State;
use crate::session::Session;
use crate::session::execute::Execute;

/// `CU_GRAPH_USER_OBJECT_MOVE`: the graph takes the program's references over.
const MOVE: u32 = 1;

/// An object that has a reference, which keeps the driver's handle good.
fn find(session: &Session, state: &State, object: UserObjectId) -> Result<CUuserObject, CUresult> {
    if state.has(object) { session.find(object) } else { Err(CUresult::INVALID_VALUE) }
}

/// None would be entered as something that is held (CUDA Driver API: "must be nonzero and no larger
/// than INT_MAX").
pub(crate) fn check_count(count: u32) -> Result<(), CUresult> {
    if (1..=i32::MAX as u32).contains(&count) { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
}

/// Whether the holder has this number of references.
fn check<K: Hash + Eq>(held: &HashMap<K, u64>, holder: &K, count: u32) -> Result<(), CUresult> {
    let has = held.get(holder).copied().unwrap_or(0);
    if u64::from(count) <= has { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
}

fn give<K: Hash + Eq>(held: &mut HashMap<K, u64>, holder: K, count: u32) {
    *held.entry(holder).or_default() += u64::from(count);
}

fn take<K: Hash + Eq>(held: &mut HashMap<K, u64>, holder: &K, count: u32) {
    if let Some(has) = held.get_mut(holder) {
        *has = has.saturating_sub(count.into());
        if *has == 0 {
            held.remove(holder);
        }
    }
}

pub(crate) fn retain(session: &Session, command: &commands::cuUserObjectRetain) -> Result<(), CUresult> {
    let retain = session.table.cuUserObjectRetain.ok_or(CUresult::NOT_SUPPORTED)?;
    check_count(command.count)?;
    let mut state = session.graphs.references.lock();
    let object = find(session, &state, command.object)?;
    // SAFETY: the object has a reference.
    unsafe { retain(object, command.count) }.ok()?;
    give(&mut state.program, command.object, command.count);
    Ok(())
}

pub(crate) fn release(session: &Session, command: &commands::cuUserObjectRelease) -> Result<(), CUresult> {
    let release = session.table.cuUserObjectRelease.ok_or(CUresult::NOT_SUPPORTED)?;
    check_count(command.count)?;
    let mut state = session.graphs.references.lock();
    let object = find(session, &state, command.object)?;
    check(&state.program, &command.object, command.count)?;
    // SAFETY: the references are the program's.
    unsafe { release(object, command.count) }.ok()?;
    take(&mut state.program, &command.object, command.count);
    Ok(())
}

pub(crate) fn graph_retain(
    session: &Session,
    command: &commands::cuGraphRetainUserObject,
) -> Result<(), CUresult> {
    let retain = session.table.cuGraphRetainUserObject.ok_or(CUresult::NOT_SUPPORTED)?;
    check_count(command.count)?;
    let mut state = session.graphs.references.lock();
    let (graph, object) = (session.find(command.graph)?, find(session, &state, command.object)?);
    let moves = command.flags & MOVE != 0;
    if moves {
        check(&state.program, &command.object, command.count)?;
    }
    // SAFETY: the graph is live, and so is the object; what is moved is the program's.
    unsafe { retain(graph, object, command.count, command.flags) }.ok()?;
    if moves {
        take(&mut state.program, &command.object, command.count);
    }
    give(&mut state.graphs, (command.graph, command.object), command.count);
    Ok(())
}

pub(crate) fn graph_release(
    session: &Session,
    command: &commands::cuGraphReleaseUserObject,
) -> Result<(), CUresult> {
    let release = session.table.cuGraphReleaseUserObject.ok_or(CUresult::NOT_SUPPORTED)?;
    check_count(command.count)?;
    let mut state = session.graphs.references.lock();
    let (graph, object) = (session.find(command.graph)?, find(session, &state, command.object)?);
    let holder = (command.graph, command.object);
    check(&state.graphs, &holder, command.count)?;
    // SAFETY: the graph is live, and the references are its own.
    unsafe { release(graph, object, command.count) }.ok()?;
    take(&mut state.graphs, &holder, command.count);
    Ok(())
}
