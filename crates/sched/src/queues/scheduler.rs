//! The state that cycles work on, and the few ways in which it changes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use super::amounts::{Amounts, Resource};
use super::books::Accounts;
use super::decay::Millis;
use super::domains::Domains;
use super::job::{Job, JobId, JobSpec, SubmitError, TASKS_MAX};
use super::pending::Pending;
use super::releases::Releases;
use super::slots::SlotIndex;
use super::tree::{QueueId, QueueTree};
use super::why::{Action, Why};
use crate::{Cluster, ClusterError, NodeId, Placement, Placer, Request, WHOLE_GPU_MILLI};

/// How the scheduler behaves; times are in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub consolidate: bool,
    pub reclaim: bool,
    pub preempt: bool,
    /// Use of this long ago counts half; none to forget all use at once.
    pub half_life: Option<Millis>,
    /// How much recent use lowers a queue's part of what others leave
    /// ([`super::Division::usage_percent`]).
    pub usage_percent: u32,
    /// Shares of GPUs are divided in steps of this number of thousandths.
    pub gpu_unit_milli: u64,
    /// A queue's saturation after a reclaim, times this, must stay below what the giving queue had
    /// before: 100 or more. Higher values tolerate more unfairness for fewer evictions. What a
    /// queue deserves it gets in any case.
    pub reclaim_percent: u32,
    /// A job may run this long with fewer tasks than its minimum.
    pub stale_grace: Millis,
    /// A search for work to take looks at no more tasks than this.
    pub search_tasks_max: u32,
    /// A search for a consolidation tries no more nodes than this.
    pub search_nodes_max: u32,
    /// A cycle makes no more searches than this, of both kinds; the others are left for the next.
    pub searches_max: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            consolidate: true,
            reclaim: true,
            preempt: true,
            half_life: None,
            usage_percent: 0,
            gpu_unit_milli: u64::from(WHOLE_GPU_MILLI),
            reclaim_percent: 100,
            stale_grace: 60_000,
            search_tasks_max: 20_000,
            search_nodes_max: 64,
            searches_max: 64,
        }
    }
}

/// Queues, jobs and a cluster. Between cycles the caller says what happened; [`Scheduler::cycle`]
/// says what to do.
#[derive(Debug, Clone)]
pub struct Scheduler {
    pub(super) cluster: Cluster,
    pub(super) placer: Placer,
    pub(super) tree: QueueTree,
    pub(super) config: Config,
    pub(super) books: Accounts,
    /// Ids are counted up here, so the hash need not withstand an attacker.
    pub(super) jobs: FxHashMap<JobId, Job>,
    /// Waiting work of each queue.
    pub(super) pending: Vec<Pending>,
    /// Running jobs of each queue that may be evicted, in the order in which they would be.
    pub(super) evictable: Vec<BTreeSet<VictimOrder>>,
    pub(super) on_node: Vec<Vec<(JobId, u32)>>,
    pub(super) domains: Domains,
    pub(super) slots: SlotIndex,
    pub(super) releases: Releases,
    /// Grows with every change that a search for work to take depends on.
    pub(super) version: u64,
    /// Grows with every change from outside: of jobs, nodes, quotas, and of shares by use.
    pub(super) changes: u64,
    /// Jobs that nodes would not take, see [`Scheduler::avoid`].
    pub(super) avoided: BTreeMap<NodeId, Vec<JobId>>,
    /// Jobs with fewer tasks than their minimum, the longest such first.
    pub(super) stale: BTreeSet<(Millis, JobId)>,
    pub(super) actions: Vec<Action>,
    pub(super) searches_left: u32,
    pub(super) deferred: bool,
    pub(super) now: Millis,
    next_job: u64,
}

/// Running work that could not be taken over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdoptError {
    #[error("{job} is not known; submit it first")]
    Job { job: JobId },
    #[error("{job} has no task {task} that waits and asks for what the placement holds")]
    Task { job: JobId, task: u32 },
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

/// Lowest priority first, then the one that lost least: the newest.
pub(super) type VictimOrder = (i32, Reverse<Millis>, Reverse<JobId>);

impl Scheduler {
    /// A scheduler over a cluster on which nothing runs yet.
    pub fn new(tree: QueueTree, placer: Placer, config: Config) -> Scheduler {
        let queues = tree.len();
        Scheduler {
            cluster: Cluster::new(),
            placer,
            books: Accounts::new(&tree),
            tree,
            config,
            jobs: FxHashMap::default(),
            pending: std::iter::repeat_with(Pending::default).take(queues).collect(),
            evictable: vec![BTreeSet::new(); queues],
            on_node: Vec::new(),
            domains: Domains::default(),
            slots: SlotIndex::default(),
            releases: Releases::default(),
            version: 0,
            changes: 0,
            avoided: BTreeMap::new(),
            stale: BTreeSet::new(),
            actions: Vec::new(),
            searches_left: 0,
            deferred: false,
            now: 0,
            next_job: 0,
        }
    }

    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub fn queues(&self) -> &QueueTree {
        &self.tree
    }

    pub fn job(&self, job: JobId) -> Option<&Job> {
        self.jobs.get(&job)
    }

    /// What the queue and those below it use.
    pub fn allocated(&self, queue: QueueId) -> Amounts {
        self.books.account(queue).allocated
    }

    /// The part of that which may not be evicted.
    pub fn allocated_fixed(&self, queue: QueueId) -> Amounts {
        self.books.account(queue).fixed
    }

    /// The queue's fair share as of the last cycle; resources that are not shared have no bound.
    pub fn fair_share(&self, queue: QueueId) -> Amounts {
        self.books.account(queue).share
    }

    /// Puts a job at the end of its queue's line.
    pub fn submit(&mut self, spec: JobSpec) -> Result<JobId, SubmitError> {
        self.check(&spec)?;
        let id = JobId(self.next_job);
        self.next_job += 1;
        let job = Job::new(id, spec);
        self.books.demand(spec.queue, job.amounts(spec.tasks_max), spec.preemptible, true);
        self.jobs.insert(id, job);
        self.line_up(id);
        self.changed_from_outside();
        Ok(id)
    }

    /// The job ended by itself, or its owner cancelled it: what it used is free. Unknown jobs are
    /// no error, since a job may end while its end is on the way.
    pub fn finish(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        let numbers: Vec<u32> = job.tasks().map(|(number, _)| number).collect();
        for number in numbers {
            self.stop(id, number);
        }
        self.leave_line(id);
        let Some(job) = self.jobs.remove(&id) else { return };
        let JobSpec { queue, tasks_max, preemptible, .. } = job.spec;
        self.books.demand(queue, job.amounts(tasks_max), preemptible, false);
        self.stale.remove(&(job.stale_since.unwrap_or_default(), id));
        for node in &job.avoids {
            if let Some(jobs) = self.avoided.get_mut(node) {
                jobs.retain(|&other| other != id);
            }
        }
        self.changed_from_outside();
    }

    /// One task of the job was lost, or could not be started where it was bound: it waits again, at
    /// its old place in line. A job left with fewer tasks than its minimum is stale, and ends as a
    /// whole unless it gets them back in time.
    pub fn task_lost(&mut self, now: Millis, id: JobId, number: u32) {
        if self.stop(id, number).is_some() {
            self.now = self.now.max(now);
            self.check_stale(id);
            self.line_up(id);
            self.changed_from_outside();
        }
    }

    /// The job wants other numbers of tasks from now on: some have ended for good, or it is not to
    /// have more than it has. Tasks that run stay, so the caller stops those beyond `tasks_max`
    /// before ([`Scheduler::task_lost`]). Nothing is changed by an error.
    pub fn resize(
        &mut self,
        now: Millis,
        id: JobId,
        tasks_min: u32,
        tasks_max: u32,
    ) -> Result<(), SubmitError> {
        let Some(job) = self.jobs.get(&id) else { return Ok(()) };
        let (before, spec) = (job.spec, JobSpec { tasks_min, tasks_max, ..job.spec });
        // What it asks for was checked, and may have become no share since.
        self.check_tasks(&spec)?;
        if job.running > tasks_max {
            return Err(SubmitError::Tasks { min: job.running, max: tasks_max });
        }
        if spec == before {
            return Ok(());
        }
        self.now = self.now.max(now);
        self.leave_line(id);
        let amounts = |spec: &JobSpec| Amounts::of(&spec.request, spec.tasks_max);
        self.books.demand(spec.queue, amounts(&before), spec.preemptible, false);
        self.books.demand(spec.queue, amounts(&spec), spec.preemptible, true);
        if let Some(job) = self.jobs.get_mut(&id) {
            job.spec = spec;
            job.tasks.resize(job.tasks.len().max(tasks_max as usize), None);
        }
        self.check_stale(id);
        self.line_up(id);
        self.changed_from_outside();
        Ok(())
    }

    /// Each task of the job takes another share, which may be none, and amount of memory of its
    /// GPUs from now on. Tasks that run stay where they are, so there has to be room beside what
    /// the scheduler has given to others there; nothing is changed by an error.
    pub fn change_request(
        &mut self,
        now: Millis,
        id: JobId,
        gpu_milli: u16,
        gpu_memory_mib: u32,
    ) -> Result<(), ClusterError> {
        let Some(job) = self.jobs.get(&id) else { return Ok(()) };
        let (before, tasks) = (job.spec, job.tasks().map(|(n, p)| (n, *p)).collect::<Vec<_>>());
        let request =
            before.request.with_gpus(before.request.gpus, gpu_milli).with_gpu_memory(gpu_memory_mib);
        // Of the fastest GPU that it accepts, as before; one that has nothing for a while will have
        // as many again.
        let (had_milli, had_units) = (before.request.gpu_milli, before.request.gpu_units_milli);
        let units = match (had_milli, gpu_milli) {
            (0, _) | (_, 0) => had_units.into(),
            _ => u64::from(had_units) * u64::from(gpu_milli) / u64::from(had_milli),
        };
        let gpu_units_milli = u32::try_from(units).unwrap_or(u32::MAX);
        let request = Request { gpu_units_milli, memory_by_share: false, ..request };
        if request == before.request {
            return Ok(());
        }
        self.now = self.now.max(now);
        self.leave_line(id);
        self.set_request(id, request);
        let result = self.reshape_tasks(id, &tasks, request);
        if result.is_err() {
            self.set_request(id, before.request);
        }
        self.line_up(id);
        self.changed_from_outside();
        result
    }

    /// Puts each of these tasks, which run, back where it is with another request; all as they were
    /// on an error.
    fn reshape_tasks(
        &mut self,
        id: JobId,
        tasks: &[(u32, Placement)],
        request: Request,
    ) -> Result<(), ClusterError> {
        for &(number, _) in tasks {
            self.take_off(id, number);
        }
        for (done, &(number, before)) in tasks.iter().enumerate() {
            let request = request.on(self.cluster.node(before.node).spec());
            let after = Placement { request, ..before };
            let Err(error) = self.put_changed_on(id, number, after, &before.request) else { continue };
            for &(number, _) in &tasks[..done] {
                self.take_off(id, number);
            }
            for &(number, before) in tasks {
                let restored = self.put_back_on(id, number, before);
                debug_assert_eq!(restored, Ok(()), "it was there a moment ago");
            }
            return Err(error);
        }
        tasks.iter().for_each(|(_, placement)| self.room_came_to_be(placement.node));
        Ok(())
    }

    fn set_request(&mut self, id: JobId, request: Request) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let before = std::mem::replace(&mut job.spec.request, request);
        let JobSpec { queue, tasks_max, preemptible, .. } = job.spec;
        self.books.demand(queue, Amounts::of(&before, tasks_max), preemptible, false);
        self.books.demand(queue, Amounts::of(&request, tasks_max), preemptible, true);
    }

    /// Counts tasks as running that already do, since `started`: after a restart of the caller,
    /// before the first cycle. The job has been submitted, and these tasks of it do not run yet;
    /// nothing is changed by an error.
    pub fn adopt(
        &mut self,
        now: Millis,
        id: JobId,
        tasks: &[(u32, Placement)],
        started: Millis,
    ) -> Result<(), AdoptError> {
        let job = self.jobs.get_mut(&id).ok_or(AdoptError::Job { job: id })?;
        let distinct: BTreeSet<u32> = tasks.iter().map(|&(number, _)| number).collect();
        for &(task, placement) in tasks {
            let free =
                job.tasks.get(task as usize).is_some_and(Option::is_none) && distinct.len() == tasks.len();
            let is_known = placement.node.index() < self.cluster.nodes().len();
            let asked = |node| {
                let asked = job.spec.request.on(self.cluster.node(node).spec());
                // What it was given as its share of the memory stays, also where that would be
                // another part now.
                let memory = if asked.memory_by_share { placement.request } else { asked }.gpu_memory_mib;
                Request { gpu_memory_mib: memory, ..asked }
            };
            if !free || is_known && placement.request != asked(placement.node) {
                return Err(AdoptError::Task { job: id, task });
            }
        }
        if job.running == 0 {
            job.started = started;
        }
        self.now = self.now.max(now);
        self.leave_line(id);
        let mut result = Ok(());
        for (done, &(task, placement)) in tasks.iter().enumerate() {
            if let Err(error) = self.put_back_on(id, task, placement) {
                tasks[..done].iter().for_each(|&(task, _)| {
                    self.take_off(id, task);
                });
                result = Err(error.into());
                break;
            }
        }
        self.check_stale(id);
        self.line_up(id);
        self.changed_from_outside();
        result
    }

    /// Begins to count use now, with what queues have used from one moment until another before, as
    /// far as the caller knows. Without a half-life nothing of that counts.
    pub fn recall_use(
        &mut self,
        now: Millis,
        past: impl IntoIterator<Item = (QueueId, Amounts, (Millis, Millis))>,
    ) {
        let Some(half_life) = self.config.half_life else { return };
        self.now = self.now.max(now);
        self.books.begin_history(self.now, half_life);
        for (queue, amounts, times) in past {
            self.books.recall(&self.tree, queue, amounts, half_life, times);
        }
    }

    /// Takes over what queues of the same names have used of late as another scheduler has it,
    /// until its last cycle; after [`Scheduler::recall_use`], which says what the time is.
    pub fn keep_use_of(&mut self, other: &Scheduler) {
        for queue in other.tree.top_down() {
            if let Some(same) = self.tree.find(&other.tree.queue(queue).name) {
                self.books.keep_history(same, other.books.account(queue), self.now);
            }
        }
        self.books.mark_stale();
    }

    /// Why the job waits, as of the last cycle; none if it does not wait.
    pub fn why(&self, id: JobId) -> Option<&Why> {
        let job = self.jobs.get(&id)?;
        let waiting = self.pending[job.spec.queue.index()].of_class(job.waiting.as_ref()?)?;
        Some(&waiting.why)
    }

    /// Whether the last cycle left searches for the next, though it may have had no actions.
    pub fn has_deferred(&self) -> bool {
        self.deferred
    }

    /// Jobs that wait, queue by queue.
    pub fn waiting(&self) -> impl Iterator<Item = JobId> + '_ {
        self.pending
            .iter()
            .flat_map(|pending| pending.classes().flat_map(|(_, waiting)| waiting.jobs.iter().copied()))
    }

    fn check(&self, spec: &JobSpec) -> Result<(), SubmitError> {
        spec.request.check()?;
        self.check_tasks(spec)
    }

    fn check_tasks(&self, spec: &JobSpec) -> Result<(), SubmitError> {
        let JobSpec { tasks_min: min, tasks_max: max, topology, .. } = *spec;
        if min == 0 || min > max || max > TASKS_MAX {
            return Err(SubmitError::Tasks { min, max });
        }
        let queue = self.tree.queue(spec.queue);
        if !queue.children.is_empty() {
            return Err(SubmitError::NotALeaf { queue: queue.name.clone() });
        }
        let levels = self.domains.levels();
        for level in [topology.required, topology.preferred, topology.apart].into_iter().flatten() {
            if usize::from(level) >= levels {
                return Err(SubmitError::Level { level, levels });
            }
        }
        let together = topology.preferred.max(topology.required);
        if let (Some(apart), Some(together)) = (topology.apart, together)
            && apart <= together
        {
            return Err(SubmitError::Apart { apart, together });
        }
        match (topology.preferred, topology.required) {
            (Some(preferred), Some(required)) if preferred < required => {
                Err(SubmitError::Preferred { preferred, required })
            }
            _ => Ok(()),
        }
    }

    /// Lets the job wait for what it needs next, if anything.
    pub(super) fn line_up(&mut self, id: JobId) {
        self.leave_line(id);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.waiting = job.class();
        if let Some(class) = job.waiting {
            self.pending[job.spec.queue.index()].insert(class, id);
        }
    }

    pub(super) fn leave_line(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if let Some(class) = job.waiting.take() {
            self.pending[job.spec.queue.index()].remove(&class, id);
        }
    }

    /// Begins or ends the time that the job may be stale.
    pub(super) fn check_stale(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let stale = job.running > 0 && job.running < job.spec.tasks_min;
        match (job.stale_since, stale) {
            (None, true) => {
                job.stale_since = Some(self.now);
                self.stale.insert((self.now, id));
            }
            (Some(since), false) => {
                job.stale_since = None;
                self.stale.remove(&(since, id));
            }
            _ => {}
        }
    }

    /// Stops a task for good: what it used is free.
    pub(super) fn stop(&mut self, id: JobId, number: u32) -> Option<Placement> {
        let placement = self.take_off(id, number)?;
        self.room_came_to_be(placement.node);
        Some(placement)
    }

    pub(super) fn room_came_to_be(&mut self, node: NodeId) {
        self.releases.push(node);
        self.version += 1;
        self.books.mark_stale();
    }

    /// Jobs that gave up have another chance.
    pub(super) fn changed_from_outside(&mut self) {
        self.version += 1;
        self.changes += 1;
    }

    /// Takes a task off its node and out of the accounts; [`Scheduler::put_back_on`] is the exact
    /// inverse. Searches try things out with these two, so neither touches who waits.
    pub(super) fn take_off(&mut self, id: JobId, number: u32) -> Option<Placement> {
        let job = self.jobs.get_mut(&id)?;
        let placement = job.tasks.get_mut(number as usize)?.take()?;
        job.running -= 1;
        let (spec, order, gone) = (job.spec, victim_order(job), job.running == 0);
        let used = Amounts::of(&placement.request, 1);
        self.books.release(&self.tree, spec.queue, used, spec.preemptible);
        if spec.preemptible && gone {
            self.evictable[spec.queue.index()].remove(&order);
        }
        let released = self.cluster.release(&placement);
        debug_assert_eq!(released, Ok(()), "what runs was allocated");
        self.on_node[placement.node.index()].retain(|&task| task != (id, number));
        Some(placement)
    }

    /// Puts a task that does not run on a node; refused if it does not fit there.
    pub(super) fn put_on(
        &mut self,
        id: JobId,
        number: u32,
        placement: Placement,
    ) -> Result<(), ClusterError> {
        if self.jobs.contains_key(&id) {
            self.cluster.allocate(&placement)?;
            self.enter(id, number, placement);
        }
        Ok(())
    }

    /// Puts a task back on the node where it ran before, also if less may be promised there since.
    pub(super) fn put_back_on(
        &mut self,
        id: JobId,
        number: u32,
        placement: Placement,
    ) -> Result<(), ClusterError> {
        if self.jobs.contains_key(&id) {
            self.cluster.restore(&placement)?;
            self.enter(id, number, placement);
        }
        Ok(())
    }

    /// Puts a task where it ran with the request `before`: only what grows has to be free there.
    fn put_changed_on(
        &mut self,
        id: JobId,
        number: u32,
        placement: Placement,
        before: &Request,
    ) -> Result<(), ClusterError> {
        if self.jobs.contains_key(&id) {
            self.cluster.reallocate(&placement, before)?;
            self.enter(id, number, placement);
        }
        Ok(())
    }

    fn enter(&mut self, id: JobId, number: u32, placement: Placement) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.tasks[number as usize] = Some(placement);
        job.running += 1;
        let (spec, order) = (job.spec, victim_order(job));
        let used = Amounts::of(&placement.request, 1);
        self.books.allocate(&self.tree, spec.queue, used, spec.preemptible);
        if spec.preemptible {
            self.evictable[spec.queue.index()].insert(order);
        }
        self.on_node[placement.node.index()].push((id, number));
    }

    /// What there is to divide: all that nodes have which take work, but for fenced GPUs.
    pub(super) fn capacity(&self) -> Amounts {
        let mut capacity = Amounts::ZERO;
        for (_, node) in self.cluster.nodes().filter(|(_, node)| node.is_schedulable()) {
            let spec = node.spec();
            let gpus = node.usable_gpus() as u64;
            let promised = gpus * u64::from(spec.gpu_milli);
            capacity[Resource::Gpu] += promised;
            capacity[Resource::GpuUnits] +=
                promised * u64::from(spec.gpu_units_milli) / u64::from(WHOLE_GPU_MILLI);
            capacity[Resource::GpuMemory] += gpus * u64::from(spec.gpu_memory_leasable_mib);
            capacity[Resource::Cpu] += u64::from(spec.cpu_milli);
            capacity[Resource::Memory] += u64::from(spec.memory_mib);
        }
        capacity
    }
}

pub(super) fn victim_order(job: &Job) -> VictimOrder {
    (job.spec.priority, Reverse(job.started), Reverse(job.id))
}
