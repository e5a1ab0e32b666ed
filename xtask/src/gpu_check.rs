//! `cargo xtask gpu-check --bundle`: a folder that checks and measures everything on a machine with
//! an NVIDIA GPU that has neither Rust nor a network. `python3 check.py` in it does so, each
//! program natively and under a lease, whose results and times it compares; it needs the driver and
//! Python 3, and takes PyTorch, JAX, CuPy and nvcc along where they are. There:
//!
//!     PYTHONUNBUFFERED=1 python3 .gpu-bundle/check.py --minutes 9 --report FOLDER 2>&1 \
//!         | tee FOLDER/log

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use harness::expect::PARTS;

use crate::{node, process, python};

/// The bundle travels beside the repository's files, and some places take 64 MiB in all.
const SIZE_MAX: u64 = 56 << 20;

/// Machine code for the GPUs that there are, since a compiler newer than a driver makes PTX that
/// the driver does not take; and PTX for the other GPUs.
const CODE: &[&str] = &[
    "-gencode",
    "arch=compute_80,code=[sm_80,compute_80]",
    "-gencode",
    "arch=compute_90,code=sm_90",
    "-gencode",
    "arch=compute_100,code=sm_100",
    "-gencode",
    "arch=compute_120,code=sm_120",
];

/// For GPUs that copy tensors: what these programs use is not in the PTX of older ones.
const TENSORS: &[&str] =
    &["-gencode", "arch=compute_90,code=[sm_90,compute_90]", "-gencode", "arch=compute_120,code=sm_120"];

/// Programs of nvcc, built here, with the GPUs that each is for.
const CUDA: &[(&str, &[&str], &[&str])] = &[
    ("kernels", &["programs/kernels.cu"], CODE),
    ("bench-kernels", &["bench/kernels.cu"], CODE),
    ("textures", &["programs/textures.cu"], CODE),
    ("handover", &["programs/handover.cu"], CODE),
    ("conditionals", &["programs/conditionals.cu"], CODE),
    ("tensor-maps", &["programs/tensor_maps.cu"], TENSORS),
    (
        "linked",
        &["programs/linked/main.cu", "programs/linked/operations.cu", "programs/linked/shapes.cu"],
        CODE,
    ),
];

const C: &[(&str, &str)] = &[
    ("calls", "bench/calls.c"),
    ("start", "bench/start.c"),
    ("processes", "programs/processes.c"),
    ("staged-launches", "programs/staged_launches.c"),
];

/// `check.py` and what it is made of.
const CHECK: &[&str] = &[
    "check.py",
    "compare.py",
    "elastic.py",
    "goals.py",
    "machine.py",
    "node.py",
    "plan.py",
    "report.py",
    "running.py",
    "shares.py",
    "tiers.py",
    "tiers_place.py",
    "tiers_rows.py",
    "tiers_steps.py",
];

const LIBRARIES: &[&str] =
    &["libsluice_client.so", "libsluice_nvml.so", "libsluice_nojitlink.so", "libsluice_devfiles.so"];

/// The test programs; those that need a package which is not there are left out by `check.py`, but
/// for tinygrad, which is brought.
const PROGRAMS: &[&str] = &[
    "check.py",
    "compute.py",
    "conditionals.py",
    "cuda_core.py",
    "cupy_arrays.py",
    "cupy_kernels.py",
    "cupy_textures.py",
    "driver.py",
    "driver_attributes.py",
    "driver_facts.py",
    "driver_functions.py",
    "endless.py",
    "graphs.py",
    "held.py",
    "green_contexts.py",
    "illegal_address.py",
    "memory_facts.py",
    "memory_limit.py",
    "numba_kernels.py",
    "nvml_lease.py",
    "refused.py",
    "sequences/cupy_steps.py",
    "sequences/jax_steps.py",
    "sequences/steps.py",
    "sequences/torch_modes.py",
    "sequences/torch_steps.py",
    "sequences/transformers_steps.py",
    "service.py",
    "sharing.py",
    "tinygrad_train.py",
    "torch_check.py",
    "torch_more.py",
    "torch_train.py",
    "trainer.py",
    "turns.py",
];

/// What tinygrad has for other makers' GPUs: most of its size.
const NOT_OF_TINYGRAD: &[&str] = &["__pycache__", "am", "amd"];

pub(crate) fn bundle() -> Result<ExitCode> {
    let bundle = crate::root().join(".gpu-bundle");
    let _ = fs::remove_dir_all(&bundle);
    for folder in ["bin", "lib", "programs/sequences", "packages", "sources"] {
        fs::create_dir_all(bundle.join(folder))?;
    }
    // In one run of cargo with the tests' other parts: by itself a package has other features of
    // what it depends on, and the next test would compile all of it anew.
    node::build_also(&PARTS)?;
    let release = crate::target_folder().join("release");
    for program in ["sluice", "cudarc-program"] {
        stripped(&release.join(program), &bundle.join("bin").join(program))?;
    }
    // Most of the bundle; the check unpacks it.
    process::run(Command::new("gzip").arg(bundle.join("bin/sluice")))?;
    for library in LIBRARIES {
        stripped(&release.join(library), &bundle.join("lib").join(library))?;
    }

    let tests = crate::root().join("tests");
    for (program, sources, cards) in CUDA {
        let sources: Vec<PathBuf> = sources.iter().map(|source| tests.join(source)).collect();
        let linked: &[&str] = if sources.len() > 1 { &["-rdc=true"] } else { &[] };
        let options = [*cards, linked].concat();
        python::nvcc_with(&options, &sources, &bundle.join("bin").join(program))?;
    }
    // With the compiler of a machine they are PTX that its driver compiles.
    fs::copy(tests.join("programs/kernels.cu"), bundle.join("sources/kernels.cu"))?;
    for (program, source) in C {
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-std=gnu11"])
            .arg(tests.join(source))
            .arg("-o")
            .arg(bundle.join("bin").join(program));
        process::run(gcc.args(["-ldl", "-lpthread"]))?;
    }
    for program in PROGRAMS {
        fs::copy(tests.join("programs").join(program), bundle.join("programs").join(program))
            .context(*program)?;
    }
    for part in CHECK {
        fs::copy(tests.join("gpu-check").join(part), bundle.join(part)).context(*part)?;
    }
    python::TINYGRAD.ready()?;
    copy_folder(&python::TINYGRAD.site_packages()?.join("tinygrad"), &bundle.join("packages/tinygrad"))?;

    let size = size_of(&bundle)?;
    ensure!(size <= SIZE_MAX, "the bundle has {size} bytes, more than {SIZE_MAX}");
    println!("{}: {:.1} MiB", bundle.display(), size as f64 / f64::from(1 << 20));
    Ok(ExitCode::SUCCESS)
}

/// Debug information stays here; names of functions travel, for a person who looks at a process
/// that hangs.
fn stripped(from: &Path, to: &Path) -> Result<()> {
    process::run(Command::new("strip").arg("--strip-debug").arg("-o").arg(to).arg(from))
}

/// What lies in a folder, other folders too.
pub(crate) fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for path in files_in(from)? {
        let name = path.file_name().context("a name")?;
        if path.is_dir() && !NOT_OF_TINYGRAD.iter().any(|left_out| name == *left_out) {
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
    fn the_check_compares_results_and_survives_its_programs() {
        let mut tests = Command::new("python3");
        tests
            .args(["-B", "-m", "unittest", "test_check", "test_running", "test_tiers"])
            .current_dir(crate::root().join("tests/gpu-check"));
        crate::process::run(&mut tests).unwrap();
    }
}
