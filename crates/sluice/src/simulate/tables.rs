//! The simulator's figures as tables for people.

use std::fmt::Write;
use std::time::Duration;

use sluice_simulate::{COLUMNS, FillReport, PolicyReplay, ReplayReport};

use crate::quantity::Period;
use crate::table::{self, Align};

pub(super) fn fill(report: &FillReport) -> String {
    let titles = COLUMNS.map(|column| format!("{column}%"));
    let mut columns = vec![("POLICY", Align::Left)];
    columns.extend(titles.iter().map(|title| (title.as_str(), Align::Right)));
    columns.extend([("REJECTED", Align::Right), ("MOVED", Align::Right), ("STRANDED", Align::Right)]);
    let rows: Vec<Vec<String>> = report
        .policies
        .iter()
        .map(|policy| {
            let mut row = vec![policy.policy.to_string()];
            let cells = policy.allocated_percent.values();
            row.extend(cells.map(|spread| format!("{:.2} ±{:.2}", spread.mean, spread.sd)));
            row.push(format!("{:.0}", policy.rejected_jobs.mean));
            row.push(format!("{:.0}", policy.moves.mean));
            row.push(format!("{:.0}%", policy.stranded_percent.mean));
            row
        })
        .collect();
    format!(
        "{} nodes, {} GPUs; {} jobs, which ask for {:.1}% of them; {} seeds\n\
         Allocated GPUs in percent, by demand that has arrived:\n{}",
        report.nodes,
        report.gpus,
        report.jobs,
        report.demand_percent,
        report.seeds.len(),
        table::render(&columns, &rows)
    )
}

pub(super) fn replay(report: &ReplayReport) -> String {
    let columns = right_after_first(&[
        "POLICY",
        "ALLOCATED",
        "STRANDED",
        "WAIT",
        "P50",
        "P95",
        "P99",
        "EVICTED",
        "MOVED",
        "LOST",
        "FAIRNESS",
        "MAKESPAN",
    ]);
    let rows: Vec<Vec<String>> = report.policies.iter().map(policy_cells).collect();
    let mut text = format!(
        "{} nodes, {} GPUs; {} jobs arrive within {}: {:.0} GPU hours of work\n{}",
        report.nodes,
        report.gpus,
        report.jobs,
        time(report.arrivals_hours * 3600.0),
        report.demand_gpu_hours,
        table::render(&columns, &rows)
    );
    for policy in &report.policies {
        let _ = write!(text, "\nQueues under {}:\n{}", policy.policy, queue_table(policy));
        for waiting in &policy.never_ran {
            let _ = writeln!(text, "{} jobs never ran to their end: {}", waiting.jobs, waiting.reason);
        }
    }
    text
}

fn policy_cells(policy: &PolicyReplay) -> Vec<String> {
    let wait = policy.wait_s;
    let mut row = vec![
        policy.policy.to_string(),
        format!("{:.1}%", policy.allocated_percent),
        format!("{:.0}%", policy.stranded_percent),
    ];
    row.extend([wait.mean, wait.p50, wait.p95, wait.p99].map(time));
    row.extend([
        (policy.reclaimed + policy.preempted + policy.stale).to_string(),
        policy.moves.to_string(),
        format!("{:.0} GPU h", policy.lost_gpu_hours),
        format!("{:.3}", policy.fairness),
        time(policy.makespan_hours * 3600.0),
    ]);
    row
}

fn queue_table(policy: &PolicyReplay) -> String {
    let columns = right_after_first(&[
        "QUEUE",
        "JOBS",
        "FINISHED",
        "GPU HOURS",
        "OF FAIR SHARE",
        "WAIT",
        "P50",
        "P95",
        "EVICTED",
    ]);
    let rows: Vec<Vec<String>> = policy
        .queues
        .iter()
        .map(|queue| {
            let mut row = vec![
                queue.queue.clone(),
                queue.jobs.to_string(),
                queue.finished_jobs.to_string(),
                format!("{:.0}", queue.gpu_hours),
                format!("{:.0}%", queue.of_fair_share_percent),
            ];
            row.extend([queue.wait_s.mean, queue.wait_s.p50, queue.wait_s.p95].map(time));
            row.push(queue.evictions.to_string());
            row
        })
        .collect();
    table::render(&columns, &rows)
}

fn right_after_first(titles: &[&'static str]) -> Vec<(&'static str, Align)> {
    let align = |index| if index == 0 { Align::Left } else { Align::Right };
    titles.iter().enumerate().map(|(index, title)| (*title, align(index))).collect()
}

fn time(seconds: f64) -> String {
    // Not a time to the microsecond: decisions fall on whole cycles.
    let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    if time < Duration::from_millis(1) { "0".into() } else { Period::from_duration(time).to_string() }
}
