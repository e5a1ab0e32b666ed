//! Findings of a process, each kind of error at one place of the code once.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::log::Event;
use crate::report::{Finding, Kind, Region};

/// Different findings that are kept; a program that has more has enough to read.
const FINDINGS_MAX: usize = 1000;

/// What makes two errors the same finding.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) kind: Kind,
    pub(crate) kernel: String,
    pub(crate) line: u32,
    /// Of the other access of a race.
    pub(crate) other_line: u32,
}

#[derive(Debug)]
pub(crate) struct Findings {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    findings: Vec<Finding>,
    places: HashMap<Key, usize>,
    /// Findings whose count has changed since the log was last written.
    changed: Vec<usize>,
    dropped: u64,
    has_dropped: bool,
    log: Option<File>,
}

impl Findings {
    pub(crate) fn new(log: Option<File>) -> Findings {
        Findings { state: Mutex::new(State { log, ..State::default() }) }
    }

    /// Counts an error, and makes a finding of the first one.
    pub(crate) fn add(&self, key: Key, make: impl FnOnce() -> Finding) {
        let mut state = self.lock();
        if let Some(&place) = state.places.get(&key) {
            state.findings[place].count += 1;
            if !state.changed.contains(&place) {
                state.changed.push(place);
            }
            return;
        }
        if state.findings.len() >= FINDINGS_MAX {
            state.dropped += 1;
            state.has_dropped = true;
            return;
        }
        let place = state.findings.len();
        let finding = make();
        state.write(&Event::Found { id: place as u64, finding: Box::new(finding.clone()) });
        state.findings.push(finding);
        state.places.insert(key, place);
    }

    /// Writes the counts that have changed.
    pub(crate) fn flush(&self) {
        let mut state = self.lock();
        for place in std::mem::take(&mut state.changed) {
            let count = state.findings[place].count;
            state.write(&Event::Seen { id: place as u64, count });
        }
        if std::mem::take(&mut state.has_dropped) {
            let count = state.dropped;
            state.write(&Event::Dropped { count });
        }
    }

    pub(crate) fn allocated(&self, region: Region) {
        self.lock().write(&Event::Allocated { region });
    }

    pub(crate) fn freed(&self, number: u64) {
        self.lock().write(&Event::Freed { number });
    }

    pub(crate) fn all(&self) -> Vec<Finding> {
        self.lock().findings.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn write(&mut self, event: &Event) {
        let Some(log) = &mut self.log else { return };
        let Ok(mut line) = serde_json::to_string(event) else { return };
        line.push('\n');
        // One call for each line: the process may be killed behind any of them.
        if let Err(error) = log.write_all(line.as_bytes()) {
            eprintln!("sluice: the sanitizer's findings cannot be written: {error}");
            self.log = None;
        }
    }
}
