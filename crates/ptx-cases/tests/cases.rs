//! Every table and every `run:` of every kernel beneath `cases/` as a test of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use sluice_ptx_cases::{kernel, table};

fn main() {
    if let Err(reason) = sluice_jit::llvm_library() {
        println!("SKIPPED with LLVM: {reason}");
    }
    let mut trials = Vec::new();
    for path in files("tables", "table") {
        let (name, text) = read(&path);
        match table::parse(&text) {
            Ok(tables) => trials.extend(tables.into_iter().map(|table| {
                Trial::test(format!("{name} {}", table.name), move || table.check().map_err(Failed::from))
            })),
            Err(error) => trials.push(Trial::test(name, move || Err(error.into()))),
        }
    }
    for path in files("kernels", "ptx") {
        let (name, text) = read(&path);
        let text: Arc<str> = text.into();
        match kernel::parse(&text) {
            Ok(runs) => trials.extend(runs.into_iter().enumerate().map(|(index, run)| {
                let text = text.clone();
                let name = format!("{name} {} {}", index + 1, run.entry);
                Trial::test(name, move || run.check(&text).map_err(Failed::from))
            })),
            Err(error) => trials.push(Trial::test(name, move || Err(error.into()))),
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// The files of a folder beneath `cases/`, in order.
fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases").join(folder);
    let entries = folder.read_dir().expect("the folder of cases");
    let paths = entries.map(|entry| entry.expect("an entry of the folder").path());
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|found| found == extension)).collect();
    paths.sort();
    paths
}

fn read(path: &Path) -> (String, String) {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    (name, std::fs::read_to_string(path).expect("a case is text"))
}
