//! Types of the NVML API, as far as this library fills them (NVML API Reference, "Data
//! Structures").

use std::ffi::{c_char, c_uint, c_ulonglong};

/// `nvmlReturn_t`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Return(pub(crate) c_uint);

impl Return {
    pub(crate) const SUCCESS: Return = Return(0);
    pub(crate) const UNINITIALIZED: Return = Return(1);
    pub(crate) const INVALID_ARGUMENT: Return = Return(2);
    pub(crate) const NOT_SUPPORTED: Return = Return(3);
    pub(crate) const NOT_FOUND: Return = Return(6);
    pub(crate) const INSUFFICIENT_SIZE: Return = Return(7);
    pub(crate) const DRIVER_NOT_LOADED: Return = Return(9);
    pub(crate) const GPU_IS_LOST: Return = Return(15);
    pub(crate) const ARGUMENT_VERSION_MISMATCH: Return = Return(25);
    pub(crate) const UNKNOWN: Return = Return(999);
}

/// `nvmlDevice_t`: the index of a leased GPU, plus one, so that null stays invalid.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device(pub(crate) usize);

/// `nvmlMemory_t`, in bytes.
#[repr(C)]
pub(crate) struct Memory {
    pub(crate) total: c_ulonglong,
    pub(crate) free: c_ulonglong,
    pub(crate) used: c_ulonglong,
}

/// `nvmlMemory_v2_t`, in bytes.
#[repr(C)]
pub(crate) struct MemoryV2 {
    pub(crate) version: c_uint,
    pub(crate) total: c_ulonglong,
    pub(crate) reserved: c_ulonglong,
    pub(crate) free: c_ulonglong,
    pub(crate) used: c_ulonglong,
}

/// `nvmlUtilization_t`, in percent.
#[repr(C)]
pub(crate) struct Utilization {
    pub(crate) gpu: c_uint,
    pub(crate) memory: c_uint,
}

/// `nvmlPciInfo_t` as versions 2 and 3 of the call fill it.
#[repr(C)]
pub(crate) struct PciInfo {
    pub(crate) bus_id_legacy: [c_char; 16],
    pub(crate) domain: c_uint,
    pub(crate) bus: c_uint,
    pub(crate) device: c_uint,
    pub(crate) pci_device_id: c_uint,
    pub(crate) pci_sub_system_id: c_uint,
    pub(crate) bus_id: [c_char; 32],
}

/// `nvmlProcessInfo_t` as versions 2 and 3 of the call fill it.
#[repr(C)]
pub(crate) struct ProcessInfo {
    pub(crate) pid: c_uint,
    /// Bytes.
    pub(crate) used_gpu_memory: c_ulonglong,
    pub(crate) gpu_instance_id: c_uint,
    pub(crate) compute_instance_id: c_uint,
}

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
pub(crate) struct ProcessInfoV1 {
    pub(crate) pid: c_uint,
    /// Bytes.
    pub(crate) used_gpu_memory: c_ulonglong,
}

/// The version word of a structure: its size, and its version in the top byte.
pub(crate) const fn version_of<T>(version: c_uint) -> c_uint {
    size_of::<T>() as c_uint | version << 24
}

// The layouts that programs compiled against NVIDIA's header have.
const _: () = assert!(size_of::<Memory>() == 24);
const _: () = assert!(version_of::<MemoryV2>(2) == 0x0200_0028);
const _: () = assert!(size_of::<PciInfo>() == 68);
const _: () = assert!(size_of::<ProcessInfo>() == 24);
