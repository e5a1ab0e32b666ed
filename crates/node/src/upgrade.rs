//! The daemon runs another program in its place, which continues with all leases and sessions.
//!
//! ```text
//! a signal -- the program on the disk reads the state --> steps are let end, packets wait
//!                   | refuses                                  | something does not end
//!                   x the daemon continues                       x the daemon continues
//!     execve <-- the program has read the final state -- the state, in a sealed file in memory
//!       |                    x refuses: the daemon continues
//!       v
//!     the same process, with the same children: takes descriptors, table, turns; serves
//! ```
//!
//! Workers have their clients' sockets, so data flows on meanwhile. What is to be handed over are
//! the daemon's accounts and its ends of the links, under the same numbers of descriptors.
//! Everything that changes the accounts passes one of two gates ([`Gates`]), so that the state is
//! one between two steps. Control connections are cut, since their holders come back, but for those
//! that cannot.

mod descriptors;
mod gate;
mod sealed;
mod state;
#[cfg(test)]
mod tests;
pub(crate) mod with;

use std::io;
use std::sync::Arc;

pub(crate) use self::descriptors::{Passed, Passing, Received};
pub(crate) use self::gate::{Gate, Pass};
pub use self::sealed::StateError;
pub(crate) use self::sealed::seal;
pub use self::state::HandedOver;
pub(crate) use self::state::{SavedConnection, SavedInventory, State};

/// What all that changes a node's accounts passes.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    /// Questions, moves, leases that end: what has several parts, and may wait for a worker.
    pub(crate) steps: Arc<Gate>,
    /// What workers say: closed last, since steps wait for that.
    pub(crate) packets: Arc<Gate>,
}

/// Why a state cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("it is of {saved} GPUs, and there are {here}")]
    Gpus { saved: usize, here: usize },
    #[error("it names GPUs that there are not")]
    Unsound,
    #[error("memory is overcommitted on one side only")]
    Overcommit,
    #[error("the node listens elsewhere: at {saved}, and with these arguments at {here}")]
    Listeners { saved: String, here: String },
    #[error("the node has joined a server on one side only")]
    Server,
    #[error("memory goes to a swap file on one side only")]
    SwapFile,
    #[error(transparent)]
    SwapFolder(#[from] crate::swap_space::SwapFileError),
    #[error("a descriptor was not handed over: {0}")]
    Descriptor(#[from] io::Error),
}
