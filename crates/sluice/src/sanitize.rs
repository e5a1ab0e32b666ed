//! `sluice run --sanitize`: what the sanitizer of a private software GPU finds in a program.
//!
//! Workers inherit the tools and a folder from the private node in this process, and write what
//! they find into that folder at once, since they are killed at the end of the run.

mod suppressions;
mod text;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use sluice_sanitize::log::{self, Contents};
use sluice_sanitize::{Finding, Tools};
use sluice_wire::control::LeaseGranted;

use crate::child::{EXIT_FINDINGS, EXIT_SLUICE_FAILED, NotStarted};
use crate::cli::RunArgs;
use crate::run::{failed, scratch};
use crate::surroundings::Scratch;
use suppressions::Suppressions;

/// Read by workers, which inherit it from the private node in this process.
const VARIABLE: &str = "SLUICE_SANITIZE";

/// A run whose kernels are watched.
pub(crate) struct Sanitize {
    tools: Tools,
    folder: Scratch,
    /// Where the report goes as JSON.
    report: Option<(PathBuf, File)>,
    suppressions: Suppressions,
}

/// The report as JSON.
#[derive(Serialize)]
struct Report<'a> {
    tools: String,
    /// Whether the run failed because of findings that are not suppressed.
    failed: bool,
    findings: Vec<Entry<'a>>,
    /// Findings that are not listed, as there were too many.
    dropped: u64,
}

#[derive(Serialize)]
struct Entry<'a> {
    #[serde(flatten)]
    finding: &'a Finding,
    /// The kernel's name in the source.
    kernel_name: Option<String>,
    suppressed: bool,
}

impl Sanitize {
    /// Tells the workers of the private node that is about to start. Nothing where the run is not
    /// to be watched.
    pub(crate) fn begin(arguments: &RunArgs) -> Result<Option<Sanitize>, NotStarted> {
        let Some(tools) = arguments.ci.sanitize else { return Ok(None) };
        let suppressions = match &arguments.ci.suppressions {
            Some(path) => Suppressions::read(path)?,
            None => Suppressions::default(),
        };
        let open = |path: &PathBuf| match File::create(path) {
            Ok(file) => Ok((path.clone(), file)),
            Err(error) => Err(failed(format!("--sanitize-report {}: {error}", path.display()))),
        };
        let report = arguments.ci.sanitize_report.as_ref().map(open).transpose()?;
        let folder = scratch()?;
        let value = format!("{tools}:{}", folder.path().display());
        // SAFETY: the node is not started yet, and no other thread here reads the environment.
        unsafe { std::env::set_var(VARIABLE, value) };
        Ok(Some(Sanitize { tools, folder, report, suppressions }))
    }

    /// Reports what was found. The answer is the exit code of the run whose program ended with
    /// `code`.
    pub(crate) fn end(mut self, code: i32) -> Result<i32, NotStarted> {
        let contents = read_folder(self.folder.path())
            .map_err(|error| failed(format!("the sanitizer's findings cannot be read: {error}")))?;
        let (suppressed, shown): (Vec<&Finding>, Vec<&Finding>) =
            contents.findings.iter().partition(|finding| self.suppressions.cover(finding));
        eprint!("{}", text::report(self.tools, &shown, suppressed.len(), contents.dropped));
        let has_failed = !shown.is_empty();
        if let Some((path, mut file)) = self.report.take() {
            let entry = |finding| Entry {
                finding,
                kernel_name: finding.kernel.as_deref().map(text::demangled),
                suppressed: self.suppressions.cover(finding),
            };
            let report = Report {
                tools: self.tools.to_string(),
                failed: has_failed,
                findings: contents.findings.iter().map(entry).collect(),
                dropped: contents.dropped,
            };
            let written = serde_json::to_string_pretty(&report)
                .map_err(std::io::Error::other)
                .and_then(|json| writeln!(file, "{json}"));
            if let Err(error) = written {
                let message = format!("--sanitize-report {}: {error}", path.display());
                let exit_code = if code == 0 { EXIT_SLUICE_FAILED } else { code };
                return Err(NotStarted { message, exit_code });
            }
        }
        Ok(if code == 0 && has_failed { EXIT_FINDINGS } else { code })
    }
}

/// Kernels are watched by the software GPU alone.
pub(crate) fn check(arguments: &RunArgs, lease: &LeaseGranted) -> Result<(), NotStarted> {
    let other = lease.devices.iter().find(|device| !device.is_software);
    match (arguments.ci.sanitize, other) {
        (Some(_), Some(device)) => Err(failed(format!(
            "--sanitize: kernels on {} cannot be watched; add --gpus software, or use NVIDIA's compute-sanitizer",
            device.name
        ))),
        _ => Ok(()),
    }
}

/// The findings of all processes, the same one of several processes once.
fn read_folder(folder: &Path) -> std::io::Result<Contents> {
    let mut paths: Vec<PathBuf> =
        folder.read_dir()?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    paths.sort();
    let mut all = Contents::default();
    for path in paths {
        let contents = log::read(&String::from_utf8_lossy(&std::fs::read(path)?));
        all.dropped += contents.dropped;
        for finding in contents.findings {
            merge(&mut all.findings, finding);
        }
    }
    Ok(all)
}

fn merge(all: &mut Vec<Finding>, finding: Finding) {
    let place = |finding: &Finding| {
        let other = finding.other.as_ref().map(|other| other.ptx_line);
        (finding.kind, finding.kernel.clone(), finding.ptx_line, other)
    };
    let same = all.iter_mut().find(|known| known.kernel.is_some() && place(known) == place(&finding));
    match same {
        Some(known) => known.count += finding.count,
        None => all.push(finding),
    }
}
