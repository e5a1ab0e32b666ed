//! Cranelift code for one warp of a kernel.
//!
//! [`plan`] decides what runs once and what runs per lane, and where values live; [`emitter`]
//! writes the control flow; [`lanes`], [`chunks`], [`chains`], [`scalar`], [`memory`] and
//! [`collective`] write the instructions.

mod atomics;
mod chains;
mod chunks;
mod collective;
mod emitter;
mod halves;
mod lanes;
mod machine;
mod memory;
mod plan;
mod rounding;
mod scalar;
mod shapes;
mod textures;

use cranelift_codegen::Context;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::{AbiParam, Function, Signature, UserFuncName, types};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use sluice_ir::Kernel;

pub(crate) use machine::Machine;

use crate::compile::CompileError;
use crate::machine_code::MachineCode;

/// What is known about the thread indices of a warp's lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tids {
    /// Neighbours in x, equal in y and z.
    Rows,
    /// Nothing.
    Any,
}

/// Compiles a kernel for warps of `lanes` lanes.
pub(crate) fn compile(
    machine: &Machine,
    kernel: &Kernel,
    tids: Tids,
    lanes: usize,
) -> Result<MachineCode, CompileError> {
    let plan = plan::Plan::new(kernel, tids, lanes)?;
    let mut signature = Signature::new(machine.isa.default_call_conv());
    signature.params.push(AbiParam::new(types::I64));
    signature.returns.push(AbiParam::new(types::I64));
    let mut context =
        Context::for_function(Function::with_name_signature(UserFuncName::default(), signature));
    let mut builder_context = FunctionBuilderContext::new();
    let builder = FunctionBuilder::new(&mut context.func, &mut builder_context);
    let mut emitter = emitter::Emitter::new(builder, kernel, &plan, machine);
    emitter.function();
    let (unsupported, tiles) = (emitter.unsupported.take(), std::mem::take(&mut emitter.tiles));
    emitter.b.finalize(machine.isa.frontend_config());
    if let Some(what) = unsupported {
        return Err(CompileError::Unsupported { kernel: kernel.name.clone(), what });
    }
    let backend = |reason: String| CompileError::Backend { kernel: kernel.name.clone(), reason };
    let code = context
        .compile(&*machine.isa, &mut ControlPlane::default())
        .map_err(|error| backend(format!("{:?}", error.inner)))?;
    if let Some(relocation) = code.buffer.relocs().first() {
        return Err(backend(format!("it refers to {:?}", relocation.target)));
    }
    MachineCode::new(code.code_buffer(), plan.traits(), tiles)
        .map_err(|error| CompileError::Memory(error.to_string()))
}
