//! Runs every scenario of `tests/scenarios/*.toml`: a cluster, queues, running and waiting work,
//! and what becomes of it, with the reason. `tests/scenarios/README.md` describes the format.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use libtest_mimic::{Arguments, Failed, Trial};
use serde::Deserialize;
use sluice_sched::queues::{
    Action, Config, JobId, JobSpec, Mobility, QueueSpec, QueueTree, Scheduler, Topology,
};
use sluice_sched::{
    DomainId, GpuSet, LabelId, LabelSet, ModelId, ModelSet, NodeId, NodeSpec, Placement, Placer, Policy,
    Request, WHOLE_GPU_MILLI,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    scenario: Vec<Scenario>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    name: String,
    /// Why the outcome is right, for people.
    reason: String,
    nodes: Vec<Nodes>,
    #[serde(default = "one_queue")]
    queues: Vec<QueueSpec>,
    jobs: Vec<Work>,
    /// Seconds at which cycles run, each time until nothing is left to do.
    #[serde(default = "once")]
    at: Vec<u64>,
    #[serde(default)]
    config: Settings,
    /// What becomes of each job. Running jobs that are not named go on undisturbed.
    expect: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Nodes {
    count: u32,
    gpus: u8,
    cpus: u32,
    memory_gib: u32,
    gpu_memory_gib: u32,
    model: u8,
    labels: Vec<u8>,
    domains: Vec<u32>,
    schedulable: bool,
}

impl Default for Nodes {
    fn default() -> Nodes {
        Nodes {
            count: 1,
            gpus: 4,
            cpus: 64,
            memory_gib: 512,
            gpu_memory_gib: 80,
            model: 0,
            labels: Vec::new(),
            domains: Vec::new(),
            schedulable: true,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Work {
    name: String,
    #[serde(default = "only_queue")]
    queue: String,
    #[serde(default = "one")]
    gpus: u8,
    /// Of each GPU.
    #[serde(default = "whole")]
    share: f64,
    #[serde(default)]
    gpu_memory_gib: u32,
    #[serde(default)]
    cpus: u32,
    #[serde(default)]
    memory_gib: u32,
    #[serde(default)]
    models: Vec<u8>,
    #[serde(default)]
    labels: Vec<u8>,
    #[serde(default = "one")]
    tasks: u32,
    tasks_max: Option<u32>,
    #[serde(default)]
    priority: i32,
    /// May not be evicted.
    #[serde(default)]
    fixed: bool,
    /// Continues elsewhere when it is moved.
    #[serde(default)]
    live: bool,
    /// Is moved already, and stays for now.
    #[serde(default)]
    held: bool,
    required: Option<u8>,
    preferred: Option<u8>,
    apart: Option<u8>,
    /// Where its tasks run already: "n1" or, with its GPUs, "n1:0+2".
    #[serde(default)]
    on: Vec<String>,
    /// Seconds, for running work.
    #[serde(default)]
    started: u64,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Settings {
    consolidate: Option<bool>,
    reclaim: Option<bool>,
    preempt: Option<bool>,
    reclaim_percent: Option<u32>,
    stale_grace_s: Option<u64>,
    search_tasks_max: Option<u32>,
    search_nodes_max: Option<u32>,
    gpu_unit_milli: Option<u64>,
    half_life_s: Option<u64>,
    usage_percent: Option<u32>,
}

fn one<T: From<u8>>() -> T {
    T::from(1)
}

fn whole() -> f64 {
    1.0
}

fn once() -> Vec<u64> {
    vec![1000]
}

fn only_queue() -> String {
    "main".to_string()
}

fn one_queue() -> Vec<QueueSpec> {
    vec![QueueSpec::new("main").deserving_gpus(1000.0)]
}

/// Cycles at one moment; a scenario that needs more goes round in circles.
const CYCLES_MAX: usize = 50;

struct World {
    scheduler: Scheduler,
    nodes: Vec<NodeId>,
    jobs: BTreeMap<String, JobId>,
    before: HashMap<JobId, Vec<(u32, Placement)>>,
    actions: Vec<Action>,
}

fn main() {
    let args = Arguments::from_args();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("the folder of scenarios is in the repository")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    files.sort();
    let mut trials = Vec::new();
    for path in files {
        let area = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).expect("a file that was listed can be read");
        match toml::from_str::<File>(&text) {
            Ok(file) => {
                trials.extend(file.scenario.into_iter().map(|scenario| {
                    Trial::test(format!("{area}::{}", scenario.name), move || check(&scenario))
                }))
            }
            Err(error) => trials.push(Trial::test(area, move || Err(Failed::from(error.to_string())))),
        }
    }
    libtest_mimic::run(&args, trials).exit();
}

fn check(scenario: &Scenario) -> Result<(), Failed> {
    if scenario.reason.is_empty() {
        return Err("the scenario states no reason".into());
    }
    let mut world = build(scenario)?;
    for &at in &scenario.at {
        let mut cycles = 0;
        loop {
            let actions = world.scheduler.cycle(at * 1000);
            if actions.is_empty() {
                break;
            }
            world.actions.extend(actions);
            cycles += 1;
            if cycles == CYCLES_MAX {
                return Err(format!("no end after {cycles} cycles: {:#?}", world.actions).into());
            }
        }
    }
    let mut wrong = Vec::new();
    for name in scenario.expect.keys().filter(|name| !world.jobs.contains_key(*name)) {
        wrong.push(format!("{name}: no such job"));
    }
    for (name, &id) in &world.jobs {
        let outcome = outcome(&world, id);
        let expected = scenario.expect.get(name).map_or("stays", String::as_str);
        if !outcome.iter().any(|outcome| matches(outcome, expected)) {
            wrong.push(format!("{name}: expected \"{expected}\", got \"{}\"", outcome.join("\" or \"")));
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(format!("{}\nbecause {}", wrong.join("\n"), scenario.reason).into())
    }
}

/// `waits: some words` expects the words somewhere after the colon; else the outcome is the very
/// same.
fn matches(outcome: &str, expected: &str) -> bool {
    match (outcome.split_once(": "), expected.split_once(": ")) {
        (Some((what, why)), Some((expected, words))) => what == expected && why.contains(words),
        (Some((what, _)), None) => what == expected,
        _ => outcome == expected,
    }
}

/// All true descriptions of what became of a job, the most exact last.
fn outcome(world: &World, id: JobId) -> Vec<String> {
    let job = world.scheduler.job(id).expect("no job ends in a scenario");
    let now: Vec<(u32, Placement)> = job.tasks().map(|(task, placement)| (task, *placement)).collect();
    let before = world.before.get(&id).cloned().unwrap_or_default();
    let evicted = world.actions.iter().find_map(|action| match action {
        Action::Evict { job, because, .. } if *job == id => Some(because.to_string()),
        _ => None,
    });
    let moved = world.actions.iter().any(|action| matches!(action, Action::Move { job, .. } if *job == id));
    let nodes: Vec<String> =
        now.iter().map(|(_, placement)| format!("n{}", placement.node.index())).collect();
    let mut nodes_sorted = nodes.clone();
    nodes_sorted.sort();
    let on = nodes_sorted.join(" ");
    let what = match (&evicted, moved, before.is_empty(), now.is_empty()) {
        (Some(_), _, _, true) => "evicted",
        (Some(_), _, _, false) if now.len() < before.len() => "shrinks",
        (Some(_), _, _, false) => "restarts",
        (None, true, ..) => "moves",
        (None, false, true, true) => "waits",
        (None, false, true, false) => "starts",
        (None, false, false, _) if now.len() > before.len() => "grows",
        (None, false, false, _) => "stays",
    };
    let mut outcomes = match evicted {
        Some(because) => vec![format!("{what}: {because}")],
        None if what == "waits" => {
            let why = world.scheduler.why(id).map(ToString::to_string);
            vec![format!("waits: {}", why.unwrap_or_default())]
        }
        None => vec![what.to_string()],
    };
    outcomes.push(format!("{what} on {on}"));
    outcomes.push(format!("{what} with {}", now.len()));
    outcomes
}

fn build(scenario: &Scenario) -> Result<World, Failed> {
    let tree = QueueTree::new(&scenario.queues).map_err(|error| Failed::from(error.to_string()))?;
    let mut scheduler = Scheduler::new(tree, Placer::new(Policy::BestFit), config(&scenario.config));
    let mut nodes = Vec::new();
    for group in &scenario.nodes {
        for _ in 0..group.count {
            let node = scheduler.add_node(NodeSpec {
                cpu_milli: group.cpus * 1000,
                memory_mib: group.memory_gib * 1024,
                gpus: group.gpus,
                model: ModelId::new(group.model).ok_or("model above 63")?,
                gpu_milli: WHOLE_GPU_MILLI,
                gpu_memory_mib: group.gpu_memory_gib * 1024,
                gpu_memory_leasable_mib: group.gpu_memory_gib * 1024,
                gpu_units_milli: 0,
                labels: labels(&group.labels)?,
                domains: group.domains.iter().copied().map(DomainId).collect(),
            })?;
            scheduler.set_schedulable(node, group.schedulable)?;
            nodes.push(node);
        }
    }
    let mut world =
        World { scheduler, nodes, jobs: BTreeMap::new(), before: HashMap::new(), actions: Vec::new() };
    for work in &scenario.jobs {
        submit(&mut world, work)
            .map_err(|error| Failed::from(format!("job {}: {}", work.name, text(error))))?;
    }
    Ok(world)
}

fn text(failed: Failed) -> String {
    failed.message().unwrap_or_default().to_string()
}

fn submit(world: &mut World, work: &Work) -> Result<(), Failed> {
    let scheduler = &mut world.scheduler;
    let gpu_milli = if work.gpus == 0 { 0 } else { (work.share * 1000.0).round() as u16 };
    let mut request = Request::cpu(work.cpus * 1000, work.memory_gib * 1024)
        .with_gpus(work.gpus, gpu_milli)
        .with_gpu_memory(work.gpu_memory_gib * 1024)
        .with_labels(labels(&work.labels)?);
    if !work.models.is_empty() {
        let models: Option<ModelSet> = work.models.iter().map(|&model| ModelId::new(model)).collect();
        request = request.with_models(models.ok_or("model above 63")?);
    }
    let id = scheduler.submit(JobSpec {
        queue: scheduler.queues().find(&work.queue).ok_or("no such queue")?,
        request,
        tasks_min: work.tasks,
        tasks_max: work.tasks_max.unwrap_or(work.tasks),
        priority: work.priority,
        preemptible: !work.fixed,
        mobility: match (work.live, work.held) {
            (true, _) => Mobility::Live,
            (false, true) => Mobility::Held,
            (false, false) => Mobility::Restarts,
        },
        topology: Topology { required: work.required, preferred: work.preferred, apart: work.apart },
    })?;
    let mut tasks = Vec::new();
    for (number, place) in (0..).zip(&work.on) {
        let placement = placement(scheduler, &world.nodes, request, place)?;
        scheduler.adopt(0, id, &[(number, placement)], work.started * 1000)?;
        tasks.push((number, placement));
    }
    world.before.insert(id, tasks);
    if world.jobs.insert(work.name.clone(), id).is_some() {
        return Err("two jobs have this name".into());
    }
    Ok(())
}

/// "n1" for the first GPUs of node 1 with enough free, "n1:0+2" for GPUs 0 and 2.
fn placement(
    scheduler: &Scheduler,
    nodes: &[NodeId],
    request: Request,
    place: &str,
) -> Result<Placement, Failed> {
    let (node, gpus) = place.split_once(':').map_or((place, None), |(node, gpus)| (node, Some(gpus)));
    let index: Option<usize> = node.strip_prefix('n').and_then(|index| index.parse().ok());
    let &node =
        index.and_then(|index| nodes.get(index)).ok_or("no such node; places look like n1 or n1:0+2")?;
    let gpus = match gpus {
        Some(gpus) => gpus.split('+').map(str::parse).collect::<Result<Vec<usize>, _>>()?,
        None => {
            let free = scheduler.cluster().node(node).gpus().iter().enumerate();
            let fits = free.filter(|(_, gpu)| {
                gpu.milli >= request.gpu_milli && gpu.memory_mib >= request.gpu_memory_mib
            });
            fits.map(|(index, _)| index).take(request.gpus.into()).collect()
        }
    };
    Ok(Placement { request, node, gpus: gpus.into_iter().fold(GpuSet::EMPTY, GpuSet::with) })
}

fn labels(ids: &[u8]) -> Result<LabelSet, Failed> {
    let labels: Option<LabelSet> = ids.iter().map(|&id| LabelId::new(id)).collect();
    labels.ok_or_else(|| "label above 63".into())
}

fn config(settings: &Settings) -> Config {
    let default = Config::default();
    Config {
        consolidate: settings.consolidate.unwrap_or(default.consolidate),
        reclaim: settings.reclaim.unwrap_or(default.reclaim),
        preempt: settings.preempt.unwrap_or(default.preempt),
        reclaim_percent: settings.reclaim_percent.unwrap_or(default.reclaim_percent),
        stale_grace: settings.stale_grace_s.map_or(default.stale_grace, |s| s * 1000),
        search_tasks_max: settings.search_tasks_max.unwrap_or(default.search_tasks_max),
        search_nodes_max: settings.search_nodes_max.unwrap_or(default.search_nodes_max),
        gpu_unit_milli: settings.gpu_unit_milli.unwrap_or(default.gpu_unit_milli),
        half_life: settings.half_life_s.map(|s| s * 1000).or(default.half_life),
        usage_percent: settings.usage_percent.unwrap_or(default.usage_percent),
        searches_max: default.searches_max,
    }
}
