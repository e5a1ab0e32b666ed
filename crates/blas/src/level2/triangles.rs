//! Triangular matrices with a vector, and updates of one triangle by vectors.

use std::ffi::{c_int, c_void};

use super::check;
use crate::abi::{Diagonal, Element, Operation, Outcome, Side, Status, Triangle};
use crate::entry::entry;
use crate::handle::{self, Handle, HandleId, Use};
use crate::level1::both_widths;
use crate::level3::special::expand;
use crate::product::{Batch, Strided, Update, multiply_strided};
use crate::ptx::elementwise::Shape;
use crate::ptx::vector::VectorOperation;
use crate::scalar::{constant, scalar};
use crate::triangular::System;
use crate::vector::{self, Vector};

/// Whether a function multiplies by a triangular matrix or solves its system.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Multiply,
    Solve,
}

/// `x = op(A) x`, or `op(A) x = b` in place of `b`
fn triangular(
    kind: Kind,
    handle: HandleId,
    [uplo, trans, diag]: [c_int; 3],
    order: i64,
    element: Element,
    a: (*const c_void, i64),
    (x, step): (*mut c_void, i64),
) -> Status {
    let work = |handle: &mut Handle| {
        let (triangle, operation) = (Triangle::parse(uplo)?, Operation::parse(trans)?);
        let diagonal = Diagonal::parse(diag)?;
        check(order >= 0 && a.1 >= order.max(1) && step != 0)?;
        if order == 0 {
            return Ok(());
        }
        let x = Vector::new(x as u64, element, order, step);
        let bytes = (order as u64).saturating_mul(element.bytes());
        let first = handle.scratch(Use::Result, bytes)?;
        let result = Vector { first, element, step: 1 };
        match kind {
            Kind::Solve => {
                copy(handle, order, x, result)?;
                let system = System {
                    side: Side::Left,
                    triangle,
                    operation,
                    diagonal,
                    m: order,
                    n: 1,
                    element,
                    alpha: constant(1, element),
                    a: a.0 as u64,
                    a_leading: a.1,
                    b: first,
                    b_leading: order,
                    batch: None,
                };
                system.run(handle)?;
            }
            Kind::Multiply => {
                let shape = match diagonal {
                    Diagonal::NonUnit => Shape::Triangular,
                    Diagonal::Unit => Shape::UnitTriangular,
                };
                let whole = expand(handle, triangle, shape, element, order, a)?;
                let steps = if operation.transposes() { [order, 1] } else { [1, order] };
                let conjugates = operation.conjugates();
                multiply_strided(
                    handle,
                    element,
                    [order, 1, order],
                    Strided { address: whole.address, steps, conjugates },
                    Strided { address: x.first, steps: [x.step, 0], conjugates: false },
                    Strided { address: first, steps: [1, 0], conjugates: false },
                    [constant(1, element), constant(0, element)],
                    None,
                    Batch::ONE,
                )?;
            }
        }
        copy(handle, order, result, x)
    };
    entry(|| handle::with(handle, work))
}

fn copy(handle: &Handle, count: i64, from: Vector, to: Vector) -> Outcome {
    let none = (Element::F32, constant(0, Element::F32));
    vector::run(handle, VectorOperation::Copy, count, [from, to], [none, none])
}

macro_rules! triangular {
    ($name:ident, $int:ty, $index:ident, $element:ident $kind:ident) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            handle: HandleId,
            uplo: c_int,
            trans: c_int,
            diag: c_int,
            n: $int,
            a: *const c_void,
            lda: $int,
            x: *mut c_void,
            incx: $int,
        ) -> Status {
            let (a, x, n) = ((a, i64::from(lda)), (x, i64::from(incx)), i64::from(n));
            triangular(Kind::$kind, handle, [uplo, trans, diag], n, Element::$element, a, x)
        }
    };
}

both_widths! { triangular {
    F32 Multiply: cublasStrmv_v2 cublasStrmv_v2_64;
    F64 Multiply: cublasDtrmv_v2 cublasDtrmv_v2_64;
    C32 Multiply: cublasCtrmv_v2 cublasCtrmv_v2_64;
    C64 Multiply: cublasZtrmv_v2 cublasZtrmv_v2_64;
    F32 Solve: cublasStrsv_v2 cublasStrsv_v2_64;
    F64 Solve: cublasDtrsv_v2 cublasDtrsv_v2_64;
    C32 Solve: cublasCtrsv_v2 cublasCtrsv_v2_64;
    C64 Solve: cublasZtrsv_v2 cublasZtrsv_v2_64;
} }

/// `A = alpha x x^T + A` in one triangle, or with the conjugate of `x` and a real `alpha`
///
/// # Safety
/// A scalar that is neither null nor in device memory is of the type `scalar`.
unsafe fn rank_1(
    handle: HandleId,
    uplo: c_int,
    order: i64,
    (element, is_hermitian): (Element, bool),
    alpha: *const c_void,
    x: (*const c_void, i64),
    a: (*mut c_void, i64),
) -> Status {
    let work = |handle: &mut Handle| {
        let triangle = Triangle::parse(uplo)?;
        check(order >= 0 && a.1 >= order.max(1) && x.1 != 0)?;
        if order == 0 {
            return Ok(());
        }
        let x = Vector::new(x.0 as u64, element, order, x.1);
        let scalar_type = if is_hermitian { element.component() } else { element };
        // SAFETY: the caller's promise.
        let alpha = unsafe { scalar(alpha, scalar_type, handle.pointer_mode)? };
        multiply_strided(
            handle,
            element,
            [order, order, 1],
            Strided { address: x.first, steps: [x.step, 0], conjugates: false },
            Strided { address: x.first, steps: [0, x.step], conjugates: is_hermitian },
            Strided { address: a.0 as u64, steps: [1, a.1], conjugates: false },
            [alpha, constant(1, scalar_type)],
            Some(Update { triangle, is_hermitian }),
            Batch::ONE,
        )
    };
    entry(|| handle::with(handle, work))
}

macro_rules! rank_1 {
    ($name:ident, $int:ty, $index:ident, $element:ident $is_hermitian:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            handle: HandleId,
            uplo: c_int,
            n: $int,
            alpha: *const c_void,
            x: *const c_void,
            incx: $int,
            a: *mut c_void,
            lda: $int,
        ) -> Status {
            let (x, a, n) = ((x, i64::from(incx)), (a, i64::from(lda)), i64::from(n));
            // SAFETY: the caller passes scalars as the interface says.
            unsafe { rank_1(handle, uplo, n, (Element::$element, $is_hermitian), alpha, x, a) }
        }
    };
}

both_widths! { rank_1 {
    F32 false: cublasSsyr_v2 cublasSsyr_v2_64;
    F64 false: cublasDsyr_v2 cublasDsyr_v2_64;
    C32 false: cublasCsyr_v2 cublasCsyr_v2_64;
    C64 false: cublasZsyr_v2 cublasZsyr_v2_64;
    C32 true: cublasCher_v2 cublasCher_v2_64;
    C64 true: cublasZher_v2 cublasZher_v2_64;
} }
