//! What is asked for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::GPU_PPM;
use crate::pool::Tier;
use crate::tenant::TenantPath;

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
    /// The largest number of tasks, as there is room. Those above `tasks` come when there is, and
    /// are the first to make room for others.
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
    /// Compute of each GPU in thousandths of a unit, instead of a share: the share that gives
    /// this number follows the GPU.
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
    /// The least memory of each GPU as a whole, in bytes.
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

pub(super) fn whole() -> u32 {
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

impl NewLease {
    /// A request for this number of whole GPUs of one node, and all else as it is unless said.
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

    /// The share of a GPU with this number of GFLOPS, in millionths; above a whole one where the
    /// GPU has too few units.
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
