//! Which GPUs this machine has.
//!
//! The daemon never loads a CUDA driver: a driver that has been initialised cannot be forked, keeps
//! threads and memory, and may hang. A short-lived child process loads it and prints what it finds.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sluice_cuda::CUdevice_attribute;
use sluice_wire::control::DeviceSnapshot;
use sluice_worker_link::link::Driver;
use sluice_worker_link::probe;

use crate::config::{GpuSelection, WorkerCommand};
use crate::lease::Card;
use crate::spawn::dies_with_this_thread;

/// The GPUs to lend and the driver that runs them.
#[derive(Clone, Debug)]
pub struct Inventory {
    pub driver: Driver,
    /// In the order of the driver's ordinals.
    pub cards: Vec<Card>,
    /// What is fixed about each of them.
    pub snapshots: Vec<DeviceSnapshot>,
}

/// Why there is no GPU to lend.
#[derive(Debug, thiserror::Error)]
pub enum InventoryError {
    #[error(
        "no NVIDIA GPU: {0}. `--gpus software` lends a GPU that computes on this machine's CPUs; `sluice doctor` \
         looks closer"
    )]
    Nvidia(String),
    #[error("{driver} lends no GPU: {why}")]
    Driver { driver: String, why: String },
    #[error("a software GPU needs a count from 1 to {SOFTWARE_MAX} and at least {} MiB of memory each", SMALLEST >> 20)]
    Software,
}

/// Bounds against slips of the keyboard, not of the machine.
const SOFTWARE_MAX: u32 = 64;
const SMALLEST: u64 = 64 << 20;

/// How long a driver may take to say what it has: NVIDIA's initialises each GPU of the machine if
/// nothing keeps them so (`nvidia-persistenced`).
pub(crate) const PROBE_PATIENCE: Duration = Duration::from_secs(120);

/// Finds the GPUs that `selection` means.
pub(crate) fn take_inventory(
    selection: &GpuSelection,
    worker: &WorkerCommand,
) -> Result<Inventory, InventoryError> {
    match selection {
        GpuSelection::Software { count, memory } => software(*count, *memory, worker),
        GpuSelection::Recording { model, count } => {
            let driver = Driver::Recording { model: model.clone(), count: *count };
            ask(driver, worker)
                .map_err(|why| InventoryError::Driver { driver: "the recording driver".into(), why })
        }
        GpuSelection::Nvidia => nvidia(worker),
        GpuSelection::Auto => nvidia(worker).or_else(|why| {
            if Path::new(NVIDIA_DEVICE).exists() {
                tracing::warn!("this machine has NVIDIA's devices, but lends a software GPU: {why}");
            }
            software(1, None, worker)
        }),
        GpuSelection::Library(path) => {
            let why = |why| InventoryError::Driver { driver: path.display().to_string(), why };
            ask(library(path).map_err(why)?, worker).map_err(why)
        }
    }
}

fn software(count: u32, memory: Option<u64>, worker: &WorkerCommand) -> Result<Inventory, InventoryError> {
    let memory = software_memory(count, memory)?;
    ask(Driver::Software { memory: vec![memory; count as usize] }, worker)
        .map_err(|why| InventoryError::Driver { driver: "the software GPU".into(), why })
}

/// Bytes of each software GPU.
fn software_memory(count: u32, memory: Option<u64>) -> Result<u64, InventoryError> {
    if !(1..=SOFTWARE_MAX).contains(&count) {
        return Err(InventoryError::Software);
    }
    let memory = memory.unwrap_or_else(|| host_memory() / 2 / u64::from(count));
    // Chunks of 2 MiB are what a GPU gives out.
    let memory = memory & !((2 << 20) - 1);
    if memory < SMALLEST {
        return Err(InventoryError::Software);
    }
    Ok(memory)
}

fn host_memory() -> u64 {
    // SAFETY: plain queries.
    let (pages, bytes) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    pages.max(0) as u64 * bytes.max(0) as u64
}

fn nvidia(worker: &WorkerCommand) -> Result<Inventory, InventoryError> {
    let mut reasons = Vec::new();
    for path in libcuda_candidates() {
        match library(&path).and_then(|driver| ask(driver, worker)) {
            Ok(inventory) => return Ok(inventory),
            Err(why) => reasons.push(format!("{}: {why}", path.display())),
        }
    }
    if reasons.is_empty() {
        reasons.push("no libcuda.so.1 (part of NVIDIA's driver) is installed".into());
    }
    Err(InventoryError::Nvidia(reasons.join("; ")))
}

/// What is there where NVIDIA's kernel module is loaded.
const NVIDIA_DEVICE: &str = "/dev/nvidiactl";

/// Where NVIDIA's driver installs its library, and where containers get it; then what programs here
/// would find. Sluice's own library, to which the environment may lead, is known as such when it is
/// loaded.
fn libcuda_candidates() -> Vec<PathBuf> {
    let folders = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        // Where it is mounted into containers and virtual machines, on GKE among others.
        "/usr/local/nvidia/lib64",
        "/usr/local/nvidia/lib",
        "/usr/lib/x86_64-linux-gnu/nvidia/current",
        "/usr/lib/wsl/lib",
        "/run/opengl-driver/lib",
    ];
    let search_path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let searched = std::env::split_paths(&search_path).filter(|folder| folder.is_absolute());
    let folders = folders.iter().map(PathBuf::from).chain(searched);
    let named = folders.map(|folder| folder.join("libcuda.so.1"));
    let compatible = PathBuf::from("/usr/local/cuda/compat/libcuda.so.1");
    let mut paths: Vec<PathBuf> = Vec::new();
    for path in named.chain(loader_cache()).chain([compatible]).filter(|path| path.exists()) {
        let real = path.canonicalize().unwrap_or(path);
        if !paths.contains(&real) {
            paths.push(real);
        }
    }
    paths
}

/// How the loader's cache marks libraries of this machine's own kind.
const LOADER_KIND: &str = if cfg!(target_arch = "aarch64") { "AArch64" } else { "x86-64" };

/// What the dynamic loader's cache says; nothing where `ldconfig` cannot be run.
fn loader_cache() -> Vec<PathBuf> {
    let output = ["/sbin/ldconfig", "/usr/sbin/ldconfig"]
        .iter()
        .find_map(|program| Command::new(program).arg("-p").stderr(Stdio::null()).output().ok());
    let Some(output) = output else { return Vec::new() };
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|line| line.trim_start().starts_with("libcuda.so.1 ") && line.contains(LOADER_KIND))
        .filter_map(|line| line.split_once("=> "))
        .map(|(_, path)| PathBuf::from(path.trim()))
        .collect()
}

fn library(path: &Path) -> Result<Driver, String> {
    let path = path.to_str().ok_or("its path is not UTF-8")?.to_owned();
    Ok(Driver::Library { path })
}

/// Asks a driver what it has, in a process of its own.
fn ask(driver: Driver, worker: &WorkerCommand) -> Result<Inventory, String> {
    let said = serde_json::to_string(&driver).map_err(io::Error::other);
    let said = said.and_then(|driver| ask_worker(worker, probe::ARGUMENT, &driver, PROBE_PATIENCE));
    let snapshots = said.and_then(|said| probe::decode(&said).map_err(io::Error::other));
    let snapshots = snapshots.map_err(|error| error.to_string())?;
    if snapshots.is_empty() {
        return Err("it has no devices".into());
    }
    oddities(&snapshots).for_each(|oddity| tracing::warn!("{oddity}"));
    let cards = snapshots.iter().map(|s| Card { name: s.name.clone(), memory: s.memory }).collect();
    Ok(Inventory { driver, cards, snapshots })
}

/// `CU_COMPUTEMODE_EXCLUSIVE_PROCESS` (CUDA Driver API, `CUcomputemode`).
const EXCLUSIVE_PROCESS: i32 = 3;

/// What the operator should know of these GPUs.
fn oddities(snapshots: &[DeviceSnapshot]) -> impl Iterator<Item = String> {
    snapshots.iter().enumerate().filter_map(|(gpu, snapshot)| {
        let name = &snapshot.name;
        if snapshot.attribute(CUdevice_attribute::COMPUTE_MODE) == Some(EXCLUSIVE_PROCESS) {
            return Some(format!(
                "GPU {gpu} ({name}) is in exclusive compute mode, in which it takes one session at a time: \
                 `nvidia-smi -i {gpu} -c DEFAULT` ends that"
            ));
        }
        // As its driver names an instance (NVIDIA Multi-Instance GPU User Guide).
        name.contains(" MIG ").then(|| {
            format!(
                "GPU {gpu} ({name}) is an instance of a partitioned GPU, and its driver shows one of them to each process: \
                 for the others start a node each, with CUDA_VISIBLE_DEVICES=MIG-... as `nvidia-smi -L` names them"
            )
        })
    })
}

/// What a worker that is started with this argument says of something, before it ends.
pub(crate) fn ask_worker(
    worker: &WorkerCommand,
    argument: &str,
    of: &str,
    patience: Duration,
) -> io::Result<Vec<u8>> {
    let mut command = Command::new(&worker.program);
    command.args(&worker.arguments).args([argument, of]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    said_by(&mut command, patience, "; `nvidia-persistenced` keeps NVIDIA's GPUs ready")
}

/// What a short-lived child says on its standard output, which is a pipe as its standard error is.
/// `hint` is added where it takes too long.
pub(crate) fn said_by(command: &mut Command, patience: Duration, hint: &str) -> io::Result<Vec<u8>> {
    // This thread stays until the child has ended or was killed.
    dies_with_this_thread(command);
    let mut child = command.spawn()?;
    let output = read_aside(child.stdout.take());
    let errors = read_aside(child.stderr.take());
    let deadline = Instant::now() + patience;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            None => {
                child.kill()?;
                // One that hangs in its driver ends when that lets it go.
                std::thread::spawn(move || child.wait());
                let patience = patience.as_secs();
                return Err(io::Error::other(format!("it did not answer within {patience} s{hint}")));
            }
        }
    };
    if status.success() {
        return Ok(output.join().unwrap_or_default());
    }
    let text = errors.join().unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    Err(io::Error::other(text.lines().last().unwrap_or("it failed without a word").to_owned()))
}

/// Reads a pipe on a thread of its own: a child that fills it would never end otherwise.
fn read_aside(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            // What could be read before an error is all there is.
            let _ = pipe.take(PROBE_SIZE_MAX).read_to_end(&mut bytes);
        }
        bytes
    })
}

/// Bytes that a probe may print.
const PROBE_SIZE_MAX: u64 = 1 << 20;

#[cfg(test)]
pub(crate) mod tests {
    use sluice_cuda::Presence;

    use super::*;

    pub(crate) fn card(name: &str, attributes: &[(CUdevice_attribute, i32)]) -> DeviceSnapshot {
        DeviceSnapshot {
            name: name.into(),
            uuid: [1; 16],
            memory: 1 << 30,
            driver_version: 13_000,
            attributes: attributes.to_vec(),
            limits: Vec::new(),
            stream_priorities: (0, 0),
            is_software: false,
            functions: Presence::default(),
            chunk: 2 << 20,
            build: 0,
        }
    }

    #[test]
    fn what_keeps_a_card_from_being_lent_freely_is_said() {
        let said = |name, mode| {
            let cards = [card("a card", &[]), card(name, &[(CUdevice_attribute::COMPUTE_MODE, mode)])];
            oddities(&cards).collect::<Vec<_>>()
        };
        assert!(said("NVIDIA H100 80GB HBM3", 0).is_empty());
        assert!(said("NVIDIA H100 80GB HBM3", EXCLUSIVE_PROCESS)[0].contains("`nvidia-smi -i 1 -c DEFAULT`"));
        assert!(said("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 0)[0].contains("CUDA_VISIBLE_DEVICES=MIG-"));
    }

    #[test]
    fn software_cards_split_the_machine_and_are_bounded() {
        assert_eq!(software_memory(2, Some(4 << 30)).unwrap(), 4 << 30);
        assert!(software_memory(1, None).unwrap() <= host_memory() / 2);
        for (count, memory) in [(0, None), (65, None), (1, Some(1 << 20))] {
            assert!(matches!(software_memory(count, memory), Err(InventoryError::Software)));
        }
    }

    #[test]
    fn a_driver_that_does_not_answer_in_time_is_left_alone() {
        // Sooner than any driver's time is up: a caller that waits longer than is asked here gets
        // an answer.
        let arguments = vec!["-c".into(), "exec sleep 10".into()];
        let worker = WorkerCommand { program: "/bin/sh".into(), arguments };
        let error = ask_worker(&worker, "measure", "", Duration::from_millis(10)).unwrap_err();
        assert!(error.to_string().contains("did not answer"), "{error}");
    }

    #[test]
    fn a_library_that_cannot_be_probed_says_why() {
        let worker = WorkerCommand {
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), "echo broken >&2; exit 3".into()],
        };
        let selection = GpuSelection::Library("/nowhere/libcuda.so.1".into());
        let error = take_inventory(&selection, &worker).unwrap_err().to_string();
        assert_eq!(error, "/nowhere/libcuda.so.1 lends no GPU: broken");
    }
}
