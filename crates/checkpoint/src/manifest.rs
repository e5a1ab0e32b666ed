//! The manifest as bytes: what wrote it, the message, and a hash of both.

use std::path::Path;

use sluice_wire::checkpoint::{CHUNK, Manifest};
use sluice_wire::migration::STATE_MAX;
use sluice_wire::{Encode, VERSION, decode};

use crate::Failure;

/// How it begins; the digits count changes of this format.
const MAGIC: &[u8; 8] = b"SLCKPT02";
const HASH_SIZE: usize = 32;
/// Most bytes of the name of a version.
const VERSION_SIZE_MAX: usize = 64;

/// The bytes of a manifest.
pub fn to_bytes(manifest: &Manifest) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    let version = VERSION.to_string();
    bytes.push(version.len() as u8);
    bytes.extend_from_slice(version.as_bytes());
    manifest.encode(&mut bytes);
    let hash = blake3::hash(&bytes);
    bytes.extend_from_slice(hash.as_bytes());
    bytes
}

/// Whether these bytes begin as those of a manifest do.
pub(crate) fn is_plain(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// The manifest of these bytes, which are the file of this name.
pub fn from_bytes(bytes: &[u8], path: &Path) -> Result<Manifest, Failure> {
    let damaged = |what: &str| Failure::damaged(path, what);
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| damaged("it is no manifest of a checkpoint"))?;
    let (whole, hash) = bytes
        .split_at_checked(bytes.len().saturating_sub(HASH_SIZE))
        .ok_or_else(|| damaged("it is too short"))?;
    if blake3::hash(whole).as_bytes() != hash {
        return Err(damaged("its hash is another one"));
    }
    let (&size, rest) = rest.split_first().ok_or_else(|| damaged("it is too short"))?;
    let (version, rest) = rest
        .split_at_checked(usize::from(size).min(VERSION_SIZE_MAX))
        .ok_or_else(|| damaged("it is too short"))?;
    if version != VERSION.to_string().as_bytes() {
        let theirs = String::from_utf8_lossy(version).escape_debug().to_string();
        return Err(Failure::OtherVersion { path: path.to_owned(), theirs });
    }
    let body = rest.get(..rest.len().saturating_sub(HASH_SIZE)).unwrap_or_default();
    let manifest: Manifest = decode(body).map_err(|error| Failure::damaged(path, error.to_string()))?;
    check(&manifest).map_err(damaged)?;
    Ok(manifest)
}

/// Whether its sizes are such as a session has.
fn check(manifest: &Manifest) -> Result<(), &'static str> {
    let blobs = || std::iter::once(&manifest.state).chain(manifest.images.iter().map(|image| &image.blob));
    if blobs().any(|blob| blob.sizes().is_none()) {
        return Err("a number of chunks does not fit its size");
    }
    let sum = blobs().try_fold(0_u64, |sum, blob| sum.checked_add(blob.bytes));
    if sum.is_none_or(|sum| sum > STATE_MAX) {
        return Err("the state of its session is larger than any");
    }
    if manifest.contents.iter().any(|chunk| !(1..=CHUNK).contains(&chunk.bytes)) {
        return Err("a chunk has a size that none has");
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use sluice_wire::checkpoint::Blob;

    use super::*;

    /// A manifest whose sizes are such as a session has.
    pub(crate) fn sample(seed: &[u8]) -> Manifest {
        let manifest = sluice_wire::sample::manifest(seed);
        let state = Blob { bytes: 3, chunks: vec![[1; 32]] };
        Manifest { state, images: Vec::new(), contents: Vec::new(), ..manifest }
    }

    const PATH: &str = "/somewhere/manifest";

    fn read(bytes: &[u8]) -> Result<Manifest, Failure> {
        from_bytes(bytes, Path::new(PATH))
    }

    proptest! {
        #[test]
        fn a_manifest_comes_back(seed in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let manifest = sample(&seed);
            prop_assert_eq!(read(&to_bytes(&manifest)).unwrap(), manifest);
        }

        #[test]
        fn a_cut_or_changed_manifest_is_refused_by_name(
            seed in proptest::collection::vec(any::<u8>(), 0..500),
            at in any::<prop::sample::Index>(),
            change in 1..=255_u8,
        ) {
            let mut bytes = to_bytes(&sample(&seed));
            let at = at.index(bytes.len());
            let cut = read(&bytes[..at]).unwrap_err();
            prop_assert!(cut.to_string().contains(PATH), "{}", cut);
            bytes[at] ^= change;
            let changed = read(&bytes).unwrap_err();
            prop_assert!(changed.to_string().contains(PATH), "{}", changed);
        }

        /// The hash is right, so its maker meant it.
        #[test]
        fn hostile_manifests_are_read_or_refused(
            body in proptest::collection::vec(any::<u8>(), 0..2000),
            version in any::<bool>(),
        ) {
            let mut bytes = MAGIC.to_vec();
            if version {
                let version = VERSION.to_string();
                bytes.push(version.len() as u8);
                bytes.extend_from_slice(version.as_bytes());
            }
            bytes.extend_from_slice(&body);
            let hash = *blake3::hash(&bytes).as_bytes();
            bytes.extend_from_slice(&hash);
            if let Ok(manifest) = read(&bytes) {
                prop_assert_eq!(to_bytes(&manifest), bytes);
            }
        }
    }

    #[test]
    fn sizes_that_no_session_has_are_refused() {
        let whole = sample(&[7; 400]);
        let chunk = |bytes| sluice_wire::checkpoint::StoredChunk { gpu: 0, address: 0, bytes, hash: None };
        let blob = |bytes, count| Blob { bytes, chunks: vec![[1; 32]; count] };
        let cases = [
            Manifest { state: blob(CHUNK, 2), ..whole.clone() },
            Manifest { state: blob(u64::MAX, 0), ..whole.clone() },
            Manifest { state: blob(STATE_MAX + 1, (STATE_MAX / CHUNK) as usize + 1), ..whole.clone() },
            Manifest { contents: vec![chunk(0)], ..whole.clone() },
            Manifest { contents: vec![chunk(CHUNK + 1)], ..whole.clone() },
        ];
        for case in cases {
            assert!(matches!(read(&to_bytes(&case)), Err(Failure::Damaged { .. })));
        }
        assert!(read(&to_bytes(&Manifest { contents: vec![chunk(CHUNK)], ..whole })).is_ok());
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(b"\x059.9.9");
        let hash = *blake3::hash(&bytes).as_bytes();
        bytes.extend_from_slice(&hash);
        let refused = read(&bytes).unwrap_err();
        assert!(refused.to_string().contains("9.9.9"), "{refused}");
    }
}
