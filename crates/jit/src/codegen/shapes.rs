//! Shapes for code in which lanes of one loop may be in different iterations.
//!
//! The analysis in [`sluice_ir::analysis`] holds for warps whose lowest ready block always goes
//! first. Where groups of lanes take turns instead, only what does not depend on the iteration is
//! known: pure functions of constants, parameters and indices.

use sluice_ir::analysis::shapes::BlockShape;
use sluice_ir::analysis::{Shape, Shapes};
use sluice_ir::{BinaryOp, Inst, Kernel, Ordering, Space, SpecialRegister, Value, Window};

use super::Tids;

/// The shape of every value, by index, and the distance between neighbouring lanes of a quad.
pub(crate) fn shapes(kernel: &Kernel, tids: Tids, rotates: bool) -> (Vec<Shape>, Vec<Option<i64>>) {
    if rotates {
        return (invariant_shapes(kernel, tids), vec![None; kernel.values.len()]);
    }
    let block_shape = match tids {
        Tids::Rows => BlockShape::Rows,
        Tids::Any => BlockShape::Any,
    };
    let shapes = Shapes::new(kernel, block_shape);
    let values = || (0..kernel.values.len()).map(Value::new);
    let strides = values().map(|value| shapes.quad(value).map(|quad| quad.stride));
    (values().map(|value| shapes.shape(value)).collect(), strides.collect())
}

fn invariant_shapes(kernel: &Kernel, tids: Tids) -> Vec<Shape> {
    let mut shapes = vec![Shape::Varying; kernel.values.len()];
    for block in &kernel.blocks {
        for &id in &block.insts {
            let data = kernel.inst(id);
            let shape = invariant_shape(kernel, &data.inst, tids, &shapes);
            for value in data.results() {
                shapes[value.index()] = shape;
            }
        }
    }
    shapes
}

fn invariant_shape(kernel: &Kernel, inst: &Inst, tids: Tids, shapes: &[Shape]) -> Shape {
    let shape = |value: Value| shapes[value.index()];
    let mut are_uniform = true;
    inst.for_each_arg(|value| are_uniform &= shape(value) == Shape::Uniform);
    match *inst {
        Inst::Const { .. } | Inst::GlobalAddress { .. } => Shape::Uniform,
        Inst::Special { register } => special_shape(register, tids),
        Inst::WindowBase { window: Window::Local } if kernel.needs_stack => Shape::Varying,
        Inst::WindowBase { window: Window::Local } if kernel.local_bytes != 0 => {
            Shape::Affine { stride: i64::from(kernel.local_bytes) }
        }
        Inst::WindowBase { .. } => Shape::Uniform,
        Inst::Load { order, place, .. }
            if are_uniform && order.ordering == Ordering::Invariant && place.space == Space::Param =>
        {
            Shape::Uniform
        }
        Inst::Unary { .. }
        | Inst::Float { .. }
        | Inst::Fma { .. }
        | Inst::Sqrt { .. }
        | Inst::Permute { .. }
        | Inst::Compare { .. }
        | Inst::FloatCompare { .. }
        | Inst::Select { .. }
            if are_uniform =>
        {
            Shape::Uniform
        }
        Inst::Binary { .. } | Inst::Convert { .. } if are_uniform => Shape::Uniform,
        Inst::Binary { op, args: [a, b], .. } => match (op, shape(a), shape(b)) {
            (BinaryOp::Add, Shape::Affine { stride }, Shape::Uniform) => affine(stride),
            (BinaryOp::Add, Shape::Uniform, Shape::Affine { stride }) => affine(stride),
            (BinaryOp::Add, Shape::Affine { stride: one }, Shape::Affine { stride: two }) => {
                affine(one.wrapping_add(two))
            }
            (BinaryOp::Sub, Shape::Affine { stride }, Shape::Uniform) => affine(stride),
            (BinaryOp::Mul, Shape::Affine { stride }, Shape::Uniform) => scaled(stride, kernel.constant(b)),
            (BinaryOp::Mul, Shape::Uniform, Shape::Affine { stride }) => scaled(stride, kernel.constant(a)),
            (BinaryOp::Shl, Shape::Affine { stride }, Shape::Uniform) => {
                scaled(stride, kernel.constant(b).filter(|&amount| amount < 32).map(|amount| 1 << amount))
            }
            _ => Shape::Varying,
        },
        _ => Shape::Varying,
    }
}

fn affine(stride: i64) -> Shape {
    if stride == 0 { Shape::Uniform } else { Shape::Affine { stride } }
}

fn scaled(stride: i64, factor: Option<u64>) -> Shape {
    match factor {
        Some(factor) => affine(stride.wrapping_mul(factor as i64)),
        None => Shape::Varying,
    }
}

fn special_shape(register: SpecialRegister, tids: Tids) -> Shape {
    match register {
        SpecialRegister::LaneId => Shape::Affine { stride: 1 },
        SpecialRegister::TidX if tids == Tids::Rows => Shape::Affine { stride: 1 },
        SpecialRegister::TidY | SpecialRegister::TidZ if tids == Tids::Rows => Shape::Uniform,
        SpecialRegister::TidX | SpecialRegister::TidY | SpecialRegister::TidZ => Shape::Varying,
        SpecialRegister::Clock | SpecialRegister::Clock64 | SpecialRegister::GlobalTimer => Shape::Varying,
        _ => Shape::Uniform,
    }
}
