//! `cargo xtask bench`: the measurements in `docs/benchmarks`.
//!
//! Each row is measured several times, together with its baseline and in the same run, and shown as
//! the median with the lowest and the highest value. The file's tables are written between markers;
//! its prose is for people.

mod attacks;
mod between;
mod blas;
mod elastic;
mod far;
mod idle;
mod images;
mod iq;
mod kernels;
mod links;
mod lupine;
mod packed;
mod plots;
mod remoting;
mod sanitizer;
mod scrapes;
mod server_attacks;
mod steps;
mod web;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::e2e::alone;
use crate::node::{self, Node};
use crate::process;

/// The folder of the pages that tables are written into.
const PAGES: &str = "docs/benchmarks";
/// Runs of each measurement.
const RUNS: usize = 5;

/// Figures of one run by name.
type Figures = BTreeMap<String, f64>;

/// One line of a table: what, the figure, and what it is compared with.
struct Row {
    what: &'static str,
    unit: &'static str,
    figure: fn(&Figures) -> Option<f64>,
    baseline: &'static str,
    of_baseline: fn(&Figures) -> Option<f64>,
}

struct Section {
    name: &'static str,
    title: &'static str,
    measure: fn() -> Result<Vec<Figures>>,
    rows: &'static [Row],
}

const SECTIONS: &[Section] = &[
    Section {
        name: "calls",
        title: "Calls and copies over loopback TCP and on the same host",
        measure: calls,
        rows: CALLS,
    },
    Section { name: "start", title: "Start of a program", measure: start, rows: START },
    Section {
        name: "zerocopy",
        title: "`MSG_ZEROCOPY` over loopback TCP, 1 MiB at a time",
        measure: zerocopy,
        rows: ZEROCOPY,
    },
];

macro_rules! get {
    ($name:literal) => {
        |figures: &Figures| figures.get($name).copied()
    };
}

const CALLS: &[Row] = &[
    Row {
        what: "TCP: queued call (launch of an empty kernel), CPU of all client threads",
        unit: "us",
        figure: get!("tcp_queued_call_client_cpu_us"),
        baseline: "time until it returns",
        of_baseline: get!("tcp_queued_call_us"),
    },
    Row {
        what: "TCP: queued calls until all are done, on the recording driver, which computes nothing",
        unit: "calls/s",
        figure: get!("recording_tcp_queued_calls_per_s"),
        baseline: "on the software GPU",
        of_baseline: get!("tcp_queued_calls_per_s"),
    },
    Row {
        what: "TCP: the same from four threads at once, on the recording driver",
        unit: "calls/s",
        figure: get!("recording_tcp_queued_calls_threads_per_s"),
        baseline: "one thread",
        of_baseline: get!("recording_tcp_queued_calls_per_s"),
    },
    Row {
        what: "TCP: waiting calls of four threads at once, on the recording driver",
        unit: "calls/s",
        figure: get!("recording_tcp_waiting_calls_threads_per_s"),
        baseline: "one thread",
        of_baseline: |figures| Some(1e6 / figures.get("recording_tcp_waiting_call_us")?),
    },
    Row {
        what: "TCP: waiting call on the recording driver",
        unit: "us",
        figure: get!("recording_tcp_waiting_call_us"),
        baseline: "16-byte ping-pong, plain socket",
        of_baseline: get!("recording_tcp_round_trip_us"),
    },
    Row {
        what: "TCP: waiting call (cuCtxSynchronize, nothing queued)",
        unit: "us",
        figure: get!("tcp_waiting_call_us"),
        baseline: "16-byte ping-pong, plain socket",
        of_baseline: get!("tcp_round_trip_us"),
    },
    Row {
        what: "TCP: copy of 64 bytes to the device (cuMemcpyHtoD)",
        unit: "us",
        figure: get!("tcp_small_htod_us"),
        baseline: "16-byte ping-pong, plain socket",
        of_baseline: get!("tcp_round_trip_us"),
    },
    Row {
        what: "TCP: large copy to the device, random bytes",
        unit: "GB/s",
        figure: get!("tcp_htod_bytes_per_s"),
        baseline: "plain socket",
        of_baseline: get!("tcp_htod_baseline_bytes_per_s"),
    },
    Row {
        what: "TCP: large copy from the device",
        unit: "GB/s",
        figure: get!("tcp_dtoh_bytes_per_s"),
        baseline: "plain socket",
        of_baseline: get!("tcp_dtoh_baseline_bytes_per_s"),
    },
    Row {
        what: "same host: queued call (launch of an empty kernel), CPU of all client threads",
        unit: "us",
        figure: get!("shm_queued_call_client_cpu_us"),
        baseline: "time until it returns",
        of_baseline: get!("shm_queued_call_us"),
    },
    Row {
        what: "same host: queued calls until all are done, on the recording driver, which computes nothing",
        unit: "calls/s",
        figure: get!("recording_shm_queued_calls_per_s"),
        baseline: "on the software GPU",
        of_baseline: get!("shm_queued_calls_per_s"),
    },
    Row {
        what: "same host: the same from four threads at once, on the recording driver",
        unit: "calls/s",
        figure: get!("recording_shm_queued_calls_threads_per_s"),
        baseline: "one thread",
        of_baseline: get!("recording_shm_queued_calls_per_s"),
    },
    Row {
        what: "same host: waiting calls of four threads at once, on the recording driver",
        unit: "calls/s",
        figure: get!("recording_shm_waiting_calls_threads_per_s"),
        baseline: "one thread",
        of_baseline: |figures| Some(1e6 / figures.get("recording_shm_waiting_call_us")?),
    },
    Row {
        what: "same host: waiting call on the recording driver",
        unit: "us",
        figure: get!("recording_shm_waiting_call_us"),
        baseline: "16-byte ping-pong, plain socket",
        of_baseline: get!("recording_shm_round_trip_us"),
    },
    Row {
        what: "same host: waiting call (cuCtxSynchronize, nothing queued)",
        unit: "us",
        figure: get!("shm_waiting_call_us"),
        baseline: "16-byte ping-pong, plain socket",
        of_baseline: get!("shm_round_trip_us"),
    },
    Row {
        what: "same host: copy of 64 bytes to the device (cuMemcpyHtoD)",
        unit: "us",
        figure: get!("shm_small_htod_us"),
        baseline: "16-byte ping-pong, plain socket",
        of_baseline: get!("shm_round_trip_us"),
    },
    Row {
        what: "same host: large copy to the device, random bytes",
        unit: "GB/s",
        figure: get!("shm_htod_bytes_per_s"),
        baseline: "memcpy",
        of_baseline: get!("shm_htod_baseline_bytes_per_s"),
    },
    Row {
        what: "same host: large copy from the device",
        unit: "GB/s",
        figure: get!("shm_dtoh_bytes_per_s"),
        baseline: "memcpy",
        of_baseline: get!("shm_dtoh_baseline_bytes_per_s"),
    },
];

const START: &[Row] = &[
    Row {
        what: "`sluice run --node` of `true`",
        unit: "ms",
        figure: get!("with_node_ms"),
        baseline: "`true` alone",
        of_baseline: get!("alone_ms"),
    },
    Row {
        what: "`sluice run` of `true` with a private node",
        unit: "ms",
        figure: get!("private_ms"),
        baseline: "`true` alone",
        of_baseline: get!("alone_ms"),
    },
    Row {
        what: "TCP: from a process to its context",
        unit: "ms",
        figure: get!("tcp_context_ms"),
        baseline: NATIVE,
        of_baseline: get!("native_context_ms"),
    },
    Row {
        what: "TCP: from its last line to its end",
        unit: "ms",
        figure: get!("tcp_exit_ms"),
        baseline: NATIVE,
        of_baseline: get!("native_exit_ms"),
    },
    Row {
        what: "TCP: resident memory with a context",
        unit: "MiB",
        figure: get!("tcp_context_mib"),
        baseline: NATIVE,
        of_baseline: get!("native_context_mib"),
    },
    Row {
        what: "TCP: after copies of 64 MiB each way",
        unit: "MiB",
        figure: get!("tcp_copies_mib"),
        baseline: NATIVE,
        of_baseline: get!("native_copies_mib"),
    },
    Row {
        what: "same host: from a process to its context",
        unit: "ms",
        figure: get!("shm_context_ms"),
        baseline: NATIVE,
        of_baseline: get!("native_context_ms"),
    },
    Row {
        what: "same host: from its last line to its end",
        unit: "ms",
        figure: get!("shm_exit_ms"),
        baseline: NATIVE,
        of_baseline: get!("native_exit_ms"),
    },
    Row {
        what: "same host: resident memory with a context",
        unit: "MiB",
        figure: get!("shm_context_mib"),
        baseline: NATIVE,
        of_baseline: get!("native_context_mib"),
    },
    Row {
        what: "same host: after copies of 64 MiB each way",
        unit: "MiB",
        figure: get!("shm_copies_mib"),
        baseline: NATIVE,
        of_baseline: get!("native_copies_mib"),
    },
];

/// What the program does by itself, memory of the GPU included.
const NATIVE: &str = "software GPU in the process";

const ZEROCOPY: &[Row] = &[
    Row {
        what: "bytes through a socket with `MSG_ZEROCOPY`",
        unit: "GB/s",
        figure: |figures| Some(figures.get("zerocopy_bytes_per_s")? / 1e9),
        baseline: "without",
        of_baseline: |figures| Some(figures.get("plain_bytes_per_s")? / 1e9),
    },
    Row {
        what: "CPU of sender and receiver",
        unit: "ms/GB",
        figure: get!("zerocopy_cpu_ms_per_gb"),
        baseline: "without",
        of_baseline: get!("plain_cpu_ms_per_gb"),
    },
    Row {
        what: "sends that the kernel has copied all the same, as it says itself",
        unit: "of 1",
        figure: get!("zerocopy_copied"),
        baseline: "",
        of_baseline: |_| None,
    },
];

type MakeTable = fn() -> Result<String>;

/// Measurements whose tables are of another form: name, title, and what makes the table.
const TABLES: &[(&str, &str, MakeTable)] = &[
    (remoting::NAME, "Calls and copies over each link", remoting::run),
    (kernels::NAME, "Software GPU against C", kernels::run),
    (blas::NAME, "Products of matrices against OpenBLAS", blas::run),
    (links::NAME, "Links with delay and rate", links::run),
    (far::NAME, "Far and lossy links", far::run),
    (steps::NAME, "Steps over slow links", steps::run),
    (packed::NAME, "Packed copies over slow links", packed::run),
    (images::NAME, "Images beyond slow links", images::run),
    (idle::NAME, "Idle sessions", idle::run),
    (elastic::NAME, "Memory that moves", elastic::run),
    (sanitizer::NAME, "Programs under the sanitizer", sanitizer::run),
    (scrapes::NAME, "Calls on a node that is scraped", scrapes::run),
    (iq::NAME, "Right-sizing on held-out weeks", iq::held_out),
    (iq::ESTIMATES, "Estimates of starts and durations", iq::estimates),
    (iq::VALUE, "What dividing GPUs is worth", iq::value),
    (attacks::NAME, "Connections that prove nothing", attacks::run),
    (server_attacks::NAME, "Connections to a server that prove nothing", server_attacks::run),
];

pub(crate) fn run(names: &[&str]) -> Result<ExitCode> {
    if let [lupine::NAME, options @ ..] = names {
        node::build_also(&["sluice-softgpu-lib"])?;
        std::fs::create_dir_all(folder())?;
        let table = lupine::run(options)?;
        println!("{table}");
        write_section(lupine::NAME, &table)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let [attacks::NAME] = names {
        let table = attacks::run()?;
        println!("{table}");
        write_section(attacks::NAME, &table)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let [iq::NAME] = names {
        for (name, title, measure) in TABLES.iter().filter(|(name, ..)| iq::PARTS.contains(name)) {
            eprintln!("== {title}");
            let table = measure()?;
            println!("{table}");
            write_section(name, &table)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let [web::NAME] = names {
        let table = web::run()?;
        println!("{table}");
        write_section(web::NAME, &table)?;
        return Ok(ExitCode::SUCCESS);
    }
    let is_known = |name: &str| {
        TABLES.iter().any(|(known, ..)| *known == name) || SECTIONS.iter().any(|section| section.name == name)
    };
    if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
        bail!("no measurement is called {unknown}");
    }
    node::build_also(&["sluice-softgpu-lib"])?;
    std::fs::create_dir_all(folder())?;
    for section in SECTIONS.iter().filter(|section| names.is_empty() || names.contains(&section.name)) {
        eprintln!("== {}", section.title);
        let runs = (section.measure)()?;
        let table = table(section, &runs);
        println!("{table}");
        write_section(section.name, &table)?;
    }
    for (name, title, measure) in TABLES.iter().filter(|(name, ..)| names.is_empty() || names.contains(name))
    {
        eprintln!("== {title}");
        let table = measure()?;
        println!("{table}");
        write_section(name, &table)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn folder() -> PathBuf {
    crate::target_folder().join("bench")
}

fn source(name: &str) -> PathBuf {
    crate::root().join("tests/bench").join(name)
}

fn calls() -> Result<Vec<Figures>> {
    let report = |gpus: &str| -> Result<serde_json::Value> {
        let mut command = Command::new(node::sluice());
        command.args(["bench", "remoting", "--runs", "1", "-o", "json", "--gpus", gpus]);
        Ok(serde_json::from_str(&process::output_of(command.env_remove("SLUICE_NODE"))?)?)
    };
    repeat(|| {
        let (software, recording) = (report("software:1,1GiB")?, report("recording:h200")?);
        let of = |report: &serde_json::Value, prefix: &str| {
            let links = ["tcp", "shm"].map(|link| figures_of(&format!("{prefix}{link}"), &report[link]));
            links.into_iter().flatten().collect::<Vec<_>>()
        };
        Ok(of(&software, "").into_iter().chain(of(&recording, "recording_")).collect())
    })
}

/// The numbers of one link, in the units of the table.
fn figures_of(link: &str, report: &serde_json::Value) -> Figures {
    let fields = report.as_object().into_iter().flatten();
    let figures = fields.filter_map(|(name, value)| {
        let scale = if name.ends_with("bytes_per_s") { 1e-9 } else { 1.0 };
        Some((format!("{link}_{name}"), value.as_f64()? * scale))
    });
    figures.collect()
}

fn start() -> Result<Vec<Figures>> {
    const STARTS: u32 = 20;
    let node = Node::start(&["--listen", "127.0.0.1:0", "--gpus", "software:1,1GiB"])?;
    let time = |command: &mut Command| -> Result<f64> {
        let begin = Instant::now();
        for _ in 0..STARTS {
            ensure!(command.status()?.success(), "{} failed", process::show(command));
        }
        Ok(begin.elapsed().as_secs_f64() * 1e3 / f64::from(STARTS))
    };
    let sluice = |options: &[&str], program: &str| {
        let mut command = Command::new(node::sluice());
        command.args(["run", "-q"]).args(options).args(["--", program]).env_remove("SLUICE_NODE");
        command
    };
    let program = folder().join("start");
    let mut gcc = Command::new("gcc");
    process::run(gcc.args(["-O2", "-std=gnu11"]).arg(source("start.c")).arg("-o").arg(&program).arg("-ldl"))?;
    let program = program.to_str().context("the target folder's name is not text")?;
    let socket = format!("unix:{}", folder().join("start.sock").display());
    let local = Node::start(&["--listen", &socket, "--gpus", "software:1,1GiB"])?;
    repeat(|| {
        let mut run = Figures::from([
            ("alone_ms".into(), time(&mut Command::new("true"))?),
            ("with_node_ms".into(), time(&mut sluice(&["--node", &node.address], "true"))?),
            ("private_ms".into(), time(&mut sluice(&["--gpus", "software:1,1GiB"], "true"))?),
        ]);
        for (link, node) in [("tcp_", &node), ("shm_", &local)] {
            let output = process::output_of(&mut sluice(&["--node", &node.address], program))?;
            run.extend(figures(link, &output)?);
        }
        let mut native = Command::new(program);
        native.env("LD_LIBRARY_PATH", alone::driver_folder()?);
        run.extend(figures("native_", &process::output_of(&mut native)?)?);
        Ok(run)
    })
}

fn zerocopy() -> Result<Vec<Figures>> {
    let program = folder().join("zerocopy");
    let mut gcc = Command::new("gcc");
    process::run(gcc.arg("-O2").arg(source("zerocopy.c")).arg("-o").arg(&program).arg("-lpthread"))?;
    repeat(|| figures("", &process::output_of(Command::new(&program).args(["127.0.0.1", "2000"]))?))
}

fn repeat(mut once: impl FnMut() -> Result<Figures>) -> Result<Vec<Figures>> {
    (0..RUNS).map(|_| once()).collect()
}

/// Reads lines "NAME VALUE".
fn figures(prefix: &str, text: &str) -> Result<Figures> {
    let line = |line: &str| -> Result<(String, f64)> {
        let (name, value) = line.split_once(' ').with_context(|| format!("not a figure: {line:?}"))?;
        Ok((format!("{prefix}{name}"), value.trim().parse()?))
    };
    text.lines().map(line).collect()
}

fn table(section: &Section, runs: &[Figures]) -> String {
    let mut text = format!(
        "{}. Measured by `cargo xtask bench {}` on {}; median of {} runs, lowest and highest in brackets.\n\n\
         | what | figure | baseline, same run | ratio |\n|---|---|---|---|\n",
        section.title,
        section.name,
        machine(),
        runs.len()
    );
    for row in section.rows {
        let of = |get: fn(&Figures) -> Option<f64>| -> Vec<f64> { runs.iter().filter_map(get).collect() };
        let ratios: Vec<f64> =
            runs.iter().filter_map(|run| Some((row.figure)(run)? / (row.of_baseline)(run)?)).collect();
        let baseline = match spread(of(row.of_baseline)) {
            Some(spread) => format!("{spread} {} ({})", row.unit, row.baseline),
            None => "-".into(),
        };
        let figure = show(of(row.figure));
        let ratio = spread(ratios).unwrap_or_else(|| "-".into());
        text += &format!("| {} | {figure} {} | {baseline} | {ratio} |\n", row.what, row.unit);
    }
    text
}

/// `MEDIAN [LOWEST, HIGHEST]` with three digits that count.
fn spread(mut values: Vec<f64>) -> Option<String> {
    values.sort_by(f64::total_cmp);
    let (lowest, highest) = (*values.first()?, *values.last()?);
    let median = values[values.len() / 2];
    let digits = |value: f64| match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    };
    Some(format!("{} [{}, {}]", digits(median), digits(lowest), digits(highest)))
}

/// [`spread`], in the cell of a table.
fn show(values: Vec<f64>) -> String {
    spread(values).unwrap_or_else(|| "not measured".into())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A figure of each run that has it.
fn values(runs: &[Figures], name: &str) -> Vec<f64> {
    runs.iter().filter_map(|run| run.get(name).copied()).collect()
}

/// One figure through another, run by run.
fn ratios(runs: &[Figures], name: &str, baseline: &str) -> Vec<f64> {
    values(runs, name)
        .iter()
        .zip(values(runs, baseline))
        .map(|(figure, baseline)| figure / baseline)
        .collect()
}

/// The processor and how many cores of it, for the heading of a table.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{cores} cores of {}", model.map_or("an unknown processor", |(_, name)| name.trim()))
}

fn write_section(name: &str, table: &str) -> Result<()> {
    let path = page_of(name)?;
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    std::fs::write(path, replace_section(&text, name, table)?)?;
    Ok(())
}

/// Returns the page of `docs/benchmarks` that has a place for a section.
pub(crate) fn page_of(name: &str) -> Result<PathBuf> {
    for entry in std::fs::read_dir(crate::root().join(PAGES)).context(PAGES)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md")
            && section(&std::fs::read_to_string(&path)?, name).is_ok()
        {
            return Ok(path);
        }
    }
    bail!("no page in {PAGES} has the marks <!-- {name} --> and <!-- /{name} -->")
}

/// What stands between `<!-- NAME -->` and `<!-- /NAME -->`.
pub(crate) fn section<'a>(text: &'a str, name: &str) -> Result<&'a str> {
    Ok(around_section(text, name)?.1)
}

pub(crate) fn replace_section(text: &str, name: &str, table: &str) -> Result<String> {
    let (before, _, after) = around_section(text, name)?;
    Ok(format!("{before}{table}{after}"))
}

/// What precedes a section, the section, and what follows; the marks are outside.
fn around_section<'a>(text: &'a str, name: &str) -> Result<(&'a str, &'a str, &'a str)> {
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let missing = |mark: &str| format!("no {mark:?} on the page");
    let begin = text.find(&begin).with_context(|| missing(&begin))? + begin.len();
    let (before, rest) = text.split_at(begin);
    let (section, after) = rest.split_at(rest.find(&end).with_context(|| missing(&end))?);
    Ok((before, section, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_replaced_and_the_rest_stays() {
        let text = "prose\n<!-- a -->\nold\n<!-- /a -->\nmore\n";
        let replaced = replace_section(text, "a", "new\n").expect("a section");
        assert_eq!(replaced, "prose\n<!-- a -->\nnew\n<!-- /a -->\nmore\n");
        assert!(replace_section(text, "b", "new\n").is_err());
    }

    #[test]
    fn figures_are_lines() {
        assert_eq!(figures("x_", "a 1.5\nb 2\n").expect("figures")["x_a"], 1.5);
        assert!(figures("", "nonsense").is_err());
        assert_eq!(spread(vec![3.0, 1.0, 200.0]).as_deref(), Some("3.00 [1.00, 200]"));
    }

    #[test]
    fn every_section_has_a_place_on_a_page() {
        for name in SECTIONS.iter().map(|section| section.name).chain([
            blas::NAME,
            far::NAME,
            images::NAME,
            iq::NAME,
            iq::ESTIMATES,
            iq::VALUE,
            links::NAME,
            lupine::NAME,
            packed::NAME,
            remoting::NAME,
            sanitizer::NAME,
            scrapes::NAME,
            steps::NAME,
            web::NAME,
            crate::fuzz::SECTION,
        ]) {
            assert!(page_of(name).is_ok(), "{name}");
        }
    }
}
