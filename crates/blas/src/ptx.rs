//! Writes the kernels' PTX.
//!
//! `sluice_library_base::writer` has registers, control flow and parameters, [`values`] arithmetic
//! on real and complex numbers and their forms in memory; the other modules write one family of
//! kernels each. All parameters of all kernels have 64 bits, and all counts and distances are
//! signed.

mod values;

pub(crate) mod elementwise;
pub(crate) mod epilogue;
pub(crate) mod factor;
pub(crate) mod panels;
pub(crate) mod product;
pub(crate) mod reduction;
pub(crate) mod triangular;
pub(crate) mod vector;

pub(crate) use sluice_library_base::writer::Source;

use crate::abi::Domain;
use sluice_library_base::writer::{Class, Register, Writer, emit};
use values::{Scalar, Value};

#[cfg(test)]
mod tests;
