//! Which driver functions a program called with success: the evidence in `docs/cuda-support.md`.
//!
//! With `SLUICE_EVIDENCE` naming a folder, the process writes their names to a file there when it
//! exits. Without, a call pays for one relaxed load.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use sluice_cuda::{CUresult, FUNCTIONS, Fn};

use crate::abi::failures;

const FOLDER: &str = "SLUICE_EVIDENCE";

static CALLED: [AtomicBool; Fn::COUNT] = [const { AtomicBool::new(false) }; Fn::COUNT];

/// Notes a result, and returns it.
pub(crate) fn note(function: Fn, result: CUresult) -> CUresult {
    if !result.is_success() {
        failures::log(function, result);
        return result;
    }
    let called = &CALLED[function as usize];
    if !called.load(Ordering::Relaxed) {
        let first = !called.swap(true, Ordering::Relaxed);
        // Nothing works before cuInit has, so it is the one place to look at the environment.
        if first && function == Fn::cuInit && std::env::var_os(FOLDER).is_some() {
            // SAFETY: the function stays: driver libraries are not unloaded.
            unsafe { libc::atexit(write) };
        }
    }
    result
}

extern "C" fn write() {
    // Errors cannot be reported at exit; a test that finds no file fails.
    let _ = std::panic::catch_unwind(|| {
        let Some(folder) = std::env::var_os(FOLDER) else { return };
        let path = std::path::Path::new(&folder).join(std::process::id().to_string());
        let Ok(mut file) = std::fs::File::create(path) else { return };
        for info in FUNCTIONS.iter().filter(|info| CALLED[info.function as usize].load(Ordering::Relaxed)) {
            let _ = writeln!(file, "{}", info.name);
        }
    });
}
