//! Runs CUDA kernels on CPU threads: a Cranelift back end for [`sluice_ir`] and the runtime beneath
//! it.
//!
//! ```text
//!   Compiler::compile(kernel)  ->  CompiledKernel         machine code that runs one warp
//!   Executor::launch(kernel, config, memory, control)     a grid of blocks over a pool of threads
//! ```
//!
//! A kernel whose launches take long is compiled again by LLVM, where its library is installed
//! ([`llvm`]).
//!
//! A compiled kernel is a function over a [`context::WarpContext`]. It is a state machine: every
//! value that lives across IR blocks has its place in the warp's frame, and a mask of pending lanes
//! per IR block says where lanes wait. So a warp leaves its machine stack whenever it stops
//! (barrier, yield) and is entered again through its dispatcher; no warp needs a stack of its own,
//! and a block of 1024 threads costs 32 frames.
//!
//! Device addresses are host addresses inside one range given at launch ([`LaunchMemory`]). Each
//! access is checked against it; what is inside but not mapped is caught as a signal. Either ends
//! the grid with a [`Fault`].

mod code_store;
mod codegen;
mod compile;
mod compile_memory;
mod config;
mod control;
mod executor;
mod fault;
mod heap;
mod llvm;
mod order;

mod block;
mod cluster;
mod context;
mod entry;
mod frames;
mod images;
mod machine_code;
mod math;
mod monitor;
mod object;
mod optimizer;
mod round;
mod runtime;
mod signal;

pub use code_store::{CodeKey, CodeStore};
pub use compile::{CompileError, CompiledKernel, Compiler};
pub use config::{LaunchConfig, LaunchMemory, LaunchStats};
pub use control::{Control, LaunchControl, Output, SystemOrder, Working, on_system_order};
pub use executor::Executor;
pub use fault::{Fault, FaultKind, LaunchError};
pub use heap::DeviceHeap;
pub use llvm::llvm_library;
pub use order::{BlockOrder, UnknownOrder};
