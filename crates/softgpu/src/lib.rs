//! A CUDA driver in software: the functions of [`DriverTable`], carried out by a compiler for PTX
//! and threads.
//!
//! ```text
//!   api        functions with CUDA's prototypes: arguments checked, errors as CUDA gives them
//!   device, context, stream, event, graph, capture, module, library, function, link, pool, vmm
//!              what the handles mean
//!   engine     the queues of all streams and the threads that empty them
//!   op, copy, launch
//!              what is queued
//!   memory, heap, allocation, address_space
//!              device memory: ordinary pages inside one reserved range of addresses
//!   array, texture, reference
//!              images in device memory, and what reads them
//!   machine    the seam to what runs code
//!   code, grid PTX to machine code, entry by entry on first use, and running it (sluice-ptx,
//!              sluice-ir, sluice-jit)
//! ```
//!
//! It is linked into the worker, and `softgpu-lib` makes it a `libcuda.so.1` of its own. With
//! another [`Machine`] behind the seam it is the driver of `sluice-recording`. A function that is
//! not here is `None` in the table, never a success that did nothing.

mod api;

mod device;

mod capture;
mod conditional;
mod context;
mod event;
mod graph;
mod green;
mod shared_event;
mod stream;

mod code;
mod coverage;
mod function;
mod grid;
mod jit_options;
mod launch;
mod library;
mod link;
mod load;
mod machine;
mod messages;
mod module;
mod occupancy;

mod engine;
mod execution;
mod op;

mod account;
mod address_space;
mod allocation;
mod array;
mod copy;
mod heap;
mod memory;
mod pool;
mod process;
mod ranges;
mod sanitizer;
mod tiles;
mod vmm;

mod reference;
mod tensor_map;
mod texture;

mod status;
mod table;

use sluice_cuda::DriverTable;

pub use account::{DeviceMemoryAccount, own_memory, set_device_memory_account};
pub use api::{export_event, import_event};
pub use context::{Context, has_device_heap, on_context_destroyed, primary_context};
pub use copy::wait_to_read;
pub use device::{Card, Config, SoftDevice, configure, configure_cards};
pub use engine::{has_room, wait_for_room};
pub use execution::{
    Usage, cancel_running, control, longest_running, set_code_store, set_compile_limit, set_compile_memory,
    set_output, threads, usage,
};
pub use machine::{Code, Grid, Kernel, Limits, Machine, Resources, Shape, Signature};
pub use messages::{Messages, set_messages};
pub use module::{Variable, place_variable, variables};
pub use sanitizer::{invalid_copy, sanitizes, set_sanitizer};
pub use sluice_jit::{CodeKey, CodeStore, Control, Output, SystemOrder, on_system_order};
pub use vmm::frozen::{freeze, keep_in_files, lay_over};

/// What a [`Machine`] may want to know of PTX.
pub mod ptx {
    pub use crate::code::{ptx_global, ptx_version};
}

/// What `cuDriverGetVersion` answers: 1000 * major + 10 * minor.
pub const DRIVER_VERSION: i32 = api::DRIVER_VERSION;

/// The software GPU as a driver. [`configure`] decides what devices it has.
pub fn table() -> DriverTable {
    api::TABLE
}
