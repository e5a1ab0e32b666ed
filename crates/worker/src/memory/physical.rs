//! Physical memory that a program made, and where it is mapped.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use sluice_cuda::{CUmemGenericAllocationHandle, CUresult};
use sluice_wire::ExportToken;

use crate::memory::budget::Budget;

/// Physical memory that a program made. Its bytes go back to the lease with the last reference: the
/// program's handle, a mapping, or a tile of an array.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) handle: CUmemGenericAllocationHandle,
    pub(crate) gpu: u32,
    pub(crate) bytes: u64,
    /// Whether arrays may be mapped to it.
    pub(crate) is_tile_pool: bool,
    /// Set for what other processes of the lease have, too: then the bytes are the lease's, not the
    /// session's.
    export: Mutex<Option<ExportToken>>,
}

/// Where it is mapped: without access at first, which nothing may be copied to or from.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) physical: Arc<Physical>,
    /// The GPUs of the lease that have access.
    pub(crate) users: BTreeSet<u32>,
}

impl Mapping {
    /// A GPU that has access, if one has: its own one rather than another.
    pub(crate) fn home(&self) -> Option<u32> {
        self.users.get(&self.physical.gpu).or(self.users.first()).copied()
    }
}

impl Physical {
    /// What the program made of the session's own bytes.
    pub(crate) fn own(
        handle: CUmemGenericAllocationHandle,
        gpu: u32,
        bytes: u64,
        is_tile_pool: bool,
    ) -> Physical {
        Physical { handle, gpu, bytes, is_tile_pool, export: Mutex::default() }
    }

    pub(crate) fn imported(
        handle: CUmemGenericAllocationHandle,
        gpu: u32,
        bytes: u64,
        token: ExportToken,
    ) -> Physical {
        Physical { handle, gpu, bytes, is_tile_pool: false, export: Mutex::new(Some(token)) }
    }

    /// Its number for other processes, given by `export` at the first question.
    pub(crate) fn exported(
        &self,
        export: impl FnOnce() -> Result<ExportToken, CUresult>,
    ) -> Result<ExportToken, CUresult> {
        let mut token = self.export.lock().unwrap_or_else(PoisonError::into_inner);
        match *token {
            Some(token) => Ok(token),
            None => Ok(*token.insert(export()?)),
        }
    }
}

/// Gives the bytes back to the lease, if this was the last reference.
pub(crate) fn give_up(budget: &Budget, physical: Arc<Physical>) {
    if let Some(gone) = Arc::into_inner(physical) {
        match gone.export.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(token) => budget.drop_export(token),
            None => budget.give_back(gone.gpu, gone.bytes),
        }
    }
}
