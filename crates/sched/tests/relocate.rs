//! Tasks that are moved while they run.

use sluice_sched::queues::{Config, JobSpec, QueueSpec, QueueTree, Scheduler};
use sluice_sched::{
    ClusterError, DomainId, LabelSet, ModelId, NodeId, NodeSpec, Placer, Policy, Request, WHOLE_GPU_MILLI,
};

#[test]
fn a_task_is_counted_where_it_is_moved() {
    let tree = QueueTree::new(&[QueueSpec::new("all")]).unwrap();
    let queue = tree.find("all").unwrap();
    let mut scheduler = Scheduler::new(tree, Placer::new(Policy::BestFit), Config::default());
    let spec = NodeSpec {
        cpu_milli: 0,
        memory_mib: 0,
        gpus: 1,
        model: ModelId::new(0).unwrap(),
        gpu_milli: WHOLE_GPU_MILLI,
        gpu_memory_mib: 1000,
        gpu_memory_leasable_mib: 1000,
        gpu_units_milli: 0,
        labels: LabelSet::NONE,
        domains: vec![DomainId(0)],
    };
    let nodes: Vec<NodeId> = (0..3).map(|_| scheduler.add_node(spec.clone()).unwrap()).collect();
    let mut start = |milli| {
        let request = Request::cpu(0, 0).with_gpus(1, milli).with_gpu_memory(100);
        let job = scheduler.submit(JobSpec::new(queue, request)).unwrap();
        scheduler.cycle(0);
        job
    };
    let (first, second) = (start(600), start(600));
    let place = |scheduler: &Scheduler, job| *scheduler.job(job).unwrap().tasks().next().unwrap().1;
    let (here, there) = (place(&scheduler, first), place(&scheduler, second));
    assert_ne!(here.node, there.node);
    let before = scheduler.allocated(queue);

    assert_eq!(scheduler.place_for(first, 0, &[here.node, there.node]), None, "its own node, and a full one");
    let full = scheduler.relocate(1, first, 0, sluice_sched::Placement { node: there.node, ..here });
    assert_eq!(full, Err(ClusterError::OverCommit { node: there.node }));
    assert_eq!(place(&scheduler, first), here);

    let to = scheduler.place_for(first, 0, &nodes).unwrap();
    assert!(![here.node, there.node].contains(&to.node));
    scheduler.relocate(1, first, 0, to).unwrap();
    assert_eq!(place(&scheduler, first), to);
    assert_eq!(scheduler.allocated(queue), before, "its queue uses what it did");
    // What it had is another's.
    let request = Request::cpu(0, 0).with_gpus(1, 1000);
    let whole = scheduler.submit(JobSpec::new(queue, request)).unwrap();
    scheduler.cycle(2);
    assert_eq!(place(&scheduler, whole).node, here.node);

    scheduler.set_schedulable(here.node, false).unwrap();
    scheduler.finish(whole);
    assert_eq!(scheduler.place_for(first, 0, &[here.node]), None, "it takes no new work");
}
