//! Variables that are live across calls of subroutines keep their values in memory meanwhile.
//!
//! The blocks of a subroutine are there once, so a call that comes back to them would overwrite the
//! variables of the activation that waits for it. For each call, [`Variables::spill`] stores what
//! its continuation wants at the end of the calling block, and loads it at the start of the
//! continuation.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::{Sites, Variable, Variables, at};
use crate::analysis::Cfg;
use crate::inst::{ConvertOp, Inst, MemoryOperand, MemoryOrder, Space};
use crate::kernel::{Definition, Kernel};
use crate::types::{BlockId, Type, Value};

/// The variables of a function that is lowered once, and the calls that it makes.
#[derive(Clone, Debug)]
pub struct Activation {
    /// Its first block, which has no other content than a jump. Its variables are 0 there.
    pub entry: BlockId,
    variables: Vec<Range<usize>>,
    pub calls: Vec<SpilledCall>,
}

/// A call during which the variables of its activation may change.
#[derive(Clone, Copy, Debug)]
pub struct SpilledCall {
    /// The block that ends with the call.
    pub block: BlockId,
    /// The block that the call comes back to.
    pub continuation: BlockId,
    /// The address of the activation's frame in [`Space::Local`], in either block.
    pub sp_before: Value,
    pub sp_after: Value,
}

impl Activation {
    pub fn new(entry: BlockId) -> Activation {
        Activation { entry, variables: Vec::new(), calls: Vec::new() }
    }

    /// Adds variables, by their numbers.
    pub fn own(&mut self, variables: Range<usize>) {
        self.variables.push(variables);
    }
}

impl Variables {
    /// Stores and loads for the calls of all activations. `place` gives room in an activation's
    /// frame, by the number of bytes, which is its alignment too. The result are values that stand
    /// for others, for [`Variables::finish_with`].
    pub fn spill(
        &mut self,
        kernel: &mut Kernel,
        activations: &[&Activation],
        place: &mut dyn FnMut(usize, u32) -> i32,
    ) -> Vec<(Value, Value)> {
        self.leave();
        let cfg = Cfg::new(kernel);
        let mut sites = self.sites(&cfg);
        let mut aliases = Vec::new();
        for (number, activation) in activations.iter().enumerate() {
            let calls = activation.calls.iter().map(|call| (call.continuation, *call)).collect();
            let mut spiller = Spiller { variables: self, kernel, cfg: &cfg, activation, calls, aliases };
            for index in activation.variables.iter().cloned().flatten() {
                let sites = std::mem::take(&mut sites[index]);
                if !sites.reads.is_empty() {
                    spiller.spill(Variable(index as u32), &sites, &mut |bytes| place(number, bytes));
                }
            }
            aliases = spiller.aliases;
        }
        aliases
    }
}

struct Spiller<'s> {
    variables: &'s mut Variables,
    kernel: &'s mut Kernel,
    cfg: &'s Cfg,
    activation: &'s Activation,
    /// By continuation.
    calls: HashMap<BlockId, SpilledCall>,
    aliases: Vec<(Value, Value)>,
}

impl Spiller<'_> {
    fn spill(&mut self, variable: Variable, sites: &Sites, place: &mut dyn FnMut(u32) -> i32) {
        let ty = self.variables.ty(variable);
        let written: HashMap<BlockId, Value> = sites.writes.iter().copied().collect();
        let (saved, is_live_at_entry) = self.saved(sites, &written);
        let callers = self.cfg.preds(self.activation.entry);
        if is_live_at_entry && callers.iter().any(|caller| !written.contains_key(caller)) {
            self.clear_at_entry(variable, ty);
        }
        if saved.is_empty() {
            return;
        }
        // A predicate is a byte in memory.
        let memory = if ty == Type::I1 { Type::I8 } else { ty };
        let offset = place(memory.bytes());
        // All stores first: one whose block is another call's continuation wants what is loaded
        // there.
        for call in &saved {
            let value = written.get(&call.block).copied();
            let value = value.unwrap_or_else(|| self.read_at_start(call.block, variable, sites));
            let value = match ty {
                Type::I1 => self.convert(call.block, ConvertOp::ZeroExtend, ty, memory, value),
                _ => value,
            };
            let place = MemoryOperand { space: Space::Local, addr: call.sp_before, offset };
            let (values, order) = (Box::new([value]), MemoryOrder::WEAK);
            self.kernel.push(call.block, Inst::Store { place, ty: memory, values, order, guard: None }, 0);
        }
        for call in &saved {
            let loaded = self.load(call, offset, ty, memory);
            let reads = at(&mut self.variables.reads, call.continuation.0);
            if let Some(index) = reads.iter().position(|(other, _)| *other == variable) {
                let (_, placeholder) = reads.swap_remove(index);
                self.aliases.push((placeholder, loaded));
            }
            if !written.contains_key(&call.continuation) {
                at(&mut self.variables.writes, call.continuation.0).push((variable, loaded));
            }
        }
    }

    /// The calls across which the variable is live, and whether it is live at the activation's
    /// start: backwards from what reads it, where a saved value counts as read by the calling
    /// block.
    fn saved(&self, sites: &Sites, written: &HashMap<BlockId, Value>) -> (Vec<SpilledCall>, bool) {
        let mut live = HashSet::new();
        let mut saved = Vec::new();
        let mut work: Vec<BlockId> = sites.reads.iter().map(|(block, _)| *block).collect();
        while let Some(block) = work.pop() {
            if !live.insert(block) || block == self.activation.entry {
                continue;
            }
            if let Some(call) = self.calls.get(&block) {
                saved.push(*call);
                if !written.contains_key(&call.block) {
                    work.push(call.block);
                }
                continue;
            }
            work.extend(self.cfg.preds(block).iter().filter(|pred| !written.contains_key(pred)));
        }
        (saved, live.contains(&self.activation.entry))
    }

    /// Without it the variable would have what another activation left in it, and the way there
    /// would keep that alive.
    fn clear_at_entry(&mut self, variable: Variable, ty: Type) {
        let entry = self.activation.entry;
        let id = self.kernel.push(entry, Inst::Const { ty, bits: 0 }, 0);
        let zero = self.kernel.inst(id).result(0);
        at(&mut self.variables.writes, entry.0).push((variable, zero));
    }

    /// The variable's value where a block starts that does not assign it.
    fn read_at_start(&mut self, block: BlockId, variable: Variable, sites: &Sites) -> Value {
        if let Some((_, placeholder)) = sites.reads.iter().find(|(read, _)| *read == block) {
            return *placeholder;
        }
        let placeholder = self.kernel.add_value(self.variables.ty(variable), Definition::None);
        at(&mut self.variables.reads, block.0).push((variable, placeholder));
        placeholder
    }

    /// Loads what a call has saved, at the start of its continuation.
    fn load(&mut self, call: &SpilledCall, offset: i32, ty: Type, memory: Type) -> Value {
        let place = MemoryOperand { space: Space::Local, addr: call.sp_after, offset };
        let load = Inst::Load { place, ty: memory, count: 1, order: MemoryOrder::WEAK, guard: None };
        let id = self.kernel.add_inst(load, 0);
        let mut value = self.kernel.inst(id).result(0);
        let mut insts = vec![id];
        if ty == Type::I1 {
            let id = self
                .kernel
                .add_inst(Inst::Convert { op: ConvertOp::Truncate, from: memory, to: ty, arg: value }, 0);
            value = self.kernel.inst(id).result(0);
            insts.push(id);
        }
        self.kernel.block_mut(call.continuation).insts.splice(0..0, insts);
        value
    }

    fn convert(&mut self, block: BlockId, op: ConvertOp, from: Type, to: Type, arg: Value) -> Value {
        let id = self.kernel.push(block, Inst::Convert { op, from, to, arg }, 0);
        self.kernel.inst(id).result(0)
    }
}
