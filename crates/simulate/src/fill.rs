//! Filling a cluster up: jobs come one after the other, none ends, each is tried once. How much of
//! the GPUs is allocated when the demand has reached the capacity says how well a policy packs (the
//! openb experiments of Weng et al.).

use std::collections::BTreeMap;

use serde::Serialize;
use sluice_sched::{Request, TrainingError};

use crate::arrivals::{ARRIVED_PERCENT_MAX, arrivals, node_order};
use crate::packing::{Packing, Wish};
use crate::parallel;
use crate::policy::{History, PolicyName, Prepared, prepare};
use crate::site::Site;
use crate::stranded::Mix;
use crate::summary::{Spread, mean_and_deviation};
use crate::trace::Jobs;

/// Arrived demand, in percent of the cluster's GPUs, at which the allocation is reported.
pub const COLUMNS: [u32; 6] = [80, 90, 95, 100, 110, 130];

/// Where fragmentation is looked at: before the cluster is full, since then next to nothing fits
/// anywhere.
pub const STRANDED_AT_PERCENT: f64 = 80.0;

/// What to compare.
#[derive(Clone, Debug)]
pub struct FillPlan {
    pub policies: Vec<PolicyName>,
    /// Each gives another order of jobs and nodes, the same for all policies.
    pub seeds: Vec<u64>,
    /// Whether placed jobs are moved to make room for one that fits nowhere.
    pub migrate: bool,
    pub history: History,
}

#[derive(Clone, Debug, Serialize)]
pub struct FillReport {
    pub nodes: usize,
    pub gpus: u32,
    /// Jobs that arrivals are drawn from.
    pub jobs: usize,
    /// Their GPU demand, in percent of the cluster's GPUs.
    pub demand_percent: f64,
    /// Jobs that fit no node even of the empty cluster.
    pub impossible_jobs: usize,
    pub seeds: Vec<u64>,
    pub migrate: bool,
    /// What the policy `sluice` has learned from.
    pub history: History,
    pub policies: Vec<PolicyFill>,
}

/// What came of one policy.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyFill {
    pub policy: PolicyName,
    /// Allocated GPU compute in percent of the cluster's, by arrived demand in percent.
    pub allocated_percent: BTreeMap<u32, Spread>,
    /// Jobs that found no place, until the demand reached 100 %.
    pub rejected_jobs: Spread,
    /// Placed jobs that were moved, until the demand reached 100 %.
    pub moves: Spread,
    /// Free GPU compute that a job drawn from the list could not use where it is, in percent of
    /// what is free, when the demand has reached [`STRANDED_AT_PERCENT`].
    pub stranded_percent: Spread,
    /// Mean and standard deviation of the allocation at each whole percent of arrived demand, from
    /// 0.
    #[serde(skip)]
    pub curve: Vec<(f64, f64)>,
}

/// Runs every policy with every seed, once the policies have learned from the list what they need
/// to know.
pub fn fill(site: &Site, jobs: &Jobs, plan: &FillPlan) -> Result<FillReport, TrainingError> {
    let (history, wishes) = plan.history.divide(&wishes(site, jobs));
    let demands: Vec<u64> = wishes.iter().map(Wish::gpu_milli).collect();
    let orders = parallel::map(&plan.seeds, |&seed| arrivals(&demands, site.capacity_milli(), seed));
    let [simulated, history] = [&wishes, &history].map(|wishes| requests(wishes));
    let prepared = prepare(&plan.policies, site, &simulated, &history)?;
    let mut tasks = Vec::new();
    for policy in &prepared {
        tasks.extend(plan.seeds.iter().zip(&orders).map(move |(&seed, order)| (policy, seed, order)));
    }
    let runs =
        parallel::map(&tasks, |&(policy, seed, order)| run(site, &wishes, order, policy, seed, plan.migrate));
    let policies = plan.policies.iter().zip(runs.chunks(plan.seeds.len().max(1)));
    Ok(FillReport {
        nodes: site.nodes(),
        gpus: site.gpus(),
        jobs: wishes.len(),
        demand_percent: demands.iter().sum::<u64>() as f64 * 100.0 / site.capacity_milli() as f64,
        impossible_jobs: site.impossible(jobs).len(),
        seeds: plan.seeds.clone(),
        migrate: plan.migrate,
        history: plan.history,
        policies: policies.map(|(&policy, runs)| summarise(policy, &plan.seeds, runs)).collect(),
    })
}

fn wishes(site: &Site, jobs: &Jobs) -> Vec<Wish> {
    jobs.jobs.iter().map(|job| Wish { request: site.request(job), members: job.members }).collect()
}

fn requests(wishes: &[Wish]) -> Vec<Request> {
    wishes.iter().map(|wish| wish.request).collect()
}

/// One policy with one seed.
struct Run {
    /// Allocated percent at each whole percent of arrived demand.
    curve: Vec<f64>,
    rejected: u64,
    moves: u64,
    stranded_percent: f64,
}

fn run(site: &Site, wishes: &[Wish], order: &[u32], policy: &Prepared, seed: u64, migrate: bool) -> Run {
    let cluster = site.cluster(node_order(site.nodes(), seed));
    let mut packing = Packing::new(cluster, policy.placer(seed), migrate);
    let capacity = site.capacity_milli() as f64;
    let mut curve = Curve::default();
    let mix = Mix::of(wishes.iter().map(|wish| (&wish.request, wish.members)));
    let (mut arrived, mut rejected, mut moves, mut stranded_percent) = (0, 0, 0, None);
    for wish in order.iter().map(|&index| &wishes[index as usize]) {
        arrived += wish.gpu_milli();
        let placed = packing.place(wish);
        let arrived_percent = arrived as f64 * 100.0 / capacity;
        if arrived_percent <= 100.0 {
            rejected += u64::from(!placed);
            moves = packing.moves();
        }
        if arrived_percent >= STRANDED_AT_PERCENT && stranded_percent.is_none() {
            stranded_percent = Some(mix.stranded_percent(packing.cluster()));
        }
        curve.add(arrived_percent, packing.cluster().usage().gpu_milli_used as f64 * 100.0 / capacity);
    }
    Run { curve: curve.finish(), rejected, moves, stranded_percent: stranded_percent.unwrap_or_default() }
}

/// Means of the allocation over all arrivals that round to the same whole percent.
#[derive(Default)]
struct Curve {
    cells: Vec<(f64, u32)>,
}

impl Curve {
    fn add(&mut self, arrived_percent: f64, allocated_percent: f64) {
        let column = arrived_percent.round() as usize;
        if column > ARRIVED_PERCENT_MAX as usize {
            return;
        }
        self.cells.resize(self.cells.len().max(column + 1), (0.0, 0));
        let (sum, count) = &mut self.cells[column];
        *sum += allocated_percent;
        *count += 1;
    }

    /// In a small cluster one job may leap over columns: nothing has changed there since the one
    /// before.
    fn finish(self) -> Vec<f64> {
        let mut last = 0.0;
        let mut columns: Vec<f64> = self
            .cells
            .into_iter()
            .map(|(sum, count)| {
                if count > 0 {
                    last = sum / f64::from(count);
                }
                last
            })
            .collect();
        columns.resize(ARRIVED_PERCENT_MAX as usize + 1, last);
        columns
    }
}

fn summarise(policy: PolicyName, seeds: &[u64], runs: &[Run]) -> PolicyFill {
    let over_seeds =
        |figure: &dyn Fn(&Run) -> f64| Spread::of(seeds.iter().copied().zip(runs.iter().map(figure)));
    let columns = COLUMNS.map(|column| (column, over_seeds(&|run| run.curve[column as usize])));
    let curve = (0..=ARRIVED_PERCENT_MAX as usize).map(|column| {
        let values: Vec<f64> = runs.iter().map(|run| run.curve[column]).collect();
        mean_and_deviation(&values)
    });
    PolicyFill {
        policy,
        allocated_percent: columns.into_iter().collect(),
        rejected_jobs: over_seeds(&|run| run.rejected as f64),
        moves: over_seeds(&|run| run.moves as f64),
        stranded_percent: over_seeds(&|run| run.stranded_percent),
        curve: curve.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{jobs_from_text, nodes_from_text};

    /// Two nodes of two GPUs; halves and whole GPUs that fit them exactly.
    fn small(policies: &[PolicyName]) -> FillReport {
        small_with(policies, false)
    }

    fn small_with(policies: &[PolicyName], migrate: bool) -> FillReport {
        let nodes = nodes_from_text("name,cpus,memory_gib,gpus,model\na,8,32,2,T4\nb,8,32,2,T4\n").unwrap();
        let jobs =
            jobs_from_text("name,cpus,memory_gib,gpus,share\nx,1,1,1,0.5\ny,1,1,1,0.5\nz,1,1,2,\n").unwrap();
        let plan = FillPlan {
            policies: policies.to_vec(),
            seeds: vec![1, 2, 3, 4, 5, 6, 7, 8],
            migrate,
            history: History::Draws,
        };
        fill(&Site::new(&nodes).unwrap(), &jobs, &plan).unwrap()
    }

    #[test]
    fn policies_see_the_same_arrivals_and_never_allocate_more_than_arrived() {
        let report = small(&PolicyName::ALL);
        for policy in &report.policies {
            assert_eq!(policy.curve.len(), 131);
            for (column, (mean, _)) in policy.curve.iter().enumerate() {
                assert!(
                    *mean <= column as f64 + 0.5 && *mean <= 100.0,
                    "{}: {mean} at {column}",
                    policy.policy
                );
            }
        }
        assert_eq!(report.demand_percent, 75.0);
        assert_eq!(report.policies[0].allocated_percent.keys().copied().collect::<Vec<_>>(), COLUMNS);
    }

    #[test]
    fn packing_beats_chance() {
        let report = small(&[PolicyName::Random, PolicyName::BestFit]);
        let at_100 = |index: usize| report.policies[index].allocated_percent[&100].mean;
        assert!(at_100(1) >= at_100(0), "{report:?}");
    }

    #[test]
    fn moving_makes_room_and_is_counted() {
        let [still, moved] =
            [false, true].map(|migrate| small_with(&[PolicyName::Random], migrate).policies.remove(0));
        assert!(still.moves.mean == 0.0 && moved.moves.mean > 0.0, "{moved:?}");
        assert!(
            moved.allocated_percent[&130].mean > still.allocated_percent[&130].mean,
            "{still:?} {moved:?}"
        );
    }

    #[test]
    fn runs_repeat() {
        let allocated = || small(&[PolicyName::Random]).policies.remove(0).allocated_percent;
        assert_eq!(allocated(), allocated());
    }

    #[test]
    fn a_column_that_a_job_leaps_over_shows_the_state_before() {
        let mut curve = Curve::default();
        curve.add(10.2, 10.0);
        curve.add(10.4, 12.0);
        curve.add(12.6, 13.0);
        curve.add(131.0, 99.0);
        let columns = curve.finish();
        assert_eq!(
            (columns[9], columns[10], columns[11], columns[12], columns[13], columns[130]),
            (0.0, 11.0, 11.0, 11.0, 13.0, 13.0)
        );
    }
}
