//! What a control plane does to a scheduler that runs: other quotas, nodes that come and go,
//! questions.

use sluice_sched::queues::{
    Action, Config, Evicted, JobId, JobSpec, QueueSpec, QueueTree, Resource, Scheduler,
};
use sluice_sched::{
    Cluster, DomainId, GpuSet, LabelSet, ModelId, NodeSpec, Placement, Placer, Policy, Request,
    WHOLE_GPU_MILLI,
};

const GPU: Request = Request::cpu(0, 0).with_gpus(1, 1000);

fn node(gpus: u8) -> NodeSpec {
    NodeSpec {
        cpu_milli: 32_000,
        memory_mib: 128 * 1024,
        gpus,
        model: ModelId::new(0).unwrap(),
        gpu_milli: WHOLE_GPU_MILLI,
        gpu_memory_mib: 80 * 1024,
        gpu_memory_leasable_mib: 80 * 1024,
        gpu_units_milli: 0,
        labels: LabelSet::NONE,
        domains: vec![DomainId(0)],
    }
}

fn tree(specs: &[(&str, f64)]) -> QueueTree {
    let specs: Vec<_> = specs.iter().map(|&(name, gpus)| QueueSpec::new(name).deserving_gpus(gpus)).collect();
    QueueTree::new(&specs).unwrap()
}

fn scheduler(nodes: &[u8], queues: &[(&str, f64)]) -> Scheduler {
    let mut scheduler = Scheduler::new(tree(queues), Placer::new(Policy::BestFit), Config::default());
    for &gpus in nodes {
        scheduler.add_node(node(gpus)).unwrap();
    }
    scheduler
}

fn submit(scheduler: &mut Scheduler, queue: &str, tasks: u32) -> JobId {
    let queue = scheduler.queues().find(queue).unwrap();
    scheduler.submit(JobSpec { tasks_min: tasks, tasks_max: tasks, ..JobSpec::new(queue, GPU) }).unwrap()
}

fn gpus(scheduler: &Scheduler, queue: &str) -> u64 {
    scheduler.allocated(scheduler.queues().find(queue).unwrap())[Resource::Gpu] / 1000
}

#[test]
fn another_quota_is_reclaimed_and_new_queues_take_part() {
    let mut scheduler = scheduler(&[4], &[("a", 4.0)]);
    for _ in 0..4 {
        submit(&mut scheduler, "a", 1);
    }
    assert_eq!(scheduler.cycle(0).len(), 4);
    scheduler.set_queues(tree(&[("b", 3.0), ("a", 1.0)]), QueueTree::find).unwrap();
    assert_eq!((gpus(&scheduler, "a"), gpus(&scheduler, "b")), (4, 0));
    assert!(scheduler.cycle(1).is_empty(), "nobody asks for what b deserves");
    for _ in 0..4 {
        submit(&mut scheduler, "b", 1);
    }
    while !scheduler.cycle(2).is_empty() {}
    assert_eq!((gpus(&scheduler, "a"), gpus(&scheduler, "b")), (1, 3));
}

#[test]
fn a_queue_with_work_does_not_vanish_but_its_work_may_go_elsewhere() {
    let mut scheduler = scheduler(&[4], &[("a", 4.0), ("empty", 0.0)]);
    let job = submit(&mut scheduler, "a", 2);
    scheduler.cycle(0);
    let refused = scheduler.set_queues(tree(&[("b", 4.0)]), QueueTree::find).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "queue \"a\" has 1 jobs, and the new tree has no queue without children for them; keep it until they have ended"
    );
    let below = [QueueSpec::new("a"), QueueSpec::new("team").below("a")];
    let parent = QueueTree::new(&below).unwrap();
    assert!(scheduler.set_queues(parent.clone(), QueueTree::find).is_err(), "a has a queue below it");
    assert_eq!(gpus(&scheduler, "a"), 2, "nothing was changed");
    scheduler.set_queues(parent, |tree, _| tree.find("team")).unwrap();
    assert_eq!((gpus(&scheduler, "a"), gpus(&scheduler, "team")), (2, 2));
    scheduler.finish(job);
    assert_eq!((gpus(&scheduler, "a"), gpus(&scheduler, "team")), (0, 0));
}

#[test]
fn a_drained_node_is_cleared_of_what_may_leave() {
    let mut scheduler = scheduler(&[4, 4], &[("a", 8.0)]);
    let queue = scheduler.queues().find("a").unwrap();
    let fixed = scheduler.submit(JobSpec { preemptible: false, ..JobSpec::new(queue, GPU) }).unwrap();
    let gang = submit(&mut scheduler, "a", 3);
    scheduler.cycle(0);
    let node = scheduler.job(fixed).unwrap().tasks().next().unwrap().1.node;
    let actions = scheduler.drain(1, node).unwrap();
    let left = |action: &Action| matches!(*action, Action::Evict { job, because: Evicted::Drained, .. } if job == gang);
    assert!(actions.len() == 3 && actions.iter().all(left), "a gang leaves as a whole: {actions:?}");
    assert_eq!(scheduler.tasks_on(node), [(fixed, 0)]);
    let actions = scheduler.cycle(1);
    assert!(actions.iter().all(|action| matches!(*action, Action::Bind { job, placement, .. } if job == gang && placement.node != node)));
    assert_eq!(scheduler.job(gang).unwrap().running(), 3);
}

#[test]
fn what_ran_on_a_removed_node_waits_again_and_its_place_is_taken_by_the_next() {
    let mut scheduler = scheduler(&[4, 4], &[("a", 8.0)]);
    let jobs: Vec<JobId> = (0..8).map(|_| submit(&mut scheduler, "a", 1)).collect();
    scheduler.cycle(0);
    let gone = scheduler.job(jobs[0]).unwrap().tasks().next().unwrap().1.node;
    let lost = scheduler.remove_node(1, gone).unwrap();
    assert_eq!(lost.len(), 4);
    assert!(scheduler.remove_node(1, gone).is_err() && scheduler.drain(1, gone).is_err());
    assert!(scheduler.cycle(1).is_empty());
    let why = scheduler.why(lost[0].0).unwrap().to_string();
    assert!(why.starts_with("room: 0 of 1 nodes fit, 1 have too few GPUs free"), "{why}");
    // A smaller one comes back: scores that were relative to the larger one are of no use any more.
    assert_eq!(scheduler.add_node(node(2)).unwrap(), gone);
    assert_eq!(scheduler.cycle(2).len(), 2);
    assert_eq!(scheduler.cluster().usage().gpus, 6);
    assert_eq!(gpus(&scheduler, "a"), 6);
}

#[test]
fn a_forecast_says_when_where_and_at_whose_cost_and_decides_nothing() {
    let mut scheduler = scheduler(&[4], &[("a", 2.0), ("b", 2.0)]);
    let long: Vec<JobId> = (0..4).map(|_| submit(&mut scheduler, "a", 1)).collect();
    scheduler.cycle(0);
    // Jobs of "a" take 10 s, 20 s, ...; others do not end.
    let runtime =
        |job: JobId| long.iter().position(|&other| other == job).map(|nth| 10_000 * (nth as u64 + 1));
    let waiting = submit(&mut scheduler, "a", 2);
    scheduler.cycle(0);
    let before = format!("{scheduler:?}");
    let forecast = scheduler.clone().forecast(5_000, waiting, runtime, 100);
    let (at, placements) = forecast.start.unwrap();
    assert_eq!((at, placements.len(), forecast.ends), (20_000, 2, 2));
    assert!(forecast.evicted.is_empty() && forecast.why.unwrap().to_string().starts_with("room: "));
    assert_eq!(scheduler.clone().forecast(5_000, waiting, runtime, 1).start, None, "not within one end");
    assert_eq!(scheduler.clone().forecast(5_000, waiting, |_| None, 100).start, None, "nothing ends");

    // "b" would get what it deserves at once, from the newest.
    let mut asked = scheduler.clone();
    let rightful = submit(&mut asked, "b", 1);
    let forecast = asked.forecast(5_000, rightful, runtime, 100);
    assert_eq!((forecast.start.unwrap().0, forecast.evicted, forecast.why), (5_000, vec![long[3]], None));
    assert_eq!(format!("{scheduler:?}"), before);
}

#[test]
fn a_fenced_gpu_keeps_its_work_and_gets_nothing_new() {
    let mut scheduler = scheduler(&[2], &[("a", 2.0)]);
    let (first, second) = (submit(&mut scheduler, "a", 1), submit(&mut scheduler, "a", 1));
    let bound = scheduler.cycle(0);
    let at = |job| {
        let of =
            bound.iter().find(|action| matches!(action, Action::Bind { job: other, .. } if *other == job));
        let Some(Action::Bind { placement, .. }) = of else { panic!("{bound:?}") };
        (placement.node, placement.gpus.iter().next().unwrap())
    };
    let (node, gpu) = at(first);
    scheduler.set_fenced(node, gpu, true).unwrap();
    assert!(scheduler.set_fenced(node, 2, true).is_err(), "there are two");
    assert_eq!(scheduler.job(first).unwrap().running(), 1);

    // What leaves it makes no room; what leaves the other does, and preemption knows that too.
    scheduler.finish(first);
    let (third, fourth) = (submit(&mut scheduler, "a", 1), submit(&mut scheduler, "a", 1));
    assert!(scheduler.cycle(1).is_empty());
    assert_eq!(scheduler.fair_share(scheduler.queues().find("a").unwrap())[Resource::Gpu], 1000);
    scheduler.finish(second);
    assert_eq!(scheduler.cycle(2).len(), 1);
    assert_eq!([third, fourth].map(|job| scheduler.job(job).unwrap().running()), [1, 0]);

    scheduler.set_fenced(node, gpu, false).unwrap();
    assert_eq!(scheduler.cycle(3).len(), 1);
    assert_eq!(scheduler.job(fourth).unwrap().running(), 1);
}

#[test]
fn what_runs_on_a_fenced_gpu_is_taken_over_and_the_node_is_empty_without_it() {
    let mut scheduler = scheduler(&[2, 2], &[("a", 4.0)]);
    let job = submit(&mut scheduler, "a", 1);
    let Some(Action::Bind { placement, .. }) = scheduler.cycle(0).pop() else { panic!("it is bound") };
    let gpu = placement.gpus.iter().next().unwrap();

    // As after a restart of the caller: first the fence, then what runs.
    let mut scheduler = self::scheduler(&[2, 2], &[("a", 4.0)]);
    scheduler.set_fenced(placement.node, gpu, true).unwrap();
    assert_eq!(submit(&mut scheduler, "a", 1), job);
    scheduler.adopt(1, job, &[(0, placement)], 0).unwrap();
    let before = scheduler.cluster().clone();
    assert!(scheduler.adopt(1, job, &[(0, placement)], 0).is_err(), "it has its place already");
    assert_eq!(before.usage(), scheduler.cluster().usage());
    scheduler.finish(job);
    assert!(scheduler.cluster().node(placement.node).is_empty());
    assert_eq!(scheduler.cluster().node(placement.node).gpus()[gpu].milli, 0);
    assert!(scheduler.remove_node(2, placement.node).unwrap().is_empty());
}

#[test]
fn an_elastic_job_gives_its_last_tasks_first_wherever_they_are() {
    let mut scheduler = scheduler(&[1, 1, 1], &[("a", 1.0), ("b", 0.0)]);
    let queue = scheduler.queues().find("b").unwrap();
    let spec = JobSpec { tasks_min: 1, tasks_max: 3, ..JobSpec::new(queue, GPU) };
    let elastic = scheduler.submit(spec).unwrap();
    scheduler.cycle(0);
    submit(&mut scheduler, "a", 1);
    let gone = |action: &Action| match action {
        Action::Evict { job, task, .. } => Some((*job, *task)),
        _ => None,
    };
    assert_eq!(scheduler.cycle(1).iter().filter_map(gone).collect::<Vec<_>>(), [(elastic, 2)]);
}

#[test]
fn a_job_whose_tasks_have_ended_wants_no_others_in_their_place() {
    let mut scheduler = scheduler(&[4], &[("a", 0.0)]);
    let gang = submit(&mut scheduler, "a", 2);
    scheduler.cycle(0);
    // One of two has ended: the other is neither too little nor waits for another.
    scheduler.task_lost(1, gang, 0);
    scheduler.resize(1, gang, 1, 1).unwrap();
    assert_eq!(scheduler.cycle(1_000_000), []);
    assert_eq!((scheduler.job(gang).unwrap().running(), scheduler.waiting().count()), (1, 0));
    // It may have more again; never fewer than run.
    scheduler.resize(1_000_000, gang, 1, 4).unwrap();
    scheduler.cycle(1_000_000);
    assert_eq!(scheduler.job(gang).unwrap().running(), 4);
    assert!(scheduler.resize(1_000_000, gang, 1, 3).is_err());
    assert!(scheduler.resize(1_000_000, gang, 0, 4).is_err());
    assert_eq!(scheduler.job(gang).unwrap().spec().tasks_max, 4, "an error changes nothing");
    scheduler.finish(gang);
    assert_eq!(gpus(&scheduler, "a"), 0);
}

#[test]
fn parts_of_an_overcommitted_gpu_are_promised_up_to_what_may_be_and_a_whole_one_is_alone() {
    let mut scheduler = scheduler(&[], &[("a", 0.0)]);
    for _ in 0..2 {
        scheduler.add_node(NodeSpec { gpu_milli: 1500, ..node(1) }).unwrap();
    }
    let queue = scheduler.queues().find("a").unwrap();
    let submit = |scheduler: &mut Scheduler, milli| {
        scheduler.submit(JobSpec::new(queue, Request::cpu(0, 0).with_gpus(1, milli))).unwrap()
    };
    let parts: Vec<JobId> = (0..2).map(|_| submit(&mut scheduler, 750)).collect();
    assert_eq!(scheduler.cycle(0).len(), 2);
    let on =
        |scheduler: &Scheduler, job| scheduler.job(job).unwrap().tasks().next().map(|(_, place)| place.node);
    assert_eq!(on(&scheduler, parts[0]), on(&scheduler, parts[1]), "both on one GPU");

    let whole = submit(&mut scheduler, 1000);
    assert_eq!(scheduler.cycle(1).len(), 1);
    assert_ne!(on(&scheduler, whole), on(&scheduler, parts[0]));
    let third = submit(&mut scheduler, 1);
    assert_eq!(scheduler.cycle(2), [], "one GPU is full, the other one is not shared");
    let why = scheduler.why(third).unwrap().to_string();
    assert!(why.starts_with("room: 0 of 2 nodes fit, 2 have too few GPUs free"), "{why}");
    assert_eq!(scheduler.allocated(queue)[Resource::Gpu], 2500, "a whole GPU counts as one");

    scheduler.finish(parts[0]);
    assert_eq!(scheduler.cycle(3).len(), 1);
    let another = submit(&mut scheduler, 1000);
    scheduler.finish(parts[1]);
    assert_eq!(scheduler.cycle(4), [], "somebody has a thousandth of it");
    scheduler.finish(third);
    assert_eq!(scheduler.cycle(5).len(), 1);
    assert!(on(&scheduler, another).is_some());
}

#[test]
fn more_than_may_be_promised_goes_on_and_leaves_no_room() {
    let queue = |scheduler: &Scheduler| scheduler.queues().find("a").unwrap();
    let part = Request::cpu(0, 0).with_gpus(1, 750);
    let mut before = scheduler(&[], &[("a", 0.0)]);
    before.add_node(NodeSpec { gpu_milli: 1500, ..node(1) }).unwrap();
    let placements: Vec<_> = (0..2)
        .map(|now| {
            let job = before.submit(JobSpec::new(queue(&before), part)).unwrap();
            before.cycle(now);
            before.job(job).unwrap().tasks().next().map(|(number, &placement)| (number, placement)).unwrap()
        })
        .collect();

    let mut after = scheduler(&[1], &[("a", 0.0)]);
    let adopted: Vec<JobId> = placements
        .iter()
        .map(|&placement| {
            let job = after.submit(JobSpec::new(queue(&after), part)).unwrap();
            after.adopt(2, job, &[placement], 0).unwrap();
            job
        })
        .collect();
    let waiting = after.submit(JobSpec::new(queue(&after), Request::cpu(0, 0).with_gpus(1, 250))).unwrap();
    assert_eq!(after.cycle(2), []);
    assert_eq!(after.cluster().node(placements[0].1.node).free_gpu_milli(), 0);
    after.finish(adopted[0]);
    let actions = after.cycle(3);
    assert!(matches!(actions[..], [Action::Bind { job, .. }] if job == waiting), "{actions:?}");
    after.finish(adopted[1]);
    after.finish(waiting);
    assert!(after.cluster().nodes().all(|(_, node)| node.is_empty()));
    assert_eq!(after.cluster().usage().gpu_milli, 1000);
}

#[test]
fn a_queue_that_is_added_takes_part_within_what_those_above_it_deserve() {
    let mut scheduler = scheduler(&[4], &[("a", 1.0), ("b", 3.0)]);
    let busy = submit(&mut scheduler, "a", 1);
    let below = |parent: &str, name: &str, gpus| QueueSpec::new(name).below(parent).deserving_gpus(gpus);
    let refused = |scheduler: &mut Scheduler, spec| scheduler.add_queue(&spec).unwrap_err().to_string();
    assert!(refused(&mut scheduler, below("a", "a/x", 1.0)).contains("has work"));
    assert!(refused(&mut scheduler, below("b", "b/x", 3.5)).contains("together deserve 3.5 GPUs"));
    assert!(refused(&mut scheduler, below("c", "c/x", 0.0)).contains("there is no queue \"c\""));
    assert!(refused(&mut scheduler, QueueSpec::new("a")).contains("two queues"));
    scheduler.add_queue(&below("b", "b/x", 2.0)).unwrap();
    scheduler.add_queue(&below("b", "b/y", 1.0)).unwrap();
    assert!(refused(&mut scheduler, below("b", "b/z", 0.5)).contains("together deserve 3.5 GPUs"));
    for _ in 0..4 {
        submit(&mut scheduler, "b/x", 1);
        submit(&mut scheduler, "b/y", 1);
    }
    while !scheduler.cycle(1).is_empty() {}
    assert_eq!(["a", "b/x", "b/y", "b"].map(|queue| gpus(&scheduler, queue)), [1, 2, 1, 3]);
    scheduler.finish(busy);
    while !scheduler.cycle(2).is_empty() {}
    assert_eq!(gpus(&scheduler, "b"), 4);
}

#[test]
fn a_job_that_runs_takes_more_or_less_where_it_is() {
    let mut scheduler = scheduler(&[2], &[("a", 0.0)]);
    let queue = scheduler.queues().find("a").unwrap();
    let part = |gpus, milli, gib: u32| Request::cpu(0, 0).with_gpus(gpus, milli).with_gpu_memory(gib * 1024);
    // On both GPUs, and another one beside it on one of them.
    let pair = scheduler.submit(JobSpec::new(queue, part(2, 400, 40))).unwrap();
    let other = scheduler.submit(JobSpec::new(queue, part(1, 200, 40))).unwrap();
    assert_eq!(scheduler.cycle(0).len(), 2);
    let used = |scheduler: &Scheduler| {
        let allocated = scheduler.allocated(queue);
        (allocated[Resource::Gpu], allocated[Resource::GpuMemory] / 1024)
    };
    let place = |scheduler: &Scheduler| {
        scheduler.job(pair).unwrap().tasks().map(|(task, p)| (task, p.node, p.gpus)).collect::<Vec<_>>()
    };
    let before = place(&scheduler);
    assert_eq!(used(&scheduler), (1000, 120));
    for (milli, gib) in [(801, 40), (400, 41)] {
        assert!(scheduler.change_request(1, pair, milli, gib * 1024).is_err(), "{milli} {gib}");
        assert_eq!((used(&scheduler), place(&scheduler)), ((1000, 120), before.clone()));
        assert_eq!(scheduler.job(pair).unwrap().spec().request, part(2, 400, 40));
    }
    scheduler.change_request(1, pair, 800, 20 * 1024).unwrap();
    assert_eq!((used(&scheduler), place(&scheduler)), ((1800, 80), before.clone()));
    assert_eq!(scheduler.cycle(2), [], "there is nothing to do about it");

    // What it gives back is somebody else's, and what it gave up altogether as well.
    let waits = scheduler.submit(JobSpec::new(queue, part(1, 500, 10))).unwrap();
    assert_eq!(scheduler.cycle(3), []);
    scheduler.change_request(4, pair, 0, 20 * 1024).unwrap();
    assert_eq!(scheduler.cycle(5).len(), 1);
    assert_eq!((scheduler.job(waits).unwrap().running(), place(&scheduler)), (1, before));
    assert!(scheduler.change_request(6, pair, 800, 20 * 1024).is_err(), "it is given away");
    scheduler.finish(waits);
    scheduler.change_request(7, pair, 800, 20 * 1024).unwrap();
    scheduler.finish(pair);
    scheduler.finish(other);
    assert_eq!(used(&scheduler), (0, 0));
}

#[test]
fn memory_is_promised_beyond_a_gpu_as_far_as_each_fits_beside_what_never_leaves_it() {
    let mut cluster = Cluster::new();
    let spec = NodeSpec { gpu_memory_mib: 1000, gpu_memory_leasable_mib: 2000, ..node(1) };
    let node = cluster.add_node(spec.clone()).unwrap();
    let on = |memory| Request::cpu(0, 0).with_gpus(1, 100).with_gpu_memory(memory);
    let place = |request| Placement { request, node, gpus: GpuSet::EMPTY.with(0) };
    let free = |cluster: &Cluster| {
        let gpu = cluster.node(node).gpus()[0];
        (gpu.memory_mib, gpu.largest_mib, gpu.fixed_mib)
    };
    assert_eq!(free(&cluster), (2000, 1000, 1000));
    assert!(sluice_sched::fit(cluster.node(node), &on(1001)).is_err(), "no GPU has as much");
    cluster.allocate(&place(on(300).with_fixed_memory())).unwrap();
    assert_eq!(free(&cluster), (1700, 700, 700), "the others fit beside it");
    assert!(cluster.allocate(&place(on(701))).is_err());
    for expect in [(1000, 700, 0), (300, 300, 0)] {
        cluster.allocate(&place(on(700))).unwrap();
        assert_eq!(free(&cluster), expect);
    }
    assert!(cluster.allocate(&place(on(1).with_fixed_memory())).is_err(), "it could not leave for others");
    let before = cluster.node(node).gpus().to_vec();
    cluster.allocate(&place(on(300))).unwrap();
    assert!(cluster.allocate(&place(on(1))).is_err(), "all that may be promised is");
    cluster.release(&place(on(300))).unwrap();
    assert_eq!(cluster.node(node).gpus(), before);

    let mut less = Cluster::new();
    less.add_node(NodeSpec { gpu_memory_leasable_mib: 1000, ..spec.clone() }).unwrap();
    for _ in 0..2 {
        less.restore(&place(on(700))).unwrap();
    }
    assert_eq!(free(&less), (0, 0, 0), "what was placed stays, and nothing new comes");
    less.release(&place(on(700))).unwrap();
    assert_eq!(free(&less), (300, 300, 300));
    let wrong = NodeSpec { gpu_memory_leasable_mib: 999, ..spec };
    assert!(less.add_node(wrong).unwrap_err().to_string().contains("999 MiB"));
}

#[test]
fn memory_that_work_has_on_an_overcommitted_gpu_is_no_reason_against_another_share() {
    let mut scheduler = scheduler(&[], &[("a", 0.0)]);
    let spec = NodeSpec { gpu_memory_mib: 1000, gpu_memory_leasable_mib: 3000, ..node(1) };
    scheduler.add_node(spec).unwrap();
    let queue = scheduler.queues().find("a").unwrap();
    let part = |milli, memory| Request::cpu(0, 0).with_gpus(1, milli).with_gpu_memory(memory);
    let fixed = scheduler.submit(JobSpec::new(queue, part(200, 400).with_fixed_memory())).unwrap();
    scheduler.cycle(0);
    for _ in 0..2 {
        scheduler.submit(JobSpec::new(queue, part(200, 600))).unwrap();
    }
    assert_eq!(scheduler.cycle(1).len(), 2);
    // Beside the two it would not be placed anew.
    for milli in [300, 100, 0, 200] {
        scheduler.change_request(2, fixed, milli, 400).unwrap();
        assert_eq!(scheduler.allocated(queue)[Resource::Gpu], 400 + u64::from(milli));
    }
    assert!(scheduler.change_request(3, fixed, 200, 401).is_err(), "more memory has no place beside theirs");
    scheduler.change_request(4, fixed, 200, 300).unwrap();
    assert_eq!(scheduler.allocated(queue)[Resource::GpuMemory], 1500);
}
