//! Which driver functions the programs of a test called with success.
//!
//! Every program that a test starts finds a folder of the test's name in `SLUICE_EVIDENCE`, in
//! which the client library writes what was called.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The folder of the folders.
pub fn folders() -> PathBuf {
    crate::target_folder().join("evidence")
}

/// An empty folder for a test's programs.
pub fn folder(test: &str) -> Result<PathBuf> {
    let folder = folders().join(test);
    forget(test);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

/// A test that failed is evidence of nothing.
pub fn forget(test: &str) {
    // It may not be there.
    let _ = fs::remove_dir_all(folders().join(test));
}

/// What the programs of a test called with success.
pub fn called(test: &str) -> Result<HashSet<String>> {
    let mut functions = HashSet::new();
    for file in entries(&folders().join(test))? {
        functions.extend(fs::read_to_string(&file)?.lines().map(String::from));
    }
    Ok(functions)
}

/// What is in a folder.
pub fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let list = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    list.map(|entry| Ok(entry?.path())).collect()
}
