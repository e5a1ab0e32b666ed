//! The call sequences of programs whose kernels are machine code only, end to end on the recording
//! driver: everything happens but the computation. Each gets at least as far as `outcomes.tsv` has
//! it. Most download gigabytes, so these run with `--all`, and alone by name.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};

use crate::evidence;
use crate::namespaces::Separation;
use crate::node::{self, Node};
use crate::plan::{ONLY_WITH_ALL, Planned};
use crate::process;
use crate::programs::Shared;
use crate::python::{self, Environment};
use crate::{Test, expect_pass, logs, outcomes, program_file, sluice_run};

#[derive(Clone, Copy)]
struct Sequence {
    name: &'static str,
    environment: &'static Environment,
    file: &'static str,
    arguments: &'static [&'static str],
    gpus: u32,
    /// The recorded card.
    card: &'static str,
    /// Its name in the table of outcomes.
    program: Option<&'static str>,
    /// Downloads or computes much: only with `--all`.
    heavy: bool,
}

const fn sequence(
    name: &'static str,
    environment: &'static Environment,
    file: &'static str,
    arguments: &'static [&'static str],
) -> Sequence {
    Sequence { name, environment, file, arguments, gpus: 1, card: "h200", program: None, heavy: true }
}

impl Sequence {
    /// Gets as far as this program of the table.
    const fn as_far_as(self, program: &'static str) -> Sequence {
        Sequence { program: Some(program), ..self }
    }

    const fn on(self, card: &'static str) -> Sequence {
        Sequence { card, ..self }
    }

    const fn with_gpus(self, gpus: u32) -> Sequence {
        Sequence { gpus, ..self }
    }

    const fn light(self) -> Sequence {
        Sequence { heavy: false, ..self }
    }
}

const SEQUENCES: &[Sequence] = &[
    sequence("sequence cupy", &python::CUPY_13, "cupy_steps.py", &[]).as_far_as("cupy13"),
    sequence("sequence cupy of CUDA 12", &python::CUDA_12, "cupy_steps.py", &[]).as_far_as("cupy12"),
    sequence("sequence numba", &python::CUDA_13, "numba_steps.py", &[]).as_far_as("numba13").light(),
    sequence("sequence numba of CUDA 12", &python::CUDA_12, "numba_steps.py", &[]).as_far_as("numba12"),
    sequence("sequence cuda.core", &python::CUDA_13, "cuda_core_steps.py", &[])
        .as_far_as("cudacore13")
        .light(),
    sequence("sequence cuda.core of CUDA 12", &python::CUDA_12, "cuda_core_steps.py", &[])
        .as_far_as("cudacore12"),
    sequence("sequence torch", &python::TORCH, "torch_steps.py", &[]).as_far_as("torch-cu13"),
    sequence("sequence torch, a100", &python::TORCH, "torch_steps.py", &[])
        .as_far_as("torch-cu13-sm80")
        .on("a100"),
    sequence("sequence torch, rtx5090", &python::TORCH, "torch_steps.py", &[])
        .as_far_as("torch-cu13-sm120")
        .on("rtx5090"),
    sequence("sequence torch of CUDA 12", &python::TORCH_12, "torch_steps.py", &[]).as_far_as("torch-cu12"),
    sequence("sequence torch expandable segments", &python::TORCH, "torch_modes.py", &["expandable"])
        .as_far_as("torch-cu13-expandable"),
    sequence("sequence torch cudaMallocAsync", &python::TORCH, "torch_modes.py", &["mallocasync"])
        .as_far_as("torch-cu13-mallocasync"),
    sequence("sequence torch DataLoader", &python::TORCH, "torch_modes.py", &["loader"])
        .as_far_as("torch-cu13-dataloader"),
    sequence("sequence torch two devices", &python::TORCH, "torch_modes.py", &["two-devices"])
        .as_far_as("torch-cu13-two-devices")
        .with_gpus(2),
    sequence("sequence torch NCCL", &python::TORCH, "torch_modes.py", &["nccl"]).as_far_as("torch-cu13-nccl"),
    sequence("sequence torch profiler", &python::TORCH, "torch_modes.py", &["profiler"])
        .as_far_as("torch-cu13-profiler"),
    sequence("sequence transformers", &python::TORCH, "transformers_steps.py", &[]),
    sequence("sequence jax", &python::JAX, "jax_steps.py", &[]).as_far_as("jax"),
    sequence("sequence onnxruntime", &python::ONNXRUNTIME, "others_steps.py", &["onnxruntime"])
        .as_far_as("onnxruntime"),
    sequence("sequence llama.cpp", &python::LLAMA, LLAMA_STEPS, &[]).as_far_as("llamacpp"),
    sequence("sequence xgboost", &python::XGBOOST, "others_steps.py", &["xgboost"]).as_far_as("xgboost"),
    // Its wheel has machine code for compute capability 7.0 and 8.0 only.
    sequence("sequence faiss", &python::FAISS, "others_steps.py", &["faiss"]).as_far_as("faiss").on("a100"),
    sequence("sequence nvidia-ml-py", &python::MONITORS, "nvml_steps.py", &["nvidia-ml-py", MIB, H200])
        .as_far_as("nvidia-ml-py")
        .light(),
    sequence("sequence gpustat", &python::MONITORS, "nvml_steps.py", &["gpustat", MIB, H200])
        .as_far_as("gpustat")
        .light(),
    sequence("sequence nvitop", &python::MONITORS, "nvml_steps.py", &["nvitop", MIB, H200])
        .as_far_as("nvitop")
        .light(),
];

/// What each sequence leases, as `sluice run` and as NVML have it.
const MEMORY: &str = "16GiB";
const MIB: &str = "16384";
const H200: &str = "NVIDIA H200";

/// The programs of the table of outcomes that have a sequence.
#[cfg(test)]
pub(super) fn programs() -> impl Iterator<Item = &'static str> {
    SEQUENCES.iter().filter_map(|sequence| sequence.program)
}

/// Those that are more than a program on a node.
const FUNCTIONS: &[Test] = &[
    ("sluice fit beside PyTorch", fit_beside_torch),
    ("sequence torch NCCL between two nodes", ranks_of_two_leases),
    ("sequence torch NCCL between two nodes of a lease", ranks_of_one_lease),
    ("NCCL sums between two nodes", || sums([software_node()?, software_node()?])),
    ("NCCL sums on one node", sums_on_one_node),
];

/// The one program that runs under Node.
const LLAMA_STEPS: &str = "llama_steps.mjs";
const NODE_LLAMA: &str = "node-llama-cpp@3.22.1";

const LIMIT: Duration = Duration::from_secs(900);

pub(crate) fn tests(all: bool) -> Vec<Planned> {
    let separation = Shared::new(Separation::new);
    let mut tests = Vec::new();
    for sequence in SEQUENCES {
        let separation = Arc::clone(&separation);
        tests.push(match sequence.heavy && !all {
            true => Planned::skipped(sequence.name, ONLY_WITH_ALL),
            false => Planned::new(sequence.name, move || sequence.run(separation.get().ok())),
        });
    }
    for (name, test) in FUNCTIONS {
        tests.push(if all { Planned::new(*name, test) } else { Planned::skipped(*name, ONLY_WITH_ALL) });
    }
    tests
}

fn node_with_one_gpu() -> Result<Node> {
    Node::start(&["--listen", "127.0.0.1:0", "--gpus", "recording:h200"])
}

/// What `sluice fit` says of models beside the memory that PyTorch takes for them.
fn fit_beside_torch() -> Result<()> {
    let (python, file) = (python::TORCH.ready()?, program_file("fit_transformer.py"));
    let node = node_with_one_gpu()?;
    let mut command = sluice_run(&node, &[]);
    command.arg(python).arg(file).env("SLUICE", node::sluice());
    expect_pass(&mut command, "sluice fit beside PyTorch", LIMIT)?;
    node.wait_until_free()
}

/// The file by which ranks find each other; it is theirs to make.
fn meeting_place(name: &str) -> Result<PathBuf> {
    let file = logs().join(name);
    match std::fs::remove_file(&file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(file),
    }
}

/// Two programs on one machine, each with a lease of another node: their GPUs have the same place
/// on the bus.
fn ranks_of_two_leases() -> Result<()> {
    let (python, file) = (python::TORCH.ready()?, program_file("sequences").join("nccl_ranks.py"));
    let nodes = [node_with_one_gpu()?, node_with_one_gpu()?];
    let place = meeting_place("nccl-of-two-leases")?;
    let run = |rank: usize| {
        let mut command = sluice_run(&nodes[rank], &["--memory", MEMORY]);
        command.arg(&python).arg(&file).args([&rank.to_string(), "2"]).arg(&place);
        expect_pass(&mut command, &format!("sequence torch NCCL between two nodes, rank {rank}"), LIMIT)
    };
    let ended = std::thread::scope(|scope| {
        let other = scope.spawn(|| run(1));
        [run(0), other.join().unwrap_or_else(|_| Err(anyhow!("the other rank's thread panicked")))]
    });
    ended.into_iter().try_for_each(|ended| ended.map(drop))?;
    nodes.iter().try_for_each(Node::wait_until_free)
}

/// One program with the GPUs of both nodes, which starts a process for each, as launchers of
/// distributed programs do.
fn ranks_of_one_lease() -> Result<()> {
    let (python, file) = (python::TORCH.ready()?, program_file("sequences").join("nccl_ranks.py"));
    let nodes = [node_with_one_gpu()?, node_with_one_gpu()?];
    let both = format!("{},{}", nodes[0].address, nodes[1].address);
    let mut command = Command::new(node::sluice());
    command.args(["run", "-n", "2", "--memory", MEMORY, "--node", &both, "--"]).arg(python).arg(file);
    command.args(["all", "2"]).arg(meeting_place("nccl-of-one-lease")?);
    expect_pass(&mut command, "sequence torch NCCL between two nodes of a lease", LIMIT)?;
    nodes.iter().try_for_each(Node::wait_until_free)
}

fn software_node() -> Result<Node> {
    Node::start(&["--listen", "127.0.0.1:0", "--gpus", "software:2,4GiB"])
}

/// NCCL's own kernels, on software GPUs.
fn sums(nodes: [Node; 2]) -> Result<()> {
    let [first, second] = &nodes;
    sum_up("NCCL sums between two nodes", [first, second])?;
    nodes.iter().try_for_each(Node::wait_until_free)
}

fn sums_on_one_node() -> Result<()> {
    let node = software_node()?;
    sum_up("NCCL sums on one node", [&node, &node])?;
    node.wait_until_free()
}

/// Two ranks, each with a lease of a GPU of its node.
fn sum_up(name: &str, nodes: [&Node; 2]) -> Result<()> {
    let (python, packages) = (python::TORCH.ready()?, python::TORCH.site_packages()?);
    let place = meeting_place(&name.replace(' ', "-"))?;
    let run = |rank: usize| {
        let mut command = sluice_run(nodes[rank], &[]);
        command.arg(&python).arg(program_file("sequences").join("nccl_sums.py")).arg(&packages);
        command.args([&rank.to_string(), "2"]).arg(&place);
        expect_pass(&mut command, &format!("{name}, rank {rank}"), LIMIT)
    };
    let ended = std::thread::scope(|scope| {
        let other = scope.spawn(|| run(1));
        [run(0), other.join().unwrap_or_else(|_| Err(anyhow!("the other rank's thread panicked")))]
    });
    ended.into_iter().try_for_each(|ended| ended.map(drop))
}

impl Sequence {
    /// From a network and mount namespace of its own where this machine allows one, else over
    /// loopback.
    fn run(&self, separation: Option<&Separation>) -> Result<()> {
        let python = self.environment.ready()?;
        let gpus = format!("recording:{},{}", self.card, self.gpus);
        let count = self.gpus.to_string();
        let options = ["-n", &count, "--memory", MEMORY];
        let (node, mut command) = match separation {
            Some(separation) => {
                let node = separation.start_node_with(&gpus)?;
                let command = separation.client(&node, &options);
                (node, command)
            }
            None => {
                let node = Node::start(&["--listen", "127.0.0.1:0", "--gpus", &gpus])?;
                let command = sluice_run(&node, &options);
                (node, command)
            }
        };
        let file = program_file("sequences").join(self.file);
        match self.file {
            LLAMA_STEPS => llama(&mut command, &python, &file)?,
            _ => drop(command.arg(python).arg(file).args(self.arguments)),
        }
        let ended = expect_pass(&mut command, self.name, LIMIT)?;
        if let Some(program) = self.program {
            outcomes::compare(program, &ended).inspect_err(|_| evidence::forget(self.name))?;
        }
        node.wait_until_free()
    }
}

/// Completes the command with llama.cpp and a model.
fn llama(command: &mut Command, python: &Path, file: &Path) -> Result<()> {
    let modules = node_modules()?;
    let model = crate::target_folder().join("llama.gguf");
    process::run(Command::new(python).arg(program_file("sequences").join("llama_model.py")).arg(&model))?;
    let libraries = python::LLAMA.site_packages()?.join("nvidia/cu13/lib");
    ensure!(libraries.is_dir(), "no {}", libraries.display());
    command.arg("node").arg(file).arg(modules).arg(model).env("LD_LIBRARY_PATH", libraries);
    Ok(())
}

/// The folder with llama.cpp's Node package, made once.
fn node_modules() -> Result<PathBuf> {
    let folder = crate::target_folder().join("node/llama");
    if !folder.join("node_modules/node-llama-cpp").is_dir() {
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("package.json"), "{}")?;
        let mut install = Command::new("npm");
        process::run(
            install.args(["install", "--ignore-scripts", "--no-audit", NODE_LLAMA]).current_dir(&folder),
        )?;
    }
    Ok(folder)
}
