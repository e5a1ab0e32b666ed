//! What programs ask about devices and driver versions.

use std::ffi::{CStr, c_char};

use sluice_cuda::*;

use crate::abi::out;
use crate::device::Device;
use crate::lifecycle::init;
use crate::{context, session};

/// Of the nodes' drivers, as `cuDriverGetVersion` gives it: what all of them have.
pub(crate) fn driver_version() -> Result<u32, CUresult> {
    let versions = init::connect()?.devices().map(|device| device.snapshot.driver_version);
    versions.min().ok_or(CUresult::NO_DEVICE)
}

// The entry points. CUDA Driver API, sections "Version Management" and "Device Management".

/// The CUDA version that this library speaks, for programs that ask where no node answers; `cuInit`
/// then says why.
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
    // Domain and function may be left out: 0000:01:00.0, 01:00.0, 0000:01:00 and 01:00 name the
    // same device.
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

/// Devices of a lease may be different GPUs of a node, and on different nodes; no kernel of one
/// reaches into another.
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

/// No device here does atomic operations on memory of another machine or device: each asked for has
/// no capability.
///
/// # Safety
/// The lists are null or have `count` items.
unsafe fn no_atomics(capabilities: *mut u32, operations: *const u32, count: u32) -> Result<(), CUresult> {
    if count == 0 || capabilities.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the same contract.
    let operations = unsafe { crate::session::issue::list(operations, count.into())? };
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

/// Contexts that have only some multiprocessors are a matter of NVIDIA's MPS; a lease's share is
/// one of time.
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
