//! Cranelift code for one warp of a kernel.

use sluice_ir::Kernel;

use crate::compile::CompileError;
use crate::machine_code::MachineCode;

/// The processor that code is made for.
pub(crate) struct Machine;

/// What is known about the thread indices of a warp's lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tids {
    /// Neighbours in x, equal in y and z.
    Rows,
    /// Nothing.
    Any,
}

impl Machine {
    pub(crate) fn host() -> Result<Machine, CompileError> {
        Ok(Machine)
    }
}

pub(crate) fn compile(_: &Machine, kernel: &Kernel, _: Tids) -> Result<MachineCode, CompileError> {
    Err(CompileError::Unsupported { kernel: kernel.name.clone(), what: "every instruction".into() })
}
