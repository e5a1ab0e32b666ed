//! The sanitizer of the driver: it follows memory and kernels.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use sluice_ptx::SourceLines;
use sluice_sanitize::{Launch, LaunchInfo, NewRegion, Sanitizer, Source, Tools};

use crate::base::process;
use crate::device::machine::Grid;

/// Names the tools of the sanitizer and, behind a colon, the folder into which each process writes
/// what was found.
const VARIABLE: &str = "SLUICE_SANITIZE";

static SANITIZER: OnceLock<Option<Arc<Sanitizer>>> = OnceLock::new();

/// Has kernels and memory watched, from before `cuInit` on; false where it is too late.
pub fn set_sanitizer(sanitizer: Arc<Sanitizer>) -> bool {
    SANITIZER.set(Some(sanitizer)).is_ok()
}

/// Whether kernels and memory are watched.
pub fn sanitizes() -> bool {
    sanitizer().is_some()
}

/// The program has asked for a copy or fill of memory that is not all allocated.
pub fn invalid_copy(address: u64, bytes: u64) {
    if let Some(sanitizer) = sanitizer() {
        sanitizer.invalid_copy(address, bytes);
    }
}

/// The sanitizer that was set or, with the first call, that the environment asks for.
pub(crate) fn sanitizer() -> Option<&'static Arc<Sanitizer>> {
    SANITIZER.get_or_init(from_environment).as_ref()
}

fn from_environment() -> Option<Arc<Sanitizer>> {
    let text = std::env::var(VARIABLE).ok()?;
    let (tools, folder) = match text.split_once(':') {
        Some((tools, folder)) => (tools, Some(Path::new(folder))),
        None => (text.as_str(), None),
    };
    let tools: Tools = match tools.parse() {
        Ok(tools) => tools,
        Err(error) => {
            eprintln!("sluice: {VARIABLE} ignored: {error}");
            return None;
        }
    };
    let log = folder.and_then(|folder| {
        let path = folder.join(format!("{}.jsonl", process::unique_name()));
        let file = OpenOptions::new().create_new(true).append(true).open(&path);
        file.inspect_err(|error| eprintln!("sluice: {}: {error}", path.display())).ok()
    });
    Some(Sanitizer::new(tools, log))
}

/// Memory has been entered in the table of allocations.
pub(crate) fn allocated(region: NewRegion) {
    if let Some(sanitizer) = sanitizer() {
        sanitizer.allocated(region);
    }
}

/// There is memory of the driver's own that kernels use.
pub(crate) fn has_own_memory(base: u64, bytes: u64, label: &'static str) {
    if let Some(sanitizer) = sanitizer() {
        sanitizer.allocated(NewRegion { base, bytes, label, is_written: true, can_leak: false });
    }
}

/// The program has freed memory.
pub(crate) fn freed(base: u64) {
    if let Some(sanitizer) = sanitizer() {
        sanitizer.freed(base);
    }
}

/// The program has filled memory.
pub(crate) fn written(address: u64, bytes: u64) {
    if let Some(sanitizer) = sanitizer() {
        sanitizer.written(address, bytes);
    }
}

/// The program has copied memory.
pub(crate) fn copied(to: u64, from: u64, bytes: u64) {
    if let Some(sanitizer) = sanitizer() {
        sanitizer.copied(to, from, bytes);
    }
}

/// Begins to watch a grid.
pub(crate) fn launch(grid: &Grid<'_>, lines: &Arc<SourceLines>) -> Option<Launch> {
    let lines = Arc::clone(lines);
    let source = move |line| {
        let (file, line) = lines.find(line)?;
        Some(Source { file: file.to_owned(), line })
    };
    let info = LaunchInfo {
        kernel: grid.name.to_owned(),
        block: grid.shape.block,
        grid: grid.shape.grid,
        source: Arc::new(source),
    };
    Some(Launch::begin(sanitizer()?, info))
}
