//! How long decisions take on a large cluster:
//! `cargo run --release -p sluice-sched --example queues_speed`.

use std::time::Instant;

use sluice_sched::queues::{Action, Config, JobSpec, QueueSpec, QueueTree, Scheduler};
use sluice_sched::{DomainId, LabelSet, ModelId, NodeSpec, Placer, Policy, Request, WHOLE_GPU_MILLI};

type AnyError = Box<dyn std::error::Error>;

const RUNS: usize = 5;

fn main() -> Result<(), AnyError> {
    println!("| what | median | lowest | highest |\n|---|---|---|---|");
    report("500 x 8 GPUs: 4,000 one-GPU jobs placed", || fill(500, 1).map(|(_, seconds)| seconds))?;
    report("500 x 8 GPUs, 4,000 running jobs: one GPU reclaimed", || {
        reclaim(Request::cpu(1000, 1024).with_gpus(1, 1000))
    })?;
    report("500 x 8 GPUs, 4,000 running jobs: a whole node reclaimed", || {
        reclaim(Request::cpu(1000, 1024).with_gpus(8, 1000))
    })?;
    report("500 x 8 GPUs, 4,000 running jobs of equal right: \"cannot be scheduled, because\"", || {
        cannot(500)
    })?;
    report("4,000 x 8 GPUs, 32,000 running jobs of equal right: \"cannot be scheduled, because\"", || {
        cannot(4000)
    })?;
    report(
        "500 x 8 GPUs, 3,500 jobs above their share, one fixed job on each node: a search in vain for a whole node",
        in_vain,
    )?;
    report("500 x 8 GPUs: a gang of 2,000 GPUs on free nodes", || gang(0))?;
    report("500 x 8 GPUs, 4,000 running jobs: a gang of 2,000 GPUs reclaimed", || gang(1))?;
    report("2,250 x 8 GPUs, 100,000 waiting jobs: one ends, one starts", next_of_many)?;
    Ok(())
}

fn report(what: &str, mut run: impl FnMut() -> Result<f64, AnyError>) -> Result<(), AnyError> {
    let mut millis = (0..RUNS).map(|_| Ok(run()? * 1e3)).collect::<Result<Vec<f64>, AnyError>>()?;
    millis.sort_by(f64::total_cmp);
    println!("| {what} | {:.3} ms | {:.3} ms | {:.3} ms |", millis[RUNS / 2], millis[0], millis[RUNS - 1]);
    Ok(())
}

fn cluster(nodes: u32) -> Result<Scheduler, AnyError> {
    let tree = QueueTree::new(&[
        QueueSpec::new("busy"),
        QueueSpec::new("owed").deserving_gpus(f64::from(nodes) * 4.0),
        QueueSpec::new("poor").deserving_gpus(0.0),
    ])?;
    let mut scheduler = Scheduler::new(tree, Placer::new(Policy::BestFit), Config::default());
    for node in 0..nodes {
        scheduler.add_node(NodeSpec {
            cpu_milli: 128_000,
            memory_mib: 1 << 20,
            gpus: 8,
            model: ModelId::new(0).ok_or("no model 0")?,
            gpu_milli: WHOLE_GPU_MILLI,
            gpu_memory_mib: 80 << 10,
            gpu_memory_leasable_mib: 80 << 10,
            gpu_units_milli: 0,
            labels: LabelSet::NONE,
            domains: vec![DomainId(node / 64), DomainId(node / 8)],
        })?;
    }
    Ok(scheduler)
}

fn queue(scheduler: &Scheduler, name: &str) -> Result<sluice_sched::queues::QueueId, AnyError> {
    scheduler.queues().find(name).ok_or_else(|| "no such queue".into())
}

/// A cluster full of jobs of one GPU, and the seconds that took.
fn fill(nodes: u32, priority: i32) -> Result<(Scheduler, f64), AnyError> {
    let mut scheduler = cluster(nodes)?;
    let busy = queue(&scheduler, "busy")?;
    for _ in 0..nodes * 8 {
        let request = Request::cpu(4_000, 16 << 10).with_gpus(1, 1000);
        scheduler.submit(JobSpec { priority, ..JobSpec::new(busy, request) })?;
    }
    let start = Instant::now();
    let bound = scheduler.cycle(0).len();
    let seconds = start.elapsed().as_secs_f64();
    if bound == nodes as usize * 8 { Ok((scheduler, seconds)) } else { Err(format!("{bound} bound").into()) }
}

fn timed(scheduler: &mut Scheduler, now: u64) -> (Vec<Action>, f64) {
    let start = Instant::now();
    let actions = scheduler.cycle(now);
    (actions, start.elapsed().as_secs_f64())
}

fn reclaim(request: Request) -> Result<f64, AnyError> {
    let (mut scheduler, _) = fill(500, 0)?;
    scheduler.submit(JobSpec::new(queue(&scheduler, "owed")?, request))?;
    let (actions, seconds) = timed(&mut scheduler, 1);
    let evicted = actions.iter().filter(|action| matches!(action, Action::Evict { .. })).count();
    if evicted == usize::from(request.gpus) { Ok(seconds) } else { Err(format!("{evicted} evicted").into()) }
}

fn cannot(nodes: u32) -> Result<f64, AnyError> {
    let (mut scheduler, _) = fill(nodes, 0)?;
    let busy = queue(&scheduler, "busy")?;
    let job = scheduler.submit(JobSpec::new(busy, Request::cpu(4_000, 16 << 10).with_gpus(2, 1000)))?;
    let start = Instant::now();
    let actions = scheduler.cycle(1);
    let why = scheduler.why(job).ok_or("it does not wait")?.to_string();
    let seconds = start.elapsed().as_secs_f64();
    if actions.is_empty() && why.contains("nodes fit") { Ok(seconds) } else { Err(why.into()) }
}

fn in_vain() -> Result<f64, AnyError> {
    let mut scheduler = cluster(500)?;
    let (busy, owed) = (queue(&scheduler, "busy")?, queue(&scheduler, "owed")?);
    for _ in 0..500 {
        // As many CPUs as keep two of these off one node.
        let request = Request::cpu(65_000, 1024).with_gpus(1, 1000);
        scheduler.submit(JobSpec { preemptible: false, ..JobSpec::new(owed, request) })?;
    }
    for _ in 0..3_500 {
        scheduler.submit(JobSpec::new(busy, Request::cpu(4_000, 16 << 10).with_gpus(1, 1000)))?;
    }
    let bound = scheduler.cycle(0).len();
    let job = scheduler.submit(JobSpec::new(owed, Request::cpu(8_000, 64 << 10).with_gpus(8, 1000)))?;
    let (actions, seconds) = timed(&mut scheduler, 1);
    let why = scheduler.why(job).ok_or("it does not wait")?.to_string();
    if bound == 4_000 && actions.is_empty() && why.contains("no reclaim: all that would give way") {
        return Ok(seconds);
    }
    Err(format!("{bound} bound, {} actions, {why}", actions.len()).into())
}

fn gang(running: u32) -> Result<f64, AnyError> {
    let mut scheduler = if running > 0 { fill(500, 0)?.0 } else { cluster(500)? };
    let owed = queue(&scheduler, "owed")?;
    let request = Request::cpu(8_000, 64 << 10).with_gpus(8, 1000);
    scheduler.submit(JobSpec { tasks_min: 250, tasks_max: 250, ..JobSpec::new(owed, request) })?;
    let (actions, seconds) = timed(&mut scheduler, 1);
    let bound = actions.iter().filter(|action| matches!(action, Action::Bind { .. })).count();
    if bound == 250 { Ok(seconds) } else { Err(format!("{bound} bound").into()) }
}

fn next_of_many() -> Result<f64, AnyError> {
    let (mut scheduler, _) = fill(2_250, 0)?;
    let busy = queue(&scheduler, "busy")?;
    for index in 0..100_000u32 {
        let request = Request::cpu(1_000 + index % 200, 16 << 10).with_gpus(1 + (index % 2) as u8, 1000);
        scheduler.submit(JobSpec::new(busy, request))?;
    }
    scheduler.cycle(1);
    scheduler.finish(sluice_sched::queues::JobId(17));
    let (actions, seconds) = timed(&mut scheduler, 2);
    if actions.len() == 1 { Ok(seconds) } else { Err(format!("{} actions", actions.len()).into()) }
}
