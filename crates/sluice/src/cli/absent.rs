//! Commands that a lean build does not have: they exist, and say how to get them.

use std::ffi::OsString;

use clap::Args;

/// Any arguments, since the command does nothing with them.
#[derive(Debug, Args)]
#[command(disable_help_flag = true, hide = true)]
pub(crate) struct AbsentArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _any: Vec<OsString>,
}

pub(crate) type UpArgs = AbsentArgs;
pub(crate) type ServerCommandArgs = AbsentArgs;
pub(crate) type BackupArgs = AbsentArgs;
pub(crate) type TopArgs = AbsentArgs;
pub(crate) type SimulateArgs = AbsentArgs;
