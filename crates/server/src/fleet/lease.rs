//! A lease as the server's state has it, and where its tasks are.

use sluice_api::GPU_PPM;
use sluice_api::autonomy::{AutomaticSize, Idle};
use sluice_api::lease::{LeaseId, LeaseState, NewLease, PRIORITY_MAX, ResizeLease, TASKS_MAX};
use sluice_api::node::{Attempt, NodeId};
use sluice_api::pool::{Class, Promise};
use sluice_api::tenant::TenantPath;

use crate::autonomy::{IdleState, LiveLease};

/// Where a task of a lease is.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Seat {
    pub(crate) node: NodeId,
    /// Indices of the node's GPUs.
    pub(crate) gpus: Vec<u32>,
    /// Bytes on each of them.
    pub(crate) memory: u64,
    /// Millionths of each of them, where units were asked for, or while it is resized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) share_ppm: Option<u32>,
    /// Counts the sizes that were sent to its node after the first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) version: u32,
    /// Its sessions get no GPU time; the share that it counts as is none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) suspended: bool,
    /// While it is suspended and its memory has left its GPUs: bytes that stay on each of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) vacated: Option<u64>,
    /// A change of what it has that is under way or was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) resizing: Option<SeatResize>,
    /// Its last move to another node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) moving: Option<SeatMove>,
    /// Counts the orders to move it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) moves: u32,
    /// The nodes that it was on before it moved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) earlier: Vec<NodeId>,
    /// Its node has had it.
    #[serde(default)]
    pub(crate) claimed: bool,
    /// Its node has it no more: its GPUs are free.
    #[serde(default)]
    pub(crate) over: bool,
    /// Its task has to make room until then, while the lease continues. Another one may come later,
    /// with a number of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) leave_at_ms: Option<u64>,
    /// What its pool promised the tier of the lease when the seat was granted. It holds for as long
    /// as the lease has the seat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) promise: Option<Promise>,
    /// The most of each GPU, in millionths, that its pool grants the tier, as of that moment too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) limit_ppm: Option<u32>,
    /// When it was granted, if not with the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) granted_at_ms: Option<u64>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// What a seat has of each of its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Size {
    pub(crate) share_ppm: u32,
    /// [`GPU_PPM`] for no limit.
    pub(crate) limit_ppm: u32,
    /// Bytes.
    pub(crate) memory: u64,
    /// No share is held for it, and memory only as long as that has not left its GPUs.
    #[serde(default)]
    pub(crate) suspended: bool,
}

impl Size {
    /// Millionths of a GPU that no other lease may have.
    pub(crate) fn held_ppm(self) -> u32 {
        if self.suspended { 0 } else { self.share_ppm }
    }

    /// After a change.
    pub(crate) fn resized(self, resize: &ResizeLease) -> Size {
        let share_ppm = resize.share_ppm.unwrap_or(self.share_ppm);
        let was_capped = self.limit_ppm == self.share_ppm && self.limit_ppm < GPU_PPM;
        let limit_ppm = match resize.limit_ppm {
            Some(0) => share_ppm,
            Some(limit_ppm) => limit_ppm,
            None if was_capped => share_ppm,
            None => self.limit_ppm,
        };
        let memory = resize.memory.unwrap_or(self.memory);
        Size { share_ppm, limit_ppm, memory, suspended: resize.suspended.unwrap_or(self.suspended) }
    }
}

/// A change of what a seat has.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct SeatResize {
    pub(crate) from: Size,
    pub(crate) to: Size,
    pub(crate) stage: Stage,
}

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stage {
    /// There is no room for it yet; the seat has what it had.
    Waiting {
        reason: String,
    },
    /// The seat counts as the larger of both until its node says which it is.
    Sent,
    Refused {
        reason: String,
    },
}

/// A move of a seat to another node.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SeatMove {
    /// Its node has the order to give it away. Both places are held for it.
    Sent {
        node: NodeId,
        /// Indices of that node's GPUs.
        gpus: Vec<u32>,
        /// Its node has it no more and has not said why: the other one knows.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        has_left: bool,
        /// Why the server moves it, unless a person wants that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<MoveCause>,
    },
    /// Its node is the other one. What was copied is not known where that one said so. Until the
    /// new node has listed the lease, `awaited` counts its reports that do not.
    Moved {
        bytes: Option<u64>,
        stall_us: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        awaited: Option<u8>,
    },
    /// It stays where it was.
    Refused {
        reason: String,
        #[serde(default)]
        at_ms: u64,
    },
}

/// Why the server moves a lease by itself.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct MoveCause {
    /// As it stands in the notice of a lease that starts again.
    pub(crate) reason: String,
    /// The lease that gets its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) taker: Option<LeaseId>,
    /// What is not known to have moved by then gets notice.
    pub(crate) until_ms: u64,
}

/// A report that was in flight when the lease moved cannot list it, nor can the one that was made
/// before its answer came.
const UNLISTED_MAX: u8 = 2;

impl SeatMove {
    /// Whether its node, which has just reported, is still to list it: a report may be older than
    /// the move, and one may have the lease as arriving.
    pub(crate) fn is_awaited(&mut self, has: bool, is_arriving: bool) -> bool {
        let SeatMove::Moved { awaited, .. } = self else { return false };
        match awaited {
            None => false,
            Some(_) if has => {
                *awaited = None;
                false
            }
            Some(_) if is_arriving => true,
            Some(unlisted) => {
                *unlisted += 1;
                *unlisted <= UNLISTED_MAX
            }
        }
    }
}

/// An attempt has no more tasks than this one after another: seats stay in the state until it is
/// over.
const SEATS_MAX: usize = 4 * TASKS_MAX as usize;

impl Seat {
    pub(crate) fn new(node: NodeId, gpus: Vec<u32>, memory: u64) -> Seat {
        let (claimed, over) = (false, false);
        Seat {
            node,
            gpus,
            memory,
            share_ppm: None,
            version: 0,
            suspended: false,
            vacated: None,
            resizing: None,
            moving: None,
            moves: 0,
            earlier: Vec::new(),
            claimed,
            over,
            leave_at_ms: None,
            promise: None,
            limit_ppm: None,
            granted_at_ms: None,
        }
    }

    /// Bytes of each GPU that no other lease may have.
    pub(crate) fn held_memory(&self) -> u64 {
        self.vacated.map_or(self.memory, |stays| stays.min(self.memory))
    }

    /// Bytes of each GPU that no other lease may have once it is of this size.
    pub(crate) fn memory_held_as(&self, to: Size) -> u64 {
        self.vacated.filter(|_| to.suspended).map_or(to.memory, |stays| stays.min(to.memory))
    }

    /// The other node and its GPUs, while it moves.
    pub(crate) fn target(&self) -> Option<(NodeId, &[u32])> {
        match &self.moving {
            Some(SeatMove::Sent { node, gpus, .. }) if !self.over => Some((*node, gpus)),
            _ => None,
        }
    }

    /// The seat as it is once it has moved; itself unless it moves.
    pub(crate) fn at_target(&self) -> Seat {
        match self.target() {
            Some((node, gpus)) => Seat { node, gpus: gpus.to_vec(), ..self.clone() },
            None => self.clone(),
        }
    }

    /// Whether a change of what it has is under way.
    pub(crate) fn is_resizing(&self) -> bool {
        self.resizing.as_ref().is_some_and(|resize| !matches!(resize.stage, Stage::Refused { .. }))
    }

    /// The most of each GPU that its tier may have here, in millionths, with this share.
    pub(crate) fn limit_of_tier(&self, share_ppm: u32) -> u32 {
        self.limit_ppm.map_or(GPU_PPM, |limit_ppm| limit_ppm.max(share_ppm))
    }

    /// Whether its task continues, as far as is known.
    pub(crate) fn stays(&self) -> bool {
        !self.over && self.leave_at_ms.is_none()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct LeaseRecord {
    pub(crate) id: LeaseId,
    pub(crate) tenant: TenantPath,
    pub(crate) ask: NewLease,
    /// Id of the token that asked for it.
    pub(crate) token: String,
    /// Who that is, as people know them.
    pub(crate) person: String,
    pub(crate) state: LeaseState,
    pub(crate) attempt: u32,
    pub(crate) reason: Option<String>,
    /// One for each task that this attempt has had, at the place of its number; none while it
    /// waits.
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
    /// What the server has changed about it by itself.
    pub(crate) automatic: Option<Automatic>,
}

/// What the server has changed about a lease by itself, and what it goes by.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Automatic {
    /// Another size than was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) size: Option<AutomaticSize>,
    /// What its share follows while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) live: Option<LiveLease>,
    /// Its programs do nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) idle: Option<IdleState>,
    /// It is to have what it asked for, which could not be done yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) undone: bool,
    /// A person has resized it since, whose word counts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) by_hand: bool,
}

/// The order of a tenant's line: higher priority, then first come.
pub(crate) type LinePlace = (std::cmp::Reverse<i32>, u64, LeaseId);

impl LeaseRecord {
    /// A lease that was asked for just now, and waits.
    pub(crate) fn requested(
        id: LeaseId,
        tenant: TenantPath,
        ask: NewLease,
        token: String,
        now_ms: u64,
    ) -> LeaseRecord {
        LeaseRecord {
            id,
            tenant,
            ask,
            token,
            person: String::new(),
            state: LeaseState::Queued,
            attempt: 1,
            reason: None,
            seats: Vec::new(),
            preempt_at_ms: None,
            created_at_ms: now_ms,
            queued_at_ms: now_ms,
            granted_at_ms: None,
            ended_at_ms: None,
            heard_at_ms: now_ms,
            revision: 0,
            automatic: None,
        }
    }

    /// Of each GPU of a seat, in millionths.
    pub(crate) fn share_ppm(&self, seat: &Seat) -> u32 {
        seat.share_ppm.unwrap_or(self.ask.share_ppm)
    }

    /// What a seat has, without the limit of its tier.
    pub(crate) fn asked_size(&self, seat: &Seat) -> Size {
        let size = self.size(seat);
        let limit_ppm = if self.ask.hard_cap { size.share_ppm } else { self.ask.limit_ppm() };
        Size { limit_ppm, ..size }
    }

    /// What a seat has, as far as is known: until a change is confirmed, what it had before.
    pub(crate) fn size(&self, seat: &Seat) -> Size {
        match &seat.resizing {
            Some(SeatResize { from, stage: Stage::Sent, .. }) => *from,
            _ => {
                // Only leases that asked for a share can be suspended.
                let share_ppm = if seat.suspended { self.ask.share_ppm } else { self.share_ppm(seat) };
                let limit_ppm = if self.ask.hard_cap { share_ppm } else { self.ask.limit_ppm() };
                let limit_ppm = limit_ppm.min(seat.limit_of_tier(share_ppm));
                Size { share_ppm, limit_ppm, memory: seat.memory, suspended: seat.suspended }
            }
        }
    }

    /// Compute of all GPUs that it holds, in millionths of one.
    pub(crate) fn ppm(&self) -> u64 {
        self.held().map(|(_, seat)| u64::from(self.share_ppm(seat)) * seat.gpus.len() as u64).sum()
    }

    pub(crate) fn attempt_of(&self, task: usize) -> Attempt {
        Attempt { lease: self.id, attempt: self.attempt, task: task as u32 }
    }

    pub(crate) fn line_place(&self) -> LinePlace {
        (std::cmp::Reverse(self.priority()), self.queued_at_ms, self.id)
    }

    /// The fewest and the most tasks that are to run at the same time. Those that have ended by
    /// themselves are done with: they count towards both. Those that had to make room may come
    /// again.
    pub(crate) fn tasks(&self) -> (u32, u32) {
        let (min, max) = (self.ask.tasks, self.ask.tasks_max.unwrap_or(self.ask.tasks));
        if !matches!(self.state, LeaseState::Granted | LeaseState::Running) {
            return (min, max);
        }
        let count = |of: fn(&Seat) -> bool| self.seats.iter().filter(|seat| of(seat)).count() as u32;
        let stay = count(Seat::stays);
        let gone = count(|seat| seat.over && seat.leave_at_ms.is_none());
        // One that no program could claim has done nothing towards the minimum.
        let done = count(|seat| seat.over && seat.leave_at_ms.is_none() && seat.claimed);
        let more = max.saturating_sub(stay + gone).min(SEATS_MAX.saturating_sub(self.seats.len()) as u32);
        let min = min.saturating_sub(done).min(stay).max(1);
        (min, (stay + more).max(min))
    }

    /// Its tasks that hold GPUs, by their numbers.
    pub(crate) fn held(&self) -> impl Iterator<Item = (u32, &Seat)> {
        (0..).zip(&self.seats).filter(|(_, seat)| !seat.over)
    }

    /// The numbers of those among them that are `such`.
    pub(crate) fn held_tasks(&self, such: impl Fn(&Seat) -> bool) -> Vec<u32> {
        self.held().filter(|(_, seat)| such(seat)).map(|(task, _)| task).collect()
    }

    /// Whether it is elastic, and enough of its other tasks run for it to continue if these have to
    /// leave.
    pub(crate) fn does_without(&self, tasks: &[u32]) -> bool {
        let runs = |(task, seat): &(u32, &Seat)| seat.claimed && seat.stays() && !tasks.contains(task);
        self.state == LeaseState::Running
            && self.ask.tasks_max.is_some()
            && self.held().filter(runs).count() as u32 >= self.tasks().0
    }

    /// The moments until which it, or one of its tasks, has to make room.
    pub(crate) fn notices(&self) -> impl Iterator<Item = u64> + '_ {
        let of_seats = self.held().filter_map(|(_, seat)| seat.leave_at_ms);
        self.preempt_at_ms.into_iter().chain(of_seats)
    }

    /// Returns these moments for a caller that changes them.
    pub(crate) fn notices_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        let of_seats = self.seats.iter_mut().filter(|seat| !seat.over).filter_map(|s| s.leave_at_ms.as_mut());
        self.preempt_at_ms.iter_mut().chain(of_seats)
    }

    pub(crate) fn is_preemptible(&self) -> bool {
        self.ask.preemptible && !self.ask.tier.is_premium()
    }

    /// Among the leases of its tenant: basic ones go after all others.
    pub(crate) fn priority(&self) -> i32 {
        match self.ask.tier.class() {
            Class::Basic => self.ask.priority - PRIORITY_MAX,
            Class::Standard | Class::Premium => self.ask.priority,
        }
    }

    /// What comes of it that its programs do nothing.
    pub(crate) fn shown_idle(&self) -> Option<Idle> {
        self.automatic.as_ref()?.idle.as_ref().map(IdleState::shown)
    }

    /// Whether it holds parts of GPUs.
    pub(crate) fn holds(&self) -> bool {
        self.state.holds()
    }

    pub(crate) fn waits(&self) -> bool {
        self.state == LeaseState::Queued
    }
}
