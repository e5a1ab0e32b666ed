//! The report of filling a cluster up.

use crate::fill::{COLUMNS, FillReport, PolicyFill};
use crate::plot::{Axis, Bar, Kind, LineChart, Series, bar_chart, line_chart, number};
use crate::policy::History;
use crate::report::page::{Cell, Page, Tile};
use crate::report::{Figure, Source};

/// The charts: the allocation while demand arrives, and what is allocated when as much was asked
/// for as there is.
pub fn fill_figures(report: &FillReport) -> Vec<Figure> {
    vec![allocation_over_demand(report), allocation_at_capacity(report)]
}

/// The whole report as one page.
pub fn fill_page(report: &FillReport, source: &Source) -> String {
    let tiles = [
        Tile::new(
            number(f64::from(report.gpus), 0),
            format!("GPUs on {} nodes", number(report.nodes as f64, 0)),
        ),
        Tile::new(
            number(report.jobs as f64, 0),
            match report.history {
                History::Draws => "jobs in the list",
                History::Half => "jobs in the half of the list that comes",
            },
        ),
        Tile::new(format!("{:.1} %", report.demand_percent), "of the GPUs asked for by these jobs"),
        Tile::new(report.seeds.len().to_string(), "orders of arrival, the same for each policy"),
    ];
    let mut page = Page::new("How full does the cluster get?", &finding(report), source, &tiles);
    for figure in fill_figures(report) {
        page.figure(&figure);
    }
    allocation_table(&mut page, report);
    seeds_table(&mut page, report);
    page.finish(
        &[
            "Jobs of the list come in a random order, then jobs drawn from the list again, until 130 % of the cluster's GPU \
             compute has been asked for. No job ends, and each is tried once. A figure is the mean over the arrivals at which \
             the demand, rounded to a whole percent, had the value of its column. This is the protocol of Weng et al., \
             “Beware of Fragmentation” (USENIX ATC 2023).",
            "What is not allocated although it is asked for is fragmentation: free parts of GPUs that no request fits, \
             or free GPUs on nodes whose CPUs, memory or GPU model do not suit. Stranded is the part of the free GPU compute \
             that a job drawn from the list could not use where it is, when 80 % of the cluster have been asked for.",
            match report.history {
                History::Draws => {
                    "The policy sluice has learned from jobs drawn from the list at random, independently of every arrival here."
                }
                History::Half => {
                    "The policy sluice has learned from one half of the list's jobs; every arrival here is of the other half."
                }
            },
        ],
        source,
    )
}

fn best(report: &FillReport) -> Option<usize> {
    let at_100 = |policy: &PolicyFill| policy.allocated_percent[&100].mean;
    (0..report.policies.len())
        .max_by(|&a, &b| at_100(&report.policies[a]).total_cmp(&at_100(&report.policies[b])))
}

fn finding(report: &FillReport) -> String {
    let Some(best) = best(report).map(|index| &report.policies[index]) else { return String::new() };
    let at_100 = |policy: &PolicyFill| policy.allocated_percent[&100].mean;
    let gpus = |percent: f64| number(percent * f64::from(report.gpus) / 100.0, 0);
    let mut finding = format!(
        "When as many GPUs are asked for as there are, {} has {:.1} % of them allocated; {} GPUs stay idle.",
        best.policy,
        at_100(best),
        gpus(100.0 - at_100(best))
    );
    let worst = report.policies.iter().min_by(|a, b| at_100(a).total_cmp(&at_100(b)));
    if let Some(worst) = worst.filter(|worst| worst.policy != best.policy) {
        let gain = at_100(best) - at_100(worst);
        finding +=
            &format!(" That is {} GPUs more than {} gets from the same cluster.", gpus(gain), worst.policy);
    }
    if report.impossible_jobs > 0 {
        let jobs = if report.impossible_jobs == 1 {
            "One job fits".into()
        } else {
            format!("{} jobs fit", report.impossible_jobs)
        };
        finding += &format!(" {jobs} no node even of the empty cluster.");
    }
    finding
}

fn colour(policy: &PolicyFill) -> usize {
    policy.policy.colour()
}

fn allocation_over_demand(report: &FillReport) -> Figure {
    const FROM: usize = 60;
    let series = report.policies.iter().map(|policy| Series {
        name: policy.policy.to_string(),
        colour: colour(policy),
        points: (FROM..policy.curve.len()).map(|column| (column as f64, policy.curve[column].0)).collect(),
        spread: policy.curve[FROM..].iter().map(|(_, deviation)| *deviation).collect(),
    });
    let series: Vec<Series> = series.collect();
    let lowest =
        series.iter().filter_map(|series| series.points.first()).map(|(_, y)| *y).fold(FROM as f64, f64::min);
    let chart = LineChart {
        description: "Allocated GPUs over arrived demand for each policy".into(),
        kind: Kind::Lines,
        x: Axis::between("GPU demand that has arrived, % of the cluster", FROM as f64, 130.0, " %"),
        y: Axis::linear("allocated, % of the cluster's GPUs", (lowest - 1.0).max(0.0), 100.0, " %"),
        series,
        reference: Some((
            "all that was asked for".into(),
            vec![(FROM as f64, FROM as f64), (100.0, 100.0), (130.0, 100.0)],
        )),
    };
    Figure {
        name: "allocation-over-demand".into(),
        title: "Allocation while demand arrives".into(),
        caption: "Dotted: all that was asked for. The distance to it is demand that found no place; bands are one standard \
                  deviation over the orders of arrival."
            .into(),
        drawing: line_chart(&chart),
    }
}

fn allocation_at_capacity(report: &FillReport) -> Figure {
    let mut policies: Vec<&PolicyFill> = report.policies.iter().collect();
    policies.sort_by(|a, b| b.allocated_percent[&100].mean.total_cmp(&a.allocated_percent[&100].mean));
    let bars = policies.into_iter().map(|policy| {
        let at_100 = &policy.allocated_percent[&100];
        let idle = (100.0 - at_100.mean) * f64::from(report.gpus) / 100.0;
        Bar {
            name: policy.policy.to_string(),
            colour: colour(policy),
            value: at_100.mean,
            deviation: at_100.sd,
            note: format!("{:.2} ± {:.2} %, {} GPUs idle", at_100.mean, at_100.sd, number(idle, 0)),
        }
    });
    let axis = Axis::linear("allocated when 100 % has been asked for", 0.0, 100.0, " %");
    Figure {
        name: "allocation-at-capacity".into(),
        title: "Allocation when demand equals capacity".into(),
        caption: "Mean and one standard deviation over the orders of arrival.".into(),
        drawing: bar_chart(
            "Allocated GPUs at 100 % of arrived demand for each policy",
            &axis,
            &bars.collect::<Vec<_>>(),
        ),
    }
}

fn allocation_table(page: &mut Page, report: &FillReport) {
    let mut columns = vec!["Policy".to_string()];
    columns.extend(COLUMNS.map(|column| format!("{column} %")));
    columns.extend(["Rejected", "Moved", "Stranded"].map(String::from));
    let rows: Vec<Vec<Cell>> = report
        .policies
        .iter()
        .map(|policy| {
            let mut row = vec![Cell::Key(policy.policy.to_string(), colour(policy))];
            row.extend(
                policy
                    .allocated_percent
                    .values()
                    .map(|spread| Cell::Spread(format!("{:.2}", spread.mean), format!("{:.2}", spread.sd))),
            );
            row.push(Cell::Text(number(policy.rejected_jobs.mean, 0)));
            row.push(Cell::Text(number(policy.moves.mean, 0)));
            row.push(Cell::Text(format!("{:.0} %", policy.stranded_percent.mean)));
            row
        })
        .collect();
    let note = "Allocated GPU compute in percent of the cluster, by arrived demand; jobs rejected and moved until demand equals capacity; \
                the part of the free compute that is stranded at 80 %.";
    page.table("All figures", note, &columns, &rows, best(report));
}

fn seeds_table(page: &mut Page, report: &FillReport) {
    let mut columns = vec!["Seed".to_string()];
    columns.extend(report.policies.iter().map(|policy| policy.policy.to_string()));
    let rows: Vec<Vec<Cell>> = report
        .seeds
        .iter()
        .map(|seed| {
            let mut row = vec![Cell::Text(seed.to_string())];
            row.extend(report.policies.iter().map(|policy| {
                let value = policy.allocated_percent[&100].per_seed.get(seed);
                Cell::Text(value.map_or_else(String::new, |value| format!("{value:.2}")))
            }));
            row
        })
        .collect();
    page.details("Each order of arrival, at 100 %", &columns, &rows);
}
