//! What is shown while a lease waits.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use sluice_api::lease::{Lease, LeaseState};

use super::Talk;
use crate::moment::Moment;
use crate::quantity::Period;
use crate::server::lists;

/// The line about a waiting program: rewritten on a terminal, printed when it changes elsewhere.
pub(super) struct Progress {
    pub(super) talk: Talk,
    pub(super) terminal: bool,
    begun: Instant,
    shown: String,
    /// All that the scheduler said, as it was printed last.
    details: String,
    /// When it was said to start, where lines are kept.
    start_ms: Option<u64>,
}

impl Progress {
    pub(super) fn new(talk: Talk) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        let (shown, details) = (String::new(), String::new());
        Progress { talk, terminal, begun: Instant::now(), shown, details, start_ms: None }
    }

    pub(super) fn show(&mut self, lease: &Lease) {
        let line = self.line(lease);
        self.say(&line);
        let details = lease.reason.as_deref().unwrap_or_default();
        if self.talk == Talk::Verbose && !line.is_empty() && !details.is_empty() && self.details != details {
            self.details = details.to_owned();
            let lead = if self.terminal { "\n" } else { "" };
            eprintln!("{lead}sluice: in detail: {details}");
        }
    }

    pub(super) fn line(&mut self, lease: &Lease) -> String {
        let start = lease.start.as_ref().and_then(|start| start.at_ms);
        let start = start.map(|at_ms| match self.terminal {
            true => wait_text(at_ms, lists::now_ms()),
            false => self.about(at_ms, lists::now_ms()),
        });
        waiting_line(lease, start.as_deref())
    }

    /// Where lines are kept, the time until it starts would make a new one of each: one that has
    /// hardly moved is as it was said.
    pub(super) fn about(&mut self, at_ms: u64, now_ms: u64) -> String {
        let said_ms = self.start_ms.filter(|&said_ms| !has_moved(said_ms, at_ms, now_ms)).unwrap_or(at_ms);
        self.start_ms = Some(said_ms);
        if at_ms <= now_ms { ANY_MOMENT.into() } else { format!("at about {}", Moment::from_ms(said_ms)) }
    }

    pub(super) fn say(&mut self, line: &str) {
        if self.talk == Talk::Quiet || (!self.terminal && self.shown == line) || line.is_empty() {
            return;
        }
        self.shown = line.to_owned();
        if self.terminal {
            let waited = Period::from_duration(self.begun.elapsed());
            let columns = columns_of_terminal();
            // A line that wraps cannot be rewritten: what does not fit is cut.
            let line = cut(&format!("sluice: {line} ({waited})"), columns);
            eprint!("\r\x1b[K{line}");
            let _ = std::io::stderr().flush();
        } else {
            eprintln!("sluice: {line}");
        }
    }
}

/// The width of the terminal.
fn columns_of_terminal() -> usize {
    const USUAL: usize = 80;
    terminal_size::terminal_size().map_or(USUAL, |(columns, _)| usize::from(columns.0).max(20))
}

/// Shortens a line to fewer characters than there are columns.
pub(super) fn cut(line: &str, columns: usize) -> String {
    if line.chars().count() < columns {
        return line.to_owned();
    }
    let kept: String = line.chars().take(columns.saturating_sub(2)).collect();
    format!("{kept}\u{2026}")
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal && !self.shown.is_empty() {
            eprint!("\r\x1b[K");
        }
    }
}

/// Whether a start that was said is off by more than a fifth of the time that is left.
fn has_moved(said_ms: u64, at_ms: u64, now_ms: u64) -> bool {
    said_ms.abs_diff(at_ms) > at_ms.saturating_sub(now_ms) / 5
}

pub(super) const ANY_MOMENT: &str = "any moment";

/// Formats a wait, in seconds.
fn wait_text(at_ms: u64, now_ms: u64) -> String {
    match at_ms.saturating_sub(now_ms) / 1000 {
        0 => ANY_MOMENT.into(),
        seconds => format!("in about {}", Period::from_duration(Duration::from_secs(seconds))),
    }
}

/// Formats why a lease waits, its place in the line of its tenant, and when it will start. Without
/// a reason it is empty.
pub(super) fn waiting_line(lease: &Lease, start: Option<&str>) -> String {
    let reason = lease.reason_brief.as_ref().or(lease.reason.as_ref());
    let (LeaseState::Queued, Some(position), Some(reason)) = (lease.state, lease.position, reason) else {
        return String::new();
    };
    let place = match position {
        1 => "You are next".to_owned(),
        position => format!("You are number {position}"),
    };
    let start = start.map_or_else(|| "; the start is not known yet".to_owned(), |start| format!(", {start}"));
    format!("Waiting: {reason}. {place}{start}.")
}
