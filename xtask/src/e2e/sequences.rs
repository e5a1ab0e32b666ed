//! The call sequences of programs whose kernels are machine code only, end to end on the recording driver: everything
//! happens but the computation. They download gigabytes, so they run with `--all`, and alone by name.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};

use crate::e2e::namespaces::Separation;
use crate::e2e::{Test, expect_pass, logs, program_file, sluice_run};
use crate::node::{self, Node};
use crate::process;
use crate::python::{self, Environment};
use crate::test::Tally;

struct Sequence {
    name: &'static str,
    environment: &'static Environment,
    file: &'static str,
    arguments: &'static [&'static str],
    gpus: u32,
    /// The recorded card.
    card: &'static str,
}

const fn sequence(
    name: &'static str,
    environment: &'static Environment,
    file: &'static str,
    arguments: &'static [&'static str],
) -> Sequence {
    Sequence { name, environment, file, arguments, gpus: 1, card: "h200" }
}

const SEQUENCES: &[Sequence] = &[
    sequence("sequence torch", &python::TORCH, "torch_steps.py", &[]),
    sequence("sequence torch.compile", &python::TORCH, "torch_compile_steps.py", &[]),
    sequence("sequence torch expandable segments", &python::TORCH, "torch_modes.py", &["expandable"]),
    sequence("sequence torch cudaMallocAsync", &python::TORCH, "torch_modes.py", &["mallocasync"]),
    sequence("sequence torch DataLoader", &python::TORCH, "torch_modes.py", &["loader"]),
    Sequence {
        gpus: 2,
        ..sequence("sequence torch two devices", &python::TORCH, "torch_modes.py", &["two-devices"])
    },
    sequence("sequence torch NCCL", &python::TORCH, "torch_modes.py", &["nccl"]),
    sequence("sequence torch profiler", &python::TORCH, "torch_modes.py", &["profiler"]),
    sequence("sequence transformers", &python::TORCH, "transformers_steps.py", &[]),
    sequence("sequence jax", &python::JAX, "jax_steps.py", &[]),
    sequence("sequence onnxruntime", &python::ONNXRUNTIME, "others_steps.py", &["onnxruntime"]),
    sequence("sequence llama.cpp", &python::LLAMA, LLAMA_STEPS, &[]),
    sequence("sequence xgboost", &python::XGBOOST, "others_steps.py", &["xgboost"]),
    // Its wheel has machine code for compute capability 7.0 and 8.0 only.
    Sequence { card: "a100", ..sequence("sequence faiss", &python::FAISS, "others_steps.py", &["faiss"]) },
];

/// Those of several processes.
const RANKS: &[Test] = &[
    ("sequence torch NCCL between two nodes", ranks_of_two_leases),
    ("sequence torch NCCL between two nodes of a lease", ranks_of_one_lease),
];

/// The one program that runs under Node.
const LLAMA_STEPS: &str = "llama_steps.mjs";
const NODE_LLAMA: &str = "node-llama-cpp@3.22.1";

const LIMIT: Duration = Duration::from_secs(900);

pub(crate) fn run(wanted: &dyn Fn(&str) -> bool, all: bool, tally: &mut Tally) {
    let separation = Separation::new();
    for sequence in SEQUENCES.iter().filter(|sequence| wanted(sequence.name)) {
        if !all {
            tally.skip(sequence.name, "only with --all");
            continue;
        }
        eprintln!("-- {}", sequence.name);
        tally.record(sequence.name, sequence.run(separation.as_ref().ok()));
    }
    for (name, test) in RANKS.iter().filter(|(name, _)| wanted(name)) {
        if !all {
            tally.skip(name, "only with --all");
            continue;
        }
        eprintln!("-- {name}");
        tally.record(name, test());
    }
}

fn node_with_one_gpu() -> Result<Node> {
    Node::start(&["--listen", "127.0.0.1:0", "--gpus", "recording:h200"])
}

/// The file by which ranks find each other; it is theirs to make.
fn meeting_place(name: &str) -> Result<PathBuf> {
    let file = logs().join(name);
    match std::fs::remove_file(&file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(file),
    }
}

/// Two programs on one machine, each with a lease of another node: their GPUs have the same place on the bus.
fn ranks_of_two_leases() -> Result<()> {
    let (python, file) = (python::TORCH.ready()?, program_file("sequences").join("nccl_ranks.py"));
    let nodes = [node_with_one_gpu()?, node_with_one_gpu()?];
    let place = meeting_place("nccl-of-two-leases")?;
    let run = |rank: usize| {
        let mut command = sluice_run(&nodes[rank], &["--memory", "16GiB"]);
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

/// One program with the GPUs of both nodes, which starts a process for each, as launchers of distributed programs do.
fn ranks_of_one_lease() -> Result<()> {
    let (python, file) = (python::TORCH.ready()?, program_file("sequences").join("nccl_ranks.py"));
    let nodes = [node_with_one_gpu()?, node_with_one_gpu()?];
    let both = format!("{},{}", nodes[0].address, nodes[1].address);
    let mut command = Command::new(node::sluice());
    command.args(["run", "-n", "2", "--memory", "16GiB", "--node", &both, "--"]).arg(python).arg(file);
    command.args(["all", "2"]).arg(meeting_place("nccl-of-one-lease")?);
    expect_pass(&mut command, "sequence torch NCCL between two nodes of a lease", LIMIT)?;
    nodes.iter().try_for_each(Node::wait_until_free)
}

impl Sequence {
    /// From a network and mount namespace of its own where this machine allows one, else over loopback.
    fn run(&self, separation: Option<&Separation>) -> Result<()> {
        let python = self.environment.ready()?;
        let gpus = format!("recording:{},{}", self.card, self.gpus);
        let count = self.gpus.to_string();
        let options = ["-n", &count, "--memory", "16GiB"];
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
        expect_pass(&mut command, self.name, LIMIT)?;
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
