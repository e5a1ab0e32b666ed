//! Pools of the fleet: how they are declared, and which of them has a GPU.

use std::collections::BTreeMap;

use sluice_api::GPU_PPM;
use sluice_api::lease::LeaseId;
use sluice_api::pool::{DEFAULT_POOL, Pool, Promise, Terms, Tier};

use super::lease::Seat;
use super::{Fleet, Node};

impl Fleet {
    // Pools.

    pub(crate) fn pools(&self) -> &BTreeMap<String, Pool> {
        &self.pools
    }

    /// The pool as it was declared before.
    pub(crate) fn set_pool(&mut self, pool: Pool) -> Option<Pool> {
        self.news.all = true;
        self.pools.insert(pool.name.clone(), pool)
    }

    /// Its GPUs are in other pools from now on, or in that of all others.
    pub(crate) fn remove_pool(&mut self, name: &str) {
        self.news.all |= self.pools.remove(name).is_some();
    }

    /// The name of a GPU's pool.
    pub(crate) fn pool_of(&self, node: &Node, gpu: u32) -> &str {
        self.declared_pool_of(node, gpu).map_or(DEFAULT_POOL, |pool| &pool.name)
    }

    pub(super) fn declared_pool_of(&self, node: &Node, gpu: u32) -> Option<&Pool> {
        let model = node.gpus.get(gpu as usize).map_or("", |gpu| &gpu.name);
        let named = self.pools.values().find(|pool| pool.names(&node.name, gpu));
        named.or_else(|| self.pools.values().find(|pool| pool.claims(&node.name, &node.labels, model)))
    }

    /// The pools of a seat's GPUs: one, unless pools have been declared anew since.
    pub(crate) fn pools_of(&self, seat: &Seat) -> impl Iterator<Item = &str> {
        let node = self.nodes.get(&seat.node);
        seat.gpus.iter().map(move |&gpu| node.map_or(DEFAULT_POOL, |node| self.pool_of(node, gpu)))
    }

    /// New seats of a lease, each with what its pool promises at this moment, and its limit.
    pub(super) fn promising(&self, id: LeaseId, seats: Vec<Seat>, at_ms: u64) -> Vec<Seat> {
        let Some(tier) = self.leases.get(&id).map(|lease| lease.ask.tier) else { return seats };
        let promising = |seat: Seat| {
            let (promise, limit_ppm) = self.terms_of_tier(&seat, tier, at_ms).unwrap_or_default();
            Seat { promise, limit_ppm, ..seat }
        };
        seats.into_iter().map(promising).collect()
    }

    /// What the pool promises a tier at a moment, and the most of a GPU that its leases get.
    fn terms_of_tier(&self, seat: &Seat, tier: Tier, at_ms: u64) -> Option<(Option<Promise>, Option<u32>)> {
        let pool = self.declared_pool_of(self.nodes.get(&seat.node)?, *seat.gpus.first()?)?;
        let of = |terms: Terms<'_>| (terms.promise(tier), terms.limit_ppm(tier));
        // Calendars are followed only where something depends on them.
        if pool.all_terms().all(|terms| of(terms) == (None, None)) {
            return None;
        }
        Some(of(pool.terms(pool.in_force(at_ms).personality)))
    }

    /// Millionths of a GPU that may be leased in parts.
    pub(crate) fn promised_ppm(&self, node: &Node, gpu: u32) -> u32 {
        self.declared_pool_of(node, gpu).map_or(GPU_PPM, Pool::promised_ppm)
    }

    /// Millionths that may be leased of the GPUs of a seat: what its pool says, and what is leased
    /// though that was said to be less since.
    pub(super) fn promised_of(&self, seat: &Seat) -> u32 {
        let of_gpu = |gpu| self.nodes.get(&seat.node).map_or(GPU_PPM, |node| self.promised_ppm(node, gpu));
        let of_pool = seat.gpus.iter().map(|&gpu| of_gpu(gpu)).min().unwrap_or(GPU_PPM);
        let leased = seat.gpus.iter().map(|&gpu| self.taken(seat.node, gpu).ppm).max().unwrap_or(0);
        of_pool.max(u32::try_from(leased).unwrap_or(u32::MAX))
    }
}
