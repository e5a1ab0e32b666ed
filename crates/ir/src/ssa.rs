//! From variables that are assigned many times to SSA values.
//!
//! PTX registers, and local memory that is never addressed, are variables. While blocks are filled,
//! reading a variable that the block has not assigned gives a placeholder value;
//! [`Variables::finish`] replaces the placeholders: by the one definition where it dominates,
//! otherwise by block parameters at the iterated dominance frontier of the definitions, where the
//! variable is live (pruned SSA; Cytron et al., "Efficiently Computing Static Single Assignment
//! Form").

mod spill;

use crate::analysis::{Cfg, Dominators};
use crate::inst::Inst;
use crate::kernel::{Definition, Kernel};
use crate::types::{BlockId, Type, Value};

pub use spill::{Activation, SpilledCall};

/// A variable. Index into [`Variables`]' tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable(pub u32);

const NONE: u32 = u32::MAX;

/// The variables of a kernel under construction, and what each block reads and assigns.
#[derive(Debug, Default)]
pub struct Variables {
    types: Vec<Type>,
    /// By variable: its value at this point of the block that is being filled, valid where `seen`
    /// is that block.
    current: Vec<Value>,
    seen: Vec<u32>,
    /// By variable: the last block that assigned it.
    assigned: Vec<u32>,
    block: u32,
    /// Assigned in the block that is being filled.
    dirty: Vec<Variable>,
    /// By block: variables read before any assignment, with their placeholders.
    reads: Vec<Vec<(Variable, Value)>>,
    /// By block: the last value assigned.
    writes: Vec<Vec<(Variable, Value)>>,
}

impl Variables {
    pub fn declare(&mut self, ty: Type) -> Variable {
        self.types.push(ty);
        self.current.push(Value(NONE));
        self.seen.push(NONE);
        self.assigned.push(NONE);
        Variable(self.types.len() as u32 - 1)
    }

    /// The number of variables declared.
    pub fn len(&self) -> usize {
        self.types.len()
    }

    pub fn is_empty(&self) -> bool {
        self.types.is_empty()
    }

    pub fn ty(&self, variable: Variable) -> Type {
        self.types[variable.0 as usize]
    }

    /// Fill this block from now on. A block is filled once, from its start to its end.
    pub fn enter(&mut self, block: BlockId) {
        self.leave();
        self.block = block.0;
    }

    fn leave(&mut self) {
        if self.dirty.is_empty() {
            return;
        }
        let current = &self.current;
        let writes = self.dirty.drain(..).map(|variable| (variable, current[variable.0 as usize])).collect();
        *at(&mut self.writes, self.block) = writes;
    }

    pub fn read(&mut self, kernel: &mut Kernel, variable: Variable) -> Value {
        let index = variable.0 as usize;
        if self.seen[index] != self.block {
            let placeholder = kernel.add_value(self.types[index], Definition::None);
            at(&mut self.reads, self.block).push((variable, placeholder));
            self.seen[index] = self.block;
            self.current[index] = placeholder;
        }
        self.current[index]
    }

    pub fn write(&mut self, variable: Variable, value: Value) {
        let index = variable.0 as usize;
        self.current[index] = value;
        self.seen[index] = self.block;
        if self.assigned[index] != self.block {
            self.assigned[index] = self.block;
            self.dirty.push(variable);
        }
    }

    /// Puts SSA values in the place of all placeholders. A variable read before any
    /// assignment is 0.
    pub fn finish(self, kernel: &mut Kernel) {
        self.finish_with(kernel, Vec::new());
    }

    /// Finishes as [`Self::finish`] does, and puts the second of each pair in the place of the
    /// first.
    pub fn finish_with(mut self, kernel: &mut Kernel, replaced: Vec<(Value, Value)>) {
        self.leave();
        let cfg = Cfg::new(kernel);
        let dominators = Dominators::new(&cfg);
        let frontiers = dominators.frontiers(&cfg);
        let mut renamer = Renamer::new(kernel, &cfg, &dominators, &frontiers);
        for (variable, sites) in self.sites(&cfg).into_iter().enumerate() {
            if !sites.reads.is_empty() {
                renamer.rename(self.types[variable], &sites);
            }
        }
        let mut aliases = std::mem::take(&mut renamer.aliases);
        for (old, new) in replaced {
            aliases[old.index()] = new;
        }
        replace(kernel, aliases);
    }

    /// By variable: where it is read and assigned, in reachable blocks.
    fn sites(&self, cfg: &Cfg) -> Vec<Sites> {
        let mut sites: Vec<Sites> = self.types.iter().map(|_| Sites::default()).collect();
        for block in &cfg.order {
            for (variable, placeholder) in self.reads.get(block.index()).into_iter().flatten() {
                sites[variable.0 as usize].reads.push((*block, *placeholder));
            }
        }
        for block in &cfg.order {
            for (variable, value) in self.writes.get(block.index()).into_iter().flatten() {
                let sites = &mut sites[variable.0 as usize];
                if !sites.reads.is_empty() {
                    sites.writes.push((*block, *value));
                }
            }
        }
        sites
    }
}

#[derive(Default)]
struct Sites {
    reads: Vec<(BlockId, Value)>,
    writes: Vec<(BlockId, Value)>,
}

fn at<T: Default>(table: &mut Vec<T>, block: u32) -> &mut T {
    let index = block as usize;
    if table.len() <= index {
        table.resize_with(index + 1, T::default);
    }
    &mut table[index]
}

/// Renames one variable after the other; the tables by block are reused, their entries valid where
/// stamped.
struct Renamer<'k> {
    kernel: &'k mut Kernel,
    cfg: &'k Cfg,
    dominators: &'k Dominators,
    frontiers: &'k [Vec<BlockId>],
    /// By value: what stands for it. Itself for most.
    aliases: Vec<Value>,
    stamp: u32,
    live_in: Vec<u32>,
    has_param: Vec<u32>,
    has_write: Vec<u32>,
    /// Value of the variable at the block's end; meaningful where written or live in and already
    /// visited.
    out: Vec<Value>,
    out_stamp: Vec<u32>,
    work: Vec<BlockId>,
    /// By type: the zero at the entry's start.
    undefined: [Option<Value>; Type::ALL.len()],
}

impl<'k> Renamer<'k> {
    fn new(
        kernel: &'k mut Kernel,
        cfg: &'k Cfg,
        dominators: &'k Dominators,
        frontiers: &'k [Vec<BlockId>],
    ) -> Self {
        let count = kernel.blocks.len();
        let aliases = (0..kernel.values.len()).map(Value::new).collect();
        let table = || vec![0; count];
        Renamer {
            kernel,
            cfg,
            dominators,
            frontiers,
            aliases,
            stamp: 0,
            live_in: table(),
            has_param: table(),
            has_write: table(),
            out: vec![Value(NONE); count],
            out_stamp: table(),
            work: Vec::new(),
            undefined: [None; Type::ALL.len()],
        }
    }

    fn rename(&mut self, ty: Type, sites: &Sites) {
        if let [(block, value)] = sites.writes[..]
            && sites.reads.iter().all(|(read, _)| *read != block && self.dominators.dominates(block, *read))
        {
            for (_, placeholder) in &sites.reads {
                self.aliases[placeholder.index()] = value;
            }
            return;
        }
        self.stamp += 1;
        for (block, value) in &sites.writes {
            self.has_write[block.index()] = self.stamp;
            self.out[block.index()] = *value;
            self.out_stamp[block.index()] = self.stamp;
        }
        self.find_live_blocks(sites);
        let joins = self.place_params(ty, sites);
        for (block, placeholder) in &sites.reads {
            let value = self.value_at_start(ty, *block);
            self.aliases[placeholder.index()] = value;
        }
        for (block, _) in &joins {
            self.pass_arguments(ty, *block);
        }
    }

    /// Marks the blocks at whose start the variable is wanted: backwards from the reads to the
    /// writes.
    fn find_live_blocks(&mut self, sites: &Sites) {
        self.work.extend(sites.reads.iter().map(|(block, _)| *block));
        while let Some(block) = self.work.pop() {
            if std::mem::replace(&mut self.live_in[block.index()], self.stamp) == self.stamp {
                continue;
            }
            for pred in self.cfg.preds(block) {
                if self.has_write[pred.index()] != self.stamp {
                    self.work.push(*pred);
                }
            }
        }
    }

    /// Parameters at the iterated dominance frontier of the writes (and of the entry, where the
    /// variable is 0).
    fn place_params(&mut self, ty: Type, sites: &Sites) -> Vec<(BlockId, Value)> {
        let mut joins = Vec::new();
        self.work.extend(sites.writes.iter().map(|(block, _)| *block));
        self.work.push(self.cfg.order[0]);
        while let Some(block) = self.work.pop() {
            for join in &self.frontiers[block.index()] {
                let index = join.index();
                if self.live_in[index] != self.stamp || self.has_param[index] == self.stamp {
                    continue;
                }
                self.has_param[index] = self.stamp;
                let param = self.kernel.add_block_param(*join, ty);
                self.aliases.push(param);
                joins.push((*join, param));
                if self.has_write[index] != self.stamp {
                    self.out[index] = param;
                    self.out_stamp[index] = self.stamp;
                    self.work.push(*join);
                }
            }
        }
        joins
    }

    /// The variable's value when control enters a block.
    fn value_at_start(&mut self, ty: Type, block: BlockId) -> Value {
        if self.has_param[block.index()] == self.stamp {
            // This variable's parameter is the newest one of its block.
            return *self.kernel.block(block).params.last().expect("it was just added");
        }
        match self.dominators.idom(block) {
            Some(idom) => self.value_at_end(ty, idom),
            None => self.undefined(ty, block),
        }
    }

    fn value_at_end(&mut self, ty: Type, block: BlockId) -> Value {
        // Up the dominator tree to the nearest block that knows, then note it on the way.
        let mut at = block;
        let value = loop {
            if self.out_stamp[at.index()] == self.stamp {
                break self.out[at.index()];
            }
            match self.dominators.idom(at) {
                Some(idom) => at = idom,
                None => break self.undefined(ty, at),
            }
        };
        let mut note = block;
        while self.out_stamp[note.index()] != self.stamp {
            self.out[note.index()] = value;
            self.out_stamp[note.index()] = self.stamp;
            match self.dominators.idom(note) {
                Some(idom) => note = idom,
                None => break,
            }
        }
        value
    }

    /// 0, at the start of the entry.
    fn undefined(&mut self, ty: Type, entry: BlockId) -> Value {
        if let Some(value) = self.undefined[ty as usize] {
            return value;
        }
        let id = self.kernel.add_inst(Inst::Const { ty, bits: 0 }, 0);
        let value = self.kernel.inst(id).result(0);
        self.aliases.push(value);
        self.kernel.block_mut(entry).insts.insert(0, id);
        self.undefined[ty as usize] = Some(value);
        value
    }

    /// Gives the newest parameter of `block` its argument on each incoming edge.
    fn pass_arguments(&mut self, ty: Type, block: BlockId) {
        for pred in self.cfg.preds(block) {
            let arg = self.value_at_end(ty, *pred);
            let wanted = self.kernel.block(block).params.len();
            let edge = self.kernel.block_mut(*pred).terminator.targets_mut();
            // A predecessor with two edges is visited twice and finds the second one short.
            if let Some(target) =
                edge.into_iter().find(|target| target.block == block && target.args.len() < wanted)
            {
                target.args.push(arg);
            }
        }
    }
}

/// Replaces every use of a value by what stands for it.
pub fn replace(kernel: &mut Kernel, mut aliases: Vec<Value>) {
    for index in 0..aliases.len() {
        // Chains are short, but must end at their end: placeholders can stand for placeholders.
        let mut end = aliases[index];
        while aliases[end.index()] != end {
            end = aliases[end.index()];
        }
        let mut at = Value::new(index);
        while aliases[at.index()] != end {
            at = std::mem::replace(&mut aliases[at.index()], end);
        }
    }
    let resolve = |value: &mut Value| *value = aliases[value.index()];
    for block in &mut kernel.blocks {
        for inst in &block.insts {
            kernel.insts[inst.index()].inst.for_each_arg_mut(resolve);
        }
        block.terminator.for_each_arg_mut(resolve);
    }
}
