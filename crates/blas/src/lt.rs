//! Implements cuBLASLt (cuBLAS 3): products that descriptors describe, with an epilogue.
//!
//! A handle of cuBLASLt is one of cuBLAS's here. [`descriptor`] has the descriptors, [`multiply`]
//! the product that they describe, and [`exports`] the C functions.

mod descriptor;
mod exports;
mod multiply;
