//! A CUDA driver in software: the functions of [`DriverTable`], carried out by a compiler for PTX
//! and threads.
//!
//! ```text
//!   api       functions with CUDA's prototypes: arguments checked, errors as CUDA gives them
//!   compiler  PTX to machine code, entry by entry on first use, and running it (sluice-ptx,
//!             sluice-ir, sluice-jit)
//!   lifetime  ends of contexts, with all that was made in them
//!   submit    putting work into streams, and waiting for it
//!   vmm       physical memory and its mappings
//!   graph     work recorded once and submitted many times; captures
//!   work      what is queued, and the queues of all streams with the threads that empty them
//!   module    code in contexts: modules, libraries, functions, launches
//!   image     arrays in device memory, and what reads them
//!   memory    what lies where in the address range; copies and fills as they are done
//!   context   contexts and their streams
//!   device    the devices: address range, memory, the seam to what runs code
//!   base      handles, results, messages
//! ```
//!
//! Each folder uses those below it in this list, and none above.
//!
//! It is linked into the worker, and `softgpu-lib` makes it a `libcuda.so.1` of its own. With
//! another [`Machine`] behind the seam it is the driver of `sluice-recording`. A function that is
//! not here is `None` in the table, never a success that did nothing.

// From the bottom up.
mod base;

mod device;

mod context;

mod memory;

mod image;

mod module;

mod work;

mod graph;

mod vmm;

mod submit;

mod lifetime;

mod compiler;

mod api;

use sluice_cuda::DriverTable;

pub use api::{export_event, import_event};
pub use base::messages::{Messages, set_messages};
pub use compiler::software::{Config, SoftDevice, configure};
pub use context::{has_device_heap, primary_context};
pub use device::account::{DeviceMemoryAccount, own_memory, set_device_memory_account};
pub use device::execution::{
    Usage, cancel_running, control, longest_running, set_code_store, set_compile_limit, set_compile_memory,
    set_optimizes, set_output, threads, usage,
};
pub use device::machine::{Code, Grid, Kernel, Limits, Machine, Resources, Shape, Signature};
pub use device::sanitizer::{invalid_copy, sanitizes, set_sanitizer};
pub use device::{Card, configure_cards};
pub use lifetime::on_context_destroyed;
pub use module::{Variable, place_variable, variables};
pub use sluice_jit::{CodeKey, CodeStore, Control, Output, SystemOrder, on_system_order};
pub use submit::copies::wait_to_read;
pub use vmm::frozen::{freeze, keep_in_files, lay_over};
pub use work::engine::{has_room, wait_for_room};

/// What a [`Machine`] may want to know of PTX.
pub mod ptx {
    pub use crate::compiler::code::{ptx_global, ptx_version};
}

/// What `cuDriverGetVersion` answers: 1000 * major + 10 * minor.
pub const DRIVER_VERSION: i32 = api::DRIVER_VERSION;

/// The software GPU as a driver. [`configure`] decides what devices it has.
pub fn table() -> DriverTable {
    api::TABLE
}
