//! Allocation on the openb lists (Weng et al., USENIX ATC 2023) while policies are being developed; `sluice simulate` is the
//! tool for everybody else.
//!
//! `cargo run --release -p sluice-sched --example openb -- FOLDER POLICY,... FIRST..LAST LIST...`

use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

use sluice_sched::{
    Cluster, Fragmentation, LabelSet, Leftover, ModelId, ModelSet, NodeSpec, Placer, Policy, Random, Request,
    Training,
};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, policies, seeds, lists @ ..] = &args[..] else {
        panic!("FOLDER POLICY,... FIRST..LAST LIST...");
    };
    let (first, last) = seeds.split_once("..").expect("FIRST..LAST");
    let seeds: Vec<u64> = (first.parse().unwrap()..=last.parse().unwrap()).collect();
    let mut models = Models::default();
    let folder = Path::new(folder);
    let nodes = read_nodes(&folder.join("openb_node_list_gpu_node.csv"), &mut models);
    for list in lists {
        let pods = read_pods(&folder.join(format!("openb_pod_list_{list}.csv")), &mut models);
        for policy in policies.split(',') {
            let trained = policy.starts_with("sluice").then(|| train(&nodes, &pods, policy));
            let start = Instant::now();
            let mut placed = 0;
            let at_100: Vec<f64> = seeds
                .iter()
                .map(|&seed| {
                    let policy = match policy {
                        "random" => Policy::Random { seed },
                        "bestfit" => Policy::BestFit,
                        "spread" => Policy::Spread,
                        "fgd" => Policy::Fgd(Fragmentation::from_requests(&pods)),
                        _ if trained.is_some() => Policy::Sluice(trained.clone().unwrap()),
                        other => panic!("no policy {other}"),
                    };
                    let arrivals = arrivals(&nodes, &pods, seed);
                    placed += arrivals.len();
                    run(&nodes, &arrivals, policy, seed)
                })
                .collect();
            let mean = at_100.iter().sum::<f64>() / at_100.len() as f64;
            let rate = placed as f64 / start.elapsed().as_secs_f64();
            println!("{list:12} {policy:8} {mean:.2} {rate:9.0}/s  {at_100:.2?}");
        }
    }
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
            gpu_memory_mib: 0,
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

/// Allocated % when 100 % has arrived.
fn run(nodes: &[NodeSpec], arrivals: &[Request], policy: Policy, seed: u64) -> f64 {
    let mut order = nodes.to_vec();
    Random::new(seed ^ 0x6e6f_6465).shuffle(&mut order);
    let mut cluster = Cluster::new();
    for node in order {
        cluster.add_node(node).unwrap();
    }
    let capacity = f64::from(cluster.usage().gpus) * 1000.0;
    let mut placer = Placer::new(policy);
    let (mut arrived, mut sum, mut count) = (0, 0.0, 0);
    for request in arrivals {
        arrived += request.total_gpu_milli();
        if let Ok(placement) = placer.place(&cluster, request) {
            cluster.allocate(&placement).unwrap();
        }
        if (100.0 * arrived as f64 / capacity).round() == 100.0 {
            sum += 100.0 * cluster.usage().gpu_milli_used as f64 / capacity;
            count += 1;
        }
    }
    sum / f64::from(count)
}

/// `sluice:NAME=VALUE:...`
fn train(nodes: &[NodeSpec], pods: &[Request], policy: &str) -> Leftover {
    let mut training = Training::default();
    let mut half = false;
    for setting in policy.split(':').skip(1) {
        let (name, value) = setting.split_once('=').unwrap();
        match name {
            "rounds" => training.rounds = value.parse().unwrap(),
            "replays" => training.replays = value.parse().unwrap(),
            "seed" => training.seed = value.parse().unwrap(),
            "half" => half = true,
            _ => panic!("{name}"),
        }
    }
    // Drawn independently of what is scored, as many as the list has; or one half of the list.
    let mut random = Random::new(0x6869_7374 + training.seed);
    let history: Vec<Request> = if half {
        let mut pods = pods.to_vec();
        random.shuffle(&mut pods);
        pods[..pods.len() / 2].to_vec()
    } else {
        (0..pods.len()).map(|_| pods[random.below(pods.len())]).collect()
    };
    training.learn(nodes, &history).unwrap()
}
