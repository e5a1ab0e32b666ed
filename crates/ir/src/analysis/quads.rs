//! How the four lanes of an aligned quad of lanes relate, for values whose lanes as a whole do not:
//! `tid % 16`, `tid / 16` and what is computed from them.

use crate::analysis::divergence::Regions;
use crate::analysis::shapes::{BlockShape, Shape, is_same_in_all_iterations, passes_same_everywhere};
use crate::inst::{BinaryOp, ConvertOp, Effect, Inst, SpecialRegister, UnaryOp};
use crate::kernel::{InstData, Kernel};
use crate::types::{Type, Value};

/// Lanes `4 q` to `4 q + 3` hold `base`, `base + stride`, `base + 2 stride`, `base + 3 stride`,
/// wrapping, for some base of each quad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuadShape {
    pub stride: i64,
    /// Whether the stride is a power of two (below 2^60) and each base a multiple of four times it.
    is_aligned: bool,
}

impl QuadShape {
    const SAME: QuadShape = QuadShape { stride: 0, is_aligned: false };

    fn plain(stride: i64) -> QuadShape {
        QuadShape { stride, is_aligned: false }
    }

    /// The bits that tell the lanes of a quad apart.
    fn field(self) -> Option<u64> {
        self.is_aligned.then(|| 3 * self.stride as u64)
    }
}

/// By value; None where nothing is known. `shapes` are those of all lanes, once they are settled.
pub(super) fn solve(
    kernel: &Kernel,
    block_shape: BlockShape,
    shapes: &[Shape],
    regions: &Regions,
) -> Vec<Option<QuadShape>> {
    // The outer None is a value that was not reached yet, as good as can be.
    let mut quads: Vec<Option<Option<QuadShape>>> = vec![None; kernel.values.len()];
    loop {
        let mut changed = false;
        let mut lower_to = |quads: &mut Vec<Option<Option<QuadShape>>>, value: Value, new| {
            let Some(new): Option<Option<QuadShape>> = new else { return };
            let new = better(new, shapes[value.index()]);
            let merged = match quads[value.index()] {
                None => new,
                Some(old) => meet(old, new),
            };
            changed |= quads[value.index()].replace(merged) != Some(merged);
        };
        for id in kernel.block_ids() {
            let block = kernel.block(id);
            for &inst in &block.insts {
                let data = kernel.inst(inst);
                let shape = result(kernel, block_shape, data, &quads);
                for value in data.results() {
                    let escapes =
                        regions.escapes_divergently(value) && !is_same_in_all_iterations(&data.inst);
                    let shape = if escapes { shape.map(|_| None) } else { shape };
                    lower_to(&mut quads, value, shape);
                }
            }
            for target in block.terminator.targets() {
                let params = &kernel.block(target.block).params;
                for (arg, param) in target.args.iter().zip(params) {
                    let splits = regions.leaves_divergently(id, target.block)
                        || regions.escapes_divergently(*param)
                        || (regions.is_join(target.block)
                            && !passes_same_everywhere(kernel, regions, target.block, *param));
                    let shape = quads[arg.index()];
                    let shape = if splits { shape.map(|_| None) } else { shape };
                    lower_to(&mut quads, *param, shape);
                }
            }
        }
        if !changed {
            return quads.into_iter().map(Option::flatten).collect();
        }
    }
}

/// What the shape of all lanes says of quads, where nothing better is known.
fn better(quad: Option<QuadShape>, shape: Shape) -> Option<QuadShape> {
    quad.or(match shape {
        Shape::Uniform => Some(QuadShape::SAME),
        Shape::Affine { stride } => Some(QuadShape::plain(stride)),
        Shape::Varying => None,
    })
}

fn meet(old: Option<QuadShape>, new: Option<QuadShape>) -> Option<QuadShape> {
    let (old, new) = (old?, new?);
    let is_aligned = old.is_aligned && new.is_aligned;
    (old.stride == new.stride).then_some(QuadShape { stride: old.stride, is_aligned })
}

fn result(
    kernel: &Kernel,
    block_shape: BlockShape,
    data: &InstData,
    quads: &[Option<Option<QuadShape>>],
) -> Option<Option<QuadShape>> {
    use SpecialRegister::{LaneId, TidX};
    let quad = |value: Value| quads[value.index()];
    let lanes = QuadShape { stride: 1, is_aligned: true };
    match &data.inst {
        Inst::Special { register: LaneId } => return Some(Some(lanes)),
        Inst::Special { register: TidX } if block_shape == BlockShape::Rows => return Some(Some(lanes)),
        _ => {}
    }
    if data.inst.effect() != Effect::Pure || data.result_count != 1 {
        return Some(None);
    }
    // Registers and windows differ between lanes as their shapes say.
    let (mut args, mut are_same) = (0, true);
    let mut is_reached = true;
    data.inst.for_each_arg(|arg| {
        args += 1;
        match quad(arg) {
            Some(shape) => are_same &= shape.is_some_and(|shape| shape.stride == 0),
            None => is_reached = false,
        }
    });
    if !is_reached {
        return None;
    }
    if args == 0 {
        return Some(None);
    }
    if are_same {
        return Some(Some(QuadShape::SAME));
    }
    Some(match &data.inst {
        Inst::Unary { op: UnaryOp::Neg | UnaryOp::Not, ty, arg } if *ty != Type::I1 => {
            quad(*arg).flatten().map(|shape| QuadShape::plain(shape.stride.wrapping_neg()))
        }
        Inst::Binary { op, ty, args } if *ty != Type::I1 => {
            let [Some(a), Some(b)] = args.map(|arg| quad(arg).flatten()) else { return Some(None) };
            binary(*op, [a, b], args.map(|arg| kernel.constant(arg)))
        }
        Inst::Convert { op, to, arg, .. } => quad(*arg).flatten().and_then(|shape| convert(*op, *to, shape)),
        _ => None,
    })
}

fn convert(op: ConvertOp, to: Type, shape: QuadShape) -> Option<QuadShape> {
    match op {
        ConvertOp::Truncate if to.bits() >= 16 => Some(shape),
        // Within an aligned group nothing overflows; a signed index that overflows within a warp
        // is an error of the program (see `Shapes`).
        ConvertOp::SignExtend => Some(shape),
        ConvertOp::ZeroExtend if shape.is_aligned => Some(shape),
        ConvertOp::Bitcast if to.is_int() => Some(shape),
        _ => None,
    }
}

fn binary(op: BinaryOp, [a, b]: [QuadShape; 2], constants: [Option<u64>; 2]) -> Option<QuadShape> {
    let keeps = |shape: QuadShape, number: Option<u64>| {
        shape.is_aligned && number.is_some_and(|number| number % (4 * shape.stride) as u64 == 0)
    };
    match op {
        BinaryOp::Add if b.stride == 0 => {
            Some(QuadShape { stride: a.stride, is_aligned: keeps(a, constants[1]) })
        }
        BinaryOp::Add if a.stride == 0 => {
            Some(QuadShape { stride: b.stride, is_aligned: keeps(b, constants[0]) })
        }
        BinaryOp::Add => Some(QuadShape::plain(a.stride.wrapping_add(b.stride))),
        BinaryOp::Sub => Some(QuadShape::plain(a.stride.wrapping_sub(b.stride))),
        BinaryOp::Mul => match constants {
            [_, Some(factor)] => Some(scaled(a, factor)),
            [Some(factor), _] => Some(scaled(b, factor)),
            _ => None,
        },
        BinaryOp::Shl => Some(scaled(a, 1 << constants[1].filter(|&amount| amount < 32)?)),
        BinaryOp::ShrU | BinaryOp::ShrS => {
            let (field, amount) = (a.field()?, constants[1].filter(|&amount| amount < 32)?);
            match field >> amount {
                0 => Some(QuadShape::SAME),
                rest if rest << amount == field => {
                    Some(QuadShape { stride: a.stride >> amount, is_aligned: true })
                }
                _ => None,
            }
        }
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => {
            let (shape, number) = match constants {
                [_, Some(number)] => (a, number),
                [Some(number), _] => (b, number),
                _ => return None,
            };
            let (field, below) = (shape.field()?, shape.stride as u64 - 1);
            let touched = if op == BinaryOp::And { !number } else { number };
            if op == BinaryOp::And && number & field == 0 {
                return Some(QuadShape::SAME);
            }
            let is_aligned = op == BinaryOp::And || number & below == 0;
            (touched & field == 0).then_some(QuadShape { stride: shape.stride, is_aligned })
        }
        _ => None,
    }
}

fn scaled(shape: QuadShape, factor: u64) -> QuadShape {
    let stride = shape.stride.wrapping_mul(factor as i64);
    let is_aligned = shape.is_aligned && factor.is_power_of_two() && (1..1 << 60).contains(&stride);
    QuadShape { stride, is_aligned }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANES: QuadShape = QuadShape { stride: 1, is_aligned: true };

    fn apply(op: BinaryOp, shape: QuadShape, number: u64) -> Option<QuadShape> {
        binary(op, [shape, QuadShape::SAME], [None, Some(number)])
    }

    #[test]
    fn rows_of_a_tile_are_neighbours_and_columns_are_the_same() {
        assert_eq!(apply(BinaryOp::And, LANES, 15), Some(LANES));
        assert_eq!(apply(BinaryOp::ShrU, LANES, 4), Some(QuadShape::SAME));
        assert_eq!(apply(BinaryOp::And, LANES, !3), Some(QuadShape::SAME));
        let fours = apply(BinaryOp::Shl, LANES, 2);
        assert_eq!(fours, Some(QuadShape { stride: 4, is_aligned: true }));
        assert_eq!(apply(BinaryOp::Or, fours.expect("known"), 2).map(|shape| shape.stride), Some(4));
    }

    #[test]
    fn nothing_is_known_where_the_lanes_of_a_quad_are_taken_apart() {
        for (op, number) in [(BinaryOp::And, 1), (BinaryOp::ShrU, 1), (BinaryOp::Or, 2), (BinaryOp::Xor, 1)] {
            assert_eq!(apply(op, LANES, number), None, "{op:?} {number}");
        }
        // What is no longer aligned may have a border of a group anywhere.
        let moved = apply(BinaryOp::Add, LANES, 1).expect("known");
        assert_eq!(apply(BinaryOp::And, moved, 15), None);
        assert_eq!(convert(ConvertOp::ZeroExtend, Type::I64, moved), None);
    }
}
