//! One process per client process.

pub mod counters;
pub mod gate;
pub mod link;
