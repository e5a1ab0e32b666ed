//! The division of shares against the optimum that a linear program finds.

use good_lp::{Expression, ProblemVariables, Solution, SolverModel, constraint, microlp, variable};
use proptest::prelude::*;
use sluice_sched::queues::{
    Claim, Config, Division, JobSpec, QueueId, QueueSpec, QueueTree, Resource, Scheduler, divide,
};
use sluice_sched::{LabelSet, ModelId, NodeSpec, Placer, Policy, Request};

const BY_ONES: Division = Division { unit: 1, usage_percent: 0 };

fn claim() -> impl Strategy<Value = Claim> {
    let limit = prop_oneof![3 => Just(u64::MAX), 1 => 0..8_000u64];
    (0..4_000u64, 0..8_000u64, limit, 0..3i32, 0..5u32).prop_map(
        |(deserved, requested, limit, priority, weight)| Claim {
            deserved,
            requested,
            limit,
            priority,
            weight,
            usage_ppm: 0,
        },
    )
}

fn claims() -> impl Strategy<Value = Vec<Claim>> {
    prop::collection::vec(claim(), 1..7)
}

/// Weighted max-min by linear programs: raise the level of all open claims together as far as it
/// goes, fix those that cannot go further, and raise the rest again.
fn fill_by_lp(capacity: f64, floors: &[f64], caps: &[f64], weights: &[f64]) -> Vec<f64> {
    let mut shares = floors.to_vec();
    let mut open: Vec<usize> = (0..caps.len()).filter(|&i| weights[i] > 0.0 && caps[i] > floors[i]).collect();
    while !open.is_empty() {
        let mut variables = ProblemVariables::new();
        let level = variables.add(variable().min(0.0));
        let gains: Vec<_> = open.iter().map(|_| variables.add(variable().min(0.0))).collect();
        let fixed: f64 = (0..caps.len()).filter(|i| !open.contains(i)).map(|i| shares[i]).sum();
        let total: Expression = gains.iter().copied().sum();
        let mut model = variables.maximise(level).using(microlp);
        for (&gain, &i) in gains.iter().zip(&open) {
            model = model.with(constraint!(gain == weights[i] * level));
            model = model.with(constraint!(gain <= caps[i] - floors[i]));
        }
        let floor: f64 = open.iter().map(|&i| floors[i]).sum();
        let solution = model.with(constraint!(total <= capacity - fixed - floor)).solve().unwrap();
        let level = solution.value(level);
        let before = open.len();
        for &i in &open {
            shares[i] = floors[i] + weights[i] * level;
        }
        open.retain(|&i| caps[i] - shares[i] > 1e-6);
        if open.len() == before {
            break;
        }
    }
    shares
}

/// The rule of the documentation, with linear programs in place of integer arithmetic.
fn divide_by_lp(capacity: u64, claims: &[Claim]) -> Vec<f64> {
    let caps: Vec<f64> = claims.iter().map(|c| c.requested.min(c.limit) as f64).collect();
    let entitled: Vec<f64> = claims.iter().zip(&caps).map(|(c, cap)| cap.min(c.deserved as f64)).collect();
    let deserved: Vec<f64> = claims.iter().map(|c| c.deserved as f64).collect();
    let capacity = capacity as f64;
    let mut shares = fill_by_lp(capacity, &vec![0.0; claims.len()], &entitled, &deserved);
    for priority in (0..3).rev() {
        let weigh = |c: &Claim| if c.priority == priority { f64::from(c.weight) } else { 0.0 };
        let weights: Vec<f64> = claims.iter().map(weigh).collect();
        shares = fill_by_lp(capacity, &shares, &caps, &weights);
    }
    shares
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn shares_are_the_optimum_up_to_rounding(capacity in 0..20_000u64, claims in claims()) {
        let shares = divide(capacity, BY_ONES, &claims);
        // Every stage rounds each share by less than one, and what rounding takes from one it gives
        // to others.
        let slack = 2.0 * claims.len() as f64;
        for (share, optimum) in shares.iter().zip(divide_by_lp(capacity, &claims)) {
            prop_assert!((*share as f64 - optimum).abs() <= slack, "{shares:?}, optimum {optimum}");
        }
    }

    #[test]
    fn bounds_hold_exactly(capacity in 0..20_000u64, unit in 1..1500u64, usage_percent in 0..300u32, claims in claims(),
                           usage in prop::collection::vec(0..1_000_000u32, 7)) {
        let claims: Vec<Claim> = claims.into_iter().zip(usage).map(|(c, usage_ppm)| Claim { usage_ppm, ..c }).collect();
        let shares = divide(capacity, Division { unit, usage_percent }, &claims);
        prop_assert!(shares.iter().sum::<u64>() <= capacity);
        let entitled: u64 = claims.iter().map(|c| c.deserved.min(c.requested).min(c.limit)).sum();
        for (share, claim) in shares.iter().zip(&claims) {
            prop_assert!(*share <= claim.requested.min(claim.limit));
            if entitled <= capacity {
                prop_assert!(*share >= claim.deserved.min(claim.requested).min(claim.limit));
            }
        }
        // Nothing is left over while somebody with a weight could use it.
        if shares.iter().sum::<u64>() < capacity {
            for (share, claim) in shares.iter().zip(&claims) {
                prop_assert!(*share == claim.requested.min(claim.limit) || claim.weight == 0);
            }
        }
    }

    #[test]
    fn more_recent_use_never_gets_more(capacity in 1..20_000u64, weights in prop::collection::vec(1..5u32, 2..5),
                                       usage in 0..500_000u32) {
        let greedy = |usage_ppm, weight| Claim {
            deserved: 0, requested: u64::MAX, limit: u64::MAX, priority: 0, weight, usage_ppm,
        };
        let mut claims: Vec<Claim> = weights.iter().map(|&weight| greedy(0, weight)).collect();
        let division = Division { unit: 1, usage_percent: 100 };
        let before = divide(capacity, division, &claims)[0];
        claims[0].usage_ppm = usage;
        prop_assert!(divide(capacity, division, &claims)[0] <= before);
    }
}

/// A queue of a random tree: what it has to itself, and its children.
#[derive(Debug, Clone)]
struct Branch {
    claim: Claim,
    children: Vec<Claim>,
}

fn branches() -> impl Strategy<Value = Vec<Branch>> {
    let branch = (claim(), prop::collection::vec(claim(), 0..4));
    prop::collection::vec(branch.prop_map(|(claim, children)| Branch { claim, children }), 1..4)
}

/// As an operator states it; amounts in thousandths of a GPU, so that nothing is rounded away.
fn spec(name: &str, claim: &Claim) -> QueueSpec {
    let gpus = |milli: u64| Some(milli as f64 / 1000.0);
    let mut spec =
        QueueSpec { weight: claim.weight.into(), priority: claim.priority, ..QueueSpec::new(name) };
    spec.deserved.gpus = gpus(claim.deserved);
    spec.limit.gpus = (claim.limit < u64::MAX).then_some(gpus(claim.limit.max(claim.deserved))).flatten();
    spec
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// The shares of a whole tree, as the scheduler works them out from the jobs of its leaves,
    /// against linear programs from the top down.
    #[test]
    fn shares_of_a_tree_are_the_optimum_up_to_rounding(gpus in 0..16u8, branches in branches()) {
        let mut specs = Vec::new();
        for (index, Branch { claim, children }) in branches.iter().enumerate() {
            let name = index.to_string();
            if children.is_empty() {
                specs.push(spec(&name, claim));
            } else {
                // A parent deserves what its children do, and limits nothing of it.
                let deserved = children.iter().map(|child| child.deserved).sum();
                specs.push(spec(&name, &Claim { deserved, ..*claim }));
            }
            let below = |(nth, child): (usize, &Claim)| spec(&format!("{name}.{nth}"), child).below(&name);
            specs.extend(children.iter().enumerate().map(below));
        }
        let tree = QueueTree::new(&specs).unwrap();
        let config = Config { gpu_unit_milli: 1, ..Config::default() };
        let mut scheduler = Scheduler::new(tree.clone(), Placer::new(Policy::BestFit), config);
        scheduler.add_node(NodeSpec {
            cpu_milli: 0, memory_mib: 0, gpus, model: ModelId::new(0).unwrap(), gpu_milli: 1000, gpu_memory_mib: 0,
            gpu_memory_leasable_mib: 0,
            gpu_units_milli: 0, labels: LabelSet::NONE, domains: Vec::new(),
        }).unwrap();
        // Each leaf asks for what it requests in one job of many small tasks; there is no CPU for
        // them, so that none of them starts.
        let requests: Vec<(String, u64)> = branches.iter().enumerate().flat_map(|(index, Branch { claim, children })| {
            let own = children.is_empty().then(|| (index.to_string(), claim.requested));
            let below = children.iter().enumerate().map(move |(nth, child)| (format!("{index}.{nth}"), child.requested));
            own.into_iter().chain(below)
        }).collect();
        for (name, requested) in &requests {
            if *requested > 0 {
                let job = JobSpec::new(tree.find(name).unwrap(), Request::cpu(1, 0).with_gpus(1, 1));
                scheduler.submit(JobSpec { tasks_max: *requested as u32, ..job }).unwrap();
            }
        }
        scheduler.cycle(0);
        let requested = |id| requests.iter().find(|(name, _)| tree.find(name) == Some(id)).map_or(0, |(_, amount)| *amount);
        let slack = 4.0 * specs.len() as f64;
        check_level(&scheduler, tree.roots(), 1000.0 * f64::from(gpus), &requested, slack)?;
    }
}

/// What a queue asks for: its own jobs, or what its children may have.
fn asked(tree: &QueueTree, id: QueueId, requested: &dyn Fn(QueueId) -> u64) -> u64 {
    let queue = tree.queue(id);
    let children = queue.children.iter().map(|&child| asked(tree, child, requested)).sum::<u64>();
    (requested(id) + children).min(queue.limit[Resource::Gpu])
}

fn check_level(
    scheduler: &Scheduler,
    queues: &[QueueId],
    capacity: f64,
    requested: &dyn Fn(QueueId) -> u64,
    slack: f64,
) -> Result<(), TestCaseError> {
    let tree = scheduler.queues();
    let claim = |&id: &QueueId| {
        let queue = tree.queue(id);
        Claim {
            deserved: queue.deserved[Resource::Gpu],
            requested: asked(tree, id, requested),
            limit: queue.limit[Resource::Gpu],
            priority: queue.priority,
            weight: queue.weight,
            usage_ppm: 0,
        }
    };
    let claims: Vec<Claim> = queues.iter().map(claim).collect();
    for (&queue, optimum) in queues.iter().zip(divide_by_lp(capacity.round() as u64, &claims)) {
        let share = scheduler.fair_share(queue)[Resource::Gpu] as f64;
        prop_assert!(
            (share - optimum).abs() <= slack,
            "{}: {share}, optimum {optimum}",
            tree.queue(queue).name
        );
        check_level(scheduler, &tree.queue(queue).children, share, requested, slack)?;
    }
    Ok(())
}

#[test]
fn surplus_is_handed_out_in_whole_gpus() {
    let claim =
        |requested| Claim { deserved: 0, requested, limit: u64::MAX, priority: 0, weight: 1, usage_ppm: 0 };
    let division = Division { unit: 1000, usage_percent: 0 };
    assert_eq!(divide(8_000, division, &[claim(9_000); 3]), [3_000, 3_000, 2_000]);
    assert_eq!(divide(8_000, division, &[claim(500), claim(9_000), claim(9_000)]), [500, 4_000, 3_500]);
}

#[test]
fn twice_its_part_of_late_gets_nothing() {
    let claim = |usage_ppm| Claim {
        deserved: 0,
        requested: 9_000,
        limit: u64::MAX,
        priority: 0,
        weight: 1,
        usage_ppm,
    };
    let division = Division { unit: 1, usage_percent: 100 };
    assert_eq!(divide(8_000, division, &[claim(1_000_000), claim(0)]), [0, 8_000]);
    assert_eq!(divide(8_000, division, &[claim(500_000), claim(500_000)]), [4_000, 4_000]);
    assert_eq!(divide(8_000, division, &[claim(750_000), claim(250_000)]), [2_000, 6_000]);
}
