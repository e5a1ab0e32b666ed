//! Leases as users see them: asked for, queued, granted, running, ended.
//!
//! ```text
//!  queued ──▶ granted ──▶ running ──▶ ended
//!    ▲           │           │
//!    │        (refused)      ▼
//!    └───────────┴────── preempting
//! ```
//! A granted lease that nobody claims on its node within its hold time ends. A preempted one has a
//! grace time, then its node ends it and it is queued again with the next attempt number, which
//! makes grants of earlier attempts worthless.
//!
//! The tasks of a running lease come and go one by one: one that ends gives its place back, an
//! elastic lease gets further ones when there is room, and those above its minimum may be told to
//! make room while the others continue. No number of a task is used twice within an attempt.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::GPU_PPM;
use crate::autonomy::{AutomaticSize, Idle};
use crate::bill::{Currency, TightestBudget};
use crate::moving::Moving;
use crate::pool::Tier;
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
    /// GPUs of each task, all on one node.
    #[serde(default = "one")]
    pub gpus: u32,
    /// Programs that run side by side, each with GPUs of its own: it starts with all of them or not
    /// at all.
    #[serde(default = "one")]
    pub tasks: u32,
    /// Up to so many tasks, as there is room. Those above `tasks` come when there is, and are the
    /// first to make room for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks_max: Option<u32>,
    /// All tasks within one node, switch, rack or zone, or the lease waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same: Option<Level>,
    /// All tasks within one node, switch, rack or zone if that can be had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near: Option<Level>,
    /// Each task in another node, switch, rack or zone than the others, or the lease waits;
    /// narrower than `same` and `near`. Nodes that do not say in which one they stand take no such
    /// task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<Level>,
    /// What the GPUs of each task have in common, each with each, or the lease waits; for tasks of
    /// several GPUs. Without it those are taken that are linked best, of those that would do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub linked: Option<Link>,
    /// Millionths of each GPU's compute.
    #[serde(default = "whole")]
    pub share_ppm: u32,
    /// Take the share and the memory from the default of the program, which is found by `name`,
    /// where one is set. What is stated here counts where there is none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub use_default: bool,
    /// The server changes nothing about it by itself, whatever its tenant has consented to.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub as_asked: bool,
    /// Compute of each GPU in thousandths of a unit, instead of a share: whichever GPU it is, the
    /// share that gives so many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units_milli: Option<u64>,
    /// Bytes on each GPU; 0 for the same part of its memory as of its compute.
    #[serde(default)]
    pub memory: u64,
    /// Never more than the share, even while the GPU would idle.
    #[serde(default)]
    pub hard_cap: bool,
    /// The most of each GPU's compute in millionths, even while the GPU would idle: not below the
    /// share. Without, there is no limit, or with `hard_cap` the share is the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_ppm: Option<u32>,
    /// Among the leases of one tenant: higher goes first, and may preempt lower.
    #[serde(default = "usual_priority")]
    pub priority: i32,
    /// May be ended and queued again when others have the better right. What may not be preempted
    /// is granted within the tenant's guaranteed quota only.
    #[serde(default = "yes")]
    pub preemptible: bool,
    /// How firmly it holds what it has; pools may serve some tiers only, and prices differ.
    #[serde(default)]
    pub tier: Tier,
    /// Nodes of this pool; any that serves the tenant and the tier unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// GPUs whose model's name contains one of these, in upper or lower case; any unless said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// GPUs of at least this many GFLOPS (32 bits, as the driver's figures give them).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gflops_min: Option<u64>,
    /// GPUs that have at least so many bytes in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory_min: Option<u64>,
    /// Nodes that have all these labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// When it must have ended. Once it can no longer start in time for that, it leaves the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// How long it will take, in milliseconds: for estimates of when others start. Nothing ends
    /// because of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// How long what it was granted waits for its program to claim it, in milliseconds, before it
    /// is given back: 1,000 to 3,600,000, and 60,000 unless said. Until it is claimed it costs
    /// nothing, and counts towards quotas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_ms: Option<u64>,
    /// The program, for people to read.
    #[serde(default)]
    pub name: String,
}

/// How near tasks stand to each other, or how far apart. Zones, racks and switches are the nodes'
/// labels of these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Level {
    Zone,
    Rack,
    /// The network switch that its nodes are on.
    Switch,
    Node,
}

impl Level {
    /// The widest first.
    pub const ALL: [Level; 4] = [Level::Zone, Level::Rack, Level::Switch, Level::Node];

    pub fn name(self) -> &'static str {
        match self {
            Level::Zone => "zone",
            Level::Rack => "rack",
            Level::Switch => "switch",
            Level::Node => "node",
        }
    }
}

/// What GPUs of one node may have in common, as far as the node says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Link {
    /// NVLinks from one to the other.
    Nvlink,
    /// The NUMA node that is nearest.
    Numa,
}

impl Link {
    pub const ALL: [Link; 2] = [Link::Nvlink, Link::Numa];

    pub fn name(self) -> &'static str {
        match self {
            Link::Nvlink => "nvlink",
            Link::Numa => "numa",
        }
    }
}

impl std::str::FromStr for Link {
    type Err = String;

    fn from_str(text: &str) -> Result<Link, String> {
        let found = Link::ALL.into_iter().find(|link| link.name() == text);
        found.ok_or_else(|| format!("{text:?} is none of nvlink and numa"))
    }
}

impl std::str::FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Level, String> {
        let found = Level::ALL.into_iter().find(|level| level.name() == text);
        found.ok_or_else(|| format!("{text:?} is none of node, switch, rack and zone"))
    }
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
/// What `hold_ms` is unless said.
pub const HOLD_MS_USUAL: u64 = 60_000;
/// The shortest time that a grant can wait to be claimed: shorter, and a slow network takes it
/// away.
pub const HOLD_MS_MIN: u64 = 1_000;
/// The longest.
pub const HOLD_MS_MAX: u64 = 3_600_000;
/// The most tasks of one lease.
pub const TASKS_MAX: u32 = 256;

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

impl NewLease {
    /// So many whole GPUs of one node, and all else as it is unless said.
    pub fn whole(gpus: u32) -> NewLease {
        NewLease {
            tenant: None,
            gpus,
            tasks: one(),
            tasks_max: None,
            same: None,
            near: None,
            spread: None,
            linked: None,
            share_ppm: whole(),
            use_default: false,
            as_asked: false,
            units_milli: None,
            memory: 0,
            hard_cap: false,
            limit_ppm: None,
            priority: usual_priority(),
            preemptible: yes(),
            tier: Tier::default(),
            pool: None,
            models: Vec::new(),
            gflops_min: None,
            gpu_memory_min: None,
            labels: BTreeMap::new(),
            deadline_ms: None,
            duration_ms: None,
            hold_ms: None,
            name: String::new(),
        }
    }

    /// The share of a GPU of so many GFLOPS, in millionths; above a whole one where the GPU has too
    /// few units.
    pub fn share_of(&self, gflops: u64) -> u64 {
        let Some(units_milli) = self.units_milli else { return u64::from(self.share_ppm) };
        let units = u128::from(units_milli) * u128::from(GPU_PPM);
        if gflops == 0 {
            return u64::MAX;
        }
        u64::try_from(units.div_ceil(u128::from(gflops))).unwrap_or(u64::MAX)
    }

    /// The least share that it takes of any GPU, in millionths: units may be any part of one.
    pub fn least_share_ppm(&self) -> u32 {
        if self.units_milli.is_some() { 1 } else { self.share_ppm }
    }

    /// The most of each GPU's compute in millionths; a whole GPU without a limit.
    pub fn limit_ppm(&self) -> u32 {
        self.limit_ppm.unwrap_or(if self.hard_cap { self.share_ppm } else { GPU_PPM })
    }

    /// The last moment at which it can start and end by its deadline.
    pub fn start_until_ms(&self) -> Option<u64> {
        Some(self.deadline_ms?.saturating_sub(self.duration_ms.unwrap_or(0)))
    }

    /// How long a grant of it can be claimed.
    pub fn hold_ms(&self) -> u64 {
        self.hold_ms.unwrap_or(HOLD_MS_USUAL)
    }
}

/// Which leases are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum StateFilter {
    /// In any state but ended.
    Open,
    Queued,
    Granted,
    Running,
    Preempting,
    Ended,
}

impl StateFilter {
    pub const ALL: [StateFilter; 6] = [
        StateFilter::Open,
        StateFilter::Queued,
        StateFilter::Granted,
        StateFilter::Running,
        StateFilter::Preempting,
        StateFilter::Ended,
    ];

    pub fn states(self) -> &'static [LeaseState] {
        use LeaseState::{Ended, Granted, Preempting, Queued, Running};
        match self {
            StateFilter::Open => &[Queued, Granted, Running, Preempting],
            StateFilter::Queued => &[Queued],
            StateFilter::Granted => &[Granted],
            StateFilter::Running => &[Running],
            StateFilter::Preempting => &[Preempting],
            StateFilter::Ended => &[Ended],
        }
    }

    pub fn name(self) -> &'static str {
        match self.states() {
            [state] => state.name(),
            _ => "open",
        }
    }
}

impl std::str::FromStr for StateFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<StateFilter, String> {
        let names = StateFilter::ALL.map(StateFilter::name).join(", ");
        let found = StateFilter::ALL.into_iter().find(|filter| filter.name() == text);
        found.ok_or_else(|| format!("{text:?} is none of {names}"))
    }
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

/// What was asked for, what has been used of it, and what became of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeaseHistory {
    pub asked: NewLease,
    pub used: LeaseUse,
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
    /// The same of the time in which it was suspended.
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

/// When a waiting lease is expected to start, if those that run take as long as they said or as
/// their like took before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StartEstimate {
    /// Unknown without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<u64>,
    /// Half of the estimates of late were off by no more than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_ms: Option<u64>,
    /// Nine in ten of the latest estimates were off by no more than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_p90_ms: Option<u64>,
    /// What the estimate rests on, or why there is none.
    pub because: String,
}

/// What a request would lead to, as far as it can be predicted. This is the answer to a dry run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeaseEstimate {
    pub tenant: TenantPath,
    /// The predicted start, with the usual error of such predictions.
    pub start: StartEstimate,
    /// The reason why it would wait, unless it would start at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The places of its tasks, as far as they can be predicted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<EstimatedPlace>,
    /// The number of leases that would be preempted for it.
    pub preempts: u32,
    /// The price of an hour in which these places are reserved, in millionths of the currency's
    /// unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_per_hour: Option<u64>,
    /// The most that GPU time used adds to the price of an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_micro_per_hour_max: Option<u64>,
    /// The currency of all amounts, if one is declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<Currency>,
    /// The tightest of the budgets that it would count towards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tightest_budget: Option<TightestBudget>,
    /// The kinds of GPUs that it accepts, the cheapest first.
    pub offers: Vec<Offer>,
}

/// The predicted place of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EstimatedPlace {
    /// The node's name.
    pub node: String,
    /// Indices of the node's GPUs.
    pub gpus: Vec<u32>,
    pub pool: String,
    /// As the driver names it.
    pub model: String,
    /// Of each GPU.
    pub share_ppm: u32,
    /// Bytes on each GPU.
    pub memory: u64,
}

/// Equal GPUs that a request accepts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Offer {
    pub pool: String,
    /// As the driver names it.
    pub model: String,
    /// The memory of one GPU, in bytes.
    pub memory: u64,
    /// The speed of one GPU in GFLOPS, or 0 if it is unknown.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub gflops: u64,
    /// The share that the request takes of each of these GPUs.
    pub share_ppm: u32,
    /// The number of these GPUs that take new leases.
    pub gpus: u32,
    /// The number of them with room for one GPU of the request now.
    pub gpus_free: u32,
    /// The price of an hour in which the whole request is reserved on such GPUs, in millionths of
    /// the currency's unit.
    pub micro_per_hour: u64,
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
