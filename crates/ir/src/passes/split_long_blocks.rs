//! Cuts blocks of such a length that a back end would take too much time and memory for them.
//!
//! Allocating registers takes time and memory that grow with the instructions of a stretch of code
//! times the values that are live in it, so a program could keep a compiler busy with one long
//! block. Behind a cut values are in memory, and a kernel's cost grows with its length.

use crate::kernel::{Kernel, Target, Terminator};

/// Instructions of a block, at most. Blocks of hot loops are shorter even where compilers unroll.
const INSTRUCTIONS_MAX: usize = 1024;

/// Runs behind [`super::split_at_sync`], which leaves collective instructions at the starts of
/// blocks.
pub fn run(kernel: &mut Kernel) {
    let mut index = 0;
    // New blocks come last and are looked at in their turn.
    while index < kernel.blocks.len() {
        let insts = &kernel.blocks[index].insts;
        let is_collective = |&inst| kernel.inst(inst).inst.is_collective();
        let behind_collective = insts.iter().rposition(is_collective).map_or(0, |last| last + 1);
        let at = behind_collective.max(INSTRUCTIONS_MAX);
        if at < insts.len() {
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
