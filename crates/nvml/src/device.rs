//! What NVML says about one leased GPU.

use std::ffi::{CStr, c_char, c_int, c_uint};

use crate::abi::{
    Device, Memory, MemoryV2, PciInfo, ProcessInfo, ProcessInfoV1, Return, Utilization, version_of,
};
use crate::lease::{self, Gpu};
use crate::system::{guard, write, write_text};

// ---- Finding a GPU ----

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> Return {
    // SAFETY: the caller passes a valid pointer or null.
    guard(|| unsafe { write(count, lease::snapshot()?.gpus.len() as c_uint) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCount(count: *mut c_uint) -> Return {
    // SAFETY: the caller's promise is the same.
    unsafe { nvmlDeviceGetCount_v2(count) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut Device) -> Return {
    // SAFETY: the caller passes a valid pointer or null.
    guard(|| unsafe {
        if index as usize >= lease::snapshot()?.gpus.len() {
            return Err(Return::INVALID_ARGUMENT);
        }
        write(device, Device(index as usize + 1))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByIndex(index: c_uint, device: *mut Device) -> Return {
    // SAFETY: the caller's promise is the same.
    unsafe { nvmlDeviceGetHandleByIndex_v2(index, device) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut Device) -> Return {
    // SAFETY: the caller passes a NUL-terminated string and a valid pointer, or nulls.
    guard(|| unsafe { find(uuid, device, |gpu, text| same_uuid(&gpu.uuid, text)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: *const c_char, device: *mut Device) -> Return {
    // SAFETY: the caller passes a NUL-terminated string and a valid pointer, or nulls.
    guard(|| unsafe { find(bus_id, device, |gpu, text| same_bus_id(&gpu.bus_id(), text)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId(bus_id: *const c_char, device: *mut Device) -> Return {
    // SAFETY: the caller's promise is the same.
    unsafe { nvmlDeviceGetHandleByPciBusId_v2(bus_id, device) }
}

/// Whether one GPU can reach the other's memory. Those of a lease reach their own: copies between
/// two go through the node.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetP2PStatus(
    first: Device,
    second: Device,
    _capability: c_uint,
    status: *mut c_uint,
) -> Return {
    /// `nvmlGpuP2PStatus_t`.
    const OK: c_uint = 0;
    const NOT_SUPPORTED: c_uint = 5;
    // SAFETY: the caller passes a valid pointer or null.
    guard(|| unsafe {
        let count = lease::snapshot()?.gpus.len();
        if !(1..=count).contains(&first.0) || !(1..=count).contains(&second.0) {
            return Err(Return::INVALID_ARGUMENT);
        }
        write(status, if first.0 == second.0 { OK } else { NOT_SUPPORTED })
    })
}

/// Bus ids are written with a domain of four or of eight digits.
fn same_bus_id(left: &str, right: &str) -> bool {
    left.trim_start_matches('0').eq_ignore_ascii_case(right.trim_start_matches('0'))
}

/// UUIDs are known with the kind of device before them, `GPU-`, and without: CUDA has the latter.
fn same_uuid(own: &str, wanted: &str) -> bool {
    let bare = own.split_once('-').map_or("", |(_, bare)| bare);
    [own, bare].iter().any(|known| known.eq_ignore_ascii_case(wanted))
}

/// # Safety
/// `wanted` is null or a NUL-terminated string; `device` is null or valid for a write.
unsafe fn find(
    wanted: *const c_char,
    device: *mut Device,
    matches: fn(&Gpu, &str) -> bool,
) -> Result<(), Return> {
    if wanted.is_null() {
        return Err(Return::INVALID_ARGUMENT);
    }
    // SAFETY: the caller's promise, and it is not null.
    let wanted = unsafe { CStr::from_ptr(wanted) }.to_str().map_err(|_| Return::INVALID_ARGUMENT)?;
    let gpus = lease::snapshot()?.gpus;
    let index = gpus.iter().position(|gpu| matches(gpu, wanted)).ok_or(Return::NOT_FOUND)?;
    // SAFETY: the caller's promise.
    unsafe { write(device, Device(index + 1)) }
}

/// The GPU behind a handle, as it is now.
fn gpu_of(device: Device) -> Result<Gpu, Return> {
    let index = device.0.checked_sub(1).ok_or(Return::INVALID_ARGUMENT)?;
    lease::snapshot()?.gpus.into_iter().nth(index).ok_or(Return::INVALID_ARGUMENT)
}

// ---- Which GPU it is ----

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetIndex(device: Device, index: *mut c_uint) -> Return {
    // SAFETY: the caller passes a valid pointer or null.
    guard(|| unsafe { gpu_of(device).and_then(|_| write(index, device.0 as c_uint - 1)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMinorNumber(device: Device, minor: *mut c_uint) -> Return {
    // SAFETY: the caller passes a valid pointer or null.
    unsafe { nvmlDeviceGetIndex(device, minor) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetName(device: Device, name: *mut c_char, length: c_uint) -> Return {
    // SAFETY: the caller passes a buffer of `length` bytes.
    guard(|| unsafe { write_text(name, length, &gpu_of(device)?.name) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUUID(device: Device, uuid: *mut c_char, length: c_uint) -> Return {
    // SAFETY: the caller passes a buffer of `length` bytes.
    guard(|| unsafe { write_text(uuid, length, &gpu_of(device)?.uuid) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: Device,
    major: *mut c_int,
    minor: *mut c_int,
) -> Return {
    // SAFETY: the caller passes valid pointers or nulls.
    guard(|| unsafe {
        let (of_major, of_minor) = gpu_of(device)?.compute_capability;
        write(major, of_major)?;
        write(minor, of_minor)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(device: Device, info: *mut PciInfo) -> Return {
    // SAFETY: the caller passes a valid pointer or null.
    guard(|| unsafe {
        let gpu = gpu_of(device)?;
        let mut filled = PciInfo {
            bus_id_legacy: [0; 16],
            domain: gpu.pci.0,
            bus: gpu.pci.1,
            device: gpu.pci.2,
            pci_device_id: 0,
            pci_sub_system_id: 0,
            bus_id: [0; 32],
        };
        let bus_id = gpu.bus_id();
        write_text(filled.bus_id.as_mut_ptr(), 32, &bus_id)?;
        write_text(filled.bus_id_legacy.as_mut_ptr(), 16, &bus_id[4..])?;
        write(info, filled)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetPciInfo_v2(device: Device, info: *mut PciInfo) -> Return {
    // SAFETY: the caller's promise is the same.
    unsafe { nvmlDeviceGetPciInfo_v3(device, info) }
}

// ---- What the lease holds and uses ----

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: Device, memory: *mut Memory) -> Return {
    // SAFETY: the caller passes a valid pointer or null.
    guard(|| unsafe {
        let gpu = gpu_of(device)?;
        let used = gpu.used_memory.min(gpu.memory);
        write(memory, Memory { total: gpu.memory, free: gpu.memory - used, used })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Device, memory: *mut MemoryV2) -> Return {
    // SAFETY: the caller passes a pointer to a structure whose version word is set, or null.
    guard(|| unsafe {
        if memory.is_null() {
            return Err(Return::INVALID_ARGUMENT);
        }
        let version = (*memory).version;
        if version != version_of::<MemoryV2>(2) {
            return Err(Return::ARGUMENT_VERSION_MISMATCH);
        }
        let gpu = gpu_of(device)?;
        let used = gpu.used_memory.min(gpu.memory);
        write(memory, MemoryV2 { version, total: gpu.memory, reserved: 0, free: gpu.memory - used, used })
    })
}

/// `gpu`: the part of the time since the last query in which the lease's kernels ran. `memory`, the
/// time in which the memory controller worked, is not known per lease and stays 0.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUtilizationRates(device: Device, utilization: *mut Utilization) -> Return {
    // SAFETY: the caller passes a valid pointer or null.
    guard(|| unsafe { write(utilization, Utilization { gpu: gpu_of(device)?.busy_percent, memory: 0 }) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: Device,
    count: *mut c_uint,
    processes: *mut ProcessInfo,
) -> Return {
    // The instance ids say "no MIG".
    let fill = |process: &lease::Process| ProcessInfo {
        pid: process.pid,
        used_gpu_memory: process.used_memory,
        gpu_instance_id: c_uint::MAX,
        compute_instance_id: c_uint::MAX,
    };
    // SAFETY: the caller passes room for `*count` structures.
    guard(|| unsafe { list(&gpu_of(device)?.processes, count, processes, fill) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v2(
    device: Device,
    count: *mut c_uint,
    processes: *mut ProcessInfo,
) -> Return {
    // SAFETY: the caller's promise is the same.
    unsafe { nvmlDeviceGetComputeRunningProcesses_v3(device, count, processes) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses(
    device: Device,
    count: *mut c_uint,
    processes: *mut ProcessInfoV1,
) -> Return {
    let fill =
        |process: &lease::Process| ProcessInfoV1 { pid: process.pid, used_gpu_memory: process.used_memory };
    // SAFETY: the caller passes room for `*count` structures.
    guard(|| unsafe { list(&gpu_of(device)?.processes, count, processes, fill) })
}

/// No leased GPU draws pictures.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: Device,
    count: *mut c_uint,
    _processes: *mut ProcessInfo,
) -> Return {
    // SAFETY: the caller passes a valid pointer or null.
    guard(|| unsafe { gpu_of(device).and_then(|_| write(count, 0)) })
}

/// The calling convention of NVML's lists: too little room gives the count and an error.
///
/// # Safety
/// `count` is null or valid; `items` has room for `*count` of them.
unsafe fn list<T>(
    processes: &[lease::Process],
    count: *mut c_uint,
    items: *mut T,
    fill: impl Fn(&lease::Process) -> T,
) -> Result<(), Return> {
    if count.is_null() {
        return Err(Return::INVALID_ARGUMENT);
    }
    // SAFETY: not null, and valid by the caller's promise.
    let room = unsafe { count.replace(processes.len() as c_uint) } as usize;
    if processes.is_empty() {
        return Ok(());
    }
    if room < processes.len() || items.is_null() {
        return Err(Return::INSUFFICIENT_SIZE);
    }
    for (at, process) in processes.iter().enumerate() {
        // SAFETY: `at` is below the room that the caller promised.
        unsafe { items.add(at).write(fill(process)) };
    }
    Ok(())
}

// ---- What every leased GPU is ----

/// No exclusive mode: any process under the lease may use the GPU.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeMode(device: Device, mode: *mut c_uint) -> Return {
    // SAFETY: the caller passes a valid pointer or null.
    guard(|| unsafe { gpu_of(device).and_then(|_| write(mode, 0)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceIsMigDeviceHandle(device: Device, is_mig: *mut c_uint) -> Return {
    // SAFETY: the caller passes a valid pointer or null.
    guard(|| unsafe { gpu_of(device).and_then(|_| write(is_mig, 0)) })
}

/// A display is attached to none.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetDisplayActive(device: Device, active: *mut c_uint) -> Return {
    // SAFETY: the caller passes a valid pointer or null.
    guard(|| unsafe { gpu_of(device).and_then(|_| write(active, 0)) })
}

/// The GPU stays ready between programs: the node holds it.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetPersistenceMode(device: Device, mode: *mut c_uint) -> Return {
    // SAFETY: the caller passes a valid pointer or null.
    guard(|| unsafe { gpu_of(device).and_then(|_| write(mode, 1)) })
}
