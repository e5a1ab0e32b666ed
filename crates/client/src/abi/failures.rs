//! Failed driver calls on standard error, for finding out why a program or a library gives up.
//!
//! Libraries often turn a failed call into an error of their own that names neither the function
//! nor its code. With `SLUICE_LOG_ERRORS=1` each function and code is printed once. Without it a
//! failed call pays for one atomic load, a successful one for nothing.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::{Mutex, OnceLock, PoisonError};

use sluice_cuda::{CUresult, FUNCTIONS, Fn};

const VARIABLE: &str = "SLUICE_LOG_ERRORS";

static WANTED: OnceLock<bool> = OnceLock::new();
static PRINTED: Mutex<BTreeSet<(usize, i32)>> = Mutex::new(BTreeSet::new());

/// Prints a failed call, the first time that this function returns this code.
///
/// `NOT_READY` is an answer of polling, not a failure.
pub(crate) fn log(function: Fn, result: CUresult) {
    if result == CUresult::NOT_READY || !*WANTED.get_or_init(is_wanted) {
        return;
    }
    let first = PRINTED.lock().unwrap_or_else(PoisonError::into_inner).insert((function as usize, result.0));
    if first {
        let name = FUNCTIONS[function as usize].name;
        let code = result.name().map_or("unknown".into(), |code| code.to_string_lossy());
        // A closed standard error must not become a panic in a program's thread.
        let _ = writeln!(std::io::stderr(), "sluice: {name} returned {} ({code})", result.0);
    }
}

fn is_wanted() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|value| !value.is_empty() && value != "0")
}
