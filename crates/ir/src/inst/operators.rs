//! What instructions of one kind do: arithmetic, comparisons, conversions, what lanes do together.

use crate::types::Type;

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
    /// Gives the bits another type of the same width.
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
    /// One or two numbers in bfloat16, added as [`AtomicOp::HalfAdd`] adds halves.
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
