//! The passes over a kernel, each in a file of its own.

pub mod dead_code;
mod fold;
pub mod instrument;
pub mod layout;
pub mod params;
pub mod promote_local;
pub mod simplify_cfg;
pub mod split_at_sync;
pub mod split_long_blocks;
pub mod value_numbering;

use crate::kernel::Kernel;

/// What every kernel goes through between lowering and a back end. Afterwards
/// [`crate::verify::verify_scheduled`] holds.
pub fn pipeline(kernel: &mut Kernel) {
    optimize(kernel);
    schedule(kernel);
}

/// [`pipeline`] with checks of the kernel's memory accesses.
pub fn pipeline_with_checks(kernel: &mut Kernel) {
    optimize(kernel);
    instrument::run(kernel);
    schedule(kernel);
}

/// Better code with the same meaning.
pub fn optimize(kernel: &mut Kernel) {
    simplify_cfg::run(kernel);
    params::run(kernel);
    value_numbering::run(kernel);
    // Needs the constant addresses that the walk before has found, and leaves copies and
    // conversions for the next.
    if promote_local::run(kernel) {
        params::run(kernel);
        value_numbering::run(kernel);
    }
    simplify_cfg::run(kernel);
    dead_code::run(kernel);
}

/// The order that back ends rely on.
pub fn schedule(kernel: &mut Kernel) {
    split_at_sync::run(kernel);
    split_long_blocks::run(kernel);
    layout::run(kernel);
}
