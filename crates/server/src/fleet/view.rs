//! Leases as their users see them, what they hold in units, and the grants of their tasks.

use std::collections::BTreeMap;

use sluice_api::GPU_PPM;
use sluice_api::grant::Grant;
use sluice_api::lease::{Lease, LeaseState, Place};
use sluice_api::pool::DEFAULT_POOL;
use sluice_api::tenant::TenantPath;

use super::lease::{LeaseRecord, Seat};
use super::{Fleet, resize};

impl Fleet {
    /// Waiting leases, line by line.
    pub(crate) fn queue(&self) -> impl Iterator<Item = &LeaseRecord> {
        self.account.lines().filter_map(|id| self.leases.get(&id))
    }

    /// Thousandths of units that each tenant and those below it hold.
    pub(crate) fn held_units_milli(&self) -> BTreeMap<TenantPath, u64> {
        let mut held: BTreeMap<TenantPath, u64> = BTreeMap::new();
        for lease in self.leases().filter(|lease| lease.holds()) {
            let of_seat = |seat: &Seat| {
                let gpus = self.nodes.get(&seat.node).map_or(&[][..], |node| &node.gpus);
                let gflops = seat.gpus.iter().filter_map(|&gpu| gpus.get(gpu as usize)).map(|gpu| gpu.gflops);
                u64::from(lease.share_ppm(seat)) * gflops.sum::<u64>() / u64::from(GPU_PPM)
            };
            let units: u64 = lease.held().map(|(_, seat)| of_seat(seat)).sum();
            lease.tenant.lineage().for_each(|tenant| *held.entry(tenant).or_default() += units);
        }
        held
    }

    /// The grants of the tasks that wait to be claimed.
    pub(crate) fn grants_of(&self, lease: &LeaseRecord) -> Vec<Grant> {
        let may_be_claimed = match lease.state {
            // All start together or none does.
            LeaseState::Granted => lease.seats.iter().all(|seat| !seat.over),
            state => state == LeaseState::Running,
        };
        let waits = |(_, seat): &(u32, &Seat)| may_be_claimed && seat.stays() && !seat.claimed;
        let grant = |(task, seat): (u32, &Seat)| self.grant_of(lease, task, seat);
        lease.held().filter(waits).map(grant).collect()
    }

    /// A grant of what a task has now, good as long as it can be claimed.
    pub(super) fn grant_of(&self, lease: &LeaseRecord, task: u32, seat: &Seat) -> Grant {
        let grant = Grant {
            lease: lease.id,
            attempt: lease.attempt,
            task,
            node: seat.node,
            tenant: lease.tenant.clone(),
            tier: lease.ask.tier,
            pool: self.pools_of(seat).next().unwrap_or(DEFAULT_POOL).into(),
            gpus: seat.gpus.clone(),
            share_ppm: 0,
            promised_ppm: self.promised_of(seat),
            memory: 0,
            hard_cap: false,
            limit_ppm: None,
            suspended: false,
            version: seat.version,
            moves: 0,
            promise: seat.promise,
            expires_at_ms: self.claim_until(lease, seat),
        };
        resize::sized(grant, lease.size(seat))
    }

    /// As users see it, without grants and what the plan knows.
    pub(crate) fn view(&self, lease: &LeaseRecord) -> Lease {
        let place = |(task, seat): (u32, &Seat)| {
            let node = self.nodes.get(&seat.node);
            Place {
                task,
                node: self.name_of(seat.node).to_owned(),
                address: node.map_or_else(String::new, |node| node.address.clone()),
                gpus: seat.gpus.clone(),
                grant: None,
                resize: None,
                leave_at_ms: seat.leave_at_ms,
            }
        };
        let waits = |seat: &&Seat| lease.state == LeaseState::Granted && !seat.claimed && !seat.over;
        let claim_until_ms = lease.seats.iter().filter(waits).map(|seat| self.claim_until(lease, seat)).min();
        let is_over = lease.state == LeaseState::Ended;
        let has_place = |seat: &Seat| if is_over { seat.leave_at_ms.is_none() } else { !seat.over };
        let seats = (0..).zip(&lease.seats).filter(|(_, seat)| has_place(seat));
        let places: Vec<Place> = seats.map(place).collect();
        Lease {
            id: lease.id,
            tenant: lease.tenant.clone(),
            name: lease.ask.name.clone(),
            user: lease.person.clone(),
            gpus: lease.ask.gpus,
            tasks: if places.is_empty() { lease.ask.tasks } else { places.len() as u32 },
            share_ppm: match (lease.seats.first(), lease.ask.units_milli) {
                (Some(seat), _) => lease.size(seat).share_ppm,
                (None, Some(_)) => 0,
                (None, None) => lease.ask.share_ppm,
            },
            units_milli: lease.ask.units_milli,
            limit_ppm: lease.seats.first().map_or(lease.ask.limit_ppm(), |seat| lease.size(seat).limit_ppm),
            memory: lease.seats.first().map_or(lease.ask.memory, |seat| lease.size(seat).memory),
            suspended: lease.held().any(|(_, seat)| lease.size(seat).suspended),
            resizing: resize::view(lease),
            moving: self.moving(lease),
            automatic: lease.automatic.as_ref().and_then(|automatic| automatic.size.clone()),
            idle: lease.shown_idle(),
            priority: lease.ask.priority,
            tier: lease.ask.tier,
            promise: lease.seats.first().and_then(|seat| seat.promise),
            preemptible: lease.is_preemptible(),
            state: lease.state,
            attempt: lease.attempt,
            position: self.account.position(lease),
            reason: lease.reason.clone(),
            reason_brief: None,
            start: None,
            tightest_budget: None,
            places,
            preempt_at_ms: lease.preempt_at_ms,
            created_at_ms: lease.created_at_ms,
            granted_at_ms: lease.granted_at_ms,
            claim_until_ms,
            ended_at_ms: lease.ended_at_ms,
            revision: lease.revision,
            key: None,
        }
    }
}
