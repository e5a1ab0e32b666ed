//! Lowers every entry of PTX files and tells what fails and why: `coverage FILE...`.
//!
//! For looking at what real programs need. Prints one line per reason with its count and an
//! example.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sluice_ir::{lower, passes, verify};
use sluice_ptx::ModuleIndex;

fn main() -> std::process::ExitCode {
    let mut reasons: BTreeMap<String, (usize, String)> = BTreeMap::new();
    let mut entries = 0;
    let mut slowest = (Duration::ZERO, String::new());
    let (mut instructions, mut with_frame) = (0, 0);
    let mut total = Duration::ZERO;
    for path in std::env::args().skip(1) {
        let index = match std::fs::read(&path)
            .map_err(|error| error.to_string())
            .and_then(|text| ModuleIndex::new(text).map_err(|error| error.to_string()))
        {
            Ok(index) => index,
            Err(error) => {
                reasons.entry(error).or_insert((0, path.clone())).0 += 1;
                continue;
            }
        };
        for function in index.functions().iter().filter(|function| function.is_entry) {
            entries += 1;
            let module = match index.closure(&function.name) {
                Ok(module) => module,
                Err(error) => {
                    reasons.entry(error.to_string()).or_insert((0, path.clone())).0 += 1;
                    continue;
                }
            };
            let start = Instant::now();
            let mut took = Duration::ZERO;
            let outcome = match lower::lower_kernel(&module, &function.name) {
                Ok(mut kernel) => {
                    passes::pipeline(&mut kernel);
                    took = start.elapsed();
                    with_frame += usize::from(kernel.local_bytes > 0);
                    instructions += kernel.blocks.iter().map(|block| block.insts.len()).sum::<usize>();
                    verify::verify_scheduled(&kernel).map_err(|error| error.defect.to_string())
                }
                Err(error) => Err(error.kind.to_string()),
            };
            total += took;
            if took > slowest.0 {
                slowest = (took, function.name.to_string());
            }
            if let Err(reason) = outcome {
                reasons.entry(reason).or_insert((0, format!("{path}: {}", function.name))).0 += 1;
            }
        }
    }
    let failed: usize = reasons.values().map(|(count, _)| count).sum();
    println!(
        "{entries} entries, {failed} failures, {instructions} instructions, {with_frame} with local memory, {total:?}; slowest {:?}: {}",
        slowest.0, slowest.1
    );
    for (reason, (count, example)) in &reasons {
        println!("{count:6} {reason}\n       {example}");
    }
    if failed == 0 { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}
