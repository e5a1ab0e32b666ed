//! Upper bounds of unsigned integers, known low zeros, and sums that cannot wrap.
//!
//! One forward walk over the definitions, without iteration: a block parameter may be anything.
//! Used where the lanes of an index must be known not to lie on both sides of an overflow.

use crate::inst::{BinaryOp, ConvertOp, Inst, SpecialRegister};
use crate::kernel::Kernel;
use crate::types::{Type, Value};

/// The largest index that a grid's blocks reach by `ctaid * something`: that a block's share of the
/// work starts below this is assumed, since a kernel that computes with more in 32 bits has wrapped
/// long before.
const BLOCK_START_MAX: u64 = (1 << 32) - (1 << 20);

#[derive(Clone, Copy, Debug)]
struct Range {
    max: u64,
    /// This number of low bits is 0.
    zeros: u32,
    /// Computed without overflow from the first special register or constant on.
    is_exact: bool,
}

/// By value.
pub(super) struct Ranges(Vec<Range>);

impl Ranges {
    pub(super) fn new(kernel: &Kernel) -> Ranges {
        let mut ranges = Ranges(
            kernel
                .values
                .iter()
                .map(|value| Range { max: value.ty.mask(), zeros: 0, is_exact: false })
                .collect(),
        );
        for block in &kernel.blocks {
            for inst in &block.insts {
                let data = kernel.inst(*inst);
                if data.result_count == 1 {
                    let range = ranges.compute(kernel, &data.inst, kernel.ty(data.result(0)));
                    ranges.0[data.result(0).index()] = range;
                }
            }
        }
        ranges
    }

    /// Whether the value is what its definition says over the integers, without wrapping.
    pub(super) fn is_exact(&self, value: Value) -> bool {
        self.0[value.index()].is_exact
    }

    /// Whether no bit can be set in both.
    pub(super) fn are_disjoint(&self, a: Value, b: Value) -> bool {
        let (a, b) = (self.0[a.index()], self.0[b.index()]);
        let fits = |low: Range, high: Range| high.zeros >= 64 - low.max.leading_zeros();
        fits(a, b) || fits(b, a)
    }

    fn compute(&self, kernel: &Kernel, inst: &Inst, ty: Type) -> Range {
        let range = |value: Value| self.0[value.index()];
        let unknown = Range { max: ty.mask(), zeros: 0, is_exact: false };
        let sound = |max: Option<u64>, zeros: u32, is_exact: bool| match max {
            Some(max) if max <= ty.mask() => Range { max, zeros: zeros.min(63), is_exact },
            _ => Range { zeros: zeros.min(ty.bits()), ..unknown },
        };
        if ty.is_float() {
            return unknown;
        }
        match inst {
            Inst::Const { bits, .. } => sound(Some(*bits), bits.trailing_zeros(), true),
            Inst::Special { register } => sound(Some(special_max(*register)), 0, true),
            Inst::Convert { op: ConvertOp::ZeroExtend, arg, .. } => range(*arg),
            Inst::Convert { op: ConvertOp::SignExtend, from, arg, .. } => {
                let arg = range(*arg);
                if arg.max <= from.mask() >> 1 { arg } else { unknown }
            }
            Inst::Convert { op: ConvertOp::Truncate, arg, .. } => {
                let arg = range(*arg);
                sound(Some(arg.max), arg.zeros, arg.is_exact)
            }
            Inst::Select { args, .. } => {
                let (a, b) = (range(args[0]), range(args[1]));
                sound(Some(a.max.max(b.max)), a.zeros.min(b.zeros), a.is_exact && b.is_exact)
            }
            Inst::Binary { op, args, .. } => {
                let (a, b) = (range(args[0]), range(args[1]));
                let exact = a.is_exact && b.is_exact;
                match op {
                    BinaryOp::Add => sound(a.max.checked_add(b.max), a.zeros.min(b.zeros), exact),
                    BinaryOp::Mul if is_block_start(kernel, args) && ty == Type::I32 => {
                        sound(Some(BLOCK_START_MAX), a.zeros + b.zeros, exact)
                    }
                    BinaryOp::Mul => sound(a.max.checked_mul(b.max), a.zeros + b.zeros, exact),
                    BinaryOp::Shl => match kernel.constant(args[1]) {
                        Some(amount) if amount < u64::from(ty.bits()) => {
                            let zeros = a.zeros + amount as u32;
                            match is_block_index(kernel, args[0]) && ty == Type::I32 && amount <= 16 {
                                true => sound(Some(BLOCK_START_MAX), zeros, exact),
                                false => sound(a.max.checked_mul(1 << amount), zeros, exact),
                            }
                        }
                        _ => unknown,
                    },
                    BinaryOp::ShrU => match kernel.constant(args[1]) {
                        Some(amount) if amount < 64 => sound(Some(a.max >> amount), 0, a.is_exact),
                        _ => sound(Some(a.max), 0, a.is_exact),
                    },
                    BinaryOp::And => sound(Some(a.max.min(b.max)), a.zeros.max(b.zeros), exact),
                    BinaryOp::Or | BinaryOp::Xor => {
                        let bits = 64 - (a.max | b.max).leading_zeros();
                        let max = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
                        sound(Some(max), a.zeros.min(b.zeros), exact)
                    }
                    BinaryOp::DivU => match kernel.constant(args[1]) {
                        Some(divisor) if divisor > 0 => sound(Some(a.max / divisor), 0, a.is_exact),
                        _ => unknown,
                    },
                    BinaryOp::RemU => match kernel.constant(args[1]) {
                        Some(divisor) if divisor > 0 => sound(Some(a.max.min(divisor - 1)), 0, a.is_exact),
                        _ => unknown,
                    },
                    BinaryOp::MinU => sound(Some(a.max.min(b.max)), a.zeros.min(b.zeros), exact),
                    BinaryOp::MaxU => sound(Some(a.max.max(b.max)), a.zeros.min(b.zeros), exact),
                    _ => unknown,
                }
            }
            _ => unknown,
        }
    }
}

fn is_block_index(kernel: &Kernel, value: Value) -> bool {
    use SpecialRegister::{CtaidX, CtaidY, CtaidZ};
    matches!(
        kernel.definition(value).map(|data| &data.inst),
        Some(Inst::Special { register: CtaidX | CtaidY | CtaidZ })
    )
}

/// `ctaid * ntid` or `ctaid * constant`.
fn is_block_start(kernel: &Kernel, args: &[Value; 2]) -> bool {
    let is_count = |value: Value| {
        use SpecialRegister::{NtidX, NtidY, NtidZ};
        match kernel.definition(value).map(|data| &data.inst) {
            Some(Inst::Special { register: NtidX | NtidY | NtidZ }) => true,
            Some(Inst::Const { bits, .. }) => *bits <= 1 << 16,
            _ => false,
        }
    };
    (is_block_index(kernel, args[0]) && is_count(args[1]))
        || (is_block_index(kernel, args[1]) && is_count(args[0]))
}

/// Limits of CUDA devices of every compute capability (CUDA programming guide, "Technical
/// Specifications").
fn special_max(register: SpecialRegister) -> u64 {
    use SpecialRegister::*;
    match register {
        TidX | TidY => 1023,
        TidZ => 63,
        NtidX | NtidY => 1024,
        NtidZ => 64,
        CtaidX | NctaidX => (1 << 31) - 1,
        CtaidY | CtaidZ | NctaidY | NctaidZ => (1 << 16) - 1,
        // A cluster has 16 blocks at most.
        ClusterNctaidX | ClusterNctaidY | ClusterNctaidZ => 16,
        IsExplicitCluster => 1,
        LaneId | WarpId => 31,
        Nwarpid => 64,
        _ => register.ty().mask(),
    }
}
