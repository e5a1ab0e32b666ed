//! The shape of a launch, and what a device allows.

use sluice_cuda::*;
use sluice_wire::Dim;

/// Where and how large, from the arguments of any launch function.
pub(crate) struct Geometry {
    pub(crate) grid: Dim,
    pub(crate) block: Dim,
    pub(crate) shared_bytes: u32,
}

/// A device's limits on launches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(super) threads: u64,
    pub(super) grid: Dim,
    pub(super) block: Dim,
}

impl Limits {
    pub(crate) fn of(attribute: impl std::ops::Fn(CUdevice_attribute) -> Option<i32>) -> Limits {
        use CUdevice_attribute as A;
        let of = |id, usual: u32| attribute(id).and_then(|value| u32::try_from(value).ok()).unwrap_or(usual);
        Limits {
            threads: u64::from(of(A::MAX_THREADS_PER_BLOCK, 1024)),
            grid: [
                of(A::MAX_GRID_DIM_X, i32::MAX as u32),
                of(A::MAX_GRID_DIM_Y, 65535),
                of(A::MAX_GRID_DIM_Z, 65535),
            ],
            block: [of(A::MAX_BLOCK_DIM_X, 1024), of(A::MAX_BLOCK_DIM_Y, 1024), of(A::MAX_BLOCK_DIM_Z, 64)],
        }
    }
}
