//! Nodes of the fleet: they join, report, and what they say is compared with what leases hold.

use std::collections::{BTreeMap, BTreeSet};

use sluice_api::lease::{LeaseId, LeaseState};
use sluice_api::node::{Attempt, Drain, Gpu, Join, NodeId, Report};
use sluice_api::usage::UsageRecord;

use super::Fleet;
use super::account::Taken;
use super::lease::{Seat, SeatMove};

/// A node and what it last said.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) gpus: Vec<Gpu>,
    /// `zone=a`, `rack=7`, ...: what requests select nodes by.
    pub(crate) labels: BTreeMap<String, String>,
    /// An operator wants it empty.
    pub(crate) drain: Option<Drain>,
    /// When it joined this process; not stored.
    pub(super) joined_at_ms: u64,
    /// `None` until it has reported to this process.
    pub(crate) heard_at_ms: Option<u64>,
    pub(crate) report: Report,
    /// The end of its usage records that were received; not stored.
    pub(crate) used_until_ms: Option<u64>,
    /// Milliseconds since then in which this server did not listen.
    pub(super) deaf_ms: u64,
    /// As of the last look of [`Fleet::look_at_nodes`].
    pub(super) online: bool,
    /// It is silent and did not say that it would be; not stored.
    pub(super) missed: bool,
}

impl Node {
    pub(crate) fn new(id: NodeId, name: String, address: String, gpus: Vec<Gpu>) -> Node {
        Node {
            id,
            name,
            address,
            gpus,
            labels: BTreeMap::new(),
            drain: None,
            joined_at_ms: 0,
            heard_at_ms: None,
            report: Report::default(),
            used_until_ms: None,
            deaf_ms: 0,
            online: false,
            missed: false,
        }
    }

    /// Whether new leases may be placed here.
    pub(crate) fn takes_work(&self) -> bool {
        self.online && !self.report.closed && self.drain.is_none()
    }

    /// Whether it is there and takes none.
    pub(crate) fn is_closed(&self) -> bool {
        self.online && self.report.closed
    }
}

impl Fleet {
    // Nodes.

    pub(crate) fn nodes(&self) -> &BTreeMap<NodeId, Node> {
        &self.nodes
    }

    /// A node joins, or comes back: a name is a node.
    pub(crate) fn join(&mut self, join: Join, now_ms: u64) -> Node {
        let known = self.node_named(&join.name).map(|node| node.id);
        let forgotten = self.forgotten.iter().find(|(_, name)| **name == join.name).map(|(id, _)| *id);
        let id = known.or(forgotten).unwrap_or_else(|| {
            self.last_node += 1;
            self.last_node
        });
        let mut node = Node::new(id, join.name, join.address, join.gpus);
        node.labels = join.labels;
        node.joined_at_ms = now_ms;
        let before = self.nodes.get(&id);
        node.drain = before.and_then(|before| before.drain.clone());
        node.missed = before.is_some_and(|before| before.missed);
        self.forgotten.remove(&id);
        let before = self.nodes.insert(id, node.clone());
        let other = |before: &Node| before.gpus != node.gpus || before.labels != node.labels;
        self.news.all |= before.as_ref().is_some_and(other);
        self.news.nodes.insert(id);
        node
    }

    /// Takes what a node says and answers with the attempts that it should not have.
    pub(crate) fn report(&mut self, node: NodeId, report: Report, now_ms: u64) -> Option<Vec<Attempt>> {
        let held: BTreeSet<Attempt> = report.leases.iter().copied().collect();
        // Perhaps nothing else was ever received about them.
        let last = report.usage.iter().filter(|record| record.last);
        let ended: BTreeSet<Attempt> = last.map(UsageRecord::attempt_of).collect();
        let entry = self.nodes.get_mut(&node)?;
        if entry.heard_at_ms.is_some() && report.sequence <= entry.report.sequence {
            return Some(Vec::new());
        }
        (entry.heard_at_ms, entry.deaf_ms) = (Some(now_ms), 0);
        let used_until_ms = report.usage.iter().map(|record| record.until_ms).max();
        entry.used_until_ms = entry.used_until_ms.max(used_until_ms);
        // An older one may have been in flight for long, from before what an earlier leader has
        // received since.
        let is_current = report.leadership.is_none_or(|leadership| leadership == self.leadership);
        let comes_back = !entry.online;
        let forgives = self.refusals.remove(&node).is_some();
        let turns = entry.report.closed != report.closed;
        if comes_back || forgives || turns {
            entry.online = true;
            self.news.nodes.insert(node);
        }
        if std::mem::take(&mut entry.missed) {
            self.silence.reports_again(&entry.name);
        }
        self.note_movable(node, &report);
        let entry = self.nodes.get_mut(&node)?;
        let (resized, vacated) = (report.resized.clone(), report.vacated.clone());
        let (moved, arriving) = (report.moved.clone(), report.arriving.iter().copied().collect());
        let mut idle = report.idle;
        // They are looked up by their attempts.
        idle.sort_by_key(|idle| idle.attempt);
        entry.report = Report {
            idle,
            usage: Vec::new(),
            faults: Vec::new(),
            resized: Vec::new(),
            vacated: Vec::new(),
            arriving: Vec::new(),
            moved: Vec::new(),
            ..report
        };
        self.settle_resizes(node, &resized);
        self.settle_vacated(node, &vacated);
        self.settle_moves(node, &moved, now_ms);
        if is_current {
            self.compare_moving(node, &held, &arriving, now_ms);
        }
        for id in self.account.on_node(node) {
            self.compare(id, node, (&held, &arriving, &ended), is_current, now_ms);
        }
        let has = held.iter().chain(&arriving);
        let end: Vec<Attempt> =
            has.filter(|attempt| !self.may_stay(attempt, node, now_ms)).copied().collect();
        if comes_back {
            self.count_ended(end.len());
        }
        Some(end)
    }

    /// Takes over what a node says about the tasks of one lease that are there.
    fn compare(
        &mut self,
        id: LeaseId,
        node: NodeId,
        (held, arriving, ended): (&BTreeSet<Attempt>, &BTreeSet<Attempt>, &BTreeSet<Attempt>),
        is_current: bool,
        now_ms: u64,
    ) {
        let Some(lease) = self.leases.get(&id) else { return };
        let mut seats = lease.seats.clone();
        for (task, seat) in seats.iter_mut().enumerate().filter(|(_, seat)| seat.node == node) {
            if let Some(SeatMove::Sent { has_left, .. }) = &mut seat.moving {
                // It may be on the other node, which says so.
                *has_left |= is_current && !held.contains(&lease.attempt_of(task));
                continue;
            }
            let has = held.contains(&lease.attempt_of(task));
            let is_arriving = arriving.contains(&lease.attempt_of(task));
            if is_current && seat.moving.as_mut().is_some_and(|moving| moving.is_awaited(has, is_arriving)) {
                continue;
            }
            seat.claimed |= !seat.over && (has || ended.contains(&lease.attempt_of(task)));
            let has_notice = lease.state == LeaseState::Preempting || seat.leave_at_ms.is_some();
            seat.over |= is_current && !has && (seat.claimed || has_notice);
        }
        if seats != lease.seats {
            self.change(id, |lease| lease.seats = seats);
        }
        self.follow_seats(id, now_ms);
    }

    /// What its tasks make of a lease.
    pub(super) fn follow_seats(&mut self, id: LeaseId, now_ms: u64) {
        let Some(lease) = self.leases.get(&id) else { return };
        let claimed = lease.seats.iter().all(|seat| seat.claimed || seat.over);
        let over = lease.seats.iter().all(|seat| seat.over);
        match lease.state {
            LeaseState::Preempting if over => self.requeue(id, now_ms),
            LeaseState::Granted | LeaseState::Running if over => self.end(id, "its program ended", now_ms),
            LeaseState::Granted if claimed => self.change(id, |lease| lease.state = LeaseState::Running),
            _ => {}
        }
    }

    fn may_stay(&self, attempt: &Attempt, node: NodeId, now_ms: u64) -> bool {
        let is_there = |seat: &Seat| {
            let is_its_node = seat.node == node || seat.target().is_some_and(|(target, _)| target == node);
            // The GPUs of one that is over may be another's already.
            is_its_node && !seat.over && seat.leave_at_ms.is_none_or(|at| now_ms < at)
        };
        self.leases.get(&attempt.lease).is_some_and(|lease| {
            lease.attempt == attempt.attempt
                && lease.seats.get(attempt.task as usize).is_some_and(is_there)
                && lease.holds()
                && lease.preempt_at_ms.is_none_or(|at| now_ms < at)
        })
    }

    /// Leases that hold parts of its GPUs.
    pub(crate) fn on_node(&self, node: NodeId) -> Vec<LeaseId> {
        self.account.on_node(node)
    }

    /// What leases hold of one GPU.
    pub(crate) fn taken(&self, node: NodeId, gpu: u32) -> Taken {
        self.account.taken(node, gpu)
    }
}
