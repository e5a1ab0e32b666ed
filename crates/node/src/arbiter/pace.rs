//! The lengths of time that the arbiter goes by.

use serde::{Deserialize, Serialize};

/// How long turns last.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Pace {
    /// How far sessions may get ahead of each other: the usual length of a turn that another
    /// waits for.
    pub quantum_ns: u64,
    /// No turn is shorter, unless its holder has no work.
    pub slice_min_ns: u64,
    /// A lease that is away for no longer than this has not stopped computing.
    pub gap_ns: u64,
    /// The most GPU time that a lease is owed for its gaps.
    pub credit_ns: u64,
    /// The longest that a session waits while others catch up.
    pub patience_ns: u64,
    /// How often a lease runs that is alone and always at its limit.
    pub period_ns: u64,
    /// For how long a premium lease may have the whole GPU at once, times its share, after it used
    /// nothing for a while.
    pub burst_ns: u64,
    /// A recalled holder that has not given the turn back after this long no longer keeps the
    /// others waiting.
    pub overrun_ns: u64,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            quantum_ns: 5_000_000,
            slice_min_ns: 500_000,
            gap_ns: 50_000_000,
            credit_ns: 200_000_000,
            patience_ns: 50_000_000,
            period_ns: 100_000_000,
            burst_ns: 2_000_000_000,
            overrun_ns: 250_000_000,
        }
    }
}
