//! The sanitizer of the software GPU: errors of kernels that do not end them.
//!
//! Instrumented kernels ask it before each access to memory, and tell it of barriers, fences and
//! collective instructions of warps ([`sluice_ir::passes::instrument`]). The driver tells it of
//! allocations, copies and fills.
//!
//! | module | contents |
//! |---|---|
//! | [`Tools`] | what is looked for |
//! | [`Sanitizer`] | the state of a process: memory, time, findings |
//! | `memory`, `shadow` | allocations, their written bytes, and the last users of each |
//! | [`Launch`], [`Block`] | a kernel and a block of it while it runs |
//! | `clocks` | which accesses of a block's threads are ordered |
//! | [`Finding`], [`log`] | what was found, and the file that it goes to |
//!
//! Happens-before is kept in one logical time for the process, which advances with each
//! synchronization. A thread knows up to which time it is ordered behind the others of its warp, of
//! the other warps, and of other blocks. An access conflicts with an earlier one of a later time.

mod block;
mod clocks;
mod findings;
mod launch;
pub mod log;
mod memory;
mod report;
mod sanitizer;
mod shadow;
mod tools;

pub use block::{Block, Windows};
pub use launch::{Launch, LaunchInfo};
pub use report::{AccessText, Finding, Kind, Other, Region, Source};
pub use sanitizer::{NewRegion, Sanitizer};
pub use tools::{Tools, UnknownTool};
