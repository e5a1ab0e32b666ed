//! Types of cuFFT's C interface (cuFFT, "Parameters" and "Types").

use sluice_library_base::driver;
use sluice_library_base::entry::guarded;

/// The answer of every function (`cufftResult`).
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) i32);

impl Status {
    pub(crate) const SUCCESS: Status = Status(0);
    pub(crate) const INVALID_PLAN: Status = Status(1);
    pub(crate) const ALLOC_FAILED: Status = Status(2);
    pub(crate) const INVALID_TYPE: Status = Status(3);
    pub(crate) const INVALID_VALUE: Status = Status(4);
    pub(crate) const INTERNAL_ERROR: Status = Status(5);
    pub(crate) const EXEC_FAILED: Status = Status(6);
    pub(crate) const SETUP_FAILED: Status = Status(7);
    pub(crate) const INVALID_SIZE: Status = Status(8);
    pub(crate) const NOT_SUPPORTED: Status = Status(16);
}

/// The outcome of an operation whose failure is a status.
pub(crate) type Outcome<T = ()> = Result<T, Status>;

impl From<driver::Error> for Status {
    fn from(error: driver::Error) -> Status {
        match error {
            driver::Error::NotInitialized => Status::SETUP_FAILED,
            driver::Error::OutOfMemory => Status::ALLOC_FAILED,
            driver::Error::Failed => Status::EXEC_FAILED,
        }
    }
}

/// Runs an exported function's work; no panic leaves it.
pub(crate) fn entry(work: impl FnOnce() -> Outcome) -> Status {
    guarded(Status::SUCCESS, Status::INTERNAL_ERROR, work)
}

/// The numbers that a transform computes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Precision {
    Float,
    Double,
}

impl Precision {
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Precision::Float => 4,
            Precision::Double => 8,
        }
    }
}

/// Which sides of a transform are real.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Complex,
    /// Forward, from real numbers to half of the complex ones.
    RealToComplex,
    /// Inverse, from half of the complex numbers to real ones.
    ComplexToReal,
}

/// The sign of the exponent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    Forward,
    Inverse,
}

impl Direction {
    pub(crate) fn parse(number: i32) -> Outcome<Direction> {
        match number {
            -1 => Ok(Direction::Forward),
            1 => Ok(Direction::Inverse),
            _ => Err(Status::INVALID_VALUE),
        }
    }
}

/// The type of a transform (`cufftType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Type {
    pub(crate) form: Form,
    pub(crate) precision: Precision,
}

impl Type {
    pub(crate) fn parse(number: i32) -> Outcome<Type> {
        let (form, precision) = match number {
            0x2a => (Form::RealToComplex, Precision::Float),
            0x2c => (Form::ComplexToReal, Precision::Float),
            0x29 => (Form::Complex, Precision::Float),
            0x6a => (Form::RealToComplex, Precision::Double),
            0x6c => (Form::ComplexToReal, Precision::Double),
            0x69 => (Form::Complex, Precision::Double),
            _ => return Err(Status::INVALID_TYPE),
        };
        Ok(Type { form, precision })
    }

    /// The type for a pair of `cudaDataType` (`cufftXtMakePlanMany`).
    pub(crate) fn of_elements(input: i32, output: i32) -> Outcome<Type> {
        const FLOAT: [i32; 2] = [0, 4];
        const DOUBLE: [i32; 2] = [1, 5];
        for ([real, complex], precision) in [(FLOAT, Precision::Float), (DOUBLE, Precision::Double)] {
            let form = match (input, output) {
                pair if pair == (real, complex) => Form::RealToComplex,
                pair if pair == (complex, real) => Form::ComplexToReal,
                pair if pair == (complex, complex) => Form::Complex,
                _ => continue,
            };
            return Ok(Type { form, precision });
        }
        sluice_library_base::entry::report_missing("cufftXtMakePlanMany with halves or bfloat16");
        Err(Status::NOT_SUPPORTED)
    }
}
