//! Devices: everything that programs ask about them was in one snapshot that came with the handshake.

use std::ffi::{CStr, c_char};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;
use sluice_wire::control::DeviceSnapshot;
use sluice_wire::{EventId, Op};

use crate::context::Primary;
use crate::facts::Facts;
use crate::launch::Limits;
use crate::memory::Memory;
use crate::session::{self, Session};
use crate::{context, mirror, out};

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
    /// ([`pool::current`](crate::pool::current)).
    pub(crate) pool: AtomicUsize,
}

/// The latest synchronous copy that was not waited for, though its call has returned: what streams that do not wait for the default
/// stream have to wait for.
#[derive(Debug, Default)]
pub(crate) struct Barrier {
    /// Recorded behind it.
    pub(crate) event: Option<EventId>,
    /// How much had been sent to the device by then.
    pub(crate) sent: u64,
}

/// How much was sent to a device, and how much of it somebody has waited for.
#[derive(Debug, Default)]
pub(crate) struct Work {
    sent: AtomicU64,
    waited: AtomicU64,
}

impl Work {
    /// After a command has been sent that may leave something running. A wait that covers the answer began later.
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

    /// Whether somebody has waited for what was sent up to then.
    pub(crate) fn covers(&self, sent: u64) -> bool {
        self.waited.load(Ordering::Acquire) >= sent
    }
}

/// The place of a device in the headers of the calling thread's commands, or that of its green context there.
pub(crate) fn place_of(device: &Device) -> u8 {
    context::green_place(device.ordinal).unwrap_or(device.place)
}

/// What a device behind a network cannot do for this process, whatever the card can: kernels see this machine's memory
/// as of their launch, and memory is not shared with other APIs or machines.
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
            // The place on the bus is that in the lease, as NVML shows it: programs look a GPU up there by this.
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

    /// Waits until the device has done everything sent so far; no round trip if somebody has waited for it already.
    pub(crate) fn wait(&self, session: &Session) -> Result<(), CUresult> {
        if self.work.is_pending() { self.synchronize(session) } else { Ok(()) }
    }

    pub(crate) fn barrier(&self) -> MutexGuard<'_, Barrier> {
        self.barrier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `cuCtxSynchronize` for this device, whichever is the calling thread's.
    pub(crate) fn synchronize(&self, session: &Session) -> Result<(), CUresult> {
        let covered = self.work.so_far();
        session.link.call(self.place, Op::of(Fn::cuCtxSynchronize), |_| ())?.result.ok()?;
        // What was written has to be here before another thread is told so.
        mirror::fetch(session)?;
        self.work.waited_for(covered);
        Ok(())
    }

    /// The same for what a green context has been given.
    pub(crate) fn synchronize_green(&self, session: &Session, place: u8) -> Result<(), CUresult> {
        session.link.call(place, Op::of(Fn::cuCtxSynchronize), |_| ())?.result.ok()?;
        mirror::fetch(session)
    }

    pub(crate) fn limit(&self, limit: CUlimit) -> Result<u64, CUresult> {
        let found = self.snapshot.limits.iter().find(|(known, _)| *known == limit);
        found.map(|(_, value)| *value).ok_or(CUresult::UNSUPPORTED_LIMIT)
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

/// Of the nodes' drivers, as `cuDriverGetVersion` gives it: what all of them have.
pub(crate) fn driver_version() -> Result<u32, CUresult> {
    let versions = session::connect()?.devices().map(|device| device.snapshot.driver_version);
    versions.min().ok_or(CUresult::NO_DEVICE)
}

// The entry points. CUDA Driver API, sections "Version Management" and "Device Management".

/// The CUDA version that this library speaks, for programs that ask where no node answers; `cuInit` then says why.
const OWN_VERSION: u32 = 13000;

/// Works before `cuInit`: the runtime asks for the version first.
pub(crate) unsafe fn cuDriverGetVersion(driverVersion: *mut i32) -> Result<(), CUresult> {
    let version = driver_version().unwrap_or(OWN_VERSION);
    // SAFETY: the program passes a place for the version.
    unsafe { out::write(driverVersion, version as i32) }
}

pub(crate) unsafe fn cuDeviceGet(device: *mut CUdevice, ordinal: i32) -> Result<(), CUresult> {
    let found = session::device(ordinal)?.ordinal;
    // SAFETY: the program passes a place for the device.
    unsafe { out::write(device, found) }
}

pub(crate) unsafe fn cuDeviceGetCount(count: *mut i32) -> Result<(), CUresult> {
    let devices = session::all()?.device_count();
    // SAFETY: the program passes a place for the count.
    unsafe { out::write(count, devices as i32) }
}

pub(crate) unsafe fn cuDeviceGetName(name: *mut c_char, len: i32, dev: CUdevice) -> Result<(), CUresult> {
    let device = session::device(dev)?;
    // SAFETY: the program passes `len` bytes.
    unsafe { out::write_text(name, len, &device.snapshot.name) }
}

pub(crate) unsafe fn cuDeviceGetUuid(uuid: *mut CUuuid, dev: CUdevice) -> Result<(), CUresult> {
    let value = session::device(dev)?.snapshot.uuid();
    // SAFETY: the program passes a place for the UUID.
    unsafe { out::write(uuid, value) }
}

pub(crate) unsafe fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, dev: CUdevice) -> Result<(), CUresult> {
    // SAFETY: the same contract; the two differ for MIG devices only.
    unsafe { cuDeviceGetUuid(uuid, dev) }
}

pub(crate) unsafe fn cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice) -> Result<(), CUresult> {
    let memory = session::device(dev)?.snapshot.memory;
    // SAFETY: the program passes a place for the size.
    unsafe { out::write(bytes, memory as usize) }
}

pub(crate) unsafe fn cuDeviceGetAttribute(
    pi: *mut i32,
    attrib: CUdevice_attribute,
    dev: CUdevice,
) -> Result<(), CUresult> {
    let value = session::device(dev)?.attribute(attrib)?;
    // SAFETY: the program passes a place for the value.
    unsafe { out::write(pi, value) }
}

pub(crate) unsafe fn cuDeviceGetProperties(prop: *mut CUdevprop, dev: CUdevice) -> Result<(), CUresult> {
    use CUdevice_attribute as A;
    let device = session::device(dev)?;
    let of = |attribute| device.attribute(attribute).unwrap_or(0);
    let properties = CUdevprop {
        maxThreadsPerBlock: of(A::MAX_THREADS_PER_BLOCK),
        maxThreadsDim: [of(A::MAX_BLOCK_DIM_X), of(A::MAX_BLOCK_DIM_Y), of(A::MAX_BLOCK_DIM_Z)],
        maxGridSize: [of(A::MAX_GRID_DIM_X), of(A::MAX_GRID_DIM_Y), of(A::MAX_GRID_DIM_Z)],
        sharedMemPerBlock: of(A::MAX_SHARED_MEMORY_PER_BLOCK),
        totalConstantMemory: of(A::TOTAL_CONSTANT_MEMORY),
        SIMDWidth: of(A::WARP_SIZE),
        memPitch: of(A::MAX_PITCH),
        regsPerBlock: of(A::MAX_REGISTERS_PER_BLOCK),
        clockRate: of(A::CLOCK_RATE),
        textureAlign: of(A::TEXTURE_ALIGNMENT),
    };
    // SAFETY: the program passes a place for the properties.
    unsafe { out::write(prop, properties) }
}

pub(crate) unsafe fn cuDeviceComputeCapability(
    major: *mut i32,
    minor: *mut i32,
    dev: CUdevice,
) -> Result<(), CUresult> {
    let capability = session::device(dev)?.snapshot.compute_capability();
    // SAFETY: the program passes two places.
    unsafe {
        out::write(major, capability.0)?;
        out::write(minor, capability.1)
    }
}

pub(crate) unsafe fn cuDeviceGetByPCIBusId(
    dev: *mut CUdevice,
    pciBusId: *const c_char,
) -> Result<(), CUresult> {
    let all = session::all()?;
    if pciBusId.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and the program passes a string.
    let wanted = unsafe { CStr::from_ptr(pciBusId) }.to_string_lossy().to_uppercase();
    // Domain and function may be left out: 0000:01:00.0, 01:00.0, 0000:01:00 and 01:00 name the same device.
    let names = |device: &&Device| {
        let whole = device.pci_bus_id();
        let bus = &whole[5..];
        [whole.as_str(), bus, &whole[..whole.len() - 2], &bus[..bus.len() - 2]].contains(&wanted.as_str())
    };
    let device = all.ordered_devices().find(names).ok_or(CUresult::INVALID_DEVICE)?;
    // SAFETY: the program passes a place for the device.
    unsafe { out::write(dev, device.ordinal) }
}

pub(crate) unsafe fn cuDeviceGetPCIBusId(
    pciBusId: *mut c_char,
    len: i32,
    dev: CUdevice,
) -> Result<(), CUresult> {
    let id = session::device(dev)?.pci_bus_id();
    // SAFETY: the program passes `len` bytes.
    unsafe { out::write_text(pciBusId, len, &id) }
}

/// Devices of a lease may be on different cards of a node, and on different nodes; no kernel of one reaches into another.
pub(crate) unsafe fn cuDeviceCanAccessPeer(
    canAccessPeer: *mut i32,
    dev: CUdevice,
    peerDev: CUdevice,
) -> Result<(), CUresult> {
    session::device(dev)?;
    session::device(peerDev)?;
    // SAFETY: the program passes a place for the answer.
    unsafe { out::write(canAccessPeer, 0) }
}

pub(crate) unsafe fn cuDeviceGetP2PAttribute(
    value: *mut i32,
    attrib: CUdevice_P2PAttribute,
    srcDevice: CUdevice,
    dstDevice: CUdevice,
) -> Result<(), CUresult> {
    session::device(srcDevice)?;
    session::device(dstDevice)?;
    if value.is_null() || attrib.name().is_none() {
        return Err(CUresult::INVALID_VALUE);
    }
    if srcDevice == dstDevice {
        return Err(CUresult::INVALID_DEVICE);
    }
    // SAFETY: the program passes a place for the value.
    unsafe { out::write(value, 0) }
}

/// `CU_ATOMIC_OPERATION_MAX`: the first number that names no operation.
const ATOMIC_OPERATIONS: u32 = 13;

/// No device here does atomic operations on memory of another machine or device: each asked for has no capability.
///
/// # Safety
/// The lists are null or have `count` items.
unsafe fn no_atomics(capabilities: *mut u32, operations: *const u32, count: u32) -> Result<(), CUresult> {
    if count == 0 || capabilities.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the same contract.
    let operations = unsafe { crate::issue::list(operations, count.into())? };
    if operations.iter().any(|operation| *operation >= ATOMIC_OPERATIONS) {
        return Err(CUresult::INVALID_VALUE);
    }
    for index in 0..operations.len() {
        // SAFETY: not null, and as many places as operations.
        unsafe { capabilities.add(index).write_unaligned(0) };
    }
    Ok(())
}

pub(crate) unsafe fn cuDeviceGetHostAtomicCapabilities(
    capabilities: *mut u32,
    operations: *const u32,
    count: u32,
    dev: CUdevice,
) -> Result<(), CUresult> {
    session::device(dev)?;
    // SAFETY: the same contract.
    unsafe { no_atomics(capabilities, operations, count) }
}

pub(crate) unsafe fn cuDeviceGetP2PAtomicCapabilities(
    capabilities: *mut u32,
    operations: *const u32,
    count: u32,
    srcDevice: CUdevice,
    dstDevice: CUdevice,
) -> Result<(), CUresult> {
    session::device(srcDevice)?;
    session::device(dstDevice)?;
    if srcDevice == dstDevice {
        return Err(CUresult::INVALID_DEVICE);
    }
    // SAFETY: the same contract.
    unsafe { no_atomics(capabilities, operations, count) }
}

/// Contexts that have only some multiprocessors are a matter of NVIDIA's MPS; a lease's share is one of time.
pub(crate) unsafe fn cuDeviceGetExecAffinitySupport(
    pi: *mut i32,
    kind: CUexecAffinityType,
    dev: CUdevice,
) -> Result<(), CUresult> {
    session::device(dev)?;
    if kind != CUexecAffinityType::SM_COUNT {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the program passes a place for the value.
    unsafe { out::write(pi, 0) }
}

/// LUIDs exist on Windows only.
pub(crate) unsafe fn cuDeviceGetLuid(_: *mut c_char, _: *mut u32, dev: CUdevice) -> Result<(), CUresult> {
    session::device(dev)?;
    Err(CUresult::NOT_SUPPORTED)
}

// Limits and priorities of the current context's device. Section "Context Management".

pub(crate) unsafe fn cuCtxGetLimit(pvalue: *mut usize, limit: CUlimit) -> Result<(), CUresult> {
    let session = session::get()?;
    let device = session.device(context::current()?.device)?;
    let value = session.limit_set(limit).map_or_else(|| device.limit(limit), Ok)?;
    // SAFETY: the program passes a place for the value.
    unsafe { out::write(pvalue, value as usize) }
}

pub(crate) unsafe fn cuCtxSetLimit(limit: CUlimit, value: usize) -> Result<(), CUresult> {
    let session = session::enter()?;
    session.device(context::current()?.device)?.limit(limit)?;
    session.try_out(&sluice_wire::commands::cuCtxSetLimit { limit, value: value as u64 })?;
    session.remember_limit(limit, value as u64);
    Ok(())
}

pub(crate) unsafe fn cuCtxGetStreamPriorityRange(
    leastPriority: *mut i32,
    greatestPriority: *mut i32,
) -> Result<(), CUresult> {
    let session = session::get()?;
    let (least, greatest) = session.device(context::current()?.device)?.snapshot.stream_priorities;
    // SAFETY: the program passes null or places for the two ends.
    unsafe {
        out::write_if_wanted(leastPriority, least);
        out::write_if_wanted(greatestPriority, greatest);
    }
    Ok(())
}

/// In elements, of any format that a texture can have.
pub(crate) unsafe fn cuDeviceGetTexture1DLinearMaxWidth(
    maxWidthInElements: *mut usize,
    format: CUarray_format,
    numChannels: u32,
    dev: CUdevice,
) -> Result<(), CUresult> {
    let device = session::device(dev)?;
    if format.channel_bytes().is_none() || !matches!(numChannels, 1 | 2 | 4) {
        return Err(CUresult::INVALID_VALUE);
    }
    let width = device.attribute(CUdevice_attribute::MAXIMUM_TEXTURE1D_LINEAR_WIDTH)?;
    // SAFETY: the program passes a place for the width.
    unsafe { out::write(maxWidthInElements, width as usize) }
}
