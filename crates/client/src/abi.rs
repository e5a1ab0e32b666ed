//! The edge of this library: how a call of the program comes in, and how answers and errors go out.
//!
//! Nothing here knows a session, so every other folder can use it.

pub(crate) mod call;
pub(crate) mod errors;
pub(crate) mod evidence;
pub(crate) mod failures;
pub(crate) mod fork_gate;
pub(crate) mod ids;
pub(crate) mod logs;
pub(crate) mod out;
