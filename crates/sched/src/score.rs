//! How well a node suits a request, as a policy sees it: whole numbers, the higher the better.
//! Coarse scores are wanted: equal ones go to the first node in a fixed order, which packs.

mod fit;
mod fragmentation;
mod leftover;
mod room;

pub(crate) use fit::{best_fit, fitting_gpus, loosest_gpus, random_gpus, tightest_gpus};
pub use fragmentation::Fragmentation;
pub use leftover::Leftover;
pub(crate) use leftover::{Observations, States};

use crate::GpuSet;

/// A node's score for a request that fits it, and the GPUs that earn it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) score: u32,
    pub(crate) gpus: GpuSet,
}
