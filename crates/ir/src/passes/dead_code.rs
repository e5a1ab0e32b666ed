//! Removes what is not used: instructions without effects and block parameters, in cycles too.

use crate::analysis::Cfg;
use crate::inst::Effect;
use crate::kernel::{Definition, Kernel};
use crate::passes::params;
use crate::types::Value;

pub fn run(kernel: &mut Kernel) {
    let live = live_values(kernel);
    params::remove(kernel, |param| !live[param.index()]);
    for index in 0..kernel.blocks.len() {
        let mut insts = std::mem::take(&mut kernel.blocks[index].insts);
        insts.retain(|inst| {
            let data = &kernel.insts[inst.index()];
            let is_kept =
                data.inst.effect() == Effect::Writes || data.results().any(|result| live[result.index()]);
            if !is_kept {
                for result in data.results() {
                    kernel.values[result.index()].definition = Definition::None;
                }
            }
            is_kept
        });
        kernel.blocks[index].insts = insts;
    }
}

/// By value: whether an effect or a branch depends on it.
fn live_values(kernel: &Kernel) -> Vec<bool> {
    let cfg = Cfg::new(kernel);
    let mut live = vec![false; kernel.values.len()];
    let mut work: Vec<Value> = Vec::new();
    for id in &cfg.order {
        let block = kernel.block(*id);
        for inst in &block.insts {
            let data = kernel.inst(*inst);
            if data.inst.effect() == Effect::Writes {
                data.inst.for_each_arg(|arg| work.push(arg));
            }
        }
        work.extend(block.terminator.condition());
    }
    while let Some(value) = work.pop() {
        if std::mem::replace(&mut live[value.index()], true) {
            continue;
        }
        match kernel.values[value.index()].definition {
            Definition::Result { inst, .. } => kernel.inst(inst).inst.for_each_arg(|arg| work.push(arg)),
            Definition::Param { block, index } => {
                for pred in cfg.preds(block) {
                    let targets = kernel.block(*pred).terminator.targets();
                    work.extend(
                        targets
                            .filter(|target| target.block == block)
                            .map(|target| target.args[index as usize]),
                    );
                }
            }
            Definition::None => {}
        }
    }
    live
}
