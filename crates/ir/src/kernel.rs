//! A kernel: blocks of instructions in SSA form, and what a launch must know about it.

use crate::inst::{Inst, Space};
use crate::types::{BlockId, InstId, Type, Value};

/// One entry of a PTX module, with all functions that it calls inlined.
///
/// Execution starts at block 0 with all threads of the block of threads. Values are per thread; a
/// value defined in a block can be used in that block and in those it dominates.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
pub struct Kernel {
    pub name: String,
    pub params: ParamLayout,
    pub shared: SharedLayout,
    /// Size of each thread's frame in [`crate::Space::Local`], in bytes, a multiple of
    /// `local_align`.
    pub local_bytes: u32,
    /// A power of two.
    pub local_align: u32,
    /// Functions that call themselves keep their frames behind the kernel's own, in as much local
    /// memory as the launch has for them.
    pub needs_stack: bool,
    /// `.maxntid`.
    pub max_threads: Option<[u32; 3]>,
    /// `.reqntid`.
    pub required_threads: Option<[u32; 3]>,
    /// Names of the module variables that [`Inst::GlobalAddress`] refers to.
    pub globals: Vec<String>,
    /// Why [`crate::RuntimeFunction::Missing`] is called: a line of the PTX, and what cannot be
    /// done there.
    pub missing: Vec<String>,
    /// What [`crate::RuntimeFunction::CheckAccess`] checks: the memory accesses of a kernel that
    /// was instrumented ([`crate::passes::instrument`]).
    pub accesses: Vec<Access>,
    /// What [`crate::RuntimeFunction::CountThreads`] counts: for each counter the lines of the PTX
    /// text that its threads execute ([`crate::lower::lower_kernel_with_counters`]).
    pub counters: Vec<Vec<u32>>,
    /// Whether the kernel was instrumented, so that its back end also reports synchronization.
    pub is_instrumented: bool,
    pub values: Vec<ValueData>,
    pub insts: Vec<InstData>,
    pub blocks: Vec<Block>,
}

/// A memory access in the code of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    pub space: Space,
    /// All bytes of the access, which is aligned to as many.
    pub bytes: u32,
    pub kind: AccessKind,
    /// Whether the memory model lets it race with other strong accesses: volatile, relaxed or
    /// stronger, and atomics (PTX ISA, "Memory Consistency Model").
    pub is_strong: bool,
    /// Whether the check gets the value that a store writes.
    pub has_value: bool,
    /// Line of the PTX text, from 1; 0 for none.
    pub line: u32,
}

/// What an access does to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    Read,
    Write,
    Atomic,
}

/// The parameter block of a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ParamLayout {
    /// Size of the whole, in bytes.
    pub bytes: u32,
    pub params: Vec<ParamSlot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ParamSlot {
    /// In bytes from the start of the parameter block.
    pub offset: u32,
    pub bytes: u32,
    pub align: u32,
}

/// The block's shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SharedLayout {
    /// Static part, in bytes.
    pub static_bytes: u32,
    /// Of the whole, a power of two; at least 16.
    pub align: u32,
    /// Where `.extern .shared` arrays start, all of them at the same place; None when the kernel
    /// has none.
    pub dynamic_offset: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ValueData {
    pub ty: Type,
    pub definition: Definition,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Definition {
    Result {
        inst: InstId,
        index: u8,
    },
    Param {
        block: BlockId,
        index: u32,
    },
    /// Defined nowhere any more: a pass replaced it.
    None,
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub struct InstData {
    pub inst: Inst,
    /// The results are `result_count` consecutive values from here on.
    pub first_result: Value,
    pub result_count: u8,
    /// Line of the PTX text, from 1; 0 for none.
    pub line: u32,
}

impl InstData {
    pub fn results(&self) -> impl ExactSizeIterator<Item = Value> + use<> {
        (self.first_result.0..self.first_result.0 + u32::from(self.result_count)).map(Value)
    }

    pub fn result(&self, index: usize) -> Value {
        debug_assert!(index < usize::from(self.result_count));
        Value(self.first_result.0 + index as u32)
    }
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Block {
    pub params: Vec<Value>,
    pub insts: Vec<InstId>,
    pub terminator: Terminator,
}

/// A successor with the arguments for its parameters.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Target {
    pub block: BlockId,
    pub args: Vec<Value>,
}

impl Target {
    pub fn new(block: BlockId) -> Target {
        Target { block, args: Vec::new() }
    }
}

/// How a block ends.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum Terminator {
    Jump(Target),
    /// `then` where `cond` (I1) is 1. Both may name the same block.
    Branch {
        cond: Value,
        then: Target,
        otherwise: Target,
    },
    /// `targets[index]`, unsigned I32; `default` beyond the end.
    Switch {
        index: Value,
        targets: Vec<Target>,
        default: Target,
    },
    /// The thread ends.
    Exit,
    /// The grid ends with an error (`trap`).
    Trap,
}

impl Terminator {
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        let (first, second, rest): (Option<&Target>, Option<&Target>, &[Target]) = match self {
            Terminator::Jump(target) => (Some(target), None, &[]),
            Terminator::Branch { then, otherwise, .. } => (Some(then), Some(otherwise), &[]),
            Terminator::Switch { targets, default, .. } => (Some(default), None, targets),
            Terminator::Exit | Terminator::Trap => (None, None, &[]),
        };
        first.into_iter().chain(second).chain(rest)
    }

    pub fn targets_mut(&mut self) -> impl Iterator<Item = &mut Target> {
        let (first, second, rest): (Option<&mut Target>, Option<&mut Target>, &mut [Target]) = match self {
            Terminator::Jump(target) => (Some(target), None, &mut []),
            Terminator::Branch { then, otherwise, .. } => (Some(then), Some(otherwise), &mut []),
            Terminator::Switch { targets, default, .. } => (Some(default), None, targets),
            Terminator::Exit | Terminator::Trap => (None, None, &mut []),
        };
        first.into_iter().chain(second).chain(rest)
    }

    /// The value that decides between targets.
    pub fn condition(&self) -> Option<Value> {
        match self {
            Terminator::Branch { cond, .. } => Some(*cond),
            Terminator::Switch { index, .. } => Some(*index),
            _ => None,
        }
    }

    /// Calls `f` with every value used: the condition, then the arguments of each target.
    pub fn for_each_arg(&self, mut f: impl FnMut(Value)) {
        self.condition().into_iter().for_each(&mut f);
        self.targets().flat_map(|target| &target.args).copied().for_each(f);
    }

    pub fn for_each_arg_mut(&mut self, mut f: impl FnMut(&mut Value)) {
        match self {
            Terminator::Branch { cond, .. } => f(cond),
            Terminator::Switch { index, .. } => f(index),
            _ => {}
        }
        self.targets_mut().flat_map(|target| &mut target.args).for_each(f);
    }
}

impl Kernel {
    /// Whether its threads have local memory.
    pub fn has_local_memory(&self) -> bool {
        self.local_bytes > 0 || self.needs_stack
    }

    pub fn ty(&self, value: Value) -> Type {
        self.values[value.index()].ty
    }

    pub fn block(&self, block: BlockId) -> &Block {
        &self.blocks[block.index()]
    }

    pub fn block_mut(&mut self, block: BlockId) -> &mut Block {
        &mut self.blocks[block.index()]
    }

    pub fn inst(&self, inst: InstId) -> &InstData {
        &self.insts[inst.index()]
    }

    /// The ids of all blocks, in order.
    pub fn block_ids(&self) -> impl DoubleEndedIterator<Item = BlockId> + ExactSizeIterator + use<> {
        (0..self.blocks.len() as u32).map(BlockId)
    }

    /// The instruction that defines this value, if one does.
    pub fn definition(&self, value: Value) -> Option<&InstData> {
        match self.values[value.index()].definition {
            Definition::Result { inst, .. } => Some(&self.insts[inst.index()]),
            _ => None,
        }
    }

    /// The bits of this value if it is a constant.
    pub fn constant(&self, value: Value) -> Option<u64> {
        match self.definition(value)?.inst {
            Inst::Const { bits, .. } => Some(bits),
            _ => None,
        }
    }

    /// A new block without instructions that ends its threads.
    pub fn add_block(&mut self) -> BlockId {
        let id = BlockId::new(self.blocks.len());
        self.blocks.push(Block { params: Vec::new(), insts: Vec::new(), terminator: Terminator::Exit });
        id
    }

    pub fn add_block_param(&mut self, block: BlockId, ty: Type) -> Value {
        let index = self.blocks[block.index()].params.len() as u32;
        let value = self.add_value(ty, Definition::Param { block, index });
        self.blocks[block.index()].params.push(value);
        value
    }

    /// A new value; the caller sees to its definition.
    pub fn add_value(&mut self, ty: Type, definition: Definition) -> Value {
        let value = Value::new(self.values.len());
        self.values.push(ValueData { ty, definition });
        value
    }

    /// An instruction in no block yet, with all its results.
    pub fn add_inst(&mut self, inst: Inst, line: u32) -> InstId {
        let id = InstId::new(self.insts.len());
        let first_result = Value::new(self.values.len());
        let mut result_count = 0;
        inst.result_types(|ty| {
            let definition = Definition::Result { inst: id, index: result_count };
            self.values.push(ValueData { ty, definition });
            result_count += 1;
        });
        self.insts.push(InstData { inst, first_result, result_count, line });
        id
    }

    /// An instruction at the end of a block.
    pub fn push(&mut self, block: BlockId, inst: Inst, line: u32) -> InstId {
        let id = self.add_inst(inst, line);
        self.blocks[block.index()].insts.push(id);
        id
    }

    /// An atomic whose old value is not used (`red`).
    pub fn push_without_result(&mut self, block: BlockId, inst: Inst, line: u32) -> InstId {
        debug_assert!(matches!(inst, Inst::Atomic { .. }));
        let id = InstId::new(self.insts.len());
        let first_result = Value::new(self.values.len());
        self.insts.push(InstData { inst, first_result, result_count: 0, line });
        self.blocks[block.index()].insts.push(id);
        id
    }
}
