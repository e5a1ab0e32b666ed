//! Types of cuBLAS's C interface (cuBLAS 2.2) and of the data that it names (cuBLAS 2.3).

/// The answer of every function (`cublasStatus_t`, cuBLAS 2.2.2).
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) i32);

impl Status {
    pub(crate) const SUCCESS: Status = Status(0);
    pub(crate) const NOT_INITIALIZED: Status = Status(1);
    pub(crate) const ALLOC_FAILED: Status = Status(3);
    pub(crate) const INVALID_VALUE: Status = Status(7);
    pub(crate) const EXECUTION_FAILED: Status = Status(13);
    pub(crate) const INTERNAL_ERROR: Status = Status(14);
    pub(crate) const NOT_SUPPORTED: Status = Status(15);

    /// The name and the description that `cublasGetStatusName` and `cublasGetStatusString` give.
    pub(crate) fn texts(self) -> (&'static std::ffi::CStr, &'static std::ffi::CStr) {
        match self.0 {
            0 => (c"CUBLAS_STATUS_SUCCESS", c"success"),
            1 => (c"CUBLAS_STATUS_NOT_INITIALIZED", c"the library was not initialized"),
            3 => (c"CUBLAS_STATUS_ALLOC_FAILED", c"the resource allocation failed"),
            7 => (c"CUBLAS_STATUS_INVALID_VALUE", c"an invalid value was used as an argument"),
            8 => (c"CUBLAS_STATUS_ARCH_MISMATCH", c"an absent device feature is required"),
            11 => (c"CUBLAS_STATUS_MAPPING_ERROR", c"an access to GPU memory space failed"),
            13 => (c"CUBLAS_STATUS_EXECUTION_FAILED", c"the function failed to launch on the GPU"),
            14 => (c"CUBLAS_STATUS_INTERNAL_ERROR", c"an internal operation failed"),
            15 => (c"CUBLAS_STATUS_NOT_SUPPORTED", c"the functionality is not supported"),
            16 => (c"CUBLAS_STATUS_LICENSE_ERROR", c"the license check failed"),
            _ => (c"unknown", c"unknown status"),
        }
    }
}

/// The outcome of an operation whose failure is a status.
pub(crate) type Outcome<T = ()> = Result<T, Status>;

/// A C enumeration of which only some numbers are defined.
macro_rules! enumeration {
    ($(#[$about:meta])* $name:ident { $($(#[$note:meta])* $value:ident = $number:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum $name { $($(#[$note])* $value,)* }

        impl $name {
            pub(crate) fn parse(number: i32) -> Outcome<$name> {
                match number {
                    $($number => Ok($name::$value),)*
                    _ => Err(Status::INVALID_VALUE),
                }
            }
        }
    };
}

enumeration! {
    /// What is done to a matrix before it is used (`cublasOperation_t`, cuBLAS 2.2.3).
    Operation { Plain = 0, Transpose = 1, Adjoint = 2, Conjugate = 3, }
}

impl Operation {
    pub(crate) fn transposes(self) -> bool {
        matches!(self, Operation::Transpose | Operation::Adjoint)
    }

    pub(crate) fn conjugates(self) -> bool {
        matches!(self, Operation::Adjoint | Operation::Conjugate)
    }
}

enumeration! {
    /// The triangle of a matrix that is used (`cublasFillMode_t`, cuBLAS 2.2.4).
    Triangle { Lower = 0, Upper = 1, }
}

enumeration! {
    /// Whether the diagonal is taken for ones (`cublasDiagType_t`, cuBLAS 2.2.5).
    Diagonal { NonUnit = 0, Unit = 1, }
}

enumeration! {
    /// The side on which the special matrix stands (`cublasSideMode_t`, cuBLAS 2.2.6).
    Side { Left = 0, Right = 1, }
}

enumeration! {
    /// Where scalars are and results go (`cublasPointerMode_t`, cuBLAS 2.2.7).
    PointerMode { Host = 0, Device = 1, }
}

enumeration! {
    /// The type of elements in memory (`cudaDataType_t`, cuBLAS 2.3.1), of those that are built.
    Element {
        F32 = 0, F64 = 1, F16 = 2, I8 = 3, C32 = 4, C64 = 5, I32 = 10, Bf16 = 14, I64 = 24,
    }
}

impl Element {
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Element::I8 => 1,
            Element::F16 | Element::Bf16 => 2,
            Element::F32 | Element::I32 => 4,
            Element::F64 | Element::C32 | Element::I64 => 8,
            Element::C64 => 16,
        }
    }

    pub(crate) fn is_complex(self) -> bool {
        matches!(self, Element::C32 | Element::C64)
    }

    /// The element type of one component of a complex number, or of a real number itself.
    pub(crate) fn component(self) -> Element {
        match self {
            Element::C32 => Element::F32,
            Element::C64 => Element::F64,
            real => real,
        }
    }

    /// What PTX names of kernels call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Element::F32 => "f32",
            Element::F64 => "f64",
            Element::F16 => "f16",
            Element::Bf16 => "bf16",
            Element::I8 => "i8",
            Element::I32 => "i32",
            Element::I64 => "i64",
            Element::C32 => "c32",
            Element::C64 => "c64",
        }
    }

    /// The arithmetic that is exact enough for results of this type: 32-bit floats for everything
    /// that is no wider.
    pub(crate) fn domain(self) -> Domain {
        let real = match self.component() {
            Element::F64 => Real::F64,
            Element::I8 | Element::I32 => Real::I32,
            _ => Real::F32,
        };
        Domain { real, is_complex: self.is_complex() }
    }
}

/// Numbers that kernels compute with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Real {
    F32,
    F64,
    I32,
}

/// The arithmetic of a kernel: real or complex numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Domain {
    pub(crate) real: Real,
    pub(crate) is_complex: bool,
}

impl Domain {
    /// The element type that holds such a number without loss.
    pub(crate) fn element(self) -> Element {
        match (self.real, self.is_complex) {
            (Real::F32, false) => Element::F32,
            (Real::F64, false) => Element::F64,
            (Real::F32, true) => Element::C32,
            (Real::F64, true) => Element::C64,
            (Real::I32, _) => Element::I32,
        }
    }
}

/// The type of `alpha` and `beta` for a `cublasComputeType_t` (cuBLAS 2.2.12 and the table of
/// `cublasGemmEx`), and the arithmetic that is used. Types that permit a lower precision get the
/// full one.
pub(crate) fn compute_type(number: i32, is_complex: bool) -> Outcome<(Element, Domain)> {
    let domain = |real| Domain { real, is_complex };
    match number {
        64 | 65 if !is_complex => Ok((Element::F16, domain(Real::F32))),
        68 | 69 | 74 | 75 | 77 | 78 => Ok((domain(Real::F32).element(), domain(Real::F32))),
        70 | 71 | 79 => Ok((domain(Real::F64).element(), domain(Real::F64))),
        72 | 73 if !is_complex => Ok((Element::I32, domain(Real::I32))),
        64 | 65 | 72 | 73 => Err(Status::NOT_SUPPORTED),
        _ => Err(Status::INVALID_VALUE),
    }
}
