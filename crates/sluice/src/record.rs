//! `sluice record`: `sluice run`, with a file in which the client library keeps the session's log.

use crate::child::NotStarted;
use crate::cli::RecordArgs;
use crate::quantity::Memory;
use crate::run::{self, failed};

pub(crate) fn run(arguments: RecordArgs) -> Result<i32, NotStarted> {
    let RecordArgs { file, mut run } = arguments;
    let named = |error: std::io::Error| failed(format!("{}: {error}", file.display()));
    let path = std::path::absolute(&file).map_err(named)?;
    if path.exists() {
        return Err(failed(format!(
            "{} is there already; remove it, or name another with -o",
            file.display()
        )));
    }
    if run.dry_run.is_some() {
        return Err(failed("--dry-run runs nothing, so there is nothing to record"));
    }
    run.record = Some(path.clone());
    let code = run::run(&run)?;
    if !run.quiet {
        match path.metadata() {
            Ok(found) => eprintln!(
                "sluice: recorded {} in {}; `sluice replay {}` repeats it",
                Memory::from_bytes(found.len()),
                file.display(),
                file.display()
            ),
            Err(_) => {
                eprintln!("sluice: nothing was recorded: the program did not use its GPU, or see above")
            }
        }
    }
    Ok(code)
}
