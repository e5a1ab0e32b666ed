//! A copy of a session: what its worker and the machine that keeps the copy say to each other, and
//! the manifest that says of which chunks the copy consists.
//!
//! ```text
//! worker                                        keeper of the copy
//!   | -- size of the state (64 bits), state -------> |
//!   | <- for each chunk: the hash it has, or zeros - |
//!   | -- for each chunk: a tag, and its bytes -----> |   where it is neither zero nor the same
//! ```
//!
//! The contents of device memory are cut into chunks at multiples of [`CHUNK`], so that a chunk
//! stays the same while the allocations around it change.

use crate::codec::message;
use crate::control::MoveOffer;
use crate::migration::SessionState;
use crate::types::ImageHash;

/// Most bytes of a chunk; a power of two.
pub const CHUNK: u64 = 4 << 20;

/// What identifies a chunk: BLAKE3 of its bytes.
pub type ChunkHash = [u8; 32];

/// In place of a hash, where the keeper of the copy has nothing of this chunk.
pub const NO_HASH: ChunkHash = [0; 32];

/// What the worker says of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ChunkTag {
    /// All its bytes are zero.
    Zero = 0,
    /// Its hash is the one that the keeper of the copy has.
    Same = 1,
    /// Its bytes follow.
    Bytes = 2,
}

impl ChunkTag {
    /// `None` for what is no tag.
    pub fn from_byte(byte: u8) -> Option<ChunkTag> {
        [ChunkTag::Zero, ChunkTag::Same, ChunkTag::Bytes].into_iter().find(|tag| *tag as u8 == byte)
    }
}

/// A piece of the memory of a GPU of the lease, by its place among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkPlace {
    pub gpu: u32,
    pub address: u64,
    /// At most [`CHUNK`].
    pub bytes: u64,
}

/// The chunks of a session's contents, in the order in which they are sent.
pub fn chunks(state: &SessionState) -> impl Iterator<Item = ChunkPlace> {
    state.contents().flat_map(|(gpu, address, bytes)| chunks_of(gpu, address, bytes))
}

fn chunks_of(gpu: u32, address: u64, bytes: u64) -> impl Iterator<Item = ChunkPlace> {
    let end = address.saturating_add(bytes);
    let mut next = address;
    std::iter::from_fn(move || {
        let here = next;
        let boundary = (here | (CHUNK - 1)).saturating_add(1);
        next = boundary.min(end);
        (here < next).then(|| ChunkPlace { gpu, address: here, bytes: next - here })
    })
}

message! {
    /// Bytes that are kept as chunks: each of [`CHUNK`] bytes, the last of what is left.
    pub struct Blob {
        bytes: u64,
        chunks: Vec<ChunkHash>,
    }
}

message! {
    /// An image of a module.
    pub struct StoredImage {
        hash: ImageHash,
        blob: Blob,
    }
}

message! {
    /// A piece of device memory; without a hash it is zero.
    pub struct StoredChunk {
        gpu: u32,
        address: u64,
        bytes: u64,
        hash: Option<ChunkHash>,
    }
}

message! {
    /// Where a session is that was restored from the checkpoint.
    pub struct Restored {
        /// In milliseconds since 1970.
        at_ms: u64,
        node: String,
        session: u64,
    }
}

message! {
    /// What a checkpoint consists of.
    pub struct Manifest {
        /// In milliseconds since 1970.
        taken_ms: u64,
        /// The endpoint of the node that the session was on, and its number there.
        node: String,
        session: u64,
        /// The session was to leave its node with this checkpoint.
        stops: bool,
        /// Its node has said that it has left.
        stopped: bool,
        restored: Option<Restored>,
        /// A restore has begun that has not come to its end.
        restoring: Option<Restored>,
        offer: MoveOffer,
        /// A [`SessionState`] whose images are empty: these follow.
        state: Blob,
        images: Vec<StoredImage>,
        contents: Vec<StoredChunk>,
    }
}

impl Manifest {
    /// The hashes and sizes of all chunks, those of several uses more than once.
    pub fn sizes(&self) -> impl Iterator<Item = (ChunkHash, u64)> {
        let images = self.images.iter().map(|image| &image.blob);
        let blobs = std::iter::once(&self.state).chain(images).filter_map(Blob::sizes).flatten();
        let of = |chunk: &StoredChunk| chunk.hash.map(|hash| (hash, chunk.bytes));
        blobs.chain(self.contents.iter().filter_map(of))
    }
}

impl Blob {
    /// The sizes of its chunks in bytes; `None` if their number does not fit its size.
    pub fn sizes(&self) -> Option<impl Iterator<Item = (ChunkHash, u64)>> {
        let counted = usize::try_from(self.bytes.div_ceil(CHUNK)) == Ok(self.chunks.len());
        let size = |at: usize| (self.bytes - at as u64 * CHUNK).min(CHUNK);
        counted.then(|| self.chunks.iter().enumerate().map(move |(at, hash)| (*hash, size(at))))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sample::{Sample, Source};
    use crate::{Encode, decode};

    proptest! {
        #[test]
        fn chunks_cover_a_range_and_stay_where_they_are(
            address in 0..u64::MAX / 2,
            bytes in 0..20 * CHUNK,
            cut in 0..20 * CHUNK,
        ) {
            let all: Vec<_> = chunks_of(3, address, bytes).collect();
            let mut at = address;
            for chunk in &all {
                prop_assert_eq!((chunk.gpu, chunk.address), (3, at));
                prop_assert!((1..=CHUNK).contains(&chunk.bytes));
                at += chunk.bytes;
            }
            prop_assert_eq!(at, address + bytes);
            // Those behind the first are the same if the range begins later.
            let cut = cut.min(bytes);
            let later: Vec<_> = chunks_of(3, address + cut, bytes - cut).skip(1).collect();
            prop_assert!(all.ends_with(&later));
        }

        #[test]
        fn a_manifest_is_read_as_it_was_written(seed in proptest::collection::vec(any::<u8>(), 0..4096)) {
            let manifest = Manifest::sample(&mut Source::new(&seed));
            let mut bytes = Vec::new();
            manifest.encode(&mut bytes);
            prop_assert_eq!(decode::<Manifest>(&bytes), Ok(manifest));
        }

        #[test]
        fn whatever_is_read_as_a_manifest_is_written_the_same(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
            if let Ok(manifest) = decode::<Manifest>(&bytes) {
                let mut again = Vec::new();
                manifest.encode(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }

    #[test]
    fn a_blob_of_another_number_of_chunks_has_no_sizes() {
        let blob = |bytes, chunks: usize| Blob { bytes, chunks: vec![[1; 32]; chunks] };
        let sizes =
            |bytes, chunks| blob(bytes, chunks).sizes().map(|all| all.map(|(_, size)| size).collect());
        assert_eq!(sizes(0, 0), Some(vec![]));
        assert_eq!(sizes(CHUNK + 1, 2), Some(vec![CHUNK, 1]));
        assert_eq!(sizes(CHUNK, 2), None);
        assert_eq!(sizes(CHUNK, 0), None);
        assert_eq!(sizes(u64::MAX, 1), None);
    }
}
