//! Types of cuRAND's C interface (cuRAND, "Host API").

use sluice_library_base::driver;
use sluice_library_base::entry::guarded;

/// The answer of every function (`curandStatus_t`).
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) i32);

impl Status {
    pub(crate) const SUCCESS: Status = Status(0);
    pub(crate) const NOT_INITIALIZED: Status = Status(101);
    pub(crate) const ALLOCATION_FAILED: Status = Status(102);
    pub(crate) const TYPE_ERROR: Status = Status(103);
    pub(crate) const OUT_OF_RANGE: Status = Status(104);
    pub(crate) const LENGTH_NOT_MULTIPLE: Status = Status(105);
    pub(crate) const LAUNCH_FAILURE: Status = Status(201);
    pub(crate) const INITIALIZATION_FAILED: Status = Status(203);
    pub(crate) const INTERNAL_ERROR: Status = Status(999);
}

/// The outcome of an operation whose failure is a status.
pub(crate) type Outcome<T = ()> = Result<T, Status>;

impl From<driver::Error> for Status {
    fn from(error: driver::Error) -> Status {
        match error {
            driver::Error::NotInitialized => Status::INITIALIZATION_FAILED,
            driver::Error::OutOfMemory => Status::ALLOCATION_FAILED,
            driver::Error::Failed => Status::LAUNCH_FAILURE,
        }
    }
}

/// Runs an exported function's work; no panic leaves it.
pub(crate) fn entry(work: impl FnOnce() -> Outcome) -> Status {
    guarded(Status::SUCCESS, Status::INTERNAL_ERROR, work)
}

/// A generator's algorithm (`curandRngType_t`), of those that are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Xorwow,
    Mrg32k3a,
    Mt19937,
    Philox4x32,
    Sobol32,
}

/// A number of `curandRngType_t` that is documented and not built.
const NOT_BUILT: [(i32, &str); 4] = [
    (141, "CURAND_RNG_PSEUDO_MTGP32"),
    (202, "CURAND_RNG_QUASI_SCRAMBLED_SOBOL32"),
    (203, "CURAND_RNG_QUASI_SOBOL64"),
    (204, "CURAND_RNG_QUASI_SCRAMBLED_SOBOL64"),
];

impl Kind {
    pub(crate) fn parse(number: i32) -> Outcome<Kind> {
        match number {
            100 | 101 => Ok(Kind::Xorwow),
            121 => Ok(Kind::Mrg32k3a),
            142 => Ok(Kind::Mt19937),
            161 => Ok(Kind::Philox4x32),
            200 | 201 => Ok(Kind::Sobol32),
            _ => {
                if let Some((_, name)) = NOT_BUILT.iter().find(|(missing, _)| *missing == number) {
                    sluice_library_base::entry::report_missing(name);
                }
                Err(Status::TYPE_ERROR)
            }
        }
    }

    pub(crate) fn is_quasi(self) -> bool {
        self == Kind::Sobol32
    }

    /// Words of the sequence that a double is made of. The generators with one have less than 32
    /// independent bits in a word, or points whose coordinates have one word each.
    pub(crate) fn words_of_double(self) -> u64 {
        match self {
            Kind::Mrg32k3a | Kind::Sobol32 => 1,
            Kind::Xorwow | Kind::Mt19937 | Kind::Philox4x32 => 2,
        }
    }

    /// Whether `curandSetGeneratorOrdering` takes this number.
    pub(crate) fn takes_ordering(self, ordering: i32) -> bool {
        if self.is_quasi() { ordering == 201 } else { (100..=104).contains(&ordering) }
    }
}

/// The type of results.
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
