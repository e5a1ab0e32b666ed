//! The log of a node and of a server: one line for each event on standard error, as text for people
//! or as JSON for programs that collect logs.
//!
//! Events are made by the macros of `tracing`, with what they are about in fields of these names
//! wherever it is known: `node`, `lease`, `session`, `tenant`, `gpu`, `peer` and `request`. The
//! message says all of it in words, too. In text an event reads
//!
//! ```text
//! 2026-11-27T18:33:27.123456Z WARN  sluice node: session 3 ended: ... session=3 lease=7
//! ```
//!
//! Without [`start`] nothing is logged: libraries and tests are silent.

mod queue;
mod text;

use std::io::{self, Write};
use std::str::FromStr;
use std::sync::OnceLock;

use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use queue::Queue;

/// The variable that says which events are logged.
pub const VARIABLE: &str = "SLUICE_LOG";

/// What crates that are not Sluice's log unless [`VARIABLE`] says otherwise.
const OF_OTHERS: &str = "error";

/// What a line of the log looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Text,
    /// An object with `timestamp`, `level`, `target`, `message`, the fields and, within a span, its
    /// name and fields as `span`.
    Json,
    /// What is wrong, in words alone, for commands that a person runs.
    Messages,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Format, String> {
        match text {
            "text" => Ok(Format::Text),
            "json" => Ok(Format::Json),
            _ => Err(format!("a log is text or json, not {text:?}")),
        }
    }
}

/// Why the log cannot be written as asked for.
#[derive(Debug, thiserror::Error)]
#[error(
    "{VARIABLE}={text:?}: {why}; it is a level (error, warn, info, debug, trace or off), or a level for each part, \
     such as sluice_node=debug,sluice_server=warn"
)]
pub struct FilterError {
    text: String,
    why: String,
}

static FORMAT: OnceLock<Format> = OnceLock::new();
/// Where the lines of a log go; messages to a person are written at once.
static QUEUE: OnceLock<Queue> = OnceLock::new();

/// Logs on standard error from now on, for as long as this process runs. A second call changes
/// nothing.
pub fn start(format: Format) -> Result<(), FilterError> {
    let asked = std::env::var(VARIABLE).unwrap_or_default();
    let filter = filter(&asked, format)?;
    if FORMAT.set(format).is_err() {
        return Ok(());
    }
    let queue = match format {
        Format::Messages => None,
        // Without a thread lines are written where they arise.
        Format::Text | Format::Json => Queue::start(io::stderr()).ok(),
    };
    // An error says that there is a log already.
    let _ = match (format, queue) {
        (Format::Json, Some(queue)) => {
            tracing::subscriber::set_global_default(json(filter, QUEUE.get_or_init(|| queue).clone()))
        }
        (Format::Json, None) => tracing::subscriber::set_global_default(json(filter, io::stderr)),
        (_, Some(queue)) => {
            tracing::subscriber::set_global_default(text(format, filter, QUEUE.get_or_init(|| queue).clone()))
        }
        (_, None) => tracing::subscriber::set_global_default(text(format, filter, io::stderr)),
    };
    Ok(())
}

/// Waits for a moment until what was logged is written, before the process ends.
pub fn finish() {
    if let Some(queue) = QUEUE.get() {
        queue.finish();
    }
}

/// Whether the log goes to programs that collect logs, and so must hold nothing that signs in.
pub fn is_collected() -> bool {
    FORMAT.get() == Some(&Format::Json)
}

/// Says something to the person who has started this process; where its log is JSON, as an event.
pub fn tell(text: &str) {
    let line = || format!("sluice: {text}\n");
    match (FORMAT.get(), QUEUE.get()) {
        (Some(Format::Json), _) => tracing::info!(target: "sluice", "{text}"),
        (_, Some(queue)) => queue.push(line().as_bytes()),
        // A terminal that is gone is no reason to stop.
        (_, None) => {
            let _ = io::stderr().write_all(line().as_bytes());
        }
    }
}

/// A level alone is about Sluice.
fn filter(asked: &str, format: Format) -> Result<EnvFilter, FilterError> {
    let asked = asked.trim();
    let usual = if format == Format::Messages { "warn" } else { "info" };
    let directives = match asked {
        "" => format!("{OF_OTHERS},sluice={usual}"),
        level if !level.contains(['=', ',', '[']) => format!("{OF_OTHERS},sluice={level}"),
        directives => format!("{OF_OTHERS},sluice={usual},{directives}"),
    };
    EnvFilter::try_new(directives).map_err(|why| FilterError { text: asked.into(), why: why.to_string() })
}

fn text<W>(format: Format, filter: EnvFilter, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    // An error while writing would be reported on standard error, which panics where it is closed.
    let lines = tracing_subscriber::fmt().log_internal_errors(false);
    let lines = lines.with_env_filter(filter).with_writer(writer).with_ansi(false);
    lines.event_format(text::Lines { are_bare: format == Format::Messages }).finish()
}

fn json<W>(filter: EnvFilter, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt().log_internal_errors(false);
    let lines = lines.with_env_filter(filter).with_writer(writer).json();
    lines.flatten_event(true).with_current_span(true).with_span_list(false).finish()
}

#[cfg(test)]
mod tests;
