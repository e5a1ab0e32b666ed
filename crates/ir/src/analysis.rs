//! What is known about a kernel without changing it.

pub mod shapes;

pub use shapes::{Shape, Shapes};
