//! What was decided and why, in words: actions with their reasons, and the reasons why work waits.

use std::fmt;

use super::decay::Millis;
use super::job::JobId;
use crate::{Placement, Unplaced};

/// What the caller is to do. The scheduler's state already counts it as done; the order of a
/// cycle's actions matters: work is bound to what an eviction or a move before it frees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start this task of the job here.
    Bind { job: JobId, task: u32, placement: Placement, because: Bound },
    /// Stop this task; the job waits for its turn again.
    Evict { job: JobId, task: u32, placement: Placement, because: Evicted },
    /// Stop this task and start it elsewhere, so that the job `for_job` fits.
    Move { job: JobId, task: u32, from: Placement, to: Placement, for_job: JobId },
}

/// Why work starts now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bound {
    /// There was room.
    Free,
    /// Other work was moved together.
    Consolidated,
    /// Work of other queues gave way.
    Reclaimed,
    /// Work of lower priority gave way.
    Preempted,
}

/// Why work ends now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Evicted {
    /// Its queue had more than its fair share (or, if `in_quota`, than it deserves), and `by` is
    /// due to another queue.
    Reclaimed { by: JobId, in_quota: bool },
    /// `by`, of the same queue, has a higher priority.
    Preempted { by: JobId },
    /// Its node is being cleared.
    Drained,
    /// It ran with fewer tasks than its minimum for too long.
    Stale { running: u32, tasks_min: u32 },
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bound::Free => "there is room",
            Bound::Consolidated => "other work was moved together",
            Bound::Reclaimed => "work of queues above their share gave way",
            Bound::Preempted => "work of lower priority in its queue gave way",
        })
    }
}

impl fmt::Display for Evicted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Evicted::Reclaimed { by, in_quota: false } => {
                write!(
                    f,
                    "its queue has more than its fair share, and {by} of another queue is below its own"
                )
            }
            Evicted::Reclaimed { by, in_quota: true } => {
                write!(
                    f,
                    "its queue has more than it deserves, and {by} of another queue is within what that deserves"
                )
            }
            Evicted::Preempted { by } => write!(f, "{by} of the same queue has a higher priority"),
            Evicted::Drained => f.write_str("its node is being cleared"),
            Evicted::Stale { running, tasks_min } => {
                write!(f, "only {running} of its minimum of {tasks_min} tasks have run for too long")
            }
        }
    }
}

/// Why a job waits: what keeps it from starting, and why nothing is moved, reclaimed or preempted
/// for it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Why {
    pub blocked: Option<Blocked>,
    /// None where it was not tried, because the job is blocked by something that this would not
    /// change.
    pub consolidation: Option<No>,
    pub reclaim: Option<No>,
    pub preemption: Option<No>,
}

/// What keeps a job from starting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Blocked {
    /// With it the queue would pass its limit.
    Limit { queue: String, limit: String, used: String },
    /// It may not be evicted, and with it such work of the queue would have more than the queue
    /// deserves.
    Quota { queue: String, deserved: String, used: String },
    /// No room: it needs `needs` tasks at once, `fit` of them fit now, and nodes fail these filters
    /// for one.
    Room { needs: u32, fit: u32, nodes: Unplaced },
    /// No domain of the level `within` (or not the whole cluster) has room for all its tasks, each
    /// in another domain of the level `apart` if that is asked for; the best has room for `fit`.
    Topology { within: Option<u8>, apart: Option<u8>, needs: u32, fit: u32 },
}

/// Why nothing is taken from others for a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum No {
    /// Switched off.
    Disabled,
    /// With it the queue would have more than its fair share, and more than it deserves.
    OverShare { queue: String, share: String, used: String },
    /// It asks for nothing of what is divided among queues, so that no share gives it a right to
    /// what others have.
    NotShared,
    /// It may not be evicted, and its queue has no quota left for such work, whatever others give.
    OverQuota,
    /// There is no work that may be taken for it; `protected` is protected by its minimum run time,
    /// until then at the earliest.
    NoVictims { protected: u32, until: Option<Millis> },
    /// All that may be taken is not enough for it: `fit` of its tasks would fit.
    TooLittle { needs: u32, fit: u32 },
    /// Even all free room in one place would hold only `fit` of its tasks.
    FreeTooLittle { needs: u32, fit: u32 },
    /// The work in its way may not be moved, or does not fit elsewhere.
    NowhereElse,
    /// The search for a consolidation ended at its bound.
    NodesBound { tried: u32 },
    /// Searches for work ahead of it used up what one cycle may do; a later one continues.
    Deferred,
    /// It took the place of others `times` times and lost it again, and nothing has changed since.
    LostAgain { times: u32 },
    /// The search ended at its bound after `looked_at` tasks of others.
    SearchBound { looked_at: u32 },
}

impl Why {
    /// In words, with the caller's name for a domain of each level.
    pub fn describe(&self, domain: impl Fn(u8) -> String) -> String {
        let Some(blocked) = &self.blocked else { return "its turn has not come yet".into() };
        let others = [
            ("consolidation", &self.consolidation),
            ("reclaim", &self.reclaim),
            ("preemption", &self.preemption),
        ];
        let others =
            others.into_iter().filter_map(|(what, no)| Some(format!("; no {what}: {}", no.as_ref()?)));
        blocked.describe(domain) + &others.collect::<String>()
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe(numbered))
    }
}

fn numbered(level: u8) -> String {
    format!("domain of level {level}")
}

impl Blocked {
    fn describe(&self, domain: impl Fn(u8) -> String) -> String {
        match *self {
            Blocked::Limit { ref queue, ref limit, ref used } => {
                format!("limit: queue \"{queue}\" uses {used} of at most {limit}")
            }
            Blocked::Quota { ref queue, ref deserved, ref used } => format!(
                "quota: work that may not be evicted uses {used} of the {deserved} that queue \"{queue}\" deserves"
            ),
            Blocked::Room { needs: 1, ref nodes, .. } => format!("room: {nodes}"),
            Blocked::Room { needs, fit: 0, ref nodes } => {
                format!("room: {needs} tasks at once are needed, {nodes}")
            }
            Blocked::Room { needs, fit, .. } => format!("room: {needs} tasks at once are needed, {fit} fit"),
            Blocked::Topology { within, apart, needs, fit } => {
                let tasks = if needs == 1 { "1 task".into() } else { format!("{needs} tasks") };
                let within_one = within.map(|level| format!(" in one {}", domain(level))).unwrap_or_default();
                let each = if needs == 1 { "" } else { "each " };
                let of_its_own = apart.map(|level| format!(", {each}in a {} of its own,", domain(level)));
                let (are, of_its_own) =
                    (if needs == 1 { "is" } else { "are" }, of_its_own.unwrap_or_default());
                let fit = match within {
                    Some(_) => format!("the best has room for {fit}"),
                    None => format!("{fit} fit"),
                };
                format!("topology: {tasks}{within_one}{of_its_own} {are} needed, {fit}")
            }
        }
    }
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe(numbered))
    }
}

impl fmt::Display for No {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            No::Disabled => f.write_str("switched off"),
            No::NotShared => f.write_str("it asks for nothing that is divided among queues"),
            No::OverQuota => f.write_str("its queue has no quota left for work that may not be evicted"),
            No::OverShare { queue, share, used } => {
                write!(f, "queue \"{queue}\" uses {used}, its fair share is {share}")
            }
            No::NoVictims { protected: 0, .. } => f.write_str("there is no work that would have to give way"),
            No::NoVictims { protected, until } => {
                write!(f, "{protected} tasks that would have to give way are within their minimum run time")?;
                until.map_or(Ok(()), |until| write!(f, ", the first until {until} ms"))
            }
            No::TooLittle { needs: 1, .. } => f.write_str("all that would give way makes too little room"),
            No::TooLittle { needs, fit } => {
                write!(f, "all that would give way frees room for {fit} of {needs} tasks")
            }
            No::FreeTooLittle { needs, fit } => {
                write!(f, "all that is free, put together, holds {fit} of {needs} tasks")
            }
            No::NowhereElse => f.write_str("what is in the way may not move or has nowhere else to go"),
            No::NodesBound { tried } => write!(f, "none found on {tried} nodes, the bound of the search"),
            No::LostAgain { times } => {
                write!(
                    f,
                    "it took room {times} times and lost it again; it gets free room only, until something changes"
                )
            }
            No::Deferred => f.write_str("left for a later cycle"),
            No::SearchBound { looked_at } => {
                write!(f, "none found among {looked_at} tasks, the bound of the search")
            }
        }
    }
}
