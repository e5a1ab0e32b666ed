//! The file that a process writes its findings to: a line of JSON for each event.
//!
//! The process may be killed at any time, so each line is written at once.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::report::{Finding, Kind, Region};

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// Something was found for the first time.
    Found { id: u64, finding: Box<Finding> },
    /// Number of times that it has been seen.
    Seen { id: u64, count: u64 },
    /// More kinds of findings were there than are kept.
    Dropped { count: u64 },
    /// Device memory was allocated; only where leaks are looked for.
    Allocated { region: Region },
    /// It was freed.
    Freed { number: u64 },
}

/// What a log says.
#[derive(Debug, Default, PartialEq)]
pub struct Contents {
    pub findings: Vec<Finding>,
    /// Findings that were not kept.
    pub dropped: u64,
    /// Lines that could not be read; the last one of a process that was killed may be cut off.
    pub unreadable: u64,
}

/// Reads the log of a process that has ended.
pub fn read(text: &str) -> Contents {
    let mut contents = Contents::default();
    let mut found: BTreeMap<u64, Finding> = BTreeMap::new();
    let mut allocated: BTreeMap<u64, Region> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        match serde_json::from_str(line) {
            Ok(Event::Found { id, finding }) => _ = found.insert(id, *finding),
            Ok(Event::Seen { id, count }) => {
                if let Some(finding) = found.get_mut(&id) {
                    finding.count = count;
                }
            }
            Ok(Event::Dropped { count }) => contents.dropped = count,
            Ok(Event::Allocated { region }) => _ = allocated.insert(region.number, region),
            Ok(Event::Freed { number }) => _ = allocated.remove(&number),
            Err(_) => contents.unreadable += 1,
        }
    }
    contents.findings = found.into_values().collect();
    contents.findings.extend(allocated.into_values().map(leak));
    contents
}

fn leak(region: Region) -> Finding {
    Finding {
        kind: Kind::Leak,
        kernel: None,
        access: None,
        ptx_line: 0,
        source: None,
        block: None,
        thread: None,
        address: Some(region.base),
        region: Some(region),
        other: None,
        detail: None,
        count: 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(number: u64) -> Region {
        let label = "device memory".to_owned();
        Region { label, base: 4096 * number, bytes: 64, number, offset: 0, is_freed: false }
    }

    #[test]
    fn what_is_allocated_and_not_freed_has_leaked() {
        let events = [
            Event::Allocated { region: region(1) },
            Event::Allocated { region: region(2) },
            Event::Freed { number: 1 },
        ];
        let lines = events.map(|event| serde_json::to_string(&event).unwrap()).join("\n");
        let contents = read(&(lines + "\n{\"found\":{\"id"));
        assert_eq!(contents.unreadable, 1);
        assert_eq!(contents.findings.len(), 1);
        assert_eq!((contents.findings[0].kind, contents.findings[0].address), (Kind::Leak, Some(8192)));
    }

    #[test]
    fn the_last_count_of_a_finding_counts() {
        let finding = Box::new(Finding { kind: Kind::Race, ..leak(region(1)) });
        let events = [
            Event::Found { id: 3, finding },
            Event::Seen { id: 3, count: 40 },
            Event::Seen { id: 9, count: 2 },
        ];
        let lines = events.map(|event| serde_json::to_string(&event).unwrap()).join("\n");
        let contents = read(&lines);
        assert_eq!((contents.findings.len(), contents.findings[0].count), (1, 40));
    }
}
