//! The event loop.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use sluice_sched::queues::{
    Action, Config, Evicted, JobId, JobSpec, Mobility, Scheduler, SubmitError, Topology,
};
use sluice_sched::{ClusterError, TrainingError};

use super::estimates::{EstimateReport, Estimates};
use super::ledger::{Ledger, Totals};
use super::{Eviction, PolicyReplay, ReplayPlan};
use crate::arrivals::node_order;
use crate::policy::{PolicyName, Prepared};
use crate::site::Site;
use crate::stranded::Mix;
use crate::trace::{Job, Jobs, Queues, Together};

/// A replay that cannot be done.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("the scheduler refuses job {name:?}: {refusal}")]
    Job { name: String, refusal: SubmitError },
    #[error("the scheduler refuses the cluster: {0}")]
    Cluster(#[from] ClusterError),
    #[error("the policy sluice cannot be trained: {0}")]
    Training(#[from] TrainingError),
    #[error("job {name:?} has no arrival_s and duration_s")]
    NoTiming { name: String },
    #[error(
        "after {evictions} evictions the replay of {policy} makes no headway at {at_s} s: jobs are evicted again and again \
         before they end; let them resume (--eviction resume), or give queues a minimum run time"
    )]
    Endless { policy: PolicyName, evictions: u64, at_s: u64 },
}

/// More evictions for each job, on the average, are taken for a replay that does not end.
const EVICTIONS_PER_JOB_MAX: u64 = 100;

/// A job and how far it is.
pub(super) struct Session<'a> {
    pub(super) job: &'a Job,
    spec: JobSpec,
    pub(super) id: Option<JobId>,
    running: u32,
    /// Since when all members run.
    pub(super) since_ms: Option<u64>,
    pub(super) done_ms: u64,
    /// Outdates ends that were foreseen before an eviction.
    epoch: u32,
    pub(super) first_start_ms: Option<u64>,
    pub(super) interrupted: u32,
    pub(super) finished: bool,
}

/// What happens next at some moment; ends come before arrivals at the same moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    End { session: u32, epoch: u32 },
    Arrival { session: u32 },
}

pub(super) struct Engine<'a> {
    plan: &'a ReplayPlan,
    pub(super) scheduler: Scheduler,
    pub(super) sessions: Vec<Session<'a>>,
    by_id: HashMap<JobId, u32>,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    pub(super) ledger: Ledger,
    mix: Mix,
    /// Jobs that have started later than `plan.late` allows.
    late: usize,
    /// Estimates that are made on the way, where they are wanted.
    pub(super) estimates: Option<Estimates>,
}

/// One policy from the first arrival to the last end, or until nothing more can happen.
pub(super) fn run(
    site: &Site,
    jobs: &Jobs,
    queues: &Queues,
    plan: &ReplayPlan,
    prepared: &Prepared,
) -> Result<PolicyReplay, ReplayError> {
    let mut engine = Engine::new(site, jobs, queues, plan, prepared)?;
    engine.go(prepared.name)?;
    Ok(engine.report(prepared.name))
}

/// Replays one policy, with estimates of starts and durations beside what happens.
pub(super) fn run_with_estimates(
    site: &Site,
    jobs: &Jobs,
    queues: &Queues,
    plan: &ReplayPlan,
    prepared: &Prepared,
) -> Result<(PolicyReplay, EstimateReport), ReplayError> {
    let mut engine = Engine::new(site, jobs, queues, plan, prepared)?;
    engine.estimates = Some(Estimates::default());
    engine.go(prepared.name)?;
    let estimates = engine.estimates.take().unwrap_or_default().report();
    Ok((engine.report(prepared.name), estimates))
}

impl<'a> Engine<'a> {
    fn new(
        site: &Site,
        jobs: &'a Jobs,
        queues: &Queues,
        plan: &'a ReplayPlan,
        prepared: &Prepared,
    ) -> Result<Engine<'a>, ReplayError> {
        let requests: Vec<_> = jobs.jobs.iter().map(|job| site.request(job)).collect();
        let config = Config { consolidate: plan.migrate, ..Config::default() };
        let mut scheduler = Scheduler::new(queues.tree().clone(), prepared.placer(plan.seed), config);
        for index in node_order(site.nodes(), plan.seed) {
            scheduler.add_node(site.specs()[index].clone())?;
        }
        let mut events = BinaryHeap::new();
        let mut sessions = Vec::new();
        for (job, request) in jobs.jobs.iter().zip(&requests) {
            let timing = job.timing.ok_or_else(|| ReplayError::NoTiming { name: job.name.clone() })?;
            let queue = queues.tree().find(Queues::name_for(job));
            // Checked when the lists were read.
            let Some(queue) = queue else { continue };
            let spec = JobSpec {
                tasks_min: job.members,
                tasks_max: job.members,
                priority: job.priority,
                preemptible: job.preemptible,
                mobility: if moves_live(job, plan) { Mobility::Live } else { Mobility::Restarts },
                topology: topology(job),
                ..JobSpec::new(queue, *request)
            };
            events.push(Reverse((timing.arrival_ms, Event::Arrival { session: sessions.len() as u32 })));
            sessions.push(Session {
                job,
                spec,
                id: None,
                running: 0,
                since_ms: None,
                done_ms: 0,
                epoch: 0,
                first_start_ms: None,
                interrupted: 0,
                finished: false,
            });
        }
        let ledger = Ledger::new(queues.tree(), site.capacity_milli());
        let mix = Mix::of(requests.iter().zip(&jobs.jobs).map(|(request, job)| (request, job.members)));
        Ok(Engine {
            plan,
            scheduler,
            sessions,
            by_id: HashMap::new(),
            events,
            ledger,
            mix,
            late: 0,
            estimates: None,
        })
    }

    fn go(&mut self, policy: PolicyName) -> Result<(), ReplayError> {
        let evictions_max = EVICTIONS_PER_JOB_MAX * self.sessions.len() as u64;
        let mut cycle_at = None;
        loop {
            if self.plan.late.is_some_and(|late| self.late > late.jobs_max) {
                return Ok(());
            }
            let next = self.events.peek().map(|Reverse((at, _))| *at);
            match (next, cycle_at) {
                (None, None) => return Ok(()),
                // What happens at the moment of a cycle is known to it.
                (Some(at), due) if due.is_none_or(|due| at <= due) => {
                    self.ledger.pass(&self.scheduler, at);
                    self.take_events(at)?;
                    cycle_at = due.or(Some(at.div_ceil(self.plan.cycle_ms) * self.plan.cycle_ms));
                }
                (_, Some(due)) => {
                    self.ledger.pass(&self.scheduler, due);
                    let acted = self.cycle(due);
                    cycle_at = acted.then_some(due + self.plan.cycle_ms);
                    if self.ledger.totals.evictions() > evictions_max {
                        let evictions = self.ledger.totals.evictions();
                        return Err(ReplayError::Endless { policy, evictions, at_s: due / 1000 });
                    }
                }
                (Some(_), None) => {}
            }
        }
    }

    fn take_events(&mut self, now: u64) -> Result<(), ReplayError> {
        while let Some(Reverse((_, event))) =
            self.events.peek().copied().filter(|Reverse((at, _))| *at == now)
        {
            self.events.pop();
            match event {
                Event::Arrival { session } => self.arrive(session)?,
                Event::End { session, epoch } => self.end(session, epoch, now),
            }
        }
        Ok(())
    }

    fn arrive(&mut self, index: u32) -> Result<(), ReplayError> {
        let session = &mut self.sessions[index as usize];
        let submitted = self.scheduler.submit(session.spec);
        let id = submitted.map_err(|refusal| ReplayError::Job { name: session.job.name.clone(), refusal })?;
        session.id = Some(id);
        self.by_id.insert(id, index);
        if let Some(estimates) = &mut self.estimates {
            estimates.arrived(index, self.sessions[index as usize].job);
        }
        Ok(())
    }

    fn end(&mut self, index: u32, epoch: u32, now: u64) {
        let session = &mut self.sessions[index as usize];
        if session.epoch != epoch {
            return;
        }
        let Some(id) = session.id.take() else { return };
        session.since_ms = None;
        session.running = 0;
        session.finished = true;
        self.by_id.remove(&id);
        if let Some(estimates) = &mut self.estimates {
            estimates.ended(index, session.job);
        }
        self.scheduler.finish(id);
        self.ledger.ended(now);
    }

    /// One decision; whether it changed anything.
    fn cycle(&mut self, now: u64) -> bool {
        let actions = self.scheduler.cycle(now);
        for action in &actions {
            match *action {
                Action::Bind { job, .. } => self.bound(job, now),
                Action::Evict { job, because, .. } => self.evicted(job, because, now),
                Action::Move { .. } => self.ledger.totals.moves += 1,
            }
        }
        self.ledger.totals.cycles += 1;
        self.ledger.sample(&self.scheduler, &self.mix, now);
        if let Some(estimates) = &mut self.estimates {
            estimates.waiting(&self.scheduler, &self.sessions, &self.by_id, now);
        }
        !actions.is_empty()
    }

    fn bound(&mut self, id: JobId, now: u64) {
        let Some(&index) = self.by_id.get(&id) else { return };
        let session = &mut self.sessions[index as usize];
        session.running += 1;
        if session.running < session.job.members {
            return;
        }
        let Some(timing) = session.job.timing else { return };
        session.since_ms = Some(now);
        let first = session.first_start_ms.is_none();
        session.first_start_ms.get_or_insert(now);
        if let Some(estimates) = self.estimates.as_mut().filter(|_| first) {
            estimates.started(index, now);
        }
        let waited_ms = now.saturating_sub(timing.arrival_ms);
        self.late += usize::from(first && self.plan.late.is_some_and(|late| waited_ms > late.wait_ms));
        session.epoch += 1;
        let left_ms = timing.duration_ms.saturating_sub(session.done_ms);
        self.events.push(Reverse((now + left_ms, Event::End { session: index, epoch: session.epoch })));
    }

    fn evicted(&mut self, id: JobId, because: Evicted, now: u64) {
        let Some(&index) = self.by_id.get(&id) else { return };
        let session = &mut self.sessions[index as usize];
        session.running = session.running.saturating_sub(1);
        // The first member that goes interrupts the job; the others only free their places.
        let Some(since) = session.since_ms.take() else { return };
        session.epoch += 1;
        session.interrupted += 1;
        session.done_ms += now - since;
        if self.plan.eviction == Eviction::Restart {
            let lost_ms = std::mem::take(&mut session.done_ms);
            self.ledger.totals.lost_milli_ms += u128::from(lost_ms) * u128::from(session.job.gpu_milli());
        }
        let Totals { reclaimed, preempted, stale, .. } = &mut self.ledger.totals;
        match because {
            Evicted::Reclaimed { .. } => *reclaimed += 1,
            Evicted::Preempted { .. } => *preempted += 1,
            Evicted::Stale { .. } => *stale += 1,
            Evicted::Drained => {} // No node leaves during a replay.
        }
    }
}

/// Whether a job continues where it is moved to, as servers move the leases of one GPU.
fn moves_live(job: &Job, plan: &ReplayPlan) -> bool {
    plan.migrate && job.members == 1 && job.gpus == 1
}

fn topology(job: &Job) -> Topology {
    // The levels of a site: zones, then racks.
    const ZONE: u8 = 0;
    const RACK: u8 = 1;
    match job.together {
        None => Topology::ANY,
        Some(Together::PreferRack) => Topology { preferred: Some(RACK), ..Topology::ANY },
        Some(Together::PreferZone) => Topology { preferred: Some(ZONE), ..Topology::ANY },
        Some(Together::RequireRack) => Topology { required: Some(RACK), ..Topology::ANY },
        Some(Together::RequireZone) => Topology { required: Some(ZONE), ..Topology::ANY },
    }
}
