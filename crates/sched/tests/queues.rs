//! What holds for every cluster, tree of queues and sequence of events. Checked against the actions alone, which is all that a caller
//! sees: an independent account of who runs where.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sluice_sched::queues::{
    Action, Amounts, Config, JobId, JobSpec, QueueId, QueueSpec, QueueTree, Resource, Scheduler, Topology,
};
use sluice_sched::{DomainId, LabelSet, ModelId, NodeSpec, Placement, Placer, Policy, Request};

/// Cycles at one moment, after which a scheduler with constant demand must have come to rest.
const CYCLES_MAX: usize = 300;

fn node(gpus: u8, rack: u32) -> NodeSpec {
    NodeSpec {
        cpu_milli: 32_000,
        memory_mib: 128 * 1024,
        gpus,
        model: ModelId::new(0).unwrap(),
        gpu_memory_mib: 80 * 1024,
        labels: LabelSet::NONE,
        domains: vec![DomainId(rack)],
    }
}

/// What runs where according to the actions, and whether that is possible.
#[derive(Default)]
struct Watcher {
    running: BTreeMap<(JobId, u32), Placement>,
}

impl Watcher {
    fn follow(&mut self, actions: &[Action]) {
        for action in actions {
            match *action {
                Action::Bind { job, task, placement, .. } => {
                    assert!(
                        self.running.insert((job, task), placement).is_none(),
                        "{job} task {task} ran already"
                    );
                }
                Action::Evict { job, task, placement, .. } => {
                    assert_eq!(self.running.remove(&(job, task)), Some(placement));
                }
                Action::Move { job, task, from, to, .. } => {
                    assert_eq!(self.running.insert((job, task), to), Some(from));
                }
            }
        }
    }

    fn check(&self, scheduler: &Scheduler) {
        self.check_nodes(scheduler);
        self.check_queues(scheduler);
        let mut by_job: BTreeMap<JobId, Vec<&Placement>> = BTreeMap::new();
        for ((job, _), placement) in &self.running {
            by_job.entry(*job).or_default().push(placement);
        }
        for (id, placements) in by_job {
            let job = scheduler.job(id).expect("what runs is known");
            let (spec, tasks) = (job.spec(), placements.len() as u32);
            assert!(tasks >= spec.tasks_min && tasks <= spec.tasks_max, "{id} runs {tasks} tasks: {spec:?}");
            assert_eq!(tasks, job.running());
            if spec.topology.required.is_some() {
                let rack = |p: &&Placement| scheduler.cluster().node(p.node).spec().domains[0];
                assert!(
                    placements.iter().all(|p| rack(p) == rack(&placements[0])),
                    "{id} is in several racks"
                );
            }
        }
    }

    fn check_nodes(&self, scheduler: &Scheduler) {
        for (id, node) in scheduler.cluster().nodes() {
            let here = || self.running.values().filter(move |placement| placement.node == id);
            let cpu: u64 = here().map(|p| u64::from(p.request.cpu_milli)).sum();
            assert!(cpu <= u64::from(node.spec().cpu_milli));
            for gpu in 0..usize::from(node.spec().gpus) {
                let on_gpu = || here().filter(move |p| p.gpus.contains(gpu));
                let milli: u64 = on_gpu().map(|p| u64::from(p.request.gpu_milli)).sum();
                let memory: u64 = on_gpu().map(|p| u64::from(p.request.gpu_memory_mib)).sum();
                assert!(milli <= 1000 && memory <= u64::from(node.spec().gpu_memory_mib));
                assert_eq!(
                    u64::from(node.gpus()[gpu].milli),
                    1000 - milli,
                    "the books differ from the actions"
                );
            }
        }
    }

    fn check_queues(&self, scheduler: &Scheduler) {
        let tree = scheduler.queues();
        for queue in tree.top_down() {
            let (mut used, mut fixed) = (Amounts::ZERO, Amounts::ZERO);
            for ((id, _), placement) in &self.running {
                let spec = scheduler.job(*id).expect("what runs is known").spec();
                if tree.path(spec.queue).any(|above| above == queue) {
                    used += Amounts::of(&placement.request, 1);
                    if !spec.preemptible {
                        fixed += Amounts::of(&placement.request, 1);
                    }
                }
            }
            assert_eq!(used, scheduler.allocated(queue), "the books differ from the actions");
            assert_eq!(used.exceeds(&tree.queue(queue).limit), None, "above its limit");
            let deserved = &tree.queue(queue).deserved;
            assert!(fixed[Resource::Gpu] <= deserved[Resource::Gpu], "fixed work above the quota");
        }
    }
}

#[derive(Debug, Clone)]
enum Event {
    Submit { leaf: usize, spec: JobSpec },
    Finish { nth: usize },
    Pass { seconds: u64 },
}

#[derive(Debug, Clone)]
struct World {
    nodes: Vec<(u8, u32)>,
    queues: Vec<QueueSpec>,
    events: Vec<Event>,
    config: Config,
}

/// A department with two teams, and two queues beside it.
fn queues() -> impl Strategy<Value = Vec<QueueSpec>> {
    let figures = (0..4u8, prop::option::of(1..8u8), 0..4i64, 0..2i32, 0..3u8);
    prop::collection::vec(figures, 4).prop_map(|figures| {
        let mut queues = vec![QueueSpec::new("department")];
        for (name, (deserved, limit, weight, priority, runtime)) in
            ["a", "b", "c", "d"].into_iter().zip(figures)
        {
            let mut queue = QueueSpec { weight, priority, ..QueueSpec::new(name) };
            queue = queue.deserving_gpus(f64::from(deserved));
            queue.limit.gpus = limit.map(|more| f64::from(deserved + more));
            queue.preempt_min_runtime_s = Some(f64::from(runtime) * 10.0);
            queue.reclaim_min_runtime_s = Some(f64::from(runtime) * 5.0);
            queues.push(if name < "c" { queue.below("department") } else { queue });
        }
        queues
    })
}

fn job() -> impl Strategy<Value = JobSpec> {
    let share = prop_oneof![2 => Just(1000u16), 1 => 1..1000u16];
    let task = (0..4u8, share, 0..3u32, 1..9_000u32);
    let shape =
        (1..4u32, 0..3u32, -2..3i32, prop::bool::weighted(0.8), prop::option::weighted(0.2, Just(0u8)));
    (task, shape).prop_map(
        |((gpus, milli, memory, cpu), (tasks_min, more, priority, preemptible, required))| {
            let request = Request::cpu(cpu, 1024);
            let request = match gpus {
                0 => request,
                _ => request.with_gpus(gpus, milli).with_gpu_memory(memory * 20 * 1024),
            };
            let queue = QueueTree::new(&[QueueSpec::new("any")]).unwrap().find("any").unwrap();
            let topology = Topology { required, preferred: None };
            JobSpec {
                tasks_min,
                tasks_max: tasks_min + more,
                priority,
                preemptible,
                topology,
                ..JobSpec::new(queue, request)
            }
        },
    )
}

fn world() -> impl Strategy<Value = World> {
    let event = prop_oneof![
        6 => (0..4usize, job()).prop_map(|(leaf, spec)| Event::Submit { leaf, spec }),
        2 => (0..100usize).prop_map(|nth| Event::Finish { nth }),
        2 => (1..30u64).prop_map(|seconds| Event::Pass { seconds }),
    ];
    let nodes = prop::collection::vec((1..5u8, 0..2u32), 1..5);
    (nodes, queues(), prop::collection::vec(event, 1..40), 100..200u32).prop_map(
        |(nodes, queues, events, reclaim_percent)| {
            let config = Config { reclaim_percent, ..Config::default() };
            World { nodes, queues, events, config }
        },
    )
}

fn scheduler(nodes: &[(u8, u32)], queues: &[QueueSpec], config: &Config) -> (Scheduler, Vec<QueueId>) {
    let tree = QueueTree::new(queues).unwrap();
    let leaves = tree.top_down().filter(|&queue| tree.queue(queue).children.is_empty()).collect();
    let mut scheduler = Scheduler::new(tree, Placer::new(Policy::BestFit), config.clone());
    for &(gpus, rack) in nodes {
        scheduler.add_node(node(gpus, rack)).unwrap();
    }
    (scheduler, leaves)
}

/// Runs cycles until one does nothing, and checks after each.
fn settle(scheduler: &mut Scheduler, watcher: &mut Watcher, now: u64) -> Vec<Action> {
    let mut all = Vec::new();
    for _ in 0..CYCLES_MAX {
        let actions = scheduler.cycle(now);
        watcher.follow(&actions);
        watcher.check(scheduler);
        if actions.is_empty() {
            return all;
        }
        all.extend(actions);
    }
    panic!(
        "no rest after {CYCLES_MAX} cycles; the last actions: {:#?}",
        &all[all.len().saturating_sub(12)..]
    );
}

fn play(world: &World) -> Vec<Action> {
    let (mut scheduler, leaves) = scheduler(&world.nodes, &world.queues, &world.config);
    let (mut watcher, mut jobs, mut now, mut all) = (Watcher::default(), Vec::new(), 0, Vec::new());
    for event in &world.events {
        match event {
            Event::Submit { leaf, spec } => {
                jobs.push(scheduler.submit(JobSpec { queue: leaves[*leaf], ..*spec }).unwrap());
            }
            Event::Finish { nth } => {
                if let Some(&job) = jobs.get(nth % jobs.len().max(1)) {
                    scheduler.finish(job);
                    watcher.running.retain(|(running, _), _| *running != job);
                }
            }
            Event::Pass { seconds } => now += seconds * 1000,
        }
        all.extend(settle(&mut scheduler, &mut watcher, now));
        for id in scheduler.waiting().collect::<Vec<_>>() {
            let why = scheduler.why(id).expect("what waits has a reason");
            assert!(why.blocked.is_some(), "{id} waits for no reason: {why}");
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Nothing is over-committed, limits and quotas hold, gangs are whole, the books agree with the actions, every wait has its reason,
    /// and with constant demand the cycles come to rest: no eviction leads back to itself.
    #[test]
    fn every_cycle_keeps_its_promises(world in world()) {
        play(&world);
    }

    #[test]
    fn equal_histories_have_equal_futures(world in world()) {
        prop_assert_eq!(play(&world), play(&world));
    }

    /// With jobs of one GPU each that may all be evicted, every queue ends at its share exactly while the cluster is full.
    #[test]
    fn queues_end_at_their_shares(gpus in 1..5u8, nodes in 1..4u32, queues in queues(), demand in prop::collection::vec(0..12u32, 4),
                                  order in any::<u64>()) {
        let queues: Vec<QueueSpec> = queues.into_iter().map(|queue| QueueSpec {
            preempt_min_runtime_s: None, reclaim_min_runtime_s: None, limit: Default::default(), ..queue
        }).collect();
        let nodes: Vec<(u8, u32)> = (0..nodes).map(|_| (gpus, 0)).collect();
        let (mut scheduler, leaves) = scheduler(&nodes, &queues, &Config::default());
        let mut watcher = Watcher::default();
        // The queues arrive one after another, so the first has taken what there is when the last comes.
        for turn in 0..4 {
            let nth = ((order >> (turn * 8)) as usize + turn) % 4;
            for _ in 0..demand[nth] {
                scheduler.submit(JobSpec::new(leaves[nth], Request::cpu(0, 0).with_gpus(1, 1000))).unwrap();
            }
            settle(&mut scheduler, &mut watcher, 0);
        }
        let used: u64 = leaves.iter().map(|&leaf| scheduler.allocated(leaf)[Resource::Gpu]).sum();
        let capacity: u64 = nodes.iter().map(|&(gpus, _)| u64::from(gpus) * 1000).sum();
        let requested = 1000 * scheduler.waiting().count() as u64 + used;
        prop_assert_eq!(used, capacity.min(requested), "GPUs are idle while work waits");
        for &leaf in &leaves {
            let (used, share) = (scheduler.allocated(leaf)[Resource::Gpu], scheduler.fair_share(leaf)[Resource::Gpu]);
            prop_assert!(used >= share, "{} has {used} of its share of {share}", scheduler.queues().queue(leaf).name);
        }
    }
}

#[test]
fn a_thousand_requests_at_once_overcommit_nothing() {
    let queues = [QueueSpec::new("a"), QueueSpec::new("b").deserving_gpus(10.0)];
    let (mut scheduler, leaves) = scheduler(&[(8, 0); 8], &queues, &Config::default());
    let mut random = sluice_sched::Random::new(7);
    for _ in 0..1000 {
        let (milli, gib) = (20 + random.below(600) as u16, random.below(40) as u32);
        let request = Request::cpu(100, 100).with_gpus(1, milli).with_gpu_memory(gib * 1024);
        scheduler.submit(JobSpec::new(leaves[random.below(2)], request)).unwrap();
    }
    let mut watcher = Watcher::default();
    settle(&mut scheduler, &mut watcher, 0);
    assert!(watcher.running.len() > 150, "{} of 1000 run on 64 GPUs", watcher.running.len());
    assert!(scheduler.waiting().count() > 0);
}

#[test]
fn half_lives_let_two_greedy_queues_take_turns() {
    // One job of the whole cluster each: without memory the first would keep it for ever.
    let config = Config { half_life: Some(60_000), usage_percent: 100, ..Config::default() };
    let queues = [QueueSpec::new("a"), QueueSpec::new("b")];
    let (mut scheduler, leaves) = scheduler(&[(4, 0)], &queues, &config);
    for &leaf in &leaves {
        scheduler.submit(JobSpec::new(leaf, Request::cpu(0, 0).with_gpus(4, 1000))).unwrap();
    }
    let mut held = [0u64; 2];
    let mut watcher = Watcher::default();
    for second in 0..3600 {
        watcher.follow(&scheduler.cycle(second * 1000));
        for (held, &leaf) in held.iter_mut().zip(&leaves) {
            *held += scheduler.allocated(leaf)[Resource::Gpu] / 4000;
        }
    }
    assert_eq!(held[0] + held[1], 3600);
    assert!(held[0].abs_diff(held[1]) < 360, "{held:?} seconds of 3600");
}

#[test]
fn a_lost_task_waits_at_its_old_place_and_its_gang_is_stale() {
    let (mut scheduler, leaves) = scheduler(&[(2, 0)], &[QueueSpec::new("a")], &Config::default());
    let request = Request::cpu(0, 0).with_gpus(1, 1000);
    let gang =
        scheduler.submit(JobSpec { tasks_min: 2, tasks_max: 2, ..JobSpec::new(leaves[0], request) }).unwrap();
    let other = scheduler.submit(JobSpec::new(leaves[0], request)).unwrap();
    assert_eq!(scheduler.cycle(0).len(), 2);
    scheduler.task_lost(1000, gang, 1);
    assert_eq!(scheduler.job(gang).unwrap().running(), 1);
    let actions = scheduler.cycle(1000);
    assert!(matches!(actions[..], [Action::Bind { job, task: 1, .. }] if job == gang), "{actions:?}");
    scheduler.finish(gang);
    scheduler.finish(gang);
    let actions = scheduler.cycle(2000);
    assert!(matches!(actions[..], [Action::Bind { job, .. }] if job == other), "{actions:?}");
}
