//! Numbers blocks so that a warp which always runs its pending block of the lowest number stays
//! together.
//!
//! Three properties make it so:
//! 1. Every edge but a loop's back edge leads to a higher number.
//! 2. The blocks of a loop are consecutive.
//! 3. A loop has one back edge, and it starts from the loop's last block.
//!
//! Then lanes that took different ways through a loop's body all wait for the last block before any
//! of them starts the next iteration, and lanes that left the loop wait behind it until all have.
//! Unreachable blocks are dropped.

use crate::analysis::{Cfg, Dominators, LoopId, Loops};
use crate::kernel::{Block, Definition, Kernel, Target, Terminator};
use crate::types::{BlockId, InstId};

pub fn run(kernel: &mut Kernel) {
    join_back_edges(kernel);
    let order = order(kernel);
    renumber(kernel, &order);
}

/// Gives a loop a last block that its back edges go through, where there are several or they come
/// out of a loop inside.
fn join_back_edges(kernel: &mut Kernel) {
    let cfg = Cfg::new(kernel);
    let dominators = Dominators::new(&cfg);
    let loops = Loops::new(kernel, &cfg, &dominators);
    for header in &cfg.order {
        let latches: Vec<BlockId> =
            cfg.preds(*header).iter().copied().filter(|pred| dominators.dominates(*header, *pred)).collect();
        let is_last = |latch: &BlockId| loops.innermost(*latch).is_some_and(|id| loops.header(id) == *header);
        if latches.is_empty() || (latches.len() == 1 && latches.iter().all(is_last)) {
            continue;
        }
        let latch = kernel.add_block();
        let types: Vec<_> = kernel.block(*header).params.iter().map(|param| kernel.ty(*param)).collect();
        let args = types.into_iter().map(|ty| kernel.add_block_param(latch, ty)).collect();
        kernel.block_mut(latch).terminator = Terminator::Jump(Target { block: *header, args });
        for pred in latches {
            for target in kernel.block_mut(pred).terminator.targets_mut() {
                if target.block == *header {
                    target.block = latch;
                }
            }
        }
    }
}

/// A block or a whole loop, as a node of the region around it. Loops are numbered behind blocks.
type Item = u32;

/// The blocks in their new order.
fn order(kernel: &Kernel) -> Vec<BlockId> {
    let cfg = Cfg::new(kernel);
    let dominators = Dominators::new(&cfg);
    let loops = Loops::new(kernel, &cfg, &dominators);
    let block_count = kernel.blocks.len();

    // Each edge orders two items of the innermost region around both its ends; edges to a region's
    // own header are back edges.
    let mut successors: Vec<Vec<Item>> = vec![Vec::new(); block_count + loops.headers.len()];
    for from in &cfg.order {
        for target in kernel.block(*from).terminator.targets() {
            if let Some((a, b)) = items(&loops, block_count, *from, target.block) {
                successors[a as usize].push(b);
            }
        }
    }

    // Regions are put in order from the outside in; a loop's place is filled when it is come to.
    let mut order = Vec::with_capacity(cfg.order.len());
    let mut pending: Vec<Item> = vec![u32::MAX];
    let mut seen = vec![false; successors.len()];
    while let Some(item) = pending.pop() {
        let start = if item == u32::MAX {
            first_item(&loops, block_count, BlockId(0), None)
        } else if (item as usize) < block_count {
            order.push(BlockId(item));
            continue;
        } else {
            let id = LoopId(item - block_count as u32);
            first_item(&loops, block_count, loops.header(id), Some(id))
        };
        // The post-order, so that the stack gives it back reversed.
        post_order(start, &successors, &mut seen, &mut pending);
    }
    order
}

/// What stands for a block in a region: itself, or the loop around it that lies directly in the
/// region.
fn first_item(loops: &Loops, block_count: usize, block: BlockId, region: Option<LoopId>) -> Item {
    let mut item = block.0;
    let mut at = loops.innermost(block);
    while at != region {
        let Some(id) = at else { break };
        item = block_count as u32 + id.0;
        at = loops.parent(id);
    }
    item
}

fn items(loops: &Loops, block_count: usize, from: BlockId, to: BlockId) -> Option<(Item, Item)> {
    // Out of loops around `to` until one is around `from` too.
    let mut region = loops.innermost(to);
    while let Some(id) = region {
        if loops.contains(id, from) {
            if loops.header(id) == to {
                return None;
            }
            break;
        }
        region = loops.parent(id);
    }
    let a = first_item(loops, block_count, from, region);
    let b = first_item(loops, block_count, to, region);
    (a != b).then_some((a, b))
}

fn post_order(start: Item, successors: &[Vec<Item>], seen: &mut [bool], order: &mut Vec<Item>) {
    let mut stack = vec![(start, 0)];
    seen[start as usize] = true;
    while let Some((item, next)) = stack.last_mut() {
        match successors[*item as usize].get(*next) {
            Some(successor) => {
                *next += 1;
                if !std::mem::replace(&mut seen[*successor as usize], true) {
                    stack.push((*successor, 0));
                }
            }
            None => {
                order.push(*item);
                stack.pop();
            }
        }
    }
}

/// Moves blocks into the given order and drops all others.
fn renumber(kernel: &mut Kernel, order: &[BlockId]) {
    let mut number = vec![None; kernel.blocks.len()];
    for (index, block) in order.iter().enumerate() {
        number[block.index()] = Some(BlockId::new(index));
    }
    let mut old: Vec<Option<Block>> = std::mem::take(&mut kernel.blocks).into_iter().map(Some).collect();
    kernel.blocks = order.iter().filter_map(|block| old[block.index()].take()).collect();
    for dropped in old.into_iter().flatten() {
        for param in dropped.params {
            kernel.values[param.index()].definition = Definition::None;
        }
        for inst in dropped.insts {
            forget(kernel, inst);
        }
    }
    for index in 0..kernel.blocks.len() {
        let id = BlockId::new(index);
        let block = &mut kernel.blocks[index];
        for target in block.terminator.targets_mut() {
            if let Some(number) = number[target.block.index()] {
                target.block = number;
            }
        }
        for (index, param) in block.params.iter().enumerate() {
            kernel.values[param.index()].definition = Definition::Param { block: id, index: index as u32 };
        }
    }
}

/// Marks the results of an instruction that is in no block any more.
fn forget(kernel: &mut Kernel, inst: InstId) {
    for result in kernel.inst(inst).results() {
        kernel.values[result.index()].definition = Definition::None;
    }
}
