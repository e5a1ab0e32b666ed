//! Module images by content hash: those that the client has sent, and a cache on disk that all
//! workers of a node share.
//!
//! An image is trusted only as far as its hash: what comes from the client or from the disk is
//! hashed before it is used, so neither a broken disk nor another tenant's worker can slip in
//! different code.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::CUresult;
use sluice_wire::ImageHash;

use crate::memory::host_memory::{HostCharge, HostMemory};
use crate::modules::disk_cache::{self, DiskCache, size_of};

/// The largest image, in bytes; the largest of CUDA's own libraries is a third of it.
const IMAGE_MAX: u64 = 2 << 30;
/// Images that a session may be sending at a time.
const UPLOADS_MAX: usize = 16;
/// Whole images kept in memory, in bytes; the newest stays whatever its size.
const MEMORY_MAX: u64 = 256 << 20;
/// Images on disk that a session may count on.
const PROMISED_MAX: usize = 1024;
/// Bytes of the images on disk that a session may count on: a file that is open takes room on the
/// disk after it is removed.
const PROMISED_BYTES_MAX: u64 = 1 << 30;

/// The images of one session.
pub(crate) struct Images {
    cache: Option<Arc<DiskCache>>,
    memory: Arc<HostMemory>,
    state: Mutex<State>,
}

/// A whole image with a NUL after it.
pub(crate) struct Image {
    pub(crate) bytes: Vec<u8>,
    #[expect(dead_code, reason = "held, not read")]
    held: HostCharge,
}

#[derive(Default)]
struct State {
    whole: HashMap<ImageHash, Arc<Image>>,
    /// Of `whole`, oldest first.
    order: VecDeque<ImageHash>,
    bytes: u64,
    uploads: HashMap<ImageHash, Upload>,
    /// Images of which the client knows that they are in the cache, open so that no process can
    /// remove them.
    promised: HashMap<ImageHash, fs::File>,
    promised_bytes: u64,
    /// Images for which there is no room, whose pieces are passed over; true until the one who asks
    /// for it is notified.
    refused: HashMap<ImageHash, bool>,
}

struct Upload {
    total: u64,
    data: Vec<u8>,
    held: HostCharge,
}

impl Images {
    /// With a folder for the cache, or none.
    pub(crate) fn new(cache: Option<Arc<DiskCache>>, memory: Arc<HostMemory>) -> Images {
        Images { cache, memory, state: Mutex::default() }
    }

    /// The image, if it is here or in the cache. An error if there is no room for it, also where
    /// the client has just sent it.
    pub(crate) fn find(&self, hash: ImageHash) -> Result<Option<Arc<Image>>, CUresult> {
        let mut state = self.lock();
        if let Some(image) = state.whole.get(&hash) {
            return Ok(Some(Arc::clone(image)));
        }
        if let Some(untold @ true) = state.refused.get_mut(&hash) {
            *untold = false;
            return Err(CUresult::OUT_OF_MEMORY);
        }
        let promised = state.promised.get(&hash).and_then(|file| file.try_clone().ok());
        drop(state);
        let promised = || promised.and_then(|file| size_of(&file).map(|size| (file, size)));
        let Some((file, size)) = self.cached(hash).or_else(promised).filter(|(_, size)| *size <= IMAGE_MAX)
        else {
            return Ok(None);
        };
        let held = self.take(size)?;
        let Some(bytes) = read_cached(file, size, hash) else {
            self.cache.iter().for_each(|cache| cache.remove(&name_of(hash)));
            return Ok(None);
        };
        let image = Arc::new(Image { bytes: terminated(bytes), held });
        self.lock().keep(hash, &image);
        Ok(Some(image))
    }

    /// Whether the image is in the cache, and stays to be found: a session may count on a limited
    /// number of bytes. What is in memory alone may have to make room.
    pub(crate) fn promise(&self, hash: ImageHash) -> bool {
        let mut state = self.lock();
        if state.promised.contains_key(&hash) {
            return true;
        }
        let Some((file, size)) = self.cached(hash).filter(|(_, size)| *size <= IMAGE_MAX) else {
            return false;
        };
        if state.promised.len() >= PROMISED_MAX || state.promised_bytes + size > PROMISED_BYTES_MAX {
            return false;
        }
        state.promised_bytes += size;
        state.promised.insert(hash, file);
        true
    }

    /// Whether the client is sending one.
    pub(crate) fn is_uploading(&self) -> bool {
        !self.lock().uploads.is_empty()
    }

    /// The images in memory, and those in the cache on which the client counts.
    pub(crate) fn known(&self) -> (Vec<(ImageHash, Arc<Image>)>, Vec<ImageHash>) {
        let state = self.lock();
        let whole = state.whole.iter().map(|(hash, image)| (*hash, Arc::clone(image))).collect();
        (whole, state.promised.keys().copied().collect())
    }

    /// Keeps this number of bytes, if need be instead of images that are here only to be found
    /// again.
    pub(crate) fn take(&self, bytes: u64) -> Result<HostCharge, CUresult> {
        self.take_instead(&mut self.lock(), bytes)
    }

    fn take_instead(&self, state: &mut State, bytes: u64) -> Result<HostCharge, CUresult> {
        if let Some(held) = self.memory.try_take(bytes) {
            return Ok(held);
        }
        (state.bytes, state.order, state.whole) = Default::default();
        self.memory.take(bytes)
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
        if offset == 0 && !state.uploads.contains_key(&hash) {
            // A piece has no answer: the call that uses the image gets the error.
            let Ok(held) = self.take_instead(&mut state, total) else {
                state.refuse(hash);
                return Ok(());
            };
            state.refused.remove(&hash);
            state.uploads.insert(hash, Upload { total, data: Vec::new(), held });
        } else if let Some(untold) = state.refused.get_mut(&hash) {
            *untold = true;
            return Ok(());
        }
        let Some(upload) = state.uploads.get_mut(&hash) else { return Err(CUresult::INVALID_IMAGE) };
        let have = upload.data.len() as u64;
        // Several threads of a client may be sending the same image: what is here already is passed
        // over. What has arrived is all that is ever allocated for: the stated total is a bound,
        // not a size.
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
        let Some(upload) = state.uploads.remove(&hash) else { return Ok(()) };
        drop(state);
        self.complete(hash, upload)
    }

    fn complete(&self, hash: ImageHash, Upload { data, held, .. }: Upload) -> Result<(), CUresult> {
        if hash_of(&data) != hash {
            return Err(CUresult::INVALID_IMAGE);
        }
        let image = Arc::new(Image { bytes: terminated(data), held });
        self.lock().keep(hash, &image);
        if let Some(cache) = self.cache.clone() {
            // Off this thread, which must not wait for a disk. A cache that cannot be written costs
            // time, nothing else.
            let write = move || {
                let _ = cache.write(&name_of(hash), &image.bytes[..image.bytes.len() - 1]);
                if cache.is_due() {
                    let _ = cache.trim();
                }
            };
            let _ = std::thread::Builder::new().name("image cache".into()).spawn(write);
        }
        Ok(())
    }

    fn cached(&self, hash: ImageHash) -> Option<(fs::File, u64)> {
        self.cache.as_ref()?.find(&name_of(hash))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn keep(&mut self, hash: ImageHash, image: &Arc<Image>) {
        if self.whole.insert(hash, Arc::clone(image)).is_some() {
            return;
        }
        self.order.push_back(hash);
        self.bytes += image.bytes.len() as u64;
        while self.bytes > MEMORY_MAX && self.order.len() > 1 {
            let oldest = self.order.pop_front().and_then(|old| self.whole.remove(&old));
            self.bytes -= oldest.map_or(0, |image| image.bytes.len() as u64);
        }
    }

    fn refuse(&mut self, hash: ImageHash) {
        if self.refused.len() >= UPLOADS_MAX {
            self.refused.clear();
        }
        self.refused.insert(hash, true);
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

/// The name of its file in the cache.
fn name_of(hash: ImageHash) -> String {
    hash.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Files are replaced, and do not grow.
fn read_cached(file: fs::File, size: u64, hash: ImageHash) -> Option<Vec<u8>> {
    disk_cache::read(file, size).ok().filter(|data| hash_of(data) == hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::host_memory::tests::of;

    fn uncached() -> Images {
        Images::new(None, of(u64::MAX))
    }

    fn found(images: &Images, hash: ImageHash) -> Option<Vec<u8>> {
        images.find(hash).unwrap().map(|image| image.bytes.clone())
    }

    #[test]
    fn an_image_for_which_there_is_no_room_is_an_error_of_its_load_alone() {
        let memory = of(100);
        let images = Images::new(None, Arc::clone(&memory));
        let (large, small) = ([3; 80], [4; 30]);
        let send = |data: &[u8]| {
            for (i, piece) in data.chunks(20).enumerate() {
                images.receive(hash_of(data), i as u64 * 20, data.len() as u64, piece).unwrap();
            }
        };
        // An image that is here only to be found again makes room,
        send(&small);
        send(&large);
        assert!(found(&images, hash_of(&small)).is_none() && found(&images, hash_of(&large)).is_some());
        // and what modules keep does not.
        let kept = images.take(50).unwrap();
        send(&large);
        assert_eq!(images.find(hash_of(&large)).err(), Some(CUresult::OUT_OF_MEMORY));
        assert!(found(&images, hash_of(&large)).is_none(), "it is asked for again");
        // Another thread of the client is still sending it.
        images.receive(hash_of(&large), 60, 80, &large[60..]).unwrap();
        assert_eq!(images.find(hash_of(&large)).err(), Some(CUresult::OUT_OF_MEMORY));
        send(&small);
        assert!(found(&images, hash_of(&small)).is_some());
        drop(kept);
        send(&large);
        assert!(found(&images, hash_of(&large)).is_some());
        drop(images);
        assert_eq!(memory.check_room(100), Ok(()));
    }

    #[test]
    fn an_image_in_pieces_becomes_whole() {
        let images = uncached();
        let data: Vec<u8> = (0..10_000_u32).map(|i| i as u8).collect();
        let hash = hash_of(&data);
        for (i, piece) in data.chunks(3000).enumerate() {
            assert!(found(&images, hash).is_none());
            images.receive(hash, i as u64 * 3000, 10_000, piece).unwrap();
        }
        assert_eq!(found(&images, hash).unwrap().strip_suffix(b"\0"), Some(&data[..]));
    }

    #[test]
    fn pieces_that_do_not_fit_are_refused() {
        let images = uncached();
        let hash = hash_of(b"abc");
        assert_eq!(images.receive(hash, 1, 3, b"bc"), Err(CUresult::INVALID_IMAGE));
        images.receive(hash, 0, 3, b"a").unwrap();
        assert_eq!(images.receive(hash, 1, 4, b"bc"), Err(CUresult::INVALID_IMAGE));
        images.receive(hash, 0, 3, b"a").unwrap();
        assert_eq!(images.receive(hash, 1, 3, b"bcd"), Err(CUresult::INVALID_IMAGE));
        assert_eq!(images.receive(hash, 0, u64::MAX, b"a"), Err(CUresult::OUT_OF_MEMORY));
        assert_eq!(images.receive(hash, 0, 3, b"xyz"), Err(CUresult::INVALID_IMAGE));
        assert!(found(&images, hash).is_none());
    }

    #[test]
    fn two_may_send_the_same_image_at_a_time() {
        let (images, data) = (uncached(), [7; 30]);
        let hash = hash_of(&data);
        for (offset, end) in [(0, 10), (0, 10), (10, 20), (5, 15), (10, 25), (20, 30), (10, 20), (20, 30)] {
            images.receive(hash, offset, 30, &data[offset as usize..end]).unwrap();
        }
        assert_eq!(found(&images, hash).unwrap()[..30], data);
    }

    #[test]
    fn uploads_are_bounded() {
        let images = uncached();
        for i in 0..UPLOADS_MAX as u8 {
            images.receive(hash_of(&[i]), 0, 2, b"x").unwrap();
        }
        assert_eq!(images.receive(hash_of(b"more"), 0, 2, b"x"), Err(CUresult::OUT_OF_MEMORY));
    }

    #[test]
    fn the_disk_is_believed_only_as_far_as_the_hash() {
        let folder = std::env::temp_dir().join(format!("sluice-images-{}", std::process::id()));
        let hash = hash_of(b"kernel");
        fs::create_dir_all(&folder).unwrap();
        let cache = || Arc::new(DiskCache::open(&folder).unwrap());
        let cached = |limit| Images::new(Some(cache()), of(limit));
        let (images, file) = (cached(6), folder.join(name_of(hash)));
        cache().write(&name_of(hash), b"kernel").unwrap();
        assert_eq!(found(&cached(6), hash).unwrap(), b"kernel\0");
        assert_eq!(cached(5).find(hash).err(), Some(CUresult::OUT_OF_MEMORY));
        let promised = cached(6);
        assert!(promised.promise(hash) && !promised.promise(hash_of(b"another")));
        fs::remove_file(&file).unwrap();
        assert!(!cached(6).promise(hash));
        assert_eq!(found(&promised, hash).unwrap(), b"kernel\0", "it was promised");
        fs::write(&file, b"broken").unwrap();
        assert!(found(&images, hash).is_none());
        fs::remove_dir_all(folder).unwrap();
    }
}
