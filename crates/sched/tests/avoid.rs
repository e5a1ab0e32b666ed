//! Nodes that would not take a job, for a while.

use sluice_sched::queues::{Action, Config, JobId, JobSpec, QueueSpec, QueueTree, Scheduler, Topology};
use sluice_sched::{DomainId, LabelSet, ModelId, NodeId, NodeSpec, Placer, Policy, Request, WHOLE_GPU_MILLI};

/// Nodes of two GPUs in one domain, and jobs that ask for so many whole GPUs of a node for each
/// task.
fn world(nodes: usize) -> (Scheduler, Vec<NodeId>, impl Fn(&mut Scheduler, u8, u32) -> JobId) {
    let tree = QueueTree::new(&[QueueSpec::new("all")]).unwrap();
    let queue = tree.find("all").unwrap();
    let mut scheduler = Scheduler::new(tree, Placer::new(Policy::BestFit), Config::default());
    let spec = NodeSpec {
        cpu_milli: 1000,
        memory_mib: 1000,
        gpus: 2,
        model: ModelId::new(0).unwrap(),
        gpu_milli: WHOLE_GPU_MILLI,
        gpu_memory_mib: 1000,
        gpu_memory_leasable_mib: 1000,
        gpu_units_milli: 0,
        labels: LabelSet::NONE,
        domains: vec![DomainId(0)],
    };
    let nodes = (0..nodes).map(|_| scheduler.add_node(spec.clone()).unwrap()).collect();
    let submit = move |scheduler: &mut Scheduler, gpus, tasks| {
        let request = Request::cpu(0, 0).with_gpus(gpus, 1000);
        let topology = Topology { preferred: (tasks > 1).then_some(0), ..Topology::ANY };
        let spec = JobSpec { tasks_min: tasks, tasks_max: tasks, topology, ..JobSpec::new(queue, request) };
        scheduler.submit(spec).unwrap()
    };
    (scheduler, nodes, submit)
}

/// Where tasks of the job were put by one cycle.
fn bound(scheduler: &mut Scheduler, of: JobId) -> Vec<NodeId> {
    let bind = |action| match action {
        Action::Bind { job, placement, .. } if job == of => Some(placement.node),
        _ => None,
    };
    scheduler.cycle(0).into_iter().filter_map(bind).collect()
}

#[test]
fn a_job_avoids_nodes_until_they_are_forgiven_and_others_do_not() {
    let (mut scheduler, nodes, submit) = world(2);
    let refused = submit(&mut scheduler, 2, 1);
    nodes.iter().for_each(|&node| scheduler.avoid(refused, node));
    assert_eq!(bound(&mut scheduler, refused), []);
    assert!(scheduler.why(refused).unwrap().to_string().contains("take no new work"));
    let other = submit(&mut scheduler, 2, 1);
    let [place] = bound(&mut scheduler, other)[..] else { panic!("one task") };
    let left = nodes.iter().copied().find(|&node| node != place).unwrap();
    scheduler.forgive(place);
    assert_eq!(bound(&mut scheduler, refused), [], "that one is taken");
    scheduler.forgive(left);
    assert_eq!(bound(&mut scheduler, refused), [left]);
}

#[test]
fn a_task_that_was_lost_is_put_elsewhere_and_so_are_gangs() {
    for tasks in [1, 2] {
        let (mut scheduler, nodes, submit) = world(3);
        let job = submit(&mut scheduler, 2, tasks);
        let first = bound(&mut scheduler, job);
        scheduler.avoid(job, first[0]);
        (0..tasks).for_each(|task| scheduler.task_lost(0, job, task));
        let second = bound(&mut scheduler, job);
        assert!(second.len() == tasks as usize && !second.contains(&first[0]), "{first:?}, then {second:?}");
        scheduler.finish(job);
        let all = submit(&mut scheduler, 2, 3);
        assert_eq!(bound(&mut scheduler, all).len(), nodes.len(), "nothing is left of it");
    }
}
