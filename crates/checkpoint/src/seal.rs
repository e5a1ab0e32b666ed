//! Checkpoints that are encrypted with a key of the user's, by AES-256-GCM.
//!
//! ```text
//! manifest   SLSEAL01, a salt, a check of the key, and the plain manifest, sealed
//! chunk      its bytes, sealed; its name is a keyed hash, so it tells nothing of the bytes
//! ```
//!
//! Every sealed text has a key of its own, which follows from the user's key: that of a chunk from
//! its hash, that of a manifest from its salt. So a key is used for one text, and the nonce can be
//! the same for all. Equal chunks are kept once, as without encryption.

use std::path::Path;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use sluice_wire::checkpoint::ChunkHash;

use crate::{Failure, manifest};

/// How a sealed manifest begins; the digits count changes of this format.
pub(crate) const MAGIC: &[u8; 8] = b"SLSEAL01";
const SALT: usize = 32;
const CHECK: usize = 32;
/// By how many bytes a sealed text is longer.
pub(crate) const TAG: u64 = 16;

/// What the derived keys are for.
const OF_CHUNKS: &str = "sluice 2026-11 a chunk of an encrypted checkpoint";
const OF_NAMES: &str = "sluice 2026-11 names of chunks of an encrypted checkpoint";
const OF_MANIFESTS: &str = "sluice 2026-11 the manifest of an encrypted checkpoint";
const OF_CHECKS: &str = "sluice 2026-11 which key an encrypted checkpoint has";

/// The user's key. It is kept in memory alone.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(secret)")
    }
}

impl Key {
    /// Takes 32 bytes that cannot be guessed: a passphrase is no key.
    pub fn new(bytes: [u8; 32]) -> Key {
        Key(bytes)
    }

    fn derive(&self, purpose: &str, of: &[u8; 32]) -> [u8; 32] {
        blake3::derive_key(purpose, &[self.0, *of].concat())
    }

    fn cipher(&self, purpose: &str, of: &[u8; 32]) -> Option<LessSafeKey> {
        let key = UnboundKey::new(&AES_256_GCM, &self.derive(purpose, of));
        key.ok().map(LessSafeKey::new)
    }

    /// What the file of a chunk is named after.
    pub(crate) fn name(&self, hash: &ChunkHash) -> ChunkHash {
        self.derive(OF_NAMES, hash)
    }

    /// `None` if the text is longer than any that can be sealed.
    pub(crate) fn seal_chunk(&self, hash: &ChunkHash, bytes: &[u8]) -> Option<Vec<u8>> {
        seal(&self.cipher(OF_CHUNKS, hash)?, bytes)
    }

    /// `None` if it was changed, or sealed with another key.
    pub(crate) fn open_chunk(&self, hash: &ChunkHash, sealed: Vec<u8>) -> Option<Vec<u8>> {
        open(&self.cipher(OF_CHUNKS, hash)?, sealed)
    }

    /// `None` if the system has no random numbers, or the text is too long.
    pub(crate) fn seal_manifest(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut salt = [0; SALT];
        SystemRandom::new().fill(&mut salt).ok()?;
        let sealed = seal(&self.cipher(OF_MANIFESTS, &salt)?, bytes)?;
        Some([&MAGIC[..], &salt, &self.derive(OF_CHECKS, &salt), &sealed].concat())
    }
}

/// The bytes of a manifest as they are without encryption, of the file of this name.
pub(crate) fn open_manifest(key: Option<&Key>, bytes: Vec<u8>, path: &Path) -> Result<Vec<u8>, Failure> {
    let (key, rest) = match (key, bytes.strip_prefix(MAGIC)) {
        (None, None) => return Ok(bytes),
        (None, Some(_)) => return Err(Failure::Encrypted(path.to_owned())),
        (Some(_), None) if manifest::is_plain(&bytes) => return Err(Failure::NotEncrypted(path.to_owned())),
        (Some(_), None) => return Err(Failure::damaged(path, "it is no manifest of a checkpoint")),
        (Some(key), Some(rest)) => (key, rest),
    };
    let short = || Failure::damaged(path, "it is too short");
    let (salt, rest) = rest.split_first_chunk::<SALT>().ok_or_else(short)?;
    let (check, sealed) = rest.split_first_chunk::<CHECK>().ok_or_else(short)?;
    if key.derive(OF_CHECKS, salt) != *check {
        return Err(Failure::OtherKey(path.to_owned()));
    }
    let opened = key.cipher(OF_MANIFESTS, salt).and_then(|cipher| open(&cipher, sealed.to_vec()));
    opened.ok_or_else(|| Failure::damaged(path, "it was changed after it was encrypted"))
}

fn seal(cipher: &LessSafeKey, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(bytes.len() + TAG as usize);
    text.extend_from_slice(bytes);
    cipher.seal_in_place_append_tag(nonce(), Aad::empty(), &mut text).ok()?;
    Some(text)
}

fn open(cipher: &LessSafeKey, mut text: Vec<u8>) -> Option<Vec<u8>> {
    let bytes = cipher.open_in_place(nonce(), Aad::empty(), &mut text).ok()?.len();
    text.truncate(bytes);
    Some(text)
}

/// Is used once with each key.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_opens_with_its_key_and_under_its_hash_alone() {
        let (key, other) = (Key::new([1; 32]), Key::new([2; 32]));
        let sealed = key.seal_chunk(&[7; 32], b"weights").unwrap();
        assert_eq!(sealed.len() as u64, b"weights".len() as u64 + TAG);
        assert_eq!(key.open_chunk(&[7; 32], sealed.clone()).unwrap(), b"weights");
        assert_eq!(key.open_chunk(&[8; 32], sealed.clone()), None);
        assert_eq!(other.open_chunk(&[7; 32], sealed.clone()), None);
        assert_ne!(key.name(&[7; 32]), other.name(&[7; 32]));
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(key.open_chunk(&[7; 32], changed), None, "byte {at}");
        }
        assert!(!format!("{key:?}").contains('1'));
    }

    #[test]
    fn each_manifest_has_a_key_of_its_own() {
        let (key, path) = (Key::new([1; 32]), Path::new("/saved/manifest"));
        let [first, second] = [(); 2].map(|()| key.seal_manifest(b"the same").unwrap());
        assert_ne!(first[MAGIC.len()..], second[MAGIC.len()..]);
        for sealed in [&first, &second] {
            assert_eq!(open_manifest(Some(&key), sealed.clone(), path).unwrap(), b"the same");
        }
        for bytes in 0..first.len() {
            assert!(open_manifest(Some(&key), first[..bytes].to_vec(), path).is_err(), "{bytes} bytes");
        }
    }
}
