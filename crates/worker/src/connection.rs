//! A session and its client: the socket that commands come from, connections that end and resume,
//! and sessions that leave for another worker or arrive from one. Nothing else in the worker knows
//! of a client's socket; answers go through [`outbox`](crate::outbox).

pub(crate) mod client;
pub(crate) mod migration;
pub(crate) mod reader;
pub(crate) mod serve;
pub(crate) mod snapshot;
