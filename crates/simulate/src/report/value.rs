//! The report of what dividing GPUs is worth.

use crate::plot::{Axis, Bar, bar_chart, number};
use crate::report::page::{Cell, Page, Tile};
use crate::report::replay::seconds;
use crate::report::{Figure, Source};
use crate::value::{Allocation, Carried, ValueReport};

/// Each number of the report, and where it comes from; one page.
pub fn value_page(report: &ValueReport, source: &Source) -> String {
    let Some(best) = best(report) else { return String::new() };
    let row = &report.rows[best];
    let tiles = [
        Tile::new(
            format!("{:.2}", row.capacity),
            format!("times as much work as whole GPUs do, with {}", row.allocation.name()),
        ),
        Tile::new(number(f64::from(row.gpus), 0), format!("GPUs instead of {}", number(whole(report), 0))),
        Tile::new(
            number(row.saved, 0),
            format!("saved in {} at {} for a GPU-hour", seconds(report.hours * 3600.0), report.price),
        ),
        Tile::new(format!("{:.2}", row.cost_per_gpu_hour), "cost of a GPU-hour of work"),
    ];
    let mut page = Page::new("What is dividing GPUs worth?", &finding(report, row), source, &tiles);
    page.figure(&figure(report));
    table(&mut page, report, best);
    page.finish(&explanations(report).iter().map(String::as_str).collect::<Vec<_>>(), source)
}

fn whole(report: &ValueReport) -> f64 {
    report.rows.first().map_or(0.0, |row| f64::from(row.gpus))
}

/// The best of the ways that Sluice has: shares.
fn best(report: &ValueReport) -> Option<usize> {
    let is_ours = |row: &Carried| matches!(row.allocation, Allocation::Shares | Allocation::SharesNeeded);
    (0..report.rows.len())
        .filter(|&index| is_ours(&report.rows[index]))
        .max_by(|&a, &b| report.rows[a].capacity.total_cmp(&report.rows[b].capacity))
}

fn finding(report: &ValueReport, row: &Carried) -> String {
    let others = report.rows.iter().filter(|other| {
        !matches!(other.allocation, Allocation::Shares | Allocation::SharesNeeded | Allocation::WholeGpus)
    });
    let others: Vec<String> =
        others.map(|other| format!("{} {}", other.allocation.name(), other.gpus)).collect();
    format!(
        "{} jobs run on {} GPUs with {}, and 95 of 100 wait no longer than {}; whole GPUs take {}, {}. {}",
        number(report.jobs as f64, 0),
        row.gpus,
        row.allocation.name(),
        seconds(report.wait_s),
        whole(report),
        others.join(", "),
        bound(report, row)
    )
}

/// What keeps the capacity from being more.
fn bound(report: &ValueReport, row: &Carried) -> String {
    let whole = format!(
        "{:.0} % of the GPU time is asked for by jobs with whole GPUs, which asking in shares does not divide",
        report.whole_percent
    );
    match row.capacity_of_gpus_alone > 1.05 * row.capacity {
        true => format!(
            "If the nodes had CPUs and memory enough, it would be {:.2} times as much; {whole}.",
            row.capacity_of_gpus_alone
        ),
        false => format!("CPUs and memory of the nodes do not bound it; {whole}."),
    }
}

fn figure(report: &ValueReport) -> Figure {
    let most = report.rows.iter().map(|row| row.capacity).fold(1.0, f64::max);
    let bars: Vec<Bar> = report
        .rows
        .iter()
        .enumerate()
        .map(|(colour, row)| Bar {
            name: row.allocation.name(),
            colour,
            value: row.capacity,
            deviation: 0.0,
            note: format!("{:.2}: {} GPUs", row.capacity, row.gpus),
        })
        .collect();
    let axis = Axis::linear("work on the same GPUs, whole GPUs = 1", 0.0, most.ceil(), "");
    Figure {
        name: "effective-capacity".into(),
        title: "Effective capacity".into(),
        caption: "Whole GPUs that it takes to carry what one GPU carries.".into(),
        drawing: bar_chart("Effective capacity of each way to divide GPUs", &axis, &bars),
    }
}

fn table(page: &mut Page, report: &ValueReport, best: usize) {
    let columns = [
        "Allocation",
        "GPUs",
        "Nodes",
        "Capacity",
        "GPUs alone",
        "Wait, P50",
        "P95",
        "Allocated",
        "Cost",
        "Per GPU-hour",
        "Saved",
        "Energy, at most",
    ];
    let rows: Vec<Vec<Cell>> = report
        .rows
        .iter()
        .enumerate()
        .map(|(colour, row)| {
            let mut cells = vec![Cell::Key(row.allocation.name(), colour)];
            let texts = [
                number(f64::from(row.gpus), 0),
                number(row.nodes as f64, 0),
                format!("{:.2}", row.capacity),
                format!("{:.2}", row.capacity_of_gpus_alone),
                seconds(row.wait_p50_s),
                seconds(row.wait_p95_s),
                format!("{:.1} %", row.allocated_percent),
                number(row.cost, 0),
                format!("{:.2}", row.cost_per_gpu_hour),
                number(row.saved, 0),
                format!("{} kWh", number(row.energy_kwh, 0)),
            ];
            cells.extend(texts.map(Cell::Text));
            cells
        })
        .collect();
    let note = "The smallest cluster with each way to divide GPUs, up to one per cent, for the same jobs and the same wait.";
    page.table("Clusters that carry these jobs", note, &columns.map(String::from), &rows, Some(best));
}

fn explanations(report: &ValueReport) -> Vec<String> {
    let unknown = match report.unknown_tdp_gpus {
        0 => String::new(),
        count => format!(" {count} GPUs of models without a TDP in the table are not counted."),
    };
    vec![
        format!(
            "The production scheduler places the jobs in virtual time with the policy {}, one queue, and their own CPUs, \
             memory and models. A cluster is made smaller, its models in proportion, until jobs no longer all run or 95 of \
             100 of them wait longer than {}. Capacity is the GPUs that whole GPUs take, divided by those of the row; GPUs \
             alone is the same with nodes that have CPUs and memory enough.",
            report.policy,
            seconds(report.wait_s)
        ),
        "MIG: the smallest profile with the share and the memory, as if every model could be divided and all profiles fitted \
         together. Time slices: each job gets one of 2 or 4 equal turns on a GPU, without its own memory, and takes longer if \
         it needs more than its turn. Right-sized: with the column needed_share, which is what sluice iq recommends; the \
         others take what is asked for."
            .into(),
        format!(
            "Cost is the price of all GPUs of the cluster from the first arrival to the last ({}), used or not; a GPU-hour of \
             work is one of the {} that the jobs ask for. Energy is that of all GPUs at their thermal design power in that \
             time, by NVIDIA's data sheets: not measured, and more than GPUs draw that are idle in between.{unknown}",
            seconds(report.hours * 3600.0),
            number(report.work_gpu_hours, 0)
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PolicyName;
    use crate::trace::{jobs_from_text, nodes_from_text};
    use crate::value::{ValuePlan, value};

    #[test]
    fn the_page_has_each_way_its_command_and_what_bounds_it() {
        let nodes = nodes_from_text("name,cpus,memory_gib,gpus,model\na,8,64,4,<T4>\n").unwrap();
        let mut text = String::from("name,arrival_s,duration_s,cpus,memory_gib,gpus,share,needed_share\n");
        for index in 0..8 {
            text.push_str(&format!("j{index},{index},600,1,1,1,0.5,0.25\n"));
        }
        let jobs = jobs_from_text(&text).unwrap();
        let plan = ValuePlan {
            wait_s: 5.0,
            policy: PolicyName::BestFit,
            seed: 1,
            cycle_ms: 1000,
            faster: 1.0,
            price: 2.0,
        };
        let report = value(&nodes, &jobs, &plan).unwrap();
        let source =
            Source { nodes: "n.csv".into(), jobs: "j.csv".into(), command: "sluice plan --report".into() };
        let page = value_page(&report, &source);
        for part in
            ["whole GPUs", "2 time slices", "shares, right-sized", "MIG, right-sized", "sluice plan --report"]
        {
            assert!(page.contains(part), "{part}");
        }
        assert!(page.contains("not measured") && !page.contains("<T4>"));
        assert_eq!(page.matches("<table>").count(), 1);
    }
}
