//! Recommendations from the ledger: what programs asked for, and what they used.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use sluice_api::autonomy::Mode;
use sluice_api::bill::{Bill, Currency, Meter};
use sluice_api::lease::LeaseId;
use sluice_api::node::Attempt;
use sluice_api::problem::{Kind, Problem};
use sluice_api::recommendation::{ProgramAdvice, Replayed, RightSize, Saving, Unchanged};
use sluice_api::tenant::TenantPath;
use sluice_api::usage::{GPU_HOUR_PPM_MS, UsageRecord};
use sluice_iq::{Interval, MIB, Recommendation, Run, rightsize};

use crate::autonomy::DatedRun;
use crate::billing::{self, Period};
use crate::server::{Books, Server, unwell};

/// Usage records of one answer. A longer history is asked for in parts.
const RECORDS_MAX: usize = 500_000;
const PAGE: u32 = 1000;

/// Says of each program of a tenant and of those below it what to ask for instead. What saves most
/// comes first.
pub(crate) async fn advice(
    server: &Server,
    tenant: &TenantPath,
    period: Period,
) -> Result<Vec<ProgramAdvice>, Problem> {
    let mut prices: BTreeMap<TenantPath, HourPrice> = BTreeMap::new();
    let mut found = Vec::new();
    let looks_at = looks_at(server).await?;
    for ((tenant, program), runs) in programs(server, tenant, period, &looks_at).await? {
        let runs: Vec<Run> = runs.into_iter().map(|(_, run)| run).collect();
        let recommended = rightsize(&runs);
        let saves = match &recommended {
            Ok(recommendation) => {
                if !prices.contains_key(&tenant) {
                    let bill =
                        billing::bill_of(&server.store, tenant.clone(), period).await.map_err(unwell)?;
                    prices.insert(tenant.clone(), HourPrice::of(&bill));
                }
                let gpus = runs.last().map_or(1, |run| u64::from(run.gpus));
                prices.get(&tenant).map(|price| saving(recommendation, gpus, price))
            }
            Err(_) => None,
        };
        let unchanged = recommended.as_ref().err().map(|why| match why {
            sluice_iq::Unchanged::FewRuns => Unchanged::FewRuns,
            sluice_iq::Unchanged::Fits => Unchanged::Fits,
        });
        let recommendation = recommended.ok().map(right_size);
        found.push(ProgramAdvice { tenant, program, recommendation, unchanged, saves, run_default: None });
    }
    found.sort_by_key(|advice| std::cmp::Reverse(advice.saves.as_ref().map(|saves| saves.share_ppm)));
    Ok(found)
}

fn right_size(found: Recommendation) -> RightSize {
    RightSize {
        runs: found.runs as u64,
        held_ms: found.held_ms,
        asked_share_ppm: found.asked_share_ppm,
        share_ppm: found.share_ppm,
        asked_memory: found.asked_memory,
        memory: found.memory,
        memory_peak: found.memory_peak,
        replay: Replayed { slowed: found.replay.slowed as u64, worst_percent: found.replay.worst_percent },
    }
}

/// Whether the programs of a tenant in a pool are looked at: not where the tenant, one above it, or
/// the pool has autonomy off.
pub(crate) async fn looks_at(server: &Server) -> Result<impl Fn(&TenantPath, &str) -> bool, Problem> {
    let rules = |books: &Books, _| {
        let off = books.fleet.pools().values().filter(|pool| pool.autonomy == Some(Mode::Off));
        let off: BTreeSet<String> = off.map(|pool| pool.name.clone()).collect();
        (books.autonomy.rules.clone(), off)
    };
    let (rules, off) = server.read(rules).await?;
    Ok(move |tenant: &TenantPath, pool: &str| rules.in_force(tenant).mode > Mode::Off && !off.contains(pool))
}

/// Returns the runs of each program that ended in the period, the earliest first, of those that
/// are looked at.
pub(crate) async fn programs(
    server: &Server,
    tenant: &TenantPath,
    period: Period,
    looks_at: &impl Fn(&TenantPath, &str) -> bool,
) -> Result<BTreeMap<(TenantPath, String), Vec<DatedRun>>, Problem> {
    let mut runs: BTreeMap<(LeaseId, u32, u32), (TenantPath, Recorded)> = BTreeMap::new();
    let mut after = (period.from_ms, String::new());
    let mut count = 0;
    loop {
        let page = server.store.usage(tenant, (after.0, &after.1), PAGE).await.map_err(unwell)?;
        count += page.len();
        if count > RECORDS_MAX {
            let detail =
                format!("more than {RECORDS_MAX} usage records: ask for a shorter time or for one tenant");
            return Err(Problem::new(Kind::Invalid, detail).at("from_ms"));
        }
        let is_meant = |record: &&UsageRecord| {
            record.from_ms < period.until_ms && looks_at(&record.tenant, &record.pool)
        };
        for record in page.iter().filter(is_meant) {
            let Attempt { lease, attempt, task } = record.attempt_of();
            let run = runs.entry((lease, attempt, task));
            run.or_insert_with(|| (record.tenant.clone(), Recorded::default())).1.add(record);
        }
        match page.last().filter(|last| page.len() == PAGE as usize && last.from_ms < period.until_ms) {
            Some(last) => after = (last.from_ms, last.id.clone()),
            None => break,
        }
    }
    let mut names: BTreeMap<LeaseId, String> = BTreeMap::new();
    let mut programs: BTreeMap<_, Vec<DatedRun>> = BTreeMap::new();
    for ((lease, ..), (tenant, recorded)) in runs {
        let Some(run) = recorded.run else { continue };
        let run = (recorded.began_ms, run);
        let name = match names.entry(lease) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                let record = server.lease(lease).await?;
                unknown.insert(record.map(|record| record.ask.name).unwrap_or_default())
            }
        };
        if !name.is_empty() {
            programs.entry((tenant, name.clone())).or_default().push(run);
        }
    }
    Ok(programs)
}

/// What the records of one run add up to.
#[derive(Default)]
struct Recorded {
    /// When the first record begins.
    began_ms: u64,
    intervals: Vec<Interval>,
    /// The run, once its last record is there; before that its peak of memory is not known.
    run: Option<Run>,
}

impl Recorded {
    fn add(&mut self, record: &UsageRecord) {
        if self.began_ms == 0 {
            self.began_ms = record.from_ms;
        }
        if !record.suspended {
            let interval = Interval { held_ms: record.held_ms(), used_ppm_ms: record.used_ppm_ms };
            self.intervals.push(interval);
        }
        if record.last {
            self.run = Some(Run {
                gpus: record.gpus,
                share_ppm: record.share_ppm,
                memory: record.memory_mib.saturating_mul(MIB),
                memory_peak: record.memory_peak,
                intervals: std::mem::take(&mut self.intervals),
            });
        }
    }
}

/// What a GPU-hour held cost a tenant in the mean.
struct HourPrice {
    micro: Option<u64>,
    currency: Option<Currency>,
}

impl HourPrice {
    fn of(bill: &Bill) -> HourPrice {
        let reserved = || bill.lines.iter().filter(|line| line.meter == Meter::Reserved);
        let cost: u128 = reserved().map(|line| u128::from(line.cost_micro)).sum();
        let amount: u128 = reserved().map(|line| u128::from(line.amount)).sum();
        let micro = (cost * u128::from(GPU_HOUR_PPM_MS)).checked_div(amount).filter(|&micro| micro > 0);
        let micro = micro.and_then(|micro| u64::try_from(micro).ok());
        HourPrice { micro, currency: bill.currency.clone() }
    }
}

fn saving(recommendation: &Recommendation, gpus: u64, price: &HourPrice) -> Saving {
    let Recommendation { asked_share_ppm, share_ppm, .. } = recommendation;
    let share_ppm = u64::from(asked_share_ppm - share_ppm) * gpus;
    let per_hour = |micro: u64| {
        let micro = u128::from(micro) * u128::from(share_ppm) / 1_000_000;
        u64::try_from(micro).unwrap_or(u64::MAX)
    };
    Saving { share_ppm, micro_per_hour: price.micro.map(per_hour), currency: price.currency.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(sequence: u32, used_ppm_ms: u64, last: bool) -> UsageRecord {
        let record = serde_json::json!({
            "id": "", "node": 1, "lease": 9, "attempt": 1, "sequence": sequence, "tenant": "acme",
            "from_ms": u64::from(sequence) * 10_000, "until_ms": u64::from(sequence + 1) * 10_000,
            "share_ppm": 1_000_000, "gpus": 1, "memory_mib": 40_960, "used_ppm_ms": used_ppm_ms,
            "kernels": 1, "bytes_in": 1, "bytes_out": 1, "memory_peak": 10_u64 << 30, "last": last,
        });
        serde_json::from_value(record).unwrap()
    }

    #[test]
    fn a_run_is_known_when_it_has_ended_and_without_the_time_in_which_it_was_suspended() {
        let mut recorded = Recorded::default();
        recorded.add(&record(1, 3_000_000_000, false));
        recorded.add(&UsageRecord { suspended: true, ..record(2, 0, false) });
        assert!(recorded.run.is_none());
        recorded.add(&record(3, 1_000_000_000, true));
        let run = recorded.run.unwrap();
        assert_eq!(run.intervals.len(), 2);
        assert_eq!((run.memory, run.memory_peak), (40 << 30, 10 << 30));
    }

    #[test]
    fn a_saving_is_in_money_where_there_is_a_price() {
        let mut recorded = Recorded::default();
        recorded.add(&record(1, 3_100_000_000, true));
        let found = rightsize(&vec![recorded.run.unwrap(); 23]).unwrap();
        let saves = saving(&found, 2, &HourPrice { micro: Some(2_000_000), currency: None });
        assert_eq!((saves.share_ppm, saves.micro_per_hour), (1_300_000, Some(2_600_000)));
        assert_eq!(saving(&found, 1, &HourPrice { micro: None, currency: None }).micro_per_hour, None);
    }
}
