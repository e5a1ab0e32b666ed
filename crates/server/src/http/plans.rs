//! When pools will be full, for those who buy GPUs.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use sluice_api::plan::{PlanTest, PoolFull, PoolGrowth, PoolPlan};
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::TenantPath;
use sluice_api::usage::{GPU_HOUR_PPM_MS, UsageHour};
use sluice_iq::plan::{Days, Hour, Plan, PlanErrors, plan, plan_errors, whole_days};

use super::answer::Answer;
use super::extract::Options;
use crate::auth::Principal;
use crate::policy::Action;
use crate::server::{Books, Server};

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: f64 = 86_400_000.0;
/// The history that plans are drawn from.
const HISTORY_DAYS: u64 = 90;
/// Ten years.
const HORIZON_DAYS_MAX: u32 = 3650;
/// Hours of pools that are read at a time.
const READ_AT_ONCE: u32 = 1000;

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct PlanOptions {
    /// How many days to look ahead.
    #[serde(default = "usual_horizon")]
    #[param(minimum = 1, maximum = 3650)]
    horizon_days: u32,
}

fn usual_horizon() -> u32 {
    90
}

/// When the GPUs of each pool will be full
///
/// From the usage of the last 90 days, as `sluice plan` says it; below 14 whole days there is no
/// plan.
#[utoipa::path(get, path = "/plans", tag = "ledger", params(PlanOptions), responses((status = 200, body = Vec<PoolPlan>)))]
pub(super) async fn plans(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(PlanOptions { horizon_days }): Options<PlanOptions>,
) -> Answer<Vec<PoolPlan>> {
    principal.need(Action::SeeMetrics, &TenantPath::root())?;
    if !(1..=HORIZON_DAYS_MAX).contains(&horizon_days) {
        let detail = format!("1 to {HORIZON_DAYS_MAX} days");
        return Err(Problem::new(Kind::Invalid, detail).at("horizon_days").into());
    }
    let (mut capacity, now_ms) = server.read(capacity).await?;
    let history = history(&server, now_ms).await?;
    history.keys().for_each(|pool| _ = capacity.entry(pool.clone()).or_default());
    let plans = capacity.into_iter().map(|(pool, gpus)| {
        let hours = history.get(&pool).map_or(&[][..], Vec::as_slice);
        PoolPlan {
            growth: plan(hours, gpus as f64, f64::from(horizon_days)).map(|plan| growth(&plan, now_ms)),
            tested: plan_errors(hours).as_ref().map(test),
            days: whole_days(hours) as u64,
            pool,
            gpus,
        }
    });
    Ok(Json(plans.collect()))
}

/// The GPUs of each pool that report and are not fenced, and the present moment.
fn capacity(books: &Books, now_ms: u64) -> (BTreeMap<String, u64>, u64) {
    let fleet = &books.fleet;
    let mut pools = BTreeMap::new();
    for node in fleet.nodes().values() {
        let online = fleet.is_online(node, now_ms);
        for index in 0..node.gpus.len() as u32 {
            let pool = fleet.pool_of(node, index).to_owned();
            *pools.entry(pool).or_default() += u64::from(online && !fleet.is_fenced(node.id, index));
        }
    }
    (pools, now_ms)
}

/// The hours of each pool, without the one that has not ended.
async fn history(server: &Server, now_ms: u64) -> Result<BTreeMap<String, Vec<Hour>>, Problem> {
    let end = now_ms / HOUR_MS;
    let mut pools: BTreeMap<String, Vec<Hour>> = BTreeMap::new();
    let mut after = (end.saturating_sub(HISTORY_DAYS * 24), String::new());
    loop {
        let read = server.store.usage_hours(&TenantPath::root(), (after.0, &after.1), READ_AT_ONCE).await;
        let read = read.map_err(crate::server::unwell)?;
        let Some(last) = read.last() else { break };
        after = (last.from_ms / HOUR_MS, last.pool.clone());
        for hour in read.into_iter().filter(|hour| hour.from_ms / HOUR_MS < end) {
            pools.entry(hour.pool.clone()).or_default().push(gpus_of(&hour));
        }
    }
    for hours in pools.values_mut() {
        // Hours until now in which nothing was held belong to the history, too.
        if hours.last().is_some_and(|last| last.hour + 1 < end) {
            hours.push(Hour { hour: end - 1, reserved: 0.0, used: 0.0 });
        }
    }
    Ok(pools)
}

fn gpus_of(hour: &UsageHour) -> Hour {
    let gpus = |ppm_ms: u64| ppm_ms as f64 / GPU_HOUR_PPM_MS as f64;
    Hour { hour: hour.from_ms / HOUR_MS, reserved: gpus(hour.reserved_ppm_ms), used: gpus(hour.used_ppm_ms) }
}

fn growth(plan: &Plan, now_ms: u64) -> PoolGrowth {
    let [low, likely, high] = plan.growth.map(|gpus| (gpus * 1000.0).round() as i64);
    PoolGrowth {
        load_milli: milli(plan.load),
        growth_milli: likely,
        growth_low_milli: low,
        growth_high_milli: high,
        full: plan.full.map(|days| full(days, now_ms)),
        load_ahead_milli: milli(plan.load_ahead),
        missing: plan.missing,
        // Rounded up, so that it is enough.
        overcommit_percent: (plan.overcommit * 100.0).ceil() as u64,
        reclaimable_milli: milli(plan.reclaimable),
    }
}

fn full(days: Days, now_ms: u64) -> PoolFull {
    let at = |days: f64| now_ms.saturating_add((days * DAY_MS) as u64);
    PoolFull { earliest_ms: at(days.earliest), likely_ms: at(days.likely), latest_ms: days.latest.map(at) }
}

fn test(errors: &PlanErrors) -> PlanTest {
    PlanTest {
        plans: errors.plans as u64,
        ahead_days: errors.ahead_days as u64,
        error_milli: milli(errors.error),
        error_days: errors.error_days.map(|days| days.ceil() as u64),
    }
}

/// GPUs, which are never negative, in thousandths.
fn milli(gpus: f64) -> u64 {
    (gpus.max(0.0) * 1000.0).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_in_thousandths_and_moments() {
        let plan = Plan {
            days: 90,
            capacity: 8.0,
            load: 5.5555,
            growth: [-0.2, 1.5, 1.7],
            full: Some(Days { earliest: 1.0, likely: 2.5, latest: None }),
            load_ahead: 9.1,
            missing: 2,
            overcommit: 1.1375,
            reclaimable: 1.6,
        };
        let found = growth(&plan, 1000);
        assert_eq!((found.load_milli, found.load_ahead_milli, found.reclaimable_milli), (5556, 9100, 1600));
        assert_eq!((found.growth_low_milli, found.growth_milli, found.overcommit_percent), (-200, 1500, 114));
        let full = found.full.unwrap();
        assert_eq!((full.earliest_ms, full.likely_ms, full.latest_ms), (86_401_000, 216_001_000, None));
    }
}
