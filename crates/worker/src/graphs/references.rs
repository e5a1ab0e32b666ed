//! How many references of each user object are the program's, and how many a graph's.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_wire::{GraphId, UserObjectId};

/// The account. The thread that changes it keeps it locked during the call of the driver.
#[derive(Debug, Default)]
pub(crate) struct References {
    pub(super) state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) program: HashMap<UserObjectId, u64>,
    pub(super) graphs: HashMap<(GraphId, UserObjectId), u64>,
}

impl References {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new object, with the program's references.
    pub(crate) fn enter(&self, object: UserObjectId, count: u32) {
        self.lock().program.insert(object, count.into());
    }

    /// No reference is left: the object's destructor has run.
    pub(crate) fn forget(&self, object: UserObjectId) {
        let mut state = self.lock();
        state.program.remove(&object);
        state.graphs.retain(|(_, of), _| *of != object);
    }

    /// What a graph held goes with it.
    pub(crate) fn forget_graph(&self, graph: GraphId) {
        self.lock().graphs.retain(|(holder, _), _| *holder != graph);
    }
}

impl State {
    /// Whether the object has a reference, which keeps the driver's handle good.
    pub(super) fn has(&self, object: UserObjectId) -> bool {
        self.program.contains_key(&object) || self.graphs.keys().any(|(_, of)| *of == object)
    }
}
