//! `cargo xtask bench`: the measurements in `docs/benchmarks`.
//!
//! Each row is measured several times, together with its baseline and in the same run, and shown as
//! the median with the lowest and the highest value. The file's tables are written between markers;
//! its prose is for people.

mod attacks;
mod between;
mod blas;
mod document;
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
mod start;
mod steps;
mod stored;
mod tiers;
mod web;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::{node, process};

pub(crate) use document::{page_of, replace_section, section};

use document::{machine, median, ratios, show, spread, table, values, write_section};
use start::{START, start};

/// The folder of the pages that tables are written into.
const PAGES: &str = "docs/benchmarks";
/// The section that is measured on a whole cluster.
const KUBERNETES: &str = "kubernetes";
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
use get;

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
    (stored::NAME, "First launches of stored kernels", stored::run),
    (idle::NAME, "Idle sessions", idle::run),
    (elastic::NAME, "Memory that moves", elastic::run),
    (tiers::NAME, "Tiers and shares", tiers::software),
    (tiers::LOADED, "Tiers and shares on a driver that cannot be paused", tiers::loaded),
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
    if let [KUBERNETES] = names {
        let table = format!(
            "Two machines in namespaces of one, together on {}. Kubernetes, containerd, Sluice\n\
             and the program share them. Measured by `cargo xtask bench {KUBERNETES}`; the median of ten pods of\n\
             each kind, taken alternately, with the lowest and the highest in brackets.\n\n{}",
            machine(),
            kubernetes_tables()?
        );
        println!("{table}");
        write_section(KUBERNETES, &table)?;
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

#[cfg(test)]
mod tests;

/// The tables of what pods wait for, which the end-to-end tests measure on the cluster that they
/// start.
fn kubernetes_tables() -> Result<String> {
    let mut command = process::cargo();
    command.args(["test", "--quiet", "--workspace", "--test", "e2e", "--", "--kubernetes-tables"]);
    process::output_of(&mut command)
}
