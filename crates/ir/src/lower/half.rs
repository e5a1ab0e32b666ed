//! Halves: two 16-bit values in a register, and small floats in integer bits.

use super::Lowering;
use crate::inst::{BinaryOp, ConvertOp, Rounding};
use crate::types::{Type, Value};

/// How the bits of a 16-bit float are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    /// IEEE binary16, `f16`.
    Ieee,
    /// `bf16`.
    Bfloat,
}

impl Half {
    pub(super) fn widen(self) -> ConvertOp {
        match self {
            Half::Ieee => ConvertOp::HalfToFloat,
            Half::Bfloat => ConvertOp::BfloatToFloat,
        }
    }

    pub(super) fn narrow(self, rounding: Rounding) -> ConvertOp {
        match self {
            Half::Ieee => ConvertOp::FloatToHalf(rounding),
            Half::Bfloat => ConvertOp::FloatToBfloat(rounding),
        }
    }
}

impl Lowering<'_> {
    /// The low and the high 16 bits of an I32.
    pub(super) fn halves(&mut self, value: Value) -> [Value; 2] {
        let mut build = self.build();
        let low = build.convert(ConvertOp::Truncate, Type::I16, value);
        let high = build.binary_imm(BinaryOp::ShrU, value, 16);
        let high = build.convert(ConvertOp::Truncate, Type::I16, high);
        [low, high]
    }

    /// An I32 from its low and its high 16 bits.
    pub(super) fn join_halves(&mut self, halves: [Value; 2]) -> Value {
        let mut build = self.build();
        let [low, high] = halves.map(|half| build.convert(ConvertOp::ZeroExtend, Type::I32, half));
        let high = build.binary_imm(BinaryOp::Shl, high, 16);
        build.binary(BinaryOp::Or, low, high)
    }
}
