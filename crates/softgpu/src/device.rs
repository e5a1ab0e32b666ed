//! Devices, and what each consists of: its part of the address range, its memory and the accounts
//! of that, the machine that runs its code and the threads that it has. What belongs here knows a
//! device and no context. This file has the devices that are configured.

pub(crate) mod account;
pub(crate) mod address_space;
pub(crate) mod coverage;
pub(crate) mod execution;
pub(crate) mod green;
pub(crate) mod heap;
pub(crate) mod machine;
pub(crate) mod pool;
pub(crate) mod ranges;
pub(crate) mod sanitizer;
mod software;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use sluice_cuda::{CUdevice, CUdevice_attribute as A, CUuuid};
use sluice_image::ComputeCapability;
use sluice_jit::{Control, Executor};

use crate::base::status::{Result, Status};
use crate::compiler::code::Compiling;
use crate::context::Primary;
use crate::device::account::OwnMemory;
use crate::device::heap::Heap;
use crate::device::machine::{Limits, Machine};

/// One software device, as the embedding program wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoftDevice {
    /// What `cuDeviceGetName` answers.
    pub name: String,
    /// Device memory in bytes.
    pub memory: u64,
}

impl SoftDevice {
    /// Name of a device unless the configuration says otherwise.
    pub const NAME: &str = "Sluice Software GPU";

    /// A device of the default name with this much memory.
    pub fn with_memory(memory: u64) -> Self {
        Self { name: Self::NAME.to_owned(), memory }
    }
}

/// What the driver is made of; see [`crate::configure`].
#[derive(Clone, Debug)]
pub struct Config {
    pub devices: Vec<SoftDevice>,
    /// CPU threads that run blocks; every device reports at least as many multiprocessors.
    pub threads: usize,
    /// Whether the program and the driver share an address space, so that managed memory just
    /// works.
    pub same_process: bool,
}

impl Default for Config {
    /// One device with half of the machine's memory, and all of its CPUs.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { devices: vec![SoftDevice::with_memory(half_of_host_memory())], threads, same_process: false }
    }
}

impl Config {
    /// The configuration of the library that stands alone, from `SLUICE_SOFTGPU=COUNT,MEMORY` (for
    /// example `2,4GiB`) if that is set. Words that it does not understand are reported on stderr
    /// and replaced by the default.
    pub fn from_env() -> Self {
        let mut config = Self { same_process: true, ..Self::default() };
        let Some(text) = std::env::var_os("SLUICE_SOFTGPU") else { return config };
        match text.to_str().and_then(parse_devices) {
            Some(devices) => config.devices = devices,
            None => eprintln!(
                "sluice: SLUICE_SOFTGPU={text:?} ignored: it reads COUNT,MEMORY, for example 2,4GiB"
            ),
        }
        config
    }
}

/// `COUNT` or `COUNT,MEMORY`, up to 64 devices; without MEMORY they share half of the host's.
fn parse_devices(text: &str) -> Option<Vec<SoftDevice>> {
    let (count, memory) = match text.split_once(',') {
        Some((count, memory)) => (count, Some(parse_bytes(memory.trim())?)),
        None => (text, None),
    };
    let count: usize = count.trim().parse().ok().filter(|count| (1..=DEVICES_MAX).contains(count))?;
    let memory = memory.unwrap_or_else(|| half_of_host_memory() / count as u64);
    Some(vec![SoftDevice::with_memory(memory); count])
}

/// `4GiB`, `512MiB`, `1.5G`, or plain bytes.
fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit.trim().to_ascii_lowercase().trim_end_matches('b').trim_end_matches('i') {
        "" => 1u64,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        _ => return None,
    };
    let bytes = number.parse::<f64>().ok()? * scale as f64;
    (bytes >= 1.0 && bytes < (1u64 << 46) as f64).then_some(bytes as u64)
}

fn half_of_host_memory() -> u64 {
    // SAFETY: sysconf only reads the name.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    let bytes = u64::try_from(pages).unwrap_or(0) * u64::try_from(page).unwrap_or(0);
    (bytes / 2).max(64 << 20)
}

/// One device of a driver with a [`Machine`] of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// What `cuDeviceGetName` answers.
    pub name: String,
    /// Device memory in bytes.
    pub memory: u64,
    /// What `cuDeviceGetAttribute` answers; 0 for attributes that are not here.
    pub attributes: Vec<(A, i32)>,
}

/// A device that programs can open.
pub(crate) struct Device {
    pub(crate) ordinal: usize,
    pub(crate) name: String,
    pub(crate) uuid: CUuuid,
    pub(crate) attributes: BTreeMap<A, i32>,
    pub(crate) limits: Limits,
    pub(crate) heap: Heap,
    /// What the driver has allocated of it for itself.
    pub(crate) own: OwnMemory,
    /// Memory for parameters, shared and local memory of the grid that runs.
    pub(crate) arena: Mutex<Range<u64>>,
    pub(crate) primary: Mutex<Primary>,
    /// Handle of the pool behind `cuMemAllocAsync`, 0 before the first use.
    pub(crate) pool: Mutex<usize>,
    pub(crate) control: Control,
    /// Made with the first launch.
    pub(crate) executor: OnceLock<Option<Executor>>,
}

pub(crate) struct Driver {
    pub(crate) devices: Vec<Device>,
    pub(crate) machine: &'static dyn Machine,
    /// CPU threads that run blocks.
    pub(crate) threads: usize,
}

/// What [`init`] will build.
struct Setup {
    cards: Vec<Card>,
    machine: &'static dyn Machine,
    threads: usize,
}

impl From<Config> for Setup {
    fn from(config: Config) -> Setup {
        let threads = config.threads.max(1);
        let card = |(ordinal, device): (usize, SoftDevice)| Card {
            name: device.name,
            memory: device.memory,
            attributes: software::attributes(ordinal, threads, config.same_process),
        };
        let cards = config.devices.into_iter().enumerate().map(card).collect();
        Setup { cards, machine: &Compiling, threads }
    }
}

/// Devices of a process; the threads of the engine are counted in 64 bits.
const DEVICES_MAX: usize = 64;

static SETUP: Mutex<Option<Setup>> = Mutex::new(None);
static DRIVER: OnceLock<Driver> = OnceLock::new();

/// Sets what [`init`] will build. Without effect once a program has called `cuInit`.
pub fn configure(config: Config) {
    set_up(config.into());
}

/// As [`configure`], for a driver of other devices than the software GPU.
pub fn configure_cards(cards: Vec<Card>, machine: &'static dyn Machine) {
    set_up(Setup { cards, machine, threads: 1 });
}

fn set_up(setup: Setup) {
    *SETUP.lock().unwrap_or_else(PoisonError::into_inner) = Some(setup);
}

/// `cuInit`: builds the devices on the first call.
pub(crate) fn init() -> Result<()> {
    let driver = DRIVER.get_or_init(|| {
        // SAFETY: the handler only stores a flag, which is safe in a child of a process with
        // threads.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        // It opens its files, which a confined process cannot do later.
        coverage::recorder();
        let setup = SETUP.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Setup { cards, machine, threads } = setup.unwrap_or_else(|| Config::default().into());
        let devices = cards.into_iter().take(DEVICES_MAX).enumerate();
        let devices = devices.map(|(ordinal, card)| Device::new(ordinal, card)).collect();
        Driver { devices, machine, threads }
    });
    if FORKED.load(Ordering::Relaxed) {
        return Err(Status::NOT_INITIALIZED);
    }
    if driver.devices.is_empty() { Err(Status::NO_DEVICE) } else { Ok(()) }
}

/// Set in a child that was forked from a process with this driver. The threads that would do its
/// work are its parent's, so it gets what CUDA gives such a child: `CUDA_ERROR_NOT_INITIALIZED` for
/// every call.
static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn forked() {
    FORKED.store(true, Ordering::Relaxed);
}

/// The driver, once the program has called `cuInit`.
pub(crate) fn driver() -> Result<&'static Driver> {
    DRIVER.get().filter(|_| !FORKED.load(Ordering::Relaxed)).ok_or(Status::NOT_INITIALIZED)
}

/// The device with this ordinal.
pub(crate) fn device(ordinal: CUdevice) -> Result<&'static Device> {
    let devices = &driver()?.devices;
    usize::try_from(ordinal).ok().and_then(|ordinal| devices.get(ordinal)).ok_or(Status::INVALID_DEVICE)
}

impl Device {
    fn new(ordinal: usize, card: Card) -> Device {
        let attributes: BTreeMap<A, i32> = card.attributes.into_iter().collect();
        Device {
            ordinal,
            name: card.name,
            uuid: uuid(ordinal),
            limits: limits(&attributes),
            attributes,
            heap: match sanitizer::sanitizer() {
                Some(_) => Heap::guarded(card.memory),
                None => Heap::new(card.memory),
            },
            own: OwnMemory::default(),
            arena: Mutex::new(0..0),
            primary: Mutex::default(),
            pool: Mutex::default(),
            control: Control::new(),
            executor: OnceLock::new(),
        }
    }

    /// 0 for what the device does not have.
    pub(crate) fn attribute(&self, attribute: A) -> i32 {
        self.attributes.get(&attribute).copied().unwrap_or(0)
    }

    pub(crate) fn lock_primary(&self) -> std::sync::MutexGuard<'_, Primary> {
        self.primary.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What bounds a launch, by the attributes that say so.
fn limits(attributes: &BTreeMap<A, i32>) -> Limits {
    /// Blocks of a cluster on every device that has clusters (CUDA C++ Programming Guide, Thread
    /// Block Clusters).
    const CLUSTER_MAX: u32 = 8;
    let of = |attribute| attributes.get(&attribute).copied().unwrap_or(0);
    let count = |attribute| of(attribute).unsigned_abs();
    Limits {
        capability: ComputeCapability {
            major: count(A::COMPUTE_CAPABILITY_MAJOR),
            minor: count(A::COMPUTE_CAPABILITY_MINOR),
        },
        multiprocessors: count(A::MULTIPROCESSOR_COUNT),
        threads: count(A::MAX_THREADS_PER_MULTIPROCESSOR),
        blocks: count(A::MAX_BLOCKS_PER_MULTIPROCESSOR),
        registers: count(A::MAX_REGISTERS_PER_MULTIPROCESSOR),
        shared: count(A::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
        shared_default: count(A::MAX_SHARED_MEMORY_PER_BLOCK),
        shared_opt_in: count(A::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        shared_reserved: count(A::RESERVED_SHARED_MEMORY_PER_BLOCK),
        cluster: if of(A::CLUSTER_LAUNCH) != 0 { CLUSTER_MAX } else { 1 },
    }
}

/// Returns a UUID that does not change between starts on one machine, and that differs between
/// machines and between devices.
fn uuid(ordinal: usize) -> CUuuid {
    let host = std::fs::read("/etc/machine-id")
        .or_else(|_| std::fs::read("/proc/sys/kernel/hostname"))
        .unwrap_or_else(|_| b"sluice".to_vec());
    let half = |seed: u64| -> u64 {
        // FNV-1a: a name, not a secret.
        let start = 0xcbf2_9ce4_8422_2325 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        host.iter().fold(start, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
    };
    let ordinal = ordinal as u64;
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&half(2 * ordinal + 1).to_be_bytes());
    bytes[8..].copy_from_slice(&half(2 * ordinal + 2).to_be_bytes());
    // Version 8 (custom), variant 1 (RFC 9562).
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    CUuuid { bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_lists_are_read_or_refused() {
        let memories =
            |text: &str| parse_devices(text).map(|all| all.iter().map(|d| d.memory).collect::<Vec<_>>());
        assert_eq!(memories("2,4GiB"), Some(vec![4 << 30; 2]));
        assert_eq!(memories("1, 512m"), Some(vec![512 << 20]));
        assert_eq!(memories("1,1.5G"), Some(vec![3 << 29]));
        for bad in ["0", "65", "", "x", "1,", "1,4Q", "1,-1", "1,9999999T"] {
            assert_eq!(memories(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn devices_have_different_lasting_uuids() {
        assert_eq!(uuid(0), uuid(0));
        assert_ne!(uuid(0), uuid(1));
    }
}
