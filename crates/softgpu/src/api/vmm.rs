//! Virtual memory management (CUDA Driver API: Virtual Memory Management).

use std::ffi::c_void;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use sluice_cuda::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType, CUmemGenericAllocationHandle,
    CUmemLocation, CUmemLocationType, CUresult,
};

use crate::base::status::{Result, Status, call, put, require};
use crate::context::current;
use crate::device::driver;
use crate::vmm;

pub(crate) unsafe extern "C" fn cuMemAddressReserve(
    place: *mut CUdeviceptr,
    size: usize,
    alignment: usize,
    hint: CUdeviceptr,
    flags: u64,
) -> CUresult {
    call(|| {
        driver()?;
        require(place)?;
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: an output argument by contract.
        unsafe { put(place, vmm::reserve(size as u64, alignment as u64, hint)?) }
    })
}

pub(crate) unsafe extern "C" fn cuMemAddressFree(address: CUdeviceptr, size: usize) -> CUresult {
    call(|| {
        driver()?;
        vmm::unreserve(address, size as u64)
    })
}

/// # Safety
/// `properties` is null or an input structure.
unsafe fn properties(properties: *const CUmemAllocationProp) -> Result<CUmemAllocationProp> {
    require(properties)?;
    // SAFETY: by this function's contract.
    Ok(unsafe { properties.read_unaligned() })
}

pub(crate) unsafe extern "C" fn cuMemGetAllocationGranularity(
    place: *mut usize,
    prop: *const CUmemAllocationProp,
    option: CUmemAllocationGranularity_flags,
) -> CUresult {
    call(|| {
        driver()?;
        // SAFETY: passed on.
        vmm::check_properties(&unsafe { properties(prop) }?)?;
        if option > CUmemAllocationGranularity_flags::RECOMMENDED {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: an output argument by contract.
        unsafe { put(place, vmm::GRANULARITY as usize) }
    })
}

pub(crate) unsafe extern "C" fn cuMemCreate(
    place: *mut CUmemGenericAllocationHandle,
    size: usize,
    prop: *const CUmemAllocationProp,
    flags: u64,
) -> CUresult {
    call(|| {
        driver()?;
        require(place)?;
        // SAFETY: passed on.
        let properties = unsafe { properties(prop) }?;
        let device = vmm::check_properties(&properties)?;
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let is_shareable = properties.requestedHandleTypes != CUmemAllocationHandleType::NONE;
        let handle = vmm::create(device, size as u64, is_shareable, properties.usage)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUmemGenericAllocationHandle(handle)) }
    })
}

/// The handle is a file descriptor, which the caller owns from then on.
pub(crate) unsafe extern "C" fn cuMemExportToShareableHandle(
    place: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> CUresult {
    call(|| {
        driver()?;
        require(place)?;
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        if kind != CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR {
            return Err(Status::NOT_SUPPORTED);
        }
        let file = vmm::export(handle.0)?;
        // SAFETY: an output argument by contract: for this kind an int.
        unsafe { put(place.cast(), file.into_raw_fd()) }
    })
}

/// The descriptor stays the caller's. Which device's memory it is goes without saying for the
/// current context's.
pub(crate) unsafe extern "C" fn cuMemImportFromShareableHandle(
    place: *mut CUmemGenericAllocationHandle,
    handle: *mut c_void,
    kind: CUmemAllocationHandleType,
) -> CUresult {
    call(|| {
        let device = current()?.device;
        require(place)?;
        if kind != CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR {
            return Err(Status::NOT_SUPPORTED);
        }
        let fd = i32::try_from(handle as usize).map_err(|_| Status::INVALID_VALUE)?;
        // SAFETY: duplicating what is no open descriptor fails, and is reported.
        let file = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
        if file < 0 {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the duplicate was made just now, and has no other owner.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUmemGenericAllocationHandle(vmm::import(device, file)?)) }
    })
}

pub(crate) unsafe extern "C" fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult {
    call(|| {
        driver()?;
        vmm::release(handle.0)
    })
}

pub(crate) unsafe extern "C" fn cuMemRetainAllocationHandle(
    place: *mut CUmemGenericAllocationHandle,
    address: *mut c_void,
) -> CUresult {
    call(|| {
        driver()?;
        require(place)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUmemGenericAllocationHandle(vmm::retain(address as u64)?)) }
    })
}

pub(crate) unsafe extern "C" fn cuMemGetAllocationPropertiesFromHandle(
    place: *mut CUmemAllocationProp,
    handle: CUmemGenericAllocationHandle,
) -> CUresult {
    call(|| {
        driver()?;
        let physical = vmm::physical(handle.0)?;
        let properties = CUmemAllocationProp {
            kind: CUmemAllocationType::PINNED,
            requestedHandleTypes: if physical.is_shareable {
                CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR
            } else {
                CUmemAllocationHandleType::NONE
            },
            location: physical.device.map_or(vmm::HOST, |device| CUmemLocation {
                kind: CUmemLocationType::DEVICE,
                id: device.ordinal as i32,
            }),
            win32HandleMetaData: std::ptr::null_mut(),
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: physical.usage,
            reserved: [0; 4],
        };
        // SAFETY: an output argument by contract.
        unsafe { put(place, properties) }
    })
}

pub(crate) unsafe extern "C" fn cuMemMap(
    address: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> CUresult {
    call(|| {
        driver()?;
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        vmm::map(address, size as u64, offset as u64, handle.0)
    })
}

pub(crate) unsafe extern "C" fn cuMemUnmap(address: CUdeviceptr, size: usize) -> CUresult {
    call(|| {
        driver()?;
        vmm::unmap(address, size as u64)
    })
}

pub(crate) unsafe extern "C" fn cuMemSetAccess(
    address: CUdeviceptr,
    size: usize,
    descriptions: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    call(|| {
        driver()?;
        require(descriptions)?;
        for index in 0..count {
            // SAFETY: an array of `count` elements by contract.
            let description = unsafe { descriptions.add(index).read_unaligned() };
            let device = vmm::device_of(description.location)?;
            let rights = match description.flags {
                CUmemAccess_flags::NONE => libc::PROT_NONE,
                CUmemAccess_flags::READ => libc::PROT_READ,
                CUmemAccess_flags::READWRITE => libc::PROT_READ | libc::PROT_WRITE,
                _ => return Err(Status::INVALID_VALUE),
            };
            vmm::set_access(device, address, size as u64, rights)?;
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuMemGetAccess(
    place: *mut u64,
    location: *const CUmemLocation,
    address: CUdeviceptr,
) -> CUresult {
    call(|| {
        driver()?;
        require(location)?;
        // SAFETY: an input structure by contract.
        let device = vmm::device_of(unsafe { location.read_unaligned() })?;
        let flags = match vmm::access(device, address)? {
            libc::PROT_NONE => CUmemAccess_flags::NONE,
            libc::PROT_READ => CUmemAccess_flags::READ,
            _ => CUmemAccess_flags::READWRITE,
        };
        // SAFETY: an output argument by contract.
        unsafe { put(place, u64::from(flags.0)) }
    })
}
