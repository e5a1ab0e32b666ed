//! `sluice plan`: when the GPUs of each pool will be full.

#[cfg(feature = "full")]
mod report;

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use sluice_api::client::Client;
use sluice_api::node::GpuStatus;
use sluice_api::usage::{GPU_HOUR_PPM_MS, UsageHour};
use sluice_iq::forecast::{Accuracy, accuracy, forecast};
use sluice_iq::plan::{DAYS_MIN, Days, Hour, Plan, PlanErrors, dense, plan, plan_errors, whole_days};

use super::client;
use super::lists::{now_ms, show};
#[cfg(not(feature = "full"))]
use crate::absent::report;
use crate::cli::{Output, PlanArgs};
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
    /// How far off plans were that were made on earlier days.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan_errors: Option<PlanErrors>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_week: Option<NextWeek>,
    /// Whole days of history.
    days: usize,
    /// The moment in milliseconds since 1970 that days of the plan count from.
    at_ms: u64,
}

/// What the next week needs, hour by hour, by the hours of the weeks before.
#[derive(Clone, Debug, Serialize)]
struct NextWeek {
    /// GPUs that 95 of 100 hours do with.
    load: f64,
    /// What forecasts of earlier weeks were off by; none of weeks that there are not yet.
    accuracy: Accuracy,
}

const WEEK_HOURS: usize = 7 * 24;

impl NextWeek {
    fn of(hours: &[f64]) -> Option<NextWeek> {
        let mut ahead = forecast(hours, WEEK_HOURS)?;
        ahead.sort_by(f64::total_cmp);
        let load = ahead.get(ahead.len() * 95 / 100).copied().unwrap_or(0.0);
        Some(NextWeek { load, accuracy: accuracy(hours) })
    }
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
            Pool {
                plan: plan(hours, gpus as f64, horizon_days),
                plan_errors: plan_errors(hours),
                next_week: NextWeek::of(&dense(hours)),
                days: whole_days(hours),
                pool,
                gpus,
                at_ms,
            }
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
    if arguments.output == Output::Table {
        found.iter().for_each(|pool| println!("\n{}", sentence(pool)));
    }
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
    let date = |days: f64| day_text(days, at_ms);
    let latest = days.latest.map_or_else(|| "never".into(), date);
    format!("{} ({} to {latest})", date(days.likely), date(days.earliest))
}

/// `default: at this growth it is full on 2027-03-03 +- 9 days. 8 plans of 28 days ...`
fn sentence(pool: &Pool) -> String {
    let Some(plan) = &pool.plan else {
        return format!("{}: not enough history: {} whole days of {DAYS_MIN}", pool.pool, pool.days);
    };
    let errors = pool.plan_errors.as_ref();
    let mut words = vec![match plan.full {
        Some(days) if days.likely <= 0.0 => "it is full now".to_owned(),
        Some(days) => {
            let date = day_text(days.likely, pool.at_ms);
            let off = errors.and_then(|errors| errors.error_days);
            let off = off.map_or_else(String::new, |days| format!(" +- {:.0} days", days.ceil()));
            format!("at this growth it is full on {date}{off}")
        }
        None => "at this growth it is not full".to_owned(),
    }];
    words.push(match errors {
        Some(PlanErrors { plans, ahead_days, error, .. }) => format!(
            "{plans} plans {ahead_days} days ahead, made from the days before each, were off by {error:.1} GPUs in the mean"
        ),
        None => "not enough history to test earlier plans".to_owned(),
    });
    words.push(match &pool.next_week {
        Some(NextWeek { load, accuracy }) if accuracy.weeks > 0 => format!(
            "the next week needs {load:.1} GPUs; forecasts of {} weeks were off by {:.2} GPUs an hour (repeating the week before: {:.2})",
            accuracy.weeks, accuracy.error, accuracy.naive_error
        ),
        Some(NextWeek { load, .. }) => {
            format!("the next week needs {load:.1} GPUs; not enough history to test that")
        }
        None => "not enough history for a forecast of the next week".to_owned(),
    });
    format!("{}: {}", pool.pool, words.join("; "))
}

fn day_text(days: f64, at_ms: u64) -> String {
    let text = Moment::from_ms(at_ms.saturating_add((days * DAY_MS) as u64)).to_string();
    text.get(..10).unwrap_or(&text).to_owned()
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
        cells(&at(plan))
    }

    fn at(plan: Option<Plan>) -> Pool {
        let (plan_errors, next_week) = (None, None);
        let at_ms = 1_795_651_200_000;
        Pool { pool: "default".into(), gpus: 8, plan, plan_errors, next_week, days: 5, at_ms }
    }

    #[test]
    fn a_plan_is_said_with_how_far_off_earlier_ones_were() {
        assert_eq!(sentence(&at(None)), "default: not enough history: 5 whole days of 14");
        let plan = Plan {
            days: 90,
            capacity: 8.0,
            load: 5.5,
            growth: [1.2, 1.5, 1.7],
            full: Some(Days { earliest: 43.0, likely: 49.2, latest: None }),
            load_ahead: 9.1,
            missing: 2,
            overcommit: 1.1,
            reclaimable: 1.6,
        };
        let short = sentence(&at(Some(plan.clone())));
        for words in ["full on 2027-01-14; not enough history to test earlier", "no"] {
            assert!(short.contains(words), "{short}");
        }
        let errors = PlanErrors { plans: 8, ahead_days: 28, error: 0.43, error_days: Some(8.6) };
        let accuracy = Accuracy { weeks: 6, error: 0.31, naive_error: 0.44 };
        let long = Pool {
            plan_errors: Some(errors),
            next_week: Some(NextWeek { load: 6.1, accuracy }),
            ..at(Some(plan))
        };
        let said = sentence(&long);
        for words in [
            "full on 2027-01-14 +- 9 days; 8 plans 28 days ahead",
            "off by 0.4 GPUs",
            "needs 6.1 GPUs",
            "0.31",
            "0.44",
        ] {
            assert!(said.contains(words), "{said}");
        }
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
