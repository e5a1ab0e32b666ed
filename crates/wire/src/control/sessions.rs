//! Sessions: opened, resumed, and the memory that they share with their clients.

use sluice_cuda::{CUdevice_attribute, CUlimit, CUuuid, Presence};

use crate::codec::{Decode, Encode, Reader, message};
use crate::error::WireError;
use crate::handshake::SessionSecret;

message! {
    /// What is fixed about a leased device while the lease lasts. Clients answer most questions
    /// from it.
    pub struct DeviceSnapshot {
        name: String,
        uuid: [u8; 16],
        /// Of the lease, in bytes.
        memory: u64,
        /// As `cuDriverGetVersion` gives it.
        driver_version: u32,
        attributes: Vec<(CUdevice_attribute, i32)>,
        limits: Vec<(CUlimit, u64)>,
        /// Lowest and highest, as `cuCtxGetStreamPriorityRange` gives them.
        stream_priorities: (i32, i32),
        /// Whether it runs PTX only.
        is_software: bool,
        /// The driver's functions.
        functions: Presence,
        /// Granularity of memory, in bytes; what a session commits and takes back is a multiple of
        /// it.
        chunk: u64,
        /// Which builds of Sluice and of its driver the node runs: where that is the same, so are
        /// all answers that follow from the device alone. 0 where that is not known.
        build: u64,
    }
}

/// Makes the UUIDs of one program's devices different: software devices of several nodes may have
/// the same. All who count the devices in the same order get the same.
pub fn tell_apart(uuids: &mut [[u8; 16]]) {
    for index in 1..uuids.len() {
        let (before, rest) = uuids.split_at_mut(index);
        while before.contains(&rest[0]) {
            rest[0][15] = rest[0][15].wrapping_add(1);
            if rest[0][15] == 0 {
                rest[0][14] = rest[0][14].wrapping_add(1);
            }
        }
    }
}

impl DeviceSnapshot {
    pub fn uuid(&self) -> CUuuid {
        CUuuid { bytes: self.uuid }
    }

    pub fn attribute(&self, attribute: CUdevice_attribute) -> Option<i32> {
        self.attributes.iter().find(|(id, _)| *id == attribute).map(|(_, value)| *value)
    }

    /// Major and minor.
    pub fn compute_capability(&self) -> (i32, i32) {
        let of = |attribute| self.attribute(attribute).unwrap_or(0);
        (of(CUdevice_attribute::COMPUTE_CAPABILITY_MAJOR), of(CUdevice_attribute::COMPUTE_CAPABILITY_MINOR))
    }
}

impl Encode for Presence {
    fn encode(&self, out: &mut Vec<u8>) {
        self.words().to_vec().encode(out);
    }
}

impl Decode<'_> for Presence {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let words = Vec::<u64>::decode(reader)?;
        Presence::from_words(&words)
            .ok_or(WireError::Value { what: "a set's length", value: words.len() as u64 })
    }
}

message! {
    /// Over a Unix socket a client may ask first to continue through shared memory.
    pub struct ShareMemory {}
}

message! {
    /// The worker's answer. A descriptor of the memory comes with it if it is offered; else all
    /// stays as it is.
    pub struct SharedMemory { offered: bool }
}

message! {
    /// The client's word on what was offered: if it has the memory, the next byte of either side
    /// comes through it.
    pub struct SharedMemoryTaken { taken: bool }
}

message! {
    /// The client's first frame in a session: where device addresses could be.
    pub struct SessionOpen {
        /// Ranges that the client has reserved on its side, first choice first: address and size in
        /// bytes.
        ranges: Vec<(u64, u64)>,
        /// Whether it would send commands as what changed since earlier ones; see `sequences`.
        recognises: bool,
        /// Whether large pushes may come packed where the link is slow; see `pack`.
        unpacks: bool,
        /// Whether the program may fork, and its children are to have clones of the session.
        forks: bool,
    }
}

message! {
    /// The worker's first frame in a session.
    pub struct SessionOpened {
        session: u64,
        /// The range in which the client mints device addresses, if one of its offers fitted.
        range: Option<(u64, u64)>,
        /// In the order of the lease.
        devices: Vec<DeviceSnapshot>,
        /// How to continue after a cut, where that is possible.
        resume: Option<ResumeTerms>,
        /// Bytes of each device's memory that the client may use unasked; see `Allowance`.
        allowances: Vec<u64>,
    }
}

message! {
    pub struct ResumeTerms {
        secret: SessionSecret,
        /// How long the worker waits for the client to come back, in milliseconds.
        linger_ms: u32,
        /// Whether the client may send commands as what changed: it has asked for that.
        expands: bool,
    }
}

message! {
    pub struct SessionRefused { reason: String }
}

message! {
    /// The first frame on a connection that resumes a session, or asks for it again; outside the
    /// streams, which follow it.
    pub struct SessionResumed {
        /// Bytes of the client's stream that the worker has received.
        received: u64,
    }
}

message! {
    /// The answer to a client that is about to fork. The clone waits for the child, whose first
    /// words resume it from the first byte of both streams. Until that the node keeps it for as
    /// long as this connection lasts, which parent and child both have.
    pub struct SessionCloned {
        session: u64,
        secret: SessionSecret,
        /// As in `ResumeTerms`.
        linger_ms: u32,
    }
}

message! {
    /// The other answer: there is no clone, and nothing has changed.
    pub struct SessionNotCloned {
        reason: String,
        /// The lease has too little memory left.
        needs_memory: bool,
    }
}
