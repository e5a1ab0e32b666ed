//! An independent account of who runs where, kept from what a caller is told alone, and what has to
//! hold for it.

use std::collections::{BTreeMap, BTreeSet};

use sluice_sched::queues::{Action, Amounts, JobId, Resource, Scheduler};
use sluice_sched::{NodeId, Placement};

#[derive(Default)]
pub(crate) struct Watcher {
    pub(crate) running: BTreeMap<(JobId, u32), Placement>,
    /// Jobs that lost tasks with a node; they may run with fewer than their minimum for a while.
    pub(crate) hurt: BTreeSet<JobId>,
    /// What queues had, by name, of all work and of fixed work, when their quotas were last
    /// changed: it stays, but must not grow.
    pub(crate) inherited: BTreeMap<String, (Amounts, Amounts)>,
    /// What was promised of GPUs, of which less may be since: it stays, but must not grow.
    pub(crate) inherited_milli: BTreeMap<(NodeId, usize), u64>,
}

impl Watcher {
    pub(crate) fn follow(&mut self, actions: &[Action]) {
        for action in actions {
            match *action {
                Action::Bind { job, task, placement, .. } => {
                    let before = self.running.insert((job, task), placement);
                    assert!(before.is_none(), "{job} task {task} ran already");
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

    /// The caller lost tasks with their node.
    pub(crate) fn lost(&mut self, tasks: &[(JobId, u32)]) {
        for task in tasks {
            assert!(self.running.remove(task).is_some(), "{task:?} did not run");
            self.hurt.insert(task.0);
        }
    }

    /// The quotas are about to change.
    pub(crate) fn inherit(&mut self, scheduler: &Scheduler) {
        let tree = scheduler.queues();
        let had = |queue| (scheduler.allocated(queue), scheduler.allocated_fixed(queue));
        self.inherited = tree.top_down().map(|queue| (tree.queue(queue).name.clone(), had(queue))).collect();
    }

    /// What runs on the node may be more than may be promised of its GPUs.
    pub(crate) fn inherit_gpus(&mut self, scheduler: &Scheduler, node: NodeId) {
        for gpu in 0..usize::from(scheduler.cluster().node(node).spec().gpus) {
            let on_gpu = self.running.values().filter(|p| p.node == node && p.gpus.contains(gpu));
            let milli = on_gpu.map(|p| u64::from(p.request.gpu_milli)).sum();
            self.inherited_milli.insert((node, gpu), milli);
        }
    }

    pub(crate) fn check(&mut self, scheduler: &Scheduler) {
        self.check_nodes(scheduler);
        self.check_queues(scheduler);
        let mut by_job: BTreeMap<JobId, Vec<&Placement>> = BTreeMap::new();
        for ((job, _), placement) in &self.running {
            by_job.entry(*job).or_default().push(placement);
        }
        self.hurt.retain(|id| by_job.contains_key(id));
        for (id, placements) in by_job {
            let job = scheduler.job(id).expect("what runs is known");
            let (spec, tasks) = (job.spec(), placements.len() as u32);
            assert_eq!(tasks, job.running());
            if tasks >= spec.tasks_min {
                self.hurt.remove(&id);
            }
            assert!(tasks >= spec.tasks_min || self.hurt.contains(&id), "{id} runs {tasks} tasks: {spec:?}");
            assert!(tasks <= spec.tasks_max, "{id} runs {tasks} tasks: {spec:?}");
            if spec.topology.required.is_some() {
                let rack = |p: &&Placement| scheduler.cluster().node(p.node).spec().domains[0];
                let together = placements.iter().all(|p| rack(p) == rack(&placements[0]));
                assert!(together, "{id} is in several racks");
            }
            if spec.topology.apart.is_some() {
                let racks = placements.iter().map(|p| scheduler.cluster().node(p.node).spec().domains[0]);
                let racks: BTreeSet<_> = racks.collect();
                assert_eq!(racks.len(), placements.len(), "{id} has two tasks in a rack");
            }
        }
    }

    fn check_nodes(&mut self, scheduler: &Scheduler) {
        let mut inherited = BTreeMap::new();
        for (id, node) in scheduler.cluster().nodes() {
            let here = || self.running.values().filter(move |placement| placement.node == id);
            assert!(!node.is_removed() || here().count() == 0, "work on a node that is gone");
            let cpu: u64 = here().map(|p| u64::from(p.request.cpu_milli)).sum();
            assert!(cpu <= u64::from(node.spec().cpu_milli));
            for gpu in 0..usize::from(node.spec().gpus) {
                let on_gpu = || here().filter(move |p| p.gpus.contains(gpu));
                let milli: u64 = on_gpu().map(|p| u64::from(p.request.gpu_milli)).sum();
                let memory: u64 = on_gpu().map(|p| u64::from(p.request.gpu_memory_mib)).sum();
                assert!(memory <= u64::from(node.spec().gpu_memory_mib));
                let whole = on_gpu().any(|p| p.request.gpu_milli == 1000);
                assert!(!whole || on_gpu().count() == 1, "a whole GPU is promised to others as well");
                let (may_be, had) = (
                    u64::from(node.spec().gpu_milli),
                    self.inherited_milli.get(&(id, gpu)).copied().unwrap_or(0),
                );
                assert!(
                    milli <= may_be.max(had),
                    "{milli} thousandths of a GPU are promised, {may_be} may be"
                );
                // What has gone does not come back.
                inherited.insert((id, gpu), had.min(milli));
                let free = if whole { 0 } else { may_be.saturating_sub(milli) };
                assert_eq!(u64::from(node.gpus()[gpu].milli), free, "the books differ from the actions");
            }
        }
        self.inherited_milli = inherited;
    }

    fn check_queues(&mut self, scheduler: &Scheduler) {
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
            assert_eq!(fixed, scheduler.allocated_fixed(queue), "the books differ from the actions");
            let name = &tree.queue(queue).name;
            let (had, had_fixed) = self.inherited.get(name).copied().unwrap_or_default();
            for resource in Resource::ALL {
                let limit = tree.queue(queue).limit[resource].max(had[resource]);
                assert!(used[resource] <= limit, "{name} is above its limit of {resource:?}");
            }
            for &resource in tree.shared() {
                let quota = tree.queue(queue).deserved[resource].max(had_fixed[resource]);
                assert!(fixed[resource] <= quota, "fixed work of {name} is above its quota of {resource:?}");
            }
            // What has gone does not come back.
            self.inherited.insert(name.clone(), (had.min(used), had_fixed.min(fixed)));
        }
    }
}
