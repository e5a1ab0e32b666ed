//! `cargo xtask gpu-check --bundle`.
use std::process::ExitCode;

use anyhow::{Result, bail};

pub(crate) fn bundle() -> Result<ExitCode> {
    bail!("no bundle yet")
}
