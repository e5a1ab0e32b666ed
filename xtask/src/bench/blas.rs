//! Products of matrices through cuBLAS's interface, on a software GPU, against OpenBLAS.

use std::process::Command;

use anyhow::Result;

use crate::{node, process, python};

use super::{figures, machine, ratios, repeat, show, source, values};

pub(super) const NAME: &str = "blas";

const ROWS: [(&str, &str); 3] = [
    ("sgemm", "`SGEMM`"),
    ("dgemm", "`DGEMM`"),
    ("hgemm", "`GemmEx` of halves, summed as floats; OpenBLAS: floats"),
];

/// Measures, and returns the table.
pub(super) fn run() -> Result<String> {
    let python = python::CUDA_13.ready()?;
    let runs = repeat(|| {
        let mut command = Command::new(node::sluice());
        command.args(["run", "-q", "--gpus", "software", "--"]).arg(&python);
        let output = process::output_of(command.arg(source("products.py")).env_remove("SLUICE_NODE"))?;
        figures("", &output)
    })?;
    let mut text = format!(
        "Products of matrices of order 1,024 by CuPy under `sluice run`, and by NumPy with OpenBLAS, by\n\
         turns in one program (`tests/bench/products.py`). Measured by `cargo xtask bench {NAME}` on\n\
         {}; median of {} runs, lowest and highest in brackets.\n\n\
         | product | software GPU, ms | OpenBLAS, ms | speed, as a part of OpenBLAS's |\n|---|---|---|---|\n",
        machine(),
        runs.len()
    );
    for (name, title) in ROWS {
        let (gpu, openblas) = (format!("{name}_gpu"), format!("{name}_openblas"));
        let cells = [values(&runs, &gpu), values(&runs, &openblas), ratios(&runs, &openblas, &gpu)];
        text += &format!("| {title} | {} |\n", cells.map(show).join(" | "));
    }
    Ok(text)
}
