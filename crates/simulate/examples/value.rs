//! Prints what dividing GPUs is worth on a list of jobs, as a table of `docs/benchmarks/iq.md`:
//! `cargo run --release -p sluice-simulate --example value -- NODES JOBS [FASTER]`, or `--
//! made-up GPUS SESSIONS` for a made-up list. `sluice plan --report` has the same figures.

use std::error::Error;
use std::path::Path;

use sluice_simulate::trace::{read_jobs, read_nodes};
use sluice_simulate::{Mix, PolicyName, Synthetic, ValuePlan, value};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let folder = std::env::temp_dir().join(format!("sluice-value-{}", std::process::id()));
    let (nodes, jobs, faster) = match words[..] {
        ["made-up", gpus, jobs] => {
            let synthetic = Synthetic { gpus: gpus.parse()?, jobs: jobs.parse()?, seed: 42, mix: Mix::Even };
            synthetic.write(&folder)?;
            (folder.join("nodes.csv"), folder.join("jobs.csv"), 1.0)
        }
        [nodes, jobs] => (Path::new(nodes).into(), Path::new(jobs).into(), 1.0),
        [nodes, jobs, faster] => (Path::new(nodes).into(), Path::new(jobs).into(), faster.parse()?),
        _ => return Err("usage: value NODES JOBS [FASTER] | made-up GPUS SESSIONS".into()),
    };
    let plan =
        ValuePlan { wait_s: 60.0, policy: PolicyName::BestFit, seed: 42, cycle_ms: 1000, faster, price: 2.0 };
    let found = value(&read_nodes(&nodes)?, &read_jobs(&jobs)?.at_recorded_times(), &plan);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    let found = found?;
    println!(
        "{} jobs, {:.0} GPU-hours; {:.0} % of them by jobs with whole GPUs.\n",
        found.jobs, found.work_gpu_hours, found.whole_percent
    );
    println!(
        "| allocation | GPUs | capacity | if hosts sufficed | wait, 95 % | cost of a GPU-hour of work |"
    );
    println!("|---|---|---|---|---|---|");
    for row in &found.rows {
        println!(
            "| {} | {} | {:.2} | {:.2} | {:.0} s | {:.2} |",
            row.allocation.name(),
            row.gpus,
            row.capacity,
            row.capacity_of_gpus_alone,
            row.wait_p95_s,
            row.cost_per_gpu_hour
        );
    }
    Ok(())
}
