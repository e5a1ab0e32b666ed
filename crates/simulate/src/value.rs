//! What dividing GPUs is worth: how many GPUs carry the same jobs, decided by the same scheduler,
//! at no longer waits, for each way to divide them.
//!
//! A cluster is the first nodes of the list, its models in the same proportion, or the list several
//! times. The smallest one is searched on which every job runs and 95 of 100 wait no longer than a
//! limit. So effective capacity is a ratio of GPUs, not of what is allocated on them.

mod allocation;
mod power;

pub use allocation::Allocation;
use serde::Serialize;

use crate::parallel;
use crate::policy::PolicyName;
use crate::replay::{Eviction, Late, PolicyReplay, ReplayError, ReplayPlan, replay};
use crate::site::{Site, SiteError};
use crate::trace::{InputError, Job, Jobs, Node, Queues};

/// A cluster is the list this number of times at the most.
const LISTS_MAX: usize = 16;
const GPU_MS_PER_HOUR: f64 = 1000.0 * 3.6e6;

/// What is asked.
#[derive(Clone, Debug)]
pub struct ValuePlan {
    /// 95 of 100 jobs wait no longer.
    pub wait_s: f64,
    pub policy: PolicyName,
    pub seed: u64,
    pub cycle_ms: u64,
    /// Jobs arrive this number of times as fast as in the list, and run as long. A trace is often a
    /// sample of what a cluster did.
    pub faster: f64,
    /// Price of a GPU for an hour, used or not.
    pub price: f64,
}

/// Where the comparison cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    #[error(transparent)]
    Site(#[from] SiteError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error(transparent)]
    Queue(#[from] InputError),
    #[error("no job asks for a GPU and has times: the list needs arrival_s and duration_s")]
    NoJobs,
    #[error(
        "with {allocation}, {jobs} jobs wait longer than {wait_s} s even on {gpus} GPUs; allow longer waits (--wait)"
    )]
    TooSmall { allocation: String, jobs: usize, wait_s: f64, gpus: u32 },
}

#[derive(Clone, Debug, Serialize)]
pub struct ValueReport {
    pub jobs: usize,
    /// GPU time of the jobs, by the shares that they ask for.
    pub work_gpu_hours: f64,
    /// From the first arrival to the last.
    pub hours: f64,
    pub wait_s: f64,
    pub policy: PolicyName,
    pub seed: u64,
    pub faster: f64,
    pub price: f64,
    /// The part of the GPU time that is asked for by jobs with whole GPUs, in per cent.
    pub whole_percent: f64,
    /// GPUs whose model has no TDP in the table, of the largest cluster.
    pub unknown_tdp_gpus: u32,
    /// Whole GPUs come first.
    pub rows: Vec<Carried>,
}

/// The smallest cluster with one way to divide its GPUs.
#[derive(Clone, Debug, Serialize)]
pub struct Carried {
    pub allocation: Allocation,
    pub gpus: u32,
    pub nodes: usize,
    /// GPUs that whole GPUs take for each of these.
    pub capacity: f64,
    /// Capacity if CPUs and memory of the nodes sufficed for everything.
    pub capacity_of_gpus_alone: f64,
    pub wait_p50_s: f64,
    pub wait_p95_s: f64,
    /// Mean allocation while jobs arrive, in per cent of the cluster.
    pub allocated_percent: f64,
    /// Price of these GPUs while jobs arrive, and for each GPU-hour of work.
    pub cost: f64,
    pub cost_per_gpu_hour: f64,
    /// What is saved against whole GPUs.
    pub saved: f64,
    /// At most, from the TDP of the models: all GPUs at full power while jobs arrive.
    pub energy_kwh: f64,
}

/// Compares the ways to divide GPUs. Jobs that ask for no GPU are left out.
pub fn value(nodes: &[Node], jobs: &Jobs, plan: &ValuePlan) -> Result<ValueReport, ValueError> {
    let mut jobs = jobs.clone();
    jobs.jobs.retain(|job| job.gpus > 0 && job.timing.is_some());
    // All wait in one queue: shares among queues are another question.
    jobs.jobs.iter_mut().for_each(|job| job.queue.clear());
    for timing in jobs.jobs.iter_mut().filter_map(|job| job.timing.as_mut()) {
        timing.arrival_ms = (timing.arrival_ms as f64 / plan.faster) as u64;
    }
    let nodes = in_proportion(nodes);
    Site::new(&nodes)?.leave_out_impossible(&mut jobs);
    let timings = || jobs.jobs.iter().filter_map(|job| Some((job, job.timing?)));
    let (Some(first), Some(last)) = (
        timings().map(|(_, timing)| timing.arrival_ms).min(),
        timings().map(|(_, timing)| timing.arrival_ms).max(),
    ) else {
        return Err(ValueError::NoJobs);
    };
    let hours = (last - first) as f64 / 3.6e6;
    let work = |wanted: fn(&Job) -> bool| {
        let of = timings().filter(|(job, _)| wanted(job));
        of.map(|(job, timing)| job.gpu_milli() as f64 * timing.duration_ms as f64).sum::<f64>()
            / GPU_MS_PER_HOUR
    };
    let work_gpu_hours = work(|_| true);
    let search = Search { nodes: &nodes, jobs: &jobs, plan };
    let found: Vec<_> = parallel::map(&Allocation::all(&jobs), |&allocation| {
        Ok((allocation, search.smallest(allocation, true)?, search.smallest(allocation, false)?))
    });
    let found = found.into_iter().collect::<Result<Vec<_>, ValueError>>()?;
    let [whole, whole_alone] = found.first().map_or([0; 2], |(_, with, alone)| [with.gpus, alone.gpus]);
    let cost = |gpus: u32| f64::from(gpus) * hours * plan.price;
    let rows: Vec<Carried> = found
        .iter()
        .map(|(allocation, found, alone)| Carried {
            allocation: *allocation,
            gpus: found.gpus,
            nodes: found.nodes,
            capacity: f64::from(whole) / f64::from(found.gpus.max(1)),
            capacity_of_gpus_alone: f64::from(whole_alone) / f64::from(alone.gpus.max(1)),
            wait_p50_s: found.replayed.wait_s.p50,
            wait_p95_s: found.replayed.wait_s.p95,
            allocated_percent: found.replayed.allocated_percent,
            cost: cost(found.gpus),
            cost_per_gpu_hour: cost(found.gpus) / work_gpu_hours.max(f64::MIN_POSITIVE),
            saved: cost(whole) - cost(found.gpus),
            energy_kwh: power::tdp_w(&search.cluster(found.nodes)).0 * hours / 1000.0,
        })
        .collect();
    let largest = found.iter().map(|(_, found, _)| found.nodes).max().unwrap_or(0);
    Ok(ValueReport {
        jobs: jobs.jobs.len(),
        work_gpu_hours,
        hours,
        wait_s: plan.wait_s,
        policy: plan.policy,
        seed: plan.seed,
        faster: plan.faster,
        price: plan.price,
        whole_percent: 100.0 * work(|job| job.share_milli == 1000) / work_gpu_hours.max(f64::MIN_POSITIVE),
        unknown_tdp_gpus: power::tdp_w(&search.cluster(largest)).1,
        rows,
    })
}

struct Search<'a> {
    /// Any number of the first ones has the models in proportion.
    nodes: &'a [Node],
    jobs: &'a Jobs,
    plan: &'a ValuePlan,
}

struct Found {
    nodes: usize,
    gpus: u32,
    replayed: PolicyReplay,
}

impl Search<'_> {
    /// Searches the smallest cluster, up to one per cent. Without `hosts`, CPUs and memory of the
    /// nodes do not count.
    fn smallest(&self, allocation: Allocation, hosts: bool) -> Result<Found, ValueError> {
        let jobs = self.allocated(allocation, hosts);
        let most = self.nodes.len() * LISTS_MAX;
        let (mut too_few, mut count) = (0, (self.at_once(&jobs) / 2).clamp(1, most));
        let mut found = loop {
            let tried = self.replay(&jobs, count)?;
            if self.is_enough(&tried) {
                break tried;
            }
            if count >= most {
                let waiting = jobs.jobs.len() - tried.replayed.finished_jobs;
                let (allocation, wait_s) = (allocation.name(), self.plan.wait_s);
                return Err(ValueError::TooSmall { allocation, jobs: waiting, wait_s, gpus: tried.gpus });
            }
            too_few = count;
            count = (2 * count).min(most);
        };
        while found.nodes - too_few > (found.nodes / 100).max(1) {
            let tried = self.replay(&jobs, too_few.midpoint(found.nodes))?;
            match self.is_enough(&tried) {
                true => found = tried,
                false => too_few = tried.nodes,
            }
        }
        Ok(found)
    }

    fn allocated(&self, allocation: Allocation, hosts: bool) -> Jobs {
        let gpu_memory_mib = self.nodes.iter().map(|node| node.gpu_memory_mib).max().unwrap_or(0);
        let mut jobs = self.jobs.clone();
        for job in &mut jobs.jobs {
            *job = allocation.apply(job, gpu_memory_mib);
            if !hosts {
                (job.cpu_milli, job.memory_mib) = (0, 0);
            }
        }
        jobs
    }

    /// The nodes whose GPUs would carry the jobs at the busiest time if none waited.
    fn at_once(&self, jobs: &Jobs) -> usize {
        let mut changes: Vec<(u64, i64)> = Vec::new();
        for (job, timing) in jobs.jobs.iter().filter_map(|job| Some((job, job.timing?))) {
            let gpu_milli = i64::try_from(job.gpu_milli()).unwrap_or(i64::MAX);
            changes.push((timing.arrival_ms, gpu_milli));
            changes.push((timing.arrival_ms + timing.duration_ms, -gpu_milli));
        }
        changes.sort_unstable();
        let (mut now, mut most) = (0_i64, 0_i64);
        for (_, change) in changes {
            now = now.saturating_add(change);
            most = most.max(now);
        }
        let gpus: u64 = self.nodes.iter().map(|node| u64::from(node.gpus)).sum();
        let of_node_milli = (1000 * gpus / self.nodes.len().max(1) as u64).max(1);
        usize::try_from(most.unsigned_abs() / of_node_milli).unwrap_or(usize::MAX)
    }

    fn is_enough(&self, tried: &Found) -> bool {
        tried.replayed.finished_jobs == self.jobs.jobs.len() && tried.replayed.wait_s.p95 <= self.plan.wait_s
    }

    fn replay(&self, jobs: &Jobs, nodes: usize) -> Result<Found, ValueError> {
        let site = Site::new(&self.cluster(nodes))?;
        let queues = Queues::named_by(jobs, site.gpus())?;
        let plan = ReplayPlan {
            policies: vec![self.plan.policy],
            seed: self.plan.seed,
            cycle_ms: self.plan.cycle_ms,
            eviction: Eviction::Resume,
            migrate: false,
            late: Some(Late { wait_ms: (self.plan.wait_s * 1000.0) as u64, jobs_max: jobs.jobs.len() / 20 }),
        };
        let replayed = replay(&site, jobs, &queues, &plan)?.policies.remove(0);
        Ok(Found { nodes, gpus: site.gpus(), replayed })
    }

    fn cluster(&self, nodes: usize) -> Vec<Node> {
        self.nodes.iter().cycle().take(nodes).cloned().collect()
    }
}

/// The nodes with GPUs in an order in which each model has its part of any number of the first
/// ones, and at least one of them.
fn in_proportion(nodes: &[Node]) -> Vec<Node> {
    let with_gpus: Vec<&Node> = nodes.iter().filter(|node| node.gpus > 0).collect();
    let alike = |one: &Node, other: &Node| (&one.model, one.gpus) == (&other.model, other.gpus);
    let place = |index: usize| {
        let before = with_gpus[..index].iter().filter(|node| alike(node, with_gpus[index])).count();
        let all = with_gpus.iter().filter(|node| alike(node, with_gpus[index])).count();
        before as f64 / all as f64
    };
    let mut order: Vec<(f64, usize)> = (0..with_gpus.len()).map(|index| (place(index), index)).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    order.into_iter().map(|(_, index)| with_gpus[index].clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{jobs_from_text, nodes_from_text};

    const NODES: &str = "name,cpus,memory_gib,gpus,model,gpu_memory_gib\n\
        a,64,256,4,A100 80GB,80\nb,64,256,4,A100 80GB,80\nc,64,256,4,A100 80GB,80\nd,64,256,4,A100 80GB,80\n";

    fn plan() -> ValuePlan {
        ValuePlan {
            wait_s: 10.0,
            policy: PolicyName::BestFit,
            seed: 1,
            cycle_ms: 1000,
            faster: 1.0,
            price: 2.0,
        }
    }

    /// Jobs that all run at once.
    fn jobs(count: usize, cpus: u32, share: &str, needed: &str) -> Jobs {
        let mut text = String::from("name,arrival_s,duration_s,cpus,memory_gib,gpus,share,needed_share\n");
        for index in 0..count {
            text.push_str(&format!("j{index},{index},3600,{cpus},1,1,{share},{needed}\n"));
        }
        jobs_from_text(&text).unwrap()
    }

    fn gpus_of(report: &ValueReport, allocation: Allocation) -> u32 {
        report.rows.iter().find(|row| row.allocation == allocation).unwrap().gpus
    }

    #[test]
    fn quarters_need_a_quarter_of_the_gpus_that_whole_ones_take() {
        let nodes = nodes_from_text(NODES).unwrap();
        let report = value(&nodes, &jobs(64, 1, "0.25", ""), &plan()).unwrap();
        // 64 at once, but for 5 in 100 that may wait: 61 whole GPUs on nodes of four.
        assert_eq!(gpus_of(&report, Allocation::WholeGpus), 64);
        assert_eq!(gpus_of(&report, Allocation::Shares), 16);
        // Two sevenths hold a quarter: three on a GPU.
        assert_eq!(gpus_of(&report, Allocation::Mig), 24);
        let shares = report.rows.iter().find(|row| row.allocation == Allocation::Shares).unwrap();
        assert_eq!(shares.capacity, 4.0);
        assert!(shares.wait_p95_s <= 10.0 && shares.saved > 0.0);
        // 400 W each.
        assert!((shares.energy_kwh - 16.0 * 0.4 * report.hours).abs() < 1e-6);
    }

    #[test]
    fn cpus_bound_what_shares_gain() {
        let nodes = nodes_from_text(NODES).unwrap();
        // Eight of these jobs use up a node's CPUs, whatever part of the GPUs is free.
        let report = value(&nodes, &jobs(64, 8, "0.25", ""), &plan()).unwrap();
        let shares = report.rows.iter().find(|row| row.allocation == Allocation::Shares).unwrap();
        assert!(shares.capacity <= 2.0 && shares.capacity_of_gpus_alone == 4.0, "{shares:?}");
    }

    #[test]
    fn time_slices_are_many_and_slow() {
        let nodes = nodes_from_text(NODES).unwrap();
        let report = value(&nodes, &jobs(64, 1, "1", "0.5"), &plan()).unwrap();
        assert_eq!(gpus_of(&report, Allocation::SharesNeeded), 32);
        assert_eq!(gpus_of(&report, Allocation::Shares), 64);
        assert_eq!(report.whole_percent, 100.0);
        assert_eq!(gpus_of(&report, Allocation::TimeSlicing { replicas: 4 }), 16);
    }

    #[test]
    fn a_list_without_times_is_refused() {
        let nodes = nodes_from_text(NODES).unwrap();
        let jobs = jobs_from_text("name,cpus,memory_gib,gpus\nj,1,1,1\n").unwrap();
        assert!(matches!(value(&nodes, &jobs, &plan()), Err(ValueError::NoJobs)));
    }

    #[test]
    fn every_part_of_the_list_has_all_models() {
        let mut text = String::from("name,cpus,memory_gib,gpus,model\n");
        for index in 0..30 {
            let model = if index < 28 { "big" } else { "rare" };
            text.push_str(&format!("n{index},1,1,1,{model}\n"));
        }
        let nodes = in_proportion(&nodes_from_text(&text).unwrap());
        let rare = |count: usize| nodes[..count].iter().filter(|node| node.model == "rare").count();
        assert_eq!([rare(2), rare(10), rare(20), rare(30)], [1, 1, 2, 2]);
    }
}
