//! A second code generator for kernels that take long: LLVM, where its shared library is installed.
//!
//! The kernel becomes LLVM's intermediate representation as text, with a vector of all lanes for
//! each value that differs between lanes ([`emitter`]), and that an object file, whose code is used
//! as Cranelift's is ([`elf`]). Both follow the same rules about which lanes run when ([`flow`]),
//! and give the same bits. What is not covered here stays with Cranelift, kernel by kernel.

mod atomics;
mod directed;
mod elf;
mod emitter;
mod flow;
mod library;
mod memory;
mod pure;
mod together;
mod ways;
mod writer;

use sluice_ir::analysis::Shape;
use sluice_ir::{Inst, Kernel, RuntimeFunction};

use crate::codegen::{self, Tids};
use crate::context::FrameLayout;
use crate::object::{CodeTraits, Object};

pub(crate) use emitter::NotCovered;
pub(crate) use library::{Llvm, llvm};

/// Blocks and instructions of a kernel that are given to LLVM at most.
const BLOCKS_MAX: usize = 400;
const INSTRUCTIONS_MAX: usize = 6000;
/// Bytes of arrays on the stack: a small part of a thread's.
const STACK_MAX: usize = 128 << 10;

/// Compiles a kernel for warps of `lanes` lanes.
pub(crate) fn compile(llvm: &Llvm, kernel: &Kernel, tids: Tids, lanes: usize) -> Result<Object, NotCovered> {
    let (text, functions, traits) = text(kernel, tids, lanes)?;
    let file = llvm.compile(&text).map_err(NotCovered)?;
    let code = elf::code(&file, emitter::ENTRY, &functions).map_err(NotCovered)?;
    Ok(Object { code: code.bytes, relocations: code.relocations, tiles: Box::default(), traits })
}

/// The library that is used, by name and version, or why none is. Loads it.
pub fn llvm_library() -> Result<String, &'static str> {
    llvm().map(|llvm| format!("{} (LLVM {})", llvm.name, llvm.version))
}

type Functions = std::collections::HashMap<String, *const ()>;

fn text(kernel: &Kernel, tids: Tids, lanes: usize) -> Result<(String, Functions, CodeTraits), NotCovered> {
    let instructions: usize = kernel.blocks.iter().map(|block| block.insts.len()).sum();
    if kernel.blocks.len() > BLOCKS_MAX || instructions > INSTRUCTIONS_MAX {
        return Err(NotCovered(format!("{} blocks with {instructions} instructions", kernel.blocks.len())));
    }
    if kernel.is_instrumented || codegen::has_spin_loop(kernel) || waits_in_loop(kernel) {
        return Err(NotCovered("lanes that may wait for each other, or are watched".into()));
    }
    let shapes: Vec<Shape> = codegen::shapes(kernel, tids, false).0;
    let flow = flow::Flow::new(kernel, &shapes);
    let barriers = barriers(kernel);
    if barriers > BARRIERS_MAX {
        return Err(NotCovered(format!("{barriers} barriers")));
    }
    let mut frame = FrameLayout::new(barriers + 1);
    let scratch = frame.size;
    frame.size += scratch_bytes(kernel);
    let (lane_tids, has_sync) = (tids == Tids::Any, barriers > 0);
    let traits = CodeTraits {
        frame,
        lanes: lanes as u32,
        lane_tids,
        rotates: false,
        has_sync,
        goes_on: !lane_tids && !has_sync,
    };
    let mut emitter = emitter::Emitter::new(kernel, &shapes, &flow, (tids, lanes), traits, scratch);
    let text = emitter.module()?;
    if emitter.w.stack > STACK_MAX {
        return Err(NotCovered(format!("{} bytes of arrays", emitter.w.stack)));
    }
    let mut traits = emitter.traits;
    traits.frame.size = traits.frame.size.next_multiple_of(64);
    Ok((text, emitter.w.functions, traits))
}

/// Whether a loop may wait for what another warp of its block does, without an ordered access: for
/// memory that it frees, or for what a fence or a pause stands beside. This code lets no other warp
/// run in a loop.
fn waits_in_loop(kernel: &Kernel) -> bool {
    let waits = |block: usize| {
        kernel.blocks[block].insts.iter().any(|&id| {
            matches!(
                kernel.inst(id).inst,
                Inst::Fence { .. }
                    | Inst::Nanosleep { .. }
                    | Inst::CallRuntime { function: RuntimeFunction::Malloc, .. }
            )
        })
    };
    kernel.blocks.iter().enumerate().any(|(from, block)| {
        let back = block.terminator.targets().filter(|target| target.block.index() <= from);
        back.into_iter().any(|target| (target.block.index()..=from).any(waits))
    })
}

/// Barriers at which warps wait: places at which code is entered, with a bit each in a word.
const BARRIERS_MAX: u32 = 63;

fn barriers(kernel: &Kernel) -> u32 {
    let insts = kernel.blocks.iter().flat_map(|block| &block.insts);
    insts.filter(|&&id| matches!(kernel.inst(id).inst, Inst::Barrier { .. })).count() as u32
}

/// Bytes of a warp's memory for the operands and results of products of matrices, and the list of
/// their places.
fn scratch_bytes(kernel: &Kernel) -> u32 {
    let registers = kernel.insts.iter().map(|data| match &data.inst {
        Inst::MatrixMultiply { form, args, .. } => args.len() + form.sums(),
        _ => 0,
    });
    (registers.max().unwrap_or(0) as u32 * 132).next_multiple_of(64)
}
