//! Leases that are kept as files and restored.

use super::{LeaseName, MoveOffer, Usage};
use crate::codec::message;
use crate::handshake::{LeaseToken, SessionSecret};

message! {
    /// Asks for a copy of the session of a lease, as [`crate::checkpoint`] has it. Answered by
    /// `CheckpointBegun`, or by `Refused`; `MovePiece`s of both sides follow, which the asking side
    /// ends by `CheckpointDecided`. A `Refused` among them ends it as well: the session continues.
    pub struct Checkpoint {
        lease: LeaseName,
    }
}

message! {
    /// A copy of a session begins.
    pub struct CheckpointBegun {
        /// The session's number.
        session: u64,
        /// With what another node takes the lease and the session over.
        offer: MoveOffer,
        /// Bytes of device memory, about.
        bytes: u64,
    }
}

message! {
    /// The copy is whole, and the session continues or leaves the node. Answered by `Checkpointed`,
    /// or by `Refused` where it has not left.
    pub struct CheckpointDecided { stops: bool }
}

message! {
    /// What became of a session that was copied.
    pub struct Checkpointed {
        /// It has left the node.
        stopped: bool,
        /// What its lease has used so far.
        used: Usage,
        /// How long it could not run, in microseconds.
        stall_us: u64,
    }
}

message! {
    /// The answer to a client whose session, or to the holder whose lease, is in a checkpoint: it
    /// asks again until it is sent on.
    pub struct LeaseStored {}
}

message! {
    /// Asks what has become of a lease. Answered by `LeaseMoved`, `LeaseStored`, `LeaseHere`, or by
    /// `Refused` if the node knows nothing of it.
    pub struct LeaseQuestion { token: LeaseToken }
}

message! {
    /// The lease is on this node.
    pub struct LeaseHere {}
}

message! {
    /// Says where a lease is that was restored from a checkpoint, for its client and its holder to
    /// be sent there. Answered by the same message, or by `Refused`.
    pub struct LeaseRestored {
        token: LeaseToken,
        secret: SessionSecret,
        /// The session's number on the node that gets this message.
        session: u64,
        /// The endpoint of the node that has it now, and its number there.
        node: String,
        there: u64,
    }
}
