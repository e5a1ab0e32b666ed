//! The form of a state in a file: a head that any release can read, and the state.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | [`MAGIC`] |
//! | 4 | [`FORMAT`] |
//! | 4 | the version of what a daemon and its workers say to each other |
//! | 4 | the version of what clients and workers say to each other |
//! | 8 | the length of the state |
//! | 32 | the hash of all that is before and behind this |
//! | | the state, as JSON |
//!
//! Numbers are little-endian. The hash is no secret's: it is there to find damage.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use super::State;

const MAGIC: &[u8; 8] = b"SluNodeS";
/// Raised with each change of what a state has, or of what that means.
const FORMAT: u32 = 1;
const HASHED_HEAD: usize = 28;
const HEAD: usize = HASHED_HEAD + 32;
/// Of a node with a hundred thousand sessions.
const LENGTH_MAX: u64 = 1 << 30;
const SEALS: i32 = libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Why a program cannot continue from a state.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("it is no state of a node")]
    Magic,
    #[error("it has format {theirs}, and this release ({release}) reads {FORMAT}", release = env!("CARGO_PKG_VERSION"))]
    Format { theirs: u32 },
    #[error(
        "its workers speak version {theirs} of the link to their daemon, and this release ({release}) speaks {ours}: restart \
         the node once its programs have ended or moved (`sluice drain`, `sluice migrate`)",
        release = env!("CARGO_PKG_VERSION")
    )]
    Link { theirs: u32, ours: u32 },
    #[error(
        "its programs speak protocol {theirs}, and this release ({release}) speaks {ours}: restart the node once they have \
         ended",
        release = env!("CARGO_PKG_VERSION")
    )]
    Protocol { theirs: u32, ours: u32 },
    #[error("it is damaged")]
    Damaged,
    #[error("it says what this release does not know: {0}")]
    Meaning(#[from] serde_json::Error),
    #[error("it is not sealed, so it may change")]
    Unsealed,
    #[error("it cannot be read: {0}")]
    File(#[from] io::Error),
}

impl State {
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, serde_json::Error> {
        let state = serde_json::to_vec(self)?;
        let mut bytes = Vec::with_capacity(HEAD + state.len());
        bytes.extend(MAGIC);
        for version in [FORMAT, sluice_worker_link::VERSION, u32::from(sluice_wire::VERSION.protocol)] {
            bytes.extend(version.to_le_bytes());
        }
        bytes.extend((state.len() as u64).to_le_bytes());
        bytes.extend(hash(&bytes, &state));
        bytes.extend(state);
        Ok(bytes)
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<State, StateError> {
        let (head, state) = bytes.split_at_checked(HEAD).ok_or(StateError::Magic)?;
        let (head, written) = head.split_at(HASHED_HEAD);
        let (magic, rest) = head.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(StateError::Magic);
        }
        // What another release has written may have another form from here on.
        let number = |at: usize| u32::from_le_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
        let format = number(0);
        if format != FORMAT {
            return Err(StateError::Format { theirs: format });
        }
        let length = u64::from(number(12)) | u64::from(number(16)) << 32;
        if length != state.len() as u64 || hash(head, state) != written {
            return Err(StateError::Damaged);
        }
        let (link, protocol) = (number(4), number(8));
        let ours = sluice_worker_link::VERSION;
        if link != ours {
            return Err(StateError::Link { theirs: link, ours });
        }
        let ours = u32::from(sluice_wire::VERSION.protocol);
        if protocol != ours {
            return Err(StateError::Protocol { theirs: protocol, ours });
        }
        Ok(serde_json::from_slice(state)?)
    }

    /// What a sealed file has.
    pub(super) fn read(file: OwnedFd) -> Result<State, StateError> {
        let file = File::from(file);
        // SAFETY: asks for a property of an open descriptor.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & SEALS != SEALS {
            return Err(StateError::Unsealed);
        }
        let length = file.metadata()?.len();
        if length > LENGTH_MAX {
            return Err(StateError::Damaged);
        }
        let mut bytes = vec![0; length as usize];
        // Its position is shared with the process that has written it.
        file.read_exact_at(&mut bytes, 0)?;
        State::from_bytes(&bytes)
    }
}

fn hash(head: &[u8], state: &[u8]) -> [u8; 32] {
    *blake3::Hasher::new().update(head).update(state).finalize().as_bytes()
}

/// A file in memory with these bytes, which stay as they are.
fn sealed(bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a NUL-terminated literal.
    let file = unsafe { libc::memfd_create(c"sluice-node-state".as_ptr(), flags) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call returned a new descriptor that has no other owner.
    let mut file = File::from(unsafe { OwnedFd::from_raw_fd(file) });
    file.write_all(bytes)?;
    // SAFETY: plain system call on our own descriptor.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file.into())
}

/// The state in a file that cannot change.
pub(crate) fn seal(state: &State) -> io::Result<OwnedFd> {
    sealed(&state.to_bytes()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_change_is_not_read() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(matches!(State::read(file.into()), Err(StateError::Unsealed)));
        let read = State::read(sealed(b"no state").unwrap());
        assert!(matches!(read, Err(StateError::Magic)), "{read:?}");
        let mut file = File::from(sealed(b"x").unwrap());
        assert!(file.write_all(b"y").is_err());
    }
}
