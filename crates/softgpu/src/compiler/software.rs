//! The devices of the software GPU: what a program that embeds it may configure, and what they say
//! of themselves.

use sluice_cuda::CUdevice_attribute as A;

use crate::compiler::code::Compiling;
use crate::device::machine::{BLOCK_MAX, GRID_MAX};
use crate::device::{Card, DEVICES_MAX, Setup, set_up};

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

impl From<Config> for Setup {
    fn from(config: Config) -> Setup {
        let threads = config.threads.max(1);
        let card = |(ordinal, device): (usize, SoftDevice)| Card {
            name: device.name,
            memory: device.memory,
            attributes: attributes(ordinal, threads, config.same_process),
        };
        let cards = config.devices.into_iter().enumerate().map(card).collect();
        Setup { cards, machine: &Compiling, threads }
    }
}

/// What `cuInit` builds where nothing is configured.
pub(crate) fn default_setup() -> Setup {
    Config::default().into()
}

/// Sets what `cuInit` will build. Without effect once a program has called `cuInit`.
pub fn configure(config: Config) {
    set_up(config.into());
}

/// The compute capability of every device.
const CAPABILITY: (i32, i32) = (12, 0);
/// Bytes of shared memory per block: without asking, with `MAX_DYNAMIC_SHARED_SIZE_BYTES`, and per
/// multiprocessor.
const SHARED_DEFAULT: i32 = 48 << 10;
const SHARED_OPT_IN: i32 = 99 << 10;
const SHARED_PER_MULTIPROCESSOR: i32 = 100 << 10;
/// Of those, bytes that each block costs beyond what it asks for.
const SHARED_RESERVED: i32 = 1 << 10;
/// The fewest multiprocessors of a device, however few threads the executor has: each thread takes
/// on several blocks of a cooperative grid and switches between them where they wait. With fewer,
/// programs that are made for a real GPU find no room for a cooperative grid of 20 blocks and more.
const MULTIPROCESSORS_MIN: i32 = 64;
/// A multiprocessor runs one block at a time. A cooperative launch takes as many blocks as the
/// occupancy says for all multiprocessors together.
const BLOCKS_MAX: i32 = 1;
const THREADS_MAX: i32 = 1024;

/// The attributes of the device `ordinal`, with at least one multiprocessor per thread. Clocks, bus
/// widths and caches do not exist here; programs divide by some of them, so these have plausible
/// values: a 1 GHz clock and a 64-bit bus.
fn attributes(ordinal: usize, threads: usize, same_process: bool) -> Vec<(A, i32)> {
    let managed = i32::from(same_process);
    let ordinal = ordinal as i32;
    vec![
        (A::MAX_THREADS_PER_BLOCK, 1024),
        (A::MAX_BLOCK_DIM_X, BLOCK_MAX[0] as i32),
        (A::MAX_BLOCK_DIM_Y, BLOCK_MAX[1] as i32),
        (A::MAX_BLOCK_DIM_Z, BLOCK_MAX[2] as i32),
        (A::MAX_GRID_DIM_X, GRID_MAX[0] as i32),
        (A::MAX_GRID_DIM_Y, GRID_MAX[1] as i32),
        (A::MAX_GRID_DIM_Z, GRID_MAX[2] as i32),
        (A::MAX_SHARED_MEMORY_PER_BLOCK, SHARED_DEFAULT),
        (A::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, SHARED_OPT_IN),
        (A::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, SHARED_PER_MULTIPROCESSOR),
        (A::RESERVED_SHARED_MEMORY_PER_BLOCK, SHARED_RESERVED),
        (A::TOTAL_CONSTANT_MEMORY, 64 << 10),
        (A::WARP_SIZE, 32),
        (A::MAX_PITCH, i32::MAX),
        (A::MAX_REGISTERS_PER_BLOCK, 65536),
        (A::MAX_REGISTERS_PER_MULTIPROCESSOR, 65536),
        (A::CLOCK_RATE, 1_000_000),
        (A::MEMORY_CLOCK_RATE, 1_000_000),
        (A::GLOBAL_MEMORY_BUS_WIDTH, 64),
        (A::L2_CACHE_SIZE, 1 << 20),
        (A::TEXTURE_ALIGNMENT, 512),
        (A::SURFACE_ALIGNMENT, 512),
        (A::TEXTURE_PITCH_ALIGNMENT, 32),
        (A::MULTIPROCESSOR_COUNT, (threads as i32).max(MULTIPROCESSORS_MIN)),
        (A::MAX_THREADS_PER_MULTIPROCESSOR, THREADS_MAX),
        (A::MAX_BLOCKS_PER_MULTIPROCESSOR, BLOCKS_MAX),
        (A::COMPUTE_CAPABILITY_MAJOR, CAPABILITY.0),
        (A::COMPUTE_CAPABILITY_MINOR, CAPABILITY.1),
        // A device that is on no bus: the ordinal as the device number.
        (A::PCI_DEVICE_ID, ordinal),
        (A::MULTI_GPU_BOARD_GROUP_ID, ordinal),
        (A::NUMA_ID, -1),
        // What the device can do and what it is.
        (A::UNIFIED_ADDRESSING, 1),
        (A::CAN_MAP_HOST_MEMORY, 1),
        (A::STREAM_PRIORITIES_SUPPORTED, 1),
        (A::GLOBAL_L1_CACHE_SUPPORTED, 1),
        (A::LOCAL_L1_CACHE_SUPPORTED, 1),
        (A::MEMORY_POOLS_SUPPORTED, 1),
        (A::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1),
        // A node carries their descriptors.
        (A::IPC_EVENT_SUPPORTED, i32::from(!same_process)),
        (A::VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED, 1),
        (A::HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1),
        (A::SPARSE_CUDA_ARRAY_SUPPORTED, 1),
        (A::DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED, 1),
        (A::COOPERATIVE_LAUNCH, 1),
        (A::CLUSTER_LAUNCH, 1),
        (A::TENSOR_MAP_ACCESS_SUPPORTED, 1),
        (A::CAN_USE_64_BIT_STREAM_MEM_OPS, 1),
        (A::CAN_USE_STREAM_WAIT_VALUE_NOR, 1),
        (A::HOST_REGISTER_SUPPORTED, 1),
        (A::COMPUTE_PREEMPTION_SUPPORTED, 1),
        (A::INTEGRATED, 1),
        (A::SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 1),
        (A::MAXIMUM_TEXTURE1D_WIDTH, 131_072),
        (A::MAXIMUM_TEXTURE2D_WIDTH, 131_072),
        (A::MAXIMUM_TEXTURE2D_HEIGHT, 65536),
        (A::MAXIMUM_TEXTURE3D_WIDTH, 16384),
        (A::MAXIMUM_TEXTURE3D_HEIGHT, 16384),
        (A::MAXIMUM_TEXTURE3D_DEPTH, 16384),
        (A::MAXIMUM_TEXTURE1D_LINEAR_WIDTH, 1 << 28),
        (A::MAXIMUM_TEXTURE2D_LINEAR_WIDTH, 131_072),
        (A::MAXIMUM_TEXTURE2D_LINEAR_HEIGHT, 65000),
        (A::MAXIMUM_TEXTURE2D_LINEAR_PITCH, 2_097_120),
        (A::MAXIMUM_SURFACE1D_WIDTH, 32768),
        (A::MAXIMUM_SURFACE2D_WIDTH, 131_072),
        (A::MAXIMUM_SURFACE2D_HEIGHT, 65536),
        (A::MAXIMUM_SURFACE3D_WIDTH, 16384),
        (A::MAXIMUM_SURFACE3D_HEIGHT, 16384),
        (A::MAXIMUM_SURFACE3D_DEPTH, 16384),
        (A::MANAGED_MEMORY, managed),
        (A::CONCURRENT_MANAGED_ACCESS, managed),
        (A::DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, managed),
    ]
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
}
