//! `cargo xtask bench`.
use std::process::ExitCode;

use anyhow::{Result, bail};

pub(crate) fn run(_names: &[&str]) -> Result<ExitCode> {
    bail!("no measurement yet")
}
