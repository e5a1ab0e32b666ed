//! What is said outside sessions: leases, and questions about a node.

mod checkpoints;
mod leases;
mod moves;
mod questions;
mod sessions;

use crate::codec::{Encode, decode, message};
use crate::error::WireError;

pub use checkpoints::{
    Checkpoint, CheckpointBegun, CheckpointDecided, Checkpointed, LeaseHere, LeaseQuestion, LeaseRestored,
    LeaseStored,
};
pub use leases::{
    GpuFree, LeaseClaim, LeaseEnd, LeaseGranted, LeaseName, LeaseRefused, LeaseRegrant, LeaseRequest,
    LeaseResize, LeaseResized, LeaseResume, LeaseResumed, ProcessEnded, ProcessWatch, Suspend, Suspended,
};
pub use moves::{
    LeaseMoved, Migrate, Migrated, MoveAccepted, MoveArrived, MoveDecided, MoveOffer, MovePiece, MovePlanned,
    MovedLease, MovedSession, SessionMoved,
};
pub use questions::{
    Devices, DevicesRequest, ECHO_BYTES_MAX, EchoReady, EchoRequest, GpuStatus, ProcessUsage, Processes,
    ProcessesRequest, SessionStatus, Status, StatusRequest, Usage, UsageRequest,
};
pub use sessions::{
    DeviceSnapshot, ResumeTerms, SessionCloned, SessionNotCloned, SessionOpen, SessionOpened, SessionRefused,
    SessionResumed, ShareMemory, SharedMemory, SharedMemoryTaken, tell_apart,
};

/// A whole GPU, in the unit of shares: millionths.
pub const SHARE_WHOLE_PPM: u32 = 1_000_000;

message! {
    /// A worker's first word to another node's: pieces of copies may come (`peer`).
    pub struct PeerReady {}
}

message! {
    /// The answer to what cannot be answered otherwise.
    pub struct Refused { reason: String }
}

message! {
    /// The answer to a question that holders of the node's token may ask: to be asked again after a
    /// `TokenProof`.
    pub struct TokenWanted {
        /// Of this connection alone.
        challenge: [u8; 32],
    }
}

message! {
    /// Proves that the asker has the token, without sending it. There is no answer but the one to
    /// the question that follows.
    pub struct TokenProof {
        /// HMAC-SHA256 of the challenge and of the fingerprint of the node's certificate, if it has
        /// shown one, by the token.
        proof: [u8; 32],
    }
}

macro_rules! control {
    ($($number:literal $name:ident)*) => {
        /// Any control message; its number travels in the frame header.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Control {
            $($name($name),)*
        }

        $(impl From<$name> for Control {
            fn from(message: $name) -> Control {
                Control::$name(message)
            }
        })*

        impl Control {
            /// The `op` of its frame.
            pub fn number(&self) -> u16 {
                match self {
                    $(Control::$name(_) => $number,)*
                }
            }

            pub fn decode(number: u16, payload: &[u8]) -> Result<Control, WireError> {
                match number {
                    $($number => Ok(Control::$name(decode(payload)?)),)*
                    other => Err(WireError::Value { what: "a control message", value: other.into() }),
                }
            }
        }

        impl Encode for Control {
            fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $(Control::$name(message) => message.encode(out),)*
                }
            }
        }
    };
}

control! {
    1 LeaseRequest
    2 LeaseGranted
    3 LeaseRefused
    4 StatusRequest
    5 Status
    6 DevicesRequest
    7 Devices
    8 SessionOpen
    9 SessionOpened
    10 SessionRefused
    11 Refused
    12 UsageRequest
    13 Usage
    14 LeaseClaim
    15 EchoRequest
    16 EchoReady
    17 SessionResumed
    18 LeaseResume
    19 LeaseResumed
    20 LeaseEnd
    21 ProcessWatch
    22 ProcessEnded
    23 ShareMemory
    24 SharedMemory
    25 SharedMemoryTaken
    26 PeerReady
    27 TokenWanted
    28 TokenProof
    29 LeaseResize
    30 LeaseResized
    31 LeaseRegrant
    32 Suspend
    33 Suspended
    34 ProcessesRequest
    35 Processes
    36 Migrate
    37 Migrated
    38 MoveOffer
    39 MoveAccepted
    40 MovePiece
    41 MoveArrived
    42 MoveDecided
    43 LeaseMoved
    44 SessionMoved
    45 MovePlanned
    46 Checkpoint
    47 CheckpointBegun
    48 CheckpointDecided
    49 Checkpointed
    50 LeaseStored
    51 LeaseQuestion
    52 LeaseHere
    53 LeaseRestored
    54 SessionCloned
    55 SessionNotCloned
}

impl Control {
    /// Appends its frame.
    pub fn frame(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
        let header = crate::frame::Header {
            kind: crate::frame::Kind::Control,
            device: 0,
            op: self.number(),
            lane: 0,
            sequence: 0,
        };
        header.frame(out, |out| self.encode(out))
    }
}
