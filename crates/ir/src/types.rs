//! Types and the ids of what a kernel is made of.

use std::fmt;

/// The type of a value, in each of the 32 lanes.
///
/// There is no half type: `f16` and `bf16` live as the bits of an [`Type::I16`], pairs of them as
/// an [`Type::I32`], and the lowering computes on them through F32 or F64. 128-bit values are pairs
/// of [`Type::I64`]. Integers have no sign; operations do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Type {
    /// A predicate: 0 or 1.
    I1,
    I8,
    I16,
    I32,
    I64,
    F32,
    F64,
}

impl Type {
    /// Every type, in the order of their text names.
    pub const ALL: [Type; 7] = [Type::I1, Type::I8, Type::I16, Type::I32, Type::I64, Type::F32, Type::F64];

    /// Width in bits.
    pub fn bits(self) -> u32 {
        match self {
            Type::I1 => 1,
            Type::I8 => 8,
            Type::I16 => 16,
            Type::I32 | Type::F32 => 32,
            Type::I64 | Type::F64 => 64,
        }
    }

    /// Size in memory in bytes. A predicate is never stored to device memory; its size here is 1.
    pub fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }

    pub fn is_float(self) -> bool {
        matches!(self, Type::F32 | Type::F64)
    }

    pub fn is_int(self) -> bool {
        !self.is_float()
    }

    /// The integer type of this width.
    pub fn int_of_bits(bits: u32) -> Option<Type> {
        match bits {
            1 => Some(Type::I1),
            8 => Some(Type::I8),
            16 => Some(Type::I16),
            32 => Some(Type::I32),
            64 => Some(Type::I64),
            _ => None,
        }
    }

    /// The integer type that holds this type's bits.
    pub fn as_int(self) -> Type {
        match self {
            Type::F32 => Type::I32,
            Type::F64 => Type::I64,
            int => int,
        }
    }

    /// The bits that a constant of this type may have set.
    pub fn mask(self) -> u64 {
        match self.bits() {
            64 => u64::MAX,
            bits => (1 << bits) - 1,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Type::I1 => "i1",
            Type::I8 => "i8",
            Type::I16 => "i16",
            Type::I32 => "i32",
            Type::I64 => "i64",
            Type::F32 => "f32",
            Type::F64 => "f64",
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident $prefix:literal,)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);

        impl $name {
            /// As an index into the table of its kernel.
            pub fn index(self) -> usize {
                self.0 as usize
            }

            /// The id of the entry at this index.
            pub fn new(index: usize) -> Self {
                // Tables are limited to far less than 2^32 entries by `lower::INSTRUCTIONS_MAX`.
                $name(index as u32)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}

ids! {
    /// An SSA value: 32 lanes of one [`Type`]. Index into [`crate::Kernel::values`].
    Value "v",
    /// Index into [`crate::Kernel::insts`].
    InstId "i",
    /// Index into [`crate::Kernel::blocks`].
    BlockId "b",
    /// A variable of the module that the kernel refers to. Index into [`crate::Kernel::globals`].
    GlobalId "g",
}
