//! The lengths of time that the planner goes by.

use serde::{Deserialize, Serialize};

/// The lengths of time slices on the memory of a GPU.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct SlicePolicy {
    /// Length of a slice, in multiples of the time of the session's last exchange.
    pub slice_per_exchange: u64,
    /// The shortest slice of a session that is not idle.
    pub slice_min_ns: u64,
    /// The longest that the first in the queue waits for slices to end, whatever exchanges cost.
    pub max_wait_ns: u64,
    /// A session without work for this time, and for the time of its last exchange, leaves early.
    pub idle_ns: u64,
    /// A session that could not leave is asked again after this time.
    pub leave_again_ns: u64,
    /// Memory that could not return is tried again after this time.
    pub return_again_ns: u64,
    /// A driver that had too little memory is taken to have no more for this time.
    pub found_ns: u64,
}

impl Default for SlicePolicy {
    fn default() -> SlicePolicy {
        SlicePolicy {
            slice_per_exchange: 9,
            slice_min_ns: 1_000_000_000,
            max_wait_ns: 30_000_000_000,
            // A worker counts the time of a long kernel every 100 ms.
            idle_ns: 250_000_000,
            leave_again_ns: 10_000_000_000,
            return_again_ns: 1_000_000_000,
            found_ns: 10_000_000_000,
        }
    }
}
