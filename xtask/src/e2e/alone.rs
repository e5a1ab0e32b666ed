//! The software GPU as a `libcuda.so.1` of its own: no client, no node, no network.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::e2e::{Test, expect_pass, program_file};
use crate::process;

pub(crate) const TESTS: &[Test] = &[("software GPU by itself", driver_functions)];

fn driver_functions() -> Result<()> {
    process::run(process::cargo().args(["build", "--release", "--package", "sluice-softgpu-lib"]))?;
    let folder = crate::target_folder().join("software-gpu");
    std::fs::create_dir_all(&folder)?;
    let link = folder.join("libcuda.so.1");
    // It may not be there yet.
    let _ = std::fs::remove_file(&link);
    let library = crate::target_folder().join("release/libsluice_softgpu_cuda.so");
    std::os::unix::fs::symlink(&library, &link).with_context(|| link.display().to_string())?;
    let mut command = Command::new("python3");
    command.arg(program_file("driver_functions.py")).env("LD_LIBRARY_PATH", &folder);
    expect_pass(&mut command, "software GPU by itself", Duration::from_secs(120)).map(drop)
}
