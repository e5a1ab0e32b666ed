//! Commands: what a client asks of its session.

use sluice_cuda::Fn;

use crate::{
    codec::{Decode, Encode, message},
    generated::commands::OWN,
};

/// The number of an operation: a driver function's, or one of the session's own above them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Op(pub u16);

/// What an operation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    Driver(Fn),
    /// A message of the session that belongs to no driver function, by its place in the list.
    Own(u16),
}

const OWN_FIRST: u16 = 0x8000;

impl Op {
    /// Of what no command has caused.
    pub const NONE: Op = Op(u16::MAX);

    pub const fn of(function: Fn) -> Op {
        Op(function as u16)
    }

    pub(crate) const fn own(index: u16) -> Op {
        Op(OWN_FIRST + index)
    }

    pub fn target(self) -> Option<Target> {
        match self.0.checked_sub(OWN_FIRST) {
            Some(index) => OWN.get(usize::from(index)).map(|_| Target::Own(index)),
            None => Fn::from_number(self.0).map(Target::Driver),
        }
    }

    /// A name for people.
    pub fn name(self) -> &'static str {
        match self.target() {
            Some(Target::Driver(function)) => function.name(),
            Some(Target::Own(index)) => OWN[usize::from(index)],
            None => "an unknown operation",
        }
    }
}

/// A message that asks for something.
pub trait Command: Encode {
    const OP: Op;
    /// Whether it is answered by a `Reply` frame.
    const WAITS: bool;
    /// What the answer carries on success.
    type Reply<'a>: Decode<'a>;
}

message! {
    /// The payload of a `Reply` frame: a result, and on success the fields of the command's
    /// `Reply`. A load of a module that is refused has them too, for its log.
    pub struct ReplyHead {
        /// A `CUresult`.
        result: i32,
    }
}

message! {
    /// The payload of a `HostWrite` frame: bytes for the host memory that the ticket stands for.
    pub struct HostWrite<'a> {
        ticket: u64,
        /// Where in that memory, in bytes.
        offset: u64,
        bytes: &'a [u8],
    }
}

message! {
    /// The payload of a `HostCall` frame: the stream waits until the client has sent
    /// `HostCallDone`, unless it has failed.
    pub struct HostCall {
        ticket: u64,
        status: i32,
    }
}

message! {
    /// The payload of a `Sticky` frame: why the session is lost.
    pub struct Sticky {
        /// A `CUresult`.
        result: i32,
        /// What failed: an `Op`.
        op: u16,
        /// More for people; may be empty.
        text: String,
    }
}

message! {
    /// The payload of a `CommandRefused` frame.
    pub struct CommandRefused {
        /// A `CUresult`.
        result: i32,
        /// What the client expected to come for it: data, or the turn of a host function; 0 for
        /// neither.
        ticket: u64,
        /// The command was for a capture, whose end fails with the same result.
        captured: bool,
    }
}

message! {
    /// The payload of an `Allowance` frame. What the client may use unasked at first comes with
    /// `SessionOpened`; what it uses it counts itself.
    pub struct Allowance {
        /// By its place in the lease.
        device: u32,
        /// Bytes. Less than none only while the client waits for memory of that device.
        change: i64,
    }
}

message! {
    /// The payload of a `Received` frame: how much of the opposite stream has arrived; see
    /// `resume`.
    pub struct Received {
        /// Bytes since the session began.
        position: u64,
        /// Whether the sender asks for the same in return, to see that the peer is still there.
        answer: bool,
    }
}
