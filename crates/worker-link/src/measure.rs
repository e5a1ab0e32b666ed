//! What a process says that a node has measure its GPUs.

use serde::{Deserialize, Serialize};

/// The argument that makes a worker measure; a [`Driver`](crate::link::Driver) as JSON follows it.
/// The answer is a list as JSON with each GPU's [`Rates`], or why there are none.
pub const ARGUMENT: &str = "measure";

/// Of one GPU, as fast as it was for some milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Of 32-bit arithmetic; a multiply-add is two operations.
    pub flops: f64,
    /// Of its memory, read and written ones.
    pub bytes_per_s: f64,
}
