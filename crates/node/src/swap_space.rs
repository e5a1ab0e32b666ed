//! Where memory goes that has left GPUs: host memory, and a file for what that has no room for.
//!
//! Each session that needs the file gets one of its own when its memory leaves, without a name and
//! for its worker alone, which seals what it writes. With its last descriptor the file is gone, and
//! its disk has the room again: when the memory returns, and when the worker ends, however it does.
//!
//! A disk can take long to make a file, or not answer at all. So a thread makes files ahead, of
//! which a session gets one that is ready, or is asked to leave again later.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::lease::bytes_text;

/// A file for memory that has left GPUs, as [`crate::NodeConfig`] says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapFileConfig {
    /// A folder on a disk that has files without names (`O_TMPFILE`).
    pub folder: PathBuf,
    /// Most bytes of all sessions together; half of what the disk has left unless said.
    pub bytes: Option<u64>,
}

/// The least that a file is of use for, and what may stay unused of the memory in front of it: the
/// memory of a session moves in pieces of up to this size.
const PIECE: u64 = 64 << 20;

/// Files that are ready beforehand.
const READY: usize = 8;

/// Why there is no file.
#[derive(Debug, thiserror::Error)]
pub enum SwapFileError {
    #[error("--swap-file: {}: {source}", folder.display())]
    Folder { folder: PathBuf, source: io::Error },
    #[error(
        "--swap-file: {}: a file without a name, with room that is kept for it, cannot be made there ({source}); name a folder of a local disk, such as ext4 or XFS",
        folder.display()
    )]
    Unnamed { folder: PathBuf, source: io::Error },
    #[error(
        "--swap-file: {}: files there are in this machine's memory (tmpfs), which --swap-memory has already; name a folder of a local disk, such as ext4 or XFS",
        .0.display()
    )]
    InMemory(PathBuf),
    #[error("--swap-file: no thread can be started that makes files: {0}")]
    Thread(#[source] io::Error),
    #[error("--swap-file: {}: {} are asked for, and its disk has {} left", folder.display(), bytes_text(*asked), bytes_text(*free))]
    Full { folder: PathBuf, asked: u64, free: u64 },
    #[error("--swap-file: {} are too little; memory moves in pieces of {}", bytes_text(*.0), bytes_text(PIECE))]
    Small(u64),
}

/// Bytes of host memory and of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Room {
    pub(crate) memory: u64,
    pub(crate) file: u64,
}

impl Room {
    /// The part of it that a session with this number of bytes may fill.
    pub(crate) fn part_for(self, bytes: u64) -> Room {
        let more = if self.memory > 0 { PIECE } else { 0 };
        let file = if bytes > self.memory { (bytes - self.memory).saturating_add(more) } else { 0 };
        Room { memory: self.memory.min(bytes), file: self.file.min(file) }
    }
}

/// All that there is.
#[derive(Debug)]
pub(crate) struct SwapSpace {
    memory: u64,
    file: Option<Folder>,
}

#[derive(Debug)]
struct Folder {
    bytes: u64,
    /// Empty files without names, or why there is none.
    ready: Mutex<Receiver<io::Result<File>>>,
}

impl SwapSpace {
    /// Looks whether the file can be made, and whether its disk has room now.
    pub(crate) fn open(memory: u64, file: Option<&SwapFileConfig>) -> Result<SwapSpace, SwapFileError> {
        Ok(SwapSpace { memory, file: file.map(|config| Folder::open(config, None)).transpose()? })
    }

    /// Continues with a file of this many bytes, of which others may have used some already.
    pub(crate) fn reopen(
        memory: u64,
        file: Option<&SwapFileConfig>,
        bytes: Option<u64>,
    ) -> Result<SwapSpace, SwapFileError> {
        Ok(SwapSpace { memory, file: file.map(|config| Folder::open(config, bytes)).transpose()? })
    }

    /// Most bytes of all files together, where there are any.
    pub(crate) fn file_bytes(&self) -> Option<u64> {
        self.file.as_ref().map(|folder| folder.bytes)
    }

    /// What may leave GPUs at a time. Of host memory as much as one piece may stay unused where the
    /// next piece is too large for it.
    pub(crate) fn capacity(&self) -> u64 {
        let file = self.file.as_ref().map_or(0, |folder| folder.bytes.saturating_sub(PIECE));
        self.memory.saturating_add(file)
    }

    pub(crate) fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// What a session may use that has `needed` bytes on its GPUs, beside what others use: host
    /// memory first.
    pub(crate) fn room(&self, needed: u64, used: Room) -> Room {
        let memory = self.memory.saturating_sub(used.memory).min(needed);
        let file_left = self.file.as_ref().map_or(0, |folder| folder.bytes.saturating_sub(used.file));
        // Host memory may have no room for the next piece, so a piece more may go to the file.
        let more = if memory > 0 && memory < needed { PIECE } else { 0 };
        let file = (needed - memory).saturating_add(more).min(file_left);
        Room { memory, file }
    }

    /// A new file for a session, if it may use any. Does not wait for the disk: where no file is
    /// ready, there is an error.
    pub(crate) fn file(&self, room: Room) -> Option<io::Result<File>> {
        self.file.as_ref().filter(|_| room.file > 0).map(Folder::take)
    }
}

impl SwapFileConfig {
    /// Whether the folder is there and on a disk.
    pub(crate) fn check_folder(&self) -> Result<(), SwapFileError> {
        self.open_folder().map(drop)
    }

    fn open_folder(&self) -> Result<File, SwapFileError> {
        let folder = &self.folder;
        let wrong = |source| SwapFileError::Folder { folder: folder.clone(), source };
        let flags = libc::O_DIRECTORY | libc::O_CLOEXEC;
        let open = File::options().read(true).custom_flags(flags).open(folder).map_err(wrong)?;
        match is_in_memory(open.as_fd()).map_err(wrong)? {
            true => Err(SwapFileError::InMemory(folder.clone())),
            false => Ok(open),
        }
    }

    /// The most bytes that files may have; an error where the disk has no room for them.
    fn bytes_on(&self, open: &File) -> Result<u64, SwapFileError> {
        let SwapFileConfig { folder, bytes } = self;
        let free = free_bytes(open.as_fd())
            .map_err(|source| SwapFileError::Folder { folder: folder.clone(), source })?;
        let bytes = bytes.unwrap_or(free / 2);
        let unnamed_error = |source| SwapFileError::Unnamed { folder: folder.clone(), source };
        let file = unnamed(open.as_fd()).map_err(unnamed_error)?;
        // Workers have the disk keep room for what they are about to write.
        // SAFETY: plain numbers, and a descriptor that is open.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, 1) } != 0 {
            return Err(unnamed_error(io::Error::last_os_error()));
        }
        if bytes <= PIECE {
            return Err(SwapFileError::Small(bytes));
        }
        if free < bytes {
            return Err(SwapFileError::Full { folder: folder.clone(), asked: bytes, free });
        }
        Ok(bytes)
    }
}

impl Folder {
    /// `bytes` is what its files may have where it is in use already.
    fn open(config: &SwapFileConfig, bytes: Option<u64>) -> Result<Folder, SwapFileError> {
        let open = config.open_folder()?;
        let bytes = bytes.map_or_else(|| config.bytes_on(&open), Ok)?;
        let (ready, taken) = sync_channel(READY);
        for _ in 0..READY {
            // The channel has room for all.
            let _ = ready.try_send(unnamed(open.as_fd()));
        }
        let make = move || make_files(&open, &ready);
        let thread = std::thread::Builder::new().name("swap files".into()).spawn(make);
        thread.map_err(SwapFileError::Thread)?;
        Ok(Folder { bytes, ready: Mutex::new(taken) })
    }

    /// A file that is ready. Errors are those of earlier attempts, so later files go before them.
    fn take(&self) -> io::Result<File> {
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let mut why = io::Error::new(io::ErrorKind::WouldBlock, "the disk has yet to make one");
        loop {
            match ready.try_recv() {
                Ok(Ok(file)) => return Ok(file),
                Ok(Err(error)) => why = error,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return Err(why),
            }
        }
    }
}

/// Makes files in a folder for as long as there is a receiver.
fn make_files(folder: &File, ready: &SyncSender<io::Result<File>>) {
    while ready.send(unnamed(folder.as_fd())).is_ok() {}
}

/// `O_EXCL`: it never gets a name (open(2), `O_TMPFILE`).
fn unnamed(folder: BorrowedFd<'_>) -> io::Result<File> {
    let flags = libc::O_TMPFILE | libc::O_RDWR | libc::O_EXCL | libc::O_CLOEXEC;
    // SAFETY: the path is a literal, and the folder's descriptor is open.
    let fd = unsafe { libc::openat(folder.as_raw_fd(), c".".as_ptr(), flags, 0o600) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so this is an open descriptor that nothing else owns.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// What file systems without a disk say of themselves (statfs(2)): tmpfs and ramfs.
const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// Whether the files of this file system are in memory.
fn is_in_memory(open: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: all fields are plain numbers, for which zero is a value.
    let mut disk: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the system writes one structure.
    if unsafe { libc::fstatfs(open.as_raw_fd(), &mut disk) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(IN_MEMORY.contains(&(disk.f_type as u32)))
}

/// What users without privileges can still write on the disk of an open folder.
fn free_bytes(open: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: all fields are plain numbers, for which zero is a value.
    let mut disk: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the system writes one structure.
    if unsafe { libc::fstatvfs(open.as_raw_fd(), &mut disk) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};

    use super::*;

    const GIB: u64 = 1 << 30;

    /// The folder of this program, which is on a disk.
    fn config(bytes: u64) -> SwapFileConfig {
        let program = std::env::current_exe().unwrap();
        SwapFileConfig { folder: program.parent().unwrap().to_owned(), bytes: Some(bytes) }
    }

    #[test]
    fn host_memory_is_used_before_the_file() {
        let space = SwapSpace::open(8 * GIB, None).unwrap();
        assert_eq!((space.capacity(), space.has_file()), (8 * GIB, false));
        let used = Room { memory: 6 * GIB, file: 0 };
        assert_eq!(space.room(3 * GIB, used), Room { memory: 2 * GIB, file: 0 });
        let file = Some(Folder::open(&config(PIECE + 1), None).unwrap());
        let space =
            SwapSpace { memory: 8 * GIB, file: file.map(|folder| Folder { bytes: 4 * GIB, ..folder }) };
        assert_eq!(space.capacity(), 12 * GIB - PIECE);
        for (needed, used_file, expect) in [
            (2 * GIB, 0, Room { memory: 2 * GIB, file: 0 }),
            (3 * GIB, 0, Room { memory: 2 * GIB, file: GIB + PIECE }),
            (6 * GIB, 0, Room { memory: 2 * GIB, file: 4 * GIB }),
            (6 * GIB, 3 * GIB, Room { memory: 2 * GIB, file: GIB }),
        ] {
            assert_eq!(space.room(needed, Room { memory: 6 * GIB, file: used_file }), expect);
        }
        let none_left = Room { memory: 8 * GIB, file: GIB };
        assert_eq!(space.room(2 * GIB, none_left), Room { memory: 0, file: 2 * GIB });
    }

    /// What is admitted has room, also while several sessions leave at a time.
    #[test]
    fn sessions_that_leave_together_all_have_room() {
        let file = Some(Folder { bytes: 4 * GIB, ..Folder::open(&config(PIECE + 1), None).unwrap() });
        let space = SwapSpace { memory: 3 * GIB, file };
        for parts in [[1, 1, 1], [5, 1, 1], [1, 5, 1], [3, 3, 1], [2, 2, 3]] {
            let mut used = Room::default();
            let sizes = parts.map(|part| space.capacity() / parts.iter().sum::<u64>() * part);
            for needed in sizes {
                let room = space.room(needed, used);
                let unused = if room.memory < needed { room.memory.min(PIECE) } else { 0 };
                assert!(room.memory - unused + room.file >= needed, "{parts:?}: {room:?}");
                used = Room { memory: used.memory + room.memory, file: used.file + room.file };
            }
        }
    }

    #[test]
    fn a_file_has_no_name_and_is_for_its_user_alone() {
        use std::os::unix::fs::MetadataExt;
        let space = SwapSpace::open(0, Some(&config(PIECE + 1))).unwrap();
        assert!(space.file(Room { memory: 1, file: 0 }).is_none());
        let mut file = space.file(Room { memory: 0, file: 1 }).unwrap().unwrap();
        let metadata = file.metadata().unwrap();
        assert_eq!((metadata.nlink(), metadata.mode() & 0o777, metadata.len()), (0, 0o600, 0));
        file.write_all(b"sealed").unwrap();
        file.rewind().unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "sealed");
    }

    #[test]
    fn no_more_is_kept_for_a_session_than_it_has() {
        let room = Room { memory: 2 * GIB, file: 4 * GIB };
        assert_eq!(room.part_for(GIB), Room { memory: GIB, file: 0 });
        assert_eq!(room.part_for(3 * GIB), Room { memory: 2 * GIB, file: GIB + PIECE });
        assert_eq!(room.part_for(9 * GIB), room);
        assert_eq!(Room { memory: 0, file: GIB }.part_for(GIB / 2), Room { memory: 0, file: GIB / 2 });
    }

    /// At first no thread makes files, and then one does.
    #[test]
    fn a_file_is_taken_or_asked_for_again_and_never_waited_for() {
        let (ready, taken) = sync_channel(2);
        let folder = Folder { bytes: GIB, ready: Mutex::new(taken) };
        assert_eq!(folder.take().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        ready.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
        assert_eq!(folder.take().unwrap_err().kind(), io::ErrorKind::StorageFull);
        ready.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
        ready.send(Ok(File::open("/dev/null").unwrap())).unwrap();
        folder.take().expect("an error of before is over");
        let open = File::open(config(GIB).folder).unwrap();
        let maker = std::thread::spawn(move || make_files(&open, &ready));
        for _ in 0..3 {
            folder.ready.lock().unwrap().recv().unwrap().unwrap();
        }
        drop(folder);
        maker.join().expect("it ends with the receiver");
    }

    #[test]
    fn files_in_memory_are_not_taken_for_a_disk() {
        // SAFETY: the name is a literal, and the descriptor that comes back is ours alone.
        let memory = unsafe {
            let fd = libc::memfd_create(c"swap".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0, "{}", io::Error::last_os_error());
            File::from_raw_fd(fd)
        };
        assert!(is_in_memory(memory.as_fd()).unwrap(), "which is on a tmpfs of the kernel's");
        assert!(!is_in_memory(File::open(config(GIB).folder).unwrap().as_fd()).unwrap());
    }

    #[test]
    fn a_file_in_use_keeps_its_size_whatever_its_disk_has_left() {
        let space = SwapSpace::reopen(0, Some(&config(PIECE + 1)), Some(u64::MAX / 2)).unwrap();
        assert_eq!(space.file_bytes(), Some(u64::MAX / 2));
        assert!(space.file(Room { memory: 0, file: 1 }).unwrap().is_ok());
    }

    #[test]
    fn what_cannot_hold_a_file_is_named() {
        let error = |config: &SwapFileConfig| Folder::open(config, None).unwrap_err().to_string();
        assert!(error(&config(PIECE)).contains("are too little; memory moves in pieces of 64"));
        assert!(error(&config(u64::MAX)).contains("are asked for, and its disk has"));
        let nowhere = SwapFileConfig { folder: "/no/such/folder".into(), bytes: Some(GIB) };
        assert!(error(&nowhere).starts_with("--swap-file: /no/such/folder: No such file"));
        let proc = SwapFileConfig { folder: "/proc".into(), bytes: Some(GIB) };
        assert!(error(&proc).contains("cannot be made there"), "{}", error(&proc));
    }
}
