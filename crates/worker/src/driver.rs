//! From a name to a driver that runs: loading, initialising, contexts, and the range of device
//! addresses. Beside that, what is asked of a driver without a session: what it has
//! ([`probe`]), how fast it is ([`measure`]), how its GPUs fare ([`health`]).

pub(crate) mod health;
#[cfg(test)]
mod loaded_driver_tests;
pub(crate) mod measure;
pub(crate) mod output;
pub(crate) mod own_memory;
pub(crate) mod probe;
pub(crate) mod software;
use std::ops::Range;
use std::path::Path;

use sluice_cuda::{CUcontext, CUmemAllocationHandleType, CUresult, DriverTable, LoadError};
use sluice_recording::Model;

use crate::link::Driver;
use crate::memory::chunks::CHUNK;
use crate::memory::extent;
use crate::session::device::Device;

/// Why a driver does not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DriverError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("the driver's {function} failed: {result:?}")]
    Call { function: &'static str, result: CUresult },
    #[error("the recording driver does not model a GPU {0:?}")]
    Model(String),
    #[error("the driver has no {0}")]
    Missing(&'static str),
    #[error(
        "this driver is of CUDA {}.{}, and Sluice needs one of CUDA 12.4 or later (release 550): update NVIDIA's driver on this machine",
        .0 / 1000, .0 % 1000 / 10
    )]
    TooOld(i32),
    #[error("cannot write the answer: {0}")]
    Output(String),
}

/// How a driver shares events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventSharing {
    /// By 64 bytes that another process of this machine can open.
    Names,
    /// The software GPU's, and the recording driver's: by descriptors.
    Files,
}

impl EventSharing {
    pub(crate) fn of(driver: &Driver) -> EventSharing {
        match driver {
            Driver::Software { .. } | Driver::Recording { .. } => EventSharing::Files,
            Driver::Library { .. } => EventSharing::Names,
        }
    }
}

/// Loads and initialises a driver.
pub(crate) fn start(driver: &Driver) -> Result<DriverTable, DriverError> {
    let table = match driver {
        Driver::Software { memory } => crate::driver::software::table(memory),
        Driver::Recording { model, count } => {
            let model = Model::from_name(model).ok_or_else(|| DriverError::Model(model.clone()))?;
            sluice_recording::table(model, *count as usize)
        }
        Driver::Library { path } => crate::process::calls::noted(DriverTable::load(Path::new(path))?),
    };
    let init = table.cuInit.ok_or(DriverError::Missing("cuInit"))?;
    // SAFETY: the table is a CUDA driver's.
    check("cuInit", unsafe { init(0) })?;
    // What a kernel's parameters are like is asked of the driver.
    if table.cuFuncGetParamInfo.is_none() {
        return Err(DriverError::TooOld(version(&table)));
    }
    Ok(table)
}

/// As `cuDriverGetVersion` has it: 12040 is CUDA 12.4.
fn version(table: &DriverTable) -> i32 {
    let mut version = 0;
    if let Some(get) = table.cuDriverGetVersion {
        // SAFETY: the driver writes one number to a local.
        let _ = unsafe { get(&mut version) };
    }
    version
}

/// The primary context of a device, current on the calling thread and retained until the process
/// ends.
pub(crate) fn retain_context(table: &DriverTable, ordinal: i32) -> Result<CUcontext, DriverError> {
    let retain = table.cuDevicePrimaryCtxRetain.ok_or(DriverError::Missing("cuDevicePrimaryCtxRetain"))?;
    let mut context = CUcontext::NULL;
    // SAFETY: the driver writes one handle to a local.
    check("cuDevicePrimaryCtxRetain", unsafe { retain(&mut context, ordinal) })?;
    crate::session::current::make_current(table, context)
        .map_err(|result| DriverError::Call { function: "cuCtxSetCurrent", result })?;
    Ok(context)
}

/// The smallest range that is worth having: less, and the driver mints.
const RANGE_MIN: u64 = 1 << 30;

/// Reserves addresses in one of the ranges that the client offers; `None` where no offer fits, or
/// where memory of a device cannot be mapped there. GPUs that say that they make memory which can
/// be shared refuse it where their surroundings lack that (containers): such a GPU makes memory
/// that cannot be shared.
pub(crate) fn reserve<'a>(
    table: &DriverTable,
    offers: &[(u64, u64)],
    mut devices: impl Iterator<Item = &'a mut Device>,
) -> Option<Range<u64>> {
    let reserved = reserve_any(table, offers)?;
    let serves = |device: &mut Device| {
        extent::can_be_mapped(table, device, reserved.start) || {
            device.handle_types = CUmemAllocationHandleType::NONE;
            extent::can_be_mapped(table, device, reserved.start)
        }
    };
    if !devices.all(serves) {
        give_back(table, reserved.start, reserved.end - reserved.start);
        return None;
    }
    Some(reserved)
}

fn reserve_any(table: &DriverTable, offers: &[(u64, u64)]) -> Option<Range<u64>> {
    table.cuMemCreate.and(table.cuMemMap).and(table.cuMemSetAccess)?;
    offers.iter().find_map(|&(start, bytes)| {
        let end = start.checked_add(bytes)? / CHUNK * CHUNK;
        let start = start.checked_next_multiple_of(CHUNK)?;
        let mut bytes = end.checked_sub(start)?;
        while bytes >= RANGE_MIN {
            if reserve_at(table, start, bytes) {
                return Some(start..start + bytes);
            }
            bytes = bytes / 2 / CHUNK * CHUNK;
        }
        None
    })
}

/// CUDA takes the address as a hint, so the result is compared and a reservation elsewhere given
/// back.
fn reserve_at(table: &DriverTable, start: u64, bytes: u64) -> bool {
    let Some(reserve) = table.cuMemAddressReserve else { return false };
    let mut got = 0;
    // SAFETY: reserving addresses touches no memory; the driver writes one address to a local.
    if !unsafe { reserve(&mut got, bytes as usize, CHUNK as usize, start, 0) }.is_success() {
        return false;
    }
    if got != start {
        give_back(table, got, bytes);
    }
    got == start
}

/// A failure leaves addresses taken.
fn give_back(table: &DriverTable, start: u64, bytes: u64) {
    if let Some(free) = table.cuMemAddressFree {
        // SAFETY: the reservation was made just now, and nothing is mapped in it.
        let _ = unsafe { free(start, bytes as usize) };
    }
}

pub(crate) fn check(function: &'static str, result: CUresult) -> Result<(), DriverError> {
    result.ok().map_err(|result| DriverError::Call { function, result })
}

#[cfg(test)]
mod tests {
    use sluice_cuda::{CUdeviceptr, CUmemAccessDesc, CUmemAllocationProp, CUmemGenericAllocationHandle};

    use super::*;
    use crate::malformed::stage::{RESERVATION, Stage};

    unsafe extern "C" fn refuse_handles(
        handle: *mut CUmemGenericAllocationHandle,
        size: usize,
        wanted: *const CUmemAllocationProp,
        flags: u64,
    ) -> CUresult {
        // SAFETY: as whoever calls a driver promises.
        unsafe {
            if (*wanted).requestedHandleTypes != CUmemAllocationHandleType::NONE {
                return CUresult::NOT_PERMITTED;
            }
            hostile_driver::table().cuMemCreate.unwrap()(handle, size, wanted, flags)
        }
    }

    unsafe extern "C" fn refuse_access(
        _: CUdeviceptr,
        _: usize,
        _: *const CUmemAccessDesc,
        _: usize,
    ) -> CUresult {
        CUresult::NOT_SUPPORTED
    }

    /// Cards say more than their surroundings let them do.
    #[test]
    fn what_a_session_relies_on_is_tried_out() {
        let mut stage = Stage::new();
        let table = &stage.driver().0.clone();
        let offer = [(RESERVATION + (1 << 37), 1 << 32)];
        let range = Some(offer[0].0..offer[0].0 + offer[0].1);
        let mut tried = |table: &DriverTable| {
            let device = &mut stage.session().devices[0];
            let got = reserve(table, &offer, std::iter::once(&mut *device));
            if let Some(range) = &got {
                give_back(table, range.start, range.end - range.start);
            }
            (got, device.handle_types != CUmemAllocationHandleType::NONE)
        };
        assert_eq!(tried(table), (range.clone(), true));
        assert_eq!(tried(&DriverTable { cuMemCreate: Some(refuse_handles), ..*table }), (range, false));
        assert_eq!(tried(&DriverTable { cuMemSetAccess: Some(refuse_access), ..*table }), (None, false));
    }
}
