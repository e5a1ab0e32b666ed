//! `sluice bench remoting`: what calls and copies cost over a link.
//!
//! A program under a lease measures ([`client`]), this binary once more, started as `sluice run`
//! starts programs: it loads `libcuda.so.1` and calls it. Here nodes and leases are made, and what
//! several such programs found becomes one report.

mod client;
mod figures;
mod programs;

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use sluice_node::Listen;
use sluice_wire::address::{Endpoint, SessionAddress};

use crate::cli::{Baseline, GpuChoice, Output, RemotingArgs};
use crate::lease::{LeaseGuard, Wanted};
use crate::place::{PrivateNode, Provider};
use crate::surroundings::{Libraries, Scratch, Surroundings};
use crate::table::{self, Align};

use figures::{FIGURES, Figures};

pub(crate) use client::run as client;

const WANTED: Wanted = Wanted { gpus: 1, memory: client::MEMORY_BYTES, name: "sluice bench" };

pub(crate) fn remoting(arguments: &RemotingArgs) -> Result<ExitCode> {
    let libraries = Libraries::find().map_err(anyhow::Error::msg)?;
    let runs = arguments.runs;
    let report = match Provider::of(&arguments.place)? {
        Provider::Node(node) => Report::of_one(LeaseGuard::from_node(&node, &WANTED)?, runs, &libraries)?,
        Provider::Server(client) => {
            let taken = LeaseGuard::from_server(client, arguments.place.tenant.as_deref(), &WANTED)?;
            Report::of_one(taken, runs, &libraries)?
        }
        Provider::Private => {
            let scratch = Scratch::new()?;
            let socket = scratch.path().join("node.sock");
            let loopback = || "127.0.0.1:0".to_owned();
            let listen = vec![Listen::Unix(socket), Listen::Tcp(loopback()), Listen::Tls(loopback())];
            let gpus = arguments.place.gpus.as_ref().unwrap_or(&GpuChoice::Auto);
            let private = PrivateNode::start_protected(gpus, listen, scratch.path())?;
            let [shm, tcp, tls] = private.addresses.as_slice() else { bail!("the node does not listen") };
            let measure = |node| measure(LeaseGuard::from_node(node, &WANTED)?, runs, &libraries);
            let [tcp, tls, shm] = [tcp, tls, shm].map(measure);
            let links = Links { tcp: Some(tcp?), tls: Some(tls?), shm: Some(shm?) };
            Report::new("private".into(), runs, links)
        }
    };
    match arguments.output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&report)?),
        Output::Table => print!("{}", report.text()),
    }
    Ok(ExitCode::SUCCESS)
}

/// What was measured of each kind of link.
#[derive(Default)]
struct Links {
    tcp: Option<LinkFigures>,
    tls: Option<LinkFigures>,
    shm: Option<LinkFigures>,
}

/// What several client processes found over one link.
struct LinkFigures {
    gpu: String,
    runs: Vec<Figures>,
}

/// Runs client processes under a lease, one after the other, and gives it back.
fn measure(taken: LeaseGuard, runs: u32, libraries: &Libraries) -> Result<LinkFigures> {
    let node = taken.address.clone();
    let baseline = match node {
        Endpoint::Tcp(_) | Endpoint::Tls { .. } => Baseline::Socket,
        Endpoint::Unix(_) => Baseline::Memory,
    };
    let device = taken.granted.devices.first().context("the lease has no device")?;
    let gpu = device.name.clone();
    let scratch = Scratch::new()?;
    let session = SessionAddress { node, token: taken.granted.token }.to_string();
    let surroundings = Surroundings::prepare(scratch.path(), libraries, &session, device.is_software)?;
    let found = (0..runs).map(|_| run_client(&surroundings, baseline)).collect::<Result<Vec<_>>>()?;
    taken.close();
    Ok(LinkFigures { gpu, runs: found })
}

fn run_client(surroundings: &Surroundings, baseline: Baseline) -> Result<Figures> {
    let environment = surroundings.environment().iter().map(|(name, value)| (name, value));
    let output = Command::new(Path::new("/proc/self/exe"))
        .args(["bench-client", baseline.word()])
        .envs(environment)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("starting the program that measures")?;
    if !output.status.success() {
        bail!("the program that measures ended with {}", output.status);
    }
    serde_json::from_slice(&output.stdout).context("what the program measured")
}

#[derive(Serialize)]
struct Report {
    node: String,
    gpu: String,
    runs: u32,
    /// Of the first of the links below that was measured.
    round_trip_us: f64,
    queued_call_client_cpu_us: f64,
    waiting_call_us: f64,
    tcp: Option<LinkReport>,
    tls: Option<LinkReport>,
    shm: Option<LinkReport>,
    programs: Vec<ProgramReport>,
}

/// Medians of the runs, with the lowest and the highest.
#[derive(Serialize)]
struct LinkReport {
    #[serde(flatten)]
    median: Figures,
    /// The plain transfer, both directions together.
    baseline_bytes_per_s: f64,
    lowest: Figures,
    highest: Figures,
}

#[derive(Serialize)]
struct ProgramReport {
    #[serde(flatten)]
    program: &'static programs::Program,
    /// Estimated length of its step over each link, as a multiple of a step where the GPU is.
    tcp_slowdown: Option<f64>,
    tls_slowdown: Option<f64>,
    shm_slowdown: Option<f64>,
}

impl Report {
    /// Of the one link to a node.
    fn of_one(taken: LeaseGuard, runs: u32, libraries: &Libraries) -> Result<Report> {
        let (name, node) = (taken.node.clone(), taken.address.clone());
        let link = measure(taken, runs, libraries)?;
        let links = match node {
            Endpoint::Tcp(_) => Links { tcp: Some(link), ..Links::default() },
            Endpoint::Tls { .. } => Links { tls: Some(link), ..Links::default() },
            Endpoint::Unix(_) => Links { shm: Some(link), ..Links::default() },
        };
        Ok(Report::new(name, runs, links))
    }

    fn new(node: String, runs: u32, Links { tcp, tls, shm }: Links) -> Report {
        let links = [&tcp, &tls, &shm];
        let gpu = links.into_iter().flatten().next().map_or(String::new(), |link| link.gpu.clone());
        let [tcp, tls, shm] = [tcp, tls, shm].map(|link| link.map(|link| LinkReport::new(&link.runs)));
        let first =
            [&tcp, &tls, &shm].into_iter().flatten().next().map_or(Figures::default(), |link| link.median);
        let slowdown = |link: &Option<LinkReport>, program: &programs::Program| {
            link.as_ref().map(|link| program.slowdown(&link.median))
        };
        let programs = programs::PROGRAMS.iter().map(|program| ProgramReport {
            program,
            tcp_slowdown: slowdown(&tcp, program),
            tls_slowdown: slowdown(&tls, program),
            shm_slowdown: slowdown(&shm, program),
        });
        Report {
            node,
            gpu,
            runs,
            round_trip_us: first.round_trip_us,
            queued_call_client_cpu_us: first.queued_call_client_cpu_us,
            waiting_call_us: first.waiting_call_us,
            programs: programs.collect(),
            tcp,
            tls,
            shm,
        }
    }

    fn text(&self) -> String {
        let links: Vec<(&str, &LinkReport)> =
            [("TCP", &self.tcp), ("TLS", &self.tls), ("SHARED MEMORY", &self.shm)]
                .into_iter()
                .filter_map(|(name, link)| Some((name, link.as_ref()?)))
                .collect();
        let columns = |first| -> Vec<(&str, Align)> {
            std::iter::once((first, Align::Left))
                .chain(links.iter().map(|(name, _)| (*name, Align::Right)))
                .collect()
        };
        let rows: Vec<Vec<String>> = FIGURES
            .iter()
            .map(|figure| {
                let cells = links.iter().map(|(_, link)| link.cell(figure));
                std::iter::once(figure.label.to_owned()).chain(cells).collect()
            })
            .collect();
        let programs: Vec<Vec<String>> = self
            .programs
            .iter()
            .map(|row| {
                let slowdowns = [row.tcp_slowdown, row.tls_slowdown, row.shm_slowdown].into_iter().flatten();
                std::iter::once(row.program.label())
                    .chain(slowdowns.map(|times| format!("{times:.3} x")))
                    .collect()
            })
            .collect();
        format!(
            "node {}, {}; median of {} runs [lowest, highest]\n\n{}\n{}\n{}",
            self.node,
            self.gpu,
            self.runs,
            table::render(&columns("WHAT"), &rows),
            table::render(&columns("ESTIMATED STEP, AS A MULTIPLE OF ONE AT THE GPU"), &programs),
            programs::METHOD,
        )
    }
}

impl LinkReport {
    fn new(runs: &[Figures]) -> LinkReport {
        let median = Figures::of(runs, |values| values[values.len() / 2]);
        let (htod, dtoh) = (median.htod_baseline_bytes_per_s, median.dtoh_baseline_bytes_per_s);
        LinkReport {
            median,
            baseline_bytes_per_s: 2.0 / (1.0 / htod + 1.0 / dtoh),
            lowest: Figures::of(runs, |values| values[0]),
            highest: Figures::of(runs, |values| values[values.len() - 1]),
        }
    }

    fn cell(&self, figure: &figures::Figure) -> String {
        let text = |figures: &Figures| figure.unit.text((figure.get)(figures));
        format!(
            "{} [{}, {}] {}",
            text(&self.median),
            text(&self.lowest),
            text(&self.highest),
            figure.unit.name()
        )
    }
}
