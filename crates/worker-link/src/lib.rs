//! What a node and the processes that it starts say to each other: the daemon's accounts on one
//! side, a CUDA driver on the other.
//!
//! A *worker* serves one session. It finds a link to the daemon open ([`link`]), and a page on
//! which it counts what the session does ([`counters`]). Other processes answer one question and
//! end: what devices a driver has ([`probe`]), how fast they are ([`measure`]), and what NVML says
//! of them ([`health`]). The daemon stays free of drivers and of their crashes, and of the code
//! that they take.

use std::os::fd::RawFd;

pub mod counters;
pub mod health;
pub mod link;
pub mod measure;
pub mod probe;

/// The descriptors that a worker finds open: the client's socket, the link to the daemon, the
/// counter page.
pub const INHERITED_FDS: [RawFd; 3] = [3, 4, 5];
