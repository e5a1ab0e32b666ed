//! The intermediate representation of the software GPU: what a kernel is between PTX and machine
//! code.
//!
//! A [`Kernel`] is in SSA form with block parameters. Its meaning is that of one thread, as in PTX;
//! each value exists once per lane, so it is a vector of 32 lanes to those who look at a warp, and
//! the few instructions that look across lanes say so ([`Inst::is_collective`]). Nothing here
//! assumes lockstep: a back end may run the lanes of a warp together as long as they agree, and the
//! analyses say where they do.
//!
//! - [`types`], [`inst`], [`kernel`]: the definition. [`builder`]: a convenient way to write one.
//! - [`lower`]: from PTX, by way of [`ssa`]. [`verify`]: every invariant, checked.
//! - [`passes`]: better code, and the order of blocks. [`analysis`]: what is known about the lanes
//!   of a value.
//!
//! # What a back end can rely on
//! After the passes:
//! - Blocks are numbered in a reverse post-order that keeps each loop's blocks consecutive and
//!   gives it one back edge, from its last block. Running the pending block of the lowest number
//!   first therefore keeps the lanes of a loop in the same iteration and gathers them at the
//!   earliest common block. A target with a number not above its source is a back edge.
//! - A collective instruction is the first of its block, or the first one is a collective
//!   instruction of the warp with the same member mask (the same value), so that its lanes are
//!   there already.
//! - Edges may be critical; parameters of a block are assigned in parallel.

pub mod analysis;
pub mod builder;
pub mod inst;
#[cfg(feature = "interp")]
pub mod interp;
pub mod kernel;
pub mod lower;
pub mod matrix;
pub mod passes;
pub mod ssa;
pub mod tensor;
pub mod text;
pub mod texture;
pub mod types;
pub mod verify;

pub use builder::Builder;
pub use inst::{
    AtomicOp, BarrierKind, BinaryOp, ConvertOp, Effect, FloatCond, FloatOp, Inst, IntCond, MatchKind,
    MemoryOperand, MemoryOrder, Ordering, ReduxOp, Rounding, RuntimeFunction, Scope, ShuffleMode, Space,
    SpecialRegister, UnaryOp, VoteKind, Window,
};
pub use kernel::{
    Access, AccessKind, Block, Definition, InstData, Kernel, ParamLayout, ParamSlot, SharedLayout, Target,
    Terminator, ValueData,
};
pub use matrix::{MatrixElement, MatrixForm};
pub use types::{BlockId, GlobalId, InstId, Type, Value};
