//! Host memory for copies from the device: a bounded pool of pinned pieces.
//!
//! A piece is taken when a copy is submitted and comes back when its bytes are on their way to the client, or, where they may
//! have to be sent again and are many, when the client has them. A client that queues copies faster than it takes their data finds its
//! session waiting, and nobody else's.
//!
//! A far link holds more than the pool. A copy for which the client waits may then use memory that is not pinned, as much as
//! the window says ([`Staging::take_more`]), which goes as soon as the client has its bytes. The driver copies into it more slowly, and
//! still faster than such a link carries; an asynchronous copy never gets any, since the driver would hold up whoever submits it.

use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use sluice_cuda::{CUresult, DriverTable};
use sluice_wire::BULK_SIZE_MAX;
use sluice_wire::resume::WINDOW_MAX;

/// Bytes of one piece.
pub(crate) const PIECE: usize = BULK_SIZE_MAX;
/// Most pinned pieces of one session.
const PIECES_MAX: usize = 64;
/// With so many pieces in use the link is far: it is better filled by full pieces.
const MANY: usize = 16;
/// The memory belongs to all contexts (`CU_MEMHOSTALLOC_PORTABLE`).
const PORTABLE: u32 = 1;

/// The pool.
pub(crate) struct Staging {
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Default)]
struct State {
    /// Pinned pieces that nobody uses, and how many there are in all.
    free: Vec<Pinned>,
    made: usize,
    /// Pieces of other memory, all in use.
    more: usize,
}

impl State {
    fn in_use(&self) -> usize {
        self.made - self.free.len() + self.more
    }
}

/// A pinned piece; freed by the end of the process only.
struct Pinned(NonNull<u8>);

// SAFETY: a piece is plain memory that its holder alone uses.
unsafe impl Send for Pinned {}

enum Piece {
    Pinned(Pinned),
    Plain(Box<[u8]>),
}

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
        self.take_more(table, length, 0)
    }

    /// As [`Staging::take`], also of memory that is not pinned while less than `window` bytes are in use.
    pub(crate) fn take_more(
        self: &Arc<Staging>,
        table: &DriverTable,
        length: usize,
        window: u64,
    ) -> Result<Staged, CUresult> {
        assert!(length <= PIECE, "a copy is staged in pieces");
        let pieces_max = usize::try_from(window.min(WINDOW_MAX)).unwrap_or(0) / PIECE;
        let mut state = self.lock();
        let piece = loop {
            if let Some(piece) = state.free.pop() {
                break Piece::Pinned(piece);
            }
            if state.made < PIECES_MAX {
                let piece = pinned(table)?;
                state.made += 1;
                break Piece::Pinned(piece);
            }
            if state.in_use() < pieces_max {
                state.more += 1;
                break Piece::Plain(vec![0; PIECE].into());
            }
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        Ok(Staged { piece: Some(piece), length, pool: Arc::clone(self) })
    }

    /// Whether so much is on its way that pieces should be full.
    pub(crate) fn is_far(&self) -> bool {
        self.lock().in_use() >= MANY
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pinned(table: &DriverTable) -> Result<Pinned, CUresult> {
    let allocate = table.cuMemHostAlloc.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut address = std::ptr::null_mut();
    // SAFETY: the driver writes one pointer to a local.
    unsafe { allocate(&mut address, PIECE, PORTABLE) }.ok()?;
    NonNull::new(address.cast()).map(Pinned).ok_or(CUresult::OUT_OF_MEMORY)
}

impl Staged {
    /// Where the driver writes.
    pub(crate) fn address(&mut self) -> *mut std::ffi::c_void {
        match &mut self.piece {
            Some(Piece::Pinned(piece)) => piece.0.as_ptr().cast(),
            Some(Piece::Plain(piece)) => piece.as_mut_ptr().cast(),
            None => std::ptr::null_mut(),
        }
    }

    /// What the driver has written; only after the copy.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.piece {
            // SAFETY: a piece has `PIECE` bytes, of which the copy has written the first `length`.
            Some(Piece::Pinned(piece)) => unsafe {
                std::slice::from_raw_parts(piece.0.as_ptr(), self.length)
            },
            Some(Piece::Plain(piece)) => &piece[..self.length],
            None => &[],
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        match self.piece.take() {
            Some(Piece::Pinned(piece)) => {
                state.free.push(piece);
                self.pool.returned.notify_one();
            }
            Some(Piece::Plain(_)) => {
                state.more -= 1;
                // Not everybody who waits can use that.
                self.pool.returned.notify_all();
            }
            None => {}
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A driver whose pinned memory is any memory.
    pub(crate) fn table() -> DriverTable {
        unsafe extern "C" fn allocate(at: *mut *mut std::ffi::c_void, bytes: usize, _: u32) -> CUresult {
            // SAFETY: the pool gives a local for the address; the memory stays, as the pool's does.
            unsafe { *at = Box::leak(vec![0_u8; bytes].into_boxed_slice()).as_mut_ptr().cast() };
            CUresult::SUCCESS
        }
        DriverTable { cuMemHostAlloc: Some(allocate), ..DriverTable::EMPTY }
    }

    #[test]
    fn a_far_link_gets_as_many_pieces_as_its_window_has() {
        let (staging, table) = (Staging::new(), table());
        let window = ((PIECES_MAX + 3) * PIECE) as u64;
        let take = || staging.take_more(&table, 10, window).unwrap();
        let mut taken: Vec<_> = (0..MANY).map(|_| take()).collect();
        assert!(staging.is_far());
        taken.pop();
        assert!(!staging.is_far());
        taken.extend((0..PIECES_MAX + 4 - MANY).map(|_| take()));
        let state = || {
            let state = staging.lock();
            (state.made, state.more)
        };
        assert_eq!(state(), (PIECES_MAX, 3));
        for (number, staged) in taken.iter_mut().enumerate() {
            // SAFETY: every piece has so many bytes.
            unsafe { staged.address().cast::<u8>().write_bytes(number as u8, 10) };
        }
        assert!((0_u8..).zip(&taken).all(|(number, staged)| staged.bytes() == [number; 10]));
        std::thread::scope(|scope| {
            // Two wait: one that takes pinned memory only, and one that takes any.
            let pinned = scope.spawn(|| staging.take(&table, PIECE).unwrap());
            let any = scope.spawn(take);
            drop(std::mem::take(&mut taken));
            drop((pinned.join().unwrap(), any.join().unwrap()));
        });
        assert_eq!(state(), (PIECES_MAX, 0), "other memory is not kept");
        assert_eq!(staging.lock().free.len(), PIECES_MAX);
    }

    #[test]
    fn no_window_is_larger_than_the_largest() {
        let (staging, table) = (Staging::new(), table());
        let most = WINDOW_MAX as usize / PIECE;
        let _taken: Vec<_> = (0..most).map(|_| staging.take_more(&table, 1, u64::MAX).unwrap()).collect();
        assert_eq!(staging.lock().in_use(), most);
    }
}
