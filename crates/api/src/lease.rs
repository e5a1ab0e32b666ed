//! Leases as users see them: asked for, queued, granted, running, ended.
//!
//! ```text
//!  queued ──▶ granted ──▶ running ──▶ ended
//!    ▲           │           │
//!    │        (refused)      ▼
//!    └───────────┴────── preempting
//! ```
//! A granted lease that no program claims on its node within its hold time ends. A preempted one
//! has a grace time, then its node ends it and it is queued again with the next attempt number,
//! which makes grants of earlier attempts worthless.
//!
//! The tasks of a running lease come and go one by one: one that ends gives its place back, an
//! elastic lease gets further ones when there is room, and those above its minimum may be asked to
//! leave while the others continue. No number of a task is used twice within an attempt.

mod estimate;
mod history;
mod request;
mod resize;
mod state;

use serde::{Deserialize, Serialize};

use crate::autonomy::{AutomaticSize, Idle};
use crate::bill::TightestBudget;
use crate::moving::Moving;
use crate::pool::{Promise, Tier};
use crate::tenant::TenantPath;

pub use estimate::{EstimatedPlace, LeaseEstimate, Offer, StartEstimate};
pub use history::{LeaseEvent, LeaseHistory, LeaseUse};
pub use request::{
    HOLD_MS_MAX, HOLD_MS_MIN, HOLD_MS_USUAL, Level, Link, NewLease, PRIORITY_MAX, PRIORITY_USUAL, TASKS_MAX,
};
pub use resize::{ResizeLease, ResizeState, Resizing};
pub use state::{LeaseState, StateFilter};

use request::whole;

/// Counted by the server.
pub type LeaseId = u64;

/// A lease as the server has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Lease {
    pub id: LeaseId,
    pub tenant: TenantPath,
    pub name: String,
    /// The user who asked for it: the identity provider's name of the user, or the token's name.
    /// Empty if it is unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Of each task.
    pub gpus: u32,
    /// How many run side by side; the fewest that it starts with while it waits.
    pub tasks: u32,
    /// Of each GPU. Where units were asked for, 0 until a place is known, and then as its first
    /// task has it.
    pub share_ppm: u32,
    /// As it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units_milli: Option<u64>,
    /// The most that it gets of each GPU's compute; a whole GPU without a limit.
    #[serde(default = "whole")]
    pub limit_ppm: u32,
    /// Bytes on each GPU, 0 until a place is known.
    pub memory: u64,
    /// Its programs get no GPU time until it is resumed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
    /// A change of what it has that has not come to its end, or was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resizing: Option<Resizing>,
    /// Its last move to another node: under way, done, or refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<Moving>,
    /// Why it has another size than was asked for, where the server has changed that by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub automatic: Option<AutomaticSize>,
    /// What comes of it that its programs do nothing, where its tenant or pool suspends idle ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<Idle>,
    pub priority: i32,
    pub tier: Tier,
    /// What its tier was promised when it got its place, where its pool promises something; of its
    /// first task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promise: Option<Promise>,
    pub preemptible: bool,
    pub state: LeaseState,
    /// Counts the times that it was queued; the first is 1.
    pub attempt: u32,
    /// Its place in its tenant's line, from 1. Whose line is served next is a matter of fair share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// Why it waits, it or some of its tasks have to make room, or it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The reason why it waits in one short clause, such as `no GPU has room for it`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason_brief: Option<String>,
    /// When it is expected to start, while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StartEstimate>,
    /// Of the budgets that it counts towards, until it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tightest_budget: Option<TightestBudget>,
    /// Where its tasks are, in their order; of a lease that has ended, where they were.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<Place>,
    /// When the grace time ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempt_at_ms: Option<u64>,
    pub created_at_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted_at_ms: Option<u64>,
    /// Its program has to have claimed it by then, else it is given back; while it is granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_until_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at_ms: Option<u64>,
    /// Grows with every change; a watcher names the one it has seen.
    pub revision: u64,
    /// Opens this lease and nothing else until it has ended, whatever becomes of the token that it
    /// was asked for with; only in the answer to who asked for it. It goes where a token goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Where a task of a lease is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Place {
    /// The number of the task, from 0. That of one that has gone is not given to another one within
    /// the attempt.
    #[serde(default)]
    pub task: u32,
    /// The node's name.
    pub node: String,
    /// `HOST:PORT`, where programs reach it.
    pub address: String,
    /// Indices of the node's GPUs.
    pub gpus: Vec<u32>,
    /// What its node wants to see; only in the answers to who may use the lease, and only until the
    /// task has claimed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<String>,
    /// A grant by which its node changes what the task has; only in the answer to who has asked for
    /// that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resize: Option<String>,
    /// This task has to make room, while the others continue: it is ended then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leave_at_ms: Option<u64>,
}

/// A client's word that a node refused a grant. The lease goes back to the queue; one that runs
/// already continues without that task.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Refused {
    /// The attempt that was refused.
    pub attempt: u32,
    /// The task that was refused, of a lease that runs already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<u32>,
    pub reason: String,
}
