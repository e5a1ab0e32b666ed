//! From images to machine code: the software GPU's own [`crate::device::machine::Machine`], which
//! compiles PTX entry by entry on first use (sluice-ptx, sluice-ir, sluice-jit), and the PTX
//! linker. Only the API loads code, so nothing else depends on this folder.

pub(crate) mod code;
mod grid;
pub(crate) mod jit_options;
pub(crate) mod link;
pub(crate) mod load;
pub(crate) mod software;
