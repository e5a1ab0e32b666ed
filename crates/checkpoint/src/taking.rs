//! A session comes from its worker (`sluice_wire::checkpoint`) and is kept.
//!
//! The thread that reads hands chunks on to others that hash and write, so that the session stands
//! still for no longer than its bytes take to come. Nothing is forced to the disk before all have
//! come.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use sluice_wire::checkpoint::{
    Blob, CHUNK, ChunkHash, ChunkPlace, ChunkTag, Manifest, NO_HASH, StoredChunk, StoredImage, chunks,
};
use sluice_wire::migration::{STATE_MAX, SessionState};
use sluice_wire::{Encode, decode};

use crate::folder::CHUNKS_MAX;
use crate::{Failure, Folder};

/// Chunks that have come and are not written yet.
const WAITING_MAX: usize = 64;
/// More threads than this are faster than disks.
const THREADS_MAX: usize = 4;

/// The session's worker.
pub trait Peer: Read + Write {}

impl<P: Read + Write> Peer for P {}

/// Bytes of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Of device memory.
    pub memory: u64,
    /// Of them, in chunks that are zero.
    pub zero: u64,
    /// Of them, in chunks that came from the node.
    pub copied: u64,
    /// Of device memory and of the rest of the state: what was not in the folder before.
    pub stored: u64,
}

/// A session that is in the folder, with all but its manifest.
#[derive(Debug)]
pub struct TakenSession<R> {
    pub state: Blob,
    pub images: Vec<StoredImage>,
    pub contents: Vec<StoredChunk>,
    pub amounts: Amounts,
    /// What was done once everything had come.
    pub came: R,
}

/// Takes a session; `came` has the worker's side as soon as everything has come, and decides
/// whether the session continues while it is written. When this returns, all is on the disk.
pub fn take<P: Peer, R>(
    folder: &Folder,
    former: Option<&Manifest>,
    mut peer: P,
    came: impl FnOnce(P) -> Result<R, Failure>,
) -> Result<TakenSession<R>, Failure> {
    // What an earlier attempt has left need not be whole.
    folder.sweep(former)?;
    let state = read_state(&mut peer)?;
    let memory = memory_of(&state)?;
    let places: Vec<ChunkPlace> = chunks(&state).take(CHUNKS_MAX + 1).collect();
    if places.len() > CHUNKS_MAX {
        return Err(Failure::Nonsense("it has more memory than a checkpoint holds"));
    }
    let known = known_chunks(folder, former);
    let hash_of = |place: &ChunkPlace| known.get(place).copied().unwrap_or(NO_HASH);
    let hashes: Vec<u8> = places.iter().flat_map(hash_of).collect();
    peer.write_all(&hashes).and_then(|()| peer.flush()).map_err(Failure::Peer)?;
    let writing = Writing::new(folder, former);
    let mut amounts = Amounts { memory, ..Amounts::default() };
    let (contents, came) = std::thread::scope(|scope| {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let receiver = Arc::new(Mutex::new(receiver));
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        let threads: Vec<_> = (0..threads)
            .map(|_| {
                let receiver = Arc::clone(&receiver);
                scope.spawn(|| writing.all(receiver))
            })
            .collect();
        drop(receiver);
        let read = read_contents(&mut peer, (&places, &known), &sender, &mut amounts);
        drop(sender);
        let came = read.and_then(|contents| Ok((contents, came(peer)?)));
        let mut written = Vec::new();
        for thread in threads {
            written.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        let (mut contents, came) = came?;
        written.into_iter().for_each(|(at, hash)| contents[at].hash = Some(hash));
        Ok::<_, Failure>((contents, came))
    })?;
    let (state, images) = writing.state(state)?;
    amounts.stored = writing.finish()?;
    Ok(TakenSession { state, images, contents, amounts, came })
}

fn read_state(peer: &mut impl Read) -> Result<SessionState, Failure> {
    let mut size = [0; 8];
    peer.read_exact(&mut size).map_err(Failure::Peer)?;
    let size = u64::from_le_bytes(size);
    if size > STATE_MAX {
        return Err(Failure::Nonsense("the state of the session is larger than any"));
    }
    // The buffer grows with what comes.
    let mut bytes = Vec::new();
    peer.take(size).read_to_end(&mut bytes).map_err(Failure::Peer)?;
    if bytes.len() as u64 != size {
        return Err(Failure::Peer(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(decode(&bytes)?)
}

/// Bytes of device memory of a session.
fn memory_of(state: &SessionState) -> Result<u64, Failure> {
    let sum = state.contents().try_fold(0_u64, |sum, (_, address, bytes)| {
        address.checked_add(bytes)?;
        sum.checked_add(bytes)
    });
    sum.ok_or(Failure::Nonsense("it has more memory than there are addresses"))
}

/// The chunks of the former checkpoint, by their places. One that is missing is not known.
fn known_chunks(folder: &Folder, former: Option<&Manifest>) -> HashMap<ChunkPlace, ChunkHash> {
    let of = |chunk: &StoredChunk| {
        let &StoredChunk { gpu, address, bytes, hash } = chunk;
        let hash = hash.filter(|hash| folder.has_chunk(hash, bytes))?;
        Some((ChunkPlace { gpu, address, bytes }, hash))
    };
    former.iter().flat_map(|manifest| &manifest.contents).filter_map(of).collect()
}

/// Reads all chunks. Those of which the bytes come get their hashes later.
fn read_contents(
    peer: &mut impl Read,
    (places, known): (&[ChunkPlace], &HashMap<ChunkPlace, ChunkHash>),
    sender: &SyncSender<Come>,
    amounts: &mut Amounts,
) -> Result<Vec<StoredChunk>, Failure> {
    let mut contents = Vec::new();
    for (at, place) in places.iter().enumerate() {
        let mut tag = [0];
        peer.read_exact(&mut tag).map_err(Failure::Peer)?;
        let tag = ChunkTag::from_byte(tag[0]).ok_or(Failure::Nonsense("no tag of a chunk"))?;
        let hash = match tag {
            ChunkTag::Zero => {
                amounts.zero += place.bytes;
                None
            }
            ChunkTag::Same => {
                let hash = known.get(place).copied();
                Some(hash.ok_or(Failure::Nonsense("a chunk is the same as none"))?)
            }
            ChunkTag::Bytes => {
                let mut bytes = vec![0; place.bytes as usize];
                peer.read_exact(&mut bytes).map_err(Failure::Peer)?;
                amounts.copied += place.bytes;
                // Without a thread that takes it, one has failed and says why.
                let _ = sender.send((at, bytes));
                None
            }
        };
        let &ChunkPlace { gpu, address, bytes } = place;
        contents.push(StoredChunk { gpu, address, bytes, hash });
    }
    Ok(contents)
}

/// A chunk that has come, with its number.
type Come = (usize, Vec<u8>);

/// What is written of a checkpoint.
struct Writing<'a> {
    folder: &'a Folder,
    state: Mutex<Written>,
}

#[derive(Default)]
struct Written {
    /// The chunks that are in the folder, or about to be.
    there: HashSet<ChunkHash>,
    new: Vec<PathBuf>,
    bytes: u64,
}

impl<'a> Writing<'a> {
    fn new(folder: &'a Folder, former: Option<&Manifest>) -> Writing<'a> {
        // One that was removed by hand is not there, whatever the former manifest says.
        let sizes = former.iter().flat_map(|manifest| manifest.sizes());
        let there =
            sizes.filter(|(hash, bytes)| folder.has_chunk(hash, *bytes)).map(|(hash, _)| hash).collect();
        Writing { folder, state: Mutex::new(Written { there, ..Written::default() }) }
    }

    /// Keeps every chunk that comes; the answer is each one's number and hash.
    fn all(&self, chunks: Arc<Mutex<Receiver<Come>>>) -> Result<Vec<(usize, ChunkHash)>, Failure> {
        let mut kept = Vec::new();
        loop {
            let next = chunks.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok((at, bytes)) = next else { return Ok(kept) };
            kept.push((at, self.keep(&bytes)?));
        }
    }

    fn keep(&self, bytes: &[u8]) -> Result<ChunkHash, Failure> {
        let hash = *blake3::hash(bytes).as_bytes();
        if self.lock().there.insert(hash) {
            let path = self.folder.write_chunk(&hash, bytes)?;
            let mut written = self.lock();
            written.new.push(path);
            written.bytes += bytes.len() as u64;
        }
        Ok(hash)
    }

    /// Keeps a state, with its images for themselves: most of it stays the same.
    fn state(&self, mut state: SessionState) -> Result<(Blob, Vec<StoredImage>), Failure> {
        let mut images = Vec::new();
        for (hash, bytes) in &mut state.images {
            let blob = self.blob(&std::mem::take(bytes))?;
            images.push(StoredImage { hash: *hash, blob });
        }
        let mut bytes = Vec::new();
        state.encode(&mut bytes);
        Ok((self.blob(&bytes)?, images))
    }

    fn blob(&self, bytes: &[u8]) -> Result<Blob, Failure> {
        let chunks: Result<_, _> = bytes.chunks(CHUNK as usize).map(|chunk| self.keep(chunk)).collect();
        Ok(Blob { bytes: bytes.len() as u64, chunks: chunks? })
    }

    /// Has all of it on the disk; the answer is how many bytes were new.
    fn finish(self) -> Result<u64, Failure> {
        let written = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.folder.sync(&written.new)?;
        Ok(written.bytes)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Written> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
