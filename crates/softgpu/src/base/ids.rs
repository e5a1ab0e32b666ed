//! Names of objects that parts below those objects keep.

/// A node's handle; unique in the process and never used again, so a node is known in executable
/// graphs. Copies of a graph have nodes of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId(pub(crate) usize);

/// A capture's number; unique in the process and never used again (`cuStreamGetCaptureInfo`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CaptureId(pub(crate) u64);
