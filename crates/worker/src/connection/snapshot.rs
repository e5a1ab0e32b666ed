//! What is fixed about a device while a lease lasts: asked of the driver once, answered by the
//! client from then on.

use std::ffi::CStr;

use sluice_cuda::{CUdevice_attribute, CUlimit, CUresult, CUuuid, DriverTable};
use sluice_wire::control::DeviceSnapshot;

use crate::memory::chunks::CHUNK;
use crate::modules::builds;

/// Device attributes that are asked for: all that CUDA 13 names and some more (CUDA Driver API,
/// `CUdevice_attribute`); what the driver does not know is left out.
const ATTRIBUTES: std::ops::Range<u32> = 1..160;
/// Limits that are asked for (CUDA Driver API, `CUlimit`).
const LIMITS: std::ops::Range<u32> = 0..CUlimit::MAX.0;

/// Describes the device `ordinal`. `memory` is what the client may have of it, in bytes. Stream
/// priorities and limits are those of the calling thread's context; without one they are left at
/// nothing.
pub(crate) fn take(
    table: &DriverTable,
    ordinal: i32,
    memory: u64,
    is_software: bool,
) -> Result<DeviceSnapshot, CUresult> {
    Ok(DeviceSnapshot {
        name: name(table, ordinal)?,
        uuid: uuid(table, ordinal)?,
        memory,
        driver_version: driver_version(table)?,
        attributes: attributes(table, ordinal)?,
        limits: limits(table),
        stream_priorities: stream_priorities(table),
        is_software,
        functions: table.present(),
        chunk: CHUNK,
        build: builds::number(),
    })
}

/// How many devices the driver has.
pub(crate) fn count(table: &DriverTable) -> Result<i32, CUresult> {
    let get = table.cuDeviceGetCount.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut count = 0;
    // SAFETY: the driver writes one number to a local.
    unsafe { get(&mut count) }.ok()?;
    Ok(count)
}

/// Bytes of a device's memory.
pub(crate) fn memory(table: &DriverTable, ordinal: i32) -> Result<u64, CUresult> {
    let get = table.cuDeviceTotalMem_v2.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut bytes = 0;
    // SAFETY: the driver writes one number to a local.
    unsafe { get(&mut bytes, ordinal) }.ok()?;
    Ok(bytes as u64)
}

fn name(table: &DriverTable, ordinal: i32) -> Result<String, CUresult> {
    let get = table.cuDeviceGetName.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut name = [0_u8; 256];
    // SAFETY: the driver writes at most as many bytes as the call says.
    unsafe { get(name.as_mut_ptr().cast(), name.len() as i32, ordinal) }.ok()?;
    let name = CStr::from_bytes_until_nul(&name).map_err(|_| CUresult::UNKNOWN)?;
    Ok(name.to_string_lossy().into_owned())
}

fn uuid(table: &DriverTable, ordinal: i32) -> Result<[u8; 16], CUresult> {
    let get = table.cuDeviceGetUuid_v2.or(table.cuDeviceGetUuid).ok_or(CUresult::NOT_SUPPORTED)?;
    let mut uuid = CUuuid::default();
    // SAFETY: the driver writes one identifier to a local.
    unsafe { get(&mut uuid, ordinal) }.ok()?;
    Ok(uuid.bytes)
}

fn driver_version(table: &DriverTable) -> Result<u32, CUresult> {
    let get = table.cuDriverGetVersion.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut version = 0;
    // SAFETY: the driver writes one number to a local.
    unsafe { get(&mut version) }.ok()?;
    u32::try_from(version).map_err(|_| CUresult::UNKNOWN)
}

fn attributes(table: &DriverTable, ordinal: i32) -> Result<Vec<(CUdevice_attribute, i32)>, CUresult> {
    let get = table.cuDeviceGetAttribute.ok_or(CUresult::NOT_SUPPORTED)?;
    let value = |attribute| {
        let mut value = 0;
        // SAFETY: the driver writes one number to a local.
        unsafe { get(&mut value, attribute, ordinal) }.is_success().then_some((attribute, value))
    };
    Ok(ATTRIBUTES.map(CUdevice_attribute).filter_map(value).collect())
}

fn limits(table: &DriverTable) -> Vec<(CUlimit, u64)> {
    let Some(get) = table.cuCtxGetLimit else { return Vec::new() };
    let value = |limit| {
        let mut value = 0;
        // SAFETY: the driver writes one number to a local.
        unsafe { get(&mut value, limit) }.is_success().then_some((limit, value as u64))
    };
    LIMITS.map(CUlimit).filter_map(value).collect()
}

fn stream_priorities(table: &DriverTable) -> (i32, i32) {
    let (mut lowest, mut highest) = (0, 0);
    if let Some(get) = table.cuCtxGetStreamPriorityRange {
        // SAFETY: the driver writes two numbers to locals.
        if !unsafe { get(&mut lowest, &mut highest) }.is_success() {
            return (0, 0);
        }
    }
    (lowest, highest)
}
