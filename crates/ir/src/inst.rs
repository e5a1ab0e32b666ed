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

use crate::matrix::MatrixForm;
use crate::texture::Sampling;
use crate::types::{GlobalId, Type, Value};

/// One instruction. The types of its results are [`Inst::result_types`]; how many results an
/// instruction *has* in a kernel is in [`crate::InstData`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Inst {
    // ---- Values
    // -------------------------------------------------------------------------------------------
    /// The same bits in all lanes. Floats are given by their bits.
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
        place: Place,
        ty: Type,
        count: u8,
        order: MemoryOrder,
        guard: Option<Value>,
    },
    /// Consecutive elements (1, 2, 4 or 8 values of type `ty`) to `addr + offset`.
    Store {
        place: Place,
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
        place: Place,
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
    /// The lanes that execute this together, I32. Not collective: it waits for nobody.
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

/// The operand of a memory access: where, in which space, plus a constant.
///
/// `addr` is I64 in [`Space::Generic`], [`Space::Global`] and [`Space::Const`], where it is the
/// address itself, and I32 in the windows [`Space::Shared`], [`Space::Local`], [`Space::Param`],
/// where it is an offset from the window's start (unsigned; `addr + offset` wraps at 32 bits before
/// it is checked against the window's size).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
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
    /// Loads only: memory that nobody writes while the kernel runs (`ld.const`, `ld.param`,
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

/// One operand to a result of the same type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UnaryOp {
    /// Two's complement negation, I8-I64.
    Neg,
    /// All bits inverted, I1-I64.
    Not,
    /// Signed absolute value; MIN stays MIN.
    Abs,
    /// Leading zeros, I32 and I64; the width for 0. The result has the operand's type.
    Clz,
    /// Set bits, I32 and I64.
    Popc,
    /// Bits reversed, I32 and I64.
    Brev,
    /// Sign bit flipped, NaNs included.
    FNeg,
    /// Sign bit cleared, NaNs included.
    FAbs,
    /// A subnormal becomes a zero of its sign (`.ftz`), F32.
    FlushSubnormal,
    // Approximations, F32 and (Rcp, Rsqrt) F64, within the error that PTX ISA states for `.approx`.
    // Correctly rounded results are always allowed.
    Rcp,
    Rsqrt,
    /// 2 to the power.
    Ex2,
    /// Logarithm to base 2.
    Lg2,
    Sin,
    Cos,
    Tanh,
}

/// Two operands to a result, none of them rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BinaryOp {
    Add,
    Sub,
    /// The low half of the product.
    Mul,
    /// The high half of the signed product, I16-I64.
    MulHiS,
    MulHiU,
    DivS,
    DivU,
    RemS,
    RemU,
    And,
    Or,
    Xor,
    /// Shifts take an unsigned I32 amount; amounts of the width or more shift everything out (fill
    /// with the sign in [`BinaryOp::ShrS`]), as in PTX.
    Shl,
    ShrS,
    ShrU,
    MinS,
    MaxS,
    MinU,
    MaxU,
    /// IEEE 754-2019 minimumNumber: a NaN loses against a number, -0 is below +0, two NaNs give the
    /// canonical NaN.
    FMin,
    FMax,
    /// IEEE 754-2019 minimum: a NaN wins (`.NaN`), canonical.
    FMinNan,
    FMaxNan,
}

impl BinaryOp {
    pub fn is_shift(self) -> bool {
        matches!(self, BinaryOp::Shl | BinaryOp::ShrS | BinaryOp::ShrU)
    }

    pub fn is_float(self) -> bool {
        matches!(self, BinaryOp::FMin | BinaryOp::FMax | BinaryOp::FMinNan | BinaryOp::FMaxNan)
    }

    pub fn is_commutative(self) -> bool {
        use BinaryOp::*;
        matches!(self, Add | Mul | MulHiS | MulHiU | And | Or | Xor | MinS | MaxS | MinU | MaxU)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FloatOp {
    Add,
    Sub,
    Mul,
    Div,
}

/// Direction of rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rounding {
    /// To nearest, ties to even: `.rn`.
    Near,
    /// Towards zero: `.rz`.
    Zero,
    /// Towards minus infinity: `.rm`.
    Down,
    /// Towards plus infinity: `.rp`.
    Up,
    /// To nearest, ties away from zero: `.rna`. Float to integral conversions and tf32 only.
    NearAway,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IntCond {
    Eq,
    Ne,
    LtS,
    LeS,
    GtS,
    GeS,
    LtU,
    LeU,
    GtU,
    GeU,
}

/// Ordered conditions are false when an operand is NaN, unordered ones (`U`) true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FloatCond {
    Eq,
    /// Ordered and different.
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    EqU,
    /// Unordered or different: the negation of [`FloatCond::Eq`].
    NeU,
    LtU,
    LeU,
    GtU,
    GeU,
    /// Neither is NaN.
    Num,
    /// One is NaN.
    Nan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ConvertOp {
    /// Low bits of a wider integer; to I1 too, where it is bit 0.
    Truncate,
    SignExtend,
    /// From I1 too.
    ZeroExtend,
    /// The same bits as another type of the same width.
    Bitcast,
    /// F32 to F64 (exact) or F64 to F32.
    FloatToFloat(Rounding),
    /// The bits of a half (I16) to F32 or F64, exact.
    HalfToFloat,
    /// The bits of a bfloat16 (I16) to F32 or F64, exact.
    BfloatToFloat,
    /// F32 or F64 to the bits of a half (I16), one rounding; overflow to infinity or the largest by
    /// direction.
    FloatToHalf(Rounding),
    /// F32 or F64 to the bits of a bfloat16 (I16).
    FloatToBfloat(Rounding),
    /// I8-I64 to F32 or F64.
    SignedToFloat(Rounding),
    UnsignedToFloat(Rounding),
    /// F32 or F64 to I8-I64, rounded in the given direction, then clamped to the range. NaN gives 0
    /// from F32 to at most 32 bits and only the top bit set otherwise (PTX ISA, "cvt"), for both
    /// signs.
    FloatToSigned(Rounding),
    FloatToUnsigned(Rounding),
    /// To an integral float of the same type.
    RoundToIntegral(Rounding),
    /// F32 to F32 with the low 13 mantissa bits cleared after rounding (tf32).
    FloatToTf32(Rounding),
}

/// Special registers (PTX ISA, "Special Registers"). The lowering derives lane masks from the lane,
/// and a block's place in its cluster from the block's index and the cluster's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SpecialRegister {
    TidX,
    TidY,
    TidZ,
    NtidX,
    NtidY,
    NtidZ,
    CtaidX,
    CtaidY,
    CtaidZ,
    NctaidX,
    NctaidY,
    NctaidZ,
    /// Blocks of a cluster; 1 in a launch without clusters.
    ClusterNctaidX,
    ClusterNctaidY,
    ClusterNctaidZ,
    /// 1 where the launch or the kernel states a cluster size.
    IsExplicitCluster,
    /// Bytes from the shared memory of one block to that of the next in the cluster, by rank.
    ClusterSharedStride,
    LaneId,
    WarpId,
    Nwarpid,
    SmId,
    Nsmid,
    GridId,
    Clock,
    Clock64,
    GlobalTimer,
    DynamicSharedBytes,
    TotalSharedBytes,
    /// The thread's local memory: its frame, and its stack where the kernel needs one.
    LocalBytes,
    /// `%envregN`, 0 to 31. Together 1 and 2 are the address of the grid barrier's workspace in
    /// cooperative launches.
    EnvReg(u8),
}

impl SpecialRegister {
    pub fn ty(self) -> Type {
        match self {
            SpecialRegister::GridId
            | SpecialRegister::Clock64
            | SpecialRegister::GlobalTimer
            | SpecialRegister::ClusterSharedStride => Type::I64,
            _ => Type::I32,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AtomicOp {
    Add,
    And,
    Or,
    Xor,
    /// `old >= arg ? 0 : old + 1`, unsigned.
    Inc,
    /// `old == 0 || old > arg ? arg : old - 1`, unsigned.
    Dec,
    MinS,
    MaxS,
    MinU,
    MaxU,
    /// Unconditional, or (with `compare`) only where the old value equals it.
    Exchange,
    /// F32 or F64 by the access's type.
    FAdd,
    /// One or two halves as I16 or I32, each added with one rounding; the whole is one step.
    HalfAdd,
    /// The same with bfloat16.
    BfloatAdd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ShuffleMode {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum VoteKind {
    All,
    Any,
    Uniform,
    Ballot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MatchKind {
    Any,
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReduxOp {
    Add,
    And,
    Or,
    Xor,
    MinS,
    MaxS,
    MinU,
    MaxU,
    FMin,
    FMax,
    FMinNan,
    FMaxNan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BarrierKind {
    /// Wait until all have come.
    Sync,
    /// Be counted without waiting.
    Arrive,
    ReduceAnd,
    ReduceOr,
    ReducePopc,
}

/// Functions that device code calls and the runtime brings. Pointers are generic addresses (I64).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RuntimeFunction {
    /// `(format: I64, arguments: I64) -> I32`: number of arguments, -1 on failure.
    Vprintf,
    /// `(message: I64, file: I64, line: I32, function: I64, char_bytes: I64)`; does not return.
    AssertFail,
    /// `(bytes: I64) -> I64`, 0 when the heap is full.
    Malloc,
    /// `(pointer: I64)`.
    Free,
    /// `(surface: I64, what: I32, coordinates: 3 x I32) -> I64`: up to eight bytes, by a
    /// [`crate::texture::SurfaceAccess`].
    SurfaceLoad,
    /// `(surface: I64, what: I32, coordinates: 3 x I32, low: I64, high: I64)`.
    SurfaceStore,
    /// `(what: I32)`, an index into [`crate::Kernel::missing`]; does not return.
    Missing,
    /// `()`: a call does not fit into the thread's stack; does not return.
    StackOverflow,
    /// `(address: I64, guard: I32, site: I32, value: I64) -> I1`: whether the thread may make the
    /// memory access that follows. `site` is an index into [`crate::Kernel::accesses`], and the
    /// address is an offset in the windows; without a guard `guard` is 1. `value` is what a store
    /// of one element writes.
    CheckAccess,
    /// `(counter: I32)`: adds the number of threads that execute it together to a counter of the
    /// launch, an index into [`crate::Kernel::counters`]. The argument is a constant.
    CountThreads,
}

impl RuntimeFunction {
    /// Types of the arguments.
    pub fn params(self) -> &'static [Type] {
        match self {
            RuntimeFunction::Vprintf => &[Type::I64, Type::I64],
            RuntimeFunction::AssertFail => &[Type::I64, Type::I64, Type::I32, Type::I64, Type::I64],
            RuntimeFunction::Malloc | RuntimeFunction::Free => &[Type::I64],
            RuntimeFunction::SurfaceLoad => &[Type::I64, Type::I32, Type::I32, Type::I32, Type::I32],
            RuntimeFunction::Missing | RuntimeFunction::CountThreads => &[Type::I32],
            RuntimeFunction::StackOverflow => &[],
            RuntimeFunction::CheckAccess => &[Type::I64, Type::I32, Type::I32, Type::I64],
            RuntimeFunction::SurfaceStore => {
                &[Type::I64, Type::I32, Type::I32, Type::I32, Type::I32, Type::I64, Type::I64]
            }
        }
    }

    pub fn result(self) -> Option<Type> {
        match self {
            RuntimeFunction::Vprintf => Some(Type::I32),
            RuntimeFunction::CheckAccess => Some(Type::I1),
            RuntimeFunction::Malloc | RuntimeFunction::SurfaceLoad => Some(Type::I64),
            RuntimeFunction::AssertFail
            | RuntimeFunction::Free
            | RuntimeFunction::SurfaceStore
            | RuntimeFunction::Missing
            | RuntimeFunction::StackOverflow
            | RuntimeFunction::CountThreads => None,
        }
    }
}

/// What an instruction may do besides giving its results; decides what passes may do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Depends on operands only: merge, move, drop freely.
    Pure,
    /// Reads what may change: drop freely, do not move across writes.
    Reads,
    /// Kept, in order.
    Writes,
}

impl Inst {
    /// Waits for all lanes of a member mask or for other warps. [`crate::passes::split_at_sync`]
    /// puts such an instruction first in its block (or behind one of the same mask), so a back end
    /// that gathers lanes at block starts has them together there.
    pub fn is_collective(&self) -> bool {
        matches!(
            self,
            Inst::Shuffle { .. }
                | Inst::Vote { .. }
                | Inst::Match { .. }
                | Inst::Redux { .. }
                | Inst::MatrixMultiply { .. }
                | Inst::WarpSync { .. }
                | Inst::Barrier { .. }
                | Inst::ClusterBarrier { .. }
        )
    }

    pub fn effect(&self) -> Effect {
        match self {
            Inst::Const { .. }
            | Inst::Unary { .. }
            | Inst::Binary { .. }
            | Inst::Float { .. }
            | Inst::Fma { .. }
            | Inst::Sqrt { .. }
            | Inst::Permute { .. }
            | Inst::Compare { .. }
            | Inst::FloatCompare { .. }
            | Inst::Select { .. }
            | Inst::Convert { .. }
            | Inst::GlobalAddress { .. }
            | Inst::WindowBase { .. } => Effect::Pure,
            Inst::Special { register } => match register {
                SpecialRegister::Clock | SpecialRegister::Clock64 | SpecialRegister::GlobalTimer => {
                    Effect::Writes
                }
                _ => Effect::Pure,
            },
            Inst::Load { order, .. } => match order.ordering {
                Ordering::Invariant | Ordering::Weak => Effect::Reads,
                _ => Effect::Writes,
            },
            Inst::Sample { .. } | Inst::CallRuntime { function: RuntimeFunction::SurfaceLoad, .. } => {
                Effect::Reads
            }
            Inst::ActiveMask => Effect::Writes,
            Inst::Store { .. }
            | Inst::Atomic { .. }
            | Inst::Fence { .. }
            | Inst::Shuffle { .. }
            | Inst::Vote { .. }
            | Inst::Match { .. }
            | Inst::Redux { .. }
            | Inst::MatrixMultiply { .. }
            | Inst::WarpSync { .. }
            | Inst::Barrier { .. }
            | Inst::ClusterBarrier { .. }
            | Inst::Nanosleep { .. }
            | Inst::CallRuntime { .. } => Effect::Writes,
        }
    }

    /// Calls `f` with the type of each result, in order.
    pub fn result_types(&self, mut f: impl FnMut(Type)) {
        match self {
            Inst::Const { ty, .. }
            | Inst::Unary { ty, .. }
            | Inst::Binary { ty, .. }
            | Inst::Float { ty, .. }
            | Inst::Fma { ty, .. }
            | Inst::Sqrt { ty, .. }
            | Inst::Select { ty, .. }
            | Inst::Redux { ty, .. }
            // Without a result it is `red`: see `Kernel::push_without_result`.
            | Inst::Atomic { ty, .. } => f(*ty),
            Inst::Permute { .. } | Inst::ActiveMask => f(Type::I32),
            Inst::Compare { .. } | Inst::FloatCompare { .. } => f(Type::I1),
            Inst::Convert { to, .. } => f(*to),
            Inst::Special { register } => f(register.ty()),
            Inst::GlobalAddress { .. } | Inst::WindowBase { .. } => f(Type::I64),
            Inst::Load { ty, count, .. } => (0..*count).for_each(|_| f(*ty)),
            Inst::Sample { .. } => (0..4).for_each(|_| f(Type::I32)),
            Inst::MatrixMultiply { form, .. } => (0..form.sums()).for_each(|_| f(form.sum_type())),
            Inst::Shuffle { .. } => {
                f(Type::I32);
                f(Type::I1);
            }
            Inst::Vote { kind, .. } => f(if *kind == VoteKind::Ballot { Type::I32 } else { Type::I1 }),
            Inst::Match { kind, .. } => {
                f(Type::I32);
                if *kind == MatchKind::All {
                    f(Type::I1);
                }
            }
            Inst::Barrier { kind, .. } => match kind {
                BarrierKind::Sync | BarrierKind::Arrive => {}
                BarrierKind::ReduceAnd | BarrierKind::ReduceOr => f(Type::I1),
                BarrierKind::ReducePopc => f(Type::I32),
            },
            Inst::CallRuntime { function, .. } => function.result().into_iter().for_each(f),
            Inst::Store { .. }
            | Inst::Fence { .. }
            | Inst::WarpSync { .. }
            | Inst::ClusterBarrier { .. }
            | Inst::Nanosleep { .. } => {}
        }
    }

    /// Calls `f` with each operand, in the order of the text form.
    pub fn for_each_arg(&self, mut f: impl FnMut(Value)) {
        match self {
            Inst::Const { .. }
            | Inst::Special { .. }
            | Inst::GlobalAddress { .. }
            | Inst::WindowBase { .. }
            | Inst::Fence { .. }
            | Inst::ClusterBarrier { .. }
            | Inst::ActiveMask => {}
            Inst::Unary { arg, .. } | Inst::Sqrt { arg, .. } | Inst::Convert { arg, .. } => f(*arg),
            Inst::Binary { args, .. }
            | Inst::Float { args, .. }
            | Inst::Compare { args, .. }
            | Inst::FloatCompare { args, .. } => args.iter().copied().for_each(f),
            Inst::Fma { args, .. } | Inst::Permute { args } => args.iter().copied().for_each(f),
            Inst::Select { cond, args, .. } => [*cond, args[0], args[1]].into_iter().for_each(f),
            Inst::Load { place, guard, .. } => {
                f(place.addr);
                guard.iter().copied().for_each(f);
            }
            Inst::Store { place, values, guard, .. } => {
                f(place.addr);
                values.iter().copied().for_each(&mut f);
                guard.iter().copied().for_each(f);
            }
            Inst::Atomic { place, arg, compare, guard, .. } => {
                f(place.addr);
                f(*arg);
                compare.iter().copied().for_each(&mut f);
                guard.iter().copied().for_each(f);
            }
            Inst::Shuffle { value, lane, clamp, mask, .. } => {
                [*value, *lane, *clamp, *mask].into_iter().for_each(f)
            }
            Inst::Vote { predicate, mask, .. } => [*predicate, *mask].into_iter().for_each(f),
            Inst::Match { value, mask, .. } | Inst::Redux { value, mask, .. } => {
                [*value, *mask].into_iter().for_each(f);
            }
            Inst::MatrixMultiply { args, mask, .. } => {
                args.iter().copied().for_each(&mut f);
                f(*mask);
            }
            Inst::WarpSync { mask } => f(*mask),
            Inst::Barrier { id, count, predicate, .. } => {
                f(*id);
                count.iter().copied().for_each(&mut f);
                predicate.iter().copied().for_each(f);
            }
            Inst::Nanosleep { nanoseconds } => f(*nanoseconds),
            Inst::Sample { object, place: [x, y, z], level, .. } => {
                [*object, *x, *y, *z, *level].into_iter().for_each(f)
            }
            Inst::CallRuntime { args, .. } => args.iter().copied().for_each(f),
        }
    }

    /// Calls `f` with a reference to each operand, in the order of [`Inst::for_each_arg`].
    pub fn for_each_arg_mut(&mut self, mut f: impl FnMut(&mut Value)) {
        match self {
            Inst::Const { .. }
            | Inst::Special { .. }
            | Inst::GlobalAddress { .. }
            | Inst::WindowBase { .. }
            | Inst::Fence { .. }
            | Inst::ClusterBarrier { .. }
            | Inst::ActiveMask => {}
            Inst::Unary { arg, .. } | Inst::Sqrt { arg, .. } | Inst::Convert { arg, .. } => f(arg),
            Inst::Binary { args, .. }
            | Inst::Float { args, .. }
            | Inst::Compare { args, .. }
            | Inst::FloatCompare { args, .. } => args.iter_mut().for_each(f),
            Inst::Fma { args, .. } | Inst::Permute { args } => args.iter_mut().for_each(f),
            Inst::Select { cond, args, .. } => {
                f(cond);
                args.iter_mut().for_each(f);
            }
            Inst::Load { place, guard, .. } => {
                f(&mut place.addr);
                guard.iter_mut().for_each(f);
            }
            Inst::Store { place, values, guard, .. } => {
                f(&mut place.addr);
                values.iter_mut().for_each(&mut f);
                guard.iter_mut().for_each(f);
            }
            Inst::Atomic { place, arg, compare, guard, .. } => {
                f(&mut place.addr);
                f(arg);
                compare.iter_mut().for_each(&mut f);
                guard.iter_mut().for_each(f);
            }
            Inst::Shuffle { value, lane, clamp, mask, .. } => {
                [value, lane, clamp, mask].into_iter().for_each(f)
            }
            Inst::Vote { predicate, mask, .. } => [predicate, mask].into_iter().for_each(f),
            Inst::Match { value, mask, .. } | Inst::Redux { value, mask, .. } => {
                [value, mask].into_iter().for_each(f);
            }
            Inst::MatrixMultiply { args, mask, .. } => {
                args.iter_mut().for_each(&mut f);
                f(mask);
            }
            Inst::WarpSync { mask } => f(mask),
            Inst::Barrier { id, count, predicate, .. } => {
                f(id);
                count.iter_mut().for_each(&mut f);
                predicate.iter_mut().for_each(f);
            }
            Inst::Nanosleep { nanoseconds } => f(nanoseconds),
            Inst::Sample { object, place: [x, y, z], level, .. } => {
                [object, x, y, z, level].into_iter().for_each(f)
            }
            Inst::CallRuntime { args, .. } => args.iter_mut().for_each(f),
        }
    }
}
