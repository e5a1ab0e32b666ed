//! Metrics of training runs: reading them while they are written, and rules that recognise trouble.
//!
//! - [`Source`] follows a file or folder: event files of TensorBoard, the file store of MLflow,
//!   JSON lines. It returns [`Point`]s.
//! - [`Rule`] is one sentence, such as `loss stops falling for 500 steps`.
//! - [`Watch`] applies rules to points and says when one is broken ([`Alert`]).
//!
//! Nothing here acts on an alert, sleeps, or asks for the time.

mod json_lines;
mod mlflow;
mod rule;
mod series;
mod source;
mod tensorboard;
mod watch;

pub use rule::{Rule, RuleError};
pub use source::{Polled, Source};
pub use watch::{Alert, Watch};

/// Longest name of a metric or run, in bytes. What is longer is cut.
const NAME_MAX: usize = 256;

/// One value of a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The run, by the name of its folder or file.
    pub run: String,
    pub metric: String,
    pub step: u64,
    /// May be infinite or no number.
    pub value: f64,
}

impl Point {
    fn new(run: &str, metric: &str, step: u64, value: f64) -> Point {
        Point { run: name(run), metric: name(metric), step, value }
    }
}

/// A name as it is shown: without control characters, and not too long.
fn name(text: &str) -> String {
    let mut name: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    if name.len() > NAME_MAX {
        name.truncate(name.floor_char_boundary(NAME_MAX));
    }
    name
}
