//! What is known about a kernel without changing it.

pub mod cfg;
mod divergence;
pub mod loops;
mod pressure;
mod quads;
mod ranges;
pub mod shapes;

pub use cfg::{Cfg, Dominators};
pub use loops::{LoopId, Loops};
pub use pressure::pressure;
pub use quads::QuadShape;
pub use shapes::{BlockShape, Shape, Shapes};
