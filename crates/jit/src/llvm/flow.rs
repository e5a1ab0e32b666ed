//! Where the lanes of a warp can be while some of them run a block.
//!
//! Lanes run as in Cranelift's code: always the pending block of the lowest number, with all lanes
//! that are pending there. From that follows which other blocks can have pending lanes while a
//! block runs (*others*), all of them of higher numbers, and so which blocks can come next.

use sluice_ir::analysis::Shape;
use sluice_ir::{BlockId, Inst, Kernel, Terminator, Value};

/// A set of small numbers.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Set(Vec<u64>);

impl Set {
    fn new(count: usize) -> Set {
        Set(vec![0; count.div_ceil(64)])
    }

    pub(super) fn has(&self, index: usize) -> bool {
        self.0.get(index / 64).is_some_and(|word| word >> (index % 64) & 1 != 0)
    }

    fn add(&mut self, index: usize) {
        self.0[index / 64] |= 1 << (index % 64);
    }

    fn remove(&mut self, index: usize) {
        self.0[index / 64] &= !(1 << (index % 64));
    }

    /// Adds the numbers of another set; says whether that changed anything.
    fn join(&mut self, other: &Set) -> bool {
        let mut changed = false;
        for (word, &more) in self.0.iter_mut().zip(&other.0) {
            changed |= more & !*word != 0;
            *word |= more;
        }
        changed
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.0.len() * 64).filter(|&index| self.has(index))
    }

    fn keep_above(&mut self, index: usize) {
        for (place, word) in self.0.iter_mut().enumerate() {
            let first = place * 64;
            if first + 63 <= index {
                *word = 0;
            } else if first <= index {
                *word &= !0 << (index - first) << 1;
            }
        }
    }
}

pub(super) struct Flow {
    /// By block, the blocks that can have pending lanes while it runs.
    pub others: Vec<Set>,
    /// By block, the values that are used in it or behind it and defined in front of it. A block's
    /// parameters are not among its own.
    live: Vec<Set>,
    /// By value, whether it is used in another block than it is defined in.
    pub crosses: Vec<bool>,
}

impl Flow {
    pub(super) fn new(kernel: &Kernel, shapes: &[Shape]) -> Flow {
        let (live, crosses) = live(kernel);
        Flow { others: others(kernel, shapes), live, crosses }
    }

    /// Whether lanes that are pending in one of the blocks will use what this value was before.
    pub(super) fn is_wanted(&self, value: Value, blocks: &Set) -> bool {
        self.crosses[value.index()] && blocks.iter().any(|block| self.live[block].has(value.index()))
    }

    pub(super) fn is_live(&self, value: Value, block: BlockId) -> bool {
        self.live[block.index()].has(value.index())
    }

    /// The values that lanes at the start of a block need, without its parameters.
    pub(super) fn live_at(&self, block: BlockId) -> impl Iterator<Item = Value> + '_ {
        self.live[block.index()].iter().map(Value::new)
    }
}

/// The ways out of a block that a warp takes: each with the blocks to which lanes go together.
pub(super) fn arms(terminator: &Terminator, is_varying: bool) -> Vec<Vec<BlockId>> {
    let targets: Vec<BlockId> = terminator.targets().map(|target| target.block).collect();
    match terminator {
        Terminator::Trap => vec![],
        Terminator::Exit => vec![vec![]],
        _ if is_varying => vec![targets],
        _ => targets.into_iter().map(|target| vec![target]).collect(),
    }
}

pub(super) fn is_varying(terminator: &Terminator, shapes: &[Shape]) -> bool {
    terminator.condition().is_some_and(|value| shapes[value.index()] != Shape::Uniform)
}

fn others(kernel: &Kernel, shapes: &[Shape]) -> Vec<Set> {
    let count = kernel.blocks.len();
    let mut others = vec![Set::new(count); count];
    let mut is_reached = vec![false; count];
    is_reached[0] = true;
    let mut work = vec![0];
    while let Some(block) = work.pop() {
        let terminator = &kernel.blocks[block].terminator;
        for arm in arms(terminator, is_varying(terminator, shapes)) {
            let mut pending = others[block].clone();
            arm.iter().for_each(|target| pending.add(target.index()));
            for next in candidates(&others[block], &arm).0 {
                let mut behind = pending.clone();
                behind.keep_above(next);
                let changed = others[next].join(&behind);
                if changed || !std::mem::replace(&mut is_reached[next], true) {
                    work.push(next);
                }
            }
        }
    }
    others
}

/// The blocks that may run next when lanes leave for the blocks of an arm, in order, and whether
/// the last of them does if none before it has lanes.
pub(super) fn candidates(others: &Set, arm: &[BlockId]) -> (Vec<usize>, bool) {
    let mut all = others.clone();
    arm.iter().for_each(|target| all.add(target.index()));
    let last = arm.iter().map(|target| target.index()).max();
    match last {
        Some(last) => (all.iter().take_while(|&block| block <= last).collect(), true),
        None => (all.iter().collect(), false),
    }
}

fn live(kernel: &Kernel) -> (Vec<Set>, Vec<bool>) {
    let (blocks, values) = (kernel.blocks.len(), kernel.values.len());
    let mut uses = vec![Set::new(values); blocks];
    let mut definitions = vec![Set::new(values); blocks];
    let mut crosses = vec![false; values];
    for (index, block) in kernel.blocks.iter().enumerate() {
        block.params.iter().for_each(|value| definitions[index].add(value.index()));
        let mut note = |value: Value, definitions: &Set| {
            if !definitions.has(value.index()) && kernel.constant(value).is_none() {
                uses[index].add(value.index());
                crosses[value.index()] = true;
            }
        };
        for &id in &block.insts {
            let data = kernel.inst(id);
            data.inst.for_each_arg(|value| note(value, &definitions[index]));
            if !matches!(data.inst, Inst::Const { .. }) {
                data.results().for_each(|value| definitions[index].add(value.index()));
            }
        }
        block.terminator.for_each_arg(|value| note(value, &definitions[index]));
    }
    let mut live = uses;
    let mut changed = true;
    while changed {
        changed = false;
        for index in (0..blocks).rev() {
            for target in kernel.blocks[index].terminator.targets() {
                let mut behind = live[target.block.index()].clone();
                for value in definitions[index].iter().collect::<Vec<_>>() {
                    behind.remove(value);
                }
                for param in &kernel.block(target.block).params {
                    behind.remove(param.index());
                }
                changed |= live[index].join(&behind);
            }
        }
    }
    (live, crosses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_above_a_number_is_kept() {
        let mut set = Set::new(200);
        [3, 63, 64, 65, 127, 128, 199].into_iter().for_each(|index| set.add(index));
        set.keep_above(64);
        assert_eq!(set.iter().collect::<Vec<_>>(), [65, 127, 128, 199]);
        set.keep_above(127);
        assert_eq!(set.iter().collect::<Vec<_>>(), [128, 199]);
        set.keep_above(199);
        assert!(set.is_empty());
    }

    #[test]
    fn the_lowest_pending_block_is_next() {
        let mut others = Set::new(10);
        [4, 8].into_iter().for_each(|index| others.add(index));
        // Lanes that leave for block 6 come there once none is left in block 4.
        assert_eq!(candidates(&others, &[BlockId(6)]), (vec![4, 6], true));
        assert_eq!(candidates(&others, &[BlockId(2)]), (vec![2], true));
        assert_eq!(candidates(&others, &[BlockId(2), BlockId(5)]), (vec![2, 4, 5], true));
        assert_eq!(candidates(&others, &[]), (vec![4, 8], false));
    }
}
