//! Notes on a program's own machine: to which node its session was restored from a checkpoint, for
//! a client and a holder that look for a node which is gone.
//!
//! A note is a file in a folder of the user's, named after a secret without telling it: the client
//! looks by its session's, the holder and new processes by the lease's token. It carries a code
//! that only who knows the secret can make, so another user's file is no note.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ring::hmac;
use sluice_wire::address::Endpoint;

/// The secret of a session, or the token of a lease.
type Secret = [u8; 32];

/// Where a lease is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    pub node: Endpoint,
    /// The session's number there.
    pub session: u64,
}

/// A note names a node.
const SIZE_MAX: u64 = 4096;
/// No client looks for its node for a longer time.
const AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Leaves a note for the programs of this user, and takes away those that are of no more use.
pub fn note(secret: &Secret, restored: &Restored) -> io::Result<()> {
    note_in(&folder(), secret, restored)
}

/// Whether notes can be left: another user may have made a folder of that name.
pub fn check() -> io::Result<()> {
    make_folder(&folder())
}

/// Where the session or lease was restored, as far as a note says. One that is protected on the
/// node where it was is not sent to one that speaks plain text.
pub fn find(secret: &Secret, former: &Endpoint) -> Option<Restored> {
    find_in(&folder(), secret).filter(|restored| keeps_protection(former, &restored.node))
}

fn keeps_protection(former: &Endpoint, node: &Endpoint) -> bool {
    matches!(node, Endpoint::Tls { .. }) || !matches!(former, Endpoint::Tls { .. })
}

/// Names the folder of this user's notes, whatever the environment.
fn folder() -> PathBuf {
    // SAFETY: takes nothing and touches no memory.
    let user = unsafe { libc::geteuid() };
    PathBuf::from(format!("/tmp/sluice-restored-{user}"))
}

fn make_folder(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => check_folder(folder),
    }
}

fn note_in(folder: &Path, secret: &Secret, restored: &Restored) -> io::Result<()> {
    make_folder(folder)?;
    take_away_old(folder)?;
    let text = format!("{}\n{}", restored.node, restored.session);
    let tag = hmac::sign(&key(secret), text.as_bytes());
    let path = folder.join(name(secret));
    let new = path.with_extension(std::process::id().to_string());
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(format!("{}\n{text}", hex(tag.as_ref())).as_bytes())?;
    fs::rename(new, path)
}

/// The folder is the user's alone.
fn check_folder(folder: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(folder)?;
    // SAFETY: takes nothing and touches no memory.
    let user = unsafe { libc::geteuid() };
    if !found.is_dir() || found.uid() != user || found.permissions().mode() & 0o077 != 0 {
        let text = format!("{} is not a folder of this user's alone", folder.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(())
}

fn take_away_old(folder: &Path) -> io::Result<()> {
    let now = SystemTime::now();
    for entry in fs::read_dir(folder)?.flatten() {
        let written = entry.metadata().and_then(|metadata| metadata.modified());
        let age = written.ok().and_then(|written| now.duration_since(written).ok());
        if age.is_some_and(|age| age > AGE_MAX) {
            // Another process may have done it.
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

fn find_in(folder: &Path, secret: &Secret) -> Option<Restored> {
    let mut text = String::new();
    File::open(folder.join(name(secret))).ok()?.take(SIZE_MAX).read_to_string(&mut text).ok()?;
    let (tag, text) = text.split_once('\n')?;
    hmac::verify(&key(secret), text.as_bytes(), &bytes(tag)?).ok()?;
    let (node, session) = text.split_once('\n')?;
    Some(Restored { node: node.parse().ok()?, session: session.parse().ok()? })
}

fn key(secret: &Secret) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, secret)
}

fn name(secret: &Secret) -> String {
    hex(hmac::sign(&key(secret), b"the name of a note").as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks_exact(2);
    let value = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: Secret = [7; 32];

    fn restored(session: u64) -> Restored {
        Restored { node: "127.0.0.1:7310".parse().unwrap(), session }
    }

    #[test]
    fn a_note_is_found_by_the_secret_alone_and_the_last_one_counts() {
        let folder = std::env::temp_dir().join(format!("sluice-notes-{}", std::process::id()));
        note_in(&folder, &TOKEN, &restored(3)).unwrap();
        note_in(&folder, &TOKEN, &restored(4)).unwrap();
        assert_eq!(find_in(&folder, &TOKEN), Some(restored(4)));
        assert_eq!(find_in(&folder, &[8; 32]), None);
        let path = folder.join(name(&TOKEN));
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains(&hex(&TOKEN)));
        for forged in [text.replace("7310", "7311"), text.replace("\n4", "\n5"), String::new()] {
            fs::write(&path, forged).unwrap();
            assert_eq!(find_in(&folder, &TOKEN), None);
        }
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(note_in(&folder, &TOKEN, &restored(5)).is_err(), "others could write there");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_is_protected_stays_so() {
        let plain: Endpoint = "127.0.0.1:7310".parse().unwrap();
        let by_tls = Endpoint::Tls { address: "127.0.0.1:7310".into(), fingerprint: None };
        assert!(keeps_protection(&plain, &by_tls) && keeps_protection(&by_tls, &by_tls));
        assert!(keeps_protection(&plain, &plain) && !keeps_protection(&by_tls, &plain));
    }
}
