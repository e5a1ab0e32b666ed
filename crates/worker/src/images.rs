//! Module images by content hash: those that the client has sent, and a cache on disk that all workers of a node
//! share.
//!
//! An image is trusted only as far as its hash: what comes from the client or from the disk is hashed before it is
//! used, so neither a broken disk nor another tenant's worker can slip in different code.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use sluice_cuda::CUresult;
use sluice_wire::ImageHash;

/// The largest image, in bytes; the largest of CUDA's own libraries is a third of it.
const IMAGE_MAX: u64 = 2 << 30;
/// Images that a session may be sending at a time.
const UPLOADS_MAX: usize = 16;
/// Whole images kept in memory, in bytes; the newest stays whatever its size.
const MEMORY_MAX: u64 = 256 << 20;
/// Whole images kept on disk, in bytes.
const DISK_MAX: u64 = 4 << 30;

/// The images of one session.
#[derive(Debug)]
pub(crate) struct Images {
    cache: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    whole: HashMap<ImageHash, Arc<Vec<u8>>>,
    /// Of `whole`, oldest first.
    order: VecDeque<ImageHash>,
    bytes: u64,
    uploads: HashMap<ImageHash, Upload>,
}

#[derive(Debug)]
struct Upload {
    total: u64,
    data: Vec<u8>,
}

impl Images {
    /// With a folder for the cache, or none.
    pub(crate) fn new(cache: Option<PathBuf>) -> Images {
        Images { cache, state: Mutex::default() }
    }

    /// The image with a NUL after it, if it is here or in the cache.
    pub(crate) fn find(&self, hash: ImageHash) -> Option<Arc<Vec<u8>>> {
        if let Some(image) = self.lock().whole.get(&hash) {
            return Some(Arc::clone(image));
        }
        let image = Arc::new(terminated(read_cached(&self.file(hash)?, hash)?));
        self.lock().keep(hash, &image);
        Some(image)
    }

    /// Takes the next piece of an image; pieces come in order.
    pub(crate) fn receive(
        &self,
        hash: ImageHash,
        offset: u64,
        total: u64,
        piece: &[u8],
    ) -> Result<(), CUresult> {
        let mut state = self.lock();
        if state.whole.contains_key(&hash) {
            return Ok(());
        }
        if total > IMAGE_MAX || (offset == 0 && state.uploads.len() >= UPLOADS_MAX) {
            return Err(CUresult::OUT_OF_MEMORY);
        }
        let new = || Upload { total, data: Vec::new() };
        let upload = match offset {
            0 => Some(state.uploads.entry(hash).or_insert_with(new)),
            _ => state.uploads.get_mut(&hash),
        };
        let Some(upload) = upload else { return Err(CUresult::INVALID_IMAGE) };
        let have = upload.data.len() as u64;
        // Several threads of a client may be sending the same image: what is here already is passed over. What has arrived is
        // all that is ever allocated for: the stated total is a bound, not a size.
        let known = have.checked_sub(offset).and_then(|known| usize::try_from(known).ok());
        let new = known.map(|known| piece.get(known..).unwrap_or_default());
        let Some(new) = new.filter(|new| upload.total == total && new.len() as u64 <= total - have) else {
            state.uploads.remove(&hash);
            return Err(CUresult::INVALID_IMAGE);
        };
        upload.data.extend_from_slice(new);
        if (upload.data.len() as u64) < total {
            return Ok(());
        }
        let Some(Upload { data, .. }) = state.uploads.remove(&hash) else { return Ok(()) };
        drop(state);
        self.complete(hash, data)
    }

    fn complete(&self, hash: ImageHash, data: Vec<u8>) -> Result<(), CUresult> {
        if hash_of(&data) != hash {
            return Err(CUresult::INVALID_IMAGE);
        }
        let image = Arc::new(terminated(data));
        self.lock().keep(hash, &image);
        if let Some(file) = self.file(hash) {
            // Off this thread: nobody waits for a disk. A cache that cannot be written costs time, nothing else.
            let _ = std::thread::Builder::new()
                .name("image cache".into())
                .spawn(move || write_cached(&file, &image[..image.len() - 1]));
        }
        Ok(())
    }

    fn file(&self, hash: ImageHash) -> Option<PathBuf> {
        let name: String = hash.0.iter().map(|byte| format!("{byte:02x}")).collect();
        self.cache.as_ref().map(|folder| folder.join(name))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn keep(&mut self, hash: ImageHash, image: &Arc<Vec<u8>>) {
        if self.whole.insert(hash, Arc::clone(image)).is_some() {
            return;
        }
        self.order.push_back(hash);
        self.bytes += image.len() as u64;
        while self.bytes > MEMORY_MAX && self.order.len() > 1 {
            let oldest = self.order.pop_front().and_then(|old| self.whole.remove(&old));
            self.bytes -= oldest.map_or(0, |image| image.len() as u64);
        }
    }
}

/// PTX reaches a driver as C text; other images do not mind.
fn terminated(mut image: Vec<u8>) -> Vec<u8> {
    image.push(0);
    image
}

/// The hash that the wire means.
fn hash_of(image: &[u8]) -> ImageHash {
    ImageHash(*blake3::hash(image).as_bytes())
}

fn read_cached(file: &Path, hash: ImageHash) -> Option<Vec<u8>> {
    let size = fs::metadata(file).ok().filter(|file| file.is_file())?.len();
    if size > IMAGE_MAX {
        return None;
    }
    let data = fs::read(file).ok()?;
    if hash_of(&data) != hash {
        let _ = fs::remove_file(file);
        return None;
    }
    Some(data)
}

/// Whole files only: written beside the final name and renamed.
fn write_cached(file: &Path, image: &[u8]) -> io::Result<()> {
    let folder = file.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(folder)?;
    let unfinished = file.with_extension(format!("part{}", std::process::id()));
    fs::File::create(&unfinished)?.write_all(image)?;
    fs::rename(&unfinished, file)?;
    trim(folder)
}

/// Removes the oldest files until the folder is within its bound.
fn trim(folder: &Path) -> io::Result<()> {
    let mut files: Vec<(SystemTime, u64, PathBuf)> = fs::read_dir(folder)?
        .flatten()
        .filter_map(|entry| {
            let file = entry.metadata().ok().filter(|file| file.is_file())?;
            Some((file.modified().ok()?, file.len(), entry.path()))
        })
        .collect();
    let mut bytes: u64 = files.iter().map(|file| file.1).sum();
    files.sort();
    for (_, size, path) in files {
        if bytes <= DISK_MAX {
            break;
        }
        fs::remove_file(path)?;
        bytes -= size;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_in_pieces_becomes_whole() {
        let images = Images::new(None);
        let data: Vec<u8> = (0..10_000_u32).map(|i| i as u8).collect();
        let hash = hash_of(&data);
        for (i, piece) in data.chunks(3000).enumerate() {
            assert!(images.find(hash).is_none());
            images.receive(hash, i as u64 * 3000, 10_000, piece).unwrap();
        }
        assert_eq!(images.find(hash).unwrap().strip_suffix(b"\0"), Some(&data[..]));
    }

    #[test]
    fn pieces_that_do_not_fit_are_refused() {
        let images = Images::new(None);
        let hash = hash_of(b"abc");
        assert_eq!(images.receive(hash, 1, 3, b"bc"), Err(CUresult::INVALID_IMAGE));
        images.receive(hash, 0, 3, b"a").unwrap();
        assert_eq!(images.receive(hash, 1, 4, b"bc"), Err(CUresult::INVALID_IMAGE));
        images.receive(hash, 0, 3, b"a").unwrap();
        assert_eq!(images.receive(hash, 1, 3, b"bcd"), Err(CUresult::INVALID_IMAGE));
        assert_eq!(images.receive(hash, 0, u64::MAX, b"a"), Err(CUresult::OUT_OF_MEMORY));
        assert_eq!(images.receive(hash, 0, 3, b"xyz"), Err(CUresult::INVALID_IMAGE));
        assert!(images.find(hash).is_none());
    }

    #[test]
    fn two_may_send_the_same_image_at_a_time() {
        let (images, data) = (Images::new(None), [7; 30]);
        let hash = hash_of(&data);
        for (offset, end) in [(0, 10), (0, 10), (10, 20), (5, 15), (10, 25), (20, 30), (10, 20), (20, 30)] {
            images.receive(hash, offset, 30, &data[offset as usize..end]).unwrap();
        }
        assert_eq!(images.find(hash).unwrap()[..30], data);
    }

    #[test]
    fn uploads_are_bounded() {
        let images = Images::new(None);
        for i in 0..UPLOADS_MAX as u8 {
            images.receive(hash_of(&[i]), 0, 2, b"x").unwrap();
        }
        assert_eq!(images.receive(hash_of(b"more"), 0, 2, b"x"), Err(CUresult::OUT_OF_MEMORY));
    }

    #[test]
    fn the_disk_is_believed_only_as_far_as_the_hash() {
        let folder = std::env::temp_dir().join(format!("sluice-images-{}", std::process::id()));
        let hash = hash_of(b"kernel");
        let images = Images::new(Some(folder.clone()));
        write_cached(&images.file(hash).unwrap(), b"kernel").unwrap();
        assert_eq!(*images.find(hash).unwrap(), b"kernel\0");
        let images = Images::new(Some(folder.clone()));
        fs::write(images.file(hash).unwrap(), b"broken").unwrap();
        assert!(images.find(hash).is_none());
        fs::remove_dir_all(folder).unwrap();
    }
}
