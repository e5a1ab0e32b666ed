//! Host memory that programs make with `cuMemCreate` and map themselves
//! (`CU_MEM_LOCATION_TYPE_HOST` and its NUMA forms; CUDA Driver API, section "Virtual Memory
//! Management").
//!
//! It is a file in this process's memory. While it is mapped, the program has its pages at the
//! addresses of the mapping, the device has memory of its own there, and both are a [`mirror`], as
//! for mapped host memory of `cuMemHostAlloc`. So a mapping counts towards the lease's device
//! memory. What is in the file stays when a program maps it elsewhere, which is how buffers grow.

use std::os::fd::{FromRawFd, OwnedFd};

use sluice_cuda::*;

use crate::host_memory::{self, mirror};
use crate::session::Session;

/// Whether a place is one of the host's.
pub(crate) fn is_host(location: CUmemLocation) -> bool {
    use CUmemLocationType as Kind;
    matches!(location.kind, Kind::HOST | Kind::HOST_NUMA | Kind::HOST_NUMA_CURRENT)
}

/// Makes the file. The memory of the machine is taken as it is written to.
pub(crate) fn make(session: &Session, bytes: u64, prop: &CUmemAllocationProp) -> Result<OwnedFd, CUresult> {
    if !session.devices.iter().all(|device| device.mints_addresses) {
        return Err(CUresult::NOT_SUPPORTED);
    }
    if prop.requestedHandleTypes != CUmemAllocationHandleType::NONE {
        crate::say_once!("host memory of cuMemCreate cannot be shared with other processes");
        return Err(CUresult::NOT_SUPPORTED);
    }
    let length = i64::try_from(bytes).map_err(|_| CUresult::INVALID_VALUE)?;
    // SAFETY: a name that ends with NUL; the result is checked.
    let file = unsafe { libc::memfd_create(c"sluice host memory".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return Err(CUresult::OPERATING_SYSTEM);
    }
    // SAFETY: it was opened just now, and this is its only owner.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    // SAFETY: a descriptor of ours.
    match unsafe { libc::ftruncate(std::os::fd::AsRawFd::as_raw_fd(&file), length) } {
        0 => Ok(file),
        _ => Err(CUresult::OUT_OF_MEMORY),
    }
}

/// Gives the program its side of a mapping that the device has already. What the file contains goes
/// to the device with the next work.
pub(crate) fn map(
    session: &'static Session,
    device: CUdevice,
    (start, bytes): (u64, u64),
    file: &OwnedFd,
) -> Result<(), CUresult> {
    mirror::add_file(session, device, (start, bytes), file)?;
    host_memory::insert_mapped(start..start + bytes);
    Ok(())
}

/// Takes the program's side of a mapping away, once it has what the devices have written.
pub(crate) fn unmap(session: &'static Session, start: u64) -> Result<(), CUresult> {
    session.devices.iter().try_for_each(|device| device.wait(session))?;
    mirror::fetch(session)?;
    host_memory::remove_mapped(start);
    mirror::forget(start);
    Ok(())
}
