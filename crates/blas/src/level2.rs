//! Functions on a matrix and vectors (cuBLAS 2.6), for indices of 32 and of 64 bits.

mod triangles;

use std::ffi::{c_int, c_longlong, c_void};

use crate::abi::{Element, Operation, Outcome, Status, Triangle};
use crate::entry::entry;
use crate::handle::{self, Handle, HandleId};
use crate::kernels;
use crate::level1::both_widths;
use crate::product::{Batch, Strided, multiply_strided};
use crate::ptx::triangular::SymmetricVector;
use crate::scalar::{constant, scalar};
use crate::vector::{Vector, launch_1d};

/// `y = alpha op(A) x + beta y`
///
/// # Safety
/// Scalars that are neither null nor in device memory are of the element type.
unsafe fn gemv(
    handle: HandleId,
    operation: c_int,
    [m, n]: [i64; 2],
    element: Element,
    [alpha, beta]: [*const c_void; 2],
    a: (*const c_void, i64),
    x: (*const c_void, i64),
    y: (*mut c_void, i64),
    batch: Batch,
) -> Status {
    let work = |handle: &mut Handle| {
        let operation = Operation::parse(operation)?;
        check(batch.count >= 0 && m >= 0 && n >= 0 && a.1 >= m.max(1) && x.1 != 0 && y.1 != 0)?;
        let (rows, columns) = if operation.transposes() { (n, m) } else { (m, n) };
        if m == 0 || n == 0 || batch.count == 0 {
            return Ok(());
        }
        let steps = if operation.transposes() { [a.1, 1] } else { [1, a.1] };
        let x = Vector::new(x.0 as u64, element, columns, x.1);
        let y = Vector::new(y.0 as u64, element, rows, y.1);
        // SAFETY: the caller's promise.
        let scalars = unsafe {
            [scalar(alpha, element, handle.pointer_mode)?, scalar(beta, element, handle.pointer_mode)?]
        };
        multiply_strided(
            handle,
            element,
            [rows, 1, columns],
            Strided { address: a.0 as u64, steps, conjugates: operation.conjugates() },
            Strided { address: x.first, steps: [x.step, 0], conjugates: false },
            Strided { address: y.first, steps: [y.step, 0], conjugates: false },
            scalars,
            None,
            batch,
        )
    };
    entry(|| handle::with(handle, work))
}

/// `A = alpha x y^T + A`, or with the conjugate of `y`
///
/// # Safety
/// A scalar that is neither null nor in device memory is of the element type.
unsafe fn ger(
    handle: HandleId,
    [m, n]: [i64; 2],
    element: Element,
    conjugates: bool,
    alpha: *const c_void,
    x: (*const c_void, i64),
    y: (*const c_void, i64),
    a: (*mut c_void, i64),
) -> Status {
    let work = |handle: &mut Handle| {
        check(m >= 0 && n >= 0 && a.1 >= m.max(1) && x.1 != 0 && y.1 != 0)?;
        if m == 0 || n == 0 {
            return Ok(());
        }
        let x = Vector::new(x.0 as u64, element, m, x.1);
        let y = Vector::new(y.0 as u64, element, n, y.1);
        // SAFETY: the caller's promise.
        let alpha = unsafe { scalar(alpha, element, handle.pointer_mode)? };
        multiply_strided(
            handle,
            element,
            [m, n, 1],
            Strided { address: x.first, steps: [x.step, 0], conjugates: false },
            Strided { address: y.first, steps: [0, y.step], conjugates },
            Strided { address: a.0 as u64, steps: [1, a.1], conjugates: false },
            [alpha, constant(1, element)],
            None,
            Batch::ONE,
        )
    };
    entry(|| handle::with(handle, work))
}

/// `y = alpha A x + beta y` with a symmetric or Hermitian `A`; `diagonals` of a band matrix.
///
/// # Safety
/// Scalars that are neither null nor in device memory are of the element type.
unsafe fn symmetric(
    handle: HandleId,
    triangle: c_int,
    order: i64,
    diagonals: Option<i64>,
    (element, is_hermitian): (Element, bool),
    [alpha, beta]: [*const c_void; 2],
    a: (*const c_void, i64),
    x: (*const c_void, i64),
    y: (*mut c_void, i64),
) -> Status {
    let work = |handle: &mut Handle| {
        let triangle = Triangle::parse(triangle)?;
        let rows = diagonals.map_or(order, |diagonals| diagonals.saturating_add(1));
        check(order >= 0 && rows >= 0 && a.1 >= rows.max(1) && x.1 != 0 && y.1 != 0)?;
        if order == 0 {
            return Ok(());
        }
        let x = Vector::new(x.0 as u64, element, order, x.1);
        let y = Vector::new(y.0 as u64, element, order, y.1);
        // SAFETY: the caller's promise.
        let scalars = unsafe {
            [scalar(alpha, element, handle.pointer_mode)?, scalar(beta, element, handle.pointer_mode)?]
        };
        let kernel = SymmetricVector { element, triangle, is_hermitian, is_band: diagonals.is_some() };
        let mut arguments = vec![order as u64, diagonals.unwrap_or(order) as u64];
        arguments.extend([a.0 as u64, a.1 as u64, x.first, x.step as u64, y.first, y.step as u64]);
        arguments.extend(scalars.iter().flatten());
        let at = launch_1d(handle, order);
        kernels::launch(at, kernel.name(), |name| kernel.source(name), &arguments)
    };
    entry(|| handle::with(handle, work))
}

fn check(is_valid: bool) -> Outcome {
    if is_valid { Ok(()) } else { Err(Status::INVALID_VALUE) }
}

macro_rules! gemv {
    ($name:ident, $int:ty, $index:ident, $element:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            handle: HandleId,
            trans: c_int,
            m: $int,
            n: $int,
            alpha: *const c_void,
            a: *const c_void,
            lda: $int,
            x: *const c_void,
            incx: $int,
            beta: *const c_void,
            y: *mut c_void,
            incy: $int,
        ) -> Status {
            let (m, n) = (i64::from(m), i64::from(n));
            let (a, x, y) = ((a, i64::from(lda)), (x, i64::from(incx)), (y, i64::from(incy)));
            let (element, scalars) = (Element::$element, [alpha, beta]);
            // SAFETY: the caller passes scalars as the interface says.
            unsafe { gemv(handle, trans, [m, n], element, scalars, a, x, y, Batch::ONE) }
        }
    };
}

both_widths! { gemv {
    F32: cublasSgemv_v2 cublasSgemv_v2_64;
    F64: cublasDgemv_v2 cublasDgemv_v2_64;
    C32: cublasCgemv_v2 cublasCgemv_v2_64;
    C64: cublasZgemv_v2 cublasZgemv_v2_64;
} }

macro_rules! gemv_strided {
    ($name:ident, $int:ty, $index:ident, $element:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            handle: HandleId,
            trans: c_int,
            m: $int,
            n: $int,
            alpha: *const c_void,
            a: *const c_void,
            lda: $int,
            stride_a: c_longlong,
            x: *const c_void,
            incx: $int,
            stride_x: c_longlong,
            beta: *const c_void,
            y: *mut c_void,
            incy: $int,
            stride_y: c_longlong,
            batch: $int,
        ) -> Status {
            let (m, n) = (i64::from(m), i64::from(n));
            let (a, x, y) = ((a, i64::from(lda)), (x, i64::from(incx)), (y, i64::from(incy)));
            let batch = Batch { count: i64::from(batch), steps: [stride_a, stride_x, stride_y] };
            let (element, scalars) = (Element::$element, [alpha, beta]);
            // SAFETY: the caller passes scalars as the interface says.
            unsafe { gemv(handle, trans, [m, n], element, scalars, a, x, y, batch) }
        }
    };
}

both_widths! { gemv_strided {
    F32: cublasSgemvStridedBatched cublasSgemvStridedBatched_64;
    F64: cublasDgemvStridedBatched cublasDgemvStridedBatched_64;
    C32: cublasCgemvStridedBatched cublasCgemvStridedBatched_64;
    C64: cublasZgemvStridedBatched cublasZgemvStridedBatched_64;
} }

macro_rules! ger {
    ($name:ident, $int:ty, $index:ident, $element:ident $conjugates:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            handle: HandleId,
            m: $int,
            n: $int,
            alpha: *const c_void,
            x: *const c_void,
            incx: $int,
            y: *const c_void,
            incy: $int,
            a: *mut c_void,
            lda: $int,
        ) -> Status {
            let (m, n) = (i64::from(m), i64::from(n));
            let (x, y, a) = ((x, i64::from(incx)), (y, i64::from(incy)), (a, i64::from(lda)));
            // SAFETY: the caller passes scalars as the interface says.
            unsafe { ger(handle, [m, n], Element::$element, $conjugates, alpha, x, y, a) }
        }
    };
}

both_widths! { ger {
    F32 false: cublasSger_v2 cublasSger_v2_64;
    F64 false: cublasDger_v2 cublasDger_v2_64;
    C32 false: cublasCgeru_v2 cublasCgeru_v2_64;
    C64 false: cublasZgeru_v2 cublasZgeru_v2_64;
    C32 true: cublasCgerc_v2 cublasCgerc_v2_64;
    C64 true: cublasZgerc_v2 cublasZgerc_v2_64;
} }

macro_rules! symv {
    ($name:ident, $int:ty, $index:ident, $element:ident $is_hermitian:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            handle: HandleId,
            uplo: c_int,
            n: $int,
            alpha: *const c_void,
            a: *const c_void,
            lda: $int,
            x: *const c_void,
            incx: $int,
            beta: *const c_void,
            y: *mut c_void,
            incy: $int,
        ) -> Status {
            let kind = (Element::$element, $is_hermitian);
            let (a, x, y) = ((a, i64::from(lda)), (x, i64::from(incx)), (y, i64::from(incy)));
            // SAFETY: the caller passes scalars as the interface says.
            unsafe { symmetric(handle, uplo, i64::from(n), None, kind, [alpha, beta], a, x, y) }
        }
    };
}

both_widths! { symv {
    F32 false: cublasSsymv_v2 cublasSsymv_v2_64;
    F64 false: cublasDsymv_v2 cublasDsymv_v2_64;
    C32 false: cublasCsymv_v2 cublasCsymv_v2_64;
    C64 false: cublasZsymv_v2 cublasZsymv_v2_64;
    C32 true: cublasChemv_v2 cublasChemv_v2_64;
    C64 true: cublasZhemv_v2 cublasZhemv_v2_64;
} }

macro_rules! sbmv {
    ($name:ident, $int:ty, $index:ident, $element:ident $is_hermitian:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            handle: HandleId,
            uplo: c_int,
            n: $int,
            k: $int,
            alpha: *const c_void,
            a: *const c_void,
            lda: $int,
            x: *const c_void,
            incx: $int,
            beta: *const c_void,
            y: *mut c_void,
            incy: $int,
        ) -> Status {
            let kind = (Element::$element, $is_hermitian);
            let (n, k) = (i64::from(n), Some(i64::from(k)));
            let (a, x, y) = ((a, i64::from(lda)), (x, i64::from(incx)), (y, i64::from(incy)));
            // SAFETY: the caller passes scalars as the interface says.
            unsafe { symmetric(handle, uplo, n, k, kind, [alpha, beta], a, x, y) }
        }
    };
}

both_widths! { sbmv {
    F32 false: cublasSsbmv_v2 cublasSsbmv_v2_64;
    F64 false: cublasDsbmv_v2 cublasDsbmv_v2_64;
    C32 true: cublasChbmv_v2 cublasChbmv_v2_64;
    C64 true: cublasZhbmv_v2 cublasZhbmv_v2_64;
} }
