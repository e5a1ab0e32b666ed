//! The driver calls that make memory, map it, and take it away again.

use sluice_cuda::{
    CUdevice_attribute, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType, CUresult,
    DriverTable,
};

use crate::session::device::Device;

/// Physical memory on a device.
pub(crate) fn physical(
    table: &DriverTable,
    (ordinal, handle_types): (i32, CUmemAllocationHandleType),
    bytes: u64,
) -> Result<CUmemGenericAllocationHandle, CUresult> {
    physical_at(table, on_device(ordinal), handle_types, bytes)
}

pub(super) fn on_device(ordinal: i32) -> CUmemLocation {
    CUmemLocation { kind: CUmemLocationType::DEVICE, id: ordinal }
}

pub(super) fn physical_at(
    table: &DriverTable,
    location: CUmemLocation,
    handle_types: CUmemAllocationHandleType,
    bytes: u64,
) -> Result<CUmemGenericAllocationHandle, CUresult> {
    let create = table.cuMemCreate.ok_or(CUresult::NOT_SUPPORTED)?;
    let size = usize::try_from(bytes).map_err(|_| CUresult::OUT_OF_MEMORY)?;
    let wanted = CUmemAllocationProp {
        kind: CUmemAllocationType::PINNED,
        requestedHandleTypes: handle_types,
        location,
        win32HandleMetaData: std::ptr::null_mut(),
        compressionType: 0,
        gpuDirectRDMACapable: 0,
        usage: 0,
        reserved: [0; 4],
    };
    let mut handle = CUmemGenericAllocationHandle::default();
    // SAFETY: the driver writes one handle to a local and reads the properties.
    unsafe { create(&mut handle, size, &wanted, 0) }.ok()?;
    Ok(handle)
}

/// Memory of this machine there, which the processor and these devices can use.
pub(super) fn back_on_host(
    table: &DriverTable,
    devices: &[Device],
    address: u64,
    bytes: u64,
) -> Result<CUmemGenericAllocationHandle, CUresult> {
    let ask = table.cuDeviceGetAttribute.ok_or(CUresult::NOT_SUPPORTED)?;
    let first = devices.first().ok_or(CUresult::INVALID_DEVICE)?;
    // Near that device; negative where the machine has one part only.
    let mut id = 0;
    // SAFETY: the driver writes one number to a local.
    unsafe { ask(&mut id, CUdevice_attribute::HOST_NUMA_ID, first.ordinal) }.ok()?;
    let location = CUmemLocation { kind: CUmemLocationType::HOST_NUMA, id: id.max(0) };
    let users: Vec<_> = devices.iter().map(|device| on_device(device.ordinal)).chain([location]).collect();
    let handle = physical_at(table, location, CUmemAllocationHandleType::NONE, bytes)?;
    map(table, handle, &users, (address, bytes))
}

/// Maps physical memory, and makes it accessible to `users`; if that fails it is given back.
pub(super) fn map(
    table: &DriverTable,
    handle: CUmemGenericAllocationHandle,
    users: &[CUmemLocation],
    (address, bytes): (u64, u64),
) -> Result<CUmemGenericAllocationHandle, CUresult> {
    let map = table.cuMemMap.ok_or(CUresult::NOT_SUPPORTED)?;
    let size = usize::try_from(bytes).map_err(|_| CUresult::OUT_OF_MEMORY)?;
    // SAFETY: the range is vacant and inside the session's own reservation.
    let mapped = unsafe { map(address, size, 0, handle, 0) }.ok();
    let accessible = mapped.and_then(|()| give_access(table, users, address, bytes));
    if let Err(result) = accessible {
        // Not mapped is what `unback` answers when the map failed; the handle is released either
        // way.
        let _ = unback(table, address, bytes, handle);
        return Err(result);
    }
    Ok(handle)
}

/// Lets all of `users` read and write a range that is mapped whole.
pub(super) fn give_access(
    table: &DriverTable,
    users: &[CUmemLocation],
    address: u64,
    bytes: u64,
) -> Result<(), CUresult> {
    let set_access = table.cuMemSetAccess.ok_or(CUresult::NOT_SUPPORTED)?;
    let size = usize::try_from(bytes).map_err(|_| CUresult::OUT_OF_MEMORY)?;
    users.iter().try_for_each(|&location| {
        let access = CUmemAccessDesc { location, flags: CUmemAccess_flags::READWRITE };
        // SAFETY: the range is mapped, and inside the session's own reservation; the driver reads
        // one description.
        unsafe { set_access(address, size, &access, 1) }.ok()
    })
}

pub(super) fn unmap(table: &DriverTable, address: u64, bytes: u64) -> Result<(), CUresult> {
    let unmap = table.cuMemUnmap.ok_or(CUresult::NOT_SUPPORTED)?;
    // SAFETY: the range is inside the session's reservation, and its user has given it up.
    unsafe { unmap(address, bytes as usize) }.ok()
}

pub(super) fn unback(
    table: &DriverTable,
    address: u64,
    bytes: u64,
    handle: CUmemGenericAllocationHandle,
) -> Result<(), CUresult> {
    let release = table.cuMemRelease.ok_or(CUresult::NOT_SUPPORTED)?;
    let unmapped = unmap(table, address, bytes);
    // SAFETY: the handle came from `cuMemCreate`, and this is its only release.
    unsafe { release(handle) }.ok()?;
    unmapped
}
