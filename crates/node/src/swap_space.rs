//! Where memory goes that has left GPUs: host memory, and a file for what that has no room for.
//!
//! Each session that needs the file gets one of its own when its memory leaves, without a name and
//! for its worker alone, which seals what it writes. With its last descriptor the file is gone, and
//! its disk has the room again: when the memory returns, and when the worker ends, however it does.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

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

/// Why there is no file.
#[derive(Debug, thiserror::Error)]
pub enum SwapFileError {
    #[error("--swap-file: {}: {source}", folder.display())]
    Folder { folder: PathBuf, source: io::Error },
    #[error(
        "--swap-file: {}: a file without a name, with room that is kept for it, cannot be made there ({source}); name a folder of a local disk, such as ext4, XFS or tmpfs",
        folder.display()
    )]
    Unnamed { folder: PathBuf, source: io::Error },
    #[error("--swap-file: {}: {} are asked for, and its disk has {} left", folder.display(), bytes_text(*asked), bytes_text(*free))]
    Full { folder: PathBuf, asked: u64, free: u64 },
    #[error("--swap-file: {} are too little; memory moves in pieces of {}", bytes_text(*.0), bytes_text(PIECE))]
    Small(u64),
}

/// Bytes of host memory and of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) memory: u64,
    pub(crate) file: u64,
}

/// All that there is.
#[derive(Debug)]
pub(crate) struct SwapSpace {
    memory: u64,
    file: Option<Folder>,
}

#[derive(Debug)]
struct Folder {
    open: OwnedFd,
    bytes: u64,
}

impl SwapSpace {
    /// Looks whether the file can be made, and whether its disk has room now.
    pub(crate) fn open(memory: u64, file: Option<&SwapFileConfig>) -> Result<SwapSpace, SwapFileError> {
        Ok(SwapSpace { memory, file: file.map(Folder::open).transpose()? })
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

    /// A new file for a session, if it may use any.
    pub(crate) fn file(&self, room: Room) -> Option<io::Result<File>> {
        self.file.as_ref().filter(|_| room.file > 0).map(Folder::unnamed)
    }
}

impl Folder {
    fn open(config: &SwapFileConfig) -> Result<Folder, SwapFileError> {
        let SwapFileConfig { folder, bytes } = config;
        let wrong = |source| SwapFileError::Folder { folder: folder.clone(), source };
        let flags = libc::O_DIRECTORY | libc::O_CLOEXEC;
        let open = File::options().read(true).custom_flags(flags).open(folder).map_err(wrong)?;
        let free = free_bytes(folder).map_err(wrong)?;
        let bytes = bytes.unwrap_or(free / 2);
        let opened = Folder { open: open.into(), bytes };
        let unnamed = |source| SwapFileError::Unnamed { folder: folder.clone(), source };
        let file = opened.unnamed().map_err(unnamed)?;
        // Workers have the disk keep room for what they are about to write.
        // SAFETY: plain numbers, and a descriptor that is open.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, 1) } != 0 {
            return Err(unnamed(io::Error::last_os_error()));
        }
        if bytes <= PIECE {
            return Err(SwapFileError::Small(bytes));
        }
        if free < bytes {
            return Err(SwapFileError::Full { folder: folder.clone(), asked: bytes, free });
        }
        Ok(opened)
    }

    /// `O_EXCL`: it never gets a name (open(2), `O_TMPFILE`).
    fn unnamed(&self) -> io::Result<File> {
        let flags = libc::O_TMPFILE | libc::O_RDWR | libc::O_EXCL | libc::O_CLOEXEC;
        // SAFETY: the path is a literal, and the folder's descriptor is open.
        let fd = unsafe { libc::openat(self.open.as_raw_fd(), c".".as_ptr(), flags, 0o600) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call succeeded, so this is an open descriptor that nothing else owns.
        Ok(unsafe { File::from_raw_fd(fd) })
    }
}

/// What users without privileges can still write on the disk of a folder.
fn free_bytes(folder: &Path) -> io::Result<u64> {
    let path = CString::new(folder.as_os_str().as_bytes())?;
    // SAFETY: all fields are plain numbers, for which zero is a value.
    let mut disk: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends in a zero, and the system writes one structure.
    if unsafe { libc::statvfs(path.as_ptr(), &mut disk) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};

    use super::*;

    const GIB: u64 = 1 << 30;

    fn config(bytes: u64) -> SwapFileConfig {
        SwapFileConfig { folder: std::env::temp_dir(), bytes: Some(bytes) }
    }

    #[test]
    fn host_memory_is_used_before_the_file() {
        let space = SwapSpace::open(8 * GIB, None).unwrap();
        assert_eq!((space.capacity(), space.has_file()), (8 * GIB, false));
        let used = Room { memory: 6 * GIB, file: 0 };
        assert_eq!(space.room(3 * GIB, used), Room { memory: 2 * GIB, file: 0 });
        let file = Some(Folder::open(&config(PIECE + 1)).unwrap());
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
        let file = Some(Folder { bytes: 4 * GIB, ..Folder::open(&config(PIECE + 1)).unwrap() });
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
    fn what_cannot_hold_a_file_is_named() {
        let error = |config: &SwapFileConfig| Folder::open(config).unwrap_err().to_string();
        assert!(error(&config(PIECE)).contains("are too little; memory moves in pieces of 64"));
        assert!(error(&config(u64::MAX)).contains("are asked for, and its disk has"));
        let nowhere = SwapFileConfig { folder: "/no/such/folder".into(), bytes: Some(GIB) };
        assert!(error(&nowhere).starts_with("--swap-file: /no/such/folder: No such file"));
        let proc = SwapFileConfig { folder: "/proc".into(), bytes: Some(GIB) };
        assert!(error(&proc).contains("cannot be made there"), "{}", error(&proc));
    }
}
