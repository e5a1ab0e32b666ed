//! Devices, and what each consists of: its part of the address range, its memory and the accounts
//! of that, the machine that runs its code and the threads that it has. What belongs here knows a
//! device and no context. This file has the devices that are configured.

pub(crate) mod account;
pub(crate) mod address_space;
pub(crate) mod coverage;
pub(crate) mod execution;
pub(crate) mod heap;
pub(crate) mod machine;
pub(crate) mod multiprocessors;
pub(crate) mod pool;
pub(crate) mod ranges;
pub(crate) mod sanitizer;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use sluice_cuda::{CUdevice, CUdevice_attribute as A, CUuuid};
use sluice_image::ComputeCapability;
use sluice_jit::{Control, Executor};

use crate::base::status::{Result, Status};
use crate::device::heap::Heap;
use crate::device::machine::{Limits, Machine};

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
    /// Memory for parameters, shared and local memory of the grid that runs.
    pub(crate) arena: Mutex<Range<u64>>,
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
pub(crate) struct Setup {
    pub(crate) cards: Vec<Card>,
    pub(crate) machine: &'static dyn Machine,
    /// CPU threads that run blocks.
    pub(crate) threads: usize,
}

/// Devices of a process; the threads of the engine are counted in 64 bits.
pub(crate) const DEVICES_MAX: usize = 64;

static SETUP: Mutex<Option<Setup>> = Mutex::new(None);
static DRIVER: OnceLock<Driver> = OnceLock::new();

/// As [`crate::configure`], for a driver of other devices than the software GPU.
pub fn configure_cards(cards: Vec<Card>, machine: &'static dyn Machine) {
    set_up(Setup { cards, machine, threads: 1 });
}

/// Sets what [`init`] will build. Without effect once a program has called `cuInit`.
pub(crate) fn set_up(setup: Setup) {
    *SETUP.lock().unwrap_or_else(PoisonError::into_inner) = Some(setup);
}

/// `cuInit`: builds the devices on the first call; `default` says which, where nothing was set.
pub(crate) fn init(default: fn() -> Setup) -> Result<()> {
    let driver = DRIVER.get_or_init(|| {
        // SAFETY: the handler only stores a flag, which is safe in a child of a process with
        // threads.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        // It opens its files, which a confined process cannot do later.
        coverage::recorder();
        let setup = SETUP.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Setup { cards, machine, threads } = setup.unwrap_or_else(default);
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
            arena: Mutex::new(0..0),
            pool: Mutex::default(),
            control: Control::new(),
            executor: OnceLock::new(),
        }
    }

    /// 0 for what the device does not have.
    pub(crate) fn attribute(&self, attribute: A) -> i32 {
        self.attributes.get(&attribute).copied().unwrap_or(0)
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
    fn devices_have_different_lasting_uuids() {
        assert_eq!(uuid(0), uuid(0));
        assert_ne!(uuid(0), uuid(1));
    }
}
