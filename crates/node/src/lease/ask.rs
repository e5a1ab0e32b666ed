//! What a client asks a lease to have, and how a lease is asked to change.

use serde::{Deserialize, Serialize};

use crate::arbiter::PPM;
use crate::lease::Lease;
use crate::lease::refusal::{Refusal, percent_text};

/// What a client asks for, per GPU where it is an amount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Number of distinct GPUs.
    pub gpus: u32,
    /// Share of each GPU's compute, 1 to 1,000,000.
    pub share_ppm: u32,
    /// Bytes on each GPU; 0 asks for the same part of the memory as of the compute.
    pub memory: u64,
    /// The most that it gets of each GPU's compute, also while the GPU would be idle otherwise: not
    /// below the share, and 1,000,000 for no limit.
    pub limit_ppm: u32,
    /// Of each GPU, all leases together may have this part; more than a GPU where its pool is
    /// overcommitted.
    pub promised_ppm: u32,
    /// Its work preempts that of others as long as it stays within its share.
    pub premium: bool,
    /// The longest that its sessions are promised to wait for a GPU; 0 where nothing is promised.
    pub wait_ns: u64,
}

impl Ask {
    /// Of all its GPUs together, in millionths of one.
    pub fn share_ppm_in_all(&self) -> u64 {
        u64::from(self.gpus) * u64::from(self.share_ppm)
    }

    /// Whether its memory stays on its GPUs where memory is overcommitted: it must not be away when
    /// premium work arrives, and one that waits for memory on a GPU must hold none of another.
    pub(super) fn is_fixed(&self) -> bool {
        self.premium || self.gpus != 1
    }
}

/// What is to become of a lease, as far as it is named; the rest stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resize {
    pub share_ppm: Option<u32>,
    /// Bytes on each GPU.
    pub memory: Option<u64>,
    /// 0 for a limit that equals the share. A limit that equals the share continues doing so unless
    /// another one is named.
    pub limit_ppm: Option<u32>,
    /// As [`Ask::promised_ppm`].
    pub promised_ppm: Option<u32>,
}

impl Resize {
    /// What a lease has now.
    pub(crate) fn back_to(lease: &Lease) -> Resize {
        let Ask { share_ppm, limit_ppm, promised_ppm, .. } = lease.ask;
        Resize {
            share_ppm: Some(share_ppm),
            memory: Some(lease.memory),
            limit_ppm: Some(limit_ppm),
            promised_ppm: Some(promised_ppm),
        }
    }

    /// What the lease would have been asked for as.
    pub(super) fn of(&self, lease: &Lease) -> Ask {
        let before = &lease.ask;
        let share_ppm = self.share_ppm.unwrap_or(before.share_ppm);
        let was_capped = before.limit_ppm == before.share_ppm && u64::from(before.limit_ppm) < PPM;
        let limit_ppm = match self.limit_ppm {
            Some(0) => share_ppm,
            Some(limit_ppm) => limit_ppm,
            None if was_capped => share_ppm,
            None => before.limit_ppm,
        };
        Ask {
            gpus: before.gpus,
            share_ppm,
            memory: self.memory.unwrap_or(lease.memory),
            limit_ppm,
            promised_ppm: self.promised_ppm.unwrap_or(before.promised_ppm),
            premium: before.premium,
            wait_ns: before.wait_ns,
        }
    }
}

pub(super) fn check_compute(share_ppm: u32, limit_ppm: u32) -> Result<(), Refusal> {
    if share_ppm == 0 || u64::from(share_ppm) > PPM {
        return Err(Refusal::Share);
    }
    if limit_ppm < share_ppm || u64::from(limit_ppm) > PPM {
        let (share, limit) = (percent_text(share_ppm.into()), percent_text(limit_ppm.into()));
        return Err(Refusal::Limit { share, limit });
    }
    Ok(())
}
