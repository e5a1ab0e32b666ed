//! Leaves the command line of a process where `sluice run --report` looks for it.
//!
//! The node knows a session's process by its number alone, and the process may have ended when the
//! report is written.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use sluice_wire::address::REPORT_VARIABLE;

/// Writes the command line of this process into the folder of the report, if one is wanted.
pub(crate) fn process(session: u64) {
    let wanted: Option<OsString> = std::env::var_os(REPORT_VARIABLE).filter(|value| !value.is_empty());
    let Some(folder) = wanted else { return };
    let path = file(Path::new(&folder), session);
    if let Err(error) = fs::read("/proc/self/cmdline").and_then(|words| fs::write(&path, words)) {
        crate::abi::errors::say(format_args!("not named in the report: {}: {error}", path.display()));
    }
}

/// Sessions of several nodes may have one number, so the process is part of the name.
fn file(folder: &Path, session: u64) -> PathBuf {
    folder.join(format!("{}-{session}", std::process::id()))
}
