//! Triangular systems, symmetric updates, and operations on the elements of matrices.

use std::ffi::{c_int, c_void};

use super::Call;
use crate::abi::{Diagonal, Element, Operation, Outcome, Side, Status, Triangle};
use crate::elementwise;
use crate::entry::entry;
use crate::handle::{self, Handle, HandleId};
use crate::level1::both_widths;
use crate::product::Matrix;
use crate::ptx::elementwise::MatrixOperation;
use crate::scalar::{constant, scalar};
use crate::triangular::System;
use crate::vector::Vector;

/// The number of `cublasOperation_t` for no operation.
const PLAIN: c_int = Operation::Plain as c_int;

pub(super) fn check(is_valid: bool) -> Outcome {
    if is_valid { Ok(()) } else { Err(Status::INVALID_VALUE) }
}

/// `C = alpha op(A) op(B)^T + beta C` in one triangle, with the adjoint of B if C is Hermitian.
///
/// # Safety
/// Scalars that are neither null nor in device memory are of the type `scalar`.
unsafe fn update(
    handle: HandleId,
    triangle: c_int,
    operation: c_int,
    [n, k]: [i64; 2],
    (scalars, scalar): ([*const c_void; 2], Element),
    matrices: [Matrix; 3],
    is_hermitian: bool,
) -> Status {
    let parsed = || {
        let (triangle, operation) = (Triangle::parse(triangle)?, Operation::parse(operation)?);
        // The other operation of a complex matrix would not give a symmetric, or Hermitian, result.
        let other = if is_hermitian { Operation::Adjoint } else { Operation::Transpose };
        let is_real = !matrices[2].element.is_complex();
        match operation {
            Operation::Plain => Ok((triangle, [PLAIN, other as c_int])),
            operation if operation == other || (is_real && operation == Operation::Adjoint) => {
                Ok((triangle, [other as c_int, PLAIN]))
            }
            _ => Err(Status::INVALID_VALUE),
        }
    };
    let (triangle, operations) = match parsed() {
        Ok(parsed) => parsed,
        Err(status) => return status,
    };
    let call = Call {
        scalar,
        triangle: Some(triangle),
        is_hermitian,
        ..Call::uniform(handle, operations, [n, n, k], scalars, matrices)
    };
    // SAFETY: the caller's promise.
    unsafe { call.run() }
}

macro_rules! syrk {
    ($name:ident, $int:ty, $index:ident, $element:ident $scalar:ident $is_hermitian:ident) => {
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
            beta: *const c_void,
            c: *mut c_void,
            ldc: $int,
        ) -> Status {
            let a = Matrix::new(a, Element::$element, i64::from(lda));
            let c = Matrix::new(c, Element::$element, i64::from(ldc));
            let (sizes, scalars) = ([i64::from(n), i64::from(k)], ([alpha, beta], Element::$scalar));
            // SAFETY: the caller passes scalars as the interface says.
            unsafe { update(handle, uplo, trans, sizes, scalars, [a, a, c], $is_hermitian) }
        }
    };
}

both_widths! { syrk {
    F32 F32 false: cublasSsyrk_v2 cublasSsyrk_v2_64;
    F64 F64 false: cublasDsyrk_v2 cublasDsyrk_v2_64;
    C32 C32 false: cublasCsyrk_v2 cublasCsyrk_v2_64;
    C64 C64 false: cublasZsyrk_v2 cublasZsyrk_v2_64;
    C32 F32 true: cublasCherk_v2 cublasCherk_v2_64;
    C64 F64 true: cublasZherk_v2 cublasZherk_v2_64;
} }

macro_rules! syrkx {
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
            let scalars = ([alpha, beta], Element::$element);
            let sizes = [i64::from(n), i64::from(k)];
            // SAFETY: the caller passes scalars as the interface says.
            unsafe { update(handle, uplo, trans, sizes, scalars, matrices, false) }
        }
    };
}

both_widths! { syrkx {
    F32: cublasSsyrkx cublasSsyrkx_64;
    F64: cublasDsyrkx cublasDsyrkx_64;
    C32: cublasCsyrkx cublasCsyrkx_64;
    C64: cublasZsyrkx cublasZsyrkx_64;
} }

/// Triangular systems; `batch` if matrices are given by arrays of pointers.
///
/// # Safety
/// A scalar that is neither null nor in device memory is of the element type.
unsafe fn trsm(
    handle: HandleId,
    [side, uplo, trans, diag]: [c_int; 4],
    [m, n]: [i64; 2],
    (element, alpha): (Element, *const c_void),
    (a, a_leading): (*const c_void, i64),
    (b, b_leading): (*const c_void, i64),
    batch: Option<i64>,
) -> Status {
    let work = |handle: &mut Handle| {
        let side = Side::parse(side)?;
        let order = if side == Side::Left { m } else { n };
        check(m >= 0 && n >= 0 && a_leading >= order.max(1) && b_leading >= m.max(1))?;
        check(batch.is_none_or(|batch| batch >= 0))?;
        System {
            side,
            triangle: Triangle::parse(uplo)?,
            operation: Operation::parse(trans)?,
            diagonal: Diagonal::parse(diag)?,
            m,
            n,
            element,
            // SAFETY: the caller's promise.
            alpha: unsafe { scalar(alpha, element, handle.pointer_mode)? },
            a: a as u64,
            a_leading,
            b: b as u64,
            b_leading,
            batch,
        }
        .run(handle)
    };
    entry(|| handle::with(handle, work))
}

macro_rules! trsm {
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
            b: *mut c_void,
            ldb: $int,
        ) -> Status {
            let (sizes, scalar) = ([i64::from(m), i64::from(n)], (Element::$element, alpha));
            let (a, b) = ((a, i64::from(lda)), (b.cast_const(), i64::from(ldb)));
            // SAFETY: the caller passes scalars as the interface says.
            unsafe { trsm(handle, [side, uplo, trans, diag], sizes, scalar, a, b, None) }
        }
    };
}

both_widths! { trsm {
    F32: cublasStrsm_v2 cublasStrsm_v2_64;
    F64: cublasDtrsm_v2 cublasDtrsm_v2_64;
    C32: cublasCtrsm_v2 cublasCtrsm_v2_64;
    C64: cublasZtrsm_v2 cublasZtrsm_v2_64;
} }

macro_rules! trsm_batched {
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
            batch: $int,
        ) -> Status {
            let (sizes, scalar) = ([i64::from(m), i64::from(n)], (Element::$element, alpha));
            let (a, b, batch) = ((a, i64::from(lda)), (b, i64::from(ldb)), Some(i64::from(batch)));
            // SAFETY: the caller passes scalars as the interface says.
            unsafe { trsm(handle, [side, uplo, trans, diag], sizes, scalar, a, b, batch) }
        }
    };
}

both_widths! { trsm_batched {
    F32: cublasStrsmBatched cublasStrsmBatched_64;
    F64: cublasDtrsmBatched cublasDtrsmBatched_64;
    C32: cublasCtrsmBatched cublasCtrsmBatched_64;
    C64: cublasZtrsmBatched cublasZtrsmBatched_64;
} }

/// `C = alpha op(A) + beta op(B)`
///
/// # Safety
/// Scalars that are neither null nor in device memory are of the element type.
unsafe fn geam(
    handle: HandleId,
    operations: [c_int; 2],
    [m, n]: [i64; 2],
    (element, scalars): (Element, [*const c_void; 2]),
    operands: [(*const c_void, i64); 2],
    c: (*mut c_void, i64),
) -> Status {
    let work = |handle: &mut Handle| {
        let operations = [Operation::parse(operations[0])?, Operation::parse(operations[1])?];
        check(m >= 0 && n >= 0 && c.1 >= m.max(1))?;
        let [alpha, beta] = scalars.map(|address| match address.is_null() {
            // cuSOLVER passes null for what it does not want.
            true => Ok(constant(0, element)),
            // SAFETY: the caller's promise.
            false => unsafe { scalar(address, element, handle.pointer_mode) },
        });
        let scalars = [alpha?, beta?];
        let mut places = [[0; 3], [0; 3], [c.0 as u64, 1, c.1 as u64]];
        for (number, place) in places.iter_mut().take(2).enumerate() {
            let ((address, leading), operation) = (operands[number], operations[number]);
            let rows = if operation.transposes() { n } else { m };
            // What is multiplied by 0 is not read, and callers pass anything for it.
            check(leading >= rows.max(1) || scalars[number] == constant(0, element))?;
            let leading = leading as u64;
            *place = match operation.transposes() {
                true => [address as u64, leading, 1],
                false => [address as u64, 1, leading],
            };
        }
        let conjugates = operations.map(|one| one.conjugates() && element.is_complex());
        let operation = MatrixOperation::Sum { conjugates };
        elementwise::run(handle, operation, element, [m, n], places, scalars)
    };
    entry(|| handle::with(handle, work))
}

macro_rules! geam {
    ($name:ident, $int:ty, $index:ident, $element:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            handle: HandleId,
            transa: c_int,
            transb: c_int,
            m: $int,
            n: $int,
            alpha: *const c_void,
            a: *const c_void,
            lda: $int,
            beta: *const c_void,
            b: *const c_void,
            ldb: $int,
            c: *mut c_void,
            ldc: $int,
        ) -> Status {
            let (sizes, scalars) = ([i64::from(m), i64::from(n)], (Element::$element, [alpha, beta]));
            let operands = [(a, i64::from(lda)), (b, i64::from(ldb))];
            let c = (c, i64::from(ldc));
            // SAFETY: the caller passes scalars as the interface says.
            unsafe { geam(handle, [transa, transb], sizes, scalars, operands, c) }
        }
    };
}

both_widths! { geam {
    F32: cublasSgeam cublasSgeam_64;
    F64: cublasDgeam cublasDgeam_64;
    C32: cublasCgeam cublasCgeam_64;
    C64: cublasZgeam cublasZgeam_64;
} }

/// Runs an operation that has no scalars.
fn without_scalars(
    handle: HandleId,
    operation: impl FnOnce() -> Outcome<MatrixOperation>,
    element: Element,
    sizes: [i64; 2],
    places: [[u64; 3]; 3],
) -> Status {
    let none = constant(0, element);
    let work =
        |handle: &mut Handle| elementwise::run(handle, operation()?, element, sizes, places, [none, none]);
    entry(|| handle::with(handle, work))
}

macro_rules! dgmm {
    ($name:ident, $int:ty, $index:ident, $element:ident) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            handle: HandleId,
            mode: c_int,
            m: $int,
            n: $int,
            a: *const c_void,
            lda: $int,
            x: *const c_void,
            incx: $int,
            c: *mut c_void,
            ldc: $int,
        ) -> Status {
            let [m, n, lda, incx, ldc] = [m, n, lda, incx, ldc].map(i64::from);
            let operation = || {
                check(m >= 0 && n >= 0 && lda >= m.max(1) && ldc >= m.max(1))?;
                Ok(MatrixOperation::Scale(Side::parse(mode)?))
            };
            let count = if mode == Side::Left as c_int { m } else { n };
            let x = Vector::new(x as u64, Element::$element, count, incx);
            let places = [[a as u64, 1, lda as u64], [x.first, x.step as u64, 0], [c as u64, 1, ldc as u64]];
            without_scalars(handle, operation, Element::$element, [m, n], places)
        }
    };
}

both_widths! { dgmm {
    F32: cublasSdgmm cublasSdgmm_64;
    F64: cublasDdgmm cublasDdgmm_64;
    C32: cublasCdgmm cublasCdgmm_64;
    C64: cublasZdgmm cublasZdgmm_64;
} }

macro_rules! tpttr {
    ($name:ident, $element:ident) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            handle: HandleId,
            uplo: c_int,
            n: c_int,
            packed: *const c_void,
            a: *mut c_void,
            lda: c_int,
        ) -> Status {
            let (n, lda) = (i64::from(n), i64::from(lda));
            let operation = || {
                check(n >= 0 && lda >= n.max(1))?;
                Ok(MatrixOperation::Unpack(Triangle::parse(uplo)?))
            };
            let places = [[packed as u64, 0, 0], [0; 3], [a as u64, 1, lda as u64]];
            without_scalars(handle, operation, Element::$element, [n, n], places)
        }
    };
}

macro_rules! trttp {
    ($name:ident, $element:ident) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            handle: HandleId,
            uplo: c_int,
            n: c_int,
            a: *const c_void,
            lda: c_int,
            packed: *mut c_void,
        ) -> Status {
            let (n, lda) = (i64::from(n), i64::from(lda));
            let operation = || {
                check(n >= 0 && lda >= n.max(1))?;
                Ok(MatrixOperation::Pack(Triangle::parse(uplo)?))
            };
            let places = [[a as u64, 1, lda as u64], [0; 3], [packed as u64, 0, 0]];
            without_scalars(handle, operation, Element::$element, [n, n], places)
        }
    };
}

tpttr!(cublasStpttr, F32);
tpttr!(cublasDtpttr, F64);
tpttr!(cublasCtpttr, C32);
tpttr!(cublasZtpttr, C64);
trttp!(cublasStrttp, F32);
trttp!(cublasDtrttp, F64);
trttp!(cublasCtrttp, C32);
trttp!(cublasZtrttp, C64);
