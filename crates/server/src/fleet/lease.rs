//! A lease as the books have it, and where its tasks are.

use sluice_api::lease::{LeaseId, LeaseState, NewLease, PRIORITY_MAX};
use sluice_api::node::{Attempt, NodeId};
use sluice_api::pool::Tier;
use sluice_api::tenant::TenantPath;

/// Where a task of a lease is.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Seat {
    pub(crate) node: NodeId,
    /// Indices of the node's GPUs.
    pub(crate) gpus: Vec<u32>,
    /// Bytes on each of them.
    pub(crate) memory: u64,
    /// Its node has had it.
    #[serde(default)]
    pub(crate) claimed: bool,
    /// Its node has it no more.
    #[serde(default)]
    pub(crate) over: bool,
}

impl Seat {
    pub(crate) fn new(node: NodeId, gpus: Vec<u32>, memory: u64) -> Seat {
        Seat { node, gpus, memory, claimed: false, over: false }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct LeaseRecord {
    pub(crate) id: LeaseId,
    pub(crate) tenant: TenantPath,
    pub(crate) ask: NewLease,
    /// Id of the token that asked for it.
    pub(crate) token: String,
    pub(crate) state: LeaseState,
    pub(crate) attempt: u32,
    pub(crate) reason: Option<String>,
    /// One for each task; none while it waits.
    pub(crate) seats: Vec<Seat>,
    pub(crate) preempt_at_ms: Option<u64>,
    pub(crate) created_at_ms: u64,
    /// Decides its place in line: what was preempted for the sake of others keeps its old one.
    pub(crate) queued_at_ms: u64,
    pub(crate) granted_at_ms: Option<u64>,
    pub(crate) ended_at_ms: Option<u64>,
    /// When its program last asked for it; not stored.
    pub(crate) heard_at_ms: u64,
    pub(crate) revision: u64,
}

/// The order of a tenant's line: higher priority, then first come.
pub(crate) type LinePlace = (std::cmp::Reverse<i32>, u64, LeaseId);

impl LeaseRecord {
    /// Compute of all its GPUs, in millionths of one, if it has so many tasks.
    pub(crate) fn ppm(&self, tasks: usize) -> u64 {
        u64::from(self.ask.share_ppm) * u64::from(self.ask.gpus) * tasks as u64
    }

    pub(crate) fn attempt_of(&self, task: usize) -> Attempt {
        Attempt { lease: self.id, attempt: self.attempt, task: task as u32 }
    }

    pub(crate) fn line_place(&self) -> LinePlace {
        (std::cmp::Reverse(self.priority()), self.queued_at_ms, self.id)
    }

    /// The fewest and the most tasks that it starts with.
    pub(crate) fn tasks(&self) -> (u32, u32) {
        (self.ask.tasks, self.ask.tasks_max.unwrap_or(self.ask.tasks))
    }

    pub(crate) fn is_preemptible(&self) -> bool {
        self.ask.preemptible && self.ask.tier != Tier::Premium
    }

    /// Among the leases of its tenant: basic ones go after all others.
    pub(crate) fn priority(&self) -> i32 {
        match self.ask.tier {
            Tier::Basic => self.ask.priority - PRIORITY_MAX,
            Tier::Standard | Tier::Premium => self.ask.priority,
        }
    }

    /// Whether it holds parts of GPUs.
    pub(crate) fn holds(&self) -> bool {
        self.state.holds()
    }

    pub(crate) fn waits(&self) -> bool {
        self.state == LeaseState::Queued
    }
}
