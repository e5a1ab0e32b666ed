//! What became of a lease, and what it has used.

use serde::{Deserialize, Serialize};

use super::NewLease;
use crate::pool::Promised;

/// What was asked for, what has been used of it, and what became of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeaseHistory {
    pub asked: NewLease,
    pub used: LeaseUse,
    /// What was promised about its waits for GPUs, and the waits: one for each promise that it has
    /// had.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub promised: Vec<Promised>,
    /// The oldest first.
    pub items: Vec<LeaseEvent>,
    /// The cursor of the page after this one, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// What the usage records of a lease add up to, as far as its nodes have sent them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeaseUse {
    pub records: u64,
    /// Shares times the time that they were held.
    pub reserved_ppm_ms: u64,
    /// Shares times the time in which the lease was suspended.
    #[serde(default)]
    pub suspended_ppm_ms: u64,
    /// Device time.
    pub used_ppm_ms: u64,
    pub memory_mib_ms: u64,
    pub kernels: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// The most device memory of one record, in bytes.
    pub memory_peak: u64,
}

/// Something that became of a lease: an entry of the audit log.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeaseEvent {
    /// Of the entry.
    pub sequence: u64,
    pub at_ms: u64,
    /// The token that it was done with, and its name; `server (itself)` for what the scheduler, a
    /// node or time did.
    pub actor: String,
    /// `lease.requested`, `lease.sized`, `lease.granted`, `lease.resizing`, `lease.resized`,
    /// `lease.resize_refused`, `lease.moving`, `lease.moved`, `lease.move_refused`, `lease.grown`,
    /// `lease.preempted`, `lease.refused`, `lease.requeued`, `lease.idle`, `lease.idle_suspended`,
    /// `lease.woken` or `lease.ended`.
    pub action: String,
    /// With the attempt, and as it applies a reason, places, tasks, and `for`: the lease that gets
    /// the room.
    pub detail: serde_json::Value,
}
