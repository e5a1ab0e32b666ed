//! What the pools are at a moment: whom each serves, by its personality that is in force, and until
//! when.

use std::collections::HashMap;

use sluice_api::lease::{LeaseId, NewLease};
use sluice_api::pool::{Access, InForce, Pool, Terms};
use sluice_api::tenant::TenantPath;

use super::{Clock, Plan, keeps_its_place};
use crate::fleet::{Fleet, LeaseRecord, Seat};

#[derive(Debug, Default)]
pub(super) struct Pools {
    at_ms: u64,
    in_force: HashMap<String, InForce>,
    /// When a personality comes into force or a window of a reserved pool begins or ends next.
    turn_ms: Option<u64>,
}

impl Pools {
    pub(super) fn at(fleet: &Fleet, at_ms: u64) -> Pools {
        let pools = fleet.pools().values();
        let in_force: HashMap<_, _> = pools.map(|pool| (pool.name.clone(), pool.in_force(at_ms))).collect();
        let mut pools = Pools { at_ms, in_force, turn_ms: None };
        let windows = fleet.pools().values().filter_map(|pool| pools.next_window(pool));
        let personalities = pools.in_force.values().filter_map(|in_force| in_force.until_ms);
        pools.turn_ms = windows.chain(personalities).min();
        pools
    }

    /// Whether they may be something else now; clocks are set back as well.
    pub(super) fn have_turned(&self, now_ms: u64) -> bool {
        now_ms < self.at_ms || self.turn_ms.is_some_and(|turn_ms| turn_ms <= now_ms)
    }

    /// Whether what is asked for may be in a pool.
    pub(super) fn serve(&self, fleet: &Fleet, pool: &str, tenant: &TenantPath, ask: &NewLease) -> bool {
        let serves =
            |pool| self.terms(pool).serves(tenant, ask.tier, ask.least_share_ppm(), Some(self.at_ms));
        fleet.pools().get(pool).map_or(!ask.tier.is_own(), serves)
    }

    /// Has leases make room in pools that serve them no longer.
    pub(super) fn clear(&self, fleet: &mut Fleet, clock: Clock) {
        let mut leaving = Vec::new();
        for lease in fleet.leases().filter(|lease| keeps_its_place(lease)) {
            let mut pools = lease.held().flat_map(|(_, seat)| fleet.pools_of(seat));
            let closed = pools.find(|pool| !self.serve(fleet, pool, &lease.tenant, &lease.ask));
            let closed = closed.map(|pool| self.notice(fleet, pool));
            // The scheduler has no place that is in two pools.
            let is_torn = |seat: &Seat| {
                let mut pools = fleet.pools_of(seat);
                pools.next().is_some_and(|first| pools.any(|other| other != first))
            };
            let torn = lease.held().any(|(_, seat)| is_torn(seat));
            let torn = torn.then(|| "its GPUs are in different pools from now on".to_owned());
            leaving.extend(closed.or(torn).map(|reason| (lease.id, reason)));
        }
        let leaving: Vec<(LeaseId, String)> = leaving;
        for (id, reason) in leaving {
            fleet.preempt(id, reason, clock.now_ms + clock.grace_ms);
        }
    }

    fn notice(&self, fleet: &Fleet, name: &str) -> String {
        let pool = fleet.pools().get(name);
        let personality = pool.and_then(|pool| pool.personality(self.of(name).personality));
        let with = personality.map(|personality| format!(", with its personality {}", personality.name));
        format!("pool {name} serves others from now on{}", with.unwrap_or_default())
    }

    fn of(&self, pool: &str) -> InForce {
        self.in_force.get(pool).copied().unwrap_or_default()
    }

    fn terms<'a>(&self, pool: &'a Pool) -> Terms<'a> {
        pool.terms(self.of(&pool.name).personality)
    }

    fn next_window(&self, pool: &Pool) -> Option<u64> {
        let Access::Reserved { windows, .. } = self.terms(pool).access else { return None };
        let ends = windows.iter().flat_map(|window| [window.from_ms, window.until_ms]);
        ends.filter(|&end_ms| end_ms > self.at_ms).min()
    }

    /// Why what is asked for may not be in a pool, and until when at least; none if it may.
    fn refusal(&self, fleet: &Fleet, name: &str, tenant: &TenantPath, ask: &NewLease) -> Option<String> {
        let pool = fleet.pools().get(name).filter(|_| !self.serve(fleet, name, tenant, ask))?;
        let terms = self.terms(pool);
        let why = if !terms.access.lets_in(tenant, Some(self.at_ms)) || !terms.serves_tier(ask.tier) {
            format!("pool {name} does not serve the tier {} of {tenant}", ask.tier.name())
        } else {
            format!("pool {name} lends whole GPUs only")
        };
        if !ever_serves(fleet, name, tenant, ask) {
            return Some(why);
        }
        let in_force = self.of(name);
        let until = in_force.until_ms.map(|ms| format!(" until {}", moment(ms)));
        let personality = pool.personality(in_force.personality);
        let of = personality.map(|personality| format!("; its personality {} holds", personality.name));
        Some(match (of, until) {
            (Some(of), until) => format!("{why} now{of}{}", until.unwrap_or_default()),
            (None, Some(until)) => format!("{why} now; none of its personalities holds{until}"),
            (None, None) => format!("{why} now"),
        })
    }
}

/// Whether what is asked for may be in a pool at some moment.
pub(super) fn ever_serves(fleet: &Fleet, pool: &str, tenant: &TenantPath, ask: &NewLease) -> bool {
    let serves = |terms: Terms<'_>| terms.serves(tenant, ask.tier, ask.least_share_ppm(), None);
    fleet.pools().get(pool).map_or(!ask.tier.is_own(), |pool| pool.all_terms().any(serves))
}

/// What the pools change into one after the other, as far as the plan has looked.
#[derive(Debug, Default)]
pub(super) struct PoolChanges(Vec<Pools>);

/// The plan looks ahead by at most this number of changes.
const CHANGES_MAX: usize = 32;

impl PoolChanges {
    /// The change of this number after `now`, from 0; none if the calendars know of none.
    fn nth(&mut self, fleet: &Fleet, now: &Pools, number: usize) -> Option<&Pools> {
        while self.0.len() <= number {
            let next_ms = self.0.last().unwrap_or(now).turn_ms?;
            self.0.push(Pools::at(fleet, next_ms));
        }
        self.0.get(number)
    }
}

impl Plan {
    /// When a pool with such GPUs begins to serve a lease that none serves now.
    pub(super) fn served_from_ms(&mut self, fleet: &Fleet, lease: &LeaseRecord) -> Option<u64> {
        let mut changes = std::mem::take(&mut self.pool_changes);
        let at_ms = self.first_served_ms(fleet, lease, &mut changes);
        self.pool_changes = changes;
        at_ms
    }

    /// Finds when a pool begins to serve a lease that none serves now. `changes` keeps what it
    /// computes.
    pub(super) fn first_served_ms(
        &self,
        fleet: &Fleet,
        lease: &LeaseRecord,
        changes: &mut PoolChanges,
    ) -> Option<u64> {
        let (tenant, ask) = (&lease.tenant, &lease.ask);
        // One that a pool serves waits for something else, such as a label.
        if self.atlas.accepted(ask, |pool| self.pools.serve(fleet, pool, tenant, ask))
            != sluice_sched::ModelSet::NONE
        {
            return None;
        }
        for number in 0..CHANGES_MAX {
            let pools = changes.nth(fleet, &self.pools, number)?;
            let models = self.atlas.accepted(ask, |pool| pools.serve(fleet, pool, tenant, ask));
            if models != sluice_sched::ModelSet::NONE {
                return Some(pools.at_ms);
            }
        }
        None
    }

    /// The pools in which it looks for room and that are overcommitted, in words.
    pub(super) fn overcommitted(&self, fleet: &Fleet, tenant: &TenantPath, ask: &NewLease) -> Option<String> {
        let models = self.request(fleet, tenant, ask).ok()?.models;
        self.atlas.overcommitted(models)
    }

    /// Why no kind of GPU will do.
    pub(super) fn no_kind(&self, fleet: &Fleet, tenant: &TenantPath, ask: &NewLease) -> String {
        let refused = |pool: &String| self.pools.refusal(fleet, pool, tenant, ask);
        if let Some(refusal) = ask.pool.as_ref().and_then(refused) {
            return refusal;
        }
        let later = self.atlas.accepted(ask, |pool| ever_serves(fleet, pool, tenant, ask));
        if later == sluice_sched::ModelSet::NONE {
            if let Some(nobody) = self.nobody_serves(fleet, tenant, ask) {
                return nobody;
            }
            let serves = |pool: &str| ever_serves(fleet, pool, tenant, ask);
            if let Some(few) = ask.units_milli.and_then(|units| self.atlas.too_few_units(units, serves)) {
                return few;
            }
            return "no GPU of the pools that it may use is of the model, speed and memory that it asks for"
                .into();
        }
        let mut closed = fleet.pools().keys().filter(|pool| ever_serves(fleet, pool, tenant, ask));
        let first = closed.find_map(refused).map_or_else(String::new, |refusal| format!(": {refusal}"));
        format!("the pools with such GPUs do not serve it now{first}")
    }

    /// That no pool with nodes ever serves it, whatever its GPUs are, if so.
    fn nobody_serves(&self, fleet: &Fleet, tenant: &TenantPath, ask: &NewLease) -> Option<String> {
        // The undeclared pool serves all tenants, and the tiers that need no declaration.
        let some_pool = |serves: &dyn Fn(&Terms<'_>) -> bool, otherwise: bool| {
            self.atlas.pools().any(|pool| {
                let of = |pool: &Pool| pool.all_terms().any(|terms| serves(&terms));
                fleet.pools().get(pool).map_or(otherwise, of)
            })
        };
        let lets_in = |terms: &Terms<'_>| terms.access.lets_in(tenant, None);
        let is_open = |pool: &str| {
            let serves = |pool: &Pool| pool.all_terms().any(|terms| lets_in(&terms));
            self.atlas.pools().any(|known| known == pool) && fleet.pools().get(pool).is_none_or(serves)
        };
        if let Some(pool) = ask.pool.as_deref().filter(|pool| !is_open(pool)) {
            // This does not say whether there is such a pool: it may be one of other tenants.
            return Some(format!("no pool {pool} with GPUs serves {tenant}; `sluice pools` lists the pools"));
        }
        if !some_pool(&lets_in, true) {
            return Some(format!("no pool that has GPUs serves {tenant}"));
        }
        if !some_pool(&|terms| lets_in(terms) && terms.serves_tier(ask.tier), !ask.tier.is_own()) {
            let help = if ask.tier.is_own() { "; `sluice pools` lists the tiers of each" } else { "" };
            return Some(format!(
                "no pool that has GPUs serves the tier {} of {tenant}{help}",
                ask.tier.name()
            ));
        }
        let serves = |terms: &Terms<'_>| terms.serves(tenant, ask.tier, ask.least_share_ppm(), None);
        (!some_pool(&serves, !ask.tier.is_own()))
            .then(|| format!("the pools that serve {tenant} lend whole GPUs only"))
    }
}

/// ISO 8601, to the minute: calendars know nothing shorter.
fn moment(ms: u64) -> String {
    let moment = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    moment.unwrap_or(jiff::Timestamp::MAX).strftime("%Y-%m-%dT%H:%MZ").to_string()
}
