//! One GPU of a lease, as a session has it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use sluice_cuda::{CUcontext, CUdevice_attribute, CUmemAllocationHandleType, DriverTable};

use crate::schedule::gate::Gate;
use crate::schedule::launch_times::LaunchTimes;
use crate::schedule::streams::Streams;

/// One GPU of the lease.
pub(crate) struct Device {
    /// The driver's.
    pub(crate) ordinal: i32,
    /// The primary context.
    pub(crate) context: CUcontext,
    /// Bytes of its memory that are the lease's: may change at any time.
    pub(crate) memory: AtomicU64,
    pub(crate) gate: Arc<Gate>,
    pub(crate) streams: Arc<Streams>,
    /// Where kernels have a limit that the driver does not keep.
    pub(crate) launch_times: Option<LaunchTimes>,
    /// How its memory can be shared with other processes.
    pub(crate) handle_types: CUmemAllocationHandleType,
}

/// The handle types that a device's memory can be created with.
pub(crate) fn handle_types(table: &DriverTable, ordinal: i32) -> CUmemAllocationHandleType {
    let has_both = table.cuMemExportToShareableHandle.and(table.cuMemImportFromShareableHandle).is_some();
    let Some(get) = table.cuDeviceGetAttribute.filter(|_| has_both) else {
        return CUmemAllocationHandleType::NONE;
    };
    let mut value = 0;
    let attribute = CUdevice_attribute::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
    // SAFETY: the driver writes one number to a local.
    let known = unsafe { get(&mut value, attribute, ordinal) }.is_success();
    if known && value == 1 {
        CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR
    } else {
        CUmemAllocationHandleType::NONE
    }
}
