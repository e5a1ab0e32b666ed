//! A session goes to a worker that takes it over (`sluice_wire::migration`).

use std::io::{self, Write};

use sluice_wire::checkpoint::{Blob, CHUNK, ChunkPlace, Manifest, StoredChunk, chunks};
use sluice_wire::migration::SessionState;
use sluice_wire::{Encode, decode};

use crate::{Failure, Folder};

/// A session as a checkpoint has it.
#[derive(Debug)]
pub struct Session<'a> {
    folder: &'a Folder,
    manifest: &'a Manifest,
    pub state: SessionState,
}

/// Reads the state of the session, and compares the manifest with it.
pub fn read<'a>(folder: &'a Folder, manifest: &'a Manifest) -> Result<Session<'a>, Failure> {
    let damaged = |what: String| Failure::damaged(&folder.manifest_path(), what);
    let bytes = read_blob(folder, &manifest.state)?;
    let mut state: SessionState = decode(&bytes).map_err(|error| damaged(error.to_string()))?;
    if state.images.len() != manifest.images.len() {
        return Err(damaged("it has another number of images than its session".to_owned()));
    }
    for ((hash, bytes), stored) in state.images.iter_mut().zip(&manifest.images) {
        if *hash != stored.hash {
            return Err(damaged("it has other images than its session".to_owned()));
        }
        *bytes = read_blob(folder, &stored.blob)?;
    }
    let place =
        |chunk: &StoredChunk| ChunkPlace { gpu: chunk.gpu, address: chunk.address, bytes: chunk.bytes };
    if !chunks(&state).eq(manifest.contents.iter().map(place)) {
        return Err(damaged("it has other memory than its session".to_owned()));
    }
    Ok(Session { folder, manifest, state })
}

fn read_blob(folder: &Folder, blob: &Blob) -> Result<Vec<u8>, Failure> {
    let counted = || Failure::damaged(&folder.manifest_path(), "a number of chunks does not fit its size");
    let mut bytes = Vec::new();
    for (hash, size) in blob.sizes().ok_or_else(counted)? {
        bytes.extend_from_slice(&folder.read_chunk(&hash, size)?);
    }
    Ok(bytes)
}

impl Session<'_> {
    /// Bytes of device memory.
    pub fn memory(&self) -> u64 {
        self.manifest.contents.iter().fold(0, |sum, chunk| sum.saturating_add(chunk.bytes))
    }

    /// Sends all of it. A chunk that is damaged ends it.
    pub fn send(&self, to: &mut impl Write) -> Result<(), Failure> {
        let mut bytes = Vec::new();
        self.state.encode(&mut bytes);
        let zeros = vec![0; CHUNK as usize];
        let mut write = |bytes: &[u8]| -> Result<(), Failure> { to.write_all(bytes).map_err(Failure::Peer) };
        write(&(bytes.len() as u64).to_le_bytes())?;
        write(&bytes)?;
        for chunk in &self.manifest.contents {
            match &chunk.hash {
                Some(hash) => write(&self.folder.read_chunk(hash, chunk.bytes)?)?,
                None => {
                    let zeros = zeros.get(..chunk.bytes as usize);
                    write(zeros.ok_or_else(|| Failure::Peer(io::ErrorKind::InvalidData.into()))?)?;
                }
            }
        }
        to.flush().map_err(Failure::Peer)
    }
}
