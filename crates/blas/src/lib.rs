//! Implements cuBLAS's documented interface for programs whose GPU is a software one.
//!
//! NVIDIA's `libcublas.so` carries machine code that a software GPU cannot run. `sluice run` lets
//! programs find this library in its place (see `crates/sluice/src/surroundings.rs` and
//! `crates/nojitlink`). Its kernels are PTX that [`ptx`] writes; they are loaded through the driver
//! API into the caller's current context, so they run on the node like any other kernel.
//!
//! ```text
//!   exports    level1, level2, level3, lt, settings, absent   the C functions
//!   operations vector, reduction, product, packed, elementwise, triangular   arguments to launches
//!   kernels    ptx                                        the PTX text of each kernel
//!   beneath    handle                                     settings, scratch memory
//!              sluice-library-base                        modules, libcuda.so.1, the PTX writer
//! ```
//!
//! Sections cited as "cuBLAS 2.x" are those of NVIDIA's cuBLAS documentation. A function that is
//! not built answers `CUBLAS_STATUS_NOT_SUPPORTED` and names itself once on standard error.

mod abi;
mod absent;
mod elementwise;
mod entry;
mod handle;
mod kernels;
mod level1;
mod level2;
mod level3;
mod lt;
mod packed;
mod product;
mod ptx;
mod reduction;
mod scalar;
mod settings;
mod triangular;
mod vector;

use sluice_library_base::driver;
