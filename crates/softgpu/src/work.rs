//! Work: what streams order, and how it is done. A piece of work ([`op::Op`]) is data with a
//! function that runs it; the [`engine`] has the queues of all streams and the threads that empty
//! them.

pub(crate) mod conditional;
pub(crate) mod engine;
pub(crate) mod event;
pub(crate) mod op;
pub(crate) mod steps;
pub(crate) mod user_object;
