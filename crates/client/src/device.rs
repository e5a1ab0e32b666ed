//! Devices: everything that programs ask about them was in one snapshot that came with the
//! handshake.
//!
//! # In this folder
//!
//! The device as data; its entry points ([`entry_points`]) and waiting for its work ([`waiting`])
//! need a session, and are in files of their own.

pub(crate) mod entry_points;
pub(crate) mod waiting;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;
use sluice_wire::EventId;
use sluice_wire::control::DeviceSnapshot;

use crate::context::{self, Primary};
use crate::launch::limits::Limits;
use crate::memory::allocations::Memory;
use crate::session::facts::Facts;

/// One device of the lease.
#[derive(Debug)]
pub(crate) struct Device {
    /// As the program counts them.
    pub(crate) ordinal: CUdevice,
    /// Among the devices of its lease, as its node counts them.
    pub(crate) place: u8,
    /// Among all devices of the process's leases, whichever of them the program sees.
    pub(crate) index: u8,
    /// The addresses that this side names for it; empty where the node does.
    pub(crate) minted: Range<u64>,
    pub(crate) snapshot: DeviceSnapshot,
    pub(crate) primary: Primary,
    pub(crate) memory: Mutex<Memory>,
    pub(crate) launch_limits: Limits,
    /// Whether this side names the addresses of its memory.
    pub(crate) mints_addresses: bool,
    pub(crate) work: Work,
    pub(crate) barrier: Mutex<Barrier>,
    /// What is known of the images that it runs.
    pub(crate) facts: Arc<Facts>,
    /// The handle of its own pool.
    pub(crate) default_pool: CUmemoryPool,
    /// The pool that a program has set for `cuMemAllocAsync`, if any
    /// ([`pool::current`](crate::memory::pool::current)).
    pub(crate) pool: AtomicUsize,
}

/// The latest synchronous copy that was not waited for, though its call has returned: what streams
/// that do not wait for the default stream have to wait for.
#[derive(Debug, Default)]
pub(crate) struct Barrier {
    /// Recorded behind it.
    pub(crate) event: Option<EventId>,
    /// How much had been sent to the device by then.
    pub(crate) sent: u64,
}

/// Counts of the commands sent to a device, and of those that have been waited for.
#[derive(Debug, Default)]
pub(crate) struct Work {
    sent: AtomicU64,
    waited: AtomicU64,
}

impl Work {
    /// After a command has been sent that may leave something running. A wait that covers the
    /// answer began later.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Everything sent so far: what a wait that begins now will cover.
    pub(crate) fn so_far(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    pub(crate) fn waited_for(&self, sent: u64) {
        self.waited.fetch_max(sent, Ordering::AcqRel);
    }

    /// Whether something may still be running.
    pub(crate) fn is_pending(&self) -> bool {
        !self.covers(self.so_far())
    }

    /// Says whether everything sent up to then has been waited for.
    pub(crate) fn covers(&self, sent: u64) -> bool {
        self.waited.load(Ordering::Acquire) >= sent
    }
}

/// The place of a device in the headers of the calling thread's commands, or that of its green
/// context there.
pub(crate) fn place_of(device: &Device) -> u8 {
    context::green_place(device.ordinal).unwrap_or(device.place)
}

/// What a device behind a network cannot do for this process, whatever the GPU can do: kernels see
/// this machine's memory as of their launch, and memory is not shared with other APIs or machines.
const NOT_FROM_AFAR: &[CUdevice_attribute] = &[
    CUdevice_attribute::CONCURRENT_MANAGED_ACCESS,
    CUdevice_attribute::PAGEABLE_MEMORY_ACCESS,
    CUdevice_attribute::PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
    CUdevice_attribute::DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
    CUdevice_attribute::HOST_NATIVE_ATOMIC_SUPPORTED,
    CUdevice_attribute::CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
    CUdevice_attribute::READ_ONLY_HOST_REGISTER_SUPPORTED,
    CUdevice_attribute::HANDLE_TYPE_FABRIC_SUPPORTED,
    CUdevice_attribute::GPU_DIRECT_RDMA_SUPPORTED,
    CUdevice_attribute::GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
    CUdevice_attribute::GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS,
    CUdevice_attribute::GPU_DIRECT_RDMA_WITH_LOCALIZED_MEMORY_SUPPORTED,
    CUdevice_attribute::DMA_BUF_SUPPORTED,
    CUdevice_attribute::HOST_ALLOC_DMA_BUF_SUPPORTED,
    CUdevice_attribute::MULTICAST_SUPPORTED,
    CUdevice_attribute::TIMELINE_SEMAPHORE_INTEROP_SUPPORTED,
    CUdevice_attribute::D3D12_CIG_SUPPORTED,
    CUdevice_attribute::D3D12_CIG_STREAMS_SUPPORTED,
    CUdevice_attribute::VULKAN_CIG_SUPPORTED,
    // Memory of the node's host, which programs cannot reach.
    CUdevice_attribute::HOST_NUMA_MEMORY_POOLS_SUPPORTED,
    CUdevice_attribute::HOST_NUMA_MULTINODE_IPC_SUPPORTED,
    CUdevice_attribute::HOST_MEMORY_POOLS_SUPPORTED,
    CUdevice_attribute::MEM_DECOMPRESS_ALGORITHM_MASK,
    CUdevice_attribute::MEM_DECOMPRESS_MAXIMUM_LENGTH,
];

impl Device {
    pub(crate) fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32, CUresult> {
        use CUdevice_attribute as A;
        match attribute {
            // These are this library's doing.
            A::CAN_MAP_HOST_MEMORY => Ok(1),
            A::MANAGED_MEMORY
            | A::HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
            | A::HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED => Ok(self.mints_addresses.into()),
            // The place on the bus is that in the lease, as NVML shows it: programs look a GPU up
            // there by this.
            A::PCI_DOMAIN_ID | A::PCI_DEVICE_ID => Ok(0),
            A::PCI_BUS_ID => Ok(i32::from(self.index) + 1),
            A::VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED | A::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
                if !self.mints_addresses =>
            {
                Ok(0)
            }
            A::MEMPOOL_SUPPORTED_HANDLE_TYPES => {
                // What memory can be shared by, pools can: they are this library's.
                self.attribute(A::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)
            }
            _ if NOT_FROM_AFAR.contains(&attribute) => Ok(0),
            _ => self.snapshot.attribute(attribute).ok_or(CUresult::INVALID_VALUE),
        }
    }

    /// Whether other processes of the lease can open its events.
    pub(crate) fn shares_events(&self) -> bool {
        self.attribute(CUdevice_attribute::IPC_EVENT_SUPPORTED) == Ok(1)
    }

    pub(crate) fn barrier(&self) -> MutexGuard<'_, Barrier> {
        self.barrier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn limit(&self, limit: CUlimit) -> Result<u64, CUresult> {
        let found = self.snapshot.limits.iter().find(|(known, _)| *known == limit);
        let missing = match limit.name() {
            Some(_) if limit != CUlimit::MAX => CUresult::UNSUPPORTED_LIMIT,
            _ => CUresult::INVALID_VALUE,
        };
        found.map(|(_, value)| *value).ok_or(missing)
    }

    /// Domain, bus and device, as `cuDeviceGetPCIBusId` writes them.
    fn pci_bus_id(&self) -> String {
        let part = |attribute| self.attribute(attribute).unwrap_or(0);
        format!(
            "{:04X}:{:02X}:{:02X}.0",
            part(CUdevice_attribute::PCI_DOMAIN_ID),
            part(CUdevice_attribute::PCI_BUS_ID),
            part(CUdevice_attribute::PCI_DEVICE_ID)
        )
    }
}
