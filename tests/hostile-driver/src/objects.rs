//! References of user objects (CUDA Driver API, `cuUserObjectRelease`): to release one that the
//! caller does not own is undefined, so who owns how many is kept here. And which texture
//! references are variables of modules: to destroy one is undefined, too.

use std::collections::{BTreeSet, HashMap};
use std::ffi::{c_char, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use sluice_cuda::{CUgraph, CUhostFn, CUmodule, CUresult, CUtexref, CUuserObject};

use crate::call::{Call, Violation, checked};
use crate::inner;
use crate::live::Live;

/// The graph takes over the reference of its creator (`CU_GRAPH_USER_OBJECT_MOVE`).
pub(crate) const MOVE: u32 = 1;

#[derive(Default)]
struct References {
    /// The caller's own, by object.
    callers: HashMap<usize, u64>,
    /// Those of graphs, by graph and object.
    graphs: HashMap<(usize, usize), u64>,
    /// How many of those there may be before the graphs that are gone are forgotten.
    graphs_max: usize,
}

/// Fewer are not worth looking through.
const GRAPHS_MIN: usize = 1024;

impl References {
    /// References go with their graph, which nobody reports.
    fn forget_dead_graphs(&mut self) {
        if self.graphs.len() >= self.graphs_max.max(GRAPHS_MIN) {
            self.graphs.retain(|(graph, _), _| CUgraph(*graph).is_live());
            self.graphs_max = 2 * self.graphs.len();
        }
    }
}

fn references() -> MutexGuard<'static, References> {
    static REFERENCES: LazyLock<Mutex<References>> = LazyLock::new(Mutex::default);
    REFERENCES.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn is_owned(object: CUuserObject) -> bool {
    let references = references();
    let mut graphs = references.graphs.keys().filter(|(_, of)| *of == object.0);
    references.callers.contains_key(&object.0) || graphs.any(|(graph, _)| CUgraph(*graph).is_live())
}

pub(crate) fn retain(object: CUuserObject, count: u32) {
    *references().callers.entry(object.0).or_default() += u64::from(count);
}

pub(crate) fn release(object: CUuserObject, count: u32) -> Result<(), Violation> {
    take(&mut references().callers, object.0, count)
}

pub(crate) fn graph_retains(
    graph: CUgraph,
    object: CUuserObject,
    count: u32,
    flags: u32,
) -> Result<(), Violation> {
    let mut references = references();
    if flags & MOVE != 0 {
        take(&mut references.callers, object.0, count)?;
    }
    *references.graphs.entry((graph.0, object.0)).or_default() += u64::from(count);
    references.forget_dead_graphs();
    Ok(())
}

pub(crate) fn graph_releases(graph: CUgraph, object: CUuserObject, count: u32) -> Result<(), Violation> {
    take(&mut references().graphs, (graph.0, object.0), count)
}

fn take<K: std::hash::Hash + Eq>(owned: &mut HashMap<K, u64>, of: K, count: u32) -> Result<(), Violation> {
    match owned.get_mut(&of) {
        Some(references) if *references > u64::from(count) => *references -= u64::from(count),
        Some(references) if *references == u64::from(count) => drop(owned.remove(&of)),
        other => return Err(format!("{count} references are released, of {:?}", other.map_or(0, |n| *n))),
    }
    Ok(())
}

#[allow(non_snake_case)] // CUDA's names
pub(crate) unsafe extern "C" fn cuUserObjectCreate(
    object_out: *mut CUuserObject,
    ptr: *mut c_void,
    destroy: CUhostFn,
    initialRefcount: u32,
    flags: u32,
) -> CUresult {
    let check = |call: &Call| {
        call.out(object_out)?;
        call.within(initialRefcount.into(), 1..=i32::MAX as u64)?;
        call.one_of(flags, &[1])?;
        if destroy.is_none() { Err("no destructor".into()) } else { Ok(()) }
    };
    let forward = || {
        // SAFETY: the arguments are the caller's, and have been checked.
        let result = unsafe { inner().cuUserObjectCreate?(object_out, ptr, destroy, initialRefcount, flags) };
        if result.is_success() {
            // SAFETY: the driver has just written it.
            retain(unsafe { object_out.read() }, initialRefcount);
        }
        Some(result)
    };
    checked("cuUserObjectCreate", check, forward)
}

/// Handles are not used twice, so that none is ever taken out.
fn textures_of_modules() -> MutexGuard<'static, BTreeSet<usize>> {
    static TEXTURES: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());
    TEXTURES.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn is_of_module(texture: CUtexref) -> bool {
    textures_of_modules().contains(&texture.0)
}

#[allow(non_snake_case)] // CUDA's names
pub(crate) unsafe extern "C" fn cuModuleGetTexRef(
    pTexRef: *mut CUtexref,
    hmod: CUmodule,
    name: *const c_char,
) -> CUresult {
    let check = |call: &Call| {
        call.live(hmod)?;
        call.out(pTexRef)?;
        call.text(name)
    };
    let forward = || {
        // SAFETY: the arguments are the caller's, and have been checked.
        let result = unsafe { inner().cuModuleGetTexRef?(pTexRef, hmod, name) };
        if result.is_success() {
            // SAFETY: the driver has just written it.
            textures_of_modules().insert(unsafe { pTexRef.read() }.0);
        }
        Some(result)
    };
    checked("cuModuleGetTexRef", check, forward)
}
