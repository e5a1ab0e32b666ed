//! `sluice plan`: when the GPUs of each pool will be full.

mod report;

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use sluice_api::client::Client;
use sluice_api::node::GpuStatus;
use sluice_api::usage::{GPU_HOUR_PPM_MS, UsageHour};
use sluice_iq::plan::{DAYS_MIN, Days, Hour, Plan, plan};

use super::client;
use super::lists::{now_ms, show};
use crate::cli::PlanArgs;
use crate::moment::Moment;
use crate::table::Align::{Left, Right};

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: f64 = 86_400_000.0;

#[derive(Serialize)]
struct Pool {
    pool: String,
    /// GPUs that are there and not fenced.
    gpus: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<Plan>,
    /// The moment in milliseconds since 1970 that days of the plan count from.
    at_ms: u64,
}

pub(crate) fn pools(arguments: &PlanArgs) -> Result<ExitCode> {
    if let Some(file) = &arguments.report {
        return report::report(arguments, file);
    }
    let client = client(&arguments.at_server)?;
    let at_ms = arguments.at.map_or_else(now_ms, Moment::ms);
    let horizon_days = arguments.horizon.duration().as_secs_f64() / 86_400.0;
    let since_ms = at_ms.saturating_sub(arguments.since.duration().as_millis() as u64);
    let history = history(&client, since_ms, at_ms)?;
    let mut capacity: BTreeMap<String, usize> = BTreeMap::new();
    for gpu in client.list::<GpuStatus>("/gpus")? {
        let there = gpu.online && gpu.fence.is_none();
        *capacity.entry(gpu.pool.unwrap_or_default()).or_default() += usize::from(there);
    }
    for pool in history.keys() {
        capacity.entry(pool.clone()).or_default();
    }
    let wanted = |pool: &String| arguments.pool.as_ref().is_none_or(|wanted| wanted == pool);
    let found: Vec<Pool> = capacity
        .into_iter()
        .filter(|(pool, _)| wanted(pool))
        .map(|(pool, gpus)| {
            let hours = history.get(&pool).map_or(&[][..], Vec::as_slice);
            Pool { plan: plan(hours, gpus as f64, horizon_days), pool, gpus, at_ms }
        })
        .collect();
    let ahead = format!("IN {horizon_days:.0} DAYS");
    let columns = &[
        ("POOL", Left),
        ("GPUS", Right),
        ("LOAD", Right),
        ("GROWTH IN 30 DAYS", Left),
        ("FULL", Left),
        (&*ahead, Left),
    ];
    show(&found, arguments.output, "there is no pool that this token may see", columns, cells)?;
    Ok(ExitCode::SUCCESS)
}

/// The hours of each pool, in order and without the one that has not ended.
fn history(client: &Client, since_ms: u64, at_ms: u64) -> Result<BTreeMap<String, Vec<Hour>>> {
    let mut pools: BTreeMap<String, Vec<Hour>> = BTreeMap::new();
    let mut cursor = format!("{}.", since_ms / HOUR_MS);
    let end_ms = at_ms / HOUR_MS * HOUR_MS;
    loop {
        let path = format!("/usage/hours?limit=1000&cursor={}", sluice_api::client::segment(&cursor));
        let page: sluice_api::Page<UsageHour> = client.get(&path)?;
        for hour in page.items.iter().filter(|hour| hour.from_ms < end_ms) {
            let gpus = |ppm_ms: u64| ppm_ms as f64 / GPU_HOUR_PPM_MS as f64;
            pools.entry(hour.pool.clone()).or_default().push(Hour {
                hour: hour.from_ms / HOUR_MS,
                reserved: gpus(hour.reserved_ppm_ms),
                used: gpus(hour.used_ppm_ms),
            });
        }
        match page.next.filter(|_| page.items.last().is_some_and(|last| last.from_ms < end_ms)) {
            Some(next) => cursor = next,
            None => break,
        }
    }
    for hours in pools.values_mut() {
        // Hours until now in which nothing was held belong to the history, too.
        let last = hours.last().map_or(0, |last| last.hour);
        if last + 1 < end_ms / HOUR_MS {
            hours.push(Hour { hour: end_ms / HOUR_MS - 1, reserved: 0.0, used: 0.0 });
        }
    }
    Ok(pools)
}

fn cells(pool: &Pool) -> Vec<String> {
    let mut cells = vec![pool.pool.clone(), pool.gpus.to_string()];
    let Some(plan) = &pool.plan else {
        cells.extend(["".into(), format!("fewer than {DAYS_MIN} whole days of use"), "".into(), "".into()]);
        return cells;
    };
    let [low, growth, high] = plan.growth;
    cells.push(format!("{:.1}", plan.load));
    cells.push(format!("{growth:+.1} ({low:+.1} to {high:+.1})"));
    cells.push(plan.full.map_or_else(|| "not at this growth".into(), |days| full_text(days, pool.at_ms)));
    cells.push(ahead_text(plan));
    cells
}

/// `2027-03-03 (2027-02-22 to 2027-03-12)`
fn full_text(days: Days, at_ms: u64) -> String {
    if days.likely <= 0.0 {
        return "now".into();
    }
    let date = |days: f64| {
        let text = Moment::from_ms(at_ms.saturating_add((days * DAY_MS) as u64)).to_string();
        text.get(..10).unwrap_or(&text).to_owned()
    };
    let latest = days.latest.map_or_else(|| "never".into(), date);
    format!("{} ({} to {latest})", date(days.likely), date(days.earliest))
}

/// `9.1: 2 GPUs more, or overcommit 1.14, or reclaim the 1.6 that are held, not used (sluice iq)`
fn ahead_text(plan: &Plan) -> String {
    let load = format!("{:.1}", plan.load_ahead);
    if plan.missing == 0 {
        return format!("{load}: enough");
    }
    let mut ways = vec![match plan.missing {
        1 => "1 GPU more".into(),
        count => format!("{count} GPUs more"),
    }];
    if plan.capacity > 0.0 {
        // Rounded up, so that it is enough.
        ways.push(format!("overcommit {:.2}", (plan.overcommit * 100.0).ceil() / 100.0));
    }
    if plan.reclaimable >= 0.05 {
        ways.push(format!("reclaim the {:.1} that are held and not used (sluice iq)", plan.reclaimable));
    }
    format!("{load}: {}", ways.join(", or "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(plan: Option<Plan>) -> Vec<String> {
        // 2026-11-26.
        cells(&Pool { pool: "default".into(), gpus: 8, plan, at_ms: 1_795_651_200_000 })
    }

    #[test]
    fn a_plan_names_the_day_and_the_ways_out() {
        let plan = Plan {
            days: 90,
            capacity: 8.0,
            load: 5.55,
            growth: [1.2, 1.5, 1.71],
            full: Some(Days { earliest: 43.0, likely: 49.2, latest: None }),
            load_ahead: 9.1,
            missing: 2,
            overcommit: 1.1375,
            reclaimable: 1.6,
        };
        let cells = pool(Some(plan.clone()));
        assert_eq!(cells[3..5], ["+1.5 (+1.2 to +1.7)", "2027-01-14 (2027-01-08 to never)"]);
        let ways =
            "9.1: 2 GPUs more, or overcommit 1.14, or reclaim the 1.6 that are held and not used (sluice iq)";
        assert_eq!(cells[5], ways);
        let enough = pool(Some(Plan { missing: 0, full: None, ..plan }));
        assert_eq!(enough[4..], ["not at this growth", "9.1: enough"]);
        assert_eq!(pool(None)[3], "fewer than 14 whole days of use");
    }
}
