//! Leases and sessions that continue on another node.

use super::{DeviceSnapshot, LeaseName, Usage};
use crate::codec::{Decode, Encode, Reader, message};
use crate::error::WireError;
use crate::handshake::{LeaseToken, Once, SessionSecret};

message! {
    /// Moves the session of a lease to another GPU, where it continues. The number of a session
    /// means its lease. Answered by `Migrated`, or by `Refused`: then it continues where it was.
    pub struct Migrate {
        lease: LeaseName,
        /// Where GPUs of that node are counted from 0; `None` for any that has room.
        gpu: Option<u32>,
        /// The endpoint of another node, as the session's client reaches it; `None` for this node.
        node: Option<String>,
        /// Nothing moves: the answer is `MovePlanned`.
        dry_run: bool,
    }
}

message! {
    /// What a move would do.
    pub struct MovePlanned {
        session: u64,
        /// Bytes of device memory that would be copied.
        bytes: u64,
        /// What keeps the session from moving now; nothing where it can.
        reasons: Vec<String>,
    }
}

message! {
    /// From a node to another: asks it to take over a lease with its one session. Answered by
    /// `MoveAccepted`, or by `Refused`. What the session consists of follows, as `MovePiece`s.
    pub struct MoveOffer {
        /// The GPU that it is to have; `None` for any that has room.
        gpu: Option<u32>,
        lease: Box<MovedLease>,
        session: MovedSession,
        /// How long the session's client tries to come back, in milliseconds.
        linger_ms: u64,
        /// Where both nodes lend through a server: its grant of the lease to the other node.
        grant: Option<String>,
    }
}

message! {
    /// A lease as another node has it from now on.
    pub struct MovedLease {
        token: LeaseToken,
        /// How its holder asked for it.
        once: Once,
        share_ppm: u32,
        limit_ppm: u32,
        /// Bytes.
        memory: u64,
        kernel_timeout_ms: u64,
        name: String,
        /// The GPUs that its programs take theirs for.
        shown: Vec<DeviceSnapshot>,
        used: Usage,
    }
}

message! {
    /// A session as another node has it from now on.
    pub struct MovedSession {
        secret: SessionSecret,
        /// How its client asked for it.
        once: Once,
        /// The client's process, as the holder of the lease knows it.
        process: u32,
        process_space: u64,
        /// Where the client connects from, for people to read.
        peer: String,
    }
}

message! {
    /// Room for the session is held. The node has given it this number.
    pub struct MoveAccepted { session: u64, gpu: u32 }
}

/// The next bytes of what a session consists of, in the form of [`crate::migration`]. They are
/// copied as a whole: bytes one by one would take longer than the link.
#[derive(Clone, Debug, PartialEq)]
pub struct MovePiece {
    pub bytes: Vec<u8>,
}

impl Encode for MovePiece {
    fn encode(&self, out: &mut Vec<u8>) {
        self.bytes.as_slice().encode(out);
    }
}

impl Decode<'_> for MovePiece {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(MovePiece { bytes: <&[u8]>::decode(reader)?.to_vec() })
    }
}

#[cfg(any(test, feature = "sample"))]
impl<'s> crate::sample::Sample<'s> for MovePiece {
    fn sample(source: &mut crate::sample::Source<'s>) -> Self {
        MovePiece { bytes: crate::sample::Sample::sample(source) }
    }
}

message! {
    /// The session is there in full, with this many bytes of device memory.
    pub struct MoveArrived { bytes: u64 }
}

message! {
    /// Whether the session continues on the node that was offered it. Only the node that offers it
    /// decides: without this message, the session's client decides, by where it was sent.
    pub struct MoveDecided {
        moves: bool,
        /// What the lease has used until then.
        used: Option<Usage>,
        /// Until when the usage records go of the node that offers it, in milliseconds since 1970;
        /// `None` where there is no server.
        recorded_until_ms: Option<u64>,
    }
}

message! {
    /// The answer to a question about a lease that has moved to another node, which is to be asked
    /// instead.
    pub struct LeaseMoved { node: String }
}

message! {
    /// The answer to a client whose session, or whose lease, has moved to another node: it connects
    /// there, and resumes the session of this number if it has one.
    pub struct SessionMoved { node: String, session: u64 }
}

message! {
    /// A session runs on another GPU.
    pub struct Migrated {
        session: u64,
        gpu: u32,
        /// Bytes of device memory that were copied.
        bytes: u64,
        /// How long it could not run, in microseconds.
        stall_us: u64,
    }
}
