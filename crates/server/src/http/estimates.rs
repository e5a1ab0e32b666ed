//! Dry runs: what a request for a lease would lead to, without making it.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};
use sluice_api::GPU_PPM;
use sluice_api::bill::{Goods, Meter};
use sluice_api::lease::{EstimatedPlace, Lease, LeaseEstimate, NewLease, Offer};
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::TenantPath;

use super::answer::Refusal;
use crate::billing::Quote;
use crate::fleet::{Fleet, LeaseRecord, Seat};
use crate::plan::{Clock, Offered, Trial};
use crate::server::{Books, Server};

const HOUR_MS: u64 = 3_600_000;

/// The option of a dry run.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct DryRun {
    /// Answer with an estimate and do nothing else.
    #[serde(default)]
    pub(super) dry_run: bool,
}

/// The lease that was made, or the estimate of a dry run.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(untagged)]
pub(super) enum Asked {
    Lease(Box<Lease>),
    Estimate(Box<LeaseEstimate>),
}

/// The estimate as far as it follows from the fleet, and what its prices depend on.
struct Unpriced {
    estimate: LeaseEstimate,
    /// The goods of each place.
    goods: Vec<Goods>,
    offers: Vec<Offered>,
}

pub(super) async fn estimate(
    server: &Server,
    tenant: &TenantPath,
    ask: &NewLease,
) -> Result<LeaseEstimate, Refusal> {
    let look = |books: &Books, now_ms: u64| unpriced(books, tenant, ask, (now_ms, server.grace_ms));
    let Unpriced { mut estimate, goods, offers } = server.read(look).await??;
    let quote = Quote::at(&server.store, server.now_ms()).await?;
    let prices = Prices { quote, tenant };
    if !estimate.places.is_empty() {
        let places = || estimate.places.iter().zip(&goods);
        let held = places().map(|(place, goods)| {
            prices.held(goods, u64::from(place.share_ppm), place.memory, place.gpus.len() as u64)
        });
        let used = places().map(|(place, goods)| {
            let most_ppm = if ask.hard_cap { place.share_ppm } else { ask.limit_ppm.unwrap_or(GPU_PPM) };
            prices.used(goods, u64::from(most_ppm), place.gpus.len() as u64)
        });
        let (held, used) = (held.fold(0, u64::saturating_add), used.fold(0, u64::saturating_add));
        (estimate.micro_per_hour, estimate.used_micro_per_hour_max) = (Some(held), Some(used));
    }
    let count = u64::from(ask.gpus) * u64::from(ask.tasks);
    estimate.offers = offers.into_iter().map(|offered| offer(offered, ask, count, &prices)).collect();
    estimate
        .offers
        .sort_by_key(|offer| (offer.micro_per_hour, Reverse(offer.gpus_free), offer.model.clone()));
    Ok(estimate)
}

fn unpriced(
    books: &Books,
    tenant: &TenantPath,
    ask: &NewLease,
    (now_ms, grace_ms): (u64, u64),
) -> Result<Unpriced, Problem> {
    is_for_tenant(&books.fleet, tenant)?;
    if let Some(reason) = books.never(tenant, ask) {
        return Err(Problem::new(Kind::NeverFits, reason));
    }
    let lease = LeaseRecord::requested(0, tenant.clone(), ask.clone(), String::new(), now_ms);
    let not_yet = "this server has not run a scheduling cycle yet; ask again in a moment";
    let trial = books.trial(&lease, Clock { now_ms, grace_ms });
    let (Trial { start, reason, seats, preempts }, offers) =
        trial.ok_or_else(|| Problem::new(Kind::Unavailable, not_yet))?;
    let (places, goods) = seats.iter().map(|seat| place(&books.fleet, &lease, seat)).unzip();
    let estimate = LeaseEstimate {
        tenant: tenant.clone(),
        start,
        reason,
        places,
        preempts,
        micro_per_hour: None,
        used_micro_per_hour_max: None,
        currency: books.seller.currency.clone(),
        tightest_budget: books.fleet.budgets().tightest(tenant, now_ms),
        offers: Vec::new(),
    };
    Ok(Unpriced { estimate, goods, offers })
}

/// Checks that a lease can be for this tenant.
pub(super) fn is_for_tenant(fleet: &Fleet, tenant: &TenantPath) -> Result<(), Problem> {
    let detail = match fleet.tenants().contains(tenant) {
        _ if tenant.is_root() => {
            "the token is for the whole installation: name a tenant (`sluice run --tenant`)".to_owned()
        }
        true => return Ok(()),
        false => format!("there is no tenant {tenant}; `sluice apply -f` creates tenants"),
    };
    Err(Problem::new(Kind::Invalid, detail).at("tenant"))
}

fn place(fleet: &Fleet, lease: &LeaseRecord, seat: &Seat) -> (EstimatedPlace, Goods) {
    let node = fleet.nodes().get(&seat.node);
    let gpu = node.and_then(|node| node.gpus.get(*seat.gpus.first()? as usize));
    let place = EstimatedPlace {
        node: node.map_or_else(String::new, |node| node.name.clone()),
        gpus: seat.gpus.clone(),
        pool: fleet.pools_of(seat).next().unwrap_or_default().to_owned(),
        model: gpu.map_or_else(String::new, |gpu| gpu.name.clone()),
        share_ppm: lease.share_ppm(seat),
        memory: seat.memory,
    };
    let goods = Goods {
        tier: lease.ask.tier,
        pool: place.pool.clone(),
        model: place.model.clone(),
        gflops: gpu.map_or(0, |gpu| gpu.gflops),
    };
    (place, goods)
}

fn offer(offered: Offered, ask: &NewLease, count: u64, prices: &Prices<'_>) -> Offer {
    let Offered { pool, model, memory, gflops, share_ppm, memory_taken, gpus, gpus_free } = offered;
    let goods = Goods { tier: ask.tier, pool: pool.clone(), model: model.clone(), gflops };
    let micro_per_hour = prices.held(&goods, share_ppm.into(), memory_taken, count);
    Offer { pool, model, memory, gflops, share_ppm, gpus, gpus_free, micro_per_hour }
}

/// The prices of an hour for a tenant.
struct Prices<'a> {
    quote: Quote,
    tenant: &'a TenantPath,
}

impl Prices<'_> {
    /// Computes the cost of an hour in which a share and `memory` bytes of each of `gpus` GPUs are
    /// reserved.
    fn held(&self, goods: &Goods, share_ppm: u64, memory: u64, gpus: u64) -> u64 {
        let memory_mib = memory.saturating_mul(gpus).div_ceil(1 << 20);
        let share = self.cost(Meter::Reserved, goods, share_ppm * gpus * HOUR_MS);
        share.saturating_add(self.cost(Meter::Memory, goods, memory_mib.saturating_mul(HOUR_MS)))
    }

    /// Computes the cost of an hour in which this much of each of `gpus` GPUs is used.
    fn used(&self, goods: &Goods, ppm: u64, gpus: u64) -> u64 {
        self.cost(Meter::Used, goods, ppm * gpus * HOUR_MS)
    }

    fn cost(&self, meter: Meter, goods: &Goods, amount: u64) -> u64 {
        self.quote.cost_micro(self.tenant, meter, goods, amount)
    }
}
