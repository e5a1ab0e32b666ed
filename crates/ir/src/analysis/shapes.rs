//! How the lanes of a value relate, and which branches separate lanes.
//!
//! A shape speaks of the lanes that execute the defining instruction *together*, in one visit of a warp to the
//! block, and of their later uses of that result. It is sound for a back end that
//! - always goes on with the pending block of the lowest number, gathering all lanes that wait there (blocks are
//!   numbered so that this keeps the lanes of a loop in the same iteration: see `passes::layout`), and
//! - executes an instruction whose result is [`Shape::Uniform`] once for the warp. For a load that matters: other
//!   threads may write meanwhile, and two reads could differ.

use crate::inst::Inst;
use crate::kernel::Kernel;
use crate::types::{BlockId, Value};

/// How the lanes of one value relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The same in all lanes.
    Uniform,
    /// Integers: lane `l` holds `base + l * stride`, wrapping, for some uniform base. The stride is not 0.
    Affine { stride: i64 },
    /// Nothing is known.
    Varying,
}

/// The shapes of all values of a kernel and the branches that may separate lanes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shapes {
    /// By value.
    values: Vec<Shape>,
    /// By block: whether lanes may leave it for different successors.
    divergent: Vec<bool>,
}

impl Shapes {
    /// What holds without looking: constants are uniform, every conditional branch divergent.
    pub fn conservative(kernel: &Kernel) -> Shapes {
        let mut values = vec![Shape::Varying; kernel.values.len()];
        for inst in &kernel.insts {
            if matches!(inst.inst, Inst::Const { .. } | Inst::GlobalAddress { .. }) {
                values[inst.first_result.index()] = Shape::Uniform;
            }
        }
        let divergent = kernel.blocks.iter().map(|block| block.terminator.condition().is_some()).collect();
        Shapes { values, divergent }
    }

    pub fn shape(&self, value: Value) -> Shape {
        self.values[value.index()]
    }

    pub fn is_uniform(&self, value: Value) -> bool {
        self.shape(value) == Shape::Uniform
    }

    /// Whether lanes that enter this block together may leave it for different successors.
    pub fn is_divergent(&self, block: BlockId) -> bool {
        self.divergent[block.index()]
    }
}
