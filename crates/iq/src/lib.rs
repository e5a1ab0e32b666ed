//! What programs need of a GPU, from what earlier runs of them used.
//!
//! Everything here is pure: runs in, recommendations out, the same answer for the same runs. A
//! recommendation is proved on the runs that it comes from: they are replayed with the smaller
//! request, and what would have become slower is part of the answer.

pub mod backtest;
pub mod duration;
pub mod fit;
pub mod forecast;
pub mod live;
pub mod plan;
mod rightsize;
pub mod synthetic;

pub use rightsize::{Interval, MIB, Recommendation, Replay, Run, Unchanged, rightsize};
