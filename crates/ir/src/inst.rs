//! The instructions.
//!
//! Few and orthogonal: what PTX says with modifiers (saturation, subnormal flushing, wide products,
//! carries, bit fields, funnel shifts, packed halves) the lowering spells out in these. Every
//! instruction acts on each active lane by itself, but for the *collective* ones
//! ([`Inst::is_collective`]).
//!
//! **All pure instructions are total**: whatever their operands, in active and inactive lanes, they
//! give a value and do not trap. Integer division by zero gives all ones, the remainder then is the
//! dividend; `MIN / -1` wraps.

mod facts;
mod memory;
mod operators;

use crate::matrix::MatrixForm;
use crate::texture::Sampling;
use crate::types::{GlobalId, Type, Value};

pub use facts::Effect;
pub use memory::{MemoryOperand, MemoryOrder, Ordering, Scope, Space, Window};
pub use operators::{
    AtomicOp, BarrierKind, BinaryOp, ConvertOp, FloatCond, FloatOp, IntCond, MatchKind, ReduxOp, Rounding,
    RuntimeFunction, ShuffleMode, SpecialRegister, UnaryOp, VoteKind,
};

/// One instruction. The types of its results are [`Inst::result_types`]; how many results an
/// instruction *has* in a kernel is in [`crate::InstData`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Inst {
    // ---- Values
    // -------------------------------------------------------------------------------------------
    /// A value with equal bits in all lanes. Floats are given by their bits.
    Const {
        ty: Type,
        bits: u64,
    },
    Unary {
        op: UnaryOp,
        ty: Type,
        arg: Value,
    },
    /// Both operands have type `ty`, but the second of a shift, which is I32.
    Binary {
        op: BinaryOp,
        ty: Type,
        args: [Value; 2],
    },
    /// IEEE arithmetic, correctly rounded in the given direction. Subnormals are kept.
    Float {
        op: FloatOp,
        rounding: Rounding,
        ty: Type,
        args: [Value; 2],
    },
    /// `args[0] * args[1] + args[2]` with one rounding.
    Fma {
        rounding: Rounding,
        ty: Type,
        args: [Value; 3],
    },
    /// Square root, correctly rounded.
    Sqrt {
        rounding: Rounding,
        ty: Type,
        arg: Value,
    },
    /// Four bytes picked out of the eight in `args[0]` (bytes 0-3) and `args[1]` (4-7), by the four
    /// nibbles of `args[2]` whose bit 3 replicates the byte's sign. All I32. PTX ISA, "prmt",
    /// default mode.
    Permute {
        args: [Value; 3],
    },
    /// Integers of type `ty` (I1 included, unsigned) to I1.
    Compare {
        cond: IntCond,
        ty: Type,
        args: [Value; 2],
    },
    /// Floats of type `ty` to I1.
    FloatCompare {
        cond: FloatCond,
        ty: Type,
        args: [Value; 2],
    },
    /// `args[0]` where `cond` is 1, else `args[1]`.
    Select {
        ty: Type,
        cond: Value,
        args: [Value; 2],
    },
    Convert {
        op: ConvertOp,
        from: Type,
        to: Type,
        arg: Value,
    },
    /// What differs per launch, block, warp or thread. I32, or I64 where [`SpecialRegister::ty`]
    /// says so.
    Special {
        register: SpecialRegister,
    },

    // ---- Addresses
    // ----------------------------------------------------------------------------------------
    /// The address of a module variable: I64, decided when the module is loaded.
    GlobalAddress {
        global: GlobalId,
    },
    /// The generic address (I64) of the first byte of a window: block's shared memory, thread's
    /// local frame or the launch's parameter block. See [`Space`].
    WindowBase {
        window: Window,
    },

    // ---- Memory
    // -------------------------------------------------------------------------------------------
    /// `count` (1, 2, 4 or 8) consecutive elements from `addr + offset`, as `count` results. Where
    /// `guard` is 0 nothing is read and the results are 0.
    Load {
        place: MemoryOperand,
        ty: Type,
        count: u8,
        order: MemoryOrder,
        guard: Option<Value>,
    },
    /// Consecutive elements (1, 2, 4 or 8 values of type `ty`) to `addr + offset`.
    Store {
        place: MemoryOperand,
        ty: Type,
        values: Box<[Value]>,
        order: MemoryOrder,
        guard: Option<Value>,
    },
    /// Read, modify, write as one step. With a result (0 where `guard` is 0) it is `atom`, the old
    /// value; without one it is `red`. `compare` is the expected value of [`AtomicOp::Exchange`]
    /// with comparison and None otherwise.
    Atomic {
        op: AtomicOp,
        place: MemoryOperand,
        ty: Type,
        arg: Value,
        compare: Option<Value>,
        order: MemoryOrder,
        guard: Option<Value>,
    },
    /// A texture instruction: four results, which are integers or the bits of floats as the texture
    /// says. `object` (I64) is the texture's number; `place` and `level` are I32, integers or the
    /// bits of floats as `sampling` says.
    Sample {
        sampling: Sampling,
        object: Value,
        place: [Value; 3],
        level: Value,
    },
    /// Orders this thread's accesses for others within `scope`.
    Fence {
        scope: Scope,
    },

    // ---- Lanes together (collective): see `Inst::is_collective`
    // -----------------------------------------------
    /// `shfl.sync`: results are the value (I32) and whether the source lane was in range (I1).
    /// `lane` and `clamp` are PTX's operands b and c (I32), `mask` the member mask (I32).
    Shuffle {
        mode: ShuffleMode,
        value: Value,
        lane: Value,
        clamp: Value,
        mask: Value,
    },
    /// `vote.sync`: I1, or I32 for [`VoteKind::Ballot`].
    Vote {
        kind: VoteKind,
        predicate: Value,
        mask: Value,
    },
    /// `match.sync` on I32 or I64. Any: one I32 mask. All: the I32 mask (0 when they differ) and an
    /// I1.
    Match {
        kind: MatchKind,
        ty: Type,
        value: Value,
        mask: Value,
    },
    /// `redux.sync` over I32 (F32 for the FMin and FMax forms).
    Redux {
        op: ReduxOp,
        ty: Type,
        value: Value,
        mask: Value,
    },
    /// `mma.sync`: D = A x B + C, one sum after the other, each step with one rounding in the order
    /// of K. `args` are the registers of A and B (I32), then those of C; the results are those of
    /// D.
    MatrixMultiply {
        form: MatrixForm,
        args: Box<[Value]>,
        mask: Value,
    },
    /// `bar.warp.sync`.
    WarpSync {
        mask: Value,
    },
    /// The lanes that execute this together, I32. Not collective: it waits for no other lane.
    ActiveMask,
    /// `barrier.cta`: `id` and `count` are I32; without a count all threads of the block take part.
    /// `predicate` is there for the reductions, whose result is I1 (I32 for popc).
    Barrier {
        kind: BarrierKind,
        id: Value,
        count: Option<Value>,
        predicate: Option<Value>,
    },
    /// `barrier.cluster`: be counted without waiting, or wait until all threads of the cluster that
    /// have not exited have been counted.
    ClusterBarrier {
        waits: bool,
    },

    // ---- The rest
    // -----------------------------------------------------------------------------------------
    /// Let other warps run; up to `nanoseconds` (I32).
    Nanosleep {
        nanoseconds: Value,
    },
    /// A function that the runtime brings.
    CallRuntime {
        function: RuntimeFunction,
        args: Box<[Value]>,
    },
}
