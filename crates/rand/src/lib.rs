//! Implements cuRAND's documented host interface for programs whose GPU is a software one.
//!
//! `sluice run` lets programs find this library in the place of NVIDIA's `libcurand.so`, whose
//! machine code a software GPU cannot run (see `crates/blas`, which does the same for cuBLAS).
//!
//! ```text
//!   exports    exports, absent       the C functions
//!   state      generator             settings, the position in the sequence, memory of the device
//!   sequences  engine                seeds, jumps and tables, which are computed on the host
//!   kernels    ptx                   random bits, and distributions from random bits
//! ```
//!
//! A generator has one sequence of words, and a call takes as many as it needs from where the last
//! one stopped: a kernel writes the words to the caller's memory, and a second one makes numbers of
//! a distribution out of them in place. So results do not depend on how calls are split.
//!
//! The sequences are those of the published algorithms, which the modules of `engine` cite. What
//! the algorithms leave open, such as states from seeds, is chosen here and not taken from cuRAND.

mod abi;
mod absent;
mod engine;
mod exports;
mod generator;
mod ptx;
