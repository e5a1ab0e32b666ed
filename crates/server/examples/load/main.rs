//! Load on a control plane: scripted nodes and clients that speak the real protocol to a real
//! server on a real, private PostgreSQL. Prints one line of JSON.
//! `cargo build --release -p sluice-server --bins --example load`, then
//! `target/release/examples/load`.

mod crowd;
mod fleet;
mod http;
#[path = "../../tests/support/postgres.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod private_postgres;
mod processes;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use sluice_api::client::{Client, Settings};
use sluice_api::lease::{Lease, LeaseState};
use sluice_api::node::{Attempt, Gpu, GpuReport, Join, Joined, Report, ReportAnswer, SessionReport};
use sluice_api::pool::{DEFAULT_POOL, Tier};
use sluice_api::tenant::{Applied, TenantPath};
use sluice_api::token::{MadeToken, NewToken, Role};
use sluice_api::usage::UsageRecord;

use http::Connection;
use private_postgres::Postgres;

#[derive(Debug, Parser)]
struct Arguments {
    #[arg(long, default_value_t = 5000)]
    nodes: usize,
    /// GPUs of each node.
    #[arg(long, default_value_t = 4)]
    gpus: usize,
    #[arg(long, default_value_t = 50_000)]
    requests: usize,
    /// Clients that ask at the same time.
    #[arg(long, default_value_t = 64)]
    clients: usize,
    /// Leases asked for one after the other, on an idle cluster.
    #[arg(long, default_value_t = 300)]
    single: usize,
    /// Nodes that report while idle, each with one session.
    #[arg(long, default_value_t = 1000)]
    resting_nodes: usize,
    /// Sessions of each of them, for what one takes of the server's memory; while idle each has
    /// one.
    #[arg(long, default_value_t = 20)]
    sessions: usize,
    /// Seconds of rest.
    #[arg(long, default_value_t = 30)]
    rest: u64,
    /// Keep everything in a file of SQLite.
    #[arg(long)]
    sqlite: bool,
    /// Measure quota changes and lease requests with this number of tenants, and nothing else; in
    /// SQLite.
    #[arg(long)]
    tenants: Option<usize>,
    /// With --tenants: and beside this number of connections without a request.
    #[arg(long, default_value_t = 5000)]
    connections: usize,
    /// Fill the nodes with leases, print where the server is, and keep it until standard input
    /// ends; nothing is measured.
    #[arg(long)]
    fleet: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if arguments.fleet {
        return fleet::fleet(&arguments);
    }
    let mut figures = Figures::new();
    match arguments.tenants {
        Some(tenants) => crowd::crowd(tenants, arguments.connections, &mut figures)?,
        None => {
            load(&arguments, &mut figures)?;
            rest(&arguments, &mut figures)?;
        }
    }
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}

type Figures = BTreeMap<&'static str, f64>;

/// A server on a database of its own.
struct Plane {
    postgres: Option<Postgres>,
    server: Child,
    url: String,
    admin: Client,
    folder: tempfile::TempDir,
}

/// A node that reports what is true of what it was sent.
struct Node {
    name: String,
    joined: Joined,
    report: Report,
    /// Has received something that it has not reported.
    news: bool,
}

impl Plane {
    fn start(sqlite: bool) -> Result<Plane> {
        let folder = tempfile::tempdir()?;
        let postgres = if sqlite { None } else { Some(Postgres::start().context("PostgreSQL is needed")?) };
        let own = std::env::current_exe()?;
        let built = own.parent().and_then(Path::parent).context("an example's folder")?;
        let mut command = Command::new(built.join("sluice-server"));
        command
            // One token stands for many users here, so it is not limited.
            .args(["--requests-per-second", "0", "--data"])
            .arg(folder.path().join("data"));
        if let Some(postgres) = &postgres {
            command.env("SLUICE_DATABASE", postgres.database("load"));
        }
        let mut server = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("sluice-server; build it with the same profile")?;
        let mut line = String::new();
        BufReader::new(server.stdout.take().context("piped")?).read_line(&mut line)?;
        let url = line.trim().strip_prefix("listening on ").context("the server did not start")?.to_owned();
        let settings = Settings::read(&folder.path().join("data/admin.json"))?.context("a token")?;
        let plane = Plane { postgres, server, url, admin: settings.client(), folder };
        let tenants = "tenants: [{path: load}]\nprices: [{meter: reserved, micro: 2000000}]\n";
        let _: Applied = plane.admin.post_text("/apply", "application/yaml", tenants)?;
        Ok(plane)
    }

    /// Its database file, where it is in SQLite.
    fn database(&self) -> PathBuf {
        self.folder.path().join("data/sluice.db")
    }

    fn token(&self, tenant: &str, role: Role) -> Result<String> {
        let tenant: TenantPath = tenant.parse()?;
        let new = NewToken { tenant, role, name: "load".into(), lifetime_s: 36_000, node: None };
        Ok(self.admin.post::<MadeToken>("/tokens", &new)?.secret)
    }

    /// CPU time of the server and of the database.
    fn cpu(&self) -> Result<[Duration; 2]> {
        let database = self.postgres.as_ref().map(|postgres| processes::cpu_of_tree(postgres.process()));
        Ok([processes::cpu_of_tree(self.server.id())?, database.transpose()?.unwrap_or_default()])
    }

    fn resident(&self) -> Result<u64> {
        processes::resident(self.server.id())
    }

    /// Joins nodes and has each report once.
    fn join(&self, nodes: usize, gpus: usize) -> Result<Vec<Mutex<Node>>> {
        let token = self.token("/", Role::Node)?;
        let joined = Mutex::new(Vec::new());
        each(nodes, 32, &self.url, |connection, number| {
            let name = format!("node-{number:05}");
            let gpu = |index| Gpu {
                name: "scripted GPU".into(),
                uuid: format!("GPU-{number}-{index}"),
                memory: 80 << 30,
                software: true,
                compute_capability: "12.0".into(),
                driver_version: 13000,
                gflops: 0,
                ..Gpu::default()
            };
            let join = Join {
                address: format!("{name}:7583"),
                name: name.clone(),
                gpus: (0..gpus).map(gpu).collect(),
                labels: BTreeMap::new(),
                release: env!("CARGO_PKG_VERSION").into(),
            };
            let joined_as: Joined = connection.post("/nodes", &token, &join)?;
            let gpus = vec![GpuReport::default(); gpus];
            let report = Report { gpus, ..Report::default() };
            let mut node = Node { name, joined: joined_as, report, news: false };
            node.say(connection)?;
            lock(&joined).push(Mutex::new(node));
            Ok(())
        })?;
        Ok(joined.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        drop(self.server.stdin.take());
        let _ = self.server.wait();
    }
}

impl Node {
    fn say(&mut self, connection: &mut Connection) -> Result<ReportAnswer> {
        self.report.sequence += 1;
        self.news = false;
        let path = format!("/nodes/{}/reports", self.joined.node);
        let answer: ReportAnswer = connection.post(&path, &self.joined.token, &self.report)?;
        self.report.leadership = Some(answer.leadership);
        self.report.usage.clear();
        self.report.leases.retain(|lease| !answer.end.contains(lease));
        Ok(answer)
    }
}

/// Does something `count` times, over this number of connections at once.
fn each(
    count: usize,
    connections: usize,
    url: &str,
    act: impl Fn(&mut Connection, usize) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let work = || -> Result<()> {
            let mut connection = Connection::open(url)?;
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok(());
                }
                act(&mut connection, number)?;
            }
        };
        let threads: Vec<_> = (0..connections).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow::anyhow!("a thread failed"))?)
    })
}

/// Leases on a cluster of many nodes: one after the other, then as many as it takes.
fn load(arguments: &Arguments, figures: &mut Figures) -> Result<()> {
    let plane = Plane::start(arguments.sqlite)?;
    let empty = plane.resident()?;
    let begun = Instant::now();
    let nodes = plane.join(arguments.nodes, arguments.gpus)?;
    figures.insert("joins_per_s", arguments.nodes as f64 / begun.elapsed().as_secs_f64());
    let with_nodes = plane.resident()?;
    figures.insert("bytes_per_node", (with_nodes.saturating_sub(empty) / arguments.nodes as u64) as f64);
    let by_name = by_name(&nodes);
    let token = plane.token("load", Role::Member)?;
    let ask = serde_json::json!({ "share_ppm": 250_000, "name": "a program" });

    let mut waits = Vec::new();
    let mut connection = Connection::open(&plane.url)?;
    for _ in 0..arguments.single {
        let begun = Instant::now();
        let lease: Lease = connection.post("/leases", &token, &ask)?;
        waits.push(begun.elapsed());
        ensure!(lease.state == LeaseState::Granted, "not granted at once: {lease:?}");
        let _: Lease = connection.delete(&format!("/leases/{}", lease.id), &token)?;
    }
    waits.sort();
    let at =
        |part: usize| waits.get(waits.len() * part / 100).map_or(0.0, |wait| wait.as_secs_f64() * 1000.0);
    figures.insert("single_median_ms", at(50));
    figures.insert("single_p99_ms", at(99));

    let stop = AtomicBool::new(false);
    let (cpu_before, own_before) = (plane.cpu()?, processes::cpu_of_tree(std::process::id())?);
    let reports = AtomicUsize::new(0);
    let begun = Instant::now();
    let waits = Mutex::new(Vec::new());
    std::thread::scope(|scope| -> Result<()> {
        let report =
            |part| report_for_ever(&plane.url, nodes.iter().skip(part).step_by(REPORTERS), &stop, &reports);
        let reporters: Vec<_> = (0..REPORTERS).map(|part| scope.spawn(move || report(part))).collect();
        let result = each(arguments.requests, arguments.clients, &plane.url, |connection, _| {
            let begun = Instant::now();
            let lease: Lease = connection.post("/leases", &token, &ask)?;
            lock(&waits).push(begun.elapsed());
            ensure!(lease.state == LeaseState::Granted, "not granted at once: {lease:?}");
            // The program comes to its node, which says so with its next report.
            let mut node = lock(place_of(&lease, &nodes, &by_name)?);
            node.report.leases.push(Attempt { lease: lease.id, attempt: lease.attempt, task: 0 });
            node.news = true;
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        for reporter in reporters {
            reporter.join().map_err(|_| anyhow::anyhow!("a reporter failed"))??;
        }
        result
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    figures.insert("leases_per_s", arguments.requests as f64 / seconds);
    figures.insert("reports_per_s", reports.load(Ordering::Relaxed) as f64 / seconds);
    let mut waits = waits.into_inner().unwrap_or_else(PoisonError::into_inner);
    waits.sort();
    figures.insert("loaded_median_ms", waits[waits.len() / 2].as_secs_f64() * 1000.0);
    figures.insert("loaded_p99_ms", waits[waits.len() * 99 / 100].as_secs_f64() * 1000.0);
    let (cpu, own) = (plane.cpu()?, processes::cpu_of_tree(std::process::id())?);
    figures.insert("server_cpu_us", micros_each(cpu[0] - cpu_before[0], arguments.requests));
    figures.insert("database_cpu_us", micros_each(cpu[1] - cpu_before[1], arguments.requests));
    // The other children of this process are the server and the database.
    let others = (cpu[0] + cpu[1]) - (cpu_before[0] + cpu_before[1]);
    figures.insert("load_cpu_us", micros_each((own - own_before).saturating_sub(others), arguments.requests));
    let grown = plane.resident()?.saturating_sub(with_nodes);
    figures.insert("bytes_per_lease", (grown / arguments.requests as u64) as f64);
    Ok(())
}

fn by_name(nodes: &[Mutex<Node>]) -> BTreeMap<String, usize> {
    nodes.iter().enumerate().map(|(index, node)| (lock(node).name.clone(), index)).collect()
}

fn place_of<'a>(
    lease: &Lease,
    nodes: &'a [Mutex<Node>],
    by_name: &BTreeMap<String, usize>,
) -> Result<&'a Mutex<Node>> {
    let index = lease.places.first().and_then(|place| by_name.get(&place.node));
    Ok(&nodes[*index.context("a place that is known")?])
}

fn micros_each(time: Duration, count: usize) -> f64 {
    time.as_micros() as f64 / count as f64
}

/// Connections over which nodes report: over one, with a busy server, a round of 5,000 takes so
/// long that nodes seem silent.
const REPORTERS: usize = 16;

/// Nodes with news report within a quarter of a second, as real ones do at once; the others every
/// ten seconds.
fn report_for_ever<'a>(
    url: &str,
    nodes: impl Iterator<Item = &'a Mutex<Node>> + Clone,
    stop: &AtomicBool,
    count: &AtomicUsize,
) -> Result<()> {
    let mut connection = Connection::open(url)?;
    let mut last_all = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let all = last_all.elapsed() > Duration::from_secs(10);
        if all {
            last_all = Instant::now();
        }
        let round = Instant::now();
        for node in nodes.clone() {
            let mut node = lock(node);
            if node.news || all {
                node.say(&mut connection)?;
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
        std::thread::sleep(Duration::from_millis(250).saturating_sub(round.elapsed()));
    }
    Ok(())
}

/// Nodes with a session each that report in the rhythm that the server gives, and write down usage
/// every ten seconds.
fn rest(arguments: &Arguments, figures: &mut Figures) -> Result<()> {
    let plane = Plane::start(arguments.sqlite)?;
    let nodes = plane.join(arguments.resting_nodes, 1)?;
    let token = plane.token("load", Role::Member)?;
    let ask = serde_json::json!({ "share_ppm": 1_000_000, "name": "a program" });
    let by_name = by_name(&nodes);
    each(arguments.resting_nodes, 16, &plane.url, |connection, _| {
        let lease: Lease = connection.post("/leases", &token, &ask)?;
        let mut node = lock(place_of(&lease, &nodes, &by_name)?);
        node.report.leases.push(Attempt { lease: lease.id, attempt: lease.attempt, task: 0 });
        node.say(connection).map(drop)
    })?;
    let without = plane.resident()?;
    has_sessions(&plane, &nodes, arguments.sessions)?;
    let grown = plane.resident()?.saturating_sub(without);
    let sessions = (arguments.resting_nodes * arguments.sessions).max(1);
    figures.insert("bytes_per_session", (grown / sessions as u64) as f64);
    has_sessions(&plane, &nodes, 1)?;
    let (cpu_before, begun) = (plane.cpu()?, Instant::now());
    let reports = AtomicUsize::new(0);
    let seconds = arguments.rest;
    // The nodes of each connection take turns, and all of them are spread evenly over time.
    const CONNECTIONS: usize = 64;
    let every = Duration::from_secs(10);
    each(CONNECTIONS, CONNECTIONS, &plane.url, |connection, part| {
        let mine: Vec<_> = nodes.iter().skip(part).step_by(CONNECTIONS).collect();
        let place = |index: usize| (part + index * CONNECTIONS) as u32;
        let mut due: Vec<Duration> =
            (0..mine.len()).map(|index| every * place(index) / nodes.len() as u32).collect();
        let mut recorded = vec![Duration::ZERO; mine.len()];
        while begun.elapsed() < Duration::from_secs(seconds) {
            for (index, node) in mine.iter().enumerate() {
                let now = begun.elapsed();
                if now < due[index] {
                    continue;
                }
                let mut node = lock(node);
                if now >= recorded[index] {
                    record_usage(&mut node, now);
                    recorded[index] = now + Duration::from_secs(10);
                }
                let answer = node.say(connection)?;
                due[index] = now + Duration::from_millis(answer.report_every_ms);
                reports.fetch_add(1, Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    })?;
    let (cpu, seconds) = (plane.cpu()?, begun.elapsed().as_secs_f64());
    let percent = |index: usize| (cpu[index] - cpu_before[index]).as_secs_f64() / seconds * 100.0;
    figures.insert("rest_server_percent", percent(0));
    figures.insert("rest_database_percent", percent(1));
    figures.insert("rest_reports_per_s", reports.load(Ordering::Relaxed) as f64 / seconds);
    Ok(())
}

/// Every node reports that its lease has this number of sessions.
fn has_sessions(plane: &Plane, nodes: &[Mutex<Node>], count: usize) -> Result<()> {
    each(nodes.len(), 16, &plane.url, |connection, number| {
        let mut node = lock(&nodes[number]);
        let lease = node.report.leases.first().context("a lease")?.lease;
        let session = |session| SessionReport {
            session,
            lease,
            unmovable: None,
            name: "python3 train.py".into(),
            process: 4711,
            peer: "198.51.100.7:40000".into(),
            gpu: 0,
            share_ppm: 1_000_000,
            hard_cap: false,
            limit_ppm: 1_000_000,
            memory: 80 << 30,
            memory_used: 1 << 30,
            memory_swapped: 0,
            memory_in_file: 0,
            memory_pinned: 0,
            memory_state: String::new(),
            memory_moves: 0,
            memory_moving_us: 0,
            kernels: 1,
            bytes_in: 1,
            bytes_out: 1,
            busy_us: 1,
            suspended: false,
            age_ms: 1,
        };
        node.report.sessions = (0..count as u64).map(session).collect();
        node.say(connection).map(drop)
    })
}

fn record_usage(node: &mut Node, now: Duration) {
    let Some(&held) = node.report.leases.first() else { return };
    let sequence = now.as_millis() as u32 + 1;
    let until_ms = now.as_millis() as u64 + 10_000;
    node.report.usage.push(UsageRecord {
        id: UsageRecord::id_of(node.joined.node, held, sequence),
        node: node.joined.node,
        lease: held.lease,
        attempt: held.attempt,
        task: held.task,
        sequence,
        tenant: "load".parse().unwrap_or_else(|_| TenantPath::root()),
        tier: Tier::Standard,
        pool: DEFAULT_POOL.into(),
        model: "scripted GPU".into(),
        gflops: 0,
        from_ms: until_ms - 10_000,
        until_ms,
        share_ppm: 1_000_000,
        suspended: false,
        gpus: 1,
        memory_mib: 1024,
        used_ppm_ms: 1,
        kernels: 1,
        bytes_in: 1,
        bytes_out: 1,
        memory_peak: 1,
        promised: None,
        last: false,
    });
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
