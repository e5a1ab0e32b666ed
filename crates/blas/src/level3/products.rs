//! Products of general matrices: the GEMM family.

use std::ffi::{c_int, c_longlong, c_void};

use super::Call;
use crate::abi::{Element, Status, compute_type};
use crate::entry::not_supported;
use crate::handle::HandleId;
use crate::level1::both_widths;
use crate::product::Matrix;

macro_rules! gemm {
    ($name:ident, $int:ty, $index:ident, $element:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            handle: HandleId,
            transa: c_int,
            transb: c_int,
            m: $int,
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
            let sizes = [i64::from(m), i64::from(n), i64::from(k)];
            let mut call = Call::uniform(handle, [transa, transb], sizes, [alpha, beta], matrices);
            call.batch = 1;
            // SAFETY: the caller passes scalars as the interface says.
            unsafe { call.run() }
        }
    };
}

both_widths! { gemm {
    F32: cublasSgemm_v2 cublasSgemm_v2_64;
    F64: cublasDgemm_v2 cublasDgemm_v2_64;
    C32: cublasCgemm_v2 cublasCgemm_v2_64;
    C64: cublasZgemm_v2 cublasZgemm_v2_64;
    C32: cublasCgemm3m cublasCgemm3m_64;
    C64: cublasZgemm3m cublasZgemm3m_64;
    F16: cublasHgemm cublasHgemm_64;
} }

macro_rules! gemm_strided {
    ($name:ident, $int:ty, $index:ident, $element:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            handle: HandleId,
            transa: c_int,
            transb: c_int,
            m: $int,
            n: $int,
            k: $int,
            alpha: *const c_void,
            a: *const c_void,
            lda: $int,
            stride_a: c_longlong,
            b: *const c_void,
            ldb: $int,
            stride_b: c_longlong,
            beta: *const c_void,
            c: *mut c_void,
            ldc: $int,
            stride_c: c_longlong,
            batch: $int,
        ) -> Status {
            let matrix = |address, leading, stride| Matrix {
                stride,
                ..Matrix::new(address, Element::$element, leading)
            };
            let matrices = [
                matrix(a, i64::from(lda), stride_a),
                matrix(b, i64::from(ldb), stride_b),
                matrix(c, i64::from(ldc), stride_c),
            ];
            let sizes = [i64::from(m), i64::from(n), i64::from(k)];
            let mut call = Call::uniform(handle, [transa, transb], sizes, [alpha, beta], matrices);
            call.batch = i64::from(batch);
            // SAFETY: the caller passes scalars as the interface says.
            unsafe { call.run() }
        }
    };
}

both_widths! { gemm_strided {
    F32: cublasSgemmStridedBatched cublasSgemmStridedBatched_64;
    F64: cublasDgemmStridedBatched cublasDgemmStridedBatched_64;
    C32: cublasCgemmStridedBatched cublasCgemmStridedBatched_64;
    C64: cublasZgemmStridedBatched cublasZgemmStridedBatched_64;
    C32: cublasCgemm3mStridedBatched cublasCgemm3mStridedBatched_64;
    F16: cublasHgemmStridedBatched cublasHgemmStridedBatched_64;
} }

macro_rules! gemm_batched {
    ($name:ident, $int:ty, $index:ident, $element:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            handle: HandleId,
            transa: c_int,
            transb: c_int,
            m: $int,
            n: $int,
            k: $int,
            alpha: *const c_void,
            a: *const c_void,
            lda: $int,
            b: *const c_void,
            ldb: $int,
            beta: *const c_void,
            c: *const c_void,
            ldc: $int,
            batch: $int,
        ) -> Status {
            let matrix = |address, leading| Matrix::new(address, Element::$element, leading);
            let matrices = [matrix(a, i64::from(lda)), matrix(b, i64::from(ldb)), matrix(c, i64::from(ldc))];
            let sizes = [i64::from(m), i64::from(n), i64::from(k)];
            let mut call = Call::uniform(handle, [transa, transb], sizes, [alpha, beta], matrices);
            (call.batch, call.by_pointers) = (i64::from(batch), true);
            // SAFETY: the caller passes scalars as the interface says.
            unsafe { call.run() }
        }
    };
}

both_widths! { gemm_batched {
    F32: cublasSgemmBatched cublasSgemmBatched_64;
    F64: cublasDgemmBatched cublasDgemmBatched_64;
    C32: cublasCgemmBatched cublasCgemmBatched_64;
    C64: cublasZgemmBatched cublasZgemmBatched_64;
    F16: cublasHgemmBatched cublasHgemmBatched_64;
} }

/// A matrix whose type is an argument: address, `cudaDataType`, leading dimension, stride.
type Typed = (*const c_void, c_int, i64, i64);

/// The products of the table of `cublasGemmEx` (cuBLAS 2.8.13) that are built, by the numbers of
/// the types of A, B and C.
///
/// # Safety
/// Scalars that are neither null nor in device memory are of the type that the compute type asks
/// for.
unsafe fn gemm_ex(
    function: &'static str,
    handle: HandleId,
    operations: [c_int; 2],
    sizes: [i64; 3],
    scalars: [*const c_void; 2],
    [a, b, c]: [Typed; 3],
    compute: c_int,
    (batch, by_pointers): (i64, bool),
) -> Status {
    let matrix = |(address, element, leading, stride): Typed| {
        Element::parse(element).map(|element| Matrix { stride, ..Matrix::new(address, element, leading) })
    };
    let (Ok(a), Ok(b), Ok(c)) = (matrix(a), matrix(b), matrix(c)) else {
        return not_supported(function);
    };
    let (scalar, domain) = match compute_type(compute, c.element.is_complex()) {
        Ok(types) => types,
        Err(Status::NOT_SUPPORTED) => return not_supported(function),
        Err(error) => return error,
    };
    if !is_built([a.element, b.element, c.element], scalar) {
        return not_supported(function);
    }
    let call = Call {
        scalar,
        domain,
        batch,
        by_pointers,
        ..Call::uniform(handle, operations, sizes, scalars, [a, b, c])
    };
    // SAFETY: the caller's promise.
    unsafe { call.run() }
}

/// Whether there are products of matrices of these types with scalars of that type.
pub(crate) fn is_built([a, b, c]: [Element; 3], scalar: Element) -> bool {
    use Element::{Bf16, C32, C64, F16, F32, F64, I8, I32};
    a == b
        && match (scalar, a) {
            (F16, F16) => c == F16,
            (F32, F16) => matches!(c, F16 | F32),
            (F32, Bf16) => matches!(c, Bf16 | F32),
            (F32, I8 | F32) => c == F32,
            (F64, F64) => c == F64,
            (C32, C32) => c == C32,
            (C64, C64) => c == C64,
            (I32, I8) => c == I32,
            _ => false,
        }
}

macro_rules! gemm_ex {
    ($name:ident, $int:ty, $index:ident, $compute:literal) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            handle: HandleId,
            transa: c_int,
            transb: c_int,
            m: $int,
            n: $int,
            k: $int,
            alpha: *const c_void,
            a: *const c_void,
            type_a: c_int,
            lda: $int,
            b: *const c_void,
            type_b: c_int,
            ldb: $int,
            beta: *const c_void,
            c: *mut c_void,
            type_c: c_int,
            ldc: $int,
        ) -> Status {
            let a = (a, type_a, i64::from(lda), 0);
            let b = (b, type_b, i64::from(ldb), 0);
            let c = (c.cast_const(), type_c, i64::from(ldc), 0);
            let sizes = [i64::from(m), i64::from(n), i64::from(k)];
            let (name, operations, scalars) = (stringify!($name), [transa, transb], [alpha, beta]);
            // SAFETY: the caller passes scalars as the interface says.
            unsafe { gemm_ex(name, handle, operations, sizes, scalars, [a, b, c], $compute, (1, false)) }
        }
    };
}

/// `CUBLAS_COMPUTE_32F` is the compute type of these.
macro_rules! gemm_ex_of_floats {
    ($name:ident, $int:ty, $index:ident, $element:ident) => {
        gemm_ex!($name, $int, $index, 68);
    };
}

both_widths! { gemm_ex_of_floats {
    F32: cublasSgemmEx cublasSgemmEx_64;
    C32: cublasCgemmEx cublasCgemmEx_64;
    C32: cublasCgemm3mEx cublasCgemm3mEx_64;
} }

macro_rules! gemm_ex_typed {
    ($name:ident, $int:ty, $index:ident, $element:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            handle: HandleId,
            transa: c_int,
            transb: c_int,
            m: $int,
            n: $int,
            k: $int,
            alpha: *const c_void,
            a: *const c_void,
            type_a: c_int,
            lda: $int,
            b: *const c_void,
            type_b: c_int,
            ldb: $int,
            beta: *const c_void,
            c: *mut c_void,
            type_c: c_int,
            ldc: $int,
            compute: c_int,
            _algorithm: c_int,
        ) -> Status {
            let a = (a, type_a, i64::from(lda), 0);
            let b = (b, type_b, i64::from(ldb), 0);
            let c = (c.cast_const(), type_c, i64::from(ldc), 0);
            let sizes = [i64::from(m), i64::from(n), i64::from(k)];
            let (name, operations, scalars) = (stringify!($name), [transa, transb], [alpha, beta]);
            // SAFETY: the caller passes scalars as the interface says.
            unsafe { gemm_ex(name, handle, operations, sizes, scalars, [a, b, c], compute, (1, false)) }
        }
    };
}

both_widths! { gemm_ex_typed { F32: cublasGemmEx cublasGemmEx_64; } }

macro_rules! gemm_ex_strided {
    ($name:ident, $int:ty, $index:ident, $element:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            handle: HandleId,
            transa: c_int,
            transb: c_int,
            m: $int,
            n: $int,
            k: $int,
            alpha: *const c_void,
            a: *const c_void,
            type_a: c_int,
            lda: $int,
            stride_a: c_longlong,
            b: *const c_void,
            type_b: c_int,
            ldb: $int,
            stride_b: c_longlong,
            beta: *const c_void,
            c: *mut c_void,
            type_c: c_int,
            ldc: $int,
            stride_c: c_longlong,
            batch: $int,
            compute: c_int,
            _algorithm: c_int,
        ) -> Status {
            let a = (a, type_a, i64::from(lda), stride_a);
            let b = (b, type_b, i64::from(ldb), stride_b);
            let c = (c.cast_const(), type_c, i64::from(ldc), stride_c);
            let sizes = [i64::from(m), i64::from(n), i64::from(k)];
            let (name, operations, scalars) = (stringify!($name), [transa, transb], [alpha, beta]);
            let batch = (i64::from(batch), false);
            // SAFETY: the caller passes scalars as the interface says.
            unsafe { gemm_ex(name, handle, operations, sizes, scalars, [a, b, c], compute, batch) }
        }
    };
}

both_widths! { gemm_ex_strided {
    F32: cublasGemmStridedBatchedEx cublasGemmStridedBatchedEx_64;
} }

macro_rules! gemm_ex_batched {
    ($name:ident, $int:ty, $index:ident, $element:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            handle: HandleId,
            transa: c_int,
            transb: c_int,
            m: $int,
            n: $int,
            k: $int,
            alpha: *const c_void,
            a: *const c_void,
            type_a: c_int,
            lda: $int,
            b: *const c_void,
            type_b: c_int,
            ldb: $int,
            beta: *const c_void,
            c: *const c_void,
            type_c: c_int,
            ldc: $int,
            batch: $int,
            compute: c_int,
            _algorithm: c_int,
        ) -> Status {
            let a = (a, type_a, i64::from(lda), 0);
            let b = (b, type_b, i64::from(ldb), 0);
            let c = (c, type_c, i64::from(ldc), 0);
            let sizes = [i64::from(m), i64::from(n), i64::from(k)];
            let (name, operations, scalars) = (stringify!($name), [transa, transb], [alpha, beta]);
            let batch = (i64::from(batch), true);
            // SAFETY: the caller passes scalars as the interface says.
            unsafe { gemm_ex(name, handle, operations, sizes, scalars, [a, b, c], compute, batch) }
        }
    };
}

both_widths! { gemm_ex_batched { F32: cublasGemmBatchedEx cublasGemmBatchedEx_64; } }
