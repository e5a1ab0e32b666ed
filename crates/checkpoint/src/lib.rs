//! Checkpoints of sessions, in folders.
//!
//! ```text
//! FOLDER/            0700
//!   manifest         which chunks the checkpoint consists of; written last, and renamed into place
//!   chunks/3f/3f9a…  at most 4 MiB, named after their BLAKE3
//!   lock             says what the folder is; held by the process that works here
//! ```
//!
//! A chunk that is there is not written again, so a further checkpoint takes the room of what has
//! changed. The former one is whole until the manifest of the next is on the disk; then the chunks
//! that only it refers to are removed. Nothing in a folder is trusted: each chunk is checked by its
//! name, the manifest by a hash of its own, and no path comes out of it. No link is followed, and
//! only files that are named as chunks are removed. With a [`Key`] chunks and manifest are
//! encrypted, and chunks are named after a keyed hash.
//!
//! | module | contents |
//! |---|---|
//! | `folder` | the files |
//! | `manifest` | the manifest as bytes |
//! | `seal` | encryption |
//! | `taking` | a session comes from its worker |
//! | `giving` | a session goes to a worker |

mod folder;
mod giving;
mod manifest;
mod seal;
mod taking;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use sluice_wire::WireError;

pub use folder::Folder;
pub use giving::{Session, read};
pub use manifest::{from_bytes, to_bytes};
pub use seal::Key;
pub use taking::{Amounts, Peer, TakenSession, take};

/// Why there is no checkpoint, or none that can be restored. The text names the file.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{}: {error}", .path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{} holds no checkpoint; `sluice checkpoint LEASE {}` makes one", .0.display(), .0.display())]
    NoCheckpoint(PathBuf),
    #[error("{} is not empty and holds no checkpoint: name an empty folder or a new one", .0.display())]
    NotEmpty(PathBuf),
    #[error("{} is not a folder of this user's own, or is a link: name another folder", .0.display())]
    NotOwn(PathBuf),
    #[error("another process works on the checkpoint in {}", .0.display())]
    InUse(PathBuf),
    #[error("{} is damaged: {what}; restore from another copy of the folder, or take the checkpoint anew", .path.display())]
    Damaged { path: PathBuf, what: String },
    #[error("{} was made by Sluice {theirs}, and this is {ours}: use that version to restore it, or name another folder", .path.display(), ours = sluice_wire::VERSION)]
    OtherVersion { path: PathBuf, theirs: String },
    #[error("{} is encrypted: name the file of its key, --key-file FILE", .0.display())]
    Encrypted(PathBuf),
    #[error("{} is not encrypted: leave out --key-file, or name another folder for an encrypted checkpoint", .0.display())]
    NotEncrypted(PathBuf),
    #[error("{} was encrypted with another key than that of --key-file, or is damaged", .0.display())]
    OtherKey(PathBuf),
    #[error("the session cannot be copied: {0}")]
    Peer(#[source] io::Error),
    #[error("its worker sent nonsense: {0}")]
    Wire(#[from] WireError),
    #[error("its worker sent nonsense: {0}")]
    Nonsense(&'static str),
}

impl Failure {
    fn at(path: &Path) -> impl Fn(io::Error) -> Failure + use<> {
        let path = path.to_owned();
        move |error| Failure::Io { path: path.clone(), error }
    }

    fn damaged(path: &Path, what: impl Into<String>) -> Failure {
        Failure::Damaged { path: path.to_owned(), what: what.into() }
    }
}
