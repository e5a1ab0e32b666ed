//! The session's objects: the client's ids and the driver's handles behind them.
//!
//! The client mints ids. One that is not in its table reaches no driver: it is answered with
//! `CUDA_ERROR_INVALID_HANDLE`, and so is one of another kind, since each kind has a table of its
//! own.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use foldhash::HashMap;
use sluice_cuda::CUresult;
use sluice_wire::{HandleKind, Id};

/// All tables of a session.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    /// One per kind, in the order of [`place`].
    tables: [Table; 15],
}

/// Most live streams.
pub(crate) const STREAMS_MAX: usize = 4096;

/// Most live objects of a kind. CUDA has no such limits; these are far above what programs reach,
/// and keep one client from filling the node's memory with objects.
const fn most(kind: HandleKind) -> usize {
    match kind {
        HandleKind::Stream => STREAMS_MAX,
        HandleKind::GreenCtx => 128,
        HandleKind::Event | HandleKind::GraphNode | HandleKind::Physical => 1 << 20,
        HandleKind::Function => 1 << 18,
        HandleKind::Module
        | HandleKind::Graph
        | HandleKind::GraphExec
        | HandleKind::Array
        | HandleKind::MipmappedArray
        | HandleKind::ResourceDesc
        | HandleKind::TexRef
        | HandleKind::SurfRef
        | HandleKind::UserObject => 1 << 16,
    }
}

const fn place(kind: HandleKind) -> usize {
    match kind {
        HandleKind::Stream => 0,
        HandleKind::Event => 1,
        HandleKind::Module => 2,
        HandleKind::Function => 3,
        HandleKind::Graph => 4,
        HandleKind::GraphNode => 5,
        HandleKind::GraphExec => 6,
        HandleKind::Array => 7,
        HandleKind::Physical => 8,
        HandleKind::UserObject => 9,
        HandleKind::MipmappedArray => 10,
        HandleKind::GreenCtx => 11,
        HandleKind::ResourceDesc => 12,
        HandleKind::TexRef => 13,
        HandleKind::SurfRef => 14,
    }
}

/// The live objects of one kind: the client's number and the driver's.
#[derive(Debug, Default)]
struct Table {
    live: RwLock<HashMap<u64, usize>>,
}

impl Table {
    fn read(&self) -> RwLockReadGuard<'_, HashMap<u64, usize>> {
        self.live.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<u64, usize>> {
        self.live.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Objects {
    /// How many live objects of a kind there are.
    pub(crate) fn count(&self, kind: HandleKind) -> usize {
        self.tables[place(kind)].read().len()
    }

    fn table<I: Id>(&self) -> &Table {
        &self.tables[place(I::KIND)]
    }

    /// The driver's handle of a live object.
    pub(crate) fn find<I: Id>(&self, id: I) -> Result<I::Handle, CUresult> {
        let found = self.table::<I>().read().get(&id.number()).copied();
        found.map(I::handle_from).ok_or(CUresult::INVALID_HANDLE)
    }

    /// The number of a live object of the driver's.
    pub(crate) fn number_of<I: Id>(&self, handle: I::Handle) -> Option<I> {
        let live = self.table::<I>().read();
        let wanted = I::handle_number(handle);
        live.iter().find(|(_, handle)| **handle == wanted).map(|(number, _)| I::new(*number))
    }

    /// Returns the driver's handle of a live object, and frees the id.
    pub(crate) fn remove<I: Id>(&self, id: I) -> Result<I::Handle, CUresult> {
        let removed = self.table::<I>().write().remove(&id.number());
        removed.map(I::handle_from).ok_or(CUresult::INVALID_HANDLE)
    }

    /// Whether an object could be entered under this id.
    pub(crate) fn vacant<I: Id>(&self, id: I) -> Result<(), CUresult> {
        let live = self.table::<I>().read();
        if live.contains_key(&id.number()) {
            return Err(CUresult::INVALID_HANDLE);
        }
        if live.len() < most(I::KIND) { Ok(()) } else { Err(CUresult::OUT_OF_MEMORY) }
    }

    pub(crate) fn insert<I: Id>(&self, id: I, handle: I::Handle) -> Result<(), CUresult> {
        let mut live = self.table::<I>().write();
        if live.len() >= most(I::KIND) || live.contains_key(&id.number()) {
            return Err(CUresult::INVALID_HANDLE);
        }
        live.insert(id.number(), I::handle_number(handle));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sluice_cuda::{CUevent, CUstream};
    use sluice_wire::{EventId, StreamId};

    use super::*;

    #[test]
    fn forged_and_stale_ids_find_nothing() {
        let objects = Objects::default();
        objects.insert(StreamId(7), CUstream(70)).unwrap();
        assert_eq!(objects.find(StreamId(7)), Ok(CUstream(70)));
        for forged in [0, 1, 6, 8, u64::MAX, 7 << 32] {
            assert_eq!(objects.find(StreamId(forged)), Err(CUresult::INVALID_HANDLE));
            assert_eq!(objects.remove(StreamId(forged)), Err(CUresult::INVALID_HANDLE));
        }
        assert_eq!(objects.remove(StreamId(7)), Ok(CUstream(70)));
        assert_eq!(objects.remove(StreamId(7)), Err(CUresult::INVALID_HANDLE));
    }

    #[test]
    fn a_stream_is_no_event() {
        let objects = Objects::default();
        objects.insert(StreamId(7), CUstream(70)).unwrap();
        assert_eq!(objects.find(EventId(7)), Err(CUresult::INVALID_HANDLE));
        objects.insert(EventId(7), CUevent(71)).unwrap();
        assert_eq!(objects.find(StreamId(7)), Ok(CUstream(70)));
    }

    #[test]
    fn ids_are_taken_once_and_tables_are_bounded() {
        let objects = Objects::default();
        for id in 0..most(HandleKind::Stream) as u64 {
            objects.vacant(StreamId(id)).unwrap();
            objects.insert(StreamId(id), CUstream(1)).unwrap();
        }
        assert_eq!(objects.vacant(StreamId(1)), Err(CUresult::INVALID_HANDLE));
        assert_eq!(objects.insert(StreamId(1), CUstream(2)), Err(CUresult::INVALID_HANDLE));
        assert_eq!(objects.vacant(StreamId(99_999)), Err(CUresult::OUT_OF_MEMORY));
        objects.remove(StreamId(1)).unwrap();
        assert_eq!(objects.vacant(StreamId(99_999)), Ok(()));
    }
}
