//! When a session's work reaches the GPU: the gate that the daemon opens and closes, how far
//! commands run ahead of it, and what is known of streams and of the time that kernels take. It
//! knows drivers and no session.

pub(crate) mod ahead;
pub(crate) mod backlog;
pub(crate) mod brake;
pub(crate) mod event;
pub mod gate;
pub(crate) mod launch_times;
pub(crate) mod streams;
pub(crate) mod watches;
