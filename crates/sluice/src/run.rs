//! `sluice run`: a lease, surroundings in which a program finds it, the program, and what it used.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use sluice_api::client::Client;
use sluice_api::lease::NewLease;
use sluice_control::{Connection, Failure};
use sluice_wire::address::Endpoint;
use sluice_wire::control::{DeviceSnapshot, LeaseGranted, LeaseRequest, SHARE_WHOLE_PPM};

use crate::block_order;
use crate::child::{self, EXIT_SLUICE_FAILED, NotStarted};
use crate::cli::{Cap, GpuChoice, RunArgs};
use crate::coverage::{self, Coverage};
use crate::lease::ask_node;
use crate::output::with_causes;
use crate::place::{self, Part, PrivateNode, Source};
use crate::quantity::{Memory, Share, Units};
use crate::report::Report;
use crate::sanitize::{self, Sanitize};
use crate::server::estimate;
use crate::server::lease::{Claimed, Described, ServerLease, Talk};
use crate::server::lists::now_ms;
use crate::surroundings::{Libraries, NVIDIA_SMI, Scratch};
use crate::tasks::{Outcome, Tasks};
use crate::training::{self, Training};

/// Runs the program to its end; the answer is the exit code, as a shell's. A program that was
/// preempted runs again once it has another place.
pub(crate) fn run(arguments: &RunArgs) -> Result<i32, NotStarted> {
    let sanitize = Sanitize::begin(arguments)?;
    let coverage = Coverage::begin(arguments)?;
    let mut report = Report::begin(arguments)?;
    let training = Training::begin(arguments)?;
    let code = run_reported(arguments, &mut report, &training);
    training.end();
    let code = code?;
    // Each writes what it has, also where another cannot.
    let report = report.end(code);
    let coverage = coverage.map_or(Ok(code), |coverage| coverage.end(code));
    let sanitize = sanitize.map_or(Ok(code), |sanitize| sanitize.end(code));
    report.and(coverage).and(sanitize)
}

fn run_reported(arguments: &RunArgs, report: &mut Report, training: &Training) -> Result<i32, NotStarted> {
    let program = arguments.program.first().map(OsString::as_os_str).unwrap_or_default();
    if program != NVIDIA_SMI {
        child::find_program(program, std::env::var_os("PATH").as_deref())?;
    }
    let libraries = Libraries::find().map_err(failed)?;
    let node = arguments.node.as_deref();
    let source = match arguments.gpus {
        Some(_) => Source::Private,
        None => Source::choose(arguments.server.as_deref(), node).map_err(failed_with)?,
    };
    if let Some(option) = arguments.ci.software_gpu_option()
        && !matches!(source, Source::Private)
    {
        return Err(failed(format!("{option} needs a software GPU of this machine: add --gpus software")));
    }
    if !matches!(source, Source::Server(_))
        && let Some((option, why)) = arguments.server_option()
    {
        return Err(failed(format!("{option} needs a control plane, {why}: --server, or `sluice up`")));
    }
    match source {
        Source::Server(client) => run_through(client, arguments, &libraries, report, training),
        Source::Nodes(parts) => {
            check_record(parts.len(), arguments)?;
            let held = lease_on_all(&parts, arguments)?;
            training.starts(only_lease(&held));
            run_under(held, arguments, &libraries, report)
        }
        Source::Private => {
            block_order::apply(arguments);
            // Its socket's folder outlives it.
            let scratch = scratch()?;
            let private = start_private(arguments, scratch.path())?;
            let place = "a private node".to_owned();
            let held = lease_on(private.address(), arguments.gpu_count, place, arguments)?;
            block_order::check(arguments, &held.lease)?;
            sanitize::check(arguments, &held.lease)?;
            coverage::check(arguments, &held.lease)?;
            let held = vec![held];
            training.starts(only_lease(&held));
            run_under(held, arguments, &libraries, report)
        }
    }
}

/// A lease from each node itself, or none from any.
fn lease_on_all(parts: &[Part], arguments: &RunArgs) -> Result<Vec<HeldLease>, NotStarted> {
    let counts = place::split(parts, arguments.gpu_count).map_err(failed_with)?;
    let mut held = Vec::new();
    for (part, count) in parts.iter().zip(counts) {
        let place = format!("node {}", part.node.place());
        match lease_on(&part.node, count, place.clone(), arguments) {
            Ok(lease) => held.push(lease),
            Err(refused) => {
                let others = held.len();
                held.into_iter().for_each(|held: HeldLease| held.connection.close());
                let message = match parts {
                    [_] => refused.message,
                    _ if refused.message.starts_with(&part.node.place()) => refused.message,
                    _ => format!("{place}: {}", refused.message),
                };
                let message = match others {
                    0 => message,
                    _ => format!("{message} (what the other nodes had granted is given back)"),
                };
                return Err(NotStarted { message, ..refused });
            }
        }
    }
    Ok(held)
}

fn lease_on(
    address: &Endpoint,
    gpus: u32,
    place: String,
    arguments: &RunArgs,
) -> Result<HeldLease, NotStarted> {
    let request = |once| LeaseRequest {
        once,
        share_ppm: arguments.share().ppm(),
        memory: arguments.memory.map_or(0, Memory::bytes),
        gpus,
        limit_ppm: limit_ppm(arguments),
        kernel_timeout_ms: kernel_timeout_ms(arguments),
        name: name(arguments),
    };
    let (connection, lease) = ask_node(address, request).map_err(failed)?;
    let (address, share_ppm, limit_ppm) =
        (connection.node().clone(), arguments.share().ppm(), limit_ppm(arguments));
    Ok(HeldLease { task: None, address, connection, lease, place, share_ppm, limit_ppm })
}

/// What each node gives at most; it is the node that says whether that makes sense.
fn limit_ppm(arguments: &RunArgs) -> u32 {
    match (arguments.cap, arguments.limit) {
        (_, Some(limit)) => limit.ppm(),
        (Cap::Hard, None) => arguments.share().ppm(),
        (Cap::None, None) => SHARE_WHOLE_PPM,
    }
}

/// Runs the program once, with the GPUs of its leases as one list; the answer is the exit code.
fn run_under(
    held: Vec<HeldLease>,
    arguments: &RunArgs,
    libraries: &Libraries,
    report: &mut Report,
) -> Result<i32, NotStarted> {
    let outcome = Tasks::new(arguments, libraries, None)?.run(vec![held])?;
    report.add(outcome.uses);
    Ok(exit_code(&outcome.statuses))
}

/// Under a lease from a server, again and again while it is preempted.
fn run_through(
    client: Client,
    arguments: &RunArgs,
    libraries: &Libraries,
    report: &mut Report,
    training: &Training,
) -> Result<i32, NotStarted> {
    let tenant = arguments.tenant.as_deref().map(str::parse).transpose();
    let nodes = arguments.nodes.unwrap_or(1);
    if nodes == 0 || !arguments.gpu_count.is_multiple_of(nodes) {
        return Err(failed(format!(
            "-n {} GPUs cannot be split evenly over --nodes {nodes}",
            arguments.gpu_count
        )));
    }
    let ask = NewLease {
        tenant: tenant.map_err(|error| failed(format!("--tenant: {error}")))?,
        gpus: arguments.gpu_count / nodes,
        tasks: arguments.tasks.map_or(nodes, |tasks| tasks.min),
        tasks_max: arguments.tasks.and_then(|tasks| tasks.max),
        same: arguments.same,
        linked: arguments.linked,
        near: arguments.near,
        spread: arguments.spread,
        tier: arguments.tier.unwrap_or_default(),
        pool: arguments.pool.clone(),
        models: arguments.models.clone(),
        gflops_min: arguments.min_tflops.map(|tflops| (tflops * 1000.0).ceil() as u64),
        gpu_memory_min: arguments.min_gpu_memory.map(Memory::bytes),
        labels: arguments.labels.iter().cloned().collect(),
        deadline_ms: arguments.deadline.map(|within| now_ms() + within.duration().as_millis() as u64),
        duration_ms: arguments.duration.map(|duration| duration.duration().as_millis() as u64),
        hold_ms: arguments.hold.map(|hold| hold.duration().as_millis() as u64),
        share_ppm: arguments.share().ppm(),
        use_default: arguments.stated_share.is_none() && arguments.memory.is_none(),
        as_asked: arguments.as_asked,
        units_milli: arguments.units.map(Units::milli),
        memory: arguments.memory.map_or(0, Memory::bytes),
        hard_cap: arguments.cap == Cap::Hard,
        limit_ppm: arguments.limit.map(Share::ppm),
        priority: arguments.priority.unwrap_or(sluice_api::lease::PRIORITY_USUAL),
        preemptible: !arguments.no_preempt,
        name: name(arguments),
    };
    if let Some(output) = arguments.dry_run {
        return estimate::show(&client, &ask, output).map(|()| 0).map_err(failed_with);
    }
    let lease = match arguments.lease {
        Some(id) => ServerLease::take_up(client, id, Talk::of(arguments)),
        None => ServerLease::ask(client, &ask, Talk::of(arguments)),
    };
    let mut lease = lease.map_err(failed_with)?;
    loop {
        let claimed = lease.claim(kernel_timeout_ms(arguments), &ask.name).map_err(failed_with)?;
        let described = lease.described();
        let held = claimed.into_iter().map(|claimed| HeldLease::of(claimed, &described));
        // The parts of one program are tasks to the server, which grants all or none.
        let tasks = match arguments.nodes {
            Some(_) => vec![held.collect()],
            None => held.map(|held| vec![held]).collect(),
        };
        check_record(tasks.iter().map(Vec::len).max().unwrap_or(0), arguments)?;
        let claims = lease.claims(kernel_timeout_ms(arguments), &ask.name);
        let running = Tasks::new(arguments, libraries, Some(claims))?;
        lease.watch(running.events());
        training.starts(None);
        let outcome = running.run(tasks);
        training.rests();
        let Outcome { statuses, preempted, uses } = outcome?;
        report.add(uses);
        if !preempted || statuses.iter().all(ExitStatus::success) {
            lease.finish();
            return Ok(exit_code(&statuses));
        }
        lease.wait_requeued().map_err(failed_with)?;
    }
}

/// A lease, or a task of one, on the connection that holds it.
pub(crate) struct HeldLease {
    /// The number of the task, of a lease from a server.
    pub(crate) task: Option<u32>,
    pub(crate) address: Endpoint,
    pub(crate) connection: Connection,
    pub(crate) lease: LeaseGranted,
    /// For people to read.
    pub(crate) place: String,
    /// What it has of each GPU's compute, in millionths, and the most that it gets.
    pub(crate) share_ppm: u32,
    pub(crate) limit_ppm: u32,
}

impl HeldLease {
    /// A task of the lease that is described so.
    pub(crate) fn of(claimed: Claimed, described: &Described) -> HeldLease {
        let Claimed { task, node, address, connection, granted } = claimed;
        let &Described { ref name, share_ppm, limit_ppm } = described;
        let place = format!("node {node}, {name}");
        HeldLease { task: Some(task), address, connection, lease: granted, place, share_ppm, limit_ppm }
    }
}

/// The lease of a program that has one only.
fn only_lease(held: &[HeldLease]) -> Option<training::Lease> {
    let [held] = held else { return None };
    Some(training::Lease { node: held.address.clone(), number: held.lease.lease })
}

/// Checks whether a program's sessions with this number of nodes can be recorded.
fn check_record(nodes: usize, arguments: &RunArgs) -> Result<(), NotStarted> {
    if arguments.record.is_some() && nodes > 1 {
        return Err(failed(format!(
            "`sluice record` keeps the session with one node, and the program would have one with each of {nodes}"
        )));
    }
    Ok(())
}

/// By which a task knows which it is, under the names that launchers of distributed programs use.
pub(crate) fn task_environment(task: usize, tasks: usize) -> [(OsString, OsString); 2] {
    [("RANK", task), ("WORLD_SIZE", tasks)].map(|(name, value)| (name.into(), value.to_string().into()))
}

/// That of the first task that failed.
fn exit_code(statuses: &[ExitStatus]) -> i32 {
    let failed = statuses.iter().find(|status| !status.success());
    failed.map_or(0, |&status| child::exit_code(status))
}

pub(crate) fn scratch() -> Result<Scratch, NotStarted> {
    Scratch::new().map_err(|error| failed(format!("a temporary folder: {error}")))
}

fn failed_with(error: anyhow::Error) -> NotStarted {
    failed(with_causes(&error))
}

pub(crate) fn failed(message: impl ToString) -> NotStarted {
    NotStarted { message: message.to_string(), exit_code: EXIT_SLUICE_FAILED }
}

fn start_private(arguments: &RunArgs, folder: &Path) -> Result<PrivateNode, NotStarted> {
    let gpus = arguments.gpus.as_ref().unwrap_or(&GpuChoice::Auto);
    PrivateNode::start_for_run(gpus, folder).map_err(|error| failed(with_causes(&error)))
}

/// Says why it takes long to get a lease.
pub(crate) fn say_cut(failure: &Failure, patience: Duration) {
    eprintln!(
        "sluice: {failure}: its connection was cut, and is tried again for up to {} s",
        patience.as_secs()
    );
}

/// 0 for none.
fn kernel_timeout_ms(arguments: &RunArgs) -> u32 {
    let timeout_ms = arguments.kernel_timeout.map_or(0, |timeout| timeout.duration().as_millis());
    u32::try_from(timeout_ms).unwrap_or(u32::MAX)
}

/// The name that lists show: the one that was given, or one made of the command line.
fn name(arguments: &RunArgs) -> String {
    arguments.name.clone().unwrap_or_else(|| program_name(&arguments.program))
}

/// What `sluice sessions` shows of a command line: the program's file name and its first argument.
pub(crate) fn program_name(words: &[OsString]) -> String {
    const CHARACTERS_MAX: usize = 60;
    let file_name = |word: &OsString| {
        let name = Path::new(word).file_name().unwrap_or(word);
        name.to_string_lossy().into_owned()
    };
    let name = words.iter().take(2).map(file_name).collect::<Vec<_>>().join(" ");
    name.chars().filter(|c| !c.is_control()).take(CHARACTERS_MAX).collect()
}

/// What a program is about to run on. A lease of a server may have another share than this command
/// asks for: it was resized, is taken up by its number, or was sized by `sluice iq`.
pub(crate) fn granted_line(held: &HeldLease) -> String {
    let HeldLease { lease, place, share_ppm, limit_ppm, .. } = held;
    let share = share_text(*share_ppm);
    let gpus = match lease.devices.as_slice() {
        [device] => format!("{share} of {}", device.name),
        devices => {
            let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
            format!("{share} of each of {} GPUs ({})", names.len(), names.join(", "))
        }
    };
    let memory = lease.devices.first().map_or(0, |device: &DeviceSnapshot| device.memory);
    let cap = match *limit_ppm {
        SHARE_WHOLE_PPM.. => String::new(),
        limit_ppm if limit_ppm == *share_ppm => ", never more".to_owned(),
        limit_ppm => format!(", never more than {}", share_text(limit_ppm)),
    };
    format!("{gpus}{cap}, {} of memory, on {place}", Memory::from_bytes(memory))
}

/// The share of a lease as people write it.
pub(crate) fn share_text(ppm: u32) -> String {
    Share::from_ppm(ppm).to_string()
}

/// The share and the limit of a lease as people write them.
pub(crate) fn compute_text(share_ppm: u32, limit_ppm: u32) -> String {
    let share = share_text(share_ppm);
    match limit_ppm {
        SHARE_WHOLE_PPM.. => share,
        limit_ppm if limit_ppm == share_ppm => format!("{share} hard"),
        limit_ppm => format!("{share} to {}", share_text(limit_ppm)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compute_is_a_share_with_its_limit() {
        assert_eq!(compute_text(250_000, 1_000_000), "25%");
        assert_eq!(compute_text(250_000, 250_000), "25% hard");
        assert_eq!(compute_text(250_000, 500_000), "25% to 50%");
        assert_eq!(compute_text(1_000_000, 1_000_000), "100%");
    }

    #[test]
    fn a_program_is_named_by_what_it_runs() {
        let name = |words: &[&str]| program_name(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(name(&["/usr/bin/python3", "work/train.py", "--epochs", "3"]), "python3 train.py");
        assert_eq!(name(&["./a.out"]), "a.out");
        assert_eq!(name(&["x\u{1b}[31m", &"y".repeat(100)]).chars().count(), 60);
    }
}
