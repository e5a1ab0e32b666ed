//! The passes over a kernel, each in a file of its own.

pub mod layout;
pub mod split_at_sync;

use crate::kernel::Kernel;

/// What every kernel goes through between lowering and a back end. Afterwards [`crate::verify::verify_scheduled`] holds.
pub fn pipeline(kernel: &mut Kernel) {
    split_at_sync::run(kernel);
    layout::run(kernel);
}
