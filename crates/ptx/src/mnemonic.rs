//! The words of PTX: types, state spaces, opcodes, modifiers, special registers.
//!
//! Each is a table from spelling to variant. Opcodes and modifiers that no table knows are kept as
//! text, since a module is worth loading for its other entries; who lowers one gives the error.

use std::fmt;

/// Declares an enum of words, with `from_text` and `text`.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($variant,)* }

        impl $name {
            /// The variant with this spelling (without its leading dot).
            pub fn from_text(text: &str) -> Option<$name> {
                match text { $($text => Some($name::$variant),)* _ => None }
            }

            /// The spelling, without a leading dot.
            pub fn text(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.text())
            }
        }
    };
}

/// Declares an enum of words: the variants of the table, then those that hold something.
macro_rules! open_words {
    ($(#[$doc:meta])* $name:ident { $($(#[$payload_doc:meta])* $payload:ident($of:ty),)* } { $($variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($variant,)*
            $($(#[$payload_doc])* $payload($of),)*
            /// A word in no table, as written.
            Other(Box<str>),
        }

        impl $name {
            /// The variant with this spelling (without its leading dot); [`Self::Other`] where none
            /// has it.
            pub fn from_text(text: &str) -> $name {
                match text {
                    $($text => $name::$variant,)*
                    _ => {
                        $(if let Some(inner) = <$of>::from_text(text) {
                            return $name::$payload(inner);
                        })*
                        $name::Other(text.into())
                    }
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $($name::$variant => f.write_str($text),)*
                    $($name::$payload(inner) => inner.fmt(f),)*
                    $name::Other(text) => f.write_str(text),
                }
            }
        }
    };
}

words! {
    /// Types (PTX ISA, "Fundamental Types", "Alternate Floating-Point Data Formats", "Packed Data
    /// Types").
    Type {
        B8 = "b8", B16 = "b16", B32 = "b32", B64 = "b64", B128 = "b128",
        U8 = "u8", U16 = "u16", U32 = "u32", U64 = "u64",
        S8 = "s8", S16 = "s16", S32 = "s32", S64 = "s64",
        F16 = "f16", F32 = "f32", F64 = "f64",
        Bf16 = "bf16", Tf32 = "tf32",
        E4m3 = "e4m3", E5m2 = "e5m2", E2m3 = "e2m3", E3m2 = "e3m2", E2m1 = "e2m1", Ue8m0 = "ue8m0",
        U16x2 = "u16x2", S16x2 = "s16x2",
        F16x2 = "f16x2", Bf16x2 = "bf16x2", F32x2 = "f32x2",
        E4m3x2 = "e4m3x2", E5m2x2 = "e5m2x2", E2m3x2 = "e2m3x2", E3m2x2 = "e3m2x2", E2m1x2 = "e2m1x2",
        Ue8m0x2 = "ue8m0x2",
        U4 = "u4", S4 = "s4", B1 = "b1",
        Pred = "pred",
        Texref = "texref", Samplerref = "samplerref", Surfref = "surfref",
    }
}

impl Type {
    /// Width of a register or memory element of this type in bits; a predicate has 1, an opaque
    /// reference 64.
    pub fn bits(self) -> u32 {
        use Type::*;
        match self {
            Pred | B1 => 1,
            U4 | S4 | E2m1 => 4,
            B8 | U8 | S8 | E4m3 | E5m2 | E2m3 | E3m2 | Ue8m0 | E2m1x2 => 8,
            B16 | U16 | S16 | F16 | Bf16 | E4m3x2 | E5m2x2 | E2m3x2 | E3m2x2 | Ue8m0x2 => 16,
            B32 | U32 | S32 | F32 | Tf32 | U16x2 | S16x2 | F16x2 | Bf16x2 => 32,
            B64 | U64 | S64 | F64 | F32x2 | Texref | Samplerref | Surfref => 64,
            B128 => 128,
        }
    }

    /// Size in memory in bytes, at least 1.
    pub fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }

    /// `.s8` ... `.s64`, `.s16x2`.
    pub fn is_signed(self) -> bool {
        matches!(self, Type::S4 | Type::S8 | Type::S16 | Type::S32 | Type::S64 | Type::S16x2)
    }

    /// A floating-point type, packed ones and narrow formats included.
    pub fn is_float(self) -> bool {
        use Type::*;
        matches!(
            self,
            F16 | F32
                | F64
                | Bf16
                | Tf32
                | F16x2
                | Bf16x2
                | F32x2
                | E4m3
                | E5m2
                | E2m3
                | E3m2
                | E2m1
                | Ue8m0
                | E4m3x2
                | E5m2x2
                | E2m3x2
                | E3m2x2
                | E2m1x2
                | Ue8m0x2
        )
    }
}

words! {
    /// State spaces (PTX ISA, "State Spaces"), with the sub-qualified spellings that instructions
    /// use.
    Space {
        Reg = "reg",
        Global = "global",
        Shared = "shared",
        SharedCta = "shared::cta",
        SharedCluster = "shared::cluster",
        Local = "local",
        Param = "param",
        ParamEntry = "param::entry",
        ParamFunc = "param::func",
        Const = "const",
        Tex = "tex",
    }
}

words! {
    /// Special registers (PTX ISA, "Special Registers"), each component on its own.
    SpecialRegister {
        TidX = "%tid.x", TidY = "%tid.y", TidZ = "%tid.z", TidW = "%tid.w",
        NtidX = "%ntid.x", NtidY = "%ntid.y", NtidZ = "%ntid.z", NtidW = "%ntid.w",
        CtaidX = "%ctaid.x", CtaidY = "%ctaid.y", CtaidZ = "%ctaid.z", CtaidW = "%ctaid.w",
        NctaidX = "%nctaid.x", NctaidY = "%nctaid.y", NctaidZ = "%nctaid.z", NctaidW = "%nctaid.w",
        ClusteridX = "%clusterid.x", ClusteridY = "%clusterid.y", ClusteridZ = "%clusterid.z", ClusteridW = "%clusterid.w",
        NclusteridX = "%nclusterid.x", NclusteridY = "%nclusterid.y", NclusteridZ = "%nclusterid.z", NclusteridW = "%nclusterid.w",
        ClusterCtaidX = "%cluster_ctaid.x", ClusterCtaidY = "%cluster_ctaid.y", ClusterCtaidZ = "%cluster_ctaid.z",
        ClusterCtaidW = "%cluster_ctaid.w",
        ClusterNctaidX = "%cluster_nctaid.x", ClusterNctaidY = "%cluster_nctaid.y", ClusterNctaidZ = "%cluster_nctaid.z",
        ClusterNctaidW = "%cluster_nctaid.w",
        ClusterCtarank = "%cluster_ctarank", ClusterNctarank = "%cluster_nctarank", IsExplicitCluster = "%is_explicit_cluster",
        Laneid = "%laneid", Warpid = "%warpid", Nwarpid = "%nwarpid", Smid = "%smid", Nsmid = "%nsmid", Gridid = "%gridid",
        LanemaskEq = "%lanemask_eq", LanemaskLe = "%lanemask_le", LanemaskLt = "%lanemask_lt", LanemaskGe = "%lanemask_ge",
        LanemaskGt = "%lanemask_gt",
        Clock = "%clock", ClockHi = "%clock_hi", Clock64 = "%clock64",
        Globaltimer = "%globaltimer", GlobaltimerLo = "%globaltimer_lo", GlobaltimerHi = "%globaltimer_hi",
        Pm0 = "%pm0", Pm1 = "%pm1", Pm2 = "%pm2", Pm3 = "%pm3", Pm4 = "%pm4", Pm5 = "%pm5", Pm6 = "%pm6", Pm7 = "%pm7",
        Envreg0 = "%envreg0", Envreg1 = "%envreg1", Envreg2 = "%envreg2", Envreg3 = "%envreg3", Envreg4 = "%envreg4",
        Envreg5 = "%envreg5", Envreg6 = "%envreg6", Envreg7 = "%envreg7", Envreg8 = "%envreg8", Envreg9 = "%envreg9",
        Envreg10 = "%envreg10", Envreg11 = "%envreg11", Envreg12 = "%envreg12", Envreg13 = "%envreg13",
        Envreg14 = "%envreg14", Envreg15 = "%envreg15", Envreg16 = "%envreg16", Envreg17 = "%envreg17",
        Envreg18 = "%envreg18", Envreg19 = "%envreg19", Envreg20 = "%envreg20", Envreg21 = "%envreg21",
        Envreg22 = "%envreg22", Envreg23 = "%envreg23", Envreg24 = "%envreg24", Envreg25 = "%envreg25",
        Envreg26 = "%envreg26", Envreg27 = "%envreg27", Envreg28 = "%envreg28", Envreg29 = "%envreg29",
        Envreg30 = "%envreg30", Envreg31 = "%envreg31",
        ReservedSmemOffsetBegin = "%reserved_smem_offset_begin", ReservedSmemOffsetEnd = "%reserved_smem_offset_end",
        ReservedSmemOffsetCap = "%reserved_smem_offset_cap", ReservedSmemOffset0 = "%reserved_smem_offset_0",
        ReservedSmemOffset1 = "%reserved_smem_offset_1",
        TotalSmemSize = "%total_smem_size", AggrSmemSize = "%aggr_smem_size", DynamicSmemSize = "%dynamic_smem_size",
        CurrentGraphExec = "%current_graph_exec",
    }
}

open_words! {
    /// The word before the first dot of a mnemonic (PTX ISA, "Instruction Set").
    Opcode {} {
        Abs = "abs", Activemask = "activemask", Add = "add", Addc = "addc", Alloca = "alloca", And = "and",
        Applypriority = "applypriority", Atom = "atom", Bar = "bar", Barrier = "barrier", Bfe = "bfe", Bfi = "bfi",
        Bfind = "bfind", Bmsk = "bmsk", Bra = "bra", Brev = "brev", Brkpt = "brkpt", Brx = "brx", Call = "call",
        Clusterlaunchcontrol = "clusterlaunchcontrol", Clz = "clz", Cnot = "cnot", Copysign = "copysign", Cos = "cos",
        Cp = "cp", Createpolicy = "createpolicy", Cvt = "cvt", Cvta = "cvta", Discard = "discard", Div = "div",
        Dp2a = "dp2a", Dp4a = "dp4a", Elect = "elect", Ex2 = "ex2", Exit = "exit", Fence = "fence", Fma = "fma",
        Fns = "fns", Getctarank = "getctarank", Griddepcontrol = "griddepcontrol", Isspacep = "isspacep",
        Istypep = "istypep", Ld = "ld", Ldmatrix = "ldmatrix", Ldu = "ldu", Lg2 = "lg2", Lop3 = "lop3", Mad = "mad",
        Mad24 = "mad24", Madc = "madc", Mapa = "mapa", Match = "match", Max = "max", Mbarrier = "mbarrier",
        Membar = "membar", Min = "min", Mma = "mma", Mov = "mov", Movmatrix = "movmatrix", Mul = "mul", Mul24 = "mul24",
        Multimem = "multimem", Nanosleep = "nanosleep", Neg = "neg", Not = "not", Or = "or", Pmevent = "pmevent",
        Popc = "popc", Prefetch = "prefetch", Prefetchu = "prefetchu", Prmt = "prmt", Rcp = "rcp", Red = "red",
        Redux = "redux", Rem = "rem", Ret = "ret", Rsqrt = "rsqrt", Sad = "sad", Selp = "selp", Set = "set",
        Setmaxnreg = "setmaxnreg", Setp = "setp", Shf = "shf", Shfl = "shfl", Shl = "shl", Shr = "shr", Sin = "sin",
        Slct = "slct", Sqrt = "sqrt", St = "st", Stackrestore = "stackrestore", Stacksave = "stacksave",
        Stmatrix = "stmatrix", Sub = "sub", Subc = "subc", Suld = "suld", Suq = "suq", Sured = "sured", Sust = "sust",
        Szext = "szext", Tanh = "tanh", Tcgen05 = "tcgen05", Tensormap = "tensormap", Testp = "testp", Tex = "tex",
        Tld4 = "tld4", Trap = "trap", Txq = "txq", Vabsdiff = "vabsdiff", Vabsdiff2 = "vabsdiff2",
        Vabsdiff4 = "vabsdiff4", Vadd = "vadd", Vadd2 = "vadd2", Vadd4 = "vadd4", Vavrg2 = "vavrg2", Vavrg4 = "vavrg4",
        Vmad = "vmad", Vmax = "vmax", Vmax2 = "vmax2", Vmax4 = "vmax4", Vmin = "vmin", Vmin2 = "vmin2", Vmin4 = "vmin4",
        Vote = "vote", Vset = "vset", Vset2 = "vset2", Vset4 = "vset4", Vshl = "vshl", Vshr = "vshr", Vsub = "vsub",
        Vsub2 = "vsub2", Vsub4 = "vsub4", Wgmma = "wgmma", Wmma = "wmma", Xor = "xor",
    }
}

open_words! {
    /// A word after a dot of a mnemonic.
    Modifier {
        Type(Type),
        Space(Space),
    } {
        // Rounding, saturation, precision, subnormals.
        Rn = "rn", Rna = "rna", Rz = "rz", Rm = "rm", Rp = "rp", Rs = "rs",
        Rni = "rni", Rzi = "rzi", Rmi = "rmi", Rpi = "rpi",
        Sat = "sat", Satfinite = "satfinite", Relu = "relu", Approx = "approx", Full = "full", Ftz = "ftz",
        Noftz = "noftz", Nan = "nan", PropagateNan = "NaN", Xorsign = "xorsign", AbsValue = "abs", Oob = "oob", Pack = "pack",
        // Integer forms.
        Lo = "lo", Hi = "hi", Wide = "wide", Cc = "cc", Shiftamt = "shiftamt", Clamp = "clamp", Wrap = "wrap",
        Left = "l", Right = "r",
        // Comparison; `Lo` and `Hi` above are also unsigned comparisons.
        Eq = "eq", Ne = "ne", Lt = "lt", Le = "le", Gt = "gt", Ge = "ge", Ls = "ls", Hs = "hs",
        Equ = "equ", Neu = "neu", Ltu = "ltu", Leu = "leu", Gtu = "gtu", Geu = "geu", Num = "num",
        // testp.
        Finite = "finite", Infinite = "infinite", Number = "number", Notanumber = "notanumber", Normal = "normal",
        Subnormal = "subnormal",
        // Boolean and atomic operations.
        And = "and", Or = "or", Xor = "xor", Not = "not", Popc = "popc",
        Add = "add", Inc = "inc", Dec = "dec", Min = "min", Max = "max", Exch = "exch", Cas = "cas",
        // Vectors.
        V2 = "v2", V4 = "v4", V8 = "v8",
        // Memory: cache operators, ordering, scope.
        Ca = "ca", Cg = "cg", Cs = "cs", Lu = "lu", Cv = "cv", Wb = "wb", Wt = "wt", Nc = "nc",
        Volatile = "volatile", Relaxed = "relaxed", Acquire = "acquire", Release = "release", AcqRel = "acq_rel",
        Sc = "sc", Weak = "weak", Mmio = "mmio", Unified = "unified",
        Cta = "cta", Cluster = "cluster", Gpu = "gpu", Sys = "sys", Gl = "gl", L1 = "L1", L2 = "L2",
        L1EvictNormal = "L1::evict_normal", L1EvictUnchanged = "L1::evict_unchanged", L1EvictFirst = "L1::evict_first",
        L1EvictLast = "L1::evict_last", L1NoAllocate = "L1::no_allocate", L2EvictLast = "L2::evict_last",
        L2EvictNormal = "L2::evict_normal", L2EvictFirst = "L2::evict_first",
        L2CacheHint = "L2::cache_hint", L2B64 = "L2::64B", L2B128 = "L2::128B", L2B256 = "L2::256B",
        Proxy = "proxy", Alias = "alias", Async = "async", ProxyAlias = "proxy::alias", ProxyAsync = "proxy::async",
        ProxyAsyncGlobal = "proxy::async.global", ProxyTensormap = "proxy::tensormap::generic",
        MbarrierInit = "mbarrier_init",
        // Control and synchronisation.
        Uni = "uni", Sync = "sync", Arrive = "arrive", Wait = "wait", Aligned = "aligned", Warp = "warp", Idx = "idx",
        Red = "red", To = "to", All = "all", Any = "any", Ballot = "ballot", Up = "up", Down = "down", Bfly = "bfly",
        Level = "level", LaunchDependents = "launch_dependents", NoComplete = "noComplete", ExpectTx = "expect_tx",
        CompleteTx = "complete_tx", TestWait = "test_wait", TryWait = "try_wait", Parity = "parity", Init = "init",
        Inval = "inval", PendingCount = "pending_count", ArriveDrop = "arrive_drop",
        CommitGroup = "commit_group", WaitGroup = "wait_group", WaitAll = "wait_all", Bulk = "bulk", Tensor = "tensor",
        Commit = "commit", Read = "read", Reduce = "reduce", Prefetch = "prefetch",
        Mbarrier = "mbarrier", MbarrierCompleteTxBytes = "mbarrier::complete_tx::bytes", BulkGroup = "bulk_group",
        MulticastCluster = "multicast::cluster", CpMask = "cp_mask",
        // prmt modes.
        F4e = "f4e", B4e = "b4e", Rc8 = "rc8", Ecl = "ecl", Ecr = "ecr", Rc16 = "rc16",
        // Matrices.
        Load = "load", Store = "store", Mma = "mma", A = "a", B = "b", C = "c", D = "d", Row = "row", Col = "col",
        Trans = "trans", X1 = "x1", X2 = "x2", X4 = "x4", M8n8 = "m8n8", M8n8k4 = "m8n8k4", M8n8k16 = "m8n8k16",
        M8n8k32 = "m8n8k32", M8n8k128 = "m8n8k128", M16n8k4 = "m16n8k4", M16n8k8 = "m16n8k8", M16n8k16 = "m16n8k16",
        M16n8k32 = "m16n8k32", M16n8k64 = "m16n8k64", M16n8k128 = "m16n8k128", M16n8k256 = "m16n8k256",
        M16n16k8 = "m16n16k8", M16n16k16 = "m16n16k16", M32n8k16 = "m32n8k16", M8n32k16 = "m8n32k16",
        // Textures and surfaces.
        D1 = "1d", D2 = "2d", D3 = "3d", A1d = "a1d", A2d = "a2d", Cube = "cube", Acube = "acube", D2ms = "2dms",
        A2dms = "a2dms", Grad = "grad", Base = "base", Trap = "trap", G = "g", Zero = "zero", Formatted = "p",
        Width = "width", Height = "height", Depth = "depth", ChannelDataType = "channel_data_type",
        ChannelOrder = "channel_order", NormalizedCoords = "normalized_coords", ArraySize = "array_size",
        NumMipmapLevels = "num_mipmap_levels", NumSamples = "num_samples",
    }
}
