//! The node: a daemon that divides the GPUs of one machine among sessions.

pub mod arbiter;
pub mod lease;
pub mod turns;
