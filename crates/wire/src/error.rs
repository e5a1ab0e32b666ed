//! What can be wrong with bytes from a peer.

use crate::{VERSION, frame::FRAME_SIZE_MAX};

/// A peer broke the protocol: the connection cannot continue, since nothing after the mistake can
/// be trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("a message ends before its fields do")]
    Truncated,
    #[error("a message has {0} bytes too many")]
    Trailing(usize),
    #[error("a text is not UTF-8, or its NUL is not at its end")]
    Text,
    #[error("{what} cannot be {value}")]
    Value { what: &'static str, value: u64 },
    #[error("a frame of {0} bytes is larger than the {FRAME_SIZE_MAX} allowed")]
    FrameTooLarge(u64),
    #[error("a packed frame does not unpack to what it says")]
    Packed,
    #[error("there is no frame of kind {0}")]
    FrameKind(u8),
    #[error("the peer does not speak Sluice's protocol; is the address that of a Sluice node?")]
    NotSluice,
    #[error("versions differ: here {ours}, there {theirs}; use the same version of Sluice on both sides", ours = VERSION)]
    Version { theirs: crate::handshake::Version },
}
