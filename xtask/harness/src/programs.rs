//! The programs that users bring, unmodified.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::expect::{logs, program_file};
use crate::process;
use crate::python::{self, Environment};

/// What is run, and how it is built.
pub enum Program {
    /// A file of `tests/programs` that any Python runs.
    Bare(&'static str),
    /// A file of `tests/programs` and its arguments, run in an environment with packages from PyPI.
    Python(&'static Environment, &'static str, &'static [&'static str]),
    /// A file of `tests/programs` that uses PyCUDA.
    PyCuda(&'static str),
    /// A CUDA C++ file of `tests/programs`, built by `nvcc` with default options.
    Cuda(&'static str),
    /// A CUDA C++ file of `tests/programs`, built with PTX for a virtual architecture.
    CudaFor(&'static str, &'static str),
    /// The CUDA C++ files of a folder of `tests/programs`, built by `nvcc -rdc=true`.
    Linked(&'static str),
    /// A C file of `tests/programs`.
    C(&'static str),
    /// A package of this workspace that is an ordinary user of a crate.
    Rust(&'static str),
}

/// A program with its name.
pub struct Case {
    pub name: &'static str,
    program: Program,
    /// Downloads or computes much: only with `--all`.
    pub heavy: bool,
}

const fn case(name: &'static str, program: Program) -> Case {
    Case { name, program, heavy: false }
}

const fn heavy(name: &'static str, program: Program) -> Case {
    Case { name, program, heavy: true }
}

pub const CASES: &[Case] = &[
    case("driver functions", Program::Bare("driver_functions.py")),
    case("driver answers", Program::Bare("driver_answers.py")),
    case("driver attributes", Program::Bare("driver_attributes.py")),
    case("arrays", Program::Bare("arrays.py")),
    case("sparse arrays", Program::Bare("sparse_arrays.py")),
    case("graphs", Program::Bare("graphs.py")),
    case("conditional nodes", Program::Bare("conditionals.py")),
    case("green contexts", Program::Bare("green_contexts.py")),
    case("callbacks of failed streams", Program::Bare("failed_callbacks.py")),
    case("stream order of copies", Program::Bare("stream_order.py")),
    case("memory freed while it is copied", Program::Bare("freed_copies.py")),
    case("sharing between processes", Program::Bare("sharing.py")),
    case("processes, threads and signals", Program::C("processes.c")),
    case("staged launches", Program::C("staged_launches.c")),
    case("texture references", Program::C("texture_references.c")),
    case("tinygrad", Program::Python(&python::TINYGRAD, "tinygrad_train.py", &[])),
    case("nvcc", Program::Cuda("kernels.cu")),
    case("textures", Program::Cuda("textures.cu")),
    case("clusters", Program::CudaFor("clusters.cu", "compute_90")),
    case("tensor maps", Program::CudaFor("tensor_maps.cu", "compute_90")),
    case("managed variables", Program::Cuda("managed_variables.cu")),
    case("nvcc linked", Program::Linked("linked")),
    case("nvcc conditional nodes", Program::Cuda("conditionals.cu")),
    case("cudarc", Program::Rust("cudarc-program")),
    case("cupy kernels", Program::Python(&python::CUDA_13, "cupy_kernels.py", &[])),
    case("cupy arrays", Program::Python(&python::CUDA_13, "cupy_arrays.py", &[])),
    case("cupy textures", Program::Python(&python::CUDA_13, "cupy_textures.py", &[])),
    case("cupy products", Program::Python(&python::CUDA_13, "cupy_products.py", &[])),
    case("cublas functions", Program::Python(&python::CUDA_13, "cublas_functions.py", &[])),
    case("cublaslt products", Program::Python(&python::CUDA_13, "cublaslt_products.py", &[])),
    case("cupy random", Program::Python(&python::CUDA_13, "cupy_random.py", &[])),
    case("cupy fft", Program::Python(&python::CUDA_13, "cupy_fft.py", &[])),
    case("curand generators", Program::Python(&python::CUDA_13, "curand_generators.py", &[])),
    case("cuda.core", Program::Python(&python::CUDA_13, "cuda_core.py", &[])),
    case("numba", Program::Python(&python::CUDA_13, "numba_kernels.py", &[])),
    case("numba groups", Program::Python(&python::CUDA_13, "numba_groups.py", &[])),
    case("nvml", Program::Python(&python::CUDA_13, "nvml_lease.py", &["2147483648"])),
    heavy("cuda 12 cupy kernels", Program::Python(&python::CUDA_12, "cupy_kernels.py", &[])),
    heavy("cuda 12 cupy arrays", Program::Python(&python::CUDA_12, "cupy_arrays.py", &[])),
    heavy("cuda 12 cupy products", Program::Python(&python::CUDA_12, "cupy_products.py", &[])),
    heavy("cupy products, cublas installed", Program::Python(&python::CUPY_13, "cupy_products.py", &[])),
    heavy("cuda 12 cupy fft", Program::Python(&python::CUDA_12, "cupy_fft.py", &[])),
    heavy("cuda 12 cupy random", Program::Python(&python::CUDA_12, "cupy_random.py", &[])),
    heavy("cupy linear algebra", Program::Python(&python::CUPY_13, "cupy_linear_algebra.py", &[])),
    heavy("warp", Program::Python(&python::WARP, "warp_simulation.py", &[])),
    heavy("warp cuda 12", Program::Python(&python::WARP_OF_CUDA_12, "warp_simulation.py", &[])),
    heavy("taichi", Program::Python(&python::TAICHI, "taichi_fields.py", &[])),
    heavy("xgboost", Program::Python(&python::XGBOOST, "xgboost_training.py", &[])),
    heavy("jax", Program::Python(&python::JAX_13, "jax_training.py", &[])),
    heavy("triton", Program::Python(&python::TORCH, "triton_kernels.py", &[])),
    heavy("torch compiled", Program::Python(&python::TORCH, "torch_compiled.py", &[])),
    heavy("pycuda", Program::PyCuda("pycuda_module.py")),
    heavy("curand generators, scipy", Program::Python(&python::CUPY_SCIPY, "curand_generators.py", &[])),
    heavy("cupy special functions", Program::Python(&python::CUPY_SCIPY, "cupy_special.py", &[])),
];

/// A program's name and its command line.
pub type Words = (&'static str, Vec<PathBuf>);

/// The programs that `--all` is not needed for, and those of the others whose packages are
/// installed; and the names of the rest.
pub fn installed() -> Result<(Vec<Words>, Vec<&'static str>)> {
    std::fs::create_dir_all(logs())?;
    let (here, rest): (Vec<&Case>, Vec<&Case>) =
        CASES.iter().partition(|case| !case.heavy || case.program.is_installed());
    let here = here.into_iter().map(|case| Ok((case.name, case.words()?)));
    Ok((here.collect::<Result<_>>()?, rest.into_iter().map(|case| case.name).collect()))
}

impl Case {
    /// The command line; builds and installs what it needs.
    pub fn words(&self) -> Result<Vec<PathBuf>> {
        self.program.words()
    }
}

impl Program {
    /// Whether no package has to be installed for it.
    fn is_installed(&self) -> bool {
        match self {
            Program::Python(environment, ..) => environment.is_ready(),
            Program::PyCuda(_) => python::has_pycuda(),
            _ => true,
        }
    }

    /// The command line; builds and installs what it needs.
    fn words(&self) -> Result<Vec<PathBuf>> {
        match self {
            Program::Bare(file) => Ok(vec![PathBuf::from("python3"), program_file(file)]),
            Program::Python(environment, file, arguments) => {
                let mut words = vec![environment.ready()?, program_file(file)];
                words.extend(arguments.iter().map(PathBuf::from));
                Ok(words)
            }
            Program::PyCuda(file) => {
                let (python, toolkit) = python::pycuda()?;
                let path = std::env::var("PATH").unwrap_or_default();
                let path = format!("PATH={}:{path}", toolkit.join("bin").display());
                Ok(vec!["env".into(), path.into(), python, program_file(file)])
            }
            Program::Cuda(file) => {
                let program = logs().join(file.trim_end_matches(".cu"));
                python::nvcc(&program_file(file), &program)?;
                Ok(vec![program])
            }
            Program::CudaFor(file, architecture) => {
                let program = logs().join(file.trim_end_matches(".cu"));
                let option = format!("-arch={architecture}");
                python::nvcc_with(&[&option], &[program_file(file)], &program)?;
                Ok(vec![program])
            }
            Program::Linked(folder) => {
                let program = logs().join(folder);
                let entries = std::fs::read_dir(program_file(folder))?;
                let files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
                let mut sources: Vec<PathBuf> = files
                    .into_iter()
                    .filter(|file| file.extension().is_some_and(|end| end == "cu"))
                    .collect();
                sources.sort();
                python::nvcc_linked(&sources, &program)?;
                Ok(vec![program])
            }
            Program::C(file) => {
                let program = logs().join(file.trim_end_matches(".c"));
                let mut gcc = Command::new("gcc");
                gcc.args(["-O2", "-Wall", "-Werror", "-o"]).args([&program, &program_file(file)]);
                process::run(gcc.args(["-ldl", "-lpthread"]))?;
                Ok(vec![program])
            }
            Program::Rust(package) => Ok(vec![crate::target_folder().join("release").join(package)]),
        }
    }
}
