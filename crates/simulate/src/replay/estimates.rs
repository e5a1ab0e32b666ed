//! Estimates during a replay: when a waiting job starts, and how long a job runs. Each comes from
//! the jobs that have ended before it, and is compared with what happens.

use std::collections::HashMap;

use serde::Serialize;
use sluice_iq::duration::{Durations, Errors};
use sluice_sched::queues::{JobId, Scheduler};

use super::engine::Session;
use crate::trace::{Job, Queues};

/// Starts that are estimated: each takes a copy of the scheduler.
const STARTS_MAX: usize = 1000;
/// Draws of the durations of all other jobs that an estimate is the median of.
const DRAWS: u64 = 3;
/// Ends of jobs that an estimate of a start looks at.
const ENDS_MAX: u32 = 5000;

/// A group of jobs that are alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Group {
    /// Jobs with one request in one queue, as all runs of one program are.
    Program(String),
    Queue(String),
    All,
}

/// How the durations of running and waiting jobs are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// Drawn from the earlier jobs that ran longer than this one has so far.
    Drawn,
    /// The mean of earlier jobs: what estimates are compared with.
    Mean,
}

const METHODS: [Method; 2] = [Method::Drawn, Method::Mean];

/// How far off estimates were, beside those by mean durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EstimateReport {
    pub starts: Errors,
    pub starts_by_mean: Errors,
    pub durations: Errors,
    pub durations_by_mean: Errors,
}

#[derive(Default)]
pub(super) struct Estimates {
    durations: Durations<Group>,
    /// Jobs that have arrived since the last decision.
    arrived: Vec<u32>,
    /// Of waiting jobs, when each method expects them to start.
    starts: HashMap<u32, [Option<u64>; 2]>,
    /// Of jobs that have not ended, how long each method expects them to run.
    lengths: HashMap<u32, [Option<u64>; 2]>,
    start_errors: [Vec<u64>; 2],
    length_errors: [Vec<u64>; 2],
    estimated: usize,
}

impl Estimates {
    pub(super) fn arrived(&mut self, index: u32, job: &Job) {
        self.arrived.push(index);
        let groups = groups(job);
        self.lengths.insert(index, [self.durations.estimate_ms(&groups, 0), self.durations.mean_ms(&groups)]);
    }

    /// Estimates the starts of those that have just arrived and were not placed at once.
    pub(super) fn waiting(
        &mut self,
        scheduler: &Scheduler,
        sessions: &[Session<'_>],
        by_id: &HashMap<JobId, u32>,
        now: u64,
    ) {
        for index in std::mem::take(&mut self.arrived) {
            let session = &sessions[index as usize];
            let Some(id) = session.id.filter(|_| session.first_start_ms.is_none()) else { continue };
            if self.estimated == STARTS_MAX {
                return;
            }
            self.estimated += 1;
            let expected = METHODS.map(|method| {
                let forecast = |draw| {
                    let runtime = |id| self.runtime_ms(method, draw, *by_id.get(&id)?, sessions, now);
                    scheduler.clone().forecast(now, id, runtime, ENDS_MAX).start.map(|(at_ms, _)| at_ms)
                };
                let draws = if method == Method::Drawn { DRAWS } else { 1 };
                let mut starts: Vec<u64> = (0..draws).filter_map(forecast).collect();
                starts.sort_unstable();
                starts.get(starts.len() / 2).copied()
            });
            self.starts.insert(index, expected);
        }
    }

    /// How long a job runs from its present start.
    fn runtime_ms(
        &self,
        method: Method,
        draw: u64,
        index: u32,
        sessions: &[Session<'_>],
        now: u64,
    ) -> Option<u64> {
        let session = &sessions[index as usize];
        let groups = groups(session.job);
        // What it had done before an eviction need not be done again.
        let elapsed_ms = session.done_ms + session.since_ms.map_or(0, |since| now - since);
        let whole = match method {
            Method::Drawn => self.durations.drawn_ms(&groups, elapsed_ms, (draw << 32) | u64::from(index)),
            Method::Mean => self.durations.mean_ms(&groups),
        };
        whole.map(|whole| whole.saturating_sub(session.done_ms))
    }

    pub(super) fn started(&mut self, index: u32, now: u64) {
        // Both methods are compared on the same jobs.
        if let Some([Some(ours), Some(mean)]) = self.starts.remove(&index) {
            for (errors, expected) in self.start_errors.iter_mut().zip([ours, mean]) {
                errors.push(now.abs_diff(expected));
            }
        }
    }

    pub(super) fn ended(&mut self, index: u32, job: &Job) {
        let Some(timing) = job.timing else { return };
        if let Some([Some(ours), Some(mean)]) = self.lengths.remove(&index) {
            for (errors, expected) in self.length_errors.iter_mut().zip([ours, mean]) {
                errors.push(timing.duration_ms.abs_diff(expected));
            }
        }
        self.durations.add(&groups(job), timing.duration_ms);
    }

    pub(super) fn report(self) -> EstimateReport {
        let [starts, starts_by_mean] = self.start_errors.map(Errors::of);
        let [durations, durations_by_mean] = self.length_errors.map(Errors::of);
        EstimateReport { starts, starts_by_mean, durations, durations_by_mean }
    }
}

/// From the narrowest to the widest.
fn groups(job: &Job) -> [Group; 3] {
    let queue = Queues::name_for(job);
    let Job { cpu_milli, memory_mib, gpus, share_milli, gpu_memory_mib, members, .. } = job;
    let models = job.models.join("|");
    let program =
        format!("{queue} {cpu_milli} {memory_mib} {gpus} {share_milli} {gpu_memory_mib} {members} {models}");
    [Group::Program(program), Group::Queue(queue.to_owned()), Group::All]
}
