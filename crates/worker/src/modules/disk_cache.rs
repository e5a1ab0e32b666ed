//! The folder of cached images and machine code, which all workers of a node share.
//!
//! Everything goes through the descriptor of the folder: a confined worker has no other way to a
//! file, and may ask the system about descriptors only, not about paths
//! ([`sandbox`](crate::process::sandbox)).

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags, RawDir};

/// Most bytes, and most files, of the folder. A look at all files takes time in proportion to them.
const ROOM: Room = Room { bytes: 4 << 30, files: 8192 };
/// Files are the node's alone: they may be a user's code.
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// What files take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Room {
    bytes: u64,
    files: u64,
}

impl Room {
    fn fits(self, within: Room) -> bool {
        self.bytes <= within.bytes && self.files <= within.files
    }

    fn part(self, of: u64) -> Room {
        Room { bytes: self.bytes / of, files: self.files / of }
    }
}

/// An open folder.
#[derive(Debug)]
pub(crate) struct DiskCache {
    folder: OwnedFd,
    /// Ends the names of files that are not whole yet.
    unfinished: String,
    /// Written here since the folder was last brought within its bounds; at first it is due.
    written: Mutex<Room>,
    /// Held by the thread that brings it within them.
    trims: Mutex<()>,
}

impl DiskCache {
    /// Opens a folder that exists.
    pub(crate) fn open(path: &Path) -> io::Result<DiskCache> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(DiskCache::from_fd(fs::openat(CWD, path, flags, Mode::empty())?))
    }

    /// Opens a folder, and makes it if it is not there.
    pub(crate) fn make(path: &Path) -> io::Result<DiskCache> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        DiskCache::open(path)
    }

    /// A folder that is open already.
    pub(crate) fn from_fd(folder: OwnedFd) -> DiskCache {
        // Process numbers are no names: workers may have a name space of numbers each.
        let number = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
        let (written, trims) = (Mutex::new(ROOM), Mutex::new(()));
        DiskCache { folder, unfinished: format!("part{number:016x}"), written, trims }
    }

    /// A file of the folder and its size, if it is an ordinary one.
    pub(crate) fn find(&self, name: &str) -> Option<(File, u64)> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(fs::openat(&self.folder, name, flags, Mode::empty()).ok()?);
        let size = size_of(&file)?;
        Some((file, size))
    }

    /// Removes a file; without one nothing happens.
    pub(crate) fn remove(&self, name: &str) {
        let _ = fs::unlinkat(&self.folder, name, AtFlags::empty());
    }

    /// Keeps whole files only: written beside the final name, and renamed.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let unfinished = &*format!("{name}.{}", self.unfinished);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = File::from(fs::openat(&self.folder, unfinished, flags, FILE_MODE)?);
        let written = file
            .write_all(bytes)
            .and_then(|()| Ok(fs::renameat(&self.folder, unfinished, &self.folder, name)?));
        if written.is_err() {
            self.remove(unfinished);
        }
        let mut room = lock(&self.written);
        room.bytes += bytes.len() as u64;
        room.files += 1;
        written
    }

    /// Whether the folder may have outgrown its bounds by what was written here. Several processes
    /// write into it, so each looks after a part.
    pub(crate) fn is_due(&self) -> bool {
        !lock(&self.written).fits(ROOM.part(32))
    }

    /// Removes the oldest files if the folder is beyond its bounds, and a little more, so that it
    /// is not beyond them again at once. Does nothing where another thread does so.
    pub(crate) fn trim(&self) -> io::Result<()> {
        let Ok(_only) = self.trims.try_lock() else { return Ok(()) };
        *lock(&self.written) = Room::default();
        self.trim_to(ROOM)
    }

    fn trim_to(&self, most: Room) -> io::Result<()> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        // A description of its own, since other threads may list the folder too.
        let folder = fs::openat(&self.folder, ".", flags, Mode::empty())?;
        let mut buffer = Vec::with_capacity(16 << 10);
        let mut entries = RawDir::new(&folder, buffer.spare_capacity_mut());
        let mut files = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let Ok(file) = fs::openat(&self.folder, name, flags, Mode::empty()) else { continue };
            let Ok(stat) = fs::fstat(&file) else { continue };
            if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
                let modified = (stat.st_mtime, stat.st_mtime_nsec);
                files.push((modified, u64::try_from(stat.st_size).unwrap_or(0), name.to_owned()));
            }
        }
        let mut room = Room { bytes: files.iter().map(|file| file.1).sum(), files: files.len() as u64 };
        if room.fits(most) {
            return Ok(());
        }
        let (eighth, mut oldest_first) = (most.part(8), files);
        let goal = Room { bytes: most.bytes - eighth.bytes, files: most.files - eighth.files };
        oldest_first.sort();
        for (_, size, name) in oldest_first {
            if room.fits(goal) {
                break;
            }
            self.remove(&name);
            room = Room { bytes: room.bytes - size, files: room.files - 1 };
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The size of an ordinary file.
pub(crate) fn size_of(file: &File) -> Option<u64> {
    let stat = fs::fstat(file).ok()?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    u64::try_from(stat.st_size).ok().filter(|_| is_file)
}

/// The first `size` bytes of a file, which may be fewer.
pub(crate) fn read(mut file: File, size: u64) -> io::Result<Vec<u8>> {
    let mut data = Vec::new();
    file.rewind()?;
    file.take(size).read_to_end(&mut data)?;
    Ok(data)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn files_are_the_users_alone_and_whole() {
        let folder = std::env::temp_dir().join(format!("sluice-disk-cache-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let cache = DiskCache::open(&folder).unwrap();
        cache.write("a", b"kernel").unwrap();
        let mode = std::fs::metadata(folder.join("a")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let (file, size) = cache.find("a").unwrap();
        assert_eq!((size, read(file, size).unwrap()), (6, b"kernel".to_vec()));
        std::fs::write(folder.join(format!("b.{}", cache.unfinished)), "x").unwrap();
        assert!(cache.write("b", b"kernel").is_err(), "another process writes it");
        std::os::unix::fs::symlink("a", folder.join("link")).unwrap();
        assert!(cache.find("link").is_none() && cache.find("..").is_none() && cache.find("c").is_none());
        cache.remove("a");
        assert!(cache.find("a").is_none());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_oldest_files_leave_a_folder_beyond_its_bounds() {
        let folder = std::env::temp_dir().join(format!("sluice-disk-cache-trim-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let cache = DiskCache::open(&folder).unwrap();
        assert!(cache.is_due(), "the folder is that of other processes too");
        cache.trim().unwrap();
        let began = std::time::SystemTime::UNIX_EPOCH;
        for number in 0..16 {
            cache.write(&format!("f{number:02}"), &[0; 100]).unwrap();
            let file = File::options().write(true).open(folder.join(format!("f{number:02}"))).unwrap();
            file.set_modified(began + std::time::Duration::from_secs(number)).unwrap();
        }
        assert!(!cache.is_due());
        let left = || {
            let mut names: Vec<_> =
                std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            (names.len(), names[0].clone().into_string().unwrap())
        };
        cache.trim_to(Room { bytes: 1600, files: 16 }).unwrap();
        assert_eq!(left(), (16, "f00".into()));
        cache.trim_to(Room { bytes: 1600, files: 15 }).unwrap();
        assert_eq!(left(), (14, "f02".into()), "an eighth of the files is free");
        cache.trim_to(Room { bytes: 800, files: 100 }).unwrap();
        assert_eq!(left(), (7, "f09".into()), "an eighth of the bytes is free");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
