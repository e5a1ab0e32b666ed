//! The words of the text form: one table per enumeration, read in both directions.

use crate::{
    AtomicOp, BarrierKind, BinaryOp, FloatCond, FloatOp, IntCond, MatchKind, MatrixElement, Ordering,
    ReduxOp, Rounding, RuntimeFunction, Scope, ShuffleMode, Space, SpecialRegister, Type, UnaryOp, VoteKind,
    Window,
};

/// An enumeration with a word for each variant.
pub(super) trait Named: Copy + PartialEq + 'static {
    const NAMES: &'static [(&'static str, Self)];

    /// The macro below refuses an enumeration with a variant that is not listed.
    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, variant)| *variant == self).map_or("?", |(name, _)| name)
    }

    fn from_name(text: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, variant)| *variant)
    }
}

macro_rules! named {
    ($($enumeration:ident { $($name:literal $variant:ident,)* })*) => {$(
        impl Named for $enumeration {
            const NAMES: &'static [(&'static str, Self)] = &[$(($name, $enumeration::$variant),)*];
        }

        const _: () = {
            // Fails to compile when a variant has no word.
            #[allow(dead_code, reason = "only the compiler's check for completeness is wanted")]
            fn complete(value: $enumeration) {
                match value { $($enumeration::$variant => {})* }
            }
        };
    )*};
}

named! {
    Type { "i1" I1, "i8" I8, "i16" I16, "i32" I32, "i64" I64, "f32" F32, "f64" F64, }
    UnaryOp {
        "neg" Neg, "not" Not, "abs" Abs, "clz" Clz, "popc" Popc, "brev" Brev, "fneg" FNeg, "fabs" FAbs,
        "flush" FlushSubnormal, "rcp" Rcp, "rsqrt" Rsqrt, "ex2" Ex2, "lg2" Lg2, "sin" Sin, "cos" Cos, "tanh" Tanh,
    }
    BinaryOp {
        "add" Add, "sub" Sub, "mul" Mul, "mulhi_s" MulHiS, "mulhi_u" MulHiU, "div_s" DivS, "div_u" DivU,
        "rem_s" RemS, "rem_u" RemU, "and" And, "or" Or, "xor" Xor, "shl" Shl, "shr_s" ShrS, "shr_u" ShrU,
        "min_s" MinS, "max_s" MaxS, "min_u" MinU, "max_u" MaxU, "fmin" FMin, "fmax" FMax, "fmin_nan" FMinNan,
        "fmax_nan" FMaxNan,
    }
    FloatOp { "fadd" Add, "fsub" Sub, "fmul" Mul, "fdiv" Div, }
    Rounding { "rn" Near, "rz" Zero, "rm" Down, "rp" Up, "rna" NearAway, }
    IntCond {
        "eq" Eq, "ne" Ne, "lt_s" LtS, "le_s" LeS, "gt_s" GtS, "ge_s" GeS, "lt_u" LtU, "le_u" LeU, "gt_u" GtU,
        "ge_u" GeU,
    }
    FloatCond {
        "eq" Eq, "ne" Ne, "lt" Lt, "le" Le, "gt" Gt, "ge" Ge, "equ" EqU, "neu" NeU, "ltu" LtU, "leu" LeU,
        "gtu" GtU, "geu" GeU, "num" Num, "nan" Nan,
    }
    Space {
        "generic" Generic, "global" Global, "const" Const, "shared" Shared, "local" Local, "param" Param,
    }
    Window { "shared" Shared, "local" Local, "param" Param, }
    Ordering {
        "invariant" Invariant, "weak" Weak, "volatile" Volatile, "relaxed" Relaxed, "acquire" Acquire,
        "release" Release, "acq_rel" AcquireRelease,
    }
    Scope { "block" Block, "cluster" Cluster, "device" Device, "system" System, }
    AtomicOp {
        "add" Add, "and" And, "or" Or, "xor" Xor, "inc" Inc, "dec" Dec, "min_s" MinS, "max_s" MaxS,
        "min_u" MinU, "max_u" MaxU, "exch" Exchange, "fadd" FAdd, "hadd" HalfAdd, "bfadd" BfloatAdd,
    }
    MatrixElement { "half" Half, "bfloat" Bfloat, "tf32" Tf32, "s8" S8, "u8" U8, }
    ShuffleMode { "up" Up, "down" Down, "bfly" Butterfly, "idx" Index, }
    VoteKind { "all" All, "any" Any, "uni" Uniform, "ballot" Ballot, }
    MatchKind { "any" Any, "all" All, }
    ReduxOp {
        "add" Add, "and" And, "or" Or, "xor" Xor, "min_s" MinS, "max_s" MaxS, "min_u" MinU, "max_u" MaxU,
        "fmin" FMin, "fmax" FMax, "fmin_nan" FMinNan, "fmax_nan" FMaxNan,
    }
    BarrierKind {
        "sync" Sync, "arrive" Arrive, "red_and" ReduceAnd, "red_or" ReduceOr, "red_popc" ReducePopc,
    }
    RuntimeFunction {
        "vprintf" Vprintf, "assertfail" AssertFail, "malloc" Malloc, "free" Free, "suld" SurfaceLoad,
        "sust" SurfaceStore, "missing" Missing, "stack_overflow" StackOverflow,
        "check_access" CheckAccess, "count_threads" CountThreads,
    }
}

/// Special registers but `envreg`, which carries a number.
const REGISTERS: &[(&str, SpecialRegister)] = &[
    ("tid_x", SpecialRegister::TidX),
    ("tid_y", SpecialRegister::TidY),
    ("tid_z", SpecialRegister::TidZ),
    ("ntid_x", SpecialRegister::NtidX),
    ("ntid_y", SpecialRegister::NtidY),
    ("ntid_z", SpecialRegister::NtidZ),
    ("ctaid_x", SpecialRegister::CtaidX),
    ("ctaid_y", SpecialRegister::CtaidY),
    ("ctaid_z", SpecialRegister::CtaidZ),
    ("nctaid_x", SpecialRegister::NctaidX),
    ("nctaid_y", SpecialRegister::NctaidY),
    ("nctaid_z", SpecialRegister::NctaidZ),
    ("cluster_nctaid_x", SpecialRegister::ClusterNctaidX),
    ("cluster_nctaid_y", SpecialRegister::ClusterNctaidY),
    ("cluster_nctaid_z", SpecialRegister::ClusterNctaidZ),
    ("is_explicit_cluster", SpecialRegister::IsExplicitCluster),
    ("cluster_shared_stride", SpecialRegister::ClusterSharedStride),
    ("laneid", SpecialRegister::LaneId),
    ("warpid", SpecialRegister::WarpId),
    ("nwarpid", SpecialRegister::Nwarpid),
    ("smid", SpecialRegister::SmId),
    ("nsmid", SpecialRegister::Nsmid),
    ("gridid", SpecialRegister::GridId),
    ("clock", SpecialRegister::Clock),
    ("clock64", SpecialRegister::Clock64),
    ("globaltimer", SpecialRegister::GlobalTimer),
    ("dynamic_shared_bytes", SpecialRegister::DynamicSharedBytes),
    ("total_shared_bytes", SpecialRegister::TotalSharedBytes),
    ("local_bytes", SpecialRegister::LocalBytes),
];

pub(super) fn register_name(register: SpecialRegister) -> String {
    match register {
        SpecialRegister::EnvReg(index) => format!("envreg{index}"),
        _ => REGISTERS.iter().find(|(_, known)| *known == register).map_or("?", |(name, _)| name).to_owned(),
    }
}

pub(super) fn register_from_name(text: &str) -> Option<SpecialRegister> {
    if let Some(index) = text.strip_prefix("envreg") {
        return index.parse().ok().filter(|index| *index < 32).map(SpecialRegister::EnvReg);
    }
    REGISTERS.iter().find(|(name, _)| *name == text).map(|(_, register)| *register)
}
