//! What is known about a kernel without changing it.

pub mod cfg;
pub mod loops;
pub mod shapes;

pub use cfg::{Cfg, Dominators};
pub use loops::{LoopId, Loops};
pub use shapes::{Shape, Shapes};
