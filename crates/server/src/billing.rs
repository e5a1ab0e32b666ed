//! Bills from sums of usage records and prices. Pure; all amounts are integers.

mod cards;
mod charges;
mod credits;
mod invoices;
mod quote;

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_api::bill::{
    BeforeAndAfter, Bill, Correction, CostChange, Goods, Line, Meter, Price, PricePer, Rate, Seller,
};
use sluice_api::lease::LeaseId;
use sluice_api::pool::{Personality, PoolPrice};
use sluice_api::tenant::TenantPath;

use crate::kept::Kept;
use crate::store::{Declared, Store, StoreError, Sum};
use credits::{PromisedParts, credited};

pub(crate) use cards::{CardNow, CardsOfNode, earnings};
pub(crate) use charges::{Cursor, Day, day_of};
pub(crate) use invoices::{Invoicer, credit_note, of_bill, period_text};
pub(crate) use quote::Quote;

/// From a moment until before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period {
    pub(crate) from_ms: u64,
    pub(crate) until_ms: u64,
}

/// What use costs, moment by moment.
struct Rates<'a> {
    prices: &'a [Price],
    /// Of each pool whose personalities have prices: those of the one that was in force, and from
    /// when on.
    of_pools: BTreeMap<&'a str, Vec<(u64, &'a [PoolPrice])>>,
}

/// The longest for which a declaration's calendars are followed: twenty years. It bounds what a
/// node whose clock is far off can have computed.
const DECLARED_MS_MAX: u64 = 20 * 366 * 24 * 3_600_000;

impl<'a> Rates<'a> {
    /// For what begins in a period.
    fn new(prices: &'a [Price], declared: &'a [Declared], period: Period) -> Rates<'a> {
        let mut of_pools: BTreeMap<&str, Vec<(u64, &[PoolPrice])>> = BTreeMap::new();
        for (index, this) in declared.iter().enumerate() {
            let next = declared.get(index + 1).filter(|next| next.pool.name == this.pool.name);
            let until_ms = next.map_or(u64::MAX, |next| next.from_ms).min(period.until_ms);
            let until_ms = until_ms.min(this.from_ms.saturating_add(DECLARED_MS_MAX));
            let from_ms = this.from_ms.max(period.from_ms);
            if from_ms >= until_ms {
                continue;
            }
            let priced = this.pool.personalities.iter().any(|personality| !personality.prices.is_empty());
            let turns = if priced { this.pool.turns(from_ms, until_ms) } else { vec![(from_ms, None)] };
            let own = |of: Option<&'a Personality>| of.map_or(&[][..], |of| &of.prices);
            let all = of_pools.entry(&this.pool.name).or_default();
            all.extend(turns.into_iter().map(|(at_ms, index)| (at_ms, own(this.pool.personality(index)))));
        }
        for turns in of_pools.values_mut() {
            turns.dedup_by(|later, earlier| later.1 == earlier.1);
        }
        of_pools.retain(|_, turns| turns.iter().any(|(_, prices)| !prices.is_empty()));
        Rates { prices, of_pools }
    }

    /// The period cut at every change of a price. A record belongs where it begins.
    fn parts(&self, period: Period) -> Vec<Period> {
        let inside = |at: &u64| period.from_ms < *at && *at < period.until_ms;
        let ends = self.prices.iter().flat_map(|price| [price.from_ms, price.until_ms]).flatten();
        let turns = self.of_pools.values().flatten().map(|turn| turn.0);
        let mut cuts: Vec<u64> = ends.chain(turns).filter(inside).collect();
        cuts.push(period.until_ms);
        cuts.sort_unstable();
        cuts.dedup();
        let mut from_ms = period.from_ms;
        let mut parts = Vec::new();
        for until_ms in cuts {
            parts.push(Period { from_ms, until_ms });
            from_ms = until_ms;
        }
        parts
    }

    fn at(&self, meter: Meter, goods: &Goods, at_ms: u64) -> Rate {
        let turns = self.of_pools.get(goods.pool.as_str()).map_or(&[][..], Vec::as_slice);
        let in_force = turns[..turns.partition_point(|turn| turn.0 <= at_ms)].last();
        let own = in_force.and_then(|(_, prices)| PoolPrice::of(prices, meter, goods));
        own.unwrap_or_else(|| Price::at(self.prices, meter, goods, at_ms))
    }
}

/// The bill of a tenant and all below it from the ledger as it is now.
pub(crate) async fn bill_of(store: &Store, tenant: TenantPath, period: Period) -> Result<Bill, StoreError> {
    Ledger::new(store).await?.bill(tenant, period).await
}

/// What all bills of a period are made of.
#[derive(Debug)]
pub(crate) struct Billed {
    period: Period,
    terms: Terms,
    used: UsedAndPromised,
}

/// The bill of a tenant and all below it from a moment until now, as pages show it that are open
/// for long: that of the period whose basis is kept, where it begins at the same moment.
pub(crate) async fn bill_until_now(
    store: &Store,
    kept: &Kept<Arc<Billed>>,
    tenant: TenantPath,
    period: Period,
) -> Result<Bill, StoreError> {
    let known = kept.get().filter(|known| known.period.from_ms == period.from_ms);
    let billed = match known {
        Some(known) => known,
        None => {
            let round = kept.round();
            let terms = Terms::read(store).await?;
            let used = terms.used(store, period).await?;
            let records = used.parts.iter().flat_map(|(_, sums)| sums).map(|sum| sum.records).sum();
            let billed = Arc::new(Billed { period, terms, used });
            kept.keep(&billed, records, round);
            billed
        }
    };
    Ok(billed.terms.bill(tenant, billed.period, &billed.used))
}

/// The bill of one lease alone, for what it has used until a moment. Corrections are of tenants, so
/// none is on it.
pub(crate) async fn bill_of_lease(
    store: &Store,
    lease: LeaseId,
    tenant: TenantPath,
    period: Period,
) -> Result<Bill, StoreError> {
    let terms = Terms::read(store).await?;
    let until_ms = period.until_ms.min(terms.last_ms.saturating_add(1)).max(period.from_ms);
    let rates = Rates::new(&terms.prices, &terms.declared, Period { until_ms, ..period });
    let parts = rates.parts(period);
    let sums = store.usage_sums_of(lease, &parts).await?;
    let promised = store.promised_sums(&parts, Some(lease)).await?;
    let promised: PromisedParts = parts.iter().copied().zip(promised).collect();
    let parts: Parts = parts.into_iter().zip(sums).collect();
    let Seller { currency, issuer, .. } = terms.seller.clone();
    let bill = credited(bill(tenant, period, &rates, &parts, &[]), &rates, &promised);
    Ok(Bill { currency, issuer, ..bill })
}

/// One bill for each, in their order. The records are read once for each period, however many bills
/// are of it.
pub(crate) async fn bills_of(
    store: &Store,
    wanted: Vec<(TenantPath, Period)>,
) -> Result<Vec<Bill>, StoreError> {
    let mut ledger = Ledger::new(store).await?;
    let mut bills = Vec::with_capacity(wanted.len());
    for (tenant, period) in wanted {
        bills.push(ledger.bill(tenant, period).await?);
    }
    Ok(bills)
}

const DAY_MS: u64 = 24 * 3_600_000;

/// What new prices change in money for each top-level tenant, where they change anything.
pub(crate) async fn cost_changes(
    store: &Store,
    new: Vec<Price>,
    now_ms: u64,
) -> Result<Vec<CostChange>, StoreError> {
    if new.is_empty() {
        return Ok(Vec::new());
    }
    let until_now = Period { from_ms: 0, until_ms: now_ms + 1 };
    let month = Period { from_ms: now_ms.saturating_sub(30 * DAY_MS), until_ms: now_ms + 1 };
    let as_of_then = new.iter().map(|price| Price { from_ms: Some(month.from_ms), ..price.clone() });
    let mut changes: BTreeMap<TenantPath, CostChange> = BTreeMap::new();
    for (period, new) in [(until_now, new.clone()), (month, as_of_then.collect())] {
        for is_after in [false, true] {
            let mut ledger = Ledger::new(store).await?;
            if is_after {
                ledger.terms.prices.extend(new.iter().cloned());
            }
            for line in ledger.bill(TenantPath::root(), period).await?.lines {
                let tenant = crate::fleet::top(&line.tenant);
                let none = BeforeAndAfter { before_micro: 0, after_micro: 0 };
                let fresh = CostChange { tenant: tenant.clone(), until_now: none, last_30_days: none };
                let change = changes.entry(tenant).or_insert(fresh);
                let of = if period == until_now { &mut change.until_now } else { &mut change.last_30_days };
                let sum = if is_after { &mut of.after_micro } else { &mut of.before_micro };
                *sum = sum.saturating_add_unsigned(line.cost_micro);
            }
        }
    }
    let differs = |of: &BeforeAndAfter| of.before_micro != of.after_micro;
    Ok(changes
        .into_values()
        .filter(|change| differs(&change.until_now) || differs(&change.last_30_days))
        .collect())
}

/// What was used in the parts of a period.
type Parts = Vec<(Period, Vec<Sum>)>;

/// What was used in a period, and what was promised meanwhile.
#[derive(Debug)]
struct UsedAndPromised {
    parts: Parts,
    promised: PromisedParts,
}

/// What bills say beside what was used.
#[derive(Debug)]
struct Terms {
    seller: Seller,
    prices: Vec<Price>,
    declared: Vec<Declared>,
    corrections: Vec<Correction>,
    /// When the last record begins.
    last_ms: u64,
}

impl Terms {
    async fn read(store: &Store) -> Result<Terms, StoreError> {
        Ok(Terms {
            seller: store.seller().await?,
            prices: store.prices().await?,
            declared: store.pool_declarations().await?,
            corrections: store.corrections().await?,
            last_ms: store.last_usage_ms().await?,
        })
    }

    fn rates(&self, period: Period) -> Rates<'_> {
        let until_ms = period.until_ms.min(self.last_ms.saturating_add(1));
        Rates::new(&self.prices, &self.declared, Period { until_ms, ..period })
    }

    /// What all tenants used and were promised in a period, cut at every change of a price.
    async fn used(&self, store: &Store, period: Period) -> Result<UsedAndPromised, StoreError> {
        let parts = self.rates(period).parts(period);
        let mut sums = store.usage_sums(&parts).await?;
        sums.iter_mut().for_each(|sums| sums.sort_by(|one, other| one.tenant.cmp(&other.tenant)));
        let promised = store.promised_sums(&parts, None).await?;
        let promised = parts.iter().copied().zip(promised).collect();
        Ok(UsedAndPromised { parts: parts.into_iter().zip(sums).collect(), promised })
    }

    fn bill(&self, tenant: TenantPath, period: Period, used: &UsedAndPromised) -> Bill {
        let Seller { currency, issuer, .. } = self.seller.clone();
        let rates = self.rates(period);
        let bill = bill(tenant, period, &rates, &used.parts, &self.corrections);
        let bill = credited(bill, &rates, &used.promised);
        Bill { currency, issuer, ..bill }
    }
}

/// What bills are made of, as far as it has been read.
struct Ledger<'a> {
    store: &'a Store,
    terms: Terms,
    /// Of the periods that were asked for.
    sums: Vec<(Period, UsedAndPromised)>,
}

impl<'a> Ledger<'a> {
    async fn new(store: &'a Store) -> Result<Ledger<'a>, StoreError> {
        Ok(Ledger { store, terms: Terms::read(store).await?, sums: Vec::new() })
    }

    async fn bill(&mut self, tenant: TenantPath, period: Period) -> Result<Bill, StoreError> {
        let known = self.sums.iter().position(|(of, _)| *of == period);
        let at = match known {
            Some(at) => at,
            None => {
                self.sums.push((period, self.terms.used(self.store, period).await?));
                self.sums.len() - 1
            }
        };
        Ok(self.terms.bill(tenant, period, &self.sums[at].1))
    }
}

/// Those of a tenant and of tenants below it, of sums in the order of their tenants.
fn of_tenant<'a>(sums: &'a [Sum], tenant: &TenantPath) -> impl Iterator<Item = &'a Sum> {
    let (whole, own, below) = match tenant.is_root() {
        true => (sums, &sums[..0], &sums[..0]),
        false => {
            // What is below begins with the path and a slash, and `0` is the character after the
            // slash.
            let place = |text: &str| sums.partition_point(|sum| sum.tenant.as_str() < text);
            let own = place(tenant.as_str());
            let others = own + sums[own..].partition_point(|sum| sum.tenant == *tenant);
            let below = place(&format!("{tenant}/"))..place(&format!("{tenant}0"));
            (&sums[..0], &sums[own..others], &sums[below])
        }
    };
    whole.iter().chain(own).chain(below)
}

/// One line for each tenant, meter, sort of goods and price; lines of nothing are left out.
fn bill(
    tenant: TenantPath,
    period: Period,
    rates: &Rates<'_>,
    parts: &[(Period, Vec<Sum>)],
    corrections: &[Correction],
) -> Bill {
    let mut amounts: BTreeMap<(TenantPath, Meter, Goods, Rate), u64> = BTreeMap::new();
    let mut records = 0;
    for (part, sums) in parts {
        for sum in of_tenant(sums, &tenant) {
            records += sum.records;
            for (meter, amount) in Meter::ALL.into_iter().zip(sum.amounts).filter(|&(_, amount)| amount > 0) {
                let rate = rates.at(meter, &sum.goods, part.from_ms);
                let mut goods = sum.goods.clone();
                if rate.per == PricePer::Gpu {
                    goods.gflops = 0;
                }
                let key = (sum.tenant.clone(), meter, goods, rate);
                let total = amounts.entry(key).or_default();
                *total = total.saturating_add(amount);
            }
        }
    }
    let line = |((tenant, meter, goods, rate), amount)| Line::new(tenant, meter, goods, amount, rate);
    let lines: Vec<Line> = amounts.into_iter().map(line).collect();
    let on_it = |correction: &&Correction| {
        tenant.contains(&correction.tenant) && (period.from_ms..period.until_ms).contains(&correction.at_ms)
    };
    let corrections: Vec<Correction> = corrections.iter().filter(on_it).cloned().collect();
    let used: i128 = lines.iter().map(|line| i128::from(line.cost_micro)).sum();
    let corrected: i128 = corrections.iter().map(|correction| i128::from(correction.micro)).sum();
    let total_micro = i64::try_from(used + corrected).unwrap_or(i64::MAX);
    Bill {
        tenant,
        currency: None,
        issuer: None,
        from_ms: period.from_ms,
        until_ms: period.until_ms,
        lines,
        corrections,
        credits: Vec::new(),
        total_micro,
        records,
    }
}

#[cfg(test)]
mod tests {
    use sluice_api::usage::GPU_HOUR_PPM_MS;

    use super::*;
    use crate::store::Write;

    fn price(micro: u64, from_ms: u64) -> Price {
        let (tier, pool, model, until_ms) = (None, None, None, None);
        let per = PricePer::Gpu;
        Price { meter: Meter::Reserved, tier, pool, model, per, micro, from_ms: Some(from_ms), until_ms }
    }

    fn sum(tenant: &str, reserved: u64) -> Sum {
        let goods = Goods::default();
        Sum { tenant: tenant.parse().unwrap(), goods, records: 1, amounts: [reserved, 0, 0, 0, 0] }
    }

    fn rates(prices: &[Price]) -> Rates<'_> {
        Rates { prices, of_pools: BTreeMap::new() }
    }

    #[test]
    fn use_is_priced_at_its_time() {
        let prices = [price(1_000_000, 0), price(3_000_000, 500)];
        let period = Period { from_ms: 100, until_ms: 1000 };
        let rates = rates(&prices);
        let parts = rates.parts(period);
        assert_eq!(parts, [Period { from_ms: 100, until_ms: 500 }, Period { from_ms: 500, until_ms: 1000 }]);
        let sums = [
            (parts[0], vec![sum("acme/a", GPU_HOUR_PPM_MS), sum("other", GPU_HOUR_PPM_MS)]),
            (parts[1], vec![sum("acme/a", GPU_HOUR_PPM_MS / 2)]),
        ];
        let bill = bill("acme".parse().unwrap(), period, &rates, &sums, &[]);
        let costs: Vec<u64> = bill.lines.iter().map(|line| line.cost_micro).collect();
        assert_eq!((costs, bill.total_micro, bill.records), (vec![1_000_000, 1_500_000], 2_500_000, 2));
    }

    #[test]
    fn what_has_no_price_is_listed_and_free() {
        let period = Period { from_ms: 0, until_ms: 10 };
        let bill = bill(
            TenantPath::root(),
            period,
            &rates(&[]),
            &[(period, vec![sum("acme", GPU_HOUR_PPM_MS)])],
            &[],
        );
        assert_eq!((bill.lines.len(), bill.total_micro), (1, 0));
        assert_eq!(bill.lines[0].quantity_micro, 1_000_000);
    }

    #[test]
    fn only_what_is_priced_per_unit_hour_is_told_apart_by_units() {
        let period = Period { from_ms: 0, until_ms: 1000 };
        let per_unit = Price { per: PricePer::Unit, ..price(100_000, 500) };
        let prices = [price(1_000_000, 0), per_unit];
        let rates = rates(&prices);
        let on = |gflops| Sum { goods: Goods { gflops, ..Goods::default() }, ..sum("acme", GPU_HOUR_PPM_MS) };
        let parts = rates.parts(period);
        let cards = || vec![on(0), on(10_000), on(20_000)];
        let sums: Vec<_> = parts.into_iter().map(|part| (part, cards())).collect();
        let bill = bill(TenantPath::root(), period, &rates, &sums, &[]);
        let lines = bill.lines.iter().map(|line| (line.goods.gflops, line.quantity_micro, line.cost_micro));
        let expect =
            [(0, 4_000_000, 4_000_000), (10_000, 10_000_000, 1_000_000), (20_000, 20_000_000, 2_000_000)];
        assert_eq!(lines.collect::<Vec<_>>(), expect, "the card without units keeps the price per GPU-hour");
        assert_eq!(bill.total_micro, 7_000_000);
    }

    #[test]
    fn corrections_of_the_period_stand_beside_what_was_used() {
        let period = Period { from_ms: 0, until_ms: 10 };
        let correction = |id, tenant: &str, micro, at_ms| Correction {
            id,
            tenant: tenant.parse().unwrap(),
            micro,
            at_ms,
            reason: "a fault of ours".into(),
            made_at_ms: 50,
            made_by: "t (test)".into(),
        };
        let all =
            [correction(1, "acme/a", -700_000, 5), correction(2, "acme", 1, 10), correction(3, "b", 1, 5)];
        let sums = [(period, vec![sum("acme/a", GPU_HOUR_PPM_MS)])];
        let prices = [price(500_000, 0)];
        let bill = bill("acme".parse().unwrap(), period, &rates(&prices), &sums, &all);
        assert_eq!(
            (bill.corrections.len(), bill.total_micro, bill.lines[0].cost_micro),
            (1, -200_000, 500_000)
        );
    }

    #[tokio::test]
    async fn records_are_read_once_for_all_bills_of_a_period() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&crate::Database::Sqlite(folder.path().join("database"))).await.unwrap();
        let record = |sequence: u32, tenant: &str, from_ms: u64| {
            let attempt = sluice_api::node::Attempt { lease: 1, attempt: 1, task: 0 };
            let record = serde_json::json!({
                "id": sluice_api::usage::UsageRecord::id_of(1, attempt, sequence), "node": 1, "lease": 1, "attempt": 1,
                "sequence": sequence, "tenant": tenant, "from_ms": from_ms, "until_ms": from_ms + 10, "share_ppm": 1_000_000,
                "gpus": 1, "memory_mib": 1, "used_ppm_ms": 1, "kernels": 1, "bytes_in": 1, "bytes_out": 1,
                "memory_peak": 1, "last": false,
            });
            Write::Usage {
                record: serde_json::from_value(record).unwrap(),
                received_at_ms: 0,
                cards: Vec::new(),
            }
        };
        let fence = store.lead("a test", "", true).await.unwrap().unwrap();
        let records = vec![record(1, "acme", 5), record(2, "acme/a", 15), record(3, "globex", 15)];
        store.commit(fence, records).await.unwrap();
        let mut ledger = Ledger::new(&store).await.unwrap();
        let periods = [(0, 100), (10, 100)].map(|(from_ms, until_ms)| Period { from_ms, until_ms });
        let mut all = Vec::new();
        for tenant in ["acme", "acme/a", "globex", "/"] {
            for period in periods {
                all.push(ledger.bill(tenant.parse().unwrap(), period).await.unwrap());
            }
        }
        assert_eq!(all.iter().map(|bill| bill.records).collect::<Vec<_>>(), [2, 1, 1, 1, 1, 1, 3, 2]);
        assert_eq!(ledger.sums.len(), periods.len());
        let wanted = all.iter().map(|bill| (bill.tenant.clone(), periods[usize::from(bill.from_ms > 0)]));
        assert_eq!(bills_of(&store, wanted.collect()).await.unwrap(), all);
    }

    #[test]
    fn prices_outside_a_period_do_not_cut_it() {
        let period = Period { from_ms: 100, until_ms: 200 };
        assert_eq!(rates(&[price(1, 0), price(2, 100), price(3, 200)]).parts(period), [period]);
    }

    const HOUR_MS: u64 = 3_600_000;

    /// A pool whose nights, from 20 to 8 o'clock, have a price for what is reserved.
    fn declared(name: &str, from_ms: u64, night: Option<u64>) -> Declared {
        let price = night.map(|micro| serde_json::json!({ "meter": "reserved", "micro": micro }));
        let calendar = serde_json::json!({ "zone": "UTC", "times": [{ "from": "20:00", "until": "08:00" }] });
        let night =
            serde_json::json!({ "name": "night", "calendar": calendar, "prices": Vec::from_iter(price) });
        let pool = serde_json::json!({ "name": name, "personalities": [night] });
        Declared { from_ms, pool: serde_json::from_value(pool).unwrap() }
    }

    #[test]
    fn nights_have_prices_of_their_own() {
        let prices = [price(7, 0)];
        let declared =
            [declared("a", HOUR_MS, Some(1)), declared("a", 30 * HOUR_MS, None), declared("b", 0, None)];
        let period = Period { from_ms: 0, until_ms: 100 * HOUR_MS };
        let rates = Rates::new(&prices, &declared, period);
        let check = |pool: &str, at_ms, expect| {
            let goods = Goods { pool: pool.into(), ..Goods::default() };
            assert_eq!(rates.at(Meter::Reserved, &goods, at_ms).micro, expect, "{pool} at {at_ms}");
        };
        for (hour, expect) in [(0, 7), (1, 1), (7, 1), (8, 7), (19, 7), (20, 1), (29, 1), (30, 7), (45, 7)] {
            check("a", hour * HOUR_MS, expect);
            check("b", hour * HOUR_MS, 7);
        }
        check("a", 8 * HOUR_MS - 1, 1);
        let cuts: Vec<u64> = rates.parts(period).iter().map(|part| part.until_ms / HOUR_MS).collect();
        assert_eq!(cuts, [1, 8, 20, 30, 100], "nothing else is cut by what has no prices");
        let goods = Goods { pool: "a".into(), ..Goods::default() };
        let used = rates.at(Meter::Used, &goods, 21 * HOUR_MS);
        assert_eq!(used, Rate::default(), "the night says nothing of this meter");
    }

    #[test]
    fn only_what_touches_the_period_is_computed() {
        let declared = [declared("a", 0, Some(1))];
        let period = Period { from_ms: 30 * HOUR_MS, until_ms: 31 * HOUR_MS };
        assert_eq!(Rates::new(&[], &declared, period).parts(period), [period]);
        let ever = Period { from_ms: 0, until_ms: u64::MAX / 2 };
        let parts = Rates::new(&[], &declared, ever).parts(ever).len();
        assert!((14_000..15_000).contains(&parts), "two a day for twenty years, and not {parts}");
    }
}
