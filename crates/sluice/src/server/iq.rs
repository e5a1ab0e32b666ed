//! `sluice iq`: what programs ask for and what they need.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use sluice_api::bill::{Bill, Meter};
use sluice_api::client::{Client, segment};
use sluice_api::lease::{Lease, LeaseId};
use sluice_api::node::Attempt;
use sluice_api::tenant::TenantPath;
use sluice_api::usage::{GPU_HOUR_PPM_MS, UsageRecord};
use sluice_iq::{Interval, MIB, Recommendation, Run, Unchanged, rightsize};

use super::client;
use super::lists::{millionths, now_ms, show};
use crate::cli::{IqArgs, Output};
use crate::moment::Moment;
use crate::quantity::{Memory, Share};
use crate::run::share_text;
use crate::table::Align::{Left, Right};

/// The programs of one name in one tenant, and what to ask for instead.
#[derive(Serialize)]
struct Program {
    tenant: TenantPath,
    program: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    recommendation: Option<Recommendation>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    unchanged: Option<Unchanged>,
    #[serde(skip_serializing_if = "Option::is_none")]
    saves: Option<Saving>,
}

/// What following a recommendation gives back while the program runs.
#[derive(Serialize)]
struct Saving {
    /// Parts in a million of a GPU.
    share_ppm: u64,
    /// Per hour, in millionths of the currency; absent where GPU time has no price.
    #[serde(skip_serializing_if = "Option::is_none")]
    micro_per_hour: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    currency: Option<String>,
}

pub(crate) fn iq(arguments: &IqArgs) -> Result<ExitCode> {
    let client = client(&arguments.at_server)?;
    let until_ms = arguments.at.map_or_else(now_ms, Moment::ms);
    let from_ms = until_ms.saturating_sub(arguments.since.duration().as_millis() as u64);
    let programs = programs(&client, arguments, from_ms, until_ms)?;
    let mut prices = BTreeMap::new();
    let mut found = Vec::new();
    for ((tenant, program), runs) in programs {
        let recommended = rightsize(&runs);
        if recommended.is_err() && !arguments.all {
            continue;
        }
        let saves = match &recommended {
            Ok(recommendation) => {
                if !prices.contains_key(&tenant) {
                    prices.insert(tenant.clone(), price(&client, &tenant, from_ms, until_ms)?);
                }
                let gpus = runs.last().map_or(1, |run| u64::from(run.gpus));
                Some(Saving::of(recommendation, gpus, &prices[&tenant]))
            }
            Err(_) => None,
        };
        let unchanged = recommended.as_ref().err().copied();
        found.push(Program { tenant, program, recommendation: recommended.ok(), unchanged, saves });
    }
    // What saves most comes first.
    found.sort_by_key(|program| std::cmp::Reverse(program.saves.as_ref().map(|saves| saves.share_ppm)));
    print(&found, arguments.output)?;
    Ok(ExitCode::SUCCESS)
}

/// The runs of each program that ended in the period, the earliest first.
fn programs(
    client: &Client,
    arguments: &IqArgs,
    from_ms: u64,
    until_ms: u64,
) -> Result<BTreeMap<(TenantPath, String), Vec<Run>>> {
    let tenant = arguments.tenant.as_ref().map_or_else(String::new, |tenant| format!("&tenant={tenant}"));
    let mut names: BTreeMap<LeaseId, String> = BTreeMap::new();
    client.each(&format!("/leases?limit=1000{tenant}"), |lease: Lease| {
        _ = names.insert(lease.id, lease.name)
    })?;
    let mut runs: BTreeMap<(LeaseId, u32, u32), (TenantPath, Recorded)> = BTreeMap::new();
    let mut cursor = format!("{from_ms}.");
    loop {
        let path = format!("/usage?limit=1000&cursor={}{tenant}", segment(&cursor));
        let page: sluice_api::Page<UsageRecord> = client.get(&path)?;
        for record in page.items.iter().filter(|record| record.from_ms < until_ms) {
            let Attempt { lease, attempt, task } = record.attempt_of();
            let run = runs.entry((lease, attempt, task));
            run.or_insert_with(|| (record.tenant.clone(), Recorded::default())).1.add(record);
        }
        match page.next.filter(|_| page.items.last().is_some_and(|last| last.from_ms < until_ms)) {
            Some(next) => cursor = next,
            None => break,
        }
    }
    let mut programs: BTreeMap<_, Vec<Run>> = BTreeMap::new();
    for ((lease, ..), (tenant, recorded)) in runs {
        let Some(name) = names.get(&lease).filter(|name| is_wanted(name, arguments)) else { continue };
        if let Some(run) = recorded.run {
            programs.entry((tenant, name.clone())).or_default().push(run);
        }
    }
    Ok(programs)
}

fn is_wanted(name: &str, arguments: &IqArgs) -> bool {
    !name.is_empty() && arguments.program.as_ref().is_none_or(|part| name.contains(part.as_str()))
}

/// What the records of one run add up to.
#[derive(Default)]
struct Recorded {
    intervals: Vec<Interval>,
    /// Once its last record is there: before, its peak of memory is not known.
    run: Option<Run>,
}

impl Recorded {
    fn add(&mut self, record: &UsageRecord) {
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
    currency: Option<String>,
}

fn price(client: &Client, tenant: &TenantPath, from_ms: u64, until_ms: u64) -> Result<HourPrice> {
    let path = format!("/bill?tenant={tenant}&from_ms={from_ms}&until_ms={}", until_ms.max(from_ms + 1));
    let bill: Bill = client.get(&path)?;
    let reserved = || bill.lines.iter().filter(|line| line.meter == Meter::Reserved);
    let cost: u128 = reserved().map(|line| u128::from(line.cost_micro)).sum();
    let amount: u128 = reserved().map(|line| u128::from(line.amount)).sum();
    let micro = (cost * u128::from(GPU_HOUR_PPM_MS)).checked_div(amount).filter(|&micro| micro > 0);
    let currency = bill.currency.map(|currency| currency.to_string());
    Ok(HourPrice { micro: micro.and_then(|micro| u64::try_from(micro).ok()), currency })
}

impl Saving {
    fn of(recommendation: &Recommendation, gpus: u64, price: &HourPrice) -> Saving {
        let Recommendation { asked_share_ppm, share_ppm, .. } = recommendation;
        let share_ppm = u64::from(asked_share_ppm - share_ppm) * gpus;
        let per_hour = |micro: u64| {
            let micro = u128::from(micro) * u128::from(share_ppm) / 1_000_000;
            u64::try_from(micro).unwrap_or(u64::MAX)
        };
        Saving { share_ppm, micro_per_hour: price.micro.map(per_hour), currency: price.currency.clone() }
    }
}

fn print(programs: &[Program], output: Output) -> Result<()> {
    let columns = &[
        ("PROGRAM", Left),
        ("TENANT", Left),
        ("RUNS", Right),
        ("HOURS", Right),
        ("SHARE", Left),
        ("MEMORY", Left),
        ("SAVES", Left),
        ("SLOWED", Left),
    ];
    show(
        programs,
        output,
        "no program asks for more than it needs, as far as three runs show",
        columns,
        cells,
    )?;
    if output == Output::Table
        && let Some(first) = programs.iter().find(|program| program.recommendation.is_some())
    {
        eprintln!("\nTo follow the first: {}", command(first));
    }
    Ok(())
}

fn cells(program: &Program) -> Vec<String> {
    let mut cells = vec![program.program.clone(), program.tenant.to_string()];
    let rest = match &program.recommendation {
        Some(found) => vec![
            found.runs.to_string(),
            format!("{:.1}", found.held_ms as f64 / 3_600_000.0),
            from_to(share_text(found.asked_share_ppm), share_text(found.share_ppm)),
            from_to(memory_text(found.asked_memory), memory_text(found.memory)),
            program.saves.as_ref().map_or_else(String::new, saving_text),
            slowed_text(found),
        ],
        None => {
            let why = match program.unchanged {
                Some(Unchanged::FewRuns) => "fewer than three runs have ended",
                _ => "it needs what it asks for",
            };
            let mut cells = vec![String::new(); 4];
            cells.push(why.into());
            cells
        }
    };
    cells.extend(rest);
    cells
}

fn from_to(asked: String, recommended: String) -> String {
    if asked == recommended { asked } else { format!("{asked} -> {recommended}") }
}

fn memory_text(bytes: u64) -> String {
    Memory::from_bytes(bytes).to_string()
}

/// `0.65 GPU, 1.30 EUR/h`
fn saving_text(saves: &Saving) -> String {
    let gpu = format!("{:.2} GPU", saves.share_ppm as f64 / 1e6);
    let currency = saves.currency.as_ref().map_or_else(String::new, |currency| format!(" {currency}"));
    match saves.micro_per_hour {
        Some(micro) => format!("{gpu}, {}{currency}/h", millionths(micro)),
        None => gpu,
    }
}

/// `0 of 23 runs; the worst by 3.1 %`
fn slowed_text(found: &Recommendation) -> String {
    let of = format!("{} of {} runs", found.replay.slowed, found.runs);
    match found.replay.worst_percent {
        worst if worst >= 0.05 => format!("{of}; the worst by {worst:.1} %"),
        _ => of,
    }
}

/// How the program is run with what is recommended.
fn command(program: &Program) -> String {
    let Some(found) = &program.recommendation else { return String::new() };
    let memory = found.memory / MIB;
    format!(
        "sluice run --tenant {} -p {} --memory {memory}MiB -- {}",
        program.tenant,
        Share::from_ppm(found.share_ppm),
        program.program
    )
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
    fn a_recommendation_is_shown_with_its_evidence_its_saving_and_how_to_follow_it() {
        let mut recorded = Recorded::default();
        recorded.add(&record(1, 3_100_000_000, true));
        let found = rightsize(&vec![recorded.run.unwrap(); 23]).unwrap();
        let price = HourPrice { micro: Some(2_000_000), currency: Some("EUR".into()) };
        let saves = Some(Saving::of(&found, 1, &price));
        let tenant: TenantPath = "acme".parse().unwrap();
        let program = "python train.py".to_owned();
        let program = Program { tenant, program, recommendation: Some(found), unchanged: None, saves };
        let expect = [
            "python train.py",
            "acme",
            "23",
            "0.1",
            "100% -> 35%",
            "40 GiB -> 10.5 GiB",
            "0.65 GPU, 1.3 EUR/h",
            "0 of 23 runs",
        ];
        assert_eq!(cells(&program), expect);
        assert_eq!(command(&program), "sluice run --tenant acme -p 35% --memory 10752MiB -- python train.py");
    }
}
