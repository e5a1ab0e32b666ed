//! Host memory for copies from the device, and for large ones to it: a bounded pool of pinned
//! pieces.
//!
//! For a copy to the device a piece is taken when the copy is submitted, and comes back when an
//! event behind the copy is reached: the thread that needs a piece looks. Where too many are out,
//! the one that has been out longest is waited for.
//!
//! For a copy from the device a piece is taken when a copy is submitted and comes back when its
//! bytes are in flight to the client, or, where they may have to be sent again and are many,
//! when the client has them. A client that queues copies faster than it takes their data finds its
//! session waiting, and no other session.
//!
//! A far link holds more than the pool. A copy for which the client waits may then use memory that
//! is not pinned, as much as the window says ([`Staging::take_more`]), which goes as soon as the
//! client has its bytes. The driver copies into it more slowly, and still faster than such a link
//! carries; an asynchronous copy never gets any, since the driver would hold up the thread that
//! submits it.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use sluice_cuda::{CUresult, CUstream, DriverTable};
use sluice_wire::BULK_SIZE_MAX;
use sluice_wire::resume::WINDOW_MAX;

use crate::schedule::event::Event;

/// Bytes of one piece.
pub(crate) const PIECE: usize = BULK_SIZE_MAX;
/// Most pinned pieces of one session.
const PIECES_MAX: usize = 64;
/// Most of them that copies to the device have.
const READ_MAX: usize = PIECES_MAX / 2;
/// With this number of pieces in use the link is far: it is better filled by full pieces.
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
    /// Pinned pieces that are not in use, and how many there are in all.
    free: Vec<Pinned>,
    made: usize,
    /// Pieces of other memory, all in use.
    more: usize,
    /// Pieces that copies to the device may still read, those that have been out longest first.
    read: VecDeque<Read>,
    /// How many of these a thread has taken out to look at, or waits for.
    watched: usize,
}

/// A piece that a copy in this stream reads before it comes to the event.
struct Read {
    piece: Pinned,
    stream: CUstream,
    behind: Event,
}

impl State {
    /// Pieces that the link has.
    fn in_use(&self) -> usize {
        self.made - self.free.len() - self.reading() + self.more
    }

    fn reading(&self) -> usize {
        self.read.len() + self.watched
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

    /// As [`Staging::take`], also of memory that is not pinned while less than `window` bytes are
    /// in use.
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
            if state.free.is_empty() && !state.read.is_empty() {
                state = self.look(state);
            }
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
            state = match state.read.pop_front() {
                Some(oldest) => self.wait_for(state, oldest),
                None => self.returned.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        };
        Ok(Staged { piece: Some(piece), length, pool: Arc::clone(self) })
    }

    /// A piece with these bytes, at most [`PIECE`], for a copy to the device in this stream. Where
    /// it has to wait, it waits for the stream's own copies if it can: others may not continue
    /// before later ones have been submitted.
    pub(crate) fn take_for_device(
        self: &Arc<Staging>,
        table: &DriverTable,
        stream: CUstream,
        bytes: &[u8],
    ) -> Result<Staged, CUresult> {
        let mut state = self.lock();
        while state.reading() >= READ_MAX {
            state = self.look(state);
            if state.reading() < READ_MAX {
                break;
            }
            let own = state.read.iter().position(|read| read.stream == stream);
            state = match state.read.remove(own.unwrap_or(0)) {
                Some(oldest) => self.wait_for(state, oldest),
                None => self.returned.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        drop(state);
        let mut staged = self.take(table, bytes.len())?;
        // SAFETY: a piece has room for `PIECE` bytes, which `take` has compared, and is ours.
        unsafe { staged.address().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(staged)
    }

    /// Takes back what copies to the device have read. The driver is asked without the lock, which
    /// threads that send to the client take.
    fn look<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let looked_at = std::mem::take(&mut state.read);
        let count = looked_at.len();
        state.watched += count;
        drop(state);
        let (reached, mut still) =
            looked_at.into_iter().partition::<VecDeque<_>, _>(|read| read.behind.is_reached());
        let mut state = self.lock();
        state.watched -= count;
        state.free.extend(reached.into_iter().map(|read| read.piece));
        // What others have lent meanwhile is younger.
        still.append(&mut state.read);
        state.read = still;
        self.returned.notify_all();
        state
    }

    /// Waits for a copy to the device, without the lock.
    fn wait_for<'a>(&'a self, mut state: MutexGuard<'a, State>, read: Read) -> MutexGuard<'a, State> {
        state.watched += 1;
        drop(state);
        // A stream that has failed reads nothing any more.
        let _ = read.behind.wait();
        let mut state = self.lock();
        state.watched -= 1;
        state.free.push(read.piece);
        self.returned.notify_all();
        state
    }

    /// Whether enough is in flight that pieces should be full.
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

    /// The piece comes back when the stream, in which a copy reads it, has come to this event.
    pub(crate) fn give_back_behind(mut self, stream: CUstream, behind: Event) {
        match self.piece.take() {
            Some(Piece::Pinned(piece)) => self.pool.lock().read.push_back(Read { piece, stream, behind }),
            // No thread gets other memory for a copy to the device.
            plain => self.piece = plain,
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
                // Not every thread that waits can use that.
                self.pool.returned.notify_all();
            }
            None => {}
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use sluice_cuda::CUevent;

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

    /// Events that streams have come to, by number.
    static REACHED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());
    static CHANGED: Condvar = Condvar::new();

    fn reach(event: usize) {
        REACHED.lock().unwrap().insert(event);
        CHANGED.notify_all();
    }

    unsafe extern "C" fn create(at: *mut CUevent, _: u32) -> CUresult {
        static NUMBERS: AtomicUsize = AtomicUsize::new(1);
        // SAFETY: the caller gives a local.
        unsafe { *at = CUevent(NUMBERS.fetch_add(1, Relaxed)) };
        CUresult::SUCCESS
    }

    unsafe extern "C" fn query(event: CUevent) -> CUresult {
        let reached = REACHED.lock().unwrap().contains(&event.0);
        if reached { CUresult::SUCCESS } else { CUresult::NOT_READY }
    }

    unsafe extern "C" fn synchronize(event: CUevent) -> CUresult {
        drop(CHANGED.wait_while(REACHED.lock().unwrap(), |reached| !reached.contains(&event.0)).unwrap());
        CUresult::SUCCESS
    }

    fn table_with_events() -> DriverTable {
        DriverTable {
            cuEventCreate: Some(create),
            cuEventQuery: Some(query),
            cuEventSynchronize: Some(synchronize),
            ..table()
        }
    }

    /// Has a copy in a stream read a piece; the number of the event behind it.
    fn lend(staging: &Arc<Staging>, table: &DriverTable, stream: usize) -> usize {
        let piece = staging.take_for_device(table, CUstream(stream), b"some bytes").unwrap();
        assert_eq!(piece.bytes(), b"some bytes");
        let behind = Event::new(table).unwrap();
        let number = behind.number();
        piece.give_back_behind(CUstream(stream), behind);
        number
    }

    #[test]
    fn what_a_copy_to_the_device_reads_comes_back_behind_it() {
        let (staging, table) = (Staging::new(), table_with_events());
        let events = [5, 5, 6].map(|stream| lend(&staging, &table, stream));
        assert!(staging.lock().made == 3 && staging.lock().in_use() == 0, "it is not the link that has them");
        lend(&staging, &table, 5);
        assert_eq!(staging.lock().made, 4, "no event is reached");
        [events[0], events[2]].into_iter().for_each(reach);
        lend(&staging, &table, 5);
        lend(&staging, &table, 5);
        assert_eq!(staging.lock().made, 4);
        lend(&staging, &table, 5);
        assert_eq!(staging.lock().made, 5);
    }

    #[test]
    fn a_stream_waits_for_its_own_copies_first() {
        let (staging, table) = (Staging::new(), table_with_events());
        let held = lend(&staging, &table, 5);
        let own: Vec<_> = (1..READ_MAX).map(|_| lend(&staging, &table, 6)).collect();
        std::thread::scope(|scope| {
            let more = scope.spawn(|| lend(&staging, &table, 6));
            reach(own[0]);
            more.join().unwrap();
            assert_eq!(staging.lock().read.front().map(|read| read.behind.number()), Some(held));
            let other = scope.spawn(|| lend(&staging, &table, 7));
            reach(held);
            other.join().unwrap();
        });
        assert!(staging.lock().reading() == READ_MAX && staging.lock().made == READ_MAX);
        let most: Vec<_> = (READ_MAX..PIECES_MAX).map(|_| staging.take(&table, 1).unwrap()).collect();
        std::thread::scope(|scope| {
            let from_the_device = scope.spawn(|| staging.take(&table, 1).unwrap());
            own.iter().for_each(|event| reach(*event));
            drop(from_the_device.join().unwrap());
        });
        assert_eq!(staging.lock().in_use(), most.len());
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
            // SAFETY: every piece has this number of bytes.
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
