//! Pinned host memory for copies from the device: a bounded pool of pieces.
//!
//! A piece is taken when a copy is submitted and comes back when its bytes are on their way to the client. A client
//! that queues copies faster than it takes their data finds its session waiting, and nobody else's.

use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use sluice_cuda::{CUresult, DriverTable};
use sluice_wire::BULK_SIZE_MAX;

/// Bytes of one piece.
pub(crate) const PIECE: usize = BULK_SIZE_MAX;
/// Most pieces of one session.
const PIECES_MAX: usize = 64;
/// The memory belongs to all contexts (`CU_MEMHOSTALLOC_PORTABLE`).
const PORTABLE: u32 = 1;

/// The pool.
pub(crate) struct Staging {
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Default)]
struct State {
    free: Vec<Piece>,
    made: usize,
}

/// A piece that nobody uses; freed by the end of the process only.
struct Piece(NonNull<u8>);

// SAFETY: a piece is plain memory that its holder alone uses.
unsafe impl Send for Piece {}

/// A piece in use.
pub(crate) struct Staged {
    piece: Option<Piece>,
    length: usize,
    pool: Arc<Staging>,
}

impl Staging {
    pub(crate) fn new() -> Arc<Staging> {
        Arc::new(Staging { state: Mutex::default(), returned: Condvar::new() })
    }

    /// Takes a piece for `length` bytes, at most [`PIECE`]; waits while all are in use.
    pub(crate) fn take(self: &Arc<Staging>, table: &DriverTable, length: usize) -> Result<Staged, CUresult> {
        assert!(length <= PIECE, "a copy is staged in pieces");
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let piece = loop {
            if let Some(piece) = state.free.pop() {
                break piece;
            }
            if state.made < PIECES_MAX {
                let piece = pinned(table)?;
                state.made += 1;
                break piece;
            }
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        Ok(Staged { piece: Some(piece), length, pool: Arc::clone(self) })
    }
}

fn pinned(table: &DriverTable) -> Result<Piece, CUresult> {
    let allocate = table.cuMemHostAlloc.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut address = std::ptr::null_mut();
    // SAFETY: the driver writes one pointer to a local.
    unsafe { allocate(&mut address, PIECE, PORTABLE) }.ok()?;
    NonNull::new(address.cast()).map(Piece).ok_or(CUresult::OUT_OF_MEMORY)
}

impl Staged {
    /// Where the driver writes.
    pub(crate) fn address(&self) -> *mut std::ffi::c_void {
        self.piece.as_ref().map_or(std::ptr::null_mut(), |piece| piece.0.as_ptr().cast())
    }

    /// What the driver has written; only after the copy.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.piece {
            // SAFETY: a piece has `PIECE` bytes, of which the copy has written the first `length`.
            Some(piece) => unsafe { std::slice::from_raw_parts(piece.0.as_ptr(), self.length) },
            None => &[],
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.free.extend(self.piece.take());
        self.pool.returned.notify_one();
    }
}
