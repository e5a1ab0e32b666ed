//! A premium service keeps its latency beside programs that compute without pause.

use super::*;
use crate::load::Load;
use crate::test::Skipped;

/// Premium is for guaranteed GPUs.
const TENANTS: &str = "tenants: [{path: red, quota: {guaranteed: 0.6}}, {path: blue}]\n";
/// Beside the service, of a standard tier.
const TRAINERS: usize = 3;
/// Requests whose latencies are compared.
const REQUESTS: &str = "200";
/// The 95th percentile beside trainers, in that of the service alone. Without a tier it is 5 to 10.
const RATIO_MAX: f64 = 2.0;
/// Others may take so much of the machine's processors; with more, its processes wait for those.
const OTHERS_MAX: f64 = 0.1;
const ATTEMPTS: usize = 3;

pub(super) fn a_premium_service_beside_trainers() -> Result<()> {
    let installation = Installation::start("tiers", TENANTS, &[], &[])?;
    let mut premium = installation.service("premium")?;
    let alone = premium.latencies()?;
    let mut trainers = Vec::new();
    for number in 0..TRAINERS {
        let mut trainer = installation.blue.trainer(number)?;
        trainer.expect_line("ready")?;
        trainers.push(trainer);
    }
    let mut failure = None;
    for _ in 0..ATTEMPTS {
        let before = Load::now()?;
        let beside = premium.latencies()?;
        let others = before.others_since()?;
        let ratio = beside.p95 / alone.p95;
        eprintln!("   alone {alone}; beside {TRAINERS} trainers {beside}: {ratio:.2} times");
        if ratio <= RATIO_MAX {
            premium.end_its_input()?;
            return Ok(());
        }
        if others <= OTHERS_MAX {
            failure = Some(ratio);
        }
    }
    match failure {
        Some(ratio) => bail!("the 95th percentile beside trainers is {ratio:.2} times that alone"),
        None => Err(Skipped("the machine was busy with other work".into()).into()),
    }
}

impl Installation {
    fn service(&self, tier: &str) -> Result<Process> {
        let mut command = self.red.command(&["run", "--tier", tier, "-p", "0.6", "--memory", "64MiB"]);
        command.args(["--", "python3"]).arg(program_file("service.py"));
        command.envs([("WORK", "10"), ("LOAD", "0.4"), ("REQUESTS", REQUESTS)]);
        let mut service = Process::start("service", &mut command)?;
        service.expect_line("ready")?;
        Ok(service)
    }
}

impl Account {
    /// It computes for longer than the test lasts.
    fn trainer(&self, number: usize) -> Result<Process> {
        let mut command = self.command(&["run", "-p", "0.1", "--memory", "64MiB", "--", "python3"]);
        command.arg(program_file("compute.py")).env("SECONDS", "600");
        Process::start(&format!("trainer {number}"), &mut command)
    }
}

/// Milliseconds from the arrival of a request to its answer.
struct Latencies {
    median: f64,
    p95: f64,
    p99: f64,
}

impl Process {
    fn latencies(&mut self) -> Result<Latencies> {
        self.tell("go")?;
        let line = self.line()?;
        let figures = line.strip_prefix("milliseconds ").with_context(|| line.clone())?;
        let figures: Vec<f64> = figures.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [median, p95, p99, _] = figures[..] else { bail!("{line}") };
        Ok(Latencies { median, p95, p99 })
    }
}

impl std::fmt::Display for Latencies {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Latencies { median, p95, p99 } = self;
        write!(formatter, "median {median:.1}, P95 {p95:.1}, P99 {p99:.1} ms")
    }
}
