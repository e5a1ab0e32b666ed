//! What the demo, the end-to-end tests and the measurements of this repository share.
//!
//! ```text
//!   node, process, python     a node, commands, Python environments (packages: those of programs)
//!   expect, programs          programs under `sluice run`, and what they are expected to do
//!   counting, evidence        a program that something ends; what programs have called
//!   software_gpu, browser     other things that a test or a measurement starts
//!   relay, packets, namespaces, random, load     links that misbehave, and machines of their own
//! ```

pub mod node;
mod packages;
pub mod process;
pub mod python;

pub mod counting;
pub mod evidence;
pub mod expect;
pub mod programs;

pub mod browser;
pub mod software_gpu;

pub mod load;
pub mod namespaces;
pub mod packets;
pub mod random;
pub mod relay;

use std::fmt;
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

/// Why a test could say nothing.
#[derive(Clone, Debug)]
pub struct Skipped(pub String);

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skipped {}

/// Whether a change passes must not depend on luck, so its tests see the same random data each
/// time, unless the environment names a seed. `--all` leaves it to them: each run looks at
/// something else.
///
/// # Safety
///
/// No other thread may run: this changes the environment.
pub unsafe fn choose_seeds() {
    for name in ["SEED", "PROPTEST_RNG_SEED"] {
        if std::env::var_os(name).is_none() {
            // SAFETY: the caller vouches for it.
            unsafe { std::env::set_var(name, "1") };
        }
    }
}
