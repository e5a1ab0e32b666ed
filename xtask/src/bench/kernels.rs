//! The software GPU on kernels as people write them, each beside the same computation in C
//! (`tests/bench/kernels`), in one program by turns.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use harness::software_gpu;

use crate::{process, python};

use super::{Figures, RUNS, figures, folder, machine, median, ratios, repeat, source, spread, values};

pub(super) const NAME: &str = "software-gpu";

/// Kernels in the order of the table.
const KERNELS: &[(&str, &str)] = &[
    ("saxpy", "`a x + y`, floats"),
    ("daxpy_loop", "the same on doubles, grid-stride loop"),
    ("haxpy", "the same on pairs of halves"),
    ("bfloat_relu", "`max(a x + y, 0)`, bfloat16"),
    ("quantize", "floats to bytes"),
    ("transpose", "transposition, tiles in shared memory"),
    ("gather", "indexed reads"),
    ("sgemm_naive", "float product, no tiles"),
    ("sgemm_tiled", "float product, tiles in shared memory"),
    ("sgemm_register", "float product, 4 x 4 in registers"),
    ("dgemm_tiled", "double product, tiles"),
    ("hgemm_tiled", "half product, tiles"),
    ("bgemm_tiled", "bfloat16 product, tiles"),
    ("igemm_dp4a", "int8 product, `dp4a`"),
    ("sgemv", "matrix and vector, a warp per row"),
    ("wmma_half", "half product, `wmma`"),
    ("wmma_int8", "int8 product, `wmma`"),
    ("mma_bfloat", "bfloat16 product, `mma`"),
    ("sum_shared", "sum, tree in shared memory"),
    ("dot_shuffle", "dot product of doubles, shuffles"),
    ("scan_shuffle", "running sums, shuffles"),
    ("scan_tree", "running sums, tree in shared memory"),
    ("histogram_shared", "histogram of bytes, shared atomics"),
    ("histogram_global", "histogram, global atomics"),
    ("stencil5", "5-point stencil"),
    ("stencil5_shared", "the same through shared memory"),
    ("stencil7", "7-point stencil in 3 dimensions"),
    ("convolution", "5 x 5 convolution"),
    ("spmv_scalar", "sparse product, a thread per row"),
    ("spmv_warp", "sparse product, a warp per row"),
    ("bfs_step", "step of a breadth-first search"),
    ("bitonic", "bitonic sort of 512 keys a block"),
    ("texture_rotate", "bilinear texture, rotated"),
    ("texture_box", "3 x 3 point texture"),
    ("texture_fetch", "indexed `tex1Dfetch`"),
    ("softmax", "softmax of rows"),
    ("layernorm", "layer norm of rows"),
    ("attention", "attention, a query per thread"),
    ("gelu", "GELU by `tanhf`"),
    ("black_scholes", "Black-Scholes"),
    ("mandelbrot", "Mandelbrot set, divergent"),
    ("collatz", "Collatz sequences, divergent, 64-bit integers"),
    ("nbody", "gravity of all pairs"),
    ("hash", "integer hash"),
    ("waves", "`sinf`, `cosf`, `powf`"),
];

/// Measures and returns the table.
pub(super) fn run() -> Result<String> {
    let program = build()?;
    let once = |cores: &str| -> Result<Figures> {
        let mut command = Command::new("taskset");
        command.args(["-c", cores]).arg(&program).env("LD_LIBRARY_PATH", software_gpu::driver_folder()?);
        // Threads of OpenMP that spin after a loop would take the software GPU's time.
        command.env("OMP_WAIT_POLICY", "passive");
        figures("", &process::output_of(&mut command)?)
    };
    let (both, one) = (repeat(|| once("0,1"))?, once("0")?);
    table(&both, &one)
}

fn table(runs: &[Figures], one_core: &Figures) -> Result<String> {
    let mut text = format!(
        "Kernels and the same in C (`gcc -O3 -march=native -fopenmp`), in one program by turns, with the\n\
         software GPU in the same process. Measured by `cargo xtask bench {NAME}` on\n\
         {}, two of them used; median of {RUNS} runs, lowest and\n\
         highest in brackets. The last columns show the first launch in a process, which compiles or\n\
         loads the kernel, and how many times as long a launch takes on one core.\n\n\
         | kernel | what it does | software GPU, ms | C, ms | ratio | first, ms | one core |\n|---|---|---|---|---|---|---|\n",
        machine(),
    );
    let (mut logarithms, mut worst) = (0.0, ("", 0.0));
    for (name, what) in KERNELS {
        let [gpu, c, first] = ["gpu", "c", "first"].map(|part| format!("{name}_{part}_ms"));
        let all = ratios(runs, &gpu, &c);
        ensure!(all.len() == runs.len(), "{name} was not measured");
        let ratio = median(all.clone());
        logarithms += ratio.ln();
        if ratio > worst.1 {
            worst = (*name, ratio);
        }
        let [gpu_ms, c_ms, first_ms] = [&gpu, &c, &first].map(|figure| median(values(runs, figure)));
        let scaling = one_core.get(&gpu).map_or(f64::NAN, |ms| ms / gpu_ms);
        let ratio = spread(all).unwrap_or_default();
        text += &format!(
            "| `{name}` | {what} | {gpu_ms:.2} | {c_ms:.2} | {ratio} | {first_ms:.1} | {scaling:.2} |\n"
        );
    }
    let mean = (logarithms / KERNELS.len() as f64).exp();
    Ok(format!(
        "{text}\nGeometric mean of {} ratios: **{mean:.2}**; the worst: **{:.1}** (`{}`).\n",
        KERNELS.len(),
        worst.1,
        worst.0
    ))
}

/// Compiles the suite; the machine code of its C is for this processor.
fn build() -> Result<PathBuf> {
    let (sources, built) = (source("kernels"), folder().join("kernels"));
    fs::create_dir_all(&built)?;
    let mut parts = Vec::new();
    for path in files(&sources)? {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("cu") => parts.push(path),
            Some("c") => {
                let object = built.join(path.file_name().unwrap_or_default()).with_extension("c.o");
                let mut gcc = Command::new("gcc");
                gcc.args(["-O3", "-march=native", "-fopenmp", "-c"]).arg(&path).arg("-o").arg(&object);
                process::run(&mut gcc)?;
                parts.push(object);
            }
            _ => {}
        }
    }
    let program = built.join("suite");
    python::nvcc_with(&["-arch=compute_80", "-code=compute_80", "-Xcompiler", "-fopenmp"], &parts, &program)?;
    Ok(program)
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries: std::io::Result<Vec<_>> = fs::read_dir(folder)?.collect();
    let mut paths: Vec<PathBuf> = entries?.into_iter().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_of_the_suite_has_a_row() {
        let mut measured = Vec::new();
        for path in files(&source("kernels")).expect("the suite") {
            let text = fs::read_to_string(&path).expect("a readable file");
            let names = text.split("compare(\"").skip(1).filter_map(|rest| rest.split('"').next());
            measured.extend(names.map(str::to_owned));
        }
        measured.sort();
        let mut rows: Vec<String> = KERNELS.iter().map(|(name, _)| (*name).to_owned()).collect();
        rows.sort();
        assert_eq!(measured, rows);
    }
}
