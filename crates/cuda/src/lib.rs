//! The CUDA driver's ABI: its types, its result codes, and one declaration of each of its functions.

// CUDA's names are kept letter by letter, so that whoever knows the documentation can search for them.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]

mod abi;
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
mod structs;

pub use attributes::*;
pub use driver::{CLIENT_MARKER, LoadError, Presence};
pub use enums::*;
pub use flags::*;
pub use function::{Class, FnInfo, ProcAddress, Variant, proc_address};
pub use generated::functions::{FUNCTIONS, Fn};
pub use generated::table::DriverTable;
pub use guard::{absent, guard};
pub use handles::*;
pub use result::CUresult;
pub use structs::*;
