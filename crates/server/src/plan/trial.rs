//! The outcome of a request that is not made: the decisions of the scheduler on a copy of its
//! state, which is then dropped.

use sluice_api::GPU_PPM;
use sluice_api::lease::{NewLease, StartEstimate};
use sluice_sched::queues::JobId;

use super::estimate::{EFFORT_MAX, ENDS_MAX, expected, unknown};
use super::follow::add_queue;
use super::pools::PoolChanges;
use super::sites::Kind;
use super::{Clock, Plan, domain_name, enter};
use crate::fleet::{Fleet, LeaseRecord, Seat, memory_is_fixed};
use crate::history::History;

/// The outcome of a request.
#[derive(Debug)]
pub(crate) struct Trial {
    pub(crate) start: StartEstimate,
    /// The reason why it would wait, unless it would start at once.
    pub(crate) reason: Option<String>,
    /// The places of its tasks, as far as they are known.
    pub(crate) seats: Vec<Seat>,
    /// The number of leases that would be preempted for it.
    pub(crate) preempts: u32,
}

impl Trial {
    fn waits(start: StartEstimate, reason: String) -> Trial {
        Trial { start, reason: Some(reason), seats: Vec::new(), preempts: 0 }
    }

    fn unknown(reason: String) -> Trial {
        Trial::waits(unknown(reason.clone()), reason)
    }
}

/// Equal GPUs that a request accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offered {
    pub(crate) pool: String,
    pub(crate) model: String,
    /// The memory of one GPU, in bytes.
    pub(crate) memory: u64,
    pub(crate) gflops: u64,
    pub(crate) share_ppm: u32,
    /// The bytes that the request takes of each GPU.
    pub(crate) memory_taken: u64,
    /// The number of GPUs that take new leases.
    pub(crate) gpus: u32,
    /// The number of these that have room now.
    pub(crate) gpus_free: u32,
}

impl Plan {
    /// Predicts what a request would lead to. `lease` is the lease that it would make, which is not
    /// in the fleet.
    pub(crate) fn trial(&self, fleet: &Fleet, history: &History, lease: &LeaseRecord, clock: Clock) -> Trial {
        if let Some(error) = &self.broken {
            let reason = format!("nothing is planned: the tenants' quotas contradict each other: {error}");
            return Trial::unknown(reason);
        }
        if let Some(reason) = self.kept_out(fleet, lease) {
            let is_spent = fleet.budgets().spent(&lease.tenant).is_some();
            let at_ms =
                is_spent.then(|| fleet.budgets().spent_until_ms(&lease.tenant, clock.now_ms)).flatten();
            let because = match at_ms {
                Some(_) => "if there is room when the budget's next period begins".into(),
                None => reason.clone(),
            };
            return Trial::waits(
                StartEstimate { at_ms, error_ms: None, error_p90_ms: None, because },
                reason,
            );
        }
        if self.work.len() > EFFORT_MAX {
            return Trial::unknown(format!(
                "there are more than {EFFORT_MAX} leases, too many for a forecast"
            ));
        }
        self.try_out(fleet, history, lease, clock).unwrap_or_else(|reason| {
            match self.first_served_ms(fleet, lease, &mut PoolChanges::default()) {
                Some(at_ms) => {
                    let because = "if there is room when a pool begins to serve it".into();
                    Trial::waits(
                        StartEstimate { at_ms: Some(at_ms), error_ms: None, error_p90_ms: None, because },
                        reason,
                    )
                }
                None => Trial::unknown(reason),
            }
        })
    }

    /// The error says why the scheduler would not get the lease.
    fn try_out(
        &self,
        fleet: &Fleet,
        history: &History,
        lease: &LeaseRecord,
        clock: Clock,
    ) -> Result<Trial, String> {
        let request = self.request(fleet, &lease.tenant, &lease.ask)?;
        let mut scheduler = self.scheduler.clone();
        let queue = add_queue(&mut scheduler, fleet, &lease.tenant)?;
        let queue = queue.ok_or_else(|| format!("there is no tenant {}", lease.tenant))?;
        let spec = enter::spec(lease, queue, request, lease.tasks());
        let job = scheduler.submit(spec).map_err(|error| error.to_string())?;
        let runtime = |of: JobId| match of == job {
            true => lease.ask.duration_ms,
            false => history.runtime_ms(fleet.lease(*self.leases.get(&of)?)?, clock.now_ms),
        };
        let forecast = scheduler.forecast(clock.now_ms, job, runtime, ENDS_MAX);
        let reason = forecast.why.as_ref().map(|why| why.describe(domain_name));
        let Some((at_ms, placements)) = forecast.start else {
            let because = match forecast.ends {
                0 => "no lease that is in its way says how long it takes".into(),
                ends => format!("not after the next {ends} ends of leases that are expected"),
            };
            return Ok(Trial { start: unknown(because), reason, seats: Vec::new(), preempts: 0 });
        };
        let preempts = forecast.evicted.len() as u32;
        let (at_ms, because) = match (forecast.ends, preempts) {
            (0, 0) => (at_ms, "there is room now".into()),
            (0, _) => {
                (at_ms + clock.grace_ms, "other leases are preempted for it within their grace time".into())
            }
            (1, _) => (at_ms, "if the lease before it ends as expected".into()),
            (ends, _) => (at_ms, format!("if the {ends} leases before it end as expected")),
        };
        let seats =
            placements.iter().filter_map(|placement| self.seat_of(placement, lease.ask.memory)).collect();
        let start = expected(at_ms, history.errors(&lease.tenant), because);
        Ok(Trial { start, reason, seats, preempts })
    }

    /// Lists the GPUs that a request accepts, in pools that serve its tenant now.
    pub(crate) fn offers(&self, fleet: &Fleet, lease: &LeaseRecord) -> Vec<Offered> {
        let LeaseRecord { ask, tenant, .. } = lease;
        let models = self.atlas.accepted(ask, |pool| self.pools.serve(fleet, pool, tenant, ask));
        let mut all: Vec<Offered> = Vec::new();
        for kind in self.atlas.of(models) {
            let one = offered(fleet, kind, ask);
            let same = |known: &&mut Offered| {
                Offered { gpus: one.gpus, gpus_free: one.gpus_free, ..(**known).clone() } == one
            };
            match all.iter_mut().find(same) {
                Some(known) => {
                    known.gpus += one.gpus;
                    known.gpus_free += one.gpus_free;
                }
                None => all.push(one),
            }
        }
        all.retain(|offered| offered.gpus > 0);
        all
    }
}

fn offered(fleet: &Fleet, kind: &Kind, ask: &NewLease) -> Offered {
    let share_ppm = ask.share_of(kind.gflops).min(GPU_PPM.into());
    let memory_taken = if ask.memory > 0 { ask.memory } else { kind.memory_of(share_ppm) };
    let fixed = memory_is_fixed(ask.tier, ask.gpus as usize);
    let (gpus, gpus_free) = count(fleet, kind, share_ppm, (memory_taken, fixed));
    Offered {
        pool: kind.pool.clone(),
        model: kind.name.clone(),
        memory: kind.memory,
        gflops: kind.gflops,
        share_ppm: share_ppm as u32,
        memory_taken,
        gpus,
        gpus_free,
    }
}

/// Counts the GPUs of a kind that take new leases, and those among them with room for this share
/// and memory.
fn count(fleet: &Fleet, kind: &Kind, share_ppm: u64, (memory, fixed): (u64, bool)) -> (u32, u32) {
    let (mut gpus, mut free) = (0, 0);
    for node in fleet.nodes().values().filter(|node| node.takes_work()) {
        for (index, gpu) in (0..).zip(&node.gpus) {
            if Kind::of(fleet, node, (index, gpu)) != *kind || fleet.is_fenced(node.id, index) {
                continue;
            }
            gpus += 1;
            let taken = fleet.taken(node.id, index);
            let is_whole = share_ppm == u64::from(GPU_PPM) || taken.whole > 0;
            let promised_ppm = if is_whole { GPU_PPM } else { kind.promised_ppm };
            let free_memory = fleet.free_memory(node, index, &taken, fixed);
            let has_room = taken.ppm + share_ppm <= promised_ppm.into() && free_memory.holds(memory, memory);
            free += u32::from(has_room);
        }
    }
    (gpus, free)
}
