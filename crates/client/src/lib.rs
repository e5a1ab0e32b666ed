//! The client's `libcuda.so.1`: the CUDA driver API in a process that has no GPU.
//!
//! It loads into other people's programs, so it does little there: it starts no thread before the
//! program launches work, does nothing before the first call, lets no panic through the ABI, leaves
//! the session to the parent in a forked child, and ends with the process.
//!
//! # Where to start reading
//!
//! - [`generated::exports`] has every symbol. A function that only travels goes to a generated
//!   stub; one with a part in this process goes to the function of its name in one of the modules
//!   below, all of them gathered in [`api`].
//! - [`lifecycle::init`] and [`session::attach`]: how the session of a process begins, one with
//!   each node of its lease, and which calls work without it.
//! - [`link`]: the connection, which all threads share and which no thread of this library reads.
//! - [`launch`]: what a launch costs.
//!
//! # What is known here
//!
//! Devices come as a snapshot with the session ([`device`]). Contexts ([`context`]), streams and
//! events ([`stream`]), modules and functions ([`module`]) have handles that are minted here
//! ([`abi::ids`]). Device addresses are minted here, too ([`memory::addresses`]), so the direction
//! of a copy ([`copy`]) and the answers about a pointer ([`memory::pointer`]) never need the node.
//!
//! # Layers
//!
//! The folders below are listed from the bottom to the top. State of a session or a device is plain
//! data in files that know no session (`blocks`, `mappings`, `allocations`, `session_state`), so
//! that [`session`] does not depend on the modules that work on it. What ends with a context, or is
//! found by any kind of handle, needs all kinds of objects and is at the top ([`lifecycle`],
//! [`entry`]).

// Entry points and their parameters bear CUDA's names, letter by letter.
#![allow(non_snake_case)]

// What everything uses.
mod abi;

// The connection to the worker.
mod link;

// What the process has: contexts, devices, sessions.
mod context;

mod device;

mod session;

// Objects of the CUDA API, each folder with its entry points.
mod memory;

mod host_memory;

mod stream;

mod arrays;

mod module;

mod launch;

mod copy;

mod graph;

// What knows all of them: their beginning and end, and how calls get to them.
mod lifecycle;

mod entry;

mod generated {
    pub(crate) mod exports;
    pub(crate) mod stubs;
}

/// Every entry point that is written by hand, under CUDA's name.
mod api {
    pub(crate) use crate::abi::errors::*;
    pub(crate) use crate::abi::logs::*;
    pub(crate) use crate::arrays::texture::*;
    pub(crate) use crate::arrays::tiles::*;
    pub(crate) use crate::arrays::*;
    pub(crate) use crate::copy::array_copy::*;
    pub(crate) use crate::copy::batch::*;
    pub(crate) use crate::copy::box_batch::*;
    pub(crate) use crate::copy::boxes::*;
    pub(crate) use crate::copy::*;
    pub(crate) use crate::device::entry_points::*;
    pub(crate) use crate::entry::coredump::*;
    pub(crate) use crate::entry::hidden_tables::*;
    pub(crate) use crate::entry::proc_address::*;
    pub(crate) use crate::graph::allocation::*;
    pub(crate) use crate::graph::conditional::cuGraphConditionalHandleCreate;
    pub(crate) use crate::graph::dot::*;
    pub(crate) use crate::graph::node::*;
    pub(crate) use crate::graph::*;
    pub(crate) use crate::host_memory::managed::*;
    pub(crate) use crate::host_memory::*;
    pub(crate) use crate::launch::occupancy::*;
    pub(crate) use crate::launch::staged::*;
    pub(crate) use crate::launch::*;
    pub(crate) use crate::lifecycle::contexts::*;
    pub(crate) use crate::lifecycle::green::*;
    pub(crate) use crate::lifecycle::init::cuInit;
    pub(crate) use crate::memory::memset::*;
    pub(crate) use crate::memory::pointer::*;
    pub(crate) use crate::memory::pool::*;
    pub(crate) use crate::memory::sharing::*;
    pub(crate) use crate::memory::virtual_memory::*;
    pub(crate) use crate::memory::*;
    pub(crate) use crate::module::enumeration::*;
    pub(crate) use crate::module::linker::*;
    pub(crate) use crate::module::texture_reference::*;
    pub(crate) use crate::module::*;
    pub(crate) use crate::stream::attribute::*;
    pub(crate) use crate::stream::capture::*;
    pub(crate) use crate::stream::event::*;
    pub(crate) use crate::stream::host_function::*;
    pub(crate) use crate::stream::*;
}
