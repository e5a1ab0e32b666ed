//! The order in which jobs come when a cluster is filled up, as in the published openb experiments
//! (Weng et al.): the list shuffled, then jobs drawn from it again, until more has been asked for
//! than there is.

use sluice_sched::Random;

/// Demand at which the arrivals end, in percent of the cluster's GPUs.
pub const ARRIVED_PERCENT_MAX: u64 = 130;

/// Indices into a list of jobs, by the GPU demand of each. The whole list comes once, however much
/// it asks for; at least one demand is above 0.
pub(crate) fn arrivals(demands_milli: &[u64], capacity_milli: u64, seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed);
    let mut order: Vec<u32> = (0..demands_milli.len() as u32).collect();
    random.shuffle(&mut order);
    let enough = u128::from(capacity_milli) * u128::from(ARRIVED_PERCENT_MAX);
    let mut arrived: u128 = demands_milli.iter().map(|&demand| u128::from(demand)).sum();
    while arrived * 100 < enough {
        let again = random.below(demands_milli.len());
        order.push(again as u32);
        arrived += u128::from(demands_milli[again]);
    }
    order
}

/// The order of a cluster's nodes, which decides between nodes that are equally good: fixed for a
/// run, another for each seed.
pub(crate) fn node_order(nodes: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..nodes).collect();
    // Another stream than that of the arrivals: "node" in ASCII.
    Random::new(seed ^ 0x6e6f_6465).shuffle(&mut order);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_list_comes_first_and_then_draws_up_to_the_limit() {
        let demands = [1000, 500, 0, 2000];
        let order = arrivals(&demands, 10_000, 42);
        let mut first: Vec<u32> = order[..4].to_vec();
        first.sort_unstable();
        assert_eq!(first, [0, 1, 2, 3]);
        let sum = |jobs: &[u32]| jobs.iter().map(|&job| demands[job as usize]).sum::<u64>();
        assert!(sum(&order) >= 13_000 && sum(&order[..order.len() - 1]) < 13_000, "{order:?}");
        assert_eq!(order, arrivals(&demands, 10_000, 42));
        assert_ne!(order, arrivals(&demands, 10_000, 43));
    }

    #[test]
    fn node_orders_are_permutations() {
        let mut order = node_order(50, 7);
        assert_eq!(order, node_order(50, 7));
        order.sort_unstable();
        assert_eq!(order, (0..50).collect::<Vec<_>>());
    }
}
