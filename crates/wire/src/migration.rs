//! What one worker tells another that takes its session over.
//!
//! The size of a [`SessionState`] in bytes (64 bits), the state, then the contents of its variables
//! and of its memory, in their order, and nothing else.

use crate::codec::message;
use crate::control::DeviceSnapshot;
use crate::types::ImageHash;

/// Most bytes of a session's state besides its memory: the images of its modules, mostly.
pub const STATE_MAX: u64 = 4 << 30;

message! {
    /// A session between two commands, with nothing queued and nothing running.
    pub struct SessionState {
        /// Where its device addresses begin, and how many there are.
        range: (u64, u64),
        /// What its client knows of its GPUs.
        devices: Vec<DeviceSnapshot>,
        upstream: Upstream,
        downstream: Downstream,
        /// For each GPU: bytes that the client may use unasked, and bytes that are kept beyond
        /// these.
        allowances: Vec<(u64, u64)>,
        /// Bytes of each GPU that the session has.
        taken: Vec<u64>,
        /// The images of its modules, and others that the client has sent.
        images: Vec<(ImageHash, Vec<u8>)>,
        /// Images in the node's cache on which the client counts.
        promised: Vec<ImageHash>,
        /// The commands that make its objects, in their order.
        recipes: Vec<Recipe>,
        /// In the order in which they got their places.
        variables: Vec<Variable>,
        memory: Vec<Committed>,
    }
}

message! {
    /// The client's stream of bytes.
    pub struct Upstream {
        /// The count of bytes that have arrived.
        received: u64,
        /// The last of them, which are the beginning of a frame.
        partial: Vec<u8>,
        /// The count that the client was last sent.
        acknowledged: u64,
        /// The state of delta decoding, where that is in use.
        expander: Option<Vec<u8>>,
        /// Bytes of commands that came compressed.
        unpacked: u64,
        /// Bytes of commands that came delta encoded or compressed before the last acknowledgement.
        expanded_before: u64,
        /// The client's attempts to connect so far.
        attempt: u32,
    }
}

message! {
    /// The stream of bytes to the client.
    pub struct Downstream {
        /// The count of bytes that the client has acknowledged.
        start: u64,
        /// What follows them.
        unacknowledged: Vec<u8>,
        /// The client takes compressed data.
        packs: bool,
        /// The connection is protected by TLS.
        is_protected: bool,
    }
}

message! {
    /// A command that is executed again.
    pub struct Recipe {
        device: u8,
        /// The client's thread, for what is that thread's own.
        lane: u32,
        op: u16,
        payload: Vec<u8>,
    }
}

message! {
    /// A variable of a module.
    pub struct Variable {
        module: u64,
        name: String,
        address: u64,
        bytes: u64,
    }
}

message! {
    /// Device memory that the session has committed.
    pub struct Committed {
        address: u64,
        bytes: u64,
        gpu: u32,
        /// All GPUs of the lease can use it.
        by_all: bool,
    }
}

impl SessionState {
    /// The pieces of device memory whose contents follow the state: GPU of the lease, address,
    /// bytes.
    pub fn contents(&self) -> impl Iterator<Item = (u32, u64, u64)> {
        let variables = self.contents_of_variables();
        let memory = self.memory.iter().map(|memory| (memory.gpu, memory.address, memory.bytes));
        variables.chain(memory)
    }

    /// Those of its variables, which come first.
    pub fn contents_of_variables(&self) -> impl Iterator<Item = (u32, u64, u64)> {
        // Modules are of the context of a lease's GPU, and any can copy from there.
        self.variables.iter().map(|variable| (0, variable.address, variable.bytes))
    }
}
