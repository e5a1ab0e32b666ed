//! What the meter `used` says of the same work in different company.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

const TENANTS: &str = "tenants: [{path: red}, {path: blue}]";

/// The most by which the dearest of the runs may exceed the cheapest. A meter of wall time is off
/// by 100 % beside the loops; what is left are caches and cores that are shared with others.
const DIFFERENCE_MAX: f64 = 0.5;

/// The most by which a GPU time that a person reads may differ from the billed one, in seconds: it
/// is shown in milliseconds, or in tenths of a second.
const ROUNDING: f64 = 0.051;

/// The time in the words "1.5 s of GPU time", or "812 ms of GPU time".
fn gpu_time(said: &str) -> Result<Duration> {
    let before = said.split(" of GPU time").next().filter(|before| before.len() < said.len());
    let mut words = before.context("no GPU time was said")?.rsplit(' ');
    let (unit, number) = (words.next(), words.next().context("a number")?);
    let number: f64 = number.trim_start_matches(|c: char| !c.is_ascii_digit()).parse()?;
    match unit {
        Some("s") => Ok(Duration::from_secs_f64(number)),
        Some("ms") => Ok(Duration::from_secs_f64(number / 1e3)),
        Some("us") => Ok(Duration::from_secs_f64(number / 1e6)),
        _ => bail!("GPU time in {unit:?}"),
    }
}

/// A program that works a number of kernels off uses as much of a GPU alone, beside another
/// tenant's, and on a host that computes something else, though it takes several times as long.
pub(super) fn the_same_work_costs_the_same() -> Result<()> {
    let installation = Installation::start("meters", TENANTS, &[], &[])?;
    let mut runs = vec![installation.work("alone")?];
    let mut neighbour = endless(&installation.blue)?;
    runs.push(installation.work("beside another")?);
    drop(neighbour.child.stdin.take());
    neighbour.signal(libc::SIGTERM);
    neighbour.child.wait()?;
    runs.push(beside_loops(|| installation.work("beside loops of the host"))?);
    runs.push(installation.work("alone again")?);

    let used = runs.iter().map(|&used| used as f64);
    let (least, most) = (used.clone().fold(f64::MAX, f64::min), used.fold(0.0, f64::max));
    ensure!(least > 0.0 && most / least <= 1.0 + DIFFERENCE_MAX, "the same work used {runs:?} ns of a GPU");
    Ok(())
}

/// Another program without an end, which computes once this returns.
fn endless(account: &Account) -> Result<Process> {
    let mut command = work_on(account);
    let mut neighbour = Process::start("neighbour", command.env("BATCHES", "0").env("SECONDS", "3600"))?;
    neighbour.expect_line("ready")?;
    neighbour.tell("0")?;
    Ok(neighbour)
}

fn work_on(account: &Account) -> Command {
    let mut command = account.command(&["run", "-p", "0.5", "--memory", "64MiB", "--", "python3"]);
    command.arg(program_file("compute.py")).env("START", "input").env("BATCHES", "100");
    command
}

/// While each core has a loop to run.
fn beside_loops<T>(action: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let value = action();
        done.store(true, Ordering::Relaxed);
        value
    })
}

impl Installation {
    /// Nanoseconds of a whole GPU that the same work is said to have used.
    fn work(&self, name: &str) -> Result<u64> {
        let mut program = Process::start(name, &mut work_on(&self.red))?;
        program.expect_line("ready")?;
        program.tell("0")?;
        let took = program.line()?;
        program.expect_success()?;
        let said = gpu_time(&program.said())?;
        let lease = self.red.json(&["lease", "list", "--all"])?[0]["id"].clone();
        let deadline = Instant::now() + PATIENCE;
        let records = loop {
            let records = self.journaled()?;
            let ended = |record: &Value| record["lease"] == lease && record["last"] == true;
            if records.iter().any(ended) {
                break records;
            }
            ensure!(Instant::now() < deadline, "lease {lease} has no last record: {records:?}");
            std::thread::sleep(Duration::from_millis(20));
        };
        let own = records.iter().filter(|record| record["lease"] == lease);
        let used: u64 = own.filter_map(|record| record["used_ppm_ms"].as_u64()).sum();
        let listed = gpu_time(&self.red.text(&["lease", "show", &lease.to_string()])?)?;
        for (of, time) in [("sluice run", said), ("sluice lease show", listed)] {
            let difference = (time.as_secs_f64() - used as f64 / 1e9).abs();
            ensure!(difference <= ROUNDING, "{of} says {time:?} of GPU time, and {used} ns are billed");
        }
        eprintln!("   {name}: {took}, used {:.3} s of a GPU", used as f64 / 1e9);
        Ok(used)
    }
}
