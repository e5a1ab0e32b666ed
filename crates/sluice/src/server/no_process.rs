//! What a build without the control plane answers for it.

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::cli::{AbsentArgs, RestoreArgs};

pub(crate) fn up(_: &AbsentArgs) -> Result<ExitCode> {
    absent()
}

pub(crate) fn server(_: &AbsentArgs) -> Result<ExitCode> {
    absent()
}

pub(crate) fn backup(_: &AbsentArgs) -> Result<ExitCode> {
    absent()
}

pub(crate) fn restore(_: &RestoreArgs) -> Result<ExitCode> {
    absent()
}

fn absent() -> Result<ExitCode> {
    bail!("this build of sluice has no control plane; `cargo build --release` builds one that has")
}
