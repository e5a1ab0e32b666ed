//! What client, node and worker say to each other: frames, messages, versions, limits. Nothing here
//! does I/O: bytes go in and come out, and the owner of a socket moves them.
//!
//! # How a launch travels
//!
//! 1. A program calls `cuLaunchKernel` of the client's `libcuda.so.1`. The client knows the
//!    parameter layout of the function from the `FunctionInfo` that came with it, and copies the
//!    parameters into one buffer.
//! 2. [`commands::cuLaunchKernel`] with that buffer becomes a [`frame`] of kind `Command` with the
//!    number of the calling thread (its lane) and the current device, is appended to what waits to
//!    be sent, and the call returns.
//! 3. The worker's [`FrameDecoder`] gives the frame out as soon as its last byte is there, the
//!    payload still in the receive buffer. The generated dispatch decodes it by its [`Op`], looks
//!    up the ids in the session's own tables, and calls the [driver
//!    table](sluice_cuda::DriverTable).
//! 4. Nothing comes back. Should the driver refuse the launch, a [`CommandRefused`] frame says so,
//!    and the client returns its code once, from the next call that CUDA allows to fail for it;
//!    should the kernel fail, a [`Sticky`] frame ends the session with the driver's code. A command
//!    that waits (`Command::WAITS`) is answered by a `Reply` frame of its lane and sequence: a
//!    [`ReplyHead`], then the command's own fields.
//!
//! # Bytes from a peer
//!
//! A frame has a size limit that is checked on its header, a count inside is compared with the
//! bytes that are there before anything is allocated, and a message must use up its payload.
//! Whatever else arrives is a [`WireError`]: there is no panic and no unbounded allocation on any
//! input.

#![allow(non_camel_case_types)] // commands bear the names of driver functions

pub mod address;
mod array;
pub mod checkpoint;
mod codec;
mod command;
pub mod control;
mod error;
mod extent;
pub mod frame;
mod graph;
mod generated {
    pub(crate) mod commands;
}
pub mod handshake;
pub mod live;
pub mod log;
pub mod migration;
pub mod pack;
pub mod peer;
pub mod resume;
#[cfg(any(test, feature = "sample"))]
pub mod sample;
pub mod sequences;
pub mod spin;
#[cfg(test)]
mod tests;
pub mod text;
mod types;

pub use array::*;
pub use codec::{Decode, Encode, Reader, decode};
pub use command::{
    Allowance, Command, CommandRefused, HostCall, HostWrite, Op, Received, ReplyHead, Sticky, Target,
};
pub use error::WireError;
pub use extent::{product, rows};
pub use frame::{BULK_SIZE_MAX, Begun, FRAME_SIZE_MAX, Frame, FrameDecoder, Header, Kind};
pub use graph::*;
pub use handshake::{PeerToken, VERSION};
pub use resume::SendBuffer;
pub use spin::Spin;
pub use types::*;

/// Every command and its reply, named after the driver function.
pub mod commands {
    pub use crate::generated::commands::*;
}
