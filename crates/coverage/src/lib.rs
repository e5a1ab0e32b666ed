//! Coverage of kernel lines on the software GPU.
//!
//! Compiled kernels count the threads that execute each basic block
//! (`sluice_ir::lower::lower_kernel_with_counters`). Each process records its modules and counts in
//! a folder, from which the report of the whole run is made.
//!
//! | module | contents |
//! |---|---|
//! | [`Recorder`] | what a process writes: modules when they are loaded, counts after each launch |
//! | [`log`] | the two files of a process |
//! | [`Report`] | the counts of all processes by source line |
//! | [`Tracefile`] | reading, adding and writing the format of `lcov` |

mod lcov;
pub mod log;
mod recorder;
mod report;

pub use lcov::{SourceFile, SourceFunction, SyntaxError, Tracefile};
pub use recorder::{Counters, Recorder};
pub use report::Report;
