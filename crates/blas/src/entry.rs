//! What every exported function does around its work.

use sluice_library_base::driver::Error;
use sluice_library_base::entry::{guarded, report_missing};

use crate::abi::{Outcome, Status};

/// Runs an exported function's work; no panic leaves it.
pub(crate) fn entry(work: impl FnOnce() -> Outcome) -> Status {
    guarded(Status::SUCCESS, Status::INTERNAL_ERROR, work)
}

/// Answers for a function, or a case of one, that is not built, and names it once on standard
/// error.
pub(crate) fn not_supported(what: &'static str) -> Status {
    report_missing(what);
    Status::NOT_SUPPORTED
}

impl From<Error> for Status {
    fn from(error: Error) -> Status {
        match error {
            Error::NotInitialized => Status::NOT_INITIALIZED,
            Error::OutOfMemory => Status::ALLOC_FAILED,
            Error::Failed => Status::EXECUTION_FAILED,
        }
    }
}
