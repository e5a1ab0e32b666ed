//! What came out of the tests, for people and for `cargo xtask test`.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use serde_json::json;

/// What came out of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    /// With the reason.
    Skipped(String),
}

/// All that came out, with the seconds that it took.
#[derive(Debug, Default)]
pub(crate) struct Report {
    tests: Vec<(String, Outcome, f64)>,
    /// Steps that are no tests.
    steps: Vec<(String, f64)>,
}

impl Report {
    /// Does a step that is no test.
    pub(crate) fn time(&mut self, step: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let begin = Instant::now();
        work()?;
        self.steps.push((step.into(), begin.elapsed().as_secs_f64()));
        Ok(())
    }

    pub(crate) fn add(&mut self, name: String, outcome: Outcome, seconds: f64) {
        self.tests.push((name, outcome, seconds));
    }

    pub(crate) fn code(&self) -> ExitCode {
        match self.tests.iter().any(|(_, outcome, _)| *outcome == Outcome::Failed) {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        }
    }

    /// `{"tests": [{"name", "outcome", "reason", "seconds"}], "steps": [{"name", "seconds"}]}`.
    pub(crate) fn to_json(&self) -> String {
        let tests = self.tests.iter().map(|(name, outcome, seconds)| {
            let (outcome, reason) = match outcome {
                Outcome::Passed => ("passed", None),
                Outcome::Failed => ("failed", None),
                Outcome::Skipped(reason) => ("skipped", Some(reason)),
            };
            json!({ "name": name, "outcome": outcome, "reason": reason, "seconds": seconds })
        });
        let steps = self.steps.iter().map(|(name, seconds)| json!({ "name": name, "seconds": seconds }));
        json!({ "tests": tests.collect::<Vec<_>>(), "steps": steps.collect::<Vec<_>>() }).to_string()
    }
}
