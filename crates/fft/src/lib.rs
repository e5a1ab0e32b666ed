//! Implements cuFFT's documented interface for programs whose GPU is a software one.
//!
//! `sluice run` lets programs find this library in the place of NVIDIA's `libcufft.so`, whose
//! machine code a software GPU cannot run (see `crates/blas`, which does the same for cuBLAS).
//!
//! ```text
//!   exports    exports, absent       the C functions
//!   state      plan                  layouts, work areas, tables in the device's memory
//!   transforms execute, axis         from a plan to launches; the passes of one dimension
//!   kernels    ptx                   copies between layouts, passes, products with tables
//! ```
//!
//! A transform copies its input to a contiguous work area as complex numbers, transforms one
//! dimension after the other there, and copies the result to the output's layout. A dimension whose
//! length has no prime factor above 13 takes passes of the Stockham algorithm, which sorts as it
//! goes (P. N. Swarztrauber, "FFT algorithms for vector computers", 1984); any other length becomes
//! a convolution of a power of two (L. I. Bluestein, 1970).
//!
//! Sections cited as "cuFFT" are those of NVIDIA's cuFFT documentation.

mod abi;
mod absent;
mod axis;
mod execute;
mod exports;
mod plan;
mod ptx;
