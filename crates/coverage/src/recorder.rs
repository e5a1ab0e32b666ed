//! What a process records.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::log::{Event, Module};

/// Records the modules of a process and what its kernels count.
#[derive(Debug)]
pub struct Recorder {
    files: Mutex<Files>,
}

#[derive(Debug)]
struct Files {
    log: File,
    counts: File,
    /// Counters of all kernels so far.
    counters: u64,
    /// Names of the modules that are in the log.
    modules: HashSet<String>,
    has_failed: bool,
}

/// The counters of a kernel.
#[derive(Debug)]
pub struct Counters {
    values: Box<[AtomicU64]>,
    /// Number of the first one in the process.
    first: u64,
}

impl Counters {
    /// What launches count in.
    pub fn values(&self) -> &[AtomicU64] {
        &self.values
    }
}

impl Recorder {
    /// Creates the files `NAME.jsonl` and `NAME.counts` in a folder.
    pub fn create(folder: &Path, name: &str) -> io::Result<Recorder> {
        let create = |ending: &str| {
            OpenOptions::new().create_new(true).write(true).open(folder.join(format!("{name}.{ending}")))
        };
        // A process may be killed in between: a log has its counts.
        let counts = create("counts")?;
        let log = create("jsonl")?;
        let modules = HashSet::new();
        Ok(Recorder { files: Mutex::new(Files { log, counts, counters: 0, modules, has_failed: false }) })
    }

    /// Enters a module, unless the process has loaded the same text before.
    pub fn add_module(&self, name: &str, describe: impl FnOnce() -> Module) {
        let is_new = self.with_files(|files| Ok(files.modules.insert(name.to_owned())));
        if is_new == Some(true) {
            let module = describe();
            self.with_files(|files| files.write(&Event::Module(module)));
        }
    }

    /// Enters a compiled kernel of a module, with the lines that each of its counters counts.
    pub fn add_kernel(&self, module: &str, lines: &[Vec<u32>]) -> Counters {
        let first = self.with_files(|files| {
            let first = files.counters;
            files.counters += lines.len() as u64;
            files.write(&Event::Kernel { module: module.to_owned(), first, lines: lines.to_vec() })?;
            Ok(first)
        });
        let values = lines.iter().map(|_| AtomicU64::new(0)).collect();
        Counters { values, first: first.unwrap_or_default() }
    }

    /// Writes what a kernel has counted so far.
    pub fn save(&self, counters: &Counters) {
        self.with_files(|files| {
            // Read under the lock, so that no older counts are written over newer ones.
            let counts = counters.values.iter().flat_map(|count| count.load(Ordering::Relaxed).to_le_bytes());
            let counts: Vec<u8> = counts.collect();
            files.counts.seek(SeekFrom::Start(counters.first * size_of::<u64>() as u64))?;
            files.counts.write_all(&counts)
        });
    }

    /// After a failure nothing more is written: counts would be those of other kernels.
    fn with_files<R>(&self, write: impl FnOnce(&mut Files) -> io::Result<R>) -> Option<R> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if files.has_failed {
            return None;
        }
        let written = write(&mut files);
        written
            .inspect_err(|error| {
                eprintln!("sluice: coverage cannot be written, and ends here: {error}");
                files.has_failed = true;
            })
            .ok()
    }
}

impl Files {
    fn write(&mut self, event: &Event) -> io::Result<()> {
        let mut line = serde_json::to_string(event).map_err(io::Error::other)?;
        line.push('\n');
        // One call for each line: the process may be killed behind any of them.
        self.log.write_all(line.as_bytes())
    }
}
