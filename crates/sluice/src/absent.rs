//! What a lean build answers for commands that it does not have.

use std::process::ExitCode;

use anyhow::{Result, bail};

pub(crate) mod process {
    use std::process::ExitCode;

    use anyhow::Result;

    use super::absent;
    use crate::cli::{AbsentArgs, RestoreArgs};

    pub(crate) fn up(_: &AbsentArgs) -> Result<ExitCode> {
        absent("control plane")
    }

    pub(crate) fn server(_: &AbsentArgs) -> Result<ExitCode> {
        absent("control plane")
    }

    pub(crate) fn backup(_: &AbsentArgs) -> Result<ExitCode> {
        absent("control plane")
    }

    pub(crate) fn restore(_: &RestoreArgs) -> Result<ExitCode> {
        absent("control plane")
    }
}

pub(crate) mod top {
    use std::process::ExitCode;

    use anyhow::Result;

    use crate::cli::AbsentArgs;

    pub(crate) fn run(_: &AbsentArgs) -> Result<ExitCode> {
        super::absent("view of what runs now (`sluice sessions` prints it once)")
    }
}

pub(crate) mod simulate {
    use std::process::ExitCode;

    use anyhow::Result;

    use crate::cli::AbsentArgs;

    pub(crate) fn run(_: &AbsentArgs) -> Result<ExitCode> {
        super::absent("simulator")
    }
}

pub(crate) mod manual {
    use std::path::Path;
    use std::process::ExitCode;

    use anyhow::Result;

    pub(crate) fn write(_: Option<&Path>) -> Result<ExitCode> {
        super::absent("manual pages (`--help` after a command prints its part)")
    }
}

pub(crate) mod report {
    use std::path::Path;
    use std::process::ExitCode;

    use anyhow::Result;

    use crate::cli::PlanArgs;

    pub(crate) fn report(_: &PlanArgs, _: &Path) -> Result<ExitCode> {
        super::absent("simulator, which the report is made with")
    }
}

fn absent(what: &str) -> Result<ExitCode> {
    bail!("this build of sluice has no {what}; `cargo build --release` builds one that has")
}
