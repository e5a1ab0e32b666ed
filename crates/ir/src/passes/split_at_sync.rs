//! Makes each collective instruction the first of a block.
//!
//! A back end gathers the lanes of a warp at block starts. A lane that must wait for others then waits there, with
//! nothing of the block done.

use crate::kernel::{Kernel, Target, Terminator};

pub fn run(kernel: &mut Kernel) {
    let mut index = 0;
    // New blocks come last and are looked at in their turn.
    while index < kernel.blocks.len() {
        let later = kernel.blocks[index].insts.iter().skip(1);
        let at = later.into_iter().position(|inst| kernel.insts[inst.index()].inst.is_collective());
        if let Some(at) = at {
            let tail = kernel.add_block();
            let block = &mut kernel.blocks[index];
            let insts = block.insts.split_off(at + 1);
            let terminator = std::mem::replace(&mut block.terminator, Terminator::Jump(Target::new(tail)));
            let tail = kernel.block_mut(tail);
            tail.insts = insts;
            tail.terminator = terminator;
        }
        index += 1;
    }
}
