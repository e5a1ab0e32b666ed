//! What the demo, the tests and the measurements of this repository start: commands, nodes, and
//! Python environments.

pub mod node;
pub mod process;
pub mod python;

use std::path::{Path, PathBuf};

/// Whether sessions of a node on the same machine that listens on TCP go through shared memory all
/// the same.
pub const SHARED_MEMORY_VARIABLE: &str = "SLUICE_SHARED_MEMORY";

/// The root of the repository.
///
/// # Panics
///
/// Never: this crate lies two folders below the root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two folders below the root")
}

/// Where cargo builds: `$CARGO_TARGET_DIR`, or `target` in the root.
pub fn target_folder() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root().join(folder),
        None => root().join("target"),
    }
}

/// Where tools and Python environments are kept that take minutes to install, for all checkouts:
/// `$SLUICE_TEST_CACHE`, or `sluice-tests` in the user's cache.
pub fn cache_folder() -> PathBuf {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let user = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    variable("SLUICE_TEST_CACHE")
        .or_else(|| Some(user()?.join("sluice-tests")))
        .unwrap_or_else(|| target_folder().join("test-cache"))
}
