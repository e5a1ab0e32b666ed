//! The files in which a process records its coverage.
//!
//! `NAME.jsonl` has a line of JSON for each [`Event`]. `NAME.counts` has the counters of all
//! kernels, eight bytes each in little-endian order, which are overwritten after each launch: the
//! process may be killed at any time.

use serde::{Deserialize, Serialize};

/// A line of the first file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// A module was loaded for the first time in this process.
    Module(Module),
    /// A kernel of it was compiled.
    Kernel {
        /// Name of its module.
        module: String,
        /// Number of its first counter in the second file.
        first: u64,
        /// For each counter the lines of the PTX text that it counts.
        lines: Vec<Vec<u32>>,
    },
}

/// What can be executed in a PTX text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module {
    /// The name that follows from the text, [`Module::name_of`].
    pub name: String,
    /// The PTX text, where it is its own source because it has no line information.
    pub text: Option<String>,
    /// Names of source files.
    pub files: Vec<String>,
    pub functions: Vec<Function>,
}

/// A kernel or a device function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    pub name: String,
    /// Its lines, in the order of the PTX text.
    pub lines: Vec<Line>,
}

/// A line of the PTX text that has instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Number of the line in the PTX text, from 1.
    pub ptx: u32,
    /// Index into [`Module::files`].
    pub file: u32,
    /// Number of the line in that file, from 1.
    pub line: u32,
}

impl Module {
    /// The name of a PTX text, a hash of it.
    pub fn name_of(text: &[u8]) -> String {
        const DIGITS: usize = 16;
        format!("module-{}.ptx", &blake3::hash(text).to_hex()[..DIGITS])
    }
}
