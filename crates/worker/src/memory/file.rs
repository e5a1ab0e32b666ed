//! A file that holds parked extents for which host memory has no room. It has no name, and goes
//! with its last descriptor; the daemon opens it, since a confined worker opens no files.
//!
//! What is written is sealed, block by block (AES-256-GCM): the key and the tags of all blocks are
//! in the memory of this process alone. A file is written once and read from then on, with a key of
//! its own, so a block's number is its nonce. A change of the file, also back to what was in it
//! before, is noticed when it is read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

use super::host::HostPiece;

/// Bytes that are sealed, written and read at a time.
const BLOCK: usize = 2 << 20;
/// Most threads that do that for one extent.
const WORKERS_MAX: usize = 4;

/// An open file, and what it is sealed with.
pub(crate) struct SwapFile {
    file: File,
    key: LessSafeKey,
}

/// The bytes of one extent in a file.
pub(crate) struct FilePiece {
    shared: Arc<SwapFile>,
    first: u32,
    bytes: u64,
    tags: Vec<Tag>,
}

/// Why bytes could not be read back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unread {
    #[error("the swap file cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("the swap file does not hold what was written there: it was damaged or changed")]
    Damaged,
}

impl std::fmt::Debug for SwapFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SwapFile").field("file", &self.file).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for FilePiece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FilePiece").field("first", &self.first).field("bytes", &self.bytes).finish()
    }
}

impl SwapFile {
    /// A place in an empty file for a piece of each of these sizes, one behind the other. The disk
    /// has room for all of them: so a disk that is full is noticed before anything moves.
    pub(crate) fn places(file: File, sizes: &[u64]) -> io::Result<Vec<FilePiece>> {
        let blocks: u64 = sizes.iter().map(|bytes| bytes.div_ceil(BLOCK as u64)).sum();
        let length = libc::off_t::try_from(blocks * BLOCK as u64).map_err(|_| io::ErrorKind::FileTooLarge)?;
        u32::try_from(blocks).map_err(|_| io::ErrorKind::FileTooLarge)?;
        if length > 0 {
            // SAFETY: plain numbers, and a descriptor that is open.
            let status = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length) };
            if status != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        let mut secret = [0; 32];
        let failed = |_| io::Error::other("the system has no random numbers");
        SystemRandom::new().fill(&mut secret).map_err(failed)?;
        let key = UnboundKey::new(&AES_256_GCM, &secret).map_err(failed)?;
        // This copy is not needed; the key has its own, and a compiler may have made others.
        std::hint::black_box(&mut secret).fill(0);
        let shared = Arc::new(SwapFile { file, key: LessSafeKey::new(key) });
        let mut next = 0;
        let places = sizes.iter().map(|&bytes| {
            let first = next;
            next += bytes.div_ceil(BLOCK as u64) as u32;
            FilePiece { shared: Arc::clone(&shared), first, bytes, tags: Vec::new() }
        });
        Ok(places.collect())
    }

    fn write(&self, block: u32, bytes: &mut [u8]) -> io::Result<Tag> {
        let sealed = self.key.seal_in_place_separate_tag(nonce(block), Aad::empty(), bytes);
        let tag = sealed.map_err(|_| io::Error::other("a block could not be sealed"))?;
        self.file.write_all_at(bytes, offset(block))?;
        Ok(tag)
    }

    /// Waits until the disk has what was written.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn read(&self, block: u32, tag: Tag, bytes: &mut [u8]) -> Result<(), Unread> {
        self.file.read_exact_at(bytes, offset(block)).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Unread::Damaged,
            _ => Unread::Io(error),
        })?;
        let opened = self.key.open_in_place_separate_tag(nonce(block), Aad::empty(), tag, bytes, 0..);
        opened.map(drop).map_err(|_| Unread::Damaged)
    }
}

impl FilePiece {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The file, with the pieces of all other extents.
    pub(crate) fn file(&self) -> &SwapFile {
        &self.shared
    }

    /// Writes the bytes of an extent, which are of no use in `piece` afterwards.
    pub(crate) fn fill(&mut self, piece: &mut HostPiece) -> io::Result<()> {
        let (shared, first) = (&*self.shared, self.first);
        let write = |index: u32, (block, ()): (&mut [u8], ())| shared.write(first + index, block);
        let blocks = piece.bytes_mut().chunks_mut(BLOCK).map(|block| (block, ()));
        self.tags = on_threads(blocks.collect(), write)?;
        Ok(())
    }

    /// Reads the bytes back, and checks that they are what was written. `piece` is as large.
    pub(crate) fn read(&self, piece: &mut HostPiece) -> Result<(), Unread> {
        let (shared, first) = (&*self.shared, self.first);
        let read = |index: u32, (block, tag): (&mut [u8], Tag)| shared.read(first + index, tag, block);
        let blocks = piece.bytes_mut().chunks_mut(BLOCK).zip(self.tags.iter().copied());
        on_threads(blocks.collect(), read).map(drop)
    }
}

/// Does something with each of these, by their places, on a few threads; the first error is
/// returned once all have been tried.
fn on_threads<T: Send, R: Send, E: Send>(
    items: Vec<T>,
    act: impl Fn(u32, T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let workers = thread::available_parallelism().map_or(1, usize::from).min(WORKERS_MAX).min(items.len());
    let left = Mutex::new((0..).zip(items));
    let done = Mutex::new(BTreeMap::new());
    let work = || {
        loop {
            // The lock is released before the work begins.
            let next = left.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((place, item)) = next else { return };
            let result = act(place, item);
            done.lock().unwrap_or_else(PoisonError::into_inner).insert(place, result);
        }
    };
    thread::scope(|scope| {
        for _ in 1..workers {
            // This thread does what the system has no more threads for.
            if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}

fn nonce(block: u32) -> Nonce {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&block.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

fn offset(block: u32) -> u64 {
    u64::from(block) * BLOCK as u64
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd;
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    const SIZES: [u64; 3] = [BLOCK as u64 * 3 + 4096, 4096, BLOCK as u64 * 9];

    fn unnamed() -> File {
        let folder = std::env::temp_dir();
        let flags = libc::O_TMPFILE | libc::O_CLOEXEC;
        File::options().read(true).write(true).custom_flags(flags).mode(0o600).open(folder).unwrap()
    }

    fn contents(piece: &mut HostPiece, seed: u8) {
        for (place, byte) in piece.bytes_mut().iter_mut().enumerate() {
            *byte = (place / 7 % 251) as u8 ^ seed;
        }
    }

    /// Pieces of these sizes in a file, and the file.
    fn written() -> (Vec<FilePiece>, File) {
        let file = unnamed();
        let same = file.try_clone().unwrap();
        let mut pieces = SwapFile::places(file, &SIZES).unwrap();
        for (seed, piece) in (1..).zip(&mut pieces) {
            let mut bytes = HostPiece::new(piece.bytes()).unwrap();
            contents(&mut bytes, seed);
            piece.fill(&mut bytes).unwrap();
        }
        (pieces, same)
    }

    #[test]
    fn what_is_written_is_sealed_and_comes_back() {
        let (pieces, file) = written();
        let mut block = vec![0; BLOCK];
        file.read_exact_at(&mut block, 0).unwrap();
        let mut expect = HostPiece::new(SIZES[0]).unwrap();
        contents(&mut expect, 1);
        assert!(block.windows(16).all(|part| part != &expect.bytes_mut()[..16]), "it is not readable");
        for (seed, piece) in (1..).zip(&pieces) {
            let mut bytes = HostPiece::new(piece.bytes()).unwrap();
            piece.read(&mut bytes).unwrap();
            let mut expect = HostPiece::new(piece.bytes()).unwrap();
            contents(&mut expect, seed);
            assert!(bytes.bytes_mut() == expect.bytes_mut());
        }
    }

    #[test]
    fn what_was_changed_is_not_taken_for_what_was_written() {
        let (pieces, file) = written();
        let read = |piece: &FilePiece| piece.read(&mut HostPiece::new(piece.bytes()).unwrap());
        let mut block = vec![0; BLOCK];
        file.read_exact_at(&mut block, offset(1)).unwrap();
        file.write_all_at(&block, offset(2)).unwrap();
        assert!(matches!(read(&pieces[0]), Err(Unread::Damaged)), "a block of another place");
        read(&pieces[1]).unwrap();
        file.write_all_at(b"x", offset(pieces[1].first) + 4095).unwrap();
        assert!(matches!(read(&pieces[1]), Err(Unread::Damaged)), "one byte");
        read(&pieces[2]).unwrap();
        file.set_len(offset(pieces[2].first + 3)).unwrap();
        assert!(matches!(read(&pieces[2]), Err(Unread::Damaged)), "cut off");
    }

    #[test]
    fn a_file_that_cannot_be_written_says_so() {
        let cannot_write = memory_file(libc::F_SEAL_WRITE);
        let mut piece = SwapFile::places(cannot_write, &SIZES[..1]).unwrap().remove(0);
        let error = piece.fill(&mut HostPiece::new(SIZES[0]).unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let cannot_grow = memory_file(libc::F_SEAL_GROW);
        assert!(SwapFile::places(cannot_grow, &SIZES).is_err());
    }

    /// A file that is in memory alone, and refuses something.
    fn memory_file(seal: i32) -> File {
        // SAFETY: the name is a literal, and the descriptor that comes back is ours alone.
        let file = unsafe {
            let fd = libc::memfd_create(c"swap".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
            assert!(fd >= 0, "{}", io::Error::last_os_error());
            File::from_raw_fd(fd)
        };
        // SAFETY: plain numbers, and a descriptor that is open.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seal) }, 0);
        file
    }

    #[test]
    fn each_file_has_a_key_of_its_own() {
        let sealed = || {
            let file = unnamed();
            let same = file.try_clone().unwrap();
            let mut piece = SwapFile::places(file, &SIZES[1..2]).unwrap().remove(0);
            piece.fill(&mut HostPiece::new(SIZES[1]).unwrap()).unwrap();
            let mut bytes = vec![0; SIZES[1] as usize];
            same.read_exact_at(&mut bytes, 0).unwrap();
            bytes
        };
        assert_ne!(sealed(), sealed());
    }

    #[test]
    fn threads_take_what_is_left_and_the_order_stays() {
        let doubled = on_threads((0..1000).collect(), |place, item: u32| Ok::<_, ()>((place, 2 * item)));
        assert_eq!(doubled.unwrap(), (0..1000).map(|item| (item, 2 * item)).collect::<Vec<_>>());
        let odd =
            on_threads((0..10).collect(), |_, item: u32| if item % 4 == 3 { Err(item) } else { Ok(()) });
        assert_eq!(odd.unwrap_err(), 3, "the first error");
        assert_eq!(on_threads(Vec::new(), |_, ()| Ok::<_, ()>(())), Ok(Vec::new()));
    }

    #[test]
    fn a_file_that_is_too_large_is_refused_before_anything_is_written() {
        let file = unnamed();
        let error = SwapFile::places(file.try_clone().unwrap(), &[1 << 50]).unwrap_err();
        assert!(error.raw_os_error().is_some() || error.kind() == io::ErrorKind::FileTooLarge, "{error}");
        assert_eq!(file.metadata().unwrap().len(), 0);
    }
}
