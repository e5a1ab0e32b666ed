//! The contents of a session's memory for the keeper of a copy, which has most of it from before.

use std::fs::File;
use std::io::{Read, Write};

use sluice_wire::checkpoint::{CHUNK, ChunkHash, ChunkPlace, ChunkTag, NO_HASH, chunks};
use sluice_wire::migration::SessionState;

use super::depart::NotDeparted;
use crate::memory::contents::{Contents, PIECE};
use crate::session::Session;

const _: () = assert!(CHUNK <= PIECE, "a chunk is copied in one piece");

/// Takes the hashes that the keeper has, and sends what it lacks.
pub(super) fn send(session: &Session, state: &SessionState, peer: &mut File) -> Result<(), NotDeparted> {
    let places: Vec<ChunkPlace> = chunks(state).collect();
    let mut known = vec![NO_HASH; places.len()];
    known.iter_mut().try_for_each(|hash| peer.read_exact(hash))?;
    let mut contents = Contents::new(session)?;
    for (ChunkPlace { gpu, address, bytes }, known) in places.into_iter().zip(&known) {
        contents.send::<NotDeparted>(gpu, (address, bytes), |chunk| {
            let tag = tag(chunk, known);
            peer.write_all(&[tag as u8])?;
            if tag == ChunkTag::Bytes { peer.write_all(chunk) } else { Ok(()) }
        })?;
    }
    Ok(())
}

/// What there is to say of a chunk to one that has a chunk of this hash.
fn tag(chunk: &[u8], known: &ChunkHash) -> ChunkTag {
    if is_zero(chunk) {
        ChunkTag::Zero
    } else if *known != NO_HASH && blake3::hash(chunk).as_bytes() == known {
        ChunkTag::Same
    } else {
        ChunkTag::Bytes
    }
}

/// Compares the bytes with themselves, moved by one: as fast as memory is, and at the first other
/// byte it ends.
fn is_zero(bytes: &[u8]) -> bool {
    match bytes {
        [] => true,
        [first, rest @ ..] => *first == 0 && *rest == bytes[..rest.len()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_zero_or_known_or_sent() {
        let hash = |bytes: &[u8]| *blake3::hash(bytes).as_bytes();
        assert_eq!(tag(&[0; 100], &NO_HASH), ChunkTag::Zero);
        for at in [0, 50, 99] {
            let mut bytes = [0; 100];
            bytes[at] = 1;
            assert_eq!(tag(&bytes, &NO_HASH), ChunkTag::Bytes, "{at}");
            assert_eq!(tag(&bytes, &hash(&bytes)), ChunkTag::Same, "{at}");
            assert_eq!(tag(&bytes, &hash(&[1; 100])), ChunkTag::Bytes, "{at}");
        }
        assert_eq!(tag(&[7; 3], &NO_HASH), ChunkTag::Bytes);
    }
}
