//! What a run has used: asked of the node at the end of each lease, said to the user, and kept for
//! a report.

use std::path::Path;
use std::time::Duration;

use sluice_control::{Failure, Keeper};
use sluice_wire::control::{ProcessUsage, Processes, Usage};

use crate::quantity::{Memory, Period};

/// The use of a lease.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Used {
    /// The GPUs and their place, for people to read.
    pub(crate) place: String,
    pub(crate) usage: Usage,
    /// Each process with its command line, if a report is wanted.
    pub(crate) processes: Vec<(ProcessUsage, Option<String>)>,
    /// Processes that are not listed.
    pub(crate) omitted: u64,
}

/// The uses of all leases of a run. Of a lease that was lost, there is only the reason.
pub(crate) type Uses = Vec<Result<Used, String>>;

/// Ends a lease and says what it used. `names` is the folder in which processes left their command
/// lines for a report.
pub(crate) fn give_back(
    keeper: Keeper,
    place: String,
    quiet: bool,
    names: Option<&Path>,
) -> Result<Used, String> {
    let ended = match names {
        None => keeper.end().map(|usage| (usage, Processes { processes: Vec::new(), omitted: 0 })),
        Some(_) => keeper.end_listing(),
    };
    let (usage, Processes { processes, omitted }) = ended.map_err(|failure| lost(&failure))?;
    if !quiet {
        eprintln!("sluice: {}", usage_line(&usage));
    }
    let named = processes.into_iter().map(|process| {
        let command = names.and_then(|folder| command(folder, &process));
        (process, command)
    });
    Ok(Used { place, usage, processes: named.collect(), omitted })
}

fn lost(failure: &Failure) -> String {
    let message = format!("the lease was lost: {failure}");
    eprintln!("sluice: {message}");
    message
}

/// The command line that the process of a session has left; see `crates/client/src/announce.rs`.
fn command(folder: &Path, process: &ProcessUsage) -> Option<String> {
    let words = std::fs::read(folder.join(format!("{}-{}", process.process, process.session))).ok()?;
    let words = words.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    Some(words.map(|word| String::from_utf8_lossy(word).into_owned()).collect::<Vec<_>>().join(" "))
}

fn usage_line(usage: &Usage) -> String {
    format!(
        "{}, {} kernels, {} of GPU time, {} of memory at most, {} in, {} out",
        Period::from_duration(Duration::from_millis(usage.age_ms)),
        usage.kernels,
        Period::from_duration(Duration::from_micros(usage.busy_us)),
        Memory::from_bytes(usage.memory_peak),
        Memory::from_bytes(usage.bytes_in),
        Memory::from_bytes(usage.bytes_out),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_reads_as_a_sentence() {
        let usage = Usage {
            age_ms: 61_500,
            sessions: 1,
            kernels: 4711,
            bytes_in: 3 << 20,
            bytes_out: 1536,
            busy_us: 1_500_000,
            memory_peak: 1 << 30,
        };
        let expect =
            "1 min 1 s, 4711 kernels, 1.5 s of GPU time, 1 GiB of memory at most, 3 MiB in, 1.5 KiB out";
        assert_eq!(usage_line(&usage), expect);
    }
}
