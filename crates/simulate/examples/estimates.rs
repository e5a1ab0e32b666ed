//! Measures estimates of starts and durations, and forecasts of arrivals, on a list of jobs with
//! times: `cargo run --release -p sluice-simulate --example estimates -- NODES JOBS [NODE_COUNT
//! [FASTER]]`, or `-- made-up GPUS SESSIONS` for a made-up list. It prints tables of
//! `docs/benchmarks/iq.md`.

use std::error::Error;
use std::path::Path;

use sluice_iq::duration::Errors;
use sluice_iq::forecast::{Accuracy, accuracy};
use sluice_simulate::trace::{Jobs, Node, Queues, read_jobs, read_nodes};
use sluice_simulate::{Eviction, Mix, PolicyName, ReplayPlan, Site, Synthetic, replay_with_estimates};

const HOUR_MS: u64 = 3_600_000;
/// Name of a pool, and the thousandths of GPUs that its jobs ask for.
const POOLS: [(&str, std::ops::Range<u64>); 4] = [
    ("all", 1..u64::MAX),
    ("parts of a GPU", 1..1000),
    ("one GPU", 1000..1001),
    ("several GPUs", 1001..u64::MAX),
];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (nodes, jobs) = match words[..] {
        ["made-up", gpus, jobs] => made_up(gpus.parse()?, jobs.parse()?)?,
        [nodes, jobs, ref options @ ..] => {
            let mut list = read_jobs(Path::new(jobs))?.at_recorded_times();
            print_forecasts(&list);
            let mut cluster = read_nodes(Path::new(nodes))?;
            if let Some(count) = options.first() {
                cluster.truncate(count.parse()?);
            }
            let faster: f64 = options.get(1).map_or(Ok(1.0), |text| text.parse())?;
            for timing in list.jobs.iter_mut().filter_map(|job| job.timing.as_mut()) {
                timing.arrival_ms = (timing.arrival_ms as f64 / faster) as u64;
            }
            (cluster, list)
        }
        _ => return Err("usage: estimates NODES JOBS [NODE_COUNT [FASTER]] | made-up GPUS SESSIONS".into()),
    };
    print_estimates(&nodes, jobs)
}

fn made_up(gpus: u32, jobs: u32) -> Result<(Vec<Node>, Jobs), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("sluice-estimates-{}", std::process::id()));
    Synthetic { gpus, jobs, seed: 42, mix: Mix::Even }.write(&folder)?;
    let lists = (read_nodes(&folder.join("nodes.csv"))?, read_jobs(&folder.join("jobs.csv"))?);
    std::fs::remove_dir_all(&folder)?;
    Ok(lists)
}

fn print_estimates(nodes: &[Node], mut jobs: Jobs) -> Result<(), Box<dyn Error>> {
    let site = Site::new(nodes)?;
    site.leave_out_impossible(&mut jobs);
    let queues = Queues::named_by(&jobs, site.gpus())?;
    let plan = ReplayPlan {
        policies: vec![PolicyName::BestFit],
        seed: 42,
        cycle_ms: 1000,
        eviction: Eviction::Resume,
        migrate: false,
        late: None,
    };
    for (replayed, found) in replay_with_estimates(&site, &jobs, &queues, &plan)? {
        let (gpus, count, wait_s) = (site.gpus(), jobs.jobs.len(), replayed.wait_s.mean);
        println!("{gpus} GPUs, {count} jobs; the mean wait is {wait_s:.0} s.\n");
        println!("| estimate | of | median error | p90 | by mean: median | p90 |\n|---|---|---|---|---|---|");
        print_row("start", &found.starts, &found.starts_by_mean);
        print_row("duration", &found.durations, &found.durations_by_mean);
    }
    Ok(())
}

fn print_row(what: &str, ours: &Errors, mean: &Errors) {
    let seconds = |ms: u64| format!("{:.0} s", ms as f64 / 1e3);
    let cells = [ours.median_ms, ours.p90_ms, mean.median_ms, mean.p90_ms].map(seconds);
    println!("| {what} | {} | {} |", ours.count, cells.join(" | "));
}

/// Prints how far off forecasts of the arrivals of an hour are.
fn print_forecasts(list: &Jobs) {
    println!("| pool | weeks | mean error | seasonal naive |\n|---|---|---|---|");
    for (name, milli) in POOLS {
        let wanted = list.jobs.iter().filter(|job| milli.contains(&job.gpu_milli()));
        let arrivals: Vec<u64> = wanted.filter_map(|job| Some(job.timing?.arrival_ms / HOUR_MS)).collect();
        let Some(last) = arrivals.iter().max() else { continue };
        let mut hours = vec![0.0; *last as usize + 1];
        arrivals.iter().for_each(|hour| hours[*hour as usize] += 1.0);
        let Accuracy { weeks, error, naive_error } = accuracy(&hours);
        println!("| {name} | {weeks} | {error:.3} | {naive_error:.3} |");
    }
    println!();
}
