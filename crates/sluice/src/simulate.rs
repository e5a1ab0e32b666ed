//! `sluice simulate`: reads the lists, lets the simulator run, prints what came of it.

mod arguments;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use sluice_simulate::trace::{Format, InputError, Jobs, read_jobs, read_nodes};
use sluice_simulate::{
    COLUMNS, Figure, FillPlan, FillReport, Site, Source, fill, fill_figures, fill_page, write_figures,
};

pub(crate) use arguments::SimulateArgs;

use crate::cli::Output;
use crate::table::{self, Align};

pub(crate) fn run(arguments: &SimulateArgs) -> Result<ExitCode> {
    let site =
        Site::new(&read_nodes(&arguments.nodes)?).with_context(|| arguments.nodes.display().to_string())?;
    let jobs = read_jobs(&arguments.jobs)?;
    check_possible(&jobs, &site.impossible(&jobs), arguments.keep_impossible)?;

    let plan = FillPlan { policies: arguments.policies(), seeds: arguments.seeds.0.clone() };
    let begin = Instant::now();
    let report = fill(&site, &jobs, &plan);
    eprintln!("simulated in {:.1} s", begin.elapsed().as_secs_f64());

    match arguments.output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&report)?),
        Output::Table => print!("{}", fill_table(&report)),
    }
    write_reports(arguments, || fill_page(&report, &source(arguments)), || fill_figures(&report))?;
    Ok(ExitCode::SUCCESS)
}

/// The openb protocol tries every pod of its lists, of which some fit nowhere; anybody else has made a mistake.
fn check_possible(jobs: &Jobs, impossible: &[InputError], keep: bool) -> Result<()> {
    let Some(first) = impossible.first() else { return Ok(()) };
    let many = match impossible.len() {
        1 => String::new(),
        count => format!(" (and {} more such jobs)", count - 1),
    };
    if keep || jobs.format == Format::Openb {
        eprintln!("sluice: a job that can never run counts as rejected: {first}{many}");
        return Ok(());
    }
    bail!("{first}{many}; correct the list, or say --keep-impossible to count such jobs as rejected")
}

fn write_reports(
    arguments: &SimulateArgs,
    page: impl FnOnce() -> String,
    figures: impl FnOnce() -> Vec<Figure>,
) -> Result<()> {
    if let Some(path) = &arguments.html {
        std::fs::write(path, page()).with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("the report is {}", path.display());
    }
    if let Some(folder) = &arguments.svg {
        write_figures(&figures(), folder)
            .with_context(|| format!("cannot write into {}", folder.display()))?;
        eprintln!("the charts are in {}", folder.display());
    }
    Ok(())
}

fn source(arguments: &SimulateArgs) -> Source {
    let file_name = |path: &Path| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let words: Vec<String> = std::env::args().skip(1).collect();
    Source {
        nodes: file_name(&arguments.nodes),
        jobs: file_name(&arguments.jobs),
        command: format!("sluice {}", words.join(" ")),
    }
}

fn fill_table(report: &FillReport) -> String {
    let titles = COLUMNS.map(|column| format!("{column}%"));
    let mut columns = vec![("POLICY", Align::Left)];
    columns.extend(titles.iter().map(|title| (title.as_str(), Align::Right)));
    columns.extend([("REJECTED", Align::Right), ("STRANDED", Align::Right)]);
    let rows: Vec<Vec<String>> = report
        .policies
        .iter()
        .map(|policy| {
            let mut row = vec![policy.policy.to_string()];
            let cells = policy.allocated_percent.values();
            row.extend(cells.map(|spread| format!("{:.2} ±{:.2}", spread.mean, spread.sd)));
            row.push(format!("{:.0}", policy.rejected_jobs.mean));
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
