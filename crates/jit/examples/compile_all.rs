//! Compiles every entry of PTX files and says what took long or failed: `compile_all FILE...`.

use std::time::Instant;

use sluice_jit::Compiler;

fn main() {
    let compiler = Compiler::new().expect("this processor");
    for path in std::env::args().skip(1) {
        let text = std::fs::read(&path).expect("a readable file");
        let index = match sluice_ptx::ModuleIndex::new(text) {
            Ok(index) => index,
            Err(error) => {
                println!("{path}: {error}");
                continue;
            }
        };
        let entries: Vec<String> = index
            .functions()
            .iter()
            .filter(|function| function.is_entry)
            .map(|entry| entry.name.to_string())
            .collect();
        let (mut done, start) = (0, Instant::now());
        for entry in &entries {
            match compile(&compiler, &index, entry) {
                Ok(report) => {
                    done += 1;
                    if let Some(report) = report {
                        println!("{entry:.100}: {report}");
                    }
                }
                Err(error) => println!("{entry:.100}: {error}"),
            }
        }
        println!("{path}: {done} of {} entries, {:.1} s", entries.len(), start.elapsed().as_secs_f64());
    }
}

fn compile(
    compiler: &Compiler,
    index: &sluice_ptx::ModuleIndex,
    entry: &str,
) -> Result<Option<String>, Box<dyn std::error::Error>> {
    let start = Instant::now();
    let module = index.closure(entry)?;
    let mut kernel = sluice_ir::lower::lower_kernel(&module, entry)?;
    sluice_ir::passes::pipeline(&mut kernel);
    let lowered = start.elapsed();
    compiler.compile(&kernel)?;
    let compiled = start.elapsed() - lowered;
    let report = format!(
        "{} blocks, {} instructions, lowered in {lowered:.0?}, compiled in {compiled:.0?}",
        kernel.blocks.len(),
        kernel.blocks.iter().map(|block| block.insts.len()).sum::<usize>()
    );
    Ok((compiled.as_millis() > 500).then_some(report))
}
