//! `sluice run --coverage`: which lines of its kernels a program executes on a private software
//! GPU.
//!
//! Workers inherit a folder from the private node in this process, and record there what they
//! count after each launch, since they are killed at the end of the run.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use sluice_coverage::{Report, Tracefile};
use sluice_wire::control::LeaseGranted;

use crate::child::{EXIT_SLUICE_FAILED, NotStarted};
use crate::cli::RunArgs;
use crate::output::with_causes;
use crate::run::{failed, scratch};
use crate::surroundings::Scratch;

/// Read by workers, which inherit it from the private node in this process.
const VARIABLE: &str = "SLUICE_COVERAGE";

/// A run whose coverage is recorded.
pub(crate) struct Coverage {
    folder: Scratch,
    path: PathBuf,
    /// Says nothing but errors.
    quiet: bool,
}

impl Coverage {
    /// Tells the workers of the private node that is about to start. Nothing where coverage is not
    /// to be recorded.
    pub(crate) fn begin(arguments: &RunArgs) -> Result<Option<Coverage>, NotStarted> {
        let Some(path) = &arguments.ci.coverage else { return Ok(None) };
        let path = std::path::absolute(path)
            .map_err(|error| failed(format!("--coverage {}: {error}", path.display())))?;
        // What cannot be added to is found before the program runs.
        check_file(&path).map_err(|error| refusal(&path, &error))?;
        let folder = scratch()?;
        // SAFETY: the node is not started yet, and no other thread here reads the environment.
        unsafe { std::env::set_var(VARIABLE, folder.path()) };
        Ok(Some(Coverage { folder, path, quiet: arguments.quiet }))
    }

    /// Adds what was executed to the file. The answer is the exit code of the run whose program
    /// ended with `code`.
    pub(crate) fn end(self, code: i32) -> Result<i32, NotStarted> {
        let summary = self.write().map_err(|error| {
            let exit_code = if code == 0 { EXIT_SLUICE_FAILED } else { code };
            NotStarted { exit_code, ..refusal(&self.path, &error) }
        })?;
        if !self.quiet {
            eprintln!("sluice: coverage: {summary}; written to {}", self.path.display());
        }
        Ok(code)
    }

    /// Writes file and PTX texts; a summary of this run.
    fn write(&self) -> anyhow::Result<String> {
        let report = Report::read(self.folder.path()).context("what was counted cannot be read")?;
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        for (name, text) in report.texts() {
            std::fs::write(parent.join(name), text).with_context(|| format!("cannot write {name}"))?;
        }
        let tracefile = report.tracefile(parent);
        let mut file = open(&self.path)?;
        // Other runs may end at the same time.
        file.lock()?;
        let mut sum = read(&mut file)?;
        sum.add(&tracefile);
        let text = sum.to_string();
        file.rewind()?;
        file.write_all(text.as_bytes())?;
        file.set_len(text.len() as u64)?;
        Ok(summary(&tracefile))
    }
}

/// Only a software GPU counts.
pub(crate) fn check(arguments: &RunArgs, lease: &LeaseGranted) -> Result<(), NotStarted> {
    let other = lease.devices.iter().find(|device| !device.is_software);
    match (&arguments.ci.coverage, other) {
        (Some(_), Some(device)) => Err(failed(format!(
            "--coverage: the lines of kernels on {} cannot be counted; add --gpus software",
            device.name
        ))),
        _ => Ok(()),
    }
}

/// Whether counts can be added to the file, which another run may be writing.
fn check_file(path: &Path) -> anyhow::Result<()> {
    let mut file = open(path)?;
    file.lock_shared()?;
    read(&mut file).map(drop)
}

fn open(path: &Path) -> anyhow::Result<File> {
    Ok(OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?)
}

/// What the file has so far.
fn read(file: &mut File) -> anyhow::Result<Tracefile> {
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => io::Error::other("it is not a text, so no lcov tracefile"),
        _ => error,
    })?;
    text.parse().context("counts cannot be added to it; name another file, or delete it")
}

fn refusal(path: &Path, error: &anyhow::Error) -> NotStarted {
    failed(format!("--coverage {}: {}", path.display(), with_causes(error)))
}

fn summary(tracefile: &Tracefile) -> String {
    let (mut files, mut lines, mut hit) = (0, 0, 0);
    for (_, file) in tracefile.files() {
        files += 1;
        lines += file.lines.len();
        hit += file.lines_hit();
    }
    match files {
        0 => "no kernels were loaded".to_owned(),
        1 => format!("{hit} of {lines} lines of 1 file executed"),
        _ => format!("{hit} of {lines} lines of {files} files executed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_counts_lines_and_files() {
        assert_eq!(summary(&Tracefile::default()), "no kernels were loaded");
        let record = |name| format!("SF:{name}\nDA:1,4\nDA:2,0\nend_of_record\n");
        assert_eq!(summary(&record("a").parse().unwrap()), "1 of 2 lines of 1 file executed");
        let two = record("a") + &record("b");
        assert_eq!(summary(&two.parse().unwrap()), "2 of 4 lines of 2 files executed");
    }

    #[test]
    fn a_file_that_is_no_tracefile_is_refused_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("main.rs");
        std::fs::write(&path, "fn main() {}\n").unwrap();
        let error = check_file(&path).unwrap_err();
        let message = refusal(&path, &error).message;
        assert!(message.contains("line 1 does not belong in an lcov tracefile"), "{message}");
        assert!(message.contains("name another file"), "{message}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "fn main() {}\n");
    }
}
