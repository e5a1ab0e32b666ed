//! Compiles every entry of every image in a file, and says which cannot be compiled and why:
//!
//! ```text
//! cargo run --release -p sluice-softgpu --example compile_images -- FILE...
//! ```
//!
//! A file is PTX text, or anything that contains fat binaries, such as a program or library built
//! by nvcc. This is how to see whether the software GPU can run what a library brings.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use sluice_image::{ComputeCapability, Image};
use sluice_ir::lower::lower_kernel;
use sluice_ir::passes;
use sluice_jit::Compiler;
use sluice_ptx::ModuleIndex;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let mut failures = BTreeMap::<String, usize>::new();
    for path in std::env::args().skip(1) {
        if let Err(error) = compile_file(&path, &mut failures) {
            eprintln!("{path}: {error}");
            return ExitCode::FAILURE;
        }
    }
    for (reason, count) in &failures {
        println!("{count:5} x {reason}");
    }
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn compile_file(path: &str, failures: &mut BTreeMap<String, usize>) -> Outcome<()> {
    let bytes = std::fs::read(path)?;
    let compiler = Compiler::new()?;
    for image in images(&bytes) {
        let Ok(text) = image.ptx(ComputeCapability::SOFTWARE_GPU) else { continue };
        let index = ModuleIndex::new(text.as_ref())?;
        let (mut count, begin) = (0, Instant::now());
        for entry in index.functions().iter().filter(|function| function.is_entry) {
            count += 1;
            if let Err(error) = compile(&index, &compiler, &entry.name) {
                // The entry's name and the line would make every reason unique.
                let text = error.to_string();
                let reason = text.rsplit_once(": ").map_or(text.as_str(), |(_, reason)| reason);
                if *failures.entry(reason.to_owned()).and_modify(|n| *n += 1).or_insert(1) == 1 {
                    println!("{text}");
                }
            }
        }
        println!("{path}: {count} entries, {} bytes of PTX, {:.1?}", text.len(), begin.elapsed());
    }
    Ok(())
}

/// Every image in a file: the file itself, or all the fat binaries in it.
fn images(bytes: &[u8]) -> Vec<Image<'_>> {
    const MAGIC: [u8; 4] = sluice_image::fatbin::CONTAINER_MAGIC.to_le_bytes();
    if let Ok(image @ Image::Ptx(_)) = Image::parse(bytes) {
        return vec![image];
    }
    let places = bytes.chunks_exact(8).enumerate().filter(|(_, word)| word.starts_with(&MAGIC));
    places.filter_map(|(index, _)| Image::parse(&bytes[8 * index..]).ok()).collect()
}

fn compile(index: &ModuleIndex, compiler: &Compiler, entry: &str) -> Outcome<()> {
    let module = index.closure(entry)?;
    let mut kernel = lower_kernel(&module, entry)?;
    passes::pipeline(&mut kernel);
    compiler.compile(&kernel)?;
    Ok(())
}
