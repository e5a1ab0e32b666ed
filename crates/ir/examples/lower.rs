//! Prints a kernel as passes leave it, each value with its shape in blocks of whole rows:
//! `lower FILE [ENTRY]`.

use sluice_ir::analysis::{BlockShape, Shape, Shapes};
use sluice_ir::{lower, passes, verify};
use sluice_ptx::ModuleIndex;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: lower FILE [ENTRY]")?;
    let wanted = args.next();
    let index = ModuleIndex::new(std::fs::read(path)?)?;
    for function in index.functions().iter().filter(|function| function.is_entry) {
        if wanted.as_deref().is_some_and(|wanted| *wanted != *function.name) {
            continue;
        }
        let mut kernel = lower::lower_kernel(&index.closure(&function.name)?, &function.name)?;
        verify::verify(&kernel)?;
        passes::pipeline(&mut kernel);
        verify::verify_scheduled(&kernel)?;
        let shapes = Shapes::new(&kernel, BlockShape::Rows);
        let shape = |value| match shapes.shape(value) {
            Shape::Uniform => "uniform".to_owned(),
            Shape::Affine { stride } => format!("affine {stride}"),
            Shape::Varying => "varying".to_owned(),
        };
        println!("kernel {}: {} bytes of local memory", kernel.name, kernel.local_bytes);
        for id in kernel.block_ids() {
            let block = kernel.block(id);
            println!("{id}:");
            for param in &block.params {
                println!("  {param}: {} ; {}", kernel.ty(*param), shape(*param));
            }
            for inst in &block.insts {
                let data = kernel.inst(*inst);
                let results: Vec<String> = data.results().map(shape).collect();
                println!("  {data} ; {}", results.join(", "));
            }
            let divergent = if shapes.is_divergent(id) { " ; divergent" } else { "" };
            println!("  {}{divergent}", block.terminator);
        }
    }
    Ok(())
}
