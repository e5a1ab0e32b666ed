//! The CUDA driver's ABI: its types, its result codes, and one declaration of each of its
//! functions.
//!
//! `driver.api`, beside this crate's manifest, lists every function that libcuda exports: its
//! prototype, how each argument travels, where a call is answered, and for which versions
//! `cuGetProcAddress` gives it. Everything that must agree about functions is generated from it
//! (`cargo xtask codegen`):
//!
//! ```text
//!                              driver.api
//!      +-------------+-------------+-------------+--------------+----------------+
//!   cuda: Fn,     cuda:        wire: one      client: exports  worker: dispatch  docs/
//!   FUNCTIONS     DriverTable  message each   and stubs        and Custom        cuda-support.md
//! ```
//!
//! # Where a launch passes through here
//!
//! A program asks `cuGetProcAddress` for `cuLaunchKernel`; [`find_proc_address`] finds the [`Fn`]
//! that its CUDA version means, and the client's exports have its address. The call becomes a
//! message whose number is that `Fn`, and the worker ends it in `table.cuLaunchKernel`: one entry
//! of a [`DriverTable`], which NVIDIA's library, the software GPU or a fake in a test has filled.
//! The path between is described in `sluice_wire`.

// CUDA's names are kept letter by letter, so that a reader of its documentation can search for
// them.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]

mod abi;
mod advice;
mod arrays;
pub mod attributes;
mod driver;
pub mod enums;
pub mod flags;
mod function;
mod generated {
    pub(crate) mod functions;
    pub(crate) mod table;
}
mod guard;
mod handles;
mod result;
mod sparse;
mod structs;

pub use advice::{CU_DEVICE_CPU, CU_DEVICE_INVALID, ManagedAdvice};
pub use arrays::*;
pub use attributes::*;
pub use driver::{CLIENT_MARKER, LoadError, Observer, Presence};
pub use enums::*;
pub use flags::*;
pub use function::{Class, FnInfo, ProcAddress, Variant, find_proc_address};
pub use generated::functions::{FUNCTIONS, Fn};
pub use generated::table::DriverTable;
pub use guard::{absent, guard};
pub use handles::*;
pub use result::CUresult;
pub use sparse::*;
pub use structs::*;
