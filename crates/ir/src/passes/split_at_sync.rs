//! Makes each collective instruction the first of a block, or one of several that gather the same
//! lanes.
//!
//! A back end gathers the lanes of a warp at block starts. A lane that must wait for others then
//! waits there, with nothing of the block done. The lanes that a member mask names stay together
//! for the rest of the block, so further instructions of the warp with the same mask (the same
//! value: a reduction is a row of them) wait for no other lane.

use crate::inst::Inst;
use crate::kernel::{Kernel, Target, Terminator};
use crate::types::{InstId, Value};

pub fn run(kernel: &mut Kernel) {
    let mut index = 0;
    // New blocks come last and are looked at in their turn.
    while index < kernel.blocks.len() {
        if let Some(at) = first_late(kernel, &kernel.blocks[index].insts) {
            let tail = kernel.add_block();
            let block = &mut kernel.blocks[index];
            let insts = block.insts.split_off(at);
            let terminator = std::mem::replace(&mut block.terminator, Terminator::Jump(Target::new(tail)));
            let tail = kernel.block_mut(tail);
            tail.insts = insts;
            tail.terminator = terminator;
        }
        index += 1;
    }
}

/// The place of the first instruction that must start a block of its own.
pub(crate) fn first_late(kernel: &Kernel, insts: &[InstId]) -> Option<usize> {
    let gathered = insts.first().and_then(|first| member_mask(&kernel.inst(*first).inst));
    let is_late = |inst: &Inst| inst.is_collective() && (gathered.is_none() || member_mask(inst) != gathered);
    insts.iter().skip(1).position(|inst| is_late(&kernel.inst(*inst).inst)).map(|at| at + 1)
}

/// The lanes that an instruction of the warp waits for; None for barriers and what waits for no
/// other lane.
fn member_mask(inst: &Inst) -> Option<Value> {
    match inst {
        Inst::Shuffle { mask, .. }
        | Inst::Vote { mask, .. }
        | Inst::Match { mask, .. }
        | Inst::Redux { mask, .. }
        | Inst::MatrixMultiply { mask, .. }
        | Inst::WarpSync { mask } => Some(*mask),
        _ => None,
    }
}
