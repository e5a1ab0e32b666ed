//! The files of a checkpoint.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sluice_wire::checkpoint::{CHUNK, ChunkHash, Manifest};

use crate::seal::{self, Key};
use crate::{Failure, manifest};

const MANIFEST: &str = "manifest";
const NEW_MANIFEST: &str = "manifest.new";
const CHUNKS: &str = "chunks";
const LOCK: &str = "lock";
/// What the lock holds: a folder of something else may have a file of its name.
const MARK: &[u8] = b"a checkpoint of Sluice\n";
const NEW: &str = "new";
/// Most bytes of a manifest: of some terabytes of memory.
const MANIFEST_SIZE_MAX: u64 = 256 << 20;
/// Most chunks of memory in a checkpoint; an entry of a manifest has at most 64 bytes.
pub(crate) const CHUNKS_MAX: usize = (MANIFEST_SIZE_MAX / 2 / 64) as usize;
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

/// A folder that holds a checkpoint or is to hold one, for this process alone while it lives.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// What is here is encrypted with it.
    key: Option<Key>,
    /// Its lock ends with it.
    _lock: File,
}

impl Folder {
    /// The folder of this path, made if it is not there. With a key, all that is written there is
    /// encrypted.
    pub fn make(path: &Path, key: Option<Key>) -> Result<Folder, Failure> {
        let at = Failure::at(path);
        match DirBuilder::new().mode(FOLDER_MODE).create(path) {
            Ok(()) => {
                let parent = path.parent().filter(|parent| *parent != Path::new(""));
                sync_one(parent.unwrap_or(Path::new("."))).map_err(&at)?;
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                // An attempt that has ended at once leaves a lock without a mark.
                let is_other = |entry: &PathBuf| !entry.ends_with(LOCK);
                if entries(path)?.iter().any(is_other) && !is_marked(path) {
                    return Err(Failure::NotEmpty(path.to_owned()));
                }
                check_owner(path, &fs::metadata(path).map_err(&at)?)?;
                fs::set_permissions(path, Permissions::from_mode(FOLDER_MODE)).map_err(&at)?;
            }
            Err(error) => return Err(at(error)),
        }
        let folder = Folder { path: path.to_owned(), key, _lock: lock(path)? };
        own_folder(&path.join(CHUNKS))?;
        Ok(folder)
    }

    /// Whether the folder of this path is one for checkpoints.
    pub fn is_one(path: &Path) -> bool {
        path.join(CHUNKS).is_dir() && is_marked(path)
    }

    /// Whether the checkpoint in the folder of this path is encrypted, if there is one that can be
    /// read.
    pub fn is_encrypted(path: &Path) -> Option<bool> {
        let mut begin = [0; seal::MAGIC.len()];
        open(&path.join(MANIFEST)).ok()?.read_exact(&mut begin).ok()?;
        Some(begin == *seal::MAGIC)
    }

    /// The folder of this path, which holds a checkpoint, encrypted with the key if there is one.
    pub fn open(path: &Path, key: Option<Key>) -> Result<Folder, Failure> {
        if fs::symlink_metadata(path.join(MANIFEST)).is_err() || !is_marked(path) {
            return Err(Failure::NoCheckpoint(path.to_owned()));
        }
        check_owner(path, &fs::metadata(path).map_err(Failure::at(path))?)?;
        let folder = Folder { path: path.to_owned(), key, _lock: lock(path)? };
        own_folder(&path.join(CHUNKS))?;
        Ok(folder)
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
        let file = match open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.map_err(&at)?,
        };
        let mut bytes = Vec::new();
        file.take(MANIFEST_SIZE_MAX).read_to_end(&mut bytes).map_err(&at)?;
        let bytes = seal::open_manifest(self.key.as_ref(), bytes, &path)?;
        manifest::from_bytes(&bytes, &path).map(Some)
    }

    /// Where a chunk is.
    pub(crate) fn chunk_path(&self, hash: &ChunkHash) -> PathBuf {
        let name = self.key.as_ref().map_or(*hash, |key| key.name(hash));
        let name = blake3::Hash::from_bytes(name).to_hex();
        self.path.join(CHUNKS).join(&name[..2]).join(name.as_str())
    }

    /// Whether a chunk is there, as far as its size tells.
    pub(crate) fn has_chunk(&self, hash: &ChunkHash, bytes: u64) -> bool {
        let size = self.stored_size(bytes);
        fs::symlink_metadata(self.chunk_path(hash)).is_ok_and(|file| file.is_file() && file.len() == size)
    }

    /// The size of the file that has a chunk of this size.
    fn stored_size(&self, bytes: u64) -> u64 {
        bytes + if self.key.is_some() { seal::TAG } else { 0 }
    }

    /// Writes a chunk; it is on the disk after [`Folder::sync`] at the latest.
    pub(crate) fn write_chunk(&self, hash: &ChunkHash, bytes: &[u8]) -> Result<PathBuf, Failure> {
        let path = self.chunk_path(hash);
        let at = Failure::at(&path);
        path.parent().map_or(Ok(()), own_folder)?;
        let sealed = self.key.as_ref().map(|key| key.seal_chunk(hash, bytes).ok_or_else(not_sealed));
        let sealed = sealed.transpose().map_err(&at)?;
        let new = path.with_extension(NEW);
        let written = new_file(&new).and_then(|mut file| file.write_all(sealed.as_deref().unwrap_or(bytes)));
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
        let size = self.stored_size(bytes);
        let mut read = Vec::with_capacity(size.min(2 * CHUNK) as usize);
        let file = open(&path).map_err(Failure::at(&path))?;
        // One byte more says that there is more.
        file.take(size + 1).read_to_end(&mut read).map_err(Failure::at(&path))?;
        if read.len() as u64 != size {
            let what = format!("it has {} bytes, and the checkpoint says {size}", read.len());
            return Err(Failure::damaged(&path, what));
        }
        if let Some(key) = &self.key {
            let changed = || Failure::damaged(&path, "it was changed after it was encrypted");
            read = key.open_chunk(hash, read).ok_or_else(changed)?;
        }
        if blake3::hash(&read).as_bytes() != hash {
            return Err(Failure::damaged(&path, "its contents have another hash than its name"));
        }
        Ok(read)
    }

    /// Removes the chunks of this manifest that are damaged: they come from the node again.
    pub fn remove_damaged(&self, manifest: &Manifest) -> Result<(), Failure> {
        let all: HashSet<(ChunkHash, u64)> = manifest.sizes().collect();
        for (hash, bytes) in all.into_iter().filter(|(hash, bytes)| self.has_chunk(hash, *bytes)) {
            match self.read_chunk(&hash, bytes) {
                Ok(_) => {}
                Err(Failure::Damaged { path, .. }) => fs::remove_file(&path).map_err(Failure::at(&path))?,
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// Makes this the checkpoint in the folder: its chunks are on the disk. From then on the former
    /// one is gone.
    pub fn commit(&self, manifest: &Manifest) -> Result<(), Failure> {
        let (new, path) = (self.path.join(NEW_MANIFEST), self.manifest_path());
        let mut bytes = manifest::to_bytes(manifest);
        if let Some(key) = &self.key {
            bytes = key.seal_manifest(&bytes).ok_or_else(|| Failure::at(&path)(not_sealed()))?;
        }
        if bytes.len() as u64 > MANIFEST_SIZE_MAX {
            return Err(Failure::Nonsense("it has more than a checkpoint holds"));
        }
        let written = new_file(&new).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            sync_one(&self.path)
        });
        written.map_err(Failure::at(&path))
    }

    /// Removes the chunks to which this manifest does not refer, and nothing else. The answer is
    /// how many bytes of the disk these had.
    pub fn sweep(&self, manifest: Option<&Manifest>) -> Result<u64, Failure> {
        let kept: HashSet<PathBuf> =
            manifest.iter().flat_map(|it| it.sizes()).map(|(hash, _)| self.chunk_path(&hash)).collect();
        let mut freed = 0;
        let is_group = |path: &PathBuf| is_hex(path, 2);
        for group in entries(&self.path.join(CHUNKS))?.into_iter().filter(is_group) {
            own_folder(&group)?;
            for chunk in entries(&group)? {
                if !kept.contains(&chunk) && is_chunk(&chunk) {
                    let at = Failure::at(&chunk);
                    freed += fs::symlink_metadata(&chunk).map_err(&at)?.len();
                    fs::remove_file(&chunk).map_err(&at)?;
                }
            }
        }
        Ok(freed)
    }
}

fn not_sealed() -> io::Error {
    io::Error::other("it cannot be encrypted: the system has no random numbers, or it is too long")
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let read = fs::read_dir(folder).and_then(|all| all.map(|entry| entry.map(|it| it.path())).collect());
    read.map_err(Failure::at(folder))
}

/// Whether a file is named by this number of hexadecimal digits.
fn is_hex(path: &Path, digits: usize) -> bool {
    let name = path.file_name().map(|name| name.as_encoded_bytes());
    name.is_some_and(|name| name.len() == digits && name.iter().all(u8::is_ascii_hexdigit))
}

/// Whether a file is named as a chunk, or as one that is being written.
fn is_chunk(path: &Path) -> bool {
    let whole =
        if path.extension().is_some_and(|it| it == NEW) { path.with_extension("") } else { path.into() };
    is_hex(&whole, blake3::OUT_LEN * 2)
}

/// A folder in a checkpoint, made if it is not there. A link would lead out of it.
fn own_folder(path: &Path) -> Result<(), Failure> {
    match DirBuilder::new().mode(FOLDER_MODE).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(Failure::at(path)(error)),
        _ => check_owner(path, &fs::symlink_metadata(path).map_err(Failure::at(path))?),
    }
}

/// Another user could change what is in a folder of theirs.
fn check_owner(path: &Path, found: &fs::Metadata) -> Result<(), Failure> {
    // SAFETY: takes nothing and touches no memory.
    let user = unsafe { libc::geteuid() };
    if found.is_dir() && found.uid() == user { Ok(()) } else { Err(Failure::NotOwn(path.to_owned())) }
}

/// A file of this name that was not there before: whatever had the name is not written to.
fn new_file(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path),
    }
}

/// Opens a file to read it; neither a link nor a pipe is one.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let is_file = file.metadata()?.is_file();
    if is_file { Ok(file) } else { Err(io::Error::new(ErrorKind::InvalidInput, "it is no file")) }
}

fn sync_one(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Whether the lock of a folder says that it is one for checkpoints.
fn is_marked(folder: &Path) -> bool {
    open(&folder.join(LOCK)).is_ok_and(|file| mark(&file).is_ok_and(|mark| mark == MARK))
}

fn mark(lock: &File) -> io::Result<Vec<u8>> {
    let mut mark = Vec::new();
    lock.take(MARK.len() as u64 + 1).read_to_end(&mut mark)?;
    Ok(mark)
}

/// Takes the lock of a folder, and marks it where it is new.
fn lock(folder: &Path) -> Result<File, Failure> {
    let path = folder.join(LOCK);
    let at = Failure::at(&path);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
    let mut file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&path).map_err(&at)?;
    // SAFETY: takes a descriptor that is open, and touches no memory.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        return Err(match io::Error::last_os_error() {
            error if error.kind() == ErrorKind::WouldBlock => Failure::InUse(folder.to_owned()),
            error => at(error),
        });
    }
    let found = mark(&file).map_err(&at)?;
    match &found[..] {
        [] => file.write_all(MARK).map_err(&at)?,
        MARK => {}
        _ => return Err(Failure::NotEmpty(folder.to_owned())),
    }
    Ok(file)
}
