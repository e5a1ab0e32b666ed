//! Where an instruction reads and writes, and in which order others see it.

use crate::types::{Type, Value};

/// The operand of a memory access: where, in which space, plus a constant.
///
/// `addr` is I64 in [`Space::Generic`], [`Space::Global`] and [`Space::Const`], where it is the
/// address itself, and I32 in the windows [`Space::Shared`], [`Space::Local`], [`Space::Param`],
/// where it is an offset from the window's start (unsigned; `addr + offset` wraps at 32 bits before
/// it is checked against the window's size).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryOperand {
    pub space: Space,
    pub addr: Value,
    pub offset: i32,
}

/// State spaces. Global and Const are the generic address space with a promise; the other three are
/// windows into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    Generic,
    Global,
    /// Read-only module variables.
    Const,
    /// The block's shared memory: static part first, dynamic part at
    /// [`crate::SharedLayout::dynamic_offset`].
    Shared,
    /// The thread's own frame of [`crate::Kernel::local_bytes`] bytes, and behind it the stack
    /// where the kernel needs one ([`crate::Kernel::needs_stack`]): consecutive for one thread.
    Local,
    /// The launch's parameter block, read-only, the same for all threads.
    Param,
}

impl Space {
    /// The type of an address in this space.
    pub fn address_type(self) -> Type {
        match self {
            Space::Generic | Space::Global | Space::Const => Type::I64,
            Space::Shared | Space::Local | Space::Param => Type::I32,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Window {
    /// Uniform within a block.
    Shared,
    /// Affine: lanes are a constant number of bytes apart that the back end chooses.
    Local,
    /// Uniform within a launch.
    Param,
}

/// Ordering and scope of an access (PTX ISA, "Memory Consistency Model").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryOrder {
    pub ordering: Ordering,
    pub scope: Scope,
}

impl MemoryOrder {
    pub const WEAK: MemoryOrder = MemoryOrder { ordering: Ordering::Weak, scope: Scope::Block };

    pub const INVARIANT: MemoryOrder = MemoryOrder { ordering: Ordering::Invariant, scope: Scope::Block };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ordering {
    /// Loads only: memory that is not written while the kernel runs (`ld.const`, `ld.param`,
    /// `ld.global.nc`).
    Invariant,
    Weak,
    /// Not merged, split or reordered with other volatile accesses of the thread.
    Volatile,
    Relaxed,
    Acquire,
    Release,
    AcquireRelease,
}

/// Who is to see an ordered access. Order of variants: from narrow to wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    Block,
    Cluster,
    Device,
    System,
}
