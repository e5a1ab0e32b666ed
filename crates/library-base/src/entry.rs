//! What every exported function does around its work.

use std::collections::HashSet;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// Runs an exported function's work and returns its status; no panic leaves it.
pub fn guarded<S>(success: S, panicked: S, work: impl FnOnce() -> Result<(), S>) -> S {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
        Ok(Ok(())) => success,
        Ok(Err(status)) => status,
        Err(_) => panicked,
    }
}

/// Names a function, or a case of one, that is not built, once on standard error.
pub fn report_missing(what: &'static str) {
    static NAMED: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
    if named.get_or_insert_default().insert(what) {
        // Standard error may be a pipe without a reader, at which `eprintln!` would panic.
        let _ = writeln!(
            std::io::stderr(),
            "sluice: {what} is not supported on a software GPU; see docs/guides/ci.md, \"Libraries\""
        );
    }
}

/// Writes a value to the place that the caller passed for it, and returns whether there is one.
///
/// # Safety
/// The address is null or that of a place for a `T`.
pub unsafe fn give<T>(place: *mut T, value: T) -> bool {
    if !place.is_null() {
        // SAFETY: the caller's promise.
        unsafe { place.write(value) };
    }
    !place.is_null()
}
