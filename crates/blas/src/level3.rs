//! Functions on matrices (cuBLAS 2.7 and 2.8), for indices of 32 and of 64 bits.

mod factors;
mod matrices;
mod products;
pub(crate) mod special;

pub(crate) use products::is_built as products_are_built;

use std::ffi::c_void;

use crate::abi::{Domain, Element, Operation, Outcome, Status, Triangle};
use crate::entry::entry;
use crate::handle::{self, Handle, HandleId};
use crate::product::{Matrix, Product};
use crate::scalar::scalar;

/// The arguments of a product, whose scalars are where the caller has them.
struct Call {
    handle: HandleId,
    operations: [i32; 2],
    /// Rows and columns of C, and the length of the sums.
    sizes: [i64; 3],
    scalars: [*const c_void; 2],
    scalar: Element,
    domain: Domain,
    a: Matrix,
    b: Matrix,
    c: Matrix,
    batch: i64,
    by_pointers: bool,
    triangle: Option<Triangle>,
    is_hermitian: bool,
}

impl Call {
    /// A product of matrices of one type.
    fn uniform(
        handle: HandleId,
        operations: [i32; 2],
        sizes: [i64; 3],
        scalars: [*const c_void; 2],
        [a, b, c]: [Matrix; 3],
    ) -> Call {
        Call {
            handle,
            operations,
            sizes,
            scalars,
            scalar: c.element,
            domain: c.element.domain(),
            a,
            b,
            c,
            batch: 1,
            by_pointers: false,
            triangle: None,
            is_hermitian: false,
        }
    }

    /// # Safety
    /// Scalars that are neither null nor in device memory are of the type `scalar`.
    unsafe fn run(self) -> Status {
        // SAFETY: the caller's promise.
        entry(|| handle::with(self.handle, |handle| unsafe { self.run_with(handle) }))
    }

    /// # Safety
    /// As [`Call::run`].
    unsafe fn run_with(&self, handle: &mut Handle) -> Outcome {
        let [m, n, k] = self.sizes;
        let [a, b] = self.operations.map(Operation::parse);
        // SAFETY: the caller's promise.
        let [alpha, beta] =
            self.scalars.map(|address| unsafe { scalar(address, self.scalar, handle.pointer_mode) });
        let product = Product {
            m,
            n,
            k,
            operations: [a?, b?],
            a: self.a,
            b: self.b,
            c: self.c,
            alpha: alpha?,
            beta: beta?,
            scalar: self.scalar,
            domain: self.domain,
            batch: self.batch,
            by_pointers: self.by_pointers,
            triangle: self.triangle,
            is_hermitian: self.is_hermitian,
        };
        product.run(handle)
    }
}
