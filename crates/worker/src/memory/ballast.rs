//! Physical memory behind the client's allowance.
//!
//! A lease may have memory on a GPU that the GPU does not have: each process there costs the
//! driver some, and others may use the GPU. A client that waits for memory gets that answer, but a
//! command without an answer must not fail. So the worker holds as much memory as is allowed. Where
//! the driver has no other left, it lets go of that, and the client asks again.

use sluice_cuda::{CUmemAllocationHandleType, CUmemGenericAllocationHandle, CUresult, DriverTable};

use crate::memory::calls;

type Release = unsafe extern "C" fn(CUmemGenericAllocationHandle) -> CUresult;

/// Where it comes from: a device by the driver's ordinal, and how its memory can be shared.
pub(crate) struct Source {
    pub(crate) table: DriverTable,
    pub(crate) ordinal: i32,
    pub(crate) handle_types: CUmemAllocationHandleType,
}

/// Memory that is nowhere mapped.
#[derive(Debug)]
pub(crate) struct Ballast {
    bytes: u64,
    handle: CUmemGenericAllocationHandle,
    release: Release,
}

impl Source {
    /// Takes this number of bytes, unless it is 0 or they are not available.
    pub(crate) fn ballast(&self, bytes: u64) -> Option<Ballast> {
        let release = self.table.cuMemRelease.filter(|_| bytes > 0)?;
        let handle = calls::physical(&self.table, (self.ordinal, self.handle_types), bytes).ok()?;
        Some(Ballast { bytes, handle, release })
    }
}

impl Ballast {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        // SAFETY: the handle came from `cuMemCreate`, nothing maps it, and this is its only
        // release.
        let _ = unsafe { (self.release)(self.handle) };
    }
}
