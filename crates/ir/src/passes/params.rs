//! Removes block parameters that always get the same value.

use crate::analysis::Cfg;
use crate::kernel::{Definition, Kernel};
use crate::ssa;
use crate::types::Value;

pub fn run(kernel: &mut Kernel) {
    let cfg = Cfg::new(kernel);
    let mut aliases: Vec<Value> = (0..kernel.values.len()).map(Value::new).collect();
    let mut any = false;
    // One parameter's removal can make another's arguments equal; what is left after a few rounds
    // stays.
    for _ in 0..4 {
        let mut changed = false;
        for id in &cfg.order {
            for index in 0..kernel.block(*id).params.len() {
                let param = kernel.block(*id).params[index];
                if aliases[param.index()] == param
                    && let Some(value) = only_argument(kernel, &cfg, &aliases, *id, index, param)
                {
                    aliases[param.index()] = value;
                    changed = true;
                }
            }
        }
        any |= changed;
        if !changed {
            break;
        }
    }
    if any {
        remove(kernel, |param| aliases[param.index()] != param);
        ssa::replace(kernel, aliases);
    }
}

/// The one value that all edges pass for a parameter, itself not counted.
fn only_argument(
    kernel: &Kernel,
    cfg: &Cfg,
    aliases: &[Value],
    id: crate::BlockId,
    index: usize,
    param: Value,
) -> Option<Value> {
    let mut only = None;
    for pred in cfg.preds(id) {
        for target in kernel.block(*pred).terminator.targets().filter(|target| target.block == id) {
            let mut arg = target.args[index];
            while aliases[arg.index()] != arg {
                arg = aliases[arg.index()];
            }
            if arg != param && *only.get_or_insert(arg) != arg {
                return None;
            }
        }
    }
    only
}

/// Takes parameters away, with their arguments on all edges.
pub(super) fn remove(kernel: &mut Kernel, mut is_removed: impl FnMut(Value) -> bool) {
    let removed: Vec<Vec<bool>> = kernel
        .blocks
        .iter()
        .map(|block| block.params.iter().map(|param| is_removed(*param)).collect::<Vec<bool>>())
        .collect();
    for index in 0..kernel.blocks.len() {
        for target in kernel.blocks[index].terminator.targets_mut() {
            let removed = &removed[target.block.index()];
            if removed.contains(&true) {
                let mut at = 0;
                target.args.retain(|_| {
                    at += 1;
                    !removed[at - 1]
                });
            }
        }
        if !removed[index].contains(&true) {
            continue;
        }
        let id = crate::BlockId::new(index);
        let params = std::mem::take(&mut kernel.blocks[index].params);
        for (param, is_removed) in params.into_iter().zip(&removed[index]) {
            let kept = &mut kernel.blocks[index].params;
            kernel.values[param.index()].definition = if *is_removed {
                Definition::None
            } else {
                kept.push(param);
                Definition::Param { block: id, index: kept.len() as u32 - 1 }
            };
        }
    }
}
