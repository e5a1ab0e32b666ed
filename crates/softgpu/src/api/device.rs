//! Start-up, errors and devices (CUDA Driver API: Initialization, Error Handling, Version and
//! Device Management).

use std::ffi::{CStr, c_char};

use sluice_cuda::{
    CUdevice, CUdevice_P2PAttribute, CUdevice_attribute as A, CUdevprop, CUmemoryPool, CUresult, CUuuid,
};

use crate::base::status::{Result, Status, call, put, put_optional, require};
use crate::compiler::software::default_setup;
use crate::device::machine::{BLOCK_MAX, GRID_MAX};
use crate::device::pool::Pool;
use crate::device::{Device, device, driver, init};

/// The CUDA version that this driver speaks: 1000 * major + 10 * minor. It is that of the newest
/// toolkit whose PTX is read: compilers hand over machine code in place of PTX where the driver is
/// older than they are.
pub(crate) const DRIVER_VERSION: i32 = 13050;

pub(crate) unsafe extern "C" fn cuInit(flags: u32) -> CUresult {
    call(|| if flags == 0 { init(default_setup) } else { Err(Status::INVALID_VALUE) })
}

pub(crate) unsafe extern "C" fn cuDriverGetVersion(version: *mut i32) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(version, DRIVER_VERSION) })
}

pub(crate) unsafe extern "C" fn cuGetErrorName(error: CUresult, text: *mut *const c_char) -> CUresult {
    // SAFETY: passed on.
    call(|| unsafe { put_text(error.name(), text) })
}

pub(crate) unsafe extern "C" fn cuGetErrorString(error: CUresult, text: *mut *const c_char) -> CUresult {
    // SAFETY: passed on.
    call(|| unsafe { put_text(error.description(), text) })
}

/// # Safety
/// `place` is an output argument.
unsafe fn put_text(text: Option<&'static CStr>, place: *mut *const c_char) -> Result<()> {
    // SAFETY: an output argument by contract.
    unsafe { put(place, text.map_or(std::ptr::null(), CStr::as_ptr)) }?;
    text.map(drop).ok_or(Status::INVALID_VALUE)
}

pub(crate) unsafe extern "C" fn cuDeviceGet(place: *mut CUdevice, ordinal: i32) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(place, device(ordinal)?.ordinal as CUdevice) })
}

pub(crate) unsafe extern "C" fn cuDeviceGetCount(count: *mut i32) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(count, driver()?.devices.len() as i32) })
}

pub(crate) unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: i32, dev: CUdevice) -> CUresult {
    // SAFETY: `name` has room for `len` bytes by contract.
    call(|| unsafe { put_string(name, len, &device(dev)?.name) })
}

/// Writes a string cut to `len` bytes, its NUL included.
///
/// # Safety
/// `place` is null or has room for `len` bytes.
unsafe fn put_string(place: *mut c_char, len: i32, text: &str) -> Result<()> {
    let len =
        usize::try_from(len).ok().filter(|&len| len > 0 && !place.is_null()).ok_or(Status::INVALID_VALUE)?;
    let bytes = &text.as_bytes()[..text.len().min(len - 1)];
    // SAFETY: `bytes` and the NUL are at most `len` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.cast(), bytes.len());
        place.add(bytes.len()).write(0);
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn cuDeviceGetUuid(uuid: *mut CUuuid, dev: CUdevice) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(uuid, device(dev)?.uuid) })
}

pub(crate) unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(bytes, device(dev)?.heap.total() as usize) })
}

pub(crate) unsafe extern "C" fn cuDeviceComputeCapability(
    major: *mut i32,
    minor: *mut i32,
    dev: CUdevice,
) -> CUresult {
    call(|| {
        let capability = device(dev)?.limits.capability;
        // SAFETY: output arguments by contract.
        unsafe { put(major, capability.major as i32).and(put(minor, capability.minor as i32)) }
    })
}

pub(crate) unsafe extern "C" fn cuDeviceGetAttribute(
    place: *mut i32,
    attribute: A,
    dev: CUdevice,
) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(place, attribute_of(device(dev)?, attribute)?) })
}

fn attribute_of(device: &Device, attribute: A) -> Result<i32> {
    match attribute.0 != 0 && attribute < A::MAX {
        true => Ok(device.attribute(attribute)),
        false => Err(Status::INVALID_VALUE),
    }
}

pub(crate) unsafe extern "C" fn cuDeviceGetProperties(place: *mut CUdevprop, dev: CUdevice) -> CUresult {
    call(|| {
        let device = device(dev)?;
        let attribute = |attribute| attribute_of(device, attribute);
        let properties = CUdevprop {
            maxThreadsPerBlock: attribute(A::MAX_THREADS_PER_BLOCK)?,
            maxThreadsDim: BLOCK_MAX.map(|n| n as i32),
            maxGridSize: GRID_MAX.map(|n| n as i32),
            sharedMemPerBlock: attribute(A::MAX_SHARED_MEMORY_PER_BLOCK)?,
            totalConstantMemory: attribute(A::TOTAL_CONSTANT_MEMORY)?,
            SIMDWidth: attribute(A::WARP_SIZE)?,
            memPitch: attribute(A::MAX_PITCH)?,
            regsPerBlock: attribute(A::MAX_REGISTERS_PER_BLOCK)?,
            clockRate: attribute(A::CLOCK_RATE)?,
            textureAlign: attribute(A::TEXTURE_ALIGNMENT)?,
        };
        // SAFETY: an output argument by contract.
        unsafe { put(place, properties) }
    })
}

/// Domain, bus and device.
fn pci_name(device: &Device) -> String {
    let [domain, bus, number] =
        [A::PCI_DOMAIN_ID, A::PCI_BUS_ID, A::PCI_DEVICE_ID].map(|part| device.attribute(part));
    format!("{domain:04x}:{bus:02x}:{number:02x}.0")
}

pub(crate) unsafe extern "C" fn cuDeviceGetPCIBusId(place: *mut c_char, len: i32, dev: CUdevice) -> CUresult {
    // SAFETY: `place` has room for `len` bytes by contract.
    call(|| unsafe { put_string(place, len, &pci_name(device(dev)?)) })
}

pub(crate) unsafe extern "C" fn cuDeviceGetByPCIBusId(place: *mut CUdevice, name: *const c_char) -> CUresult {
    call(|| {
        if name.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: a C string by contract.
        let name = unsafe { CStr::from_ptr(name) };
        let same = |device: &&Device| pci_name(device).as_bytes().eq_ignore_ascii_case(name.to_bytes());
        let device = driver()?.devices.iter().find(same).ok_or(Status::INVALID_VALUE)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, device.ordinal as CUdevice) }
    })
}

pub(crate) unsafe extern "C" fn cuDeviceCanAccessPeer(
    place: *mut i32,
    dev: CUdevice,
    peer: CUdevice,
) -> CUresult {
    // Memory of all devices is the machine's; a device is not its own peer.
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(place, i32::from(device(dev)?.ordinal != device(peer)?.ordinal)) })
}

pub(crate) unsafe extern "C" fn cuDeviceGetP2PAttribute(
    place: *mut i32,
    attribute: CUdevice_P2PAttribute,
    from: CUdevice,
    to: CUdevice,
) -> CUresult {
    call(|| {
        let is_itself = device(from)?.ordinal == device(to)?.ordinal;
        let value = match attribute {
            CUdevice_P2PAttribute::PERFORMANCE_RANK => 0,
            CUdevice_P2PAttribute::ACCESS_SUPPORTED | CUdevice_P2PAttribute::NATIVE_ATOMIC_SUPPORTED => 1,
            CUdevice_P2PAttribute::ACCESS_ACCESS_SUPPORTED
            | CUdevice_P2PAttribute::ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED => 0,
            _ => return Err(Status::INVALID_VALUE),
        };
        require(place)?;
        if is_itself {
            return Err(Status::INVALID_DEVICE);
        }
        // SAFETY: an output argument by contract.
        unsafe { put(place, value) }
    })
}

pub(crate) unsafe extern "C" fn cuDeviceGetDefaultMemPool(
    place: *mut CUmemoryPool,
    dev: CUdevice,
) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(place, CUmemoryPool(Pool::default_of(device(dev)?).handle)) })
}

pub(crate) unsafe extern "C" fn cuDeviceGetMemPool(place: *mut CUmemoryPool, dev: CUdevice) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(place, CUmemoryPool(Pool::of_device(device(dev)?).handle)) })
}

pub(crate) unsafe extern "C" fn cuDeviceSetMemPool(dev: CUdevice, pool: CUmemoryPool) -> CUresult {
    call(|| {
        let (device, pool) = (device(dev)?, Pool::get(pool)?);
        if pool.device()?.ordinal != device.ordinal {
            return Err(Status::INVALID_VALUE);
        }
        *device.pool.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = pool.handle;
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuDeviceGetLuid(
    luid: *mut c_char,
    mask: *mut u32,
    dev: CUdevice,
) -> CUresult {
    call(|| {
        device(dev)?;
        // LUIDs are Windows' names for devices.
        // SAFETY: output arguments by contract.
        unsafe { put_optional(luid.cast::<[u8; 8]>(), [0; 8]) };
        // SAFETY: as above.
        unsafe { put_optional(mask, 0) };
        Ok(())
    })
}

/// Only a profiler makes these do something, and none can attach here; CUDA defines both without
/// one.
pub(crate) unsafe extern "C" fn cuProfilerStart() -> CUresult {
    call(|| crate::context::current().map(drop))
}

pub(crate) unsafe extern "C" fn cuProfilerStop() -> CUresult {
    call(|| crate::context::current().map(drop))
}
