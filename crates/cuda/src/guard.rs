//! The wall between Rust panics and C callers.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::CUresult;

/// Runs the body of an exported driver function; a panic inside becomes `CUDA_ERROR_UNKNOWN`.
///
/// Unwinding into a C frame is undefined behaviour, and a library inside a stranger's process must
/// not abort it.
pub fn guard(body: impl FnOnce() -> CUresult) -> CUresult {
    // The body may leave its own state half done; its locks are then poisoned and later calls fail
    // by themselves.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(CUresult::UNKNOWN)
}

/// Says once, on stderr, that a program called a function that Sluice does not have, and answers
/// accordingly.
pub fn absent(name: &'static str, reason: &'static str, said: &'static std::sync::Once) -> CUresult {
    said.call_once(|| {
        eprintln!("sluice: {name} is not supported ({reason}); it returned CUDA_ERROR_NOT_SUPPORTED")
    });
    CUresult::NOT_SUPPORTED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        assert_eq!(guard(|| panic!("on purpose")), CUresult::UNKNOWN);
        assert_eq!(guard(|| CUresult::NOT_READY), CUresult::NOT_READY);
    }
}
