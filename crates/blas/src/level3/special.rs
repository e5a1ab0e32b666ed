//! Products with symmetric, Hermitian and triangular matrices, which become whole matrices first,
//! and updates by two products.

use std::ffi::{c_int, c_void};

use super::matrices::check;
use crate::abi::{Diagonal, Element, Operation, Outcome, Side, Status, Triangle};
use crate::driver::Driver;
use crate::elementwise;
use crate::entry::entry;
use crate::handle::{self, Handle, HandleId, Use};
use crate::level1::both_widths;
use crate::product::{Matrix, Product};
use crate::ptx::elementwise::{MatrixOperation, Shape};
use crate::scalar::{Words, constant, scalar};

/// Makes a whole matrix of a triangle.
pub(crate) fn expand(
    handle: &mut Handle,
    triangle: Triangle,
    shape: Shape,
    element: Element,
    order: i64,
    (address, leading): (*const c_void, i64),
) -> Outcome<Matrix> {
    let size = (order as u64).saturating_mul(order as u64).saturating_mul(element.bytes());
    let whole = handle.scratch(Use::Expanded, size)?;
    let places = [[address as u64, 1, leading as u64], [0; 3], [whole, 1, order as u64]];
    let none = [constant(0, element); 2];
    let operation = MatrixOperation::Expand(triangle, shape);
    elementwise::run(handle, operation, element, [order; 2], places, none)?;
    Ok(Matrix { address: whole, element, leading: order, stride: 0 })
}

/// A product of two matrices of one type.
fn product(
    [m, n, k]: [i64; 3],
    operations: [Operation; 2],
    [a, b, c]: [Matrix; 3],
    [alpha, beta]: [Words; 2],
) -> Product {
    Product {
        m,
        n,
        k,
        operations,
        a,
        b,
        c,
        alpha,
        beta,
        scalar: c.element,
        domain: c.element.domain(),
        batch: 1,
        by_pointers: false,
        triangle: None,
        is_hermitian: false,
    }
}

/// `C = alpha A B + beta C`, or `alpha B A + beta C`, with a symmetric or Hermitian `A`
///
/// # Safety
/// Scalars that are neither null nor in device memory are of the element type.
unsafe fn symm(
    handle: HandleId,
    [side, uplo]: [c_int; 2],
    [m, n]: [i64; 2],
    (element, shape): (Element, Shape),
    [alpha, beta]: [*const c_void; 2],
    a: (*const c_void, i64),
    [b, c]: [Matrix; 2],
) -> Status {
    let work = |handle: &mut Handle| {
        let (side, triangle) = (Side::parse(side)?, Triangle::parse(uplo)?);
        let order = if side == Side::Left { m } else { n };
        check(m >= 0 && n >= 0 && a.1 >= order.max(1))?;
        check(b.leading >= m.max(1) && c.leading >= m.max(1))?;
        if m == 0 || n == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        let scalars = unsafe {
            [scalar(alpha, element, handle.pointer_mode)?, scalar(beta, element, handle.pointer_mode)?]
        };
        let whole = expand(handle, triangle, shape, element, order, a)?;
        let operands = if side == Side::Left { [whole, b, c] } else { [b, whole, c] };
        product([m, n, order], [Operation::Plain; 2], operands, scalars).run(handle)
    };
    entry(|| handle::with(handle, work))
}

macro_rules! symm {
    ($name:ident, $int:ty, $index:ident, $element:ident $shape:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            handle: HandleId,
            side: c_int,
            uplo: c_int,
            m: $int,
            n: $int,
            alpha: *const c_void,
            a: *const c_void,
            lda: $int,
            b: *const c_void,
            ldb: $int,
            beta: *const c_void,
            c: *mut c_void,
            ldc: $int,
        ) -> Status {
            let matrix = |address, leading| Matrix::new(address, Element::$element, leading);
            let matrices = [matrix(b, i64::from(ldb)), matrix(c, i64::from(ldc))];
            let (sizes, kind) = ([i64::from(m), i64::from(n)], (Element::$element, Shape::$shape));
            let a = (a, i64::from(lda));
            // SAFETY: the caller passes scalars as the interface says.
            unsafe { symm(handle, [side, uplo], sizes, kind, [alpha, beta], a, matrices) }
        }
    };
}

both_widths! { symm {
    F32 Symmetric: cublasSsymm_v2 cublasSsymm_v2_64;
    F64 Symmetric: cublasDsymm_v2 cublasDsymm_v2_64;
    C32 Symmetric: cublasCsymm_v2 cublasCsymm_v2_64;
    C64 Symmetric: cublasZsymm_v2 cublasZsymm_v2_64;
    C32 Hermitian: cublasChemm_v2 cublasChemm_v2_64;
    C64 Hermitian: cublasZhemm_v2 cublasZhemm_v2_64;
} }

/// `C = alpha op(A) B`, or `alpha B op(A)`, with a triangular `A`; C may be B.
///
/// # Safety
/// A scalar that is neither null nor in device memory is of the element type.
unsafe fn trmm(
    handle: HandleId,
    [side, uplo, trans, diag]: [c_int; 4],
    [m, n]: [i64; 2],
    element: Element,
    alpha: *const c_void,
    a: (*const c_void, i64),
    [b, c]: [Matrix; 2],
) -> Status {
    let work = |handle: &mut Handle| {
        let (side, triangle) = (Side::parse(side)?, Triangle::parse(uplo)?);
        let operation = Operation::parse(trans)?;
        let shape = match Diagonal::parse(diag)? {
            Diagonal::NonUnit => Shape::Triangular,
            Diagonal::Unit => Shape::UnitTriangular,
        };
        let order = if side == Side::Left { m } else { n };
        check(m >= 0 && n >= 0 && a.1 >= order.max(1))?;
        check(b.leading >= m.max(1) && c.leading >= m.max(1))?;
        if m == 0 || n == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        let alpha = unsafe { scalar(alpha, element, handle.pointer_mode)? };
        let whole = expand(handle, triangle, shape, element, order, a)?;
        let zero = constant(0, element);
        let result = match b.address == c.address {
            false => c,
            true => {
                let bytes = (m as u64).saturating_mul(n as u64).saturating_mul(element.bytes());
                let address = handle.scratch(Use::Result, bytes)?;
                Matrix { address, leading: m, ..c }
            }
        };
        let (operands, operations) = match side {
            Side::Left => ([whole, b, result], [operation, Operation::Plain]),
            Side::Right => ([b, whole, result], [Operation::Plain, operation]),
        };
        product([m, n, order], operations, operands, [alpha, zero]).run(handle)?;
        if result.address == c.address {
            return Ok(());
        }
        let place = |matrix: &Matrix| [matrix.address, 1, matrix.leading as u64];
        let copy = MatrixOperation::Sum { conjugates: [false; 2] };
        let places = [place(&result), [0; 3], place(&c)];
        elementwise::run(handle, copy, element, [m, n], places, [constant(1, element), zero])
    };
    entry(|| handle::with(handle, work))
}

macro_rules! trmm {
    ($name:ident, $int:ty, $index:ident, $element:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            handle: HandleId,
            side: c_int,
            uplo: c_int,
            trans: c_int,
            diag: c_int,
            m: $int,
            n: $int,
            alpha: *const c_void,
            a: *const c_void,
            lda: $int,
            b: *const c_void,
            ldb: $int,
            c: *mut c_void,
            ldc: $int,
        ) -> Status {
            let matrix = |address, leading| Matrix::new(address, Element::$element, leading);
            let matrices = [matrix(b, i64::from(ldb)), matrix(c, i64::from(ldc))];
            let (sizes, a) = ([i64::from(m), i64::from(n)], (a, i64::from(lda)));
            let options = [side, uplo, trans, diag];
            // SAFETY: the caller passes scalars as the interface says.
            unsafe { trmm(handle, options, sizes, Element::$element, alpha, a, matrices) }
        }
    };
}

both_widths! { trmm {
    F32: cublasStrmm_v2 cublasStrmm_v2_64;
    F64: cublasDtrmm_v2 cublasDtrmm_v2_64;
    C32: cublasCtrmm_v2 cublasCtrmm_v2_64;
    C64: cublasZtrmm_v2 cublasZtrmm_v2_64;
} }

/// `C = alpha op(A) op(B)^T + alpha op(B) op(A)^T + beta C` in one triangle
///
/// # Safety
/// Scalars that are neither null nor in device memory are of the element type.
unsafe fn syr2k(
    handle: HandleId,
    [uplo, trans]: [c_int; 2],
    [n, k]: [i64; 2],
    [alpha, beta]: [*const c_void; 2],
    [a, b, c]: [Matrix; 3],
) -> Status {
    let work = |handle: &mut Handle| {
        let element = c.element;
        let triangle = Some(Triangle::parse(uplo)?);
        let operations = match Operation::parse(trans)? {
            Operation::Plain => [Operation::Plain, Operation::Transpose],
            Operation::Adjoint if element.is_complex() => return Err(Status::INVALID_VALUE),
            Operation::Transpose | Operation::Adjoint => [Operation::Transpose, Operation::Plain],
            Operation::Conjugate => return Err(Status::INVALID_VALUE),
        };
        // SAFETY: the caller's promise.
        let scalars = unsafe {
            [scalar(alpha, element, handle.pointer_mode)?, scalar(beta, element, handle.pointer_mode)?]
        };
        let half = |operands: [Matrix; 3], beta: Words| Product {
            triangle,
            ..product([n, n, k], operations, operands, [scalars[0], beta])
        };
        half([a, b, c], scalars[1]).run(handle)?;
        half([b, a, c], constant(1, element)).run(handle)
    };
    entry(|| handle::with(handle, work))
}

macro_rules! syr2k {
    ($name:ident, $int:ty, $index:ident, $element:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            handle: HandleId,
            uplo: c_int,
            trans: c_int,
            n: $int,
            k: $int,
            alpha: *const c_void,
            a: *const c_void,
            lda: $int,
            b: *const c_void,
            ldb: $int,
            beta: *const c_void,
            c: *mut c_void,
            ldc: $int,
        ) -> Status {
            let matrix = |address, leading| Matrix::new(address, Element::$element, leading);
            let matrices = [matrix(a, i64::from(lda)), matrix(b, i64::from(ldb)), matrix(c, i64::from(ldc))];
            let sizes = [i64::from(n), i64::from(k)];
            // SAFETY: the caller passes scalars as the interface says.
            unsafe { syr2k(handle, [uplo, trans], sizes, [alpha, beta], matrices) }
        }
    };
}

both_widths! { syr2k {
    F32: cublasSsyr2k_v2 cublasSsyr2k_v2_64;
    F64: cublasDsyr2k_v2 cublasDsyr2k_v2_64;
    C32: cublasCsyr2k_v2 cublasCsyr2k_v2_64;
    C64: cublasZsyr2k_v2 cublasZsyr2k_v2_64;
} }

/// `C = alpha op(A) op(B)^H + conj(alpha) op(B) op(A)^H + beta C` in one triangle, or its first
/// product alone
///
/// # Safety
/// `alpha` and `beta` that are neither null nor in device memory are of the element type and of its
/// component's.
unsafe fn her2k(
    handle: HandleId,
    [uplo, trans]: [c_int; 2],
    [n, k]: [i64; 2],
    [alpha, beta]: [*const c_void; 2],
    [a, b, c]: [Matrix; 3],
    has_both: bool,
) -> Status {
    let work = |handle: &mut Handle| {
        let element = c.element;
        let triangle = Some(Triangle::parse(uplo)?);
        let operations = match Operation::parse(trans)? {
            Operation::Plain => [Operation::Plain, Operation::Adjoint],
            Operation::Adjoint => [Operation::Adjoint, Operation::Plain],
            Operation::Transpose | Operation::Conjugate => return Err(Status::INVALID_VALUE),
        };
        // Both scalars have to be complex, and one of them conjugated, so their values are needed.
        let [alpha, beta] = [(alpha, element), (beta, element.component())].map(|(address, element)| {
            // SAFETY: the caller's promise.
            unsafe { scalar(address, element, handle.pointer_mode) }
                .and_then(|words| on_host(handle, words, element))
        });
        let ([_, re, im], [_, beta, _]) = (alpha?, beta?);
        let sign = if element == Element::C64 { 1 << 63 } else { 1 << 31 };
        let part = |operands: [Matrix; 3], scalars: [Words; 2], is_last: bool| Product {
            triangle,
            // The first of two products alone is not Hermitian.
            is_hermitian: is_last,
            ..product([n, n, k], operations, operands, scalars)
        };
        part([a, b, c], [[0, re, im], [0, beta, 0]], !has_both).run(handle)?;
        if !has_both {
            return Ok(());
        }
        part([b, a, c], [[0, re, im ^ sign], constant(1, element)], true).run(handle)
    };
    entry(|| handle::with(handle, work))
}

/// The value of a scalar, which is read if it is in device memory.
fn on_host(handle: &Handle, words: Words, element: Element) -> Outcome<Words> {
    let [address, ..] = words;
    if address == 0 {
        return Ok(words);
    }
    let mut bytes = [0; 16];
    let size = element.bytes() as usize;
    Driver::get()?.read(address, &mut bytes[..size], handle.stream)?;
    let width = element.component().bytes() as usize;
    let part = |number: usize| {
        let mut word = [0; 8];
        word[..width].copy_from_slice(&bytes[number * width..][..width]);
        u64::from_le_bytes(word)
    };
    Ok([0, part(0), if element.is_complex() { part(1) } else { 0 }])
}

macro_rules! her2k {
    ($name:ident, $int:ty, $index:ident, $element:ident $has_both:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            handle: HandleId,
            uplo: c_int,
            trans: c_int,
            n: $int,
            k: $int,
            alpha: *const c_void,
            a: *const c_void,
            lda: $int,
            b: *const c_void,
            ldb: $int,
            beta: *const c_void,
            c: *mut c_void,
            ldc: $int,
        ) -> Status {
            let matrix = |address, leading| Matrix::new(address, Element::$element, leading);
            let matrices = [matrix(a, i64::from(lda)), matrix(b, i64::from(ldb)), matrix(c, i64::from(ldc))];
            let sizes = [i64::from(n), i64::from(k)];
            // SAFETY: the caller passes scalars as the interface says.
            unsafe { her2k(handle, [uplo, trans], sizes, [alpha, beta], matrices, $has_both) }
        }
    };
}

both_widths! { her2k {
    C32 true: cublasCher2k_v2 cublasCher2k_v2_64;
    C64 true: cublasZher2k_v2 cublasZher2k_v2_64;
    C32 false: cublasCherkx cublasCherkx_64;
    C64 false: cublasZherkx cublasZherkx_64;
} }
