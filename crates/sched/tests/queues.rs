//! What holds for every cluster, tree of queues and sequence of events. Checked against the actions
//! alone, which is all that a caller sees: an independent account of who runs where.

mod watcher;

use std::collections::BTreeMap;
use std::sync::Mutex;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use sluice_sched::queues::{
    Action, Amounts, Blocked, Config, Evicted, Figures, JobId, JobSpec, Mobility, No, QueueId, QueueSpec,
    QueueTree, Resource, Scheduler, Topology,
};
use sluice_sched::{
    DomainId, LabelSet, ModelId, NodeId, NodeSpec, Placement, Placer, Policy, Request, WHOLE_GPU_MILLI,
};

use watcher::Watcher;

/// Cycles at one moment, after which a scheduler with constant demand must have come to rest.
const CYCLES_MAX: usize = 300;

/// Units of the GPUs of rack 1, and of the other ones.
const SLOW_MILLI: u32 = 10_000;
const FAST_MILLI: u32 = 25_000;

/// How much of each GPU may be promised, by rack.
const PROMISED_MILLI: [u16; 3] = [WHOLE_GPU_MILLI, 1500, 2000];

fn node(gpus: u8, rack: u32) -> NodeSpec {
    NodeSpec {
        cpu_milli: 32_000,
        memory_mib: 128 * 1024,
        gpus,
        model: ModelId::new(0).unwrap(),
        gpu_milli: PROMISED_MILLI[rack as usize],
        gpu_memory_mib: 80 * 1024,
        gpu_memory_leasable_mib: 80 * 1024,
        gpu_units_milli: if rack == 1 { SLOW_MILLI } else { FAST_MILLI },
        labels: LabelSet::NONE,
        domains: vec![DomainId(rack)],
    }
}

#[derive(Debug, Clone)]
enum Event {
    Submit {
        leaf: usize,
        spec: JobSpec,
    },
    Finish {
        nth: usize,
    },
    Pass {
        seconds: u64,
    },
    /// A node, by its place, is cleared; one that was cleared already takes work again.
    Drain {
        node: usize,
    },
    /// It is gone, with what ran there.
    Remove {
        node: usize,
    },
    Add {
        gpus: u8,
        rack: u32,
    },
    /// Other quotas.
    Queues(Vec<QueueSpec>),
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
    let units = prop_oneof![2 => Just((0u8, None)), 1 => (0..40u8, prop::option::of(1..80u8))];
    let figures = (0..4u8, prop::option::of(1..8u8), 0..4i64, 0..2i32, 0..3u8, units);
    prop::collection::vec(figures, 4).prop_map(|figures| {
        let mut queues = vec![QueueSpec::new("department")];
        for (name, (deserved, limit, weight, priority, runtime, (units, more_units))) in
            ["a", "b", "c", "d"].into_iter().zip(figures)
        {
            let mut queue = QueueSpec { weight, priority, ..QueueSpec::new(name) };
            queue = queue.deserving_gpus(f64::from(deserved));
            queue.limit.gpus = limit.map(|more| f64::from(deserved + more));
            queue.deserved.gpu_units = (units > 0).then_some(f64::from(units));
            queue.limit.gpu_units = more_units.map(|more| f64::from(units + more));
            queue.preempt_min_runtime_s = Some(f64::from(runtime) * 10.0);
            queue.reclaim_min_runtime_s = Some(f64::from(runtime) * 5.0);
            queues.push(if name < "c" { queue.below("department") } else { queue });
        }
        queues
    })
}

fn job() -> impl Strategy<Value = JobSpec> {
    let share = prop_oneof![2 => Just(1000u16), 1 => 1..1000u16];
    let task = (0..4u8, share, 0..3u32, 1..9_000u32, prop::bool::weighted(0.3));
    let topology = prop_oneof![
        6 => Just(Topology::ANY),
        2 => Just(Topology { required: Some(0), ..Topology::ANY }),
        2 => Just(Topology { apart: Some(0), ..Topology::ANY }),
    ];
    let mobility =
        prop_oneof![3 => Just(Mobility::Restarts), 3 => Just(Mobility::Live), 1 => Just(Mobility::Held)];
    let shape = (1..4u32, 0..3u32, -2..3i32, prop::bool::weighted(0.8), topology, mobility);
    (task, shape).prop_map(
        |(
            (gpus, milli, memory, cpu, by_units),
            (tasks_min, more, priority, preemptible, topology, mobility),
        )| {
            let request = Request::cpu(cpu, 1024);
            let request = match gpus {
                0 => request,
                _ => request.with_gpus(gpus, milli).with_gpu_memory(memory * 20 * 1024),
            };
            // The most that a share is in units, and the most that units are as a share.
            let request = match (gpus, by_units) {
                (0, _) => request,
                (_, false) => Request { gpu_units_milli: u32::from(milli) * FAST_MILLI / 1000, ..request },
                (_, true) => request.with_gpu_units(gpus, u32::from(milli) * SLOW_MILLI / 1000, milli),
            };
            let queue = QueueTree::new(&[QueueSpec::new("any")]).unwrap().find("any").unwrap();
            JobSpec {
                tasks_min,
                tasks_max: tasks_min + more,
                priority,
                preemptible,
                mobility,
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
        1 => (0..5usize).prop_map(|node| Event::Drain { node }),
        2 => (0..5usize).prop_map(|node| Event::Remove { node }),
        1 => (1..5u8, 0..3u32).prop_map(|(gpus, rack)| Event::Add { gpus, rack }),
        1 => queues().prop_map(Event::Queues),
    ];
    let nodes = prop::collection::vec((1..5u8, 0..3u32), 1..5);
    let config = (100..200u32, 1..20u64);
    (nodes, queues(), prop::collection::vec(event, 1..40), config).prop_map(
        |(nodes, queues, events, (reclaim_percent, stale_grace_s))| {
            let config = Config { reclaim_percent, stale_grace: stale_grace_s * 1000, ..Config::default() };
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

/// What came of a history.
#[derive(Debug, Default, PartialEq)]
struct Played {
    actions: Vec<Action>,
    /// What kept jobs waiting.
    blocked: Vec<Blocked>,
}

fn play(world: &World) -> Played {
    let (mut scheduler, leaves) = scheduler(&world.nodes, &world.queues, &world.config);
    let (mut watcher, mut jobs, mut now) = (Watcher::default(), Vec::new(), 0);
    let mut played = Played::default();
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
            Event::Drain { node } => played.actions.extend(drain(&mut scheduler, &mut watcher, now, *node)),
            Event::Remove { node } => {
                if let Some(node) = there(&scheduler, *node) {
                    watcher.lost(&scheduler.remove_node(now, node).unwrap());
                }
            }
            Event::Add { gpus, rack } => {
                scheduler.add_node(node(*gpus, *rack)).unwrap();
            }
            Event::Queues(specs) => {
                watcher.inherit(&scheduler);
                scheduler.set_queues(QueueTree::new(specs).unwrap(), QueueTree::find).unwrap();
            }
        }
        played.actions.extend(settle(&mut scheduler, &mut watcher, now));
        for id in scheduler.waiting().collect::<Vec<_>>() {
            let why = scheduler.why(id).expect("what waits has a reason");
            played.blocked.push(why.blocked.clone().expect("whoever waits waits for something"));
        }
    }
    restart(&scheduler, &watcher, now, &world.config);
    overcommit_less(&scheduler, &watcher, now, &world.config);
    played
}

/// The node at this place, if it is part of the cluster.
fn there(scheduler: &Scheduler, place: usize) -> Option<NodeId> {
    let (id, node) = scheduler.cluster().nodes().nth(place)?;
    (!node.is_removed()).then_some(id)
}

fn drain(scheduler: &mut Scheduler, watcher: &mut Watcher, now: u64, place: usize) -> Vec<Action> {
    let Some(node) = there(scheduler, place) else { return Vec::new() };
    if !scheduler.cluster().node(node).is_schedulable() {
        scheduler.set_schedulable(node, true).unwrap();
        return Vec::new();
    }
    let actions = scheduler.drain(now, node).unwrap();
    watcher.follow(&actions);
    watcher.check(scheduler);
    for (id, _) in scheduler.tasks_on(node) {
        assert!(!scheduler.job(id).unwrap().spec().preemptible, "{id} stays on a drained node");
    }
    actions
}

/// Whether a job has taken its place so often in vain that it no longer tries.
fn has_lost_again(scheduler: &Scheduler, id: JobId) -> bool {
    let nos = scheduler.why(id).map(|why| [&why.reclaim, &why.preemption]);
    nos.into_iter().flatten().flatten().any(|no| matches!(no, No::LostAgain { .. }))
}

/// A scheduler that is built from what a caller knows, as after its restart, has the same books,
/// and is at rest as the other was. Only consolidation may continue: the old one remembers where it
/// looked in vain until something is released, the new one looks again. And who had given up has
/// another chance, with which the new one comes to rest too.
fn restart(old: &Scheduler, watcher: &Watcher, now: u64, config: &Config) {
    let config = Config { consolidate: false, ..config.clone() };
    let (mut new, mut after) = built_from(old, watcher, now, &config, NodeSpec::clone);
    let actions = settle(&mut new, &mut after, now);
    if old.waiting().any(|id| has_lost_again(old, id)) {
        return;
    }
    assert!(actions.is_empty(), "a restart changed what runs: {actions:#?}");
    for queue in old.queues().top_down() {
        assert_eq!(old.fair_share(queue), new.fair_share(queue));
    }
}

/// Where less may be promised of GPUs than is, that stays and does not grow; and cycles come to
/// rest, though room is asked for.
fn overcommit_less(old: &Scheduler, watcher: &Watcher, now: u64, config: &Config) {
    let less = |spec: &NodeSpec| NodeSpec { gpu_milli: WHOLE_GPU_MILLI, ..spec.clone() };
    let (mut new, mut after) = built_from(old, watcher, now, config, less);
    let half = Request { gpu_units_milli: FAST_MILLI / 2, ..Request::cpu(0, 0).with_gpus(1, 500) };
    let is_leaf = |&queue: &QueueId| old.queues().queue(queue).children.is_empty();
    for leaf in old.queues().top_down().filter(is_leaf) {
        new.submit(JobSpec::new(leaf, half)).unwrap();
        settle(&mut new, &mut after, now);
    }
}

/// A scheduler with the same quotas, jobs and nodes, of which some figures may be others, and a
/// watcher of it.
fn built_from(
    old: &Scheduler,
    watcher: &Watcher,
    now: u64,
    config: &Config,
    spec: impl Fn(&NodeSpec) -> NodeSpec,
) -> (Scheduler, Watcher) {
    let mut new = Scheduler::new(old.queues().clone(), Placer::new(Policy::BestFit), config.clone());
    // Places of removed nodes are left empty when all are there, so that the others get their ids.
    let nodes: Vec<_> = old.cluster().nodes().map(|(_, other)| other).collect();
    let ids: Vec<NodeId> = nodes.iter().map(|other| new.add_node(spec(other.spec())).unwrap()).collect();
    for (&id, node) in ids.iter().zip(nodes) {
        if node.is_removed() {
            new.remove_node(now, id).unwrap();
        } else {
            new.set_schedulable(id, node.is_schedulable()).unwrap();
        }
    }
    let mut jobs: BTreeMap<JobId, Vec<(u32, Placement)>> = old.waiting().map(|id| (id, Vec::new())).collect();
    for (&(id, task), &placement) in &watcher.running {
        jobs.entry(id).or_default().push((task, placement));
    }
    let mut after = Watcher { inherited: watcher.inherited.clone(), ..Watcher::default() };
    for (id, tasks) in jobs {
        let job = old.job(id).unwrap();
        let copy = new.submit(*job.spec()).unwrap();
        new.adopt(now, copy, &tasks, job.started()).unwrap();
        after.running.extend(tasks.iter().map(|&(task, placement)| ((copy, task), placement)));
        after.hurt.extend(watcher.hurt.contains(&id).then_some(copy));
    }
    ids.iter().for_each(|&node| after.inherit_gpus(&new, node));
    after.check(&new);
    (new, after)
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Nothing is over-committed, limits and quotas hold, gangs are whole, the books agree with the
    /// actions, every wait has its reason, and with constant demand the cycles come to rest: no
    /// eviction leads back to itself.
    #[test]
    fn every_cycle_keeps_its_promises(world in world()) {
        play(&world);
    }

    #[test]
    fn equal_histories_have_equal_futures(world in world()) {
        prop_assert_eq!(play(&world), play(&world));
    }

    /// With jobs of one GPU each that may all be evicted, every queue ends at its share exactly
    /// while the cluster is full.
    #[test]
    fn queues_end_at_their_shares(gpus in 1..5u8, nodes in 1..4u32, queues in queues(), demand in prop::collection::vec(0..12u32, 4),
                                  order in any::<u64>()) {
        let gpus_alone = |deserved| Figures { gpu_units: None, ..deserved };
        let queues: Vec<QueueSpec> = queues.into_iter().map(|queue| QueueSpec {
            preempt_min_runtime_s: None, reclaim_min_runtime_s: None, limit: Default::default(),
            deserved: gpus_alone(queue.deserved), ..queue
        }).collect();
        let nodes: Vec<(u8, u32)> = (0..nodes).map(|_| (gpus, 0)).collect();
        let (mut scheduler, leaves) = scheduler(&nodes, &queues, &Config::default());
        let mut watcher = Watcher::default();
        // The queues arrive one after another, so the first has taken what there is when the last
        // comes.
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

/// The histories above would prove little if nothing happened in them.
#[test]
fn random_histories_contain_whatever_can_happen() {
    let mut runner = TestRunner::deterministic();
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..400 {
        let Played { actions, blocked } = play(&world().new_tree(&mut runner).unwrap().current());
        let kinds = actions.iter().map(|action| match action {
            Action::Bind { because, .. } => format!("{because:?}"),
            Action::Evict { because: Evicted::Reclaimed { in_quota, .. }, .. } => {
                format!("evicted, in quota: {in_quota}")
            }
            Action::Evict { because, .. } => format!("evicted, {}", word(because)),
            Action::Move { .. } => "moved".into(),
        });
        for kind in kinds.chain(blocked.iter().map(word)) {
            *seen.entry(kind).or_default() += 1;
        }
    }
    let expect = [
        "Free",
        "Consolidated",
        "Reclaimed",
        "Preempted",
        "moved",
        "evicted, in quota: false",
        "evicted, in quota: true",
        "evicted, Preempted",
        "evicted, Drained",
        "evicted, Stale",
        "Limit",
        "Quota",
        "Room",
        "Topology",
    ];
    for kind in expect {
        assert!(seen.get(kind).is_some_and(|&count| count >= 5), "{kind} hardly occurs: {seen:#?}");
    }
}

/// The name of a variant.
fn word(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.split([' ', '(', '{']).next().unwrap_or_default().to_owned()
}

/// A thousand requests, of which eight threads submit, place and end some each, on nodes that
/// promise what they have, and on nodes whose pool promises twice the device memory that is there.
#[test]
fn a_thousand_concurrent_requests_overcommit_nothing_beyond_the_policy() {
    for gpu_memory_gib in [80, 160] {
        let queues = [QueueSpec::new("a"), QueueSpec::new("b").deserving_gpus(10.0)];
        let (mut scheduler, leaves) = scheduler(&[], &queues, &Config::default());
        for _ in 0..8 {
            let gpu_memory_mib = gpu_memory_gib * 1024;
            let memory = NodeSpec { gpu_memory_mib, gpu_memory_leasable_mib: gpu_memory_mib, ..node(8, 0) };
            scheduler.add_node(memory).unwrap();
        }
        let shared = Mutex::new((scheduler, Watcher::default()));
        let most = std::thread::scope(|scope| {
            let (shared, leaves) = (&shared, &leaves);
            let part = |seed| scope.spawn(move || request_and_end(shared, leaves, seed));
            let threads: Vec<_> = (0..8).map(part).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
        });
        let (mut scheduler, mut watcher) = shared.into_inner().unwrap();
        settle(&mut scheduler, &mut watcher, 0);
        assert!(most > 150, "at most {most} of 1000 ran at once on 64 GPUs");
        assert!(scheduler.waiting().count() > 0, "so few requests are no test");
    }
}

/// One thread's part; returns the most tasks that it saw running.
fn request_and_end(shared: &Mutex<(Scheduler, Watcher)>, leaves: &[QueueId], seed: u64) -> usize {
    let mut random = sluice_sched::Random::new(seed);
    let (mut mine, mut most) = (Vec::new(), 0);
    for _ in 0..125 {
        let (milli, gib) = (20 + random.below(600) as u16, random.below(80) as u32);
        let request = Request::cpu(100, 100).with_gpus(1, milli).with_gpu_memory(gib * 1024);
        let mut guard = shared.lock().unwrap();
        let (scheduler, watcher) = &mut *guard;
        mine.push(scheduler.submit(JobSpec::new(leaves[random.below(2)], request)).unwrap());
        if random.below(4) == 0 {
            let ended = mine.swap_remove(random.below(mine.len()));
            scheduler.finish(ended);
            watcher.running.retain(|(running, _), _| *running != ended);
        }
        watcher.follow(&scheduler.cycle(0));
        watcher.check(scheduler);
        most = most.max(watcher.running.len());
    }
    most
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
fn use_that_is_recalled_or_taken_over_counts() {
    let config = Config { half_life: Some(60_000), usage_percent: 100, ..Config::default() };
    let queues = [QueueSpec::new("a"), QueueSpec::new("b")];
    let request = Request::cpu(0, 0).with_gpus(4, 1000);
    // Whoever asks first gets it, but for what was used before.
    let winner = |mut scheduler: Scheduler, leaves: &[QueueId], at| {
        leaves.iter().for_each(|&leaf| _ = scheduler.submit(JobSpec::new(leaf, request)).unwrap());
        scheduler.cycle(at);
        leaves.iter().position(|&leaf| scheduler.allocated(leaf)[Resource::Gpu] > 0)
    };
    let fresh = || scheduler(&[(4, 0)], &queues, &config);
    let (mut idle, leaves) = fresh();
    idle.recall_use(1_000_000, []);
    assert_eq!(winner(idle, &leaves, 1_000_000), Some(0));
    let (mut recalls, leaves) = fresh();
    recalls.recall_use(1_000_000, [(leaves[0], Amounts::of(&request, 1), (700_000, 1_000_000))]);
    let (mut takes_over, _) = fresh();
    takes_over.recall_use(1_000_000, []);
    takes_over.keep_use_of(&recalls);
    assert_eq!([recalls, takes_over].map(|scheduler| winner(scheduler, &leaves, 1_000_000)), [Some(1); 2]);
    // The clock was an hour ahead, and is set back: what was used then decays from now on.
    let (mut ahead, _) = fresh();
    ahead.recall_use(4_600_000, [(leaves[0], Amounts::of(&request, 1), (4_300_000, 4_600_000))]);
    let set_back = |at| {
        let (mut set_back, _) = fresh();
        set_back.recall_use(1_000_000, []);
        set_back.keep_use_of(&ahead);
        winner(set_back, &leaves, at)
    };
    assert_eq!([set_back(1_000_000), set_back(3_400_000)], [Some(1), Some(0)]);
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
