//! Leases as users see them: asked for, queued, granted, running, ended.
//!
//! ```text
//!  queued ──▶ granted ──▶ running ──▶ ended
//!    ▲           │           │
//!    │        (refused)      ▼
//!    └───────────┴────── preempting
//! ```
//! A granted lease that nobody claims on its node ends. A preempted one has a grace time, then its node ends it and it
//! is queued again with the next attempt number, which makes grants of earlier attempts worthless.

use serde::{Deserialize, Serialize};

use crate::GPU_PPM;
use crate::tenant::TenantPath;

/// Counted by the server.
pub type LeaseId = u64;

/// What a user asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewLease {
    /// For whom; the token's own tenant unless named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantPath>,
    /// GPUs, all on one node.
    #[serde(default = "one")]
    pub gpus: u32,
    /// Millionths of each GPU's compute.
    #[serde(default = "whole")]
    pub share_ppm: u32,
    /// Bytes on each GPU; 0 for the same part of its memory as of its compute.
    #[serde(default)]
    pub memory: u64,
    /// Never more than the share, even while the GPU would idle.
    #[serde(default)]
    pub hard_cap: bool,
    /// Among the leases of one tenant: higher goes first, and may preempt lower.
    #[serde(default = "usual_priority")]
    pub priority: i32,
    /// May be ended and queued again when others have the better right. What may not be preempted is granted within
    /// the tenant's guaranteed quota only.
    #[serde(default = "yes")]
    pub preemptible: bool,
    /// The program, for people to read.
    #[serde(default)]
    pub name: String,
}

fn one() -> u32 {
    1
}

fn whole() -> u32 {
    GPU_PPM
}

fn usual_priority() -> i32 {
    PRIORITY_USUAL
}

fn yes() -> bool {
    true
}

/// What `priority` is unless said.
pub const PRIORITY_USUAL: i32 = 100;
/// The highest priority; the lowest is 1.
pub const PRIORITY_MAX: i32 = 300;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum LeaseState {
    /// Waits for room.
    Queued,
    /// Has a place; its program has not come to the node yet.
    Granted,
    /// Its node has it.
    Running,
    /// To make room for others: its grace time runs.
    Preempting,
    Ended,
}

impl LeaseState {
    pub fn name(self) -> &'static str {
        match self {
            LeaseState::Queued => "queued",
            LeaseState::Granted => "granted",
            LeaseState::Running => "running",
            LeaseState::Preempting => "preempting",
            LeaseState::Ended => "ended",
        }
    }

    /// Whether it holds a part of a GPU.
    pub fn holds(self) -> bool {
        matches!(self, LeaseState::Granted | LeaseState::Running | LeaseState::Preempting)
    }
}

/// A lease as the server has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Lease {
    pub id: LeaseId,
    pub tenant: TenantPath,
    pub name: String,
    pub gpus: u32,
    pub share_ppm: u32,
    /// Bytes on each GPU, 0 until a place is known.
    pub memory: u64,
    pub priority: i32,
    pub preemptible: bool,
    pub state: LeaseState,
    /// Counts the times that it was queued; the first is 1.
    pub attempt: u32,
    /// Its place in the queue, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// Why it waits, is preempted, or ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
    /// What its node wants to see; only in the answers to who may use the lease, and only while it is granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<String>,
    /// When the grace time ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempt_at_ms: Option<u64>,
    pub created_at_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted_at_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at_ms: Option<u64>,
    /// Grows with every change; a watcher names the one it has seen.
    pub revision: u64,
}

/// Where a lease is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Place {
    /// The node's name.
    pub node: String,
    /// `HOST:PORT`, where programs reach it.
    pub address: String,
    /// Indices of the node's GPUs.
    pub gpus: Vec<u32>,
}

/// A client's word that a node refused its grant: the lease goes back to the queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Refused {
    /// The attempt that was refused.
    pub attempt: u32,
    pub reason: String,
}
