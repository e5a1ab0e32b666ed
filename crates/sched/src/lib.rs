//! Where a request for GPUs goes: a pure library. State and request in, decision with its reason
//! out; no clock, no I/O, and the same answer for the same question every time. The control plane,
//! the trace simulator and the Kubernetes adapter place through this code.
//!
//! ```text
//! Request ──▶ Placer (Policy) ──▶ Placement ──▶ Cluster::allocate
//!                 │    ▲
//!                 │    └ reads the Cluster, and re-scores only nodes touched since its last one
//!                 └───▶ Unplaced: how many nodes failed which filter
//! ```
//!
//! [`queues`] decides whose request is placed next and who gives way: fair share, quotas,
//! priorities, gangs, topology.
//!
//! A [`Trial`] allocates and releases on a cluster and takes everything back unless it is
//! committed: preemption and consolidation search with it.

mod cluster;
mod fit;
mod index;
mod learn;
mod links;
mod place;
mod random;
mod recency;
mod relocate;
mod request;
mod score;
mod trial;

pub mod queues;

pub use cluster::{Cluster, ClusterError, DomainId, Gpu, GpuSet, Node, NodeId, NodeSpec, Placement, Usage};
pub use fit::{Misfit, Unplaced, fit};
pub use learn::{Training, TrainingError};
pub use links::{Link, Links};
pub use place::{Placer, Policy};
pub use random::Random;
pub use relocate::{Move, Relocation, RelocationLimits, relocate};
pub use request::{InvalidRequest, LabelId, LabelSet, ModelId, ModelSet, Request};
pub use score::{Fragmentation, Leftover};
pub use trial::Trial;

/// GPUs that one node may have.
pub const GPUS_PER_NODE_MAX: usize = 16;
/// GPU models that one cluster may have.
pub const MODELS_MAX: usize = 64;
/// One whole GPU, in thousandths of its compute.
pub const WHOLE_GPU_MILLI: u16 = 1000;
/// The most of one GPU that may be promised, in thousandths: ten times what it has.
pub const PROMISED_MILLI_MAX: u16 = 10 * WHOLE_GPU_MILLI;
