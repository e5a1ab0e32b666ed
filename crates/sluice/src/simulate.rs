//! `sluice simulate`: reads the lists, lets the simulator run, prints what came of it.

mod arguments;
mod tables;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use sluice_simulate::trace::{Format, Jobs, Queues, read_jobs, read_nodes, read_queues};
use sluice_simulate::{
    Eviction, Figure, FigureFormat, FillPlan, History, Mix, ReplayPlan, Site, Source, Synthetic, fill,
    fill_figures, fill_page, replay, replay_figures, replay_page, write_figures,
};

pub(crate) use arguments::SimulateArgs;

use crate::cli::Output;
use crate::progress::Waiting;
use crate::simulate::arguments::{EvictionKind, HistoryKind, MixKind};

pub(crate) fn run(arguments: &SimulateArgs) -> Result<ExitCode> {
    if let Some(folder) = &arguments.generate {
        return generate(arguments, folder);
    }
    let (Some(nodes), Some(list)) = (&arguments.nodes, &arguments.jobs) else {
        bail!("--nodes and --jobs are needed");
    };
    let site = Site::new(&read_nodes(nodes)?).with_context(|| nodes.display().to_string())?;
    let mut jobs = read_jobs(list)?;
    check_possible(arguments, &site, &jobs)?;
    let source = source(nodes, list);
    if jobs.timed() && !arguments.fill {
        site.leave_out_impossible(&mut jobs);
        run_replay(arguments, &site, &jobs, &source)
    } else {
        run_fill(arguments, &site, &jobs, &source)
    }
}

fn run_fill(arguments: &SimulateArgs, site: &Site, jobs: &Jobs, source: &Source) -> Result<ExitCode> {
    if arguments.queues.is_some() {
        bail!(
            "--queues is for jobs that come and end: the list needs arrival_s and duration_s, and no --fill"
        );
    }
    let seeds = arguments.seeds.0.clone();
    let history = match arguments.history {
        HistoryKind::Draws => History::Draws,
        HistoryKind::Half => History::Half,
    };
    let plan = FillPlan { policies: arguments.policies(), seeds, migrate: arguments.migrate, history };
    let begin = Instant::now();
    let report = {
        let _waiting = simulating(jobs);
        fill(site, jobs, &plan)?
    };
    said_time(begin);
    print(arguments.output, &report, || tables::fill(&report))?;
    write_reports(arguments, || fill_page(&report, source), || fill_figures(&report))
}

fn run_replay(arguments: &SimulateArgs, site: &Site, jobs: &Jobs, source: &Source) -> Result<ExitCode> {
    if arguments.history == HistoryKind::Half {
        bail!("--history half is for filling up, where any half of the jobs stands for the list: say --fill");
    }
    let queues = match &arguments.queues {
        Some(path) => read_queues(path)?,
        None => Queues::named_by(jobs, site.gpus())?,
    };
    queues.check(jobs)?;
    let plan = ReplayPlan {
        policies: arguments.policies(),
        seed: arguments.seeds.0.first().copied().unwrap_or_default(),
        cycle_ms: u64::try_from(arguments.cycle.duration().as_millis())?.max(1),
        eviction: match arguments.eviction {
            EvictionKind::Resume => Eviction::Resume,
            EvictionKind::Restart => Eviction::Restart,
        },
        migrate: arguments.migrate,
        late: None,
    };
    let begin = Instant::now();
    let report = {
        let _waiting = simulating(jobs);
        replay(site, jobs, &queues, &plan)?
    };
    said_time(begin);
    print(arguments.output, &report, || tables::replay(&report))?;
    write_reports(arguments, || replay_page(&report, source), || replay_figures(&report))
}

fn generate(arguments: &SimulateArgs, folder: &Path) -> Result<ExitCode> {
    let seed = arguments.seeds.0.first().copied().unwrap_or_default();
    let mix = match arguments.mix {
        MixKind::Training => Mix::Training,
        MixKind::Even => Mix::Even,
    };
    let synthetic = Synthetic { gpus: arguments.gpus, jobs: arguments.sessions, seed, mix };
    synthetic.write(folder).with_context(|| format!("cannot write into {}", folder.display()))?;
    let [nodes, jobs, queues] = ["nodes", "jobs", "queues"].map(|name| folder.join(format!("{name}.csv")));
    eprintln!("the lists are in {}; simulate them with", folder.display());
    println!(
        "sluice simulate --nodes {} --jobs {} --queues {} --html {}",
        nodes.display(),
        jobs.display(),
        queues.display(),
        folder.join("report.html").display()
    );
    Ok(ExitCode::SUCCESS)
}

/// The openb protocol tries every pod of its lists, of which some fit nowhere; elsewhere such a job
/// is a mistake.
fn check_possible(arguments: &SimulateArgs, site: &Site, jobs: &Jobs) -> Result<()> {
    let impossible = site.impossible(jobs);
    let Some(first) = impossible.first() else { return Ok(()) };
    let many = match impossible.len() {
        1 => String::new(),
        count => format!(" (and {} more such jobs)", count - 1),
    };
    if arguments.keep_impossible || jobs.format == Format::Openb {
        eprintln!("sluice: a job that can never run is never placed: {first}{many}");
        return Ok(());
    }
    bail!("{first}{many}; correct the list, or say --keep-impossible to continue without such jobs")
}

/// What is said while a simulation runs.
pub(crate) fn simulating(jobs: &Jobs) -> Waiting {
    Waiting::new(format!("simulating {} jobs", jobs.jobs.len()))
}

fn said_time(begin: Instant) {
    eprintln!("simulated in {:.1} s", begin.elapsed().as_secs_f64());
}

fn print(output: Output, report: &impl Serialize, table: impl FnOnce() -> String) -> Result<()> {
    match output {
        Output::Json => println!("{}", serde_json::to_string_pretty(report)?),
        Output::Table => print!("{}", table()),
    }
    Ok(())
}

fn write_reports(
    arguments: &SimulateArgs,
    page: impl FnOnce() -> String,
    figures: impl FnOnce() -> Vec<Figure>,
) -> Result<ExitCode> {
    if let Some(path) = &arguments.html {
        std::fs::write(path, page()).with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("the report is {}", path.display());
    }
    let figures = figures();
    for (folder, format) in [(&arguments.svg, FigureFormat::Svg), (&arguments.png, FigureFormat::Png)] {
        if let Some(folder) = folder {
            write_figures(&figures, format, folder)
                .with_context(|| format!("cannot write into {}", folder.display()))?;
            eprintln!("the charts are in {}", folder.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn source(nodes: &Path, jobs: &Path) -> Source {
    let file_name = |path: &Path| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    Source { nodes: file_name(nodes), jobs: file_name(jobs), command: format!("sluice {}", words.join(" ")) }
}
