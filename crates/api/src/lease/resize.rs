//! Another size for a lease that runs.

use serde::{Deserialize, Serialize};

/// What a lease is to have from now on. What is not named stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResizeLease {
    /// Millionths of each GPU's compute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_ppm: Option<u32>,
    /// Bytes on each GPU: not less than its programs hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// The most of each GPU's compute in millionths: not below the share, 1,000,000 for no limit, 0
    /// for a limit that equals the share. Unless said, a limit that equals the share continues
    /// doing so, and another one stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_ppm: Option<u32>,
    /// Whether its programs get no GPU time: they keep their memory, and their calls wait. What a
    /// suspended lease had of the compute is free for others, and counts towards no quota; it has
    /// to be free again for the lease to be resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<bool>,
    /// Where there is no room or quota for it now, wait until there is, instead of being refused.
    /// It is tried whenever the scheduler looks at its queue, before leases that wait.
    #[serde(default)]
    pub wait: bool,
}

/// A change of what a lease has: under way, or refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Resizing {
    pub state: ResizeState,
    /// What it is to have.
    pub share_ppm: u32,
    pub limit_ppm: u32,
    pub memory: u64,
    pub suspended: bool,
    /// Why it waits, or was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How far a change of what a lease has has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ResizeState {
    /// There is no room for it yet.
    Waiting,
    /// Its nodes have to take it. The lease counts as the larger of what it had and is to have.
    Sent,
    /// A node could not do it, and the lease is there as it was before.
    Refused,
}
