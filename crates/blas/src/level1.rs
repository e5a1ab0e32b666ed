//! Functions on vectors (cuBLAS 2.5), for indices of 32 and of 64 bits.

use std::ffi::{c_int, c_void};

use crate::abi::{Element, Outcome, Status};
use crate::entry::entry;
use crate::handle::{self, Handle, HandleId};
use crate::ptx::reduction::Reduced;
use crate::ptx::vector::VectorOperation;
use crate::reduction;
use crate::scalar::{constant, scalar};
use crate::vector::{self, Vector};

/// The arguments of a function on one or two vectors, whose scalars are where the caller has them.
struct Call {
    handle: HandleId,
    operation: VectorOperation,
    count: i64,
    x: (*const c_void, i64),
    y: (*const c_void, i64),
    element: Element,
    scalars: [(Element, *const c_void); 2],
}

impl Call {
    /// # Safety
    /// Scalars that are neither null nor in device memory are of their types.
    unsafe fn run(self) -> Status {
        let vector = |(address, step): (*const c_void, i64)| {
            Vector::new(address as u64, self.element, self.count, step)
        };
        let work = |handle: &mut Handle| {
            let value = |at: usize| {
                let (element, address) = self.scalars[at];
                // The operation has no such scalar.
                if address.is_null() && !self.uses(at) {
                    return Ok((element, constant(0, element)));
                }
                // SAFETY: the caller's promise.
                unsafe { scalar(address, element, handle.pointer_mode) }.map(|words| (element, words))
            };
            let scalars = [value(0)?, value(1)?];
            vector::run(handle, self.operation, self.count, [vector(self.x), vector(self.y)], scalars)
        };
        entry(|| handle::with(self.handle, work))
    }

    fn uses(&self, scalar: usize) -> bool {
        match self.operation {
            VectorOperation::Axpy | VectorOperation::Scale => scalar == 0,
            VectorOperation::Copy | VectorOperation::Swap => false,
            VectorOperation::Rotate => true,
        }
    }
}

/// No scalar.
const NONE: (Element, *const c_void) = (Element::F32, std::ptr::null());

/// The arguments of a function with a result.
struct ReductionCall {
    handle: HandleId,
    reduced: Reduced,
    count: i64,
    x: (*const c_void, i64),
    y: (*const c_void, i64),
    element: Element,
    result: Element,
    place: *mut c_void,
}

impl ReductionCall {
    /// # Safety
    /// A place that is neither null nor in device memory is one for the result's type.
    unsafe fn run(self) -> Status {
        // With one vector, a step that is not positive gives 0 (BLAS: ASUM, NRM2, IAMAX).
        let has_one = !matches!(self.reduced, Reduced::Dot | Reduced::ConjugateDot);
        let count = if has_one && self.x.1 <= 0 { 0 } else { self.count };
        let vector =
            |(address, step): (*const c_void, i64)| Vector::new(address as u64, self.element, count, step);
        let work = |handle: &mut Handle| -> Outcome {
            let vectors = [vector(self.x), vector(self.y)];
            // SAFETY: the caller's promise.
            unsafe { reduction::run(handle, self.reduced, count, vectors, self.result, self.place) }
        };
        entry(|| handle::with(self.handle, work))
    }
}

/// Declares functions for both widths of indices: `macro! { element ...: name, name_64; ... }`.
macro_rules! both_widths {
    ($declare:ident { $($($element:ident)+: $name:ident $wide:ident;)* }) => {$(
        $declare!($name, c_int, I32, $($element)+);
        $declare!($wide, i64, I64, $($element)+);
    )*};
}
pub(crate) use both_widths;

macro_rules! axpy {
    ($name:ident, $int:ty, $index:ident, $element:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            handle: HandleId,
            n: $int,
            alpha: *const c_void,
            x: *const c_void,
            incx: $int,
            y: *mut c_void,
            incy: $int,
        ) -> Status {
            let call = Call {
                handle,
                operation: VectorOperation::Axpy,
                count: i64::from(n),
                x: (x, i64::from(incx)),
                y: (y, i64::from(incy)),
                element: Element::$element,
                scalars: [(Element::$element, alpha), NONE],
            };
            // SAFETY: the caller passes scalars as the interface says.
            unsafe { call.run() }
        }
    };
}

both_widths! { axpy {
    F32: cublasSaxpy_v2 cublasSaxpy_v2_64;
    F64: cublasDaxpy_v2 cublasDaxpy_v2_64;
    C32: cublasCaxpy_v2 cublasCaxpy_v2_64;
    C64: cublasZaxpy_v2 cublasZaxpy_v2_64;
} }

macro_rules! scal {
    ($name:ident, $int:ty, $index:ident, $element:ident $scalar:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            handle: HandleId,
            n: $int,
            alpha: *const c_void,
            x: *mut c_void,
            incx: $int,
        ) -> Status {
            let call = Call {
                handle,
                operation: VectorOperation::Scale,
                // A step that is not positive does nothing (BLAS: SCAL).
                count: if incx > 0 { i64::from(n) } else { 0 },
                x: (x, i64::from(incx)),
                y: (x, i64::from(incx)),
                element: Element::$element,
                scalars: [(Element::$scalar, alpha), NONE],
            };
            // SAFETY: the caller passes scalars as the interface says.
            unsafe { call.run() }
        }
    };
}

both_widths! { scal {
    F32 F32: cublasSscal_v2 cublasSscal_v2_64;
    F64 F64: cublasDscal_v2 cublasDscal_v2_64;
    C32 C32: cublasCscal_v2 cublasCscal_v2_64;
    C64 C64: cublasZscal_v2 cublasZscal_v2_64;
    C32 F32: cublasCsscal_v2 cublasCsscal_v2_64;
    C64 F64: cublasZdscal_v2 cublasZdscal_v2_64;
} }

macro_rules! two_vectors {
    ($name:ident, $int:ty, $index:ident, $element:ident $operation:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            handle: HandleId,
            n: $int,
            x: *mut c_void,
            incx: $int,
            y: *mut c_void,
            incy: $int,
        ) -> Status {
            let call = Call {
                handle,
                operation: VectorOperation::$operation,
                count: i64::from(n),
                x: (x, i64::from(incx)),
                y: (y, i64::from(incy)),
                element: Element::$element,
                scalars: [NONE, NONE],
            };
            // SAFETY: there are no scalars.
            unsafe { call.run() }
        }
    };
}

both_widths! { two_vectors {
    F32 Copy: cublasScopy_v2 cublasScopy_v2_64;
    F64 Copy: cublasDcopy_v2 cublasDcopy_v2_64;
    C32 Copy: cublasCcopy_v2 cublasCcopy_v2_64;
    C64 Copy: cublasZcopy_v2 cublasZcopy_v2_64;
    F32 Swap: cublasSswap_v2 cublasSswap_v2_64;
    F64 Swap: cublasDswap_v2 cublasDswap_v2_64;
    C32 Swap: cublasCswap_v2 cublasCswap_v2_64;
    C64 Swap: cublasZswap_v2 cublasZswap_v2_64;
} }

macro_rules! rot {
    ($name:ident, $int:ty, $index:ident, $element:ident $cosine:ident $sine:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            handle: HandleId,
            n: $int,
            x: *mut c_void,
            incx: $int,
            y: *mut c_void,
            incy: $int,
            c: *const c_void,
            s: *const c_void,
        ) -> Status {
            let call = Call {
                handle,
                operation: VectorOperation::Rotate,
                count: i64::from(n),
                x: (x, i64::from(incx)),
                y: (y, i64::from(incy)),
                element: Element::$element,
                scalars: [(Element::$cosine, c), (Element::$sine, s)],
            };
            // SAFETY: the caller passes scalars as the interface says.
            unsafe { call.run() }
        }
    };
}

both_widths! { rot {
    F32 F32 F32: cublasSrot_v2 cublasSrot_v2_64;
    F64 F64 F64: cublasDrot_v2 cublasDrot_v2_64;
    C32 F32 C32: cublasCrot_v2 cublasCrot_v2_64;
    C64 F64 C64: cublasZrot_v2 cublasZrot_v2_64;
    C32 F32 F32: cublasCsrot_v2 cublasCsrot_v2_64;
    C64 F64 F64: cublasZdrot_v2 cublasZdrot_v2_64;
} }

macro_rules! dot {
    ($name:ident, $int:ty, $index:ident, $element:ident $reduced:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            handle: HandleId,
            n: $int,
            x: *const c_void,
            incx: $int,
            y: *const c_void,
            incy: $int,
            result: *mut c_void,
        ) -> Status {
            let call = ReductionCall {
                handle,
                reduced: Reduced::$reduced,
                count: i64::from(n),
                x: (x, i64::from(incx)),
                y: (y, i64::from(incy)),
                element: Element::$element,
                result: Element::$element,
                place: result,
            };
            // SAFETY: the caller's place for a result is as the interface says.
            unsafe { call.run() }
        }
    };
}

both_widths! { dot {
    F32 Dot: cublasSdot_v2 cublasSdot_v2_64;
    F64 Dot: cublasDdot_v2 cublasDdot_v2_64;
    C32 Dot: cublasCdotu_v2 cublasCdotu_v2_64;
    C64 Dot: cublasZdotu_v2 cublasZdotu_v2_64;
    C32 ConjugateDot: cublasCdotc_v2 cublasCdotc_v2_64;
    C64 ConjugateDot: cublasZdotc_v2 cublasZdotc_v2_64;
} }

macro_rules! one_vector {
    ($name:ident, $int:ty, $index:ident, $element:ident $result:ident $reduced:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            handle: HandleId,
            n: $int,
            x: *const c_void,
            incx: $int,
            result: *mut c_void,
        ) -> Status {
            let call = ReductionCall {
                handle,
                reduced: Reduced::$reduced,
                count: i64::from(n),
                x: (x, i64::from(incx)),
                y: (x, i64::from(incx)),
                element: Element::$element,
                result: Element::$result,
                place: result,
            };
            // SAFETY: the caller's place for a result is as the interface says.
            unsafe { call.run() }
        }
    };
}

both_widths! { one_vector {
    F32 F32 AbsoluteSum: cublasSasum_v2 cublasSasum_v2_64;
    F64 F64 AbsoluteSum: cublasDasum_v2 cublasDasum_v2_64;
    C32 F32 AbsoluteSum: cublasScasum_v2 cublasScasum_v2_64;
    C64 F64 AbsoluteSum: cublasDzasum_v2 cublasDzasum_v2_64;
    F32 F32 Norm: cublasSnrm2_v2 cublasSnrm2_v2_64;
    F64 F64 Norm: cublasDnrm2_v2 cublasDnrm2_v2_64;
    C32 F32 Norm: cublasScnrm2_v2 cublasScnrm2_v2_64;
    C64 F64 Norm: cublasDznrm2_v2 cublasDznrm2_v2_64;
} }

/// The result of these is an index, as wide as the others.
macro_rules! extremum {
    ($name:ident, $int:ty, $index:ident, $element:ident $reduced:ident) => {
        one_vector!($name, $int, $index, $element $index $reduced);
    };
}

both_widths! { extremum {
    F32 LargestIndex: cublasIsamax_v2 cublasIsamax_v2_64;
    F64 LargestIndex: cublasIdamax_v2 cublasIdamax_v2_64;
    C32 LargestIndex: cublasIcamax_v2 cublasIcamax_v2_64;
    C64 LargestIndex: cublasIzamax_v2 cublasIzamax_v2_64;
    F32 SmallestIndex: cublasIsamin_v2 cublasIsamin_v2_64;
    F64 SmallestIndex: cublasIdamin_v2 cublasIdamin_v2_64;
    C32 SmallestIndex: cublasIcamin_v2 cublasIcamin_v2_64;
    C64 SmallestIndex: cublasIzamin_v2 cublasIzamin_v2_64;
} }
