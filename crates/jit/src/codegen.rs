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
mod symbols;
mod textures;

use cranelift_codegen::Context;
use cranelift_codegen::binemit::Reloc;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::{AbiParam, Function, Signature, UserFuncName, types};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use sluice_ir::Kernel;

pub(crate) use machine::Target;
pub(crate) use plan::has_spin_loop;
pub(crate) use shapes::shapes;

use crate::compile::CompileError;
use crate::object::{Object, Relocation};

/// What is known about the thread indices of a warp's lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Tids {
    /// Neighbours in x, equal in y and z.
    Rows,
    /// Nothing.
    Any,
}

/// Compiles a kernel for warps of `lanes` lanes.
pub(crate) fn compile(
    machine: &Target,
    kernel: &Kernel,
    tids: Tids,
    lanes: usize,
) -> Result<Object, CompileError> {
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
    let (unsupported, mut symbols) = (emitter.unsupported.take(), std::mem::take(&mut emitter.symbols));
    emitter.b.finalize(machine.isa.frontend_config());
    if let Some(what) = unsupported {
        return Err(CompileError::Unsupported { kernel: kernel.name.clone(), what });
    }
    let backend = |reason: String| CompileError::Backend { kernel: kernel.name.clone(), reason };
    context
        .compile(&*machine.isa, &mut ControlPlane::default())
        .map_err(|error| backend(format!("{:?}", error.inner)))?;
    let code = context.compiled_code().expect("it was just compiled");
    let relocations = code.buffer.relocs().iter().map(|relocation| {
        let symbol = symbols.of(relocation, &context.func).filter(|_| relocation.kind == Reloc::Abs8);
        let symbol = symbol.ok_or_else(|| backend(format!("it refers to {:?}", relocation.target)))?;
        Ok(Relocation { offset: relocation.offset, symbol })
    });
    let relocations = relocations.collect::<Result<_, CompileError>>()?;
    let code = code.code_buffer().to_vec();
    Ok(Object { code, relocations, tiles: symbols.take_tiles(), traits: plan.traits() })
}
