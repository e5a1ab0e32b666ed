//! Nodes of graphs as they travel: where a node is put, and what it does.

use sluice_cuda::*;

use crate::{
    array::ArrayPlace,
    codec::{choice, message},
    types::*,
};

choice! {
    /// Where a new node goes.
    pub enum NodePlace {
        Graph(GraphPlace) = 0,
        /// Behind what a capturing stream has recorded so far; whatever it records next comes
        /// behind the node.
        Capture(StreamId) = 1,
    }
}

message! {
    /// Behind these nodes of a graph.
    pub struct GraphPlace { graph: GraphId, dependencies: Vec<GraphNodeId> }
}

choice! {
    /// What a node does.
    pub enum NodeWork {
        Empty(()) = 0,
        Kernel(KernelNode) = 1,
        Fill(FillNode) = 2,
        Copy(CopyNode) = 3,
        /// A function of the program, by its ticket.
        HostCall(u64) = 4,
        Child(GraphId) = 5,
        RecordEvent(EventId) = 6,
        AwaitEvent(EventId) = 7,
        MemoryOps(MemoryOpsNode) = 8,
        /// An allocation that the client makes when the node is added; it travels for its place in
        /// the graph.
        Allocation(u64) = 9,
        /// The end of one, by the same number.
        Free(u64) = 10,
        Conditional(ConditionalNode) = 11,
    }
}

message! {
    pub struct KernelNode {
        f: FunctionId,
        grid: Dim,
        block: Dim,
        /// Dynamic, in bytes.
        shared_bytes: u32,
        params: Vec<u8>,
    }
}

message! {
    /// `height` rows of `width` elements; the pitch in bytes.
    pub struct FillNode {
        dst: DevicePtr,
        pitch: u64,
        value: u32,
        element_bytes: u32,
        width: u64,
        height: u64,
    }
}

message! {
    /// `depth` slices of `height` rows of `width` bytes.
    pub struct CopyNode {
        dst: CopySide,
        src: CopySide,
        width: u64,
        height: u64,
        depth: u64,
        /// Names the copy where a side is the client's: its data then travel with each launch.
        ticket: u64,
    }
}

choice! {
    /// One side of a copy.
    pub enum CopySide {
        Device(Pitched) = 0,
        /// Memory of the client, which alone knows where.
        Host(()) = 1,
        Array(ArrayPlace) = 2,
    }
}

message! {
    /// Waits and writes of single words, in their order.
    pub struct MemoryOpsNode { ops: Vec<MemoryOp>, flags: u32 }
}

message! {
    /// One of them; `address` has four or eight bytes behind it, as the kind says.
    pub struct MemoryOp { kind: CUstreamBatchMemOpType, address: DevicePtr, value: u64, flags: u32 }
}

message! {
    /// Graphs of which the value behind a handle chooses; `kind` is a `CUgraphConditionalNodeType`.
    /// The handle is the driver's own, since kernels are given it.
    pub struct ConditionalNode { handle: u64, kind: u32, bodies: Vec<GraphId> }
}

impl MemoryOp {
    /// Bytes of its word.
    pub fn width(&self) -> u64 {
        let is_double = [CUstreamBatchMemOpType::WAIT_VALUE_64, CUstreamBatchMemOpType::WRITE_VALUE_64];
        if is_double.contains(&self.kind) { 8 } else { 4 }
    }
}

impl NodeWork {
    /// The kind as CUDA names it.
    pub fn kind(&self) -> CUgraphNodeType {
        match self {
            NodeWork::Empty(()) => CUgraphNodeType::EMPTY,
            NodeWork::Kernel(_) => CUgraphNodeType::KERNEL,
            NodeWork::Fill(_) => CUgraphNodeType::MEMSET,
            NodeWork::Copy(_) => CUgraphNodeType::MEMCPY,
            NodeWork::HostCall(_) => CUgraphNodeType::HOST,
            NodeWork::Child(_) => CUgraphNodeType::GRAPH,
            NodeWork::RecordEvent(_) => CUgraphNodeType::EVENT_RECORD,
            NodeWork::AwaitEvent(_) => CUgraphNodeType::WAIT_EVENT,
            NodeWork::MemoryOps(_) => CUgraphNodeType::BATCH_MEM_OP,
            NodeWork::Allocation(_) => CUgraphNodeType::MEM_ALLOC,
            NodeWork::Free(_) => CUgraphNodeType::MEM_FREE,
            NodeWork::Conditional(_) => CUgraphNodeType::CONDITIONAL,
        }
    }
}

impl CopyNode {
    /// Whether a side is the client's.
    pub fn is_across(&self) -> bool {
        [&self.dst, &self.src].into_iter().any(|side| matches!(side, CopySide::Host(())))
    }

    /// Bytes of the box, if there are not too many to count.
    pub fn bytes(&self) -> Option<u64> {
        self.width.checked_mul(self.height)?.checked_mul(self.depth)
    }
}

/// Nodes that the driver made by itself, as in a capture, are named by the worker, with numbers
/// from here on in steps of 16. They look like those that the client mints, which stay below.
pub const WORKER_NODES: u64 = 0x0008_8000_0000_0000;

/// A `HostCall` whose ticket has this bit says that the function will not be called again.
pub const TICKET_RELEASED: u64 = 1 << 63;
