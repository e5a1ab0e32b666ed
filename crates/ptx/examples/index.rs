//! Indexes PTX files, then parses every entry's closure, and says how long each took:
//! `cargo run --release -p sluice-ptx --example index FILES`.

use std::time::Instant;

use sluice_ptx::ModuleIndex;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for path in std::env::args().skip(1) {
        let text = std::fs::read(&path)?;
        let bytes = text.len();
        let start = Instant::now();
        let index = ModuleIndex::new(text)?;
        let indexed = start.elapsed().as_secs_f64();
        let mut slowest = 0f64;
        let mut entries = 0;
        for entry in index.functions().iter().filter(|function| function.is_entry) {
            let start = Instant::now();
            index.closure(&entry.name)?;
            slowest = slowest.max(start.elapsed().as_secs_f64());
            entries += 1;
        }
        let all = start.elapsed().as_secs_f64() - indexed;
        println!(
            "{path}: {bytes} bytes indexed in {:.1} ms; {entries} entries parsed one by one in {:.1} ms, the slowest in {:.1} ms",
            indexed * 1e3,
            all * 1e3,
            slowest * 1e3
        );
    }
    Ok(())
}
