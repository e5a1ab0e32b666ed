//! What is true now: nodes, tenants, and leases that have not ended. Pure state; the time is an argument.
//!
//! Every transition of a lease is a method here and marks the lease as changed; what changed is written to the database
//! before anybody learns of it ([`crate::server`]).

use std::collections::{BTreeMap, BTreeSet};

use sluice_api::grant::Grant;
use sluice_api::lease::{Lease, LeaseId, LeaseState, NewLease, Place};
use sluice_api::node::{Attempt, Gpu, Join, NodeId, Report};
use sluice_api::tenant::{Quota, TenantPath};

/// A node that has not reported for this long is not placed on.
const SILENT_AFTER_MS: u64 = 15_000;
/// A granted lease that its program has not claimed by then ends.
const CLAIM_TIME_MS: u64 = 60_000;
/// A queued lease whose program has not asked for it for this long ends: its `sluice run` is gone.
const PATIENCE_MS: u64 = 20_000;
/// How often a node reports.
pub(crate) const REPORT_EVERY_MS: u64 = 1_000;

#[derive(Debug, Default)]
pub(crate) struct Fleet {
    pub(crate) tenants: BTreeMap<TenantPath, Quota>,
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    pub(crate) leases: BTreeMap<LeaseId, LeaseRecord>,
    last_lease: LeaseId,
    last_node: NodeId,
    /// Counts changes of leases.
    revision: u64,
    changed: BTreeSet<LeaseId>,
}

/// A node and what it last said.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) gpus: Vec<Gpu>,
    /// `None` until it has reported to this process.
    pub(crate) heard_at_ms: Option<u64>,
    pub(crate) report: Report,
}

impl Node {
    pub(crate) fn new(id: NodeId, name: String, address: String, gpus: Vec<Gpu>) -> Node {
        Node { id, name, address, gpus, heard_at_ms: None, report: Report::default() }
    }

    pub(crate) fn is_online(&self, now_ms: u64) -> bool {
        self.heard_at_ms.is_some_and(|heard| now_ms.saturating_sub(heard) < SILENT_AFTER_MS)
    }
}

/// Where a lease is, or was last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) node: NodeId,
    /// Indices of the node's GPUs.
    pub(crate) gpus: Vec<u32>,
    /// Bytes on each of them.
    pub(crate) memory: u64,
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
    pub(crate) seat: Option<Seat>,
    pub(crate) preempt_at_ms: Option<u64>,
    pub(crate) created_at_ms: u64,
    pub(crate) queued_at_ms: u64,
    pub(crate) granted_at_ms: Option<u64>,
    pub(crate) ended_at_ms: Option<u64>,
    /// When its program last asked for it; not stored.
    pub(crate) heard_at_ms: u64,
    pub(crate) revision: u64,
}

/// What a tenant holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) ppm: u64,
    pub(crate) memory: u64,
    pub(crate) leases: u32,
    pub(crate) queued: u32,
}

impl LeaseRecord {
    /// Compute of all its GPUs, in millionths of one.
    pub(crate) fn total_ppm(&self) -> u64 {
        u64::from(self.ask.share_ppm) * u64::from(self.ask.gpus)
    }

    pub(crate) fn attempt_of(&self) -> Attempt {
        Attempt { lease: self.id, attempt: self.attempt }
    }
}

impl Fleet {
    pub(crate) fn new(
        tenants: impl IntoIterator<Item = (TenantPath, Quota)>,
        nodes: Vec<Node>,
        leases: Vec<LeaseRecord>,
        last_lease: LeaseId,
        revision: u64,
        now_ms: u64,
    ) -> Fleet {
        let heard = |lease: LeaseRecord| (lease.id, LeaseRecord { heard_at_ms: now_ms, ..lease });
        Fleet {
            tenants: tenants.into_iter().collect(),
            last_node: nodes.iter().map(|node| node.id).max().unwrap_or(0),
            nodes: nodes.into_iter().map(|node| (node.id, node)).collect(),
            leases: leases.into_iter().map(heard).collect(),
            last_lease,
            revision,
            changed: BTreeSet::new(),
        }
    }

    /// Of the last change of a lease.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Takes over a change that another server has written.
    pub(crate) fn learn(&mut self, lease: LeaseRecord) {
        self.revision = self.revision.max(lease.revision);
        if lease.state == LeaseState::Ended {
            self.leases.remove(&lease.id);
        } else {
            self.leases.insert(lease.id, lease);
        }
    }

    /// What an earlier fleet heard of nodes and programs, which is not stored.
    pub(crate) fn hear_as(&mut self, earlier: &mut Fleet) {
        for (id, node) in &mut self.nodes {
            if let Some(known) = earlier.nodes.get_mut(id) {
                node.heard_at_ms = known.heard_at_ms;
                node.report = std::mem::take(&mut known.report);
            }
        }
        for (id, lease) in &mut self.leases {
            if let Some(known) = earlier.leases.get(id) {
                lease.heard_at_ms = known.heard_at_ms;
            }
        }
    }

    /// The leases that have changed since this was asked last; those that have ended leave the fleet.
    pub(crate) fn take_changed(&mut self) -> Vec<LeaseRecord> {
        let changed = std::mem::take(&mut self.changed);
        let records = changed.iter().filter_map(|id| self.leases.get(id).cloned()).collect();
        self.leases.retain(|_, lease| lease.state != LeaseState::Ended);
        records
    }

    /// Whether there is something that [`Fleet::take_changed`] would give.
    pub(crate) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    fn touch(&mut self, id: LeaseId) -> Option<&mut LeaseRecord> {
        let lease = self.leases.get_mut(&id)?;
        self.revision += 1;
        lease.revision = self.revision;
        self.changed.insert(id);
        Some(lease)
    }

    // Nodes.

    /// A node joins, or comes back: a name is a node.
    pub(crate) fn join(&mut self, join: Join) -> Node {
        let known = self.nodes.values().find(|node| node.name == join.name).map(|node| node.id);
        let id = known.unwrap_or_else(|| {
            self.last_node += 1;
            self.last_node
        });
        let node = Node::new(id, join.name, join.address, join.gpus);
        self.nodes.insert(id, node.clone());
        node
    }

    /// Takes what a node says and answers with the leases that it should not have.
    pub(crate) fn report(&mut self, node: NodeId, report: Report, now_ms: u64) -> Option<Vec<Attempt>> {
        let held: BTreeSet<Attempt> = report.leases.iter().copied().collect();
        let entry = self.nodes.get_mut(&node)?;
        if entry.heard_at_ms.is_some() && report.sequence <= entry.report.sequence {
            return Some(Vec::new());
        }
        entry.heard_at_ms = Some(now_ms);
        entry.report = Report { usage: Vec::new(), ..report };
        let seated: Vec<(LeaseId, LeaseState, Attempt)> = self
            .leases
            .values()
            .filter(|lease| lease.seat.as_ref().is_some_and(|seat| seat.node == node) && lease.state.holds())
            .map(|lease| (lease.id, lease.state, lease.attempt_of()))
            .collect();
        for (id, state, attempt) in &seated {
            match (state, held.contains(attempt)) {
                (LeaseState::Granted, true) => self.run(*id),
                (LeaseState::Running, false) => self.end(*id, "its program ended", now_ms),
                (LeaseState::Preempting, false) => self.requeue(*id, now_ms),
                _ => {}
            }
        }
        let may_stay = |attempt: &&Attempt| {
            let lease = self.leases.get(&attempt.lease);
            lease.is_some_and(|lease| {
                lease.attempt == attempt.attempt
                    && lease.seat.as_ref().is_some_and(|seat| seat.node == node)
                    && lease.state.holds()
                    && lease.preempt_at_ms.is_none_or(|at| now_ms < at)
            })
        };
        Some(held.iter().filter(|attempt| !may_stay(attempt)).copied().collect())
    }

    /// What leases hold of one GPU: millionths of its compute, bytes, and how many they are.
    pub(crate) fn leased(&self, node: NodeId, gpu: u32) -> (u64, u64, u32) {
        let mut sum = (0, 0, 0);
        for lease in self.leases.values().filter(|lease| lease.state.holds()) {
            if let Some(seat) = &lease.seat
                && seat.node == node
                && seat.gpus.contains(&gpu)
            {
                sum = (sum.0 + u64::from(lease.ask.share_ppm), sum.1 + seat.memory, sum.2 + 1);
            }
        }
        sum
    }

    // Leases.

    pub(crate) fn request(
        &mut self,
        tenant: TenantPath,
        ask: NewLease,
        token: String,
        now_ms: u64,
    ) -> LeaseId {
        self.last_lease += 1;
        let id = self.last_lease;
        let lease = LeaseRecord {
            id,
            tenant,
            ask,
            token,
            state: LeaseState::Queued,
            attempt: 1,
            reason: None,
            seat: None,
            preempt_at_ms: None,
            created_at_ms: now_ms,
            queued_at_ms: now_ms,
            granted_at_ms: None,
            ended_at_ms: None,
            heard_at_ms: now_ms,
            revision: 0,
        };
        self.leases.insert(id, lease);
        self.touch(id);
        id
    }

    /// Its program asked for it.
    pub(crate) fn hear(&mut self, id: LeaseId, now_ms: u64) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.heard_at_ms = now_ms;
        }
    }

    /// Says why a queued lease waits; the same words again are no change.
    pub(crate) fn wait_because(&mut self, id: LeaseId, reason: String) {
        let waits = |lease: &LeaseRecord| lease.state == LeaseState::Queued;
        if self.leases.get(&id).is_some_and(|lease| waits(lease) && lease.reason.as_ref() != Some(&reason))
            && let Some(lease) = self.touch(id)
        {
            lease.reason = Some(reason);
        }
    }

    pub(crate) fn grant(&mut self, id: LeaseId, seat: Seat, now_ms: u64) {
        if let Some(lease) = self.touch(id) {
            lease.state = LeaseState::Granted;
            lease.seat = Some(seat);
            lease.granted_at_ms = Some(now_ms);
            lease.reason = None;
        }
    }

    fn run(&mut self, id: LeaseId) {
        if let Some(lease) = self.touch(id) {
            lease.state = LeaseState::Running;
        }
    }

    /// Gives it notice: it ends at that moment, or before.
    pub(crate) fn preempt(&mut self, id: LeaseId, reason: String, at_ms: u64) {
        let Some(lease) = self.touch(id) else { return };
        lease.state = LeaseState::Preempting;
        lease.reason = Some(reason);
        lease.preempt_at_ms = Some(at_ms);
    }

    /// Back into the queue, as a new attempt.
    pub(crate) fn requeue(&mut self, id: LeaseId, now_ms: u64) {
        if let Some(lease) = self.touch(id) {
            lease.state = LeaseState::Queued;
            lease.attempt += 1;
            lease.seat = None;
            lease.preempt_at_ms = None;
            lease.granted_at_ms = None;
            lease.queued_at_ms = now_ms;
            lease.heard_at_ms = now_ms;
        }
    }

    pub(crate) fn end(&mut self, id: LeaseId, reason: &str, now_ms: u64) {
        if let Some(lease) = self.touch(id) {
            lease.state = LeaseState::Ended;
            lease.reason = Some(reason.into());
            lease.preempt_at_ms = None;
            lease.ended_at_ms = Some(now_ms);
        }
    }

    /// Ends what nobody waits for or claims any more.
    pub(crate) fn expire(&mut self, now_ms: u64) {
        let expired = |lease: &LeaseRecord| match lease.state {
            LeaseState::Queued if now_ms.saturating_sub(lease.heard_at_ms) > PATIENCE_MS => {
                Some("its program no longer asked for it")
            }
            LeaseState::Granted if now_ms > claim_until(lease) => Some("no program claimed it in time"),
            _ => None,
        };
        let ending: Vec<_> =
            self.leases.values().filter_map(|lease| Some((lease.id, expired(lease)?))).collect();
        for (id, reason) in ending {
            self.end(id, reason, now_ms);
        }
    }

    /// Waiting leases in the order in which they are looked at.
    pub(crate) fn queue(&self) -> Vec<&LeaseRecord> {
        let waits = |lease: &&LeaseRecord| lease.state == LeaseState::Queued;
        let mut queue: Vec<&LeaseRecord> = self.leases.values().filter(waits).collect();
        queue.sort_by_key(|lease| (std::cmp::Reverse(lease.ask.priority), lease.queued_at_ms, lease.id));
        queue
    }

    /// What a tenant and all below it hold.
    pub(crate) fn holding(&self, tenant: &TenantPath) -> Holding {
        let mut holding = Holding::default();
        for lease in self.leases.values().filter(|lease| tenant.contains(&lease.tenant)) {
            if lease.state == LeaseState::Queued {
                holding.queued += 1;
            } else if let Some(seat) = lease.seat.as_ref().filter(|_| lease.state.holds()) {
                holding.ppm += lease.total_ppm();
                holding.memory += seat.memory * u64::from(lease.ask.gpus);
                holding.leases += 1;
            }
        }
        holding
    }

    /// The grant of a lease that waits to be claimed.
    pub(crate) fn grant_of(&self, lease: &LeaseRecord) -> Option<Grant> {
        let seat = lease.seat.as_ref().filter(|_| lease.state == LeaseState::Granted)?;
        Some(Grant {
            lease: lease.id,
            attempt: lease.attempt,
            node: seat.node,
            tenant: lease.tenant.clone(),
            gpus: seat.gpus.clone(),
            share_ppm: lease.ask.share_ppm,
            memory: seat.memory,
            hard_cap: lease.ask.hard_cap,
            expires_at_ms: claim_until(lease),
        })
    }

    /// As users see it, without its grant.
    pub(crate) fn view(&self, lease: &LeaseRecord) -> Lease {
        let queued = lease.state == LeaseState::Queued;
        let position = queued.then(|| self.queue().iter().position(|waiting| waiting.id == lease.id));
        self.view_at(lease, position.flatten().map(|at| at as u32 + 1))
    }

    pub(crate) fn view_at(&self, lease: &LeaseRecord, position: Option<u32>) -> Lease {
        let place = |seat: &Seat| {
            let node = self.nodes.get(&seat.node);
            Place {
                node: node.map_or_else(String::new, |node| node.name.clone()),
                address: node.map_or_else(String::new, |node| node.address.clone()),
                gpus: seat.gpus.clone(),
            }
        };
        Lease {
            id: lease.id,
            tenant: lease.tenant.clone(),
            name: lease.ask.name.clone(),
            gpus: lease.ask.gpus,
            share_ppm: lease.ask.share_ppm,
            memory: lease.seat.as_ref().map_or(lease.ask.memory, |seat| seat.memory),
            priority: lease.ask.priority,
            preemptible: lease.ask.preemptible,
            state: lease.state,
            attempt: lease.attempt,
            position,
            reason: lease.reason.clone(),
            place: lease.seat.as_ref().map(place),
            grant: None,
            preempt_at_ms: lease.preempt_at_ms,
            created_at_ms: lease.created_at_ms,
            granted_at_ms: lease.granted_at_ms,
            ended_at_ms: lease.ended_at_ms,
            revision: lease.revision,
        }
    }
}

fn claim_until(lease: &LeaseRecord) -> u64 {
    lease.granted_at_ms.unwrap_or(0) + CLAIM_TIME_MS
}
