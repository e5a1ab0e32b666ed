//! Computes once what is computed several times, and simplifies on the way.
//!
//! A walk down the dominator tree with a table of the instructions seen on the path from the entry.
//! Each instruction is first simplified ([`super::fold`]), then looked up.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

use crate::analysis::{Cfg, Dominators};
use crate::inst::{Effect, Inst, Ordering};
use crate::kernel::{Definition, Kernel};
use crate::passes::fold;
use crate::ssa;
use crate::types::{BlockId, InstId, Type, Value};

pub fn run(kernel: &mut Kernel) {
    let cfg = Cfg::new(kernel);
    let dominators = Dominators::new(&cfg);
    let mut numbering = Numbering {
        aliases: (0..kernel.values.len()).map(Value::new).collect(),
        kernel,
        table: HashMap::default(),
        scopes: Vec::new(),
        inserted: Vec::new(),
        insts: Vec::new(),
    };
    for block in &dominators.preorder {
        numbering.visit(&dominators, *block);
    }
    let Numbering { kernel, aliases, .. } = numbering;
    ssa::replace(kernel, aliases);
}

pub(super) struct Numbering<'k> {
    pub(super) kernel: &'k mut Kernel,
    /// By value: what stands for it.
    aliases: Vec<Value>,
    table: HashMap<Inst, Value, BuildHasherDefault<FxHasher>>,
    /// Blocks on the path from the entry, with the number of entries in `inserted` when each was
    /// entered.
    scopes: Vec<(BlockId, usize)>,
    inserted: Vec<Inst>,
    /// The current block's instructions so far.
    insts: Vec<InstId>,
}

impl Numbering<'_> {
    fn visit(&mut self, dominators: &Dominators, block: BlockId) {
        while let Some((above, len)) = self.scopes.last()
            && !dominators.dominates(*above, block)
        {
            for inst in self.inserted.drain(*len..) {
                self.table.remove(&inst);
            }
            self.scopes.pop();
        }
        self.scopes.push((block, self.inserted.len()));
        let old = std::mem::take(&mut self.kernel.block_mut(block).insts);
        self.insts.reserve(old.len());
        for inst in old {
            self.visit_inst(inst);
        }
        self.kernel.block_mut(block).insts = std::mem::take(&mut self.insts);
    }

    fn visit_inst(&mut self, id: InstId) {
        let mut inst = self.kernel.insts[id.index()].inst.clone();
        inst.for_each_arg_mut(|arg| *arg = self.aliases[arg.index()]);
        if let Some(value) = fold::simplify(self, &mut inst) {
            return self.replace(id, value);
        }
        let is_shared = match &inst {
            Inst::Load { order, guard: None, .. } => order.ordering == Ordering::Invariant,
            other => other.effect() == Effect::Pure,
        };
        if is_shared {
            match self.table.entry(inst) {
                Entry::Occupied(entry) => {
                    let value = *entry.get();
                    return self.replace(id, value);
                }
                Entry::Vacant(entry) => {
                    inst = entry.key().clone();
                    self.inserted.push(inst.clone());
                    entry.insert(self.kernel.insts[id.index()].first_result);
                }
            }
        }
        self.kernel.insts[id.index()].inst = inst;
        self.insts.push(id);
    }

    /// The results of an instruction are those from `value` on, and it goes.
    fn replace(&mut self, id: InstId, value: Value) {
        let data = self.kernel.inst(id);
        for (index, result) in data.results().enumerate() {
            self.aliases[result.index()] = Value(value.0 + index as u32);
            self.kernel.values[result.index()].definition = Definition::None;
        }
    }

    /// The value of an instruction with one result, put before the current one if it is new.
    pub(super) fn value(&mut self, mut inst: Inst) -> Value {
        if let Some(value) = fold::simplify(self, &mut inst) {
            return value;
        }
        if let Some(value) = self.table.get(&inst) {
            return *value;
        }
        let id = self.kernel.add_inst(inst.clone(), 0);
        let value = self.kernel.inst(id).first_result;
        self.aliases.push(value);
        self.insts.push(id);
        self.inserted.push(inst.clone());
        self.table.insert(inst, value);
        value
    }

    pub(super) fn constant(&mut self, ty: Type, bits: u64) -> Value {
        self.value(Inst::Const { ty, bits: bits & ty.mask() })
    }

    /// What defines a value, as far as it has been simplified.
    pub(super) fn definition(&self, value: Value) -> Option<&Inst> {
        match self.kernel.values[value.index()].definition {
            Definition::Result { inst, .. } => Some(&self.kernel.insts[inst.index()].inst),
            _ => None,
        }
    }
}

/// The hash of the Rust compiler's own tables: short keys, no adversary (a collision costs time
/// only, and the number of instructions is bounded).
#[derive(Default)]
struct FxHasher(u64);

impl FxHasher {
    fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

impl Hasher for FxHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.add(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.add(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.add(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.add(value as u64);
    }

    fn write_isize(&mut self, value: isize) {
        self.add(value as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
