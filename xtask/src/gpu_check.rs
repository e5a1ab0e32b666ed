//! `cargo xtask gpu-check --bundle`: a folder that checks and measures everything on a machine with an NVIDIA GPU that
//! has neither Rust nor a network. `python3 check.py` in it does so, each program natively and under a lease, whose results and times it
//! compares; it needs the driver, Python 3 and PyTorch, and takes JAX and CuPy along where they are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use crate::{node, process, python};

const SIZE_MAX: u64 = 64 << 20;

const LIBRARIES: &[&str] =
    &["libsluice_client.so", "libsluice_nvml.so", "libsluice_nojitlink.so", "libsluice_devfiles.so"];

/// The test programs; those that need a package which is not there are left out by `check.py`, but for tinygrad, which is
/// brought.
const PROGRAMS: &[&str] = &[
    "check.py",
    "compute.py",
    "cupy_arrays.py",
    "cupy_kernels.py",
    "driver.py",
    "driver_functions.py",
    "endless.py",
    "graphs.py",
    "illegal_address.py",
    "memory_limit.py",
    "tinygrad_train.py",
    "sequences/jax_steps.py",
    "sequences/steps.py",
    "sequences/torch_steps.py",
    "torch_check.py",
    "torch_more.py",
    "torch_train.py",
];

pub(crate) fn bundle() -> Result<ExitCode> {
    let bundle = crate::root().join(".gpu-bundle");
    let _ = fs::remove_dir_all(&bundle);
    for folder in ["bin", "lib", "programs/sequences", "packages"] {
        fs::create_dir_all(bundle.join(folder))?;
    }
    node::build()?;
    process::run(process::cargo().args(["build", "--release", "--package", "cudarc-program"]))?;
    let release = crate::target_folder().join("release");
    for program in ["sluice", "cudarc-program"] {
        stripped(&release.join(program), &bundle.join("bin").join(program))?;
    }
    for library in LIBRARIES {
        stripped(&release.join(library), &bundle.join("lib").join(library))?;
    }

    let tests = crate::root().join("tests");
    python::nvcc(&tests.join("programs/kernels.cu"), &bundle.join("bin/kernels"))?;
    python::nvcc(&tests.join("programs/handover.cu"), &bundle.join("bin/handover"))?;
    python::nvcc(&tests.join("bench/kernels.cu"), &bundle.join("bin/bench-kernels"))?;
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-std=gnu11"]).arg(tests.join("bench/calls.c")).arg("-o").arg(bundle.join("bin/calls"));
    process::run(gcc.arg("-ldl"))?;
    for program in PROGRAMS {
        fs::copy(tests.join("programs").join(program), bundle.join("programs").join(program))
            .context(*program)?;
    }
    fs::copy(tests.join("gpu-check/check.py"), bundle.join("check.py"))?;
    python::TINYGRAD.ready()?;
    copy_folder(&python::TINYGRAD.site_packages()?.join("tinygrad"), &bundle.join("packages/tinygrad"))?;

    let size = size_of(&bundle)?;
    ensure!(size <= SIZE_MAX, "the bundle has {size} bytes, more than {SIZE_MAX}");
    println!("{}: {:.1} MiB", bundle.display(), size as f64 / f64::from(1 << 20));
    Ok(ExitCode::SUCCESS)
}

/// Debug information stays here.
fn stripped(from: &Path, to: &Path) -> Result<()> {
    process::run(Command::new("strip").arg("--strip-unneeded").arg("-o").arg(to).arg(from))
}

fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for path in files_in(from)? {
        let name = path.file_name().context("a name")?;
        if path.is_dir() && name != "__pycache__" {
            copy_folder(&path, &to.join(name))?;
        } else if path.is_file() {
            fs::copy(&path, to.join(name))?;
        }
    }
    Ok(())
}

fn size_of(path: &Path) -> Result<u64> {
    if path.is_file() {
        return Ok(path.metadata()?.len());
    }
    files_in(path)?.iter().map(|path| size_of(path)).sum()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    #[test]
    fn the_check_tells_results_that_agree_from_those_that_do_not() {
        let mut tests = Command::new("python3");
        tests.args(["-B", "-m", "unittest", "test_check"]).current_dir(crate::root().join("tests/gpu-check"));
        crate::process::run(&mut tests).unwrap();
    }
}
