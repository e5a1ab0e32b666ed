//! The packages of the programs that tests and measurements run, and what is built with NVIDIA's
//! compiler from PyPI.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::process;
use crate::python::Environment;

/// Programs of CUDA 13. NVRTC, the runtime and the compiler come as wheels; nothing is installed in
/// the system.
pub const CUDA_13: Environment = Environment {
    name: "cuda13",
    packages: &[
        "numpy==2.4.6",
        "cupy-cuda13x==14.2.0",
        "nvidia-cuda-nvrtc==13.5.37",
        "nvidia-cuda-runtime==13.5.37",
        "nvidia-cuda-nvcc==13.5.37",
        "nvidia-cuda-crt==13.5.37",
        "nvidia-cuda-cccl==13.3.5.0.6",
        "nvidia-nvvm==13.5.37",
        "nvidia-nvjitlink==13.5.37",
        "numba==0.68.1",
        "numba-cuda==0.30.4",
        "cuda-core==1.2.2",
        "cuda-bindings==13.5.0",
        "nvidia-ml-py==13.615.71",
    ],
};

/// CuPy with the libraries that its linear algebra, transforms and random numbers come from: 2 GB.
pub const CUPY_13: Environment = Environment {
    name: "cupy13",
    packages: &[
        "numpy==2.4.6",
        "cupy-cuda13x==14.2.0",
        "nvidia-cublas==13.10.0.20",
        "nvidia-cuda-nvrtc==13.5.37",
        "nvidia-cuda-runtime==13.5.37",
        "nvidia-cufft==12.5.0.14",
        "nvidia-curand==10.4.5.25",
        "nvidia-cusolver==12.4.1.2",
        "nvidia-cusparse==12.9.4.2",
        "nvidia-nvjitlink==13.5.37",
    ],
};

/// Programs of CUDA 12: 3 GB.
pub const CUDA_12: Environment = Environment {
    name: "cuda12",
    packages: &[
        "numpy==2.4.6",
        "cupy-cuda12x==14.2.0",
        "nvidia-cublas-cu12==12.9.3.13",
        "nvidia-cuda-nvcc-cu12==12.9.86",
        "nvidia-cuda-nvrtc-cu12==12.9.86",
        "nvidia-cuda-runtime-cu12==12.9.79",
        "nvidia-cufft-cu12==11.4.1.4",
        "nvidia-curand-cu12==10.3.10.19",
        "nvidia-cusolver-cu12==11.7.5.82",
        "nvidia-cusparse-cu12==12.5.10.65",
        "nvidia-nvjitlink-cu12==12.9.86",
        "numba==0.68.1",
        "numba-cuda==0.30.4",
        "cuda-core==1.2.2",
        "cuda-bindings==12.9.10",
    ],
};

/// NVIDIA Warp: its newest release.
pub const WARP: Environment = Environment { name: "warp", packages: &["warp-lang==1.19.0", "numpy==2.4.6"] };

/// The last release of Warp for CUDA 12.
pub const WARP_OF_CUDA_12: Environment =
    Environment { name: "warp-cuda12", packages: &["warp-lang==1.9.1", "numpy==2.4.6"] };

/// Taichi, which makes PTX by itself.
pub const TAICHI: Environment = Environment { name: "taichi", packages: &["taichi==1.7.4", "numpy==2.4.6"] };

/// CuPy with SciPy, which the results are compared with.
pub const CUPY_SCIPY: Environment = Environment {
    name: "cupy-scipy",
    packages: &[
        "numpy==2.4.6",
        "scipy==1.17.1",
        "cupy-cuda13x==14.2.0",
        "nvidia-cuda-nvrtc==13.5.37",
        "nvidia-cuda-runtime==13.5.37",
        "nvidia-cuda-cccl==13.3.5.0.6",
    ],
};

/// PyTorch, with the CUDA libraries that its wheel asks for: 5 GB.
pub const TORCH: Environment = Environment {
    name: "torch",
    packages: &["torch==2.15.0", "transformers==5.23.0", "numpy==2.4.6", "nvidia-ml-py==13.615.71"],
};

/// PyTorch with the libraries of CUDA 12: 7 GB.
pub const TORCH_12: Environment =
    Environment { name: "torch12", packages: &["torch==2.8.0", "numpy==2.4.6", "nvidia-ml-py==13.615.71"] };

pub const JAX: Environment = Environment { name: "jax", packages: &["jax[cuda12]==0.10.2"] };

/// JAX with the CUDA libraries that its plugin asks for: 4 GB.
pub const JAX_13: Environment = Environment { name: "jax13", packages: &["jax[cuda13]==0.10.2"] };

pub const ONNXRUNTIME: Environment =
    Environment { name: "onnxruntime", packages: &["onnxruntime-gpu[cuda,cudnn]==1.31.1", "onnx==1.23.2"] };

pub const FAISS: Environment =
    Environment { name: "faiss", packages: &["faiss-gpu-cu12==1.14.1", "numpy==2.4.6"] };

pub const XGBOOST: Environment =
    Environment { name: "xgboost", packages: &["xgboost==3.2.0", "numpy==2.4.6"] };

/// What PyCUDA is built with, and compiles its users' kernels by.
const PYCUDA_TOOLKIT: Environment = Environment {
    name: "pycuda",
    packages: &[
        "numpy==2.4.6",
        "nvidia-cuda-nvcc==13.5.37",
        "nvidia-cuda-crt==13.5.37",
        "nvidia-cuda-runtime==13.5.37",
        "nvidia-cuda-cccl==13.3.5.0.6",
        "nvidia-cuda-profiler-api==13.5.25",
        "nvidia-nvvm==13.5.37",
        "nvidia-curand==10.4.5.25",
    ],
};
const PYCUDA: &str = "pycuda==2026.1";

/// What llama.cpp needs beside its Node package: CUDA's libraries, and a model.
pub const LLAMA: Environment = Environment {
    name: "llama",
    packages: &["nvidia-cublas==13.4.1.3", "nvidia-cuda-runtime==13.2.86", "gguf==0.19.0", "numpy==2.4.6"],
};

/// What shows GPUs by NVML.
pub const MONITORS: Environment = Environment {
    name: "monitors",
    packages: &["nvidia-ml-py==13.615.71", "gpustat==1.1.1", "nvitop==1.7.2"],
};

/// Asks an API what its OpenAPI document allows and forbids.
pub const SCHEMATHESIS: Environment =
    Environment { name: "schemathesis", packages: &["schemathesis==4.32.5", "hypothesis==6.170.15"] };

/// The tests of `tests/ci-project`, in several processes.
pub const PYTEST: Environment =
    Environment { name: "pytest", packages: &["pytest==9.2.0", "pytest-xdist==3.8.0"] };

/// Checks the tags of wheels against what is in them.
pub const AUDITWHEEL: Environment = Environment { name: "auditwheel", packages: &["auditwheel==6.8.2"] };

/// Checks manifests against the schemas of Kubernetes' versions, and evaluates their expressions.
pub const KUBERNETES: Environment =
    Environment { name: "kubernetes", packages: &["kubernetes-validate==1.37.0", "cel-python==0.5.0"] };

/// Whether PyCUDA has been built.
pub fn has_pycuda() -> bool {
    PYCUDA_TOOLKIT.is_ready() && PYCUDA_TOOLKIT.folder().join("pycuda-installed").is_file()
}

/// An interpreter with PyCUDA, which is built from its source, and the folder of its toolkit.
pub fn pycuda() -> Result<(PathBuf, PathBuf)> {
    let python = PYCUDA_TOOLKIT.ready()?;
    let toolkit = PYCUDA_TOOLKIT.site_packages()?.join("nvidia/cu13");
    let installed = PYCUDA_TOOLKIT.folder().join("pycuda-installed");
    if !installed.is_file() {
        let lib = toolkit.join("lib");
        link(&crate::target_folder().join("release/libsluice_client.so"), &lib.join("libcuda.so"))?;
        link(&lib.join("libcurand.so.10"), &lib.join("libcurand.so"))?;
        let lib = lib.display();
        let mut pip = Command::new(&python);
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-cache-dir",
            PYCUDA,
        ]);
        // Its build does not always pass on where the headers are; g++ reads it from CPATH.
        pip.env("CUDA_ROOT", &toolkit).env("CPATH", toolkit.join("include"));
        pip.env("LDFLAGS", format!("-L{lib} -Wl,-rpath,{lib}"));
        process::run(&mut pip)?;
        std::fs::write(installed, PYCUDA)?;
    }
    Ok((python, toolkit))
}

/// Makes a link, or replaces what is there.
fn link(to: &Path, at: &Path) -> Result<()> {
    let _ = std::fs::remove_file(at); // it may not be there
    std::os::unix::fs::symlink(to, at).with_context(|| at.display().to_string())
}

/// Builds a CUDA C++ file with the compiler from PyPI: default options, so a static CUDA runtime.
pub fn nvcc(source: &Path, program: &Path) -> Result<()> {
    nvcc_with(&[], &[source.to_path_buf()], program)
}

/// Builds a program of several CUDA C++ files, whose device code is linked.
pub fn nvcc_linked(sources: &[PathBuf], program: &Path) -> Result<()> {
    nvcc_with(&["-rdc=true"], sources, program)
}

/// With other options.
pub fn nvcc_with(options: &[&str], sources: &[PathBuf], program: &Path) -> Result<()> {
    let python = CUDA_13.ready()?;
    let packages = CUDA_13.site_packages()?;
    let toolkit = ["nvidia/cu13", "nvidia/cuda_nvcc"].map(|folder| packages.join(folder));
    let toolkit = toolkit.iter().find(|folder| folder.join("bin/nvcc").is_file());
    let toolkit = toolkit.with_context(|| format!("no nvcc beside {}", python.display()))?;
    let mut command = Command::new(toolkit.join("bin/nvcc"));
    command.args(options).arg("-o").arg(program).args(sources).arg("-L").arg(toolkit.join("lib"));
    process::run(&mut command)
}
