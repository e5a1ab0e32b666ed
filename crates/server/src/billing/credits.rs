//! Credits of a bill: for each lease and day of UTC on which the promise of its tier was not kept.
//!
//! Days are judged one by one, so the credits of a month are those of its days, however it is cut
//! into bills; a bill that begins or ends within a day judges its part of the day.

use std::collections::BTreeMap;

use sluice_api::bill::{Bill, Credit, Goods, Line, Meter, PricePer, Rate};
use sluice_api::lease::LeaseId;
use sluice_api::pool::{Promise, Promised, Tier};
use sluice_api::tenant::TenantPath;

use super::{DAY_MS, Period, Rates};
use crate::store::PromisedSum;

/// What was promised in the parts of a period.
pub(super) type PromisedParts = Vec<(Period, Vec<PromisedSum>)>;

/// What one promise is judged by.
type Key<'a> = (&'a TenantPath, LeaseId, u64, Tier, &'a str, Promise);

/// All that a lease was promised on one day.
#[derive(Default)]
struct JudgedDay {
    waits: u64,
    within: u64,
    /// Of the meter `reserved`, for each sort of goods and price.
    reserved: BTreeMap<(Goods, Rate), u64>,
}

/// Takes the credits of a bill's period off the bill.
pub(super) fn credited(bill: Bill, rates: &Rates<'_>, promised: &[(Period, Vec<PromisedSum>)]) -> Bill {
    let credits = credits(&bill, rates, promised);
    let sum: i128 = credits.iter().map(|credit| i128::from(credit.micro)).sum();
    let total_micro = i64::try_from(i128::from(bill.total_micro) - sum).unwrap_or(i64::MIN);
    Bill { credits, total_micro, ..bill }
}

fn credits(bill: &Bill, rates: &Rates<'_>, promised: &[(Period, Vec<PromisedSum>)]) -> Vec<Credit> {
    let mut all: BTreeMap<Key<'_>, JudgedDay> = BTreeMap::new();
    for (part, sums) in promised {
        for sum in sums.iter().filter(|sum| bill.tenant.contains(&sum.tenant)) {
            let goods = &sum.goods;
            let key = (&sum.tenant, sum.lease, sum.day_ms, goods.tier, goods.pool.as_str(), sum.promise);
            let judged = all.entry(key).or_default();
            judged.waits = judged.waits.saturating_add(sum.waits);
            judged.within = judged.within.saturating_add(sum.within);
            let rate = rates.at(Meter::Reserved, goods, part.from_ms);
            let gflops = if rate.per == PricePer::Unit { goods.gflops } else { 0 };
            let reserved = judged.reserved.entry((Goods { gflops, ..goods.clone() }, rate)).or_default();
            *reserved = reserved.saturating_add(sum.reserved_ppm_ms);
        }
    }
    let missed = all.into_iter().filter(|((.., promise), of)| !promise.is_kept(of.waits, of.within));
    missed.filter_map(|(key, judged)| credit(bill, key, judged)).collect()
}

/// None where the share has no price, or costs so little that nothing is credited.
fn credit(bill: &Bill, key: Key<'_>, judged: JudgedDay) -> Option<Credit> {
    let (tenant, lease, day_ms, tier, pool, promise) = key;
    let JudgedDay { waits, within, reserved } = judged;
    let cost = |((goods, rate), amount): ((Goods, Rate), u64)| {
        Line::new(tenant.clone(), Meter::Reserved, goods, amount, rate).cost_micro
    };
    let reserved_micro = reserved.into_iter().map(cost).fold(0_u64, u64::saturating_add);
    let promised = Promised { promise, waits, within };
    let micro = Credit::micro_of(&promised, reserved_micro);
    (micro > 0).then(|| Credit {
        tenant: tenant.clone(),
        lease,
        tier,
        pool: pool.to_owned(),
        from_ms: day_ms.max(bill.from_ms),
        until_ms: day_ms.saturating_add(DAY_MS).min(bill.until_ms),
        promised,
        reserved_micro,
        micro,
    })
}

#[cfg(test)]
mod tests;
