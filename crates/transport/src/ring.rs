//! A byte ring between two processes: one writes, the other reads, neither waits for the other to
//! copy.
//!
//! ```text
//!   written: bytes ever written (mod 2^32)      read: bytes ever read (mod 2^32)
//!   [ ...free... | read .. written: to be read | ...free... ]      written - read <= RING_BYTES
//! ```
//!
//! Each side keeps its own position in memory of its own and publishes it; the peer's is checked at
//! every look. A peer that publishes nonsense gets an error here, and one that changes bytes while
//! they are copied spoils its own bytes only: they are copied out once, and looked at afterwards.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use sluice_copy::Stores;

use crate::stores::Choice;

/// Bytes of a ring: both rings of a session fit a core's second-level cache, where copying is
/// fastest.
pub(crate) const RING_BYTES: usize = 1 << 20;

/// Data of this size are large: they may be written with non-temporal stores.
const LARGE: usize = 64 << 10;

/// One side's position, in a cache line of its own (two, since processors fetch them in pairs).
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub(crate) struct Position(AtomicU32);

/// The writer's position, and how it stores large data, so that the reader does likewise: not zero
/// is with non-temporal stores.
#[repr(C, align(128))]
#[derive(Debug, Default)]
struct Written {
    position: AtomicU32,
    past_caches: AtomicU32,
}

/// What both sides see of a ring besides its bytes.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Positions {
    written: Written,
    read: Position,
}

impl Positions {
    /// As the writer says; nothing follows from it but how fast the reader's copies are.
    fn stores(&self) -> Stores {
        match self.written.past_caches.load(Ordering::Relaxed) {
            0 => Stores::ThroughCaches,
            _ => Stores::PastCaches,
        }
    }
}

/// A ring in shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    positions: NonNull<Positions>,
    bytes: NonNull<u8>,
}

// SAFETY: shared positions are atomic; bytes are only touched by the one `Writer` and the one
// `Reader` of a process, where the positions give them to it.
unsafe impl Send for Ring {}

impl Ring {
    /// # Safety
    /// `positions` and the `RING_BYTES` bytes at `bytes`, and once more the same bytes behind them,
    /// are mapped for writing as long as this ring and what is made of it are used. Nothing in this
    /// process reads or writes those bytes otherwise, and there is at most one writer and one
    /// reader of it in this process.
    pub(crate) unsafe fn new(positions: NonNull<Positions>, bytes: NonNull<u8>) -> Ring {
        Ring { positions, bytes }
    }

    fn positions(&self) -> &Positions {
        // SAFETY: mapped as `new` was promised, and all its fields are atomic.
        unsafe { self.positions.as_ref() }
    }

    /// Where a position is. As the ring is mapped twice, up to `RING_BYTES` bytes from there on lie
    /// in one piece.
    fn at(&self, position: u32) -> *mut u8 {
        // SAFETY: within the first of the two mappings.
        unsafe { self.bytes.as_ptr().add(position as usize % RING_BYTES) }
    }

    /// Bytes written and not yet read, if the two positions can be true.
    fn filled(written: u32, read: u32) -> io::Result<usize> {
        let filled = written.wrapping_sub(read) as usize;
        if filled <= RING_BYTES { Ok(filled) } else { Err(nonsense()) }
    }
}

fn nonsense() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the peer's position in the shared memory is impossible")
}

/// The side that writes.
#[derive(Debug)]
pub(crate) struct Writer {
    ring: Ring,
    written: u32,
    choice: Choice,
}

impl Writer {
    pub(crate) fn new(ring: Ring) -> Writer {
        Writer { ring, written: 0, choice: Choice::default() }
    }

    /// Bytes that fit now.
    pub(crate) fn room(&self) -> io::Result<usize> {
        let read = self.ring.positions().read.0.load(Ordering::Acquire);
        Ok(RING_BYTES - Ring::filled(self.written, read)?)
    }

    /// Writes a beginning of `bytes`, as much as fits, and says how much that was.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.room()?);
        let to = self.ring.at(self.written);
        self.store(bytes.len() >= LARGE, count, || {
            // SAFETY: `count` bytes of the ring from there on are the writer's: they are not
            // filled. The source is a slice of this process, which the ring is not part of.
            unsafe { sluice_copy::copy(bytes.as_ptr(), to, count) }
            Ok::<_, io::Error>(())
        })?;
        self.publish(count);
        Ok(count)
    }

    /// Writes `head` and then `count` bytes that `fill` writes where they go, which is given by its
    /// start. The reader sees all of it or, after an error of `fill`, nothing. `None` if there is
    /// no room now.
    pub(crate) fn write_in_place<E>(
        &mut self,
        head: &[u8],
        count: usize,
        fill: impl FnOnce(*mut u8) -> Result<(), E>,
    ) -> io::Result<Option<Result<(), E>>> {
        if self.room()? < head.len() + count {
            return Ok(None);
        }
        let start = self.ring.at(self.written);
        // SAFETY: that many bytes of the ring from there on are the writer's: they are not filled.
        let rest = unsafe {
            std::ptr::copy_nonoverlapping(head.as_ptr(), start, head.len());
            start.add(head.len())
        };
        let filled = self.store(count >= LARGE, count, || fill(rest));
        if filled.is_ok() {
            self.publish(head.len() + count);
        }
        Ok(Some(filled))
    }

    /// Has `work` store bytes in the ring, large data in the way that is faster now. What a device
    /// stores itself, or another thread of a driver, goes its own way, and counts for what it is
    /// worth.
    fn store<E>(
        &mut self,
        is_large: bool,
        count: usize,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        if !is_large {
            return work();
        }
        let (stores, begin) = (self.choice.stores(), Instant::now());
        sluice_copy::with(stores, work)?;
        self.choice.wrote(count, begin, Instant::now());
        let past_caches = u32::from(stores == Stores::PastCaches);
        self.ring.positions().written.past_caches.store(past_caches, Ordering::Relaxed);
        Ok(())
    }

    fn publish(&mut self, count: usize) {
        self.written = self.written.wrapping_add(count as u32);
        self.ring.positions().written.position.store(self.written, Ordering::Release);
    }
}

/// The side that reads.
#[derive(Debug)]
pub(crate) struct Reader {
    ring: Ring,
    read: u32,
}

impl Reader {
    pub(crate) fn new(ring: Ring) -> Reader {
        Reader { ring, read: 0 }
    }

    /// Bytes that are there.
    pub(crate) fn filled(&self) -> io::Result<usize> {
        let written = self.ring.positions().written.position.load(Ordering::Acquire);
        Ring::filled(written, self.read)
    }

    /// Gives what is there, at most `limit` bytes, to `take`: start and length of memory that it
    /// may read until it returns. The peer can change those bytes meanwhile, and spoils its own
    /// stream only. What `take` copies of them goes the writer's way.
    pub(crate) fn read_in_place(
        &mut self,
        limit: usize,
        take: impl FnOnce(*const u8, usize),
    ) -> io::Result<usize> {
        let count = limit.min(self.filled()?);
        if count > 0 {
            sluice_copy::with(self.ring.positions().stores(), || take(self.ring.at(self.read), count));
            self.give_back(count);
        }
        Ok(count)
    }

    /// Reads as much as is there and fits, and says how much that was.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.read_in_place(into.len(), |from, count| {
            // SAFETY: `count` bytes from there on can be read, and fit the target, a slice of this
            // process, which the ring is not part of. Only a peer that breaks the rules writes
            // there meanwhile, and then the copy has some of its bytes or others.
            unsafe { sluice_copy::copy(from, into.as_mut_ptr(), count) }
        })
    }

    fn give_back(&mut self, count: usize) {
        self.read = self.read.wrapping_add(count as u32);
        self.ring.positions().read.0.store(self.read, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    use crate::rings::{Rings, Side};

    /// A ring whose positions begin anywhere.
    struct Fixture {
        positions: Box<Positions>,
        memory: Rings,
    }

    impl Fixture {
        fn new(start: u32) -> Fixture {
            let positions = Box::new(Positions::default());
            positions.written.position.store(start, Ordering::Relaxed);
            positions.read.0.store(start, Ordering::Relaxed);
            Fixture { positions, memory: Rings::create().unwrap().0 }
        }

        fn sides(&mut self, start: u32) -> (Writer, Reader) {
            // SAFETY: the fixture outlives the sides in every test, touches neither part meanwhile,
            // and uses one ring of it.
            let ring = unsafe {
                let bytes = self.memory.ends(Side::Client).0.bytes;
                Ring::new(NonNull::from(&*self.positions), bytes)
            };
            (Writer { written: start, ..Writer::new(ring) }, Reader { ring, read: start })
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Against a queue: any mix of writes and reads, from any position, also across the wrap of
        /// the ring and of 2^32.
        #[test]
        fn what_is_read_is_what_was_written(
            start in prop_oneof![Just(0), Just(u32::MAX - 5), any::<u32>()],
            steps in prop::collection::vec((any::<bool>(), any::<bool>(), 0..=2 * RING_BYTES), 1..20),
        ) {
            let mut fixture = Fixture::new(start);
            let (mut writer, mut reader) = fixture.sides(start);
            let mut model = VecDeque::new();
            let mut next = 0_u8;
            for (is_write, in_place, size) in steps {
                if is_write && in_place {
                    let head = &[next; 40][..size.min(40)];
                    let room = RING_BYTES - model.len();
                    let refused = writer.write_in_place(head, size, |_| Err(())).unwrap();
                    prop_assert!(refused.is_none_or(|result| result.is_err()));
                    let written = writer.write_in_place(head, size, |start| {
                        // SAFETY: what the ring gives can be written while this runs.
                        let part = unsafe { std::slice::from_raw_parts_mut(start, size) };
                        part.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i % 249) as u8);
                        Ok::<_, ()>(())
                    });
                    let fits = head.len() + size <= room;
                    prop_assert_eq!(written.unwrap(), fits.then_some(Ok(())));
                    if fits {
                        model.extend(head);
                        model.extend((0..size).map(|i| (i % 249) as u8));
                    }
                } else if is_write {
                    let bytes: Vec<u8> = (0..size).map(|i| next.wrapping_add((i % 251) as u8)).collect();
                    let room = RING_BYTES - model.len();
                    prop_assert_eq!(writer.room().unwrap(), room);
                    let count = writer.write(&bytes).unwrap();
                    prop_assert_eq!(count, size.min(room));
                    model.extend(&bytes[..count]);
                    next = next.wrapping_add(17);
                } else if in_place {
                    let mut taken = Vec::new();
                    let count = reader.read_in_place(size, |start, count| {
                        // SAFETY: what the ring gives can be read while this runs.
                        taken = unsafe { std::slice::from_raw_parts(start, count) }.to_vec();
                    });
                    prop_assert_eq!(count.unwrap(), taken.len());
                    prop_assert_eq!(taken.len(), size.min(model.len()));
                    let expected: Vec<u8> = model.drain(..taken.len()).collect();
                    prop_assert_eq!(taken, expected);
                } else {
                    let mut into = vec![0; size];
                    prop_assert_eq!(reader.filled().unwrap(), model.len());
                    let count = reader.read(&mut into).unwrap();
                    let expected: Vec<u8> = model.drain(..size.min(model.len())).collect();
                    prop_assert_eq!(&into[..count], &expected);
                }
            }
        }

        /// A peer that publishes any position gives an error, or bytes within the ring, and nothing
        /// else.
        #[test]
        fn a_hostile_position_is_an_error(ours in any::<u32>(), theirs in any::<u32>()) {
            let mut fixture = Fixture::new(ours);
            let (mut writer, mut reader) = fixture.sides(ours);
            let mut into = vec![0; 2 * RING_BYTES];

            fixture.positions.written.position.store(theirs, Ordering::Relaxed);
            let claimed = theirs.wrapping_sub(ours) as usize;
            match reader.read(&mut into) {
                Ok(count) => prop_assert!(count == claimed && claimed <= RING_BYTES),
                Err(error) => prop_assert!(claimed > RING_BYTES && error.kind() == io::ErrorKind::InvalidData),
            }

            fixture.positions.read.0.store(theirs, Ordering::Relaxed);
            let claimed = ours.wrapping_sub(theirs) as usize;
            match writer.write(&into) {
                Ok(count) => prop_assert_eq!(count, RING_BYTES - claimed),
                Err(error) => prop_assert!(claimed > RING_BYTES && error.kind() == io::ErrorKind::InvalidData),
            }
        }
    }

    #[test]
    fn both_sides_store_large_data_as_the_writer_chooses() {
        for chosen in [Stores::ThroughCaches, Stores::PastCaches] {
            let mut fixture = Fixture::new(0);
            let (mut writer, mut reader) = fixture.sides(0);
            writer.choice = Choice::of(chosen);
            let mut seen = Vec::new();
            for count in [LARGE, LARGE - 1] {
                let see = |_| {
                    seen.push(sluice_copy::stores());
                    Ok::<_, ()>(())
                };
                assert_eq!(writer.write_in_place(&[], count, see).unwrap(), Some(Ok(())));
                reader.read_in_place(RING_BYTES, |_, _| seen.push(sluice_copy::stores())).unwrap();
            }
            // The reader of what is little may still do as before.
            assert_eq!(seen, [chosen, chosen, Stores::ThroughCaches, chosen]);
            assert_eq!(sluice_copy::stores(), Stores::ThroughCaches);
        }
    }

    #[test]
    fn positions_have_cache_lines_of_their_own() {
        assert_eq!(size_of::<Positions>(), 256);
        assert!(RING_BYTES.is_power_of_two(), "positions wrap at 2^32, a multiple of the ring");
    }

    #[test]
    fn two_threads_pass_a_stream_through() {
        const TOTAL: usize = 20 * RING_BYTES;
        let mut fixture = Fixture::new(u32::MAX - 1000);
        let (mut writer, mut reader) = fixture.sides(u32::MAX - 1000);
        let byte = |at: usize| (at % 253) as u8;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut sent = 0;
                while sent < TOTAL {
                    let bytes: Vec<u8> = (sent..TOTAL.min(sent + 70_001)).map(byte).collect();
                    sent += writer.write(&bytes).unwrap();
                    std::thread::yield_now();
                }
            });
            let mut into = vec![0; 50_000];
            let mut received = 0;
            while received < TOTAL {
                let count = reader.read(&mut into).unwrap();
                assert!(into[..count].iter().enumerate().all(|(i, &b)| b == byte(received + i)));
                received += count;
                std::thread::yield_now();
            }
        });
    }
}
