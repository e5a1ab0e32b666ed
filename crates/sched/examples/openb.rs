//! The tables on the openb lists (Weng et al., USENIX ATC 2023) in docs/benchmarks.
//!
//! `cargo run --release -p sluice-sched --example openb -- FOLDER TABLE FIRST..LAST [LIST...]`
//!
//! FOLDER holds the lists as published; TABLE is `allocation`, `held-out`, `migration` or `speed`;
//! FIRST to LAST are the seeds.

use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

use sluice_sched::{
    Cluster, Fragmentation, LabelSet, ModelId, ModelSet, NodeSpec, Placement, Placer, Policy, Random,
    RelocationLimits, Request, Training, WHOLE_GPU_MILLI, relocate,
};

const LISTS: [&str; 7] =
    ["default", "multigpu20", "gpushare40", "gpushare80", "gpuspec10", "gpuspec25", "cpu100"];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, table, seeds, lists @ ..] = &args[..] else {
        eprintln!("openb FOLDER allocation|held-out|migration|speed FIRST..LAST [LIST...]");
        std::process::exit(2);
    };
    let (first, last) = seeds.split_once("..").expect("seeds as FIRST..LAST");
    let seeds: Vec<u64> = (first.parse().expect("a seed")..=last.parse().expect("a seed")).collect();
    let all: Vec<String> = LISTS.map(str::to_owned).to_vec();
    let mut models = Models::default();
    let folder = Path::new(folder);
    let nodes = read_nodes(&folder.join("openb_node_list_gpu_node.csv"), &mut models);
    for list in if lists.is_empty() { &all } else { lists } {
        let pods = read_pods(&folder.join(format!("openb_pod_list_{list}.csv")), &mut models);
        match table.as_str() {
            "allocation" => allocation(list, &nodes, &pods, &seeds),
            "held-out" => held_out(list, &nodes, &pods, &seeds),
            "migration" => migration(list, &nodes, &pods, &seeds),
            "speed" => speed(list, &nodes, &pods, seeds[0]),
            other => panic!("no table {other}"),
        }
    }
}

/// The history that the learned policy gets: as many pods as the list has, drawn with replacement
/// and independently of all arrivals that are scored.
const HISTORY_SEED: u64 = 0x6869_7374_6f72_7900;

/// The policies of the published comparison, then ours, trained on draws from the list.
fn allocation(list: &str, nodes: &[NodeSpec], pods: &[Request], seeds: &[u64]) {
    let mut random = Random::new(HISTORY_SEED);
    let history: Vec<Request> = pods.iter().map(|_| pods[random.below(pods.len())]).collect();
    let start = Instant::now();
    let learned = learn(nodes, &history);
    let trained_s = start.elapsed().as_secs_f64();
    let score = |policy: &dyn Fn(u64) -> Policy| -> Vec<f64> {
        let run = |&seed: &u64| fill(nodes, &arrivals(nodes, pods, seed), policy(seed), seed, None).allocated;
        seeds.iter().map(run).collect()
    };
    let fgd = score(&|_| fgd(pods));
    let ours = score(&|_| learned.clone());
    let [random, best_fit] = [score(&|seed| Policy::Random { seed }), score(&|_| Policy::BestFit)];
    println!(
        "| {list} | {} | {} | {} | **{}** | {} | {trained_s:.1} s |",
        mean_sd(&random),
        mean_sd(&best_fit),
        mean_sd(&fgd),
        mean_sd(&ours),
        wins(&ours, &fgd)
    );
}

/// Trained on one half of the pods; all arrivals come from the other half, which FGD knows and ours
/// does not.
fn held_out(list: &str, nodes: &[NodeSpec], pods: &[Request], seeds: &[u64]) {
    let mut halves = pods.to_vec();
    Random::new(HISTORY_SEED).shuffle(&mut halves);
    let (history, scored) = halves.split_at(pods.len() / 2);
    let learned = learn(nodes, history);
    let score = |policy: &Policy| -> Vec<f64> {
        let run =
            |&seed: &u64| fill(nodes, &arrivals(nodes, scored, seed), policy.clone(), seed, None).allocated;
        seeds.iter().map(run).collect()
    };
    let (fgd, ours) = (score(&fgd(scored)), score(&learned));
    println!("| {list} | {} | **{}** | {} |", mean_sd(&fgd), mean_sd(&ours), wins(&ours, &fgd));
}

/// Repeats the arrivals with relocations for pods that do not fit.
fn migration(list: &str, nodes: &[NodeSpec], pods: &[Request], seeds: &[u64]) {
    let mut random = Random::new(HISTORY_SEED);
    let history: Vec<Request> = pods.iter().map(|_| pods[random.below(pods.len())]).collect();
    let learned = learn(nodes, &history);
    for (name, policy) in [("BestFit", Policy::BestFit), ("FGD", fgd(pods)), ("sluice", learned)] {
        let run = |limits| {
            let outcomes: Vec<Fill> = seeds
                .iter()
                .map(|&seed| fill(nodes, &arrivals(nodes, pods, seed), policy.clone(), seed, limits))
                .collect();
            let allocated: Vec<f64> = outcomes.iter().map(|outcome| outcome.allocated).collect();
            let moves: Vec<f64> = outcomes.iter().map(|outcome| outcome.moves as f64).collect();
            (allocated, moves)
        };
        let (without, _) = run(None);
        let (with, moves) = run(Some(RelocationLimits::default()));
        let (moved, _) = moments(&moves);
        println!("| {list} | {name} | {} | {} | {moved:.0} |", mean_sd(&without), mean_sd(&with));
    }
}

/// Placements per second on one core, the median of five runs: while the empty cluster fills, and
/// then while one job ends and one comes, again and again. Pods that do not fit cost time and are
/// not counted.
fn speed(list: &str, nodes: &[NodeSpec], pods: &[Request], seed: u64) {
    let order = arrivals(nodes, pods, seed);
    for (name, policy) in [("BestFit", Policy::BestFit), ("FGD", fgd(pods)), ("sluice", learn(nodes, pods))] {
        let (filling, churning): (Vec<f64>, Vec<f64>) =
            (0..5).map(|_| placements_per_second(nodes, &order, policy.clone(), seed)).unzip();
        println!("| {list} | {name} | {} | {} |", median(filling), median(churning));
    }
}

fn placements_per_second(nodes: &[NodeSpec], order: &[Request], policy: Policy, seed: u64) -> (f64, f64) {
    const CHURN: usize = 50_000;
    let mut cluster = cluster(nodes, seed);
    let mut placer = Placer::new(policy);
    let mut running: Vec<Placement> = Vec::new();
    let mut place = |cluster: &mut Cluster, running: &mut Vec<Placement>, request: &Request| {
        let Ok(placement) = placer.place(cluster, request) else { return 0 };
        cluster.allocate(&placement).expect("the placer keeps to what is free");
        running.push(placement);
        1
    };
    let start = Instant::now();
    let placed: u32 = order.iter().map(|request| place(&mut cluster, &mut running, request)).sum();
    let filling = f64::from(placed) / start.elapsed().as_secs_f64();
    let mut random = Random::new(seed);
    let mut placed = 0;
    let start = Instant::now();
    for _ in 0..CHURN {
        let ended = running.swap_remove(random.below(running.len()));
        cluster.release(&ended).expect("it runs");
        placed += place(&mut cluster, &mut running, &order[random.below(order.len())]);
    }
    (filling, f64::from(placed) / start.elapsed().as_secs_f64())
}

/// With the lowest and the highest.
fn median(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    format!("{:.0} [{:.0}, {:.0}]", values[values.len() / 2], values[0], values[values.len() - 1])
}

fn fgd(pods: &[Request]) -> Policy {
    Policy::Fgd(Fragmentation::from_requests(pods))
}

fn learn(nodes: &[NodeSpec], history: &[Request]) -> Policy {
    Policy::Sluice(Training::default().learn(nodes, history).expect("the lists ask for GPUs"))
}

/// Mean and standard deviation.
fn moments(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0).max(1.0)).sqrt())
}

fn mean_sd(values: &[f64]) -> String {
    let (mean, sd) = moments(values);
    format!("{mean:.2} ± {sd:.2}")
}

fn wins(ours: &[f64], theirs: &[f64]) -> String {
    let won = ours.iter().zip(theirs).filter(|(ours, theirs)| ours > theirs).count();
    format!("{won} of {}", ours.len())
}

#[derive(Default)]
struct Models(HashMap<String, ModelId>);

impl Models {
    fn id(&mut self, name: &str) -> ModelId {
        let next = self.0.len() as u8;
        *self.0.entry(name.to_owned()).or_insert_with(|| ModelId::new(next).expect("at most 64 models"))
    }
}

fn read_nodes(path: &Path, models: &mut Models) -> Vec<NodeSpec> {
    rows(path)
        .map(|row| NodeSpec {
            cpu_milli: row[1].parse().unwrap(),
            memory_mib: row[2].parse().unwrap(),
            gpus: row[3].parse().unwrap(),
            model: models.id(&row[4]),
            gpu_milli: WHOLE_GPU_MILLI,
            gpu_memory_mib: 0,
            gpu_memory_leasable_mib: 0,
            gpu_units_milli: 0,
            labels: LabelSet::NONE,
            domains: Vec::new(),
        })
        .collect()
}

fn read_pods(path: &Path, models: &mut Models) -> Vec<Request> {
    let mut pods: Vec<(String, Request)> = rows(path)
        .map(|row| {
            let spec = row.get(5).map_or("", String::as_str);
            let accepted = match spec {
                "" => ModelSet::ALL,
                names => names.split('|').map(|name| models.id(name)).collect(),
            };
            let gpus: u8 = row[3].parse().unwrap();
            let milli = if gpus == 0 { 0 } else { row[4].parse().unwrap() };
            let request = Request::cpu(row[1].parse().unwrap(), row[2].parse().unwrap());
            (row[0].clone(), request.with_gpus(gpus, milli).with_models(accepted))
        })
        .collect();
    pods.sort_by(|a, b| a.0.cmp(&b.0));
    pods.into_iter().map(|(_, request)| request).collect()
}

fn rows(path: &Path) -> impl Iterator<Item = Vec<String>> {
    let text = std::fs::read_to_string(path).unwrap();
    let rows: Vec<_> =
        text.lines().skip(1).map(|line| line.split(',').map(str::to_owned).collect()).collect();
    rows.into_iter()
}

/// All pods shuffled, then pods drawn with replacement until they ask for 130 % of the GPUs.
fn arrivals(nodes: &[NodeSpec], pods: &[Request], seed: u64) -> Vec<Request> {
    let mut random = Random::new(seed);
    let mut arrivals = pods.to_vec();
    random.shuffle(&mut arrivals);
    let capacity: u64 = nodes.iter().map(|node| u64::from(node.gpus) * 1000).sum();
    let mut demand: u64 = arrivals.iter().map(Request::total_gpu_milli).sum();
    while demand * 10 < capacity * 13 {
        let drawn = pods[random.below(pods.len())];
        demand += drawn.total_gpu_milli();
        arrivals.push(drawn);
    }
    arrivals
}

/// The nodes in an order of the seed, which decides between equal scores.
fn cluster(nodes: &[NodeSpec], seed: u64) -> Cluster {
    let mut order = nodes.to_vec();
    Random::new(seed ^ 0x6e6f_6465).shuffle(&mut order);
    let mut cluster = Cluster::new();
    for node in order {
        cluster.add_node(node).expect("nodes of up to 16 GPUs");
    }
    cluster
}

/// What came of one run.
struct Fill {
    /// Mean over the arrivals that bring the demand to 100 %, rounded, of the share of GPU compute
    /// that is allocated then.
    allocated: f64,
    moves: usize,
}

/// Each pod is tried once, up to a demand of 100 %; pods that do not fit may have others moved out
/// of their way.
fn fill(
    nodes: &[NodeSpec],
    arrivals: &[Request],
    policy: Policy,
    seed: u64,
    limits: Option<RelocationLimits>,
) -> Fill {
    let mut cluster = cluster(nodes, seed);
    let capacity = f64::from(cluster.usage().gpus) * 1000.0;
    let mut placer = Placer::new(policy);
    let mut running: Vec<Vec<((), Placement)>> = vec![Vec::new(); nodes.len()];
    let (mut arrived, mut sum, mut count, mut moves) = (0, 0.0, 0, 0);
    for request in arrivals {
        arrived += request.total_gpu_milli();
        let percent = (100.0 * arrived as f64 / capacity).round();
        if percent > 100.0 {
            break;
        }
        match (placer.place(&cluster, request), limits) {
            (Ok(placement), _) => start(&mut cluster, &mut running, placement),
            (Err(_), Some(limits)) if request.gpus > 0 => {
                moves += make_room(&mut cluster, &mut placer, &mut running, request, limits);
            }
            (Err(_), _) => {}
        }
        if percent == 100.0 {
            sum += 100.0 * cluster.usage().gpu_milli_used as f64 / capacity;
            count += 1;
        }
    }
    Fill { allocated: sum / f64::from(count), moves }
}

fn start(cluster: &mut Cluster, running: &mut [Vec<((), Placement)>], placement: Placement) {
    cluster.allocate(&placement).expect("the placer keeps to what is free");
    running[placement.node.index()].push(((), placement));
}

/// Places the request if it fits once others are moved; says how many were moved.
fn make_room(
    cluster: &mut Cluster,
    placer: &mut Placer,
    running: &mut [Vec<((), Placement)>],
    request: &Request,
    limits: RelocationLimits,
) -> usize {
    let Ok(found) = relocate(cluster, placer, running, request, limits) else { return 0 };
    for moved in &found.moves {
        cluster.release(&moved.from).expect("it runs");
        let here = &mut running[moved.from.node.index()];
        let at = here.iter().position(|(_, placement)| *placement == moved.from).expect("it runs here");
        here.swap_remove(at);
    }
    for to in found.moves.iter().map(|moved| moved.to).chain([found.placement]) {
        start(cluster, running, to);
    }
    found.moves.len()
}
