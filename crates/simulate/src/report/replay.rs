//! The report of a replay in virtual time.

use crate::plot::{Axis, Kind, LineChart, Series, line_chart, number};
use crate::replay::{Eviction, PolicyReplay, QueueReplay, ReplayReport, Wait};
use crate::report::page::{Cell, Page, Tile};
use crate::report::{Figure, Source};
use crate::summary::percentile;

/// The charts: waits, allocation over time, and the queues' shares over time under each policy.
pub fn replay_figures(report: &ReplayReport) -> Vec<Figure> {
    let mut figures = vec![waits(report), allocation_over_time(report)];
    figures.extend(report.policies.iter().map(|policy| queue_shares(report, policy)));
    figures
}

/// The whole report as one page.
pub fn replay_page(report: &ReplayReport, source: &Source) -> String {
    let tiles = [
        Tile::new(
            number(f64::from(report.gpus), 0),
            format!("GPUs on {} nodes", number(report.nodes as f64, 0)),
        ),
        Tile::new(
            number(report.jobs as f64, 0),
            format!("jobs, arriving over {}", hours(report.arrivals_hours)),
        ),
        Tile::new(format!("{:.0} %", load_percent(report)), "of the GPU time asked for while jobs arrive"),
        Tile::new(number(report.demand_gpu_hours, 0), "GPU hours of work"),
    ];
    let mut page = Page::new("What becomes of the work?", &finding(report), source, &tiles);
    policy_table(&mut page, report);
    let best = best(report).map(|index| &report.policies[index]);
    let figures = [
        Some(waits(report)),
        Some(allocation_over_time(report)),
        best.map(|best| queue_shares(report, best)),
    ];
    figures.iter().flatten().for_each(|figure| page.figure(figure));
    for policy in &report.policies {
        let title = format!("Queues under {}", policy.policy);
        if best.is_none_or(|best| best.policy != policy.policy) {
            page.details(&title, &QUEUE_COLUMNS.map(String::from), &queue_rows(policy));
            continue;
        }
        let note = "GPU hours are what is to be paid for. The fair share is what the queue was due while it had work, from one \
                    decision to the next.";
        page.table(&title, note, &QUEUE_COLUMNS.map(String::from), &queue_rows(policy), None);
    }
    never_ran(&mut page, report);
    let evicted = match report.eviction {
        Eviction::Resume => "An evicted job waits again and then continues where it was.",
        Eviction::Restart => {
            "An evicted job waits again and then begins anew; lost is the GPU time that it spends twice."
        }
    };
    page.finish(
        &[
            "Jobs arrive when the list says so, wait in their queues, run for their duration and end. The production scheduler \
             decides in virtual time: fair shares over the tree of queues, priorities, gangs, preemption and reclaim.",
            evicted,
            "Allocated and stranded are means from the first arrival to the last; stranded is the part of the free GPU compute that \
             a job drawn from the list could not use where it is. Fairness is Jain's index of the queues' use in relation to their \
             fair shares: 1 is perfectly even. A wait is the time from a job's arrival to its first start.",
        ],
        source,
    )
}

/// GPU time asked for, in percent of what the cluster has while jobs arrive.
fn load_percent(report: &ReplayReport) -> f64 {
    let capacity = f64::from(report.gpus) * report.arrivals_hours;
    if capacity > 0.0 { report.demand_gpu_hours * 100.0 / capacity } else { 100.0 }
}

fn best(report: &ReplayReport) -> Option<usize> {
    let wait = |index: usize| report.policies[index].wait_s.mean;
    (0..report.policies.len()).min_by(|&a, &b| wait(a).total_cmp(&wait(b)))
}

fn finding(report: &ReplayReport) -> String {
    let Some(best) = best(report).map(|index| &report.policies[index]) else { return String::new() };
    let Wait { p50, p95, .. } = best.wait_s;
    let mut finding = format!(
        "With {}, {:.1} % of the GPUs are allocated while jobs arrive; half of the jobs start within {}, 95 % within {}.",
        best.policy,
        best.allocated_percent,
        seconds(p50),
        seconds(p95)
    );
    let worst = report.policies.iter().max_by(|a, b| a.wait_s.mean.total_cmp(&b.wait_s.mean));
    if let Some(worst) = worst.filter(|worst| worst.policy != best.policy) {
        finding += &format!(
            " The mean wait is {}, {} with {}.",
            seconds(best.wait_s.mean),
            seconds(worst.wait_s.mean),
            worst.policy
        );
    }
    finding
}

fn policy_table(page: &mut Page, report: &ReplayReport) {
    let columns = [
        "Policy",
        "Allocated",
        "Stranded",
        "Wait, mean",
        "P50",
        "P95",
        "P99",
        "Evicted",
        "Moved",
        "Lost",
        "Fairness",
        "Makespan",
    ];
    let rows = report.policies.iter().map(|policy| {
        let Wait { mean, p50, p95, p99, .. } = policy.wait_s;
        let mut row = vec![
            Cell::Key(policy.policy.to_string(), policy.policy.colour()),
            Cell::Text(format!("{:.1} %", policy.allocated_percent)),
            Cell::Text(format!("{:.0} %", policy.stranded_percent)),
        ];
        row.extend([mean, p50, p95, p99].map(|wait| Cell::Text(seconds(wait))));
        row.extend([
            Cell::Text(number((policy.reclaimed + policy.preempted + policy.stale) as f64, 0)),
            Cell::Text(number(policy.moves as f64, 0)),
            Cell::Text(format!("{} h", number(policy.lost_gpu_hours, 0))),
            Cell::Text(format!("{:.3}", policy.fairness)),
            Cell::Text(hours(policy.makespan_hours)),
        ]);
        row
    });
    let note = "Waits from arrival to first start; jobs evicted for other queues or higher priorities, tasks moved to make room, \
                GPU hours that had to be spent again.";
    page.table("Policies", note, &columns.map(String::from), &rows.collect::<Vec<_>>(), best(report));
}

const QUEUE_COLUMNS: [&str; 9] =
    ["Queue", "Jobs", "Finished", "GPU hours", "Of fair share", "Wait, mean", "P50", "P95", "Evicted"];

fn queue_rows(policy: &PolicyReplay) -> Vec<Vec<Cell>> {
    let row = |queue: &QueueReplay| {
        let Wait { mean, p50, p95, .. } = queue.wait_s;
        vec![
            Cell::Text(queue.queue.clone()),
            Cell::Text(number(queue.jobs as f64, 0)),
            Cell::Text(number(queue.finished_jobs as f64, 0)),
            Cell::Text(number(queue.gpu_hours, 0)),
            Cell::Text(format!("{:.0} %", queue.of_fair_share_percent)),
            Cell::Text(seconds(mean)),
            Cell::Text(seconds(p50)),
            Cell::Text(seconds(p95)),
            Cell::Text(number(queue.evictions as f64, 0)),
        ]
    };
    policy.queues.iter().map(row).collect()
}

fn never_ran(page: &mut Page, report: &ReplayReport) {
    let rows = report.policies.iter().flat_map(|policy| {
        policy.never_ran.iter().map(|waiting| {
            vec![
                Cell::Key(policy.policy.to_string(), policy.policy.colour()),
                Cell::Text(number(waiting.jobs as f64, 0)),
                Cell::Text(waiting.reason.clone()),
            ]
        })
    });
    let rows: Vec<Vec<Cell>> = rows.collect();
    if !rows.is_empty() {
        page.details(
            "Jobs that never ran to their end, and why",
            &["Policy", "Jobs", "Reason"].map(String::from),
            &rows,
        );
    }
}

fn waits(report: &ReplayReport) -> Figure {
    let series = report.policies.iter().map(|policy| {
        let points = (0..=200).map(|step| f64::from(step) / 2.0);
        Series {
            name: policy.policy.to_string(),
            colour: policy.policy.colour(),
            points: points.map(|percent| (percentile(&policy.waits_s, percent), percent)).collect(),
            spread: Vec::new(),
        }
    });
    let longest = report.policies.iter().map(|policy| policy.wait_s.max).fold(0.0, f64::max);
    let chart = LineChart {
        description: "Part of the jobs that have started, over the time waited, for each policy".into(),
        kind: Kind::Lines,
        x: Axis::seconds("wait from arrival to first start", longest),
        y: Axis::linear("jobs that wait no longer", 0.0, 100.0, " %"),
        series: series.collect(),
        reference: None,
    };
    Figure {
        name: "waits".into(),
        title: "How long jobs wait".into(),
        caption: "Higher and further left is better: the part of jobs that has started by a time.".into(),
        drawing: line_chart(&chart),
    }
}

fn allocation_over_time(report: &ReplayReport) -> Figure {
    let series = report.policies.iter().map(|policy| {
        let mut points: Vec<(f64, f64)> = Vec::new();
        for (_, queue) in &policy.over_time {
            points.resize_with(points.len().max(queue.len()), Default::default);
            for (sum, (at, percent)) in points.iter_mut().zip(queue) {
                *sum = (*at, sum.1 + percent);
            }
        }
        Series { name: policy.policy.to_string(), colour: policy.policy.colour(), points, spread: Vec::new() }
    });
    let chart = LineChart {
        description: "Allocated GPUs over time for each policy".into(),
        kind: Kind::Lines,
        x: time_axis(report),
        y: Axis::linear("allocated, % of the cluster's GPUs", 0.0, 100.0, " %"),
        series: series.collect(),
        reference: Some((
            "the last arrival".into(),
            vec![(report.arrivals_hours, 0.0), (report.arrivals_hours, 100.0)],
        )),
    };
    Figure {
        name: "allocation-over-time".into(),
        title: "Allocation over time".into(),
        caption: "Dotted: the last job arrives. What lies behind it is work that had to wait.".into(),
        drawing: line_chart(&chart),
    }
}

fn queue_shares(report: &ReplayReport, policy: &PolicyReplay) -> Figure {
    let series = policy.over_time.iter().enumerate().map(|(index, (name, points))| Series {
        name: name.clone(),
        colour: index,
        points: points.clone(),
        spread: Vec::new(),
    });
    let chart = LineChart {
        description: format!("Each queue's part of the GPUs over time under {}", policy.policy),
        kind: Kind::Stacked,
        x: time_axis(report),
        y: Axis::linear("allocated, % of the cluster's GPUs", 0.0, 100.0, " %"),
        series: series.collect(),
        reference: None,
    };
    Figure {
        name: format!("queue-shares-{}", policy.policy),
        title: format!("Who uses the GPUs, under {}", policy.policy),
        caption: "Queues right below the cluster, with all below them.".into(),
        drawing: line_chart(&chart),
    }
}

fn time_axis(report: &ReplayReport) -> Axis {
    let longest = report.policies.iter().map(|policy| policy.makespan_hours).fold(0.0, f64::max);
    if longest > 96.0 {
        return Axis::between("days since the first arrival", 0.0, longest / 24.0, " d").scaled(24.0);
    }
    Axis::between("hours since the first arrival", 0.0, longest, " h")
}

fn hours(hours: f64) -> String {
    seconds(hours * 3600.0)
}

/// A time as people say it.
pub(super) fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 0.05 => "0 s".into(),
        s if s < 0.95 => format!("{s:.1} s"),
        s if s < 99.5 => format!("{s:.0} s"),
        s if s < 5940.0 => format!("{:.0} min", s / 60.0),
        s if s < 99.5 * 3600.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} d", s / 86_400.0),
    }
}
