//! Fewer blocks: decided branches, blocks that only jump, chains of blocks.

use crate::analysis::Cfg;
use crate::kernel::{Definition, Kernel, Target, Terminator};
use crate::ssa;
use crate::types::{BlockId, Value};

pub fn run(kernel: &mut Kernel) {
    decide_branches(kernel);
    skip_empty_blocks(kernel);
    merge_chains(kernel);
}

/// A branch on a constant, or with one target only, becomes a jump.
fn decide_branches(kernel: &mut Kernel) {
    for id in kernel.block_ids() {
        let block = kernel.block(id);
        let target = match &block.terminator {
            Terminator::Branch { cond, then, otherwise } => match kernel.constant(*cond) {
                Some(0) => otherwise,
                Some(_) => then,
                None if then == otherwise => then,
                None => continue,
            },
            Terminator::Switch { index, targets, default } => match kernel.constant(*index) {
                Some(index) => targets.get(index as usize).unwrap_or(default),
                None => continue,
            },
            _ => continue,
        };
        let target = target.clone();
        kernel.block_mut(id).terminator = Terminator::Jump(target);
    }
}

/// Edges to a block that does nothing but jump lead where it jumps.
fn skip_empty_blocks(kernel: &mut Kernel) {
    let mut destination: Vec<Option<Target>> = kernel
        .blocks
        .iter()
        .map(|block| match &block.terminator {
            Terminator::Jump(target) if block.params.is_empty() && block.insts.is_empty() => {
                Some(target.clone())
            }
            _ => None,
        })
        .collect();
    // An endless loop of empty blocks stays as it is.
    for start in 0..destination.len() {
        let mut steps = 0;
        while let Some(target) = &destination[start]
            && target.args.is_empty()
            && let Some(next) = destination[target.block.index()].clone()
            && steps < 64
        {
            if next.block.index() == start {
                destination[start] = None;
                break;
            }
            destination[start] = Some(next);
            steps += 1;
        }
    }
    for block in &mut kernel.blocks {
        for target in block.terminator.targets_mut() {
            if target.args.is_empty()
                && let Some(destination) = &destination[target.block.index()]
            {
                *target = destination.clone();
            }
        }
    }
}

/// A block whose only predecessor does nothing but jump to it becomes part of that one.
fn merge_chains(kernel: &mut Kernel) {
    let cfg = Cfg::new(kernel);
    let mut aliases: Vec<Value> = (0..kernel.values.len()).map(Value::new).collect();
    let mut is_merged = vec![false; kernel.blocks.len()];
    let mut changed = false;
    for head in &cfg.order {
        if is_merged[head.index()] {
            continue;
        }
        while let Terminator::Jump(Target { block: next, args }) = &kernel.block(*head).terminator {
            let next = *next;
            if next == *head || next == BlockId(0) || cfg.preds(next).len() != 1 {
                break;
            }
            let args = args.clone();
            let block = kernel.block_mut(next);
            let params = std::mem::take(&mut block.params);
            let insts = std::mem::take(&mut block.insts);
            let terminator = std::mem::replace(&mut block.terminator, Terminator::Exit);
            for (param, arg) in params.into_iter().zip(args) {
                aliases[param.index()] = arg;
                kernel.values[param.index()].definition = Definition::None;
            }
            let block = kernel.block_mut(*head);
            block.insts.extend(insts);
            block.terminator = terminator;
            is_merged[next.index()] = true;
            changed = true;
        }
    }
    if changed {
        ssa::replace(kernel, aliases);
    }
}
