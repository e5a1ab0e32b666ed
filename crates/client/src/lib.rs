//! The client's `libcuda.so.1`: the CUDA driver API in a process that has no GPU.
//!
//! It loads into programs of strangers, so it keeps out of their way: no thread unless a program launches host
//! functions, nothing before the first call, no panic through the ABI, a forked child leaves the session alone, and
//! the end of the process is the end of it all.
//!
//! # Where to start reading
//!
//! - [`generated::exports`] has every symbol. A function that only travels goes to a generated stub; one with a part in
//!   this process goes to the function of its name in one of the modules below, all of them gathered in [`api`].
//! - [`session`] and [`attach`]: how the session of a process begins, one with each node of its lease, and which calls work
//!   without it.
//! - [`link`], [`outbox`], [`inbox`]: the connection, which all threads share without a thread of its own.
//! - [`launch`]: what a launch costs.
//!
//! # What is known here
//!
//! Devices come as a snapshot with the session ([`device`]). Contexts ([`context`]), streams and events, modules and
//! functions have handles minted here ([`ids`]). Device addresses are minted here, too ([`addresses`], [`memory`]), so
//! the direction of a copy ([`copy`]) and the answers about a pointer ([`pointer`]) never need the node.

// Entry points and their parameters bear CUDA's names, letter by letter.
#![allow(non_snake_case)]

mod across;
mod addresses;
mod allowance;
mod answers;
mod array_copy;
mod arrays;
mod attach;
mod awaited;
mod batch;
mod box_batch;
mod boxes;
mod capture;
mod conditional;
mod context;
mod copy;
mod coredump;
mod device;
mod entry;
mod enumeration;
mod errors;
mod event;
mod evidence;
mod facts;
mod failures;
mod graph;
mod graph_copy;
mod graph_dot;
mod graph_memory;
mod graph_node;
mod green;
mod guards;
mod handles;
mod hidden_tables;
mod host_function;
mod host_memory;
mod host_physical;
mod ids;
mod image;
mod in_order;
mod inbox;
mod issue;
mod launch;
mod launch_trials;
mod link;
mod linker;
mod live;
mod load;
mod logs;
mod managed;
mod memory;
mod memset;
mod mirror;
mod module;
mod occupancy;
mod out;
mod outbox;
mod parameters;
mod permission;
mod pointer;
mod pool;
mod proc_address;
mod record;
mod refusals;
mod renewal;
mod reservation;
mod session;
mod sharing;
mod staged_launch;
mod stream;
mod stream_attribute;
mod texture;
mod texture_reference;
mod tiles;
mod variables;
mod virtual_memory;
mod visible;
mod watch;

mod generated {
    pub(crate) mod exports;
    pub(crate) mod stubs;
}

/// Every entry point that is written by hand, under CUDA's name.
mod api {
    pub(crate) use crate::array_copy::*;
    pub(crate) use crate::arrays::*;
    pub(crate) use crate::batch::*;
    pub(crate) use crate::box_batch::*;
    pub(crate) use crate::boxes::*;
    pub(crate) use crate::capture::*;
    pub(crate) use crate::conditional::cuGraphConditionalHandleCreate;
    pub(crate) use crate::context::*;
    pub(crate) use crate::copy::*;
    pub(crate) use crate::coredump::*;
    pub(crate) use crate::device::*;
    pub(crate) use crate::enumeration::*;
    pub(crate) use crate::errors::*;
    pub(crate) use crate::event::*;
    pub(crate) use crate::graph::*;
    pub(crate) use crate::graph_dot::*;
    pub(crate) use crate::graph_memory::*;
    pub(crate) use crate::graph_node::*;
    pub(crate) use crate::green::*;
    pub(crate) use crate::hidden_tables::*;
    pub(crate) use crate::host_function::*;
    pub(crate) use crate::host_memory::*;
    pub(crate) use crate::launch::*;
    pub(crate) use crate::linker::*;
    pub(crate) use crate::logs::*;
    pub(crate) use crate::managed::*;
    pub(crate) use crate::memory::*;
    pub(crate) use crate::memset::*;
    pub(crate) use crate::module::*;
    pub(crate) use crate::occupancy::*;
    pub(crate) use crate::pointer::*;
    pub(crate) use crate::pool::*;
    pub(crate) use crate::proc_address::*;
    pub(crate) use crate::session::cuInit;
    pub(crate) use crate::sharing::*;
    pub(crate) use crate::staged_launch::*;
    pub(crate) use crate::stream::*;
    pub(crate) use crate::stream_attribute::*;
    pub(crate) use crate::texture::*;
    pub(crate) use crate::texture_reference::*;
    pub(crate) use crate::tiles::*;
    pub(crate) use crate::virtual_memory::*;
}
