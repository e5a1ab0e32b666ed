//! Arguments of `sluice watch`, and of `sluice run` where it watches its program's metrics.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use sluice_training::Rule;

use super::Output;

#[derive(Debug, Args)]
#[command(after_help = "\
Rules:
  METRIC stops falling for N steps     the lowest value is N steps old; a gain below 0.1 % is none
  METRIC stops rising for N steps      the highest value is
  METRIC diverges                      NaN or infinite, or twice its lowest mean of 16 values
  METRIC drops by P%                   the median of 16 values is P % below the highest one
  METRIC above X, METRIC below X       for what is measured elsewhere, such as drift of data
  METRIC silent for TIME               no value comes, for 90s, 10min or 2h

METRIC may have `*` for any text. An alert is given when a rule breaks, and again only after it was kept in between.

Examples:
  sluice watch runs --when 'loss diverges' --when 'tokens_per_s drops by 30%'
  sluice watch mlruns --when 'val/loss stops falling for 500 steps' --then 'exec:./retrain.sh' --then end
  sluice watch metrics.jsonl --once --when 'drift above 0.2'; [ $? != 1 ] || ./retrain.sh")]
pub(crate) struct WatchArgs {
    /// Files and folders that a training run writes: event files of TensorBoard, the file store of
    /// MLflow, JSON lines
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,

    /// A rule; its alerts are printed. May be repeated
    #[arg(long = "when", value_name = "RULE", required = true)]
    pub(crate) rules: Vec<Rule>,

    /// What else an alert does: exec:COMMAND, webhook:URL, or end, with exit code 1. May be
    /// repeated; they are done in their order
    #[arg(long = "then", value_name = "ACTION")]
    pub(crate) actions: Vec<Action>,

    /// Judge the last values of what is there, and end: with exit code 1 if a rule is broken, 2 if
    /// there is no such metric or a file cannot be read
    #[arg(long)]
    pub(crate) once: bool,

    /// How alerts are printed: a table's line, or an object of JSON a line
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct TrainingArgs {
    /// Look for trouble in the program's metrics, such as 'loss diverges'; all rules are in
    /// `sluice watch --help`. The program finds in $SLUICE_METRICS the file to which it adds a line
    /// of JSON for each step. May be repeated
    #[arg(long = "when", value_name = "RULE")]
    pub(crate) rules: Vec<Rule>,

    /// What an alert does besides a message: exec:COMMAND, webhook:URL, end the program, or
    /// checkpoint:FOLDER: it leaves its GPU and waits for `sluice restore FOLDER`. May be repeated;
    /// they are done in their order
    #[arg(long = "then", value_name = "ACTION", requires = "rules")]
    pub(crate) actions: Vec<Action>,

    /// Where the program writes metrics besides: event files of TensorBoard, the file store of
    /// MLflow, JSON lines. What was there before counts too. May be repeated
    #[arg(long = "watch", value_name = "PATH", requires = "rules")]
    pub(crate) paths: Vec<PathBuf>,
}

/// What follows an alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Exec(String),
    Webhook(String),
    Checkpoint(PathBuf),
    End,
}

impl FromStr for Action {
    type Err = String;

    fn from_str(text: &str) -> Result<Action, String> {
        match text.split_once(':') {
            None if text == "end" => Ok(Action::End),
            Some(("exec", command)) if !command.trim().is_empty() => Ok(Action::Exec(command.into())),
            Some(("webhook", url)) if ["http://", "https://"].iter().any(|start| url.starts_with(start)) => {
                Ok(Action::Webhook(url.into()))
            }
            Some(("checkpoint", folder)) if !folder.is_empty() => Ok(Action::Checkpoint(folder.into())),
            _ => Err(format!(
                "{text:?} is no action: exec:COMMAND, webhook:http://..., checkpoint:FOLDER (`sluice run` only), or end"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_read() {
        assert_eq!("end".parse(), Ok(Action::End));
        assert_eq!("exec:echo a:b".parse(), Ok(Action::Exec("echo a:b".into())));
        assert_eq!("webhook:https://x/y".parse(), Ok(Action::Webhook("https://x/y".into())));
        assert_eq!("checkpoint:saved".parse(), Ok(Action::Checkpoint("saved".into())));
        for wrong in ["", "exec:", "exec: ", "webhook:ftp://x", "checkpoint:", "END", "mail:a@b"] {
            wrong.parse::<Action>().expect_err(wrong);
        }
    }
}
