//! The files of a checkpoint.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sluice_wire::checkpoint::{CHUNK, ChunkHash, Manifest};

use crate::{Failure, manifest};

const MANIFEST: &str = "manifest";
const NEW_MANIFEST: &str = "manifest.new";
const CHUNKS: &str = "chunks";
const LOCK: &str = "lock";
/// Most bytes of a manifest: of some terabytes of memory.
const MANIFEST_SIZE_MAX: u64 = 256 << 20;
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

/// A folder that holds a checkpoint or is to hold one, for this process alone while it lives.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Its lock ends with it.
    _lock: File,
}

impl Folder {
    /// The folder of this path, made if it is not there.
    pub fn make(path: &Path) -> Result<Folder, Failure> {
        let at = Failure::at(path);
        match DirBuilder::new().mode(FOLDER_MODE).create(path) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let is_empty = fs::read_dir(path).map_err(&at)?.next().is_none();
                if !is_empty && !path.join(LOCK).exists() {
                    return Err(Failure::NotEmpty(path.to_owned()));
                }
                fs::set_permissions(path, Permissions::from_mode(FOLDER_MODE)).map_err(&at)?;
            }
            Err(error) => return Err(at(error)),
        }
        let folder = Folder { path: path.to_owned(), _lock: lock(path)? };
        match DirBuilder::new().mode(FOLDER_MODE).create(path.join(CHUNKS)) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(at(error)),
            _ => Ok(folder),
        }
    }

    /// Whether the folder of this path is one for checkpoints.
    pub fn is_one(path: &Path) -> bool {
        path.join(CHUNKS).is_dir() && path.join(LOCK).is_file()
    }

    /// The folder of this path, which holds a checkpoint.
    pub fn open(path: &Path) -> Result<Folder, Failure> {
        if !path.join(MANIFEST).exists() {
            return Err(Failure::NoCheckpoint(path.to_owned()));
        }
        Ok(Folder { path: path.to_owned(), _lock: lock(path)? })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn manifest_path(&self) -> PathBuf {
        self.path.join(MANIFEST)
    }

    /// What the checkpoint in it consists of, if there is one.
    pub fn manifest(&self) -> Result<Option<Manifest>, Failure> {
        let path = self.manifest_path();
        let at = Failure::at(&path);
        let file = match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.map_err(&at)?,
        };
        let mut bytes = Vec::new();
        file.take(MANIFEST_SIZE_MAX).read_to_end(&mut bytes).map_err(&at)?;
        manifest::from_bytes(&bytes, &path).map(Some)
    }

    /// Where a chunk is.
    pub(crate) fn chunk_path(&self, hash: &ChunkHash) -> PathBuf {
        let name = blake3::Hash::from_bytes(*hash).to_hex();
        self.path.join(CHUNKS).join(&name[..2]).join(name.as_str())
    }

    /// Whether a chunk is there, as far as its size tells.
    pub(crate) fn has_chunk(&self, hash: &ChunkHash, bytes: u64) -> bool {
        fs::symlink_metadata(self.chunk_path(hash)).is_ok_and(|file| file.is_file() && file.len() == bytes)
    }

    /// Writes a chunk; it is on the disk after [`Folder::sync`] at the latest.
    pub(crate) fn write_chunk(&self, hash: &ChunkHash, bytes: &[u8]) -> Result<PathBuf, Failure> {
        let path = self.chunk_path(hash);
        let at = Failure::at(&path);
        if let Some(parent) = path.parent() {
            match DirBuilder::new().mode(FOLDER_MODE).create(parent) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(at(error)),
                _ => {}
            }
        }
        let new = path.with_extension("new");
        let written = new_file(&new).and_then(|mut file| file.write_all(bytes));
        written.and_then(|()| fs::rename(&new, &path)).map_err(&at)?;
        Ok(path)
    }

    /// Has these files on the disk, with the folders that name them.
    pub(crate) fn sync(&self, files: &[PathBuf]) -> Result<(), Failure> {
        let chunks = self.path.join(CHUNKS);
        let mut folders: HashSet<&Path> = files.iter().filter_map(|file| file.parent()).collect();
        folders.extend([chunks.as_path(), self.path.as_path()]);
        let all = files.iter().map(PathBuf::as_path).chain(folders);
        all.into_iter().try_for_each(|path| sync_one(path).map_err(Failure::at(path)))
    }

    /// The bytes of a chunk of this size.
    pub(crate) fn read_chunk(&self, hash: &ChunkHash, bytes: u64) -> Result<Vec<u8>, Failure> {
        let path = self.chunk_path(hash);
        let mut read = Vec::with_capacity(bytes.min(CHUNK) as usize);
        let file = File::open(&path).map_err(Failure::at(&path))?;
        // One byte more says that there is more.
        file.take(bytes + 1).read_to_end(&mut read).map_err(Failure::at(&path))?;
        if read.len() as u64 != bytes {
            let what = format!("it has {} bytes, and the checkpoint says {bytes}", read.len());
            return Err(Failure::damaged(&path, what));
        }
        if blake3::hash(&read).as_bytes() != hash {
            return Err(Failure::damaged(&path, "its contents have another hash than its name"));
        }
        Ok(read)
    }

    /// Makes this the checkpoint in the folder: its chunks are on the disk. From then on the former
    /// one is gone.
    pub fn commit(&self, manifest: &Manifest) -> Result<(), Failure> {
        let (new, path) = (self.path.join(NEW_MANIFEST), self.manifest_path());
        let written = new_file(&new).and_then(|mut file| {
            file.write_all(&manifest::to_bytes(manifest))?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            sync_one(&self.path)
        });
        written.map_err(Failure::at(&path))
    }

    /// Removes the chunks to which this manifest does not refer. The answer is how many bytes of
    /// the disk these had.
    pub fn sweep(&self, manifest: Option<&Manifest>) -> Result<u64, Failure> {
        let kept: HashSet<PathBuf> =
            manifest.iter().flat_map(|it| it.sizes()).map(|(hash, _)| self.chunk_path(&hash)).collect();
        let mut freed = 0;
        for group in entries(&self.path.join(CHUNKS))? {
            for chunk in entries(&group)? {
                if !kept.contains(&chunk) {
                    let at = Failure::at(&chunk);
                    freed += fs::symlink_metadata(&chunk).map_err(&at)?.len();
                    fs::remove_file(&chunk).map_err(&at)?;
                }
            }
        }
        Ok(freed)
    }
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let read = fs::read_dir(folder).and_then(|all| all.map(|entry| entry.map(|it| it.path())).collect());
    read.map_err(Failure::at(folder))
}

fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(path)
}

fn sync_one(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Takes the lock of a folder.
fn lock(folder: &Path) -> Result<File, Failure> {
    let path = folder.join(LOCK);
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(FILE_MODE).open(&path);
    let file = file.map_err(Failure::at(&path))?;
    // SAFETY: takes a descriptor that is open, and touches no memory.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
        0 => Ok(file),
        _ => match io::Error::last_os_error() {
            error if error.kind() == ErrorKind::WouldBlock => Err(Failure::InUse(folder.to_owned())),
            error => Err(Failure::at(&path)(error)),
        },
    }
}
