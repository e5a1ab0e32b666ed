//! Shares and limits, and the arithmetic of GPU time that they stand for.

use serde::{Deserialize, Serialize};

use super::PPM;

/// What one lease may take of the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weight {
    /// 1 to [`PPM`].
    pub share_ppm: u32,
    /// The most that it gets, even while no other waits: not less than the share, and [`PPM`]
    /// for no limit.
    pub limit_ppm: u32,
    /// Its work preempts that of others as long as it stays within its share.
    pub premium: bool,
    /// The longest that a session of it is promised to wait while the lease is within its share; 0
    /// where nothing is promised.
    pub wait_ns: u64,
}

impl Weight {
    /// The part of a time that the share grants.
    pub(super) fn part_of(self, time_ns: u64) -> i64 {
        let part_ns = i128::from(time_ns) * i128::from(self.share_ppm) / i128::from(PPM);
        i64::try_from(part_ns).unwrap_or(i64::MAX / 4)
    }

    /// GPU time as the virtual time that it costs this share.
    pub(super) fn virtual_ns(self, real_ns: u64) -> i128 {
        i128::from(real_ns) * i128::from(PPM) / i128::from(self.share_ppm.max(1))
    }

    pub(super) fn virtual_of(self, real_ns: i128) -> i128 {
        real_ns * i128::from(PPM) / i128::from(self.share_ppm.max(1))
    }

    pub(super) fn is_limited(self) -> bool {
        u64::from(self.limit_ppm) < PPM
    }

    /// GPU time that flows into the bucket of the limit meanwhile.
    pub(super) fn inflow_ns(self, elapsed_ns: u64) -> i64 {
        let inflow_ns = i128::from(elapsed_ns) * i128::from(self.limit_ppm) / i128::from(PPM);
        i64::try_from(inflow_ns).unwrap_or(i64::MAX / 4)
    }

    /// How long it takes until this much has flowed in.
    pub(super) fn inflow_takes_ns(self, inflow_ns: u64) -> u64 {
        let takes_ns = i128::from(inflow_ns) * i128::from(PPM) / i128::from(self.limit_ppm.max(1));
        takes_ns.min(i128::from(u64::MAX / 4)) as u64
    }

    /// The inverse of [`Weight::virtual_of`].
    pub(super) fn signed_real_ns(self, virtual_ns: i128) -> i128 {
        virtual_ns * i128::from(self.share_ppm) / i128::from(PPM)
    }
}
