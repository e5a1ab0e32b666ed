//! How the lanes of a value relate, and which branches separate lanes.
//!
//! A shape speaks of the lanes that execute the defining instruction *together*, in one visit of a
//! warp to the block, and of their later uses of that result. It is sound for a back end that
//! - always continues with the pending block of the lowest number, gathering all lanes that wait
//!   there (blocks are numbered so that this keeps the lanes of a loop in the same iteration: see
//!   [`crate::passes::layout`]), and
//! - executes an instruction whose result is [`Shape::Uniform`] once for the warp. For a load that
//!   matters: other threads may write meanwhile, and two reads could differ.
//!
//! The analysis starts from the best and goes down until nothing changes: a value's shape follows
//! from its operands, a block parameter's from its arguments, where a divergent branch
//! ([`super::divergence`]) makes the parameters of the blocks where its ways meet varying, and what
//! is carried out of a loop that lanes leave at different times.

use crate::analysis::divergence::Regions;
use crate::analysis::quads::{self, QuadShape};
use crate::analysis::ranges::Ranges;
use crate::inst::{
    BinaryOp, ConvertOp, Effect, Inst, IntCond, MatchKind, ShuffleMode, Space, SpecialRegister, UnaryOp,
    Window,
};
use crate::kernel::{Definition, InstData, Kernel};
use crate::types::{BlockId, Type, Value};

/// How the lanes of one value relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Equal in all lanes.
    Uniform,
    /// Integers: lane `l` holds `base + l * stride`, wrapping, for some uniform base. The stride is
    /// not 0.
    Affine { stride: i64 },
    /// Nothing is known.
    Varying,
}

/// What is assumed about the threads of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BlockShape {
    /// A warp is a piece of a row of threads: the block's x size is a multiple of 32, or its y and
    /// z sizes are 1. Lane l then has `tid.x = base + l`, where base is a multiple of 32, and
    /// `tid.y` and `tid.z` are uniform.
    Rows,
    /// Anything.
    #[default]
    Any,
}

/// The shapes of all values of a kernel and the branches that may separate lanes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shapes {
    /// By value.
    values: Vec<Shape>,
    /// By value, how the lanes of a quad relate; empty where nothing is known of any.
    quads: Vec<Option<QuadShape>>,
    /// By block: whether lanes may leave it for different successors.
    divergent: Vec<bool>,
}

impl Shapes {
    /// Analyses a kernel that has been through [`crate::passes::pipeline`].
    pub fn new(kernel: &Kernel, block_shape: BlockShape) -> Shapes {
        let mut regions = Regions::new(kernel);
        if regions.is_irreducible() {
            return Shapes::conservative(kernel, block_shape);
        }
        let mut solver = Solver {
            kernel,
            block_shape,
            ranges: Ranges::new(kernel),
            shapes: vec![None; kernel.values.len()],
            divergent: vec![false; kernel.blocks.len()],
        };
        while solver.sweep(&mut regions) {}
        // What was never reached is undefined.
        let values: Vec<Shape> =
            solver.shapes.into_iter().map(|shape| shape.unwrap_or(Shape::Varying)).collect();
        let quads = quads::solve(kernel, block_shape, &values, &regions);
        Shapes { values, quads, divergent: solver.divergent }
    }

    /// What holds without looking, whatever the order in which lanes run: constants are uniform,
    /// registers and windows are what they are, every conditional branch is divergent.
    pub fn conservative(kernel: &Kernel, block_shape: BlockShape) -> Shapes {
        let mut values = vec![Shape::Varying; kernel.values.len()];
        for data in &kernel.insts {
            let shape = match data.inst {
                Inst::Const { .. } | Inst::GlobalAddress { .. } => Shape::Uniform,
                Inst::Special { register } => special(register, block_shape),
                Inst::WindowBase { window } => window_base(window),
                _ => continue,
            };
            values[data.first_result.index()] = shape;
        }
        let divergent = kernel.blocks.iter().map(|block| block.terminator.condition().is_some()).collect();
        Shapes { values, quads: Vec::new(), divergent }
    }

    pub fn shape(&self, value: Value) -> Shape {
        self.values[value.index()]
    }

    /// How the lanes of each quad relate, if they do.
    pub fn quad(&self, value: Value) -> Option<QuadShape> {
        self.quads.get(value.index()).copied().flatten()
    }

    pub fn is_uniform(&self, value: Value) -> bool {
        self.shape(value) == Shape::Uniform
    }

    /// Whether lanes that enter this block together may leave it for different successors.
    pub fn is_divergent(&self, block: BlockId) -> bool {
        self.divergent[block.index()]
    }
}

fn special(register: SpecialRegister, block_shape: BlockShape) -> Shape {
    use SpecialRegister::*;
    match (register, block_shape) {
        (LaneId, _) | (TidX, BlockShape::Rows) => Shape::Affine { stride: 1 },
        (TidX | TidY | TidZ, BlockShape::Any) => Shape::Varying,
        _ => Shape::Uniform,
    }
}

fn window_base(window: Window) -> Shape {
    if window == Window::Local { Shape::Varying } else { Shape::Uniform }
}

struct Solver<'k> {
    kernel: &'k Kernel,
    block_shape: BlockShape,
    ranges: Ranges,
    /// None: not reached yet, as good as can be.
    shapes: Vec<Option<Shape>>,
    divergent: Vec<bool>,
}

impl Solver<'_> {
    /// One walk over all blocks; whether anything got worse.
    fn sweep(&mut self, regions: &mut Regions) -> bool {
        let mut changed = false;
        for id in self.kernel.block_ids() {
            let block = self.kernel.block(id);
            for inst in &block.insts {
                let data = self.kernel.inst(*inst);
                for (index, result) in data.results().enumerate() {
                    let mut shape = self.result_shape(data, index);
                    if regions.escapes_divergently(result) && !is_same_in_all_iterations(&data.inst) {
                        shape = shape.map(|_| Shape::Varying);
                    }
                    changed |= self.lower_to(result, shape);
                }
            }
            for target in block.terminator.targets() {
                let params = &self.kernel.block(target.block).params;
                for (arg, param) in target.args.iter().zip(params) {
                    let mut shape = self.shapes[arg.index()];
                    if regions.leaves_divergently(id, target.block) || regions.escapes_divergently(*param) {
                        shape = shape.map(|_| Shape::Varying);
                    }
                    if regions.is_join(target.block)
                        && !passes_same_everywhere(self.kernel, regions, target.block, *param)
                    {
                        shape = shape.map(|_| Shape::Varying);
                    }
                    changed |= self.lower_to(*param, shape);
                }
            }
            if let Some(condition) = block.terminator.condition()
                && !self.divergent[id.index()]
                && matches!(self.shapes[condition.index()], Some(Shape::Affine { .. } | Shape::Varying))
            {
                self.divergent[id.index()] = true;
                regions.diverge(self.kernel, id);
                changed = true;
            }
        }
        changed
    }

    fn lower_to(&mut self, value: Value, shape: Option<Shape>) -> bool {
        let Some(shape) = shape else { return false };
        let slot = &mut self.shapes[value.index()];
        let new = match *slot {
            None => shape,
            Some(old) => join(old, shape),
        };
        slot.replace(new) != Some(new)
    }

    fn result_shape(&self, data: &InstData, index: usize) -> Option<Shape> {
        use Shape::*;
        let ty = self.kernel.ty(data.result(index));
        let shape = |value: Value| self.shapes[value.index()];
        match &data.inst {
            Inst::Const { .. } | Inst::GlobalAddress { .. } | Inst::ActiveMask => Some(Uniform),
            // Lanes that come from different barriers bring different results.
            Inst::Barrier { id, .. } => Some(if shape(*id)? == Uniform { Uniform } else { Varying }),
            Inst::Special { register } => Some(special(*register, self.block_shape)),
            Inst::WindowBase { window } => Some(window_base(*window)),
            Inst::Unary { op, arg, .. } => Some(match (op, shape(*arg)?) {
                (_, Uniform) => Uniform,
                // Not is -x - 1.
                (UnaryOp::Neg | UnaryOp::Not, Affine { stride }) if ty != Type::I1 => {
                    affine(ty, stride.wrapping_neg())
                }
                _ => Varying,
            }),
            Inst::Binary { op, args, .. } => {
                let shapes = [shape(args[0])?, shape(args[1])?];
                Some(self.binary(*op, ty, *args, shapes))
            }
            Inst::Convert { op, arg, .. } => Some(match (op, shape(*arg)?) {
                (_, Uniform) => Uniform,
                (ConvertOp::Truncate, Affine { stride }) if ty != Type::I1 => affine(ty, stride),
                // Lanes on both sides of an overflow would be far apart. A signed index that
                // overflows within a warp is an error of the program; unsigned ones below 0 are
                // common, so they must be ruled out.
                (ConvertOp::SignExtend, Affine { stride }) => affine(ty, stride),
                (ConvertOp::ZeroExtend, Affine { stride }) if self.ranges.is_exact(*arg) => {
                    affine(ty, stride)
                }
                (ConvertOp::Bitcast, affine @ Affine { .. }) if ty.is_int() => affine,
                _ => Varying,
            }),
            Inst::Compare { cond, args, .. } => match (shape(args[0])?, shape(args[1])?) {
                (Uniform, Uniform) => Some(Uniform),
                // What lanes took at different times is of no row.
                (Affine { .. }, Uniform) if self.is_whole_rows(*cond, *args) => Some(Uniform),
                _ => Some(Varying),
            },
            Inst::Select { cond, args, .. } => match shape(*cond)? {
                Uniform => Some(join(shape(args[0])?, shape(args[1])?)),
                _ => Some(Varying),
            },
            Inst::Load { place, guard, .. } => {
                let addr = shape(place.addr)?;
                let guard = guard.map_or(Some(Uniform), shape)?;
                let once = addr == Uniform && guard == Uniform && place.space != Space::Local;
                Some(if once { Uniform } else { Varying })
            }
            Inst::Shuffle { mode: ShuffleMode::Index, lane, clamp, mask, .. } => {
                // All lanes read the same one when segments are the whole warp.
                let whole = self.kernel.constant(*clamp).is_some_and(|clamp| clamp >> 8 & 31 == 0);
                let same = shape(*lane)? == Uniform && shape(*mask)? == Uniform;
                Some(if whole && same { Uniform } else { Varying })
            }
            // The same for all lanes of one mask.
            Inst::Vote { mask, .. }
            | Inst::Redux { mask, .. }
            | Inst::Match { kind: MatchKind::All, mask, .. } => {
                Some(if shape(*mask)? == Uniform { Uniform } else { Varying })
            }
            Inst::Shuffle { .. }
            | Inst::Match { .. }
            | Inst::MatrixMultiply { .. }
            | Inst::Atomic { .. }
            | Inst::Sample { .. }
            | Inst::CallRuntime { .. } => Some(Varying),
            inst => {
                let mut result = Some(Uniform);
                inst.for_each_arg(|arg| {
                    result = match (result, shape(arg)) {
                        (Some(Uniform), Some(Uniform)) => Some(Uniform),
                        (None, _) | (_, None) => None,
                        _ => Some(Varying),
                    }
                });
                result
            }
        }
    }

    fn binary(&self, op: BinaryOp, ty: Type, args: [Value; 2], shapes: [Shape; 2]) -> Shape {
        use Shape::*;
        if shapes == [Uniform, Uniform] {
            return Uniform;
        }
        let stride = |shape: Shape| match shape {
            Uniform => Some(0),
            Affine { stride } => Some(stride),
            Varying => None,
        };
        let [Some(a), Some(b)] = shapes.map(stride) else { return Varying };
        let constant = |value: Value| self.kernel.constant(value).map(|bits| sign_extend(ty, bits));
        match op {
            _ if ty == Type::I1 => Varying,
            BinaryOp::Add => affine(ty, a.wrapping_add(b)),
            BinaryOp::Sub => affine(ty, a.wrapping_sub(b)),
            BinaryOp::Mul => match (constant(args[0]), constant(args[1])) {
                (Some(factor), _) => affine(ty, b.wrapping_mul(factor)),
                (_, Some(factor)) => affine(ty, a.wrapping_mul(factor)),
                _ => Varying,
            },
            BinaryOp::Shl if b == 0 => match self.kernel.constant(args[1]) {
                Some(amount) if amount < u64::from(ty.bits()) => affine(ty, a.wrapping_shl(amount as u32)),
                Some(_) => Uniform,
                None => Varying,
            },
            // Operands without common bits: the same as a sum.
            BinaryOp::Or | BinaryOp::Xor if self.ranges.are_disjoint(args[0], args[1]) => {
                affine(ty, a.wrapping_add(b))
            }
            BinaryOp::And => match (self.in_row(args[0]), self.kernel.constant(args[1])) {
                (true, Some(mask)) if mask & 31 == 0 => Uniform,
                (true, Some(mask)) if mask & 31 == 31 => Affine { stride: 1 },
                _ => Varying,
            },
            BinaryOp::ShrU | BinaryOp::ShrS => match self.kernel.constant(args[1]) {
                Some(5..) if self.in_row(args[0]) => Uniform,
                _ => Varying,
            },
            BinaryOp::DivU | BinaryOp::DivS => match self.kernel.constant(args[1]) {
                Some(divisor) if divisor != 0 && divisor % 32 == 0 && self.in_row(args[0]) => Uniform,
                _ => Varying,
            },
            BinaryOp::RemU | BinaryOp::RemS => match self.kernel.constant(args[1]) {
                Some(divisor) if divisor != 0 && divisor % 32 == 0 && self.in_row(args[0]) => {
                    Affine { stride: 1 }
                }
                _ => Varying,
            },
            _ => Varying,
        }
    }

    /// Whether a comparison with a constant has a multiple of 32 for its border, so that no warp
    /// lies on both sides.
    fn is_whole_rows(&self, cond: IntCond, args: [Value; 2]) -> bool {
        use IntCond::*;
        let Some(limit) = self.kernel.constant(args[1]) else { return false };
        let border = match cond {
            LtU | GeU | LtS | GeS => limit,
            LeU | GtU | LeS | GtS => limit.wrapping_add(1),
            Eq | Ne => return false,
        };
        border % 32 == 0 && self.in_row(args[0])
    }

    /// Whether lane l holds `32 * n + l` for some uniform n, far from overflow.
    fn in_row(&self, value: Value) -> bool {
        match self.kernel.definition(value).map(|data| &data.inst) {
            Some(Inst::Special { register: SpecialRegister::LaneId }) => true,
            Some(Inst::Special { register: SpecialRegister::TidX }) => self.block_shape == BlockShape::Rows,
            Some(Inst::Convert { op: ConvertOp::ZeroExtend | ConvertOp::SignExtend, arg, .. }) => {
                self.in_row(*arg)
            }
            Some(Inst::Convert { op: ConvertOp::Truncate, to, arg, .. }) => {
                to.bits() >= 16 && self.in_row(*arg)
            }
            _ => false,
        }
    }
}

/// Whether all edges to a block pass the same value for a parameter.
pub(super) fn passes_same_everywhere(
    kernel: &Kernel,
    regions: &Regions,
    block: BlockId,
    param: Value,
) -> bool {
    let Definition::Param { index, .. } = kernel.values[param.index()].definition else {
        return false;
    };
    let mut args = regions.preds(block).iter().flat_map(|pred| {
        let targets = kernel.block(*pred).terminator.targets();
        targets.filter(|target| target.block == block).map(|target| target.args[index as usize])
    });
    let first = args.next();
    args.all(|arg| Some(arg) == first)
}

/// Whether an instruction gives a thread the same result whenever it is executed, so that lanes
/// that have left a loop have what the loop continues with.
pub(super) fn is_same_in_all_iterations(inst: &Inst) -> bool {
    match inst {
        Inst::Const { .. } | Inst::GlobalAddress { .. } | Inst::WindowBase { .. } => true,
        Inst::Special { .. } => inst.effect() == Effect::Pure,
        _ => false,
    }
}

fn join(a: Shape, b: Shape) -> Shape {
    if a == b { a } else { Shape::Varying }
}

/// Affine with this stride as a number of type `ty`; uniform if that is 0.
fn affine(ty: Type, stride: i64) -> Shape {
    match sign_extend(ty, stride as u64) {
        0 => Shape::Uniform,
        stride => Shape::Affine { stride },
    }
}

fn sign_extend(ty: Type, bits: u64) -> i64 {
    let unused = 64 - ty.bits();
    ((bits << unused) as i64) >> unused
}
