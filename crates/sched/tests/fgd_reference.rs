//! Fragmentation gradient descent as the paper states it (Weng et al., USENIX ATC 2023, section 4),
//! without tables, indexes or shortcuts: the placer must decide the same, node and GPU.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use proptest::prelude::*;
use sluice_sched::{
    Cluster, Fragmentation, LabelSet, ModelId, ModelSet, Node, NodeId, NodeSpec, Placement, Placer, Policy,
    Request, WHOLE_GPU_MILLI, fit,
};

/// (CPU, GPUs, share of each, models) and how often it was asked for.
type Typical = Vec<((u32, u8, u16, ModelSet), i64)>;

fn typical(history: &[Request]) -> Typical {
    let mut counts = BTreeMap::new();
    for request in history {
        let models = if request.gpus == 0 { ModelSet::ALL } else { request.models };
        *counts.entry((request.cpu_milli, request.gpus, request.gpu_milli, models)).or_insert(0) += 1;
    }
    let mut typical: Typical = counts.into_iter().collect();
    typical.sort_by_key(|&(kind, count)| (Reverse(count), kind));
    let mut covered = 0;
    typical
        .into_iter()
        .take_while(|&(_, count)| {
            let goes_on = covered * 100 < history.len() as i64 * 95;
            covered += count;
            goes_on
        })
        .collect()
}

/// Free compute that typical requests cannot use, summed over them.
fn fragmented(typical: &Typical, model: ModelId, cpu_milli: u32, gpus: &[u16]) -> i64 {
    let mut sum = 0;
    for &((cpu, count, share, models), times) in typical {
        let total: i64 = gpus.iter().map(|&milli| i64::from(milli)).sum();
        let suitable = gpus.iter().filter(|&&milli| milli >= share).count();
        let fits = count > 0 && cpu <= cpu_milli && models.contains(model) && suitable >= usize::from(count);
        let too_full: i64 = gpus.iter().filter(|&&milli| milli < share).map(|&milli| i64::from(milli)).sum();
        sum += times * if fits { too_full } else { total };
    }
    sum
}

/// The GPUs to take on a node and the score, 0 to 100.
fn choose(typical: &Typical, node: &Node, request: &Request) -> (u32, Vec<usize>) {
    let model = node.spec().model;
    let gpus: Vec<u16> = node.gpus().iter().map(|gpu| gpu.milli).collect();
    let requests: i64 = typical.iter().map(|&(_, times)| times).sum();
    let score = |chosen: &[usize]| {
        let mut after = gpus.clone();
        chosen.iter().for_each(|&gpu| after[gpu] -= request.gpu_milli);
        let before = fragmented(typical, model, node.free_cpu_milli(), &gpus);
        let after = fragmented(typical, model, node.free_cpu_milli() - request.cpu_milli, &after);
        let gain = (before - after) as f64 / (requests as f64 * 1000.0);
        (100.0 / (1.0 + (-gain).exp())) as u32
    };
    let suitable = || (0..gpus.len()).filter(|&gpu| gpus[gpu] >= request.gpu_milli);
    if request.gpus == 1 && request.gpu_milli < 1000 {
        let mut best: Option<(u32, Vec<usize>)> = None;
        for gpu in suitable() {
            let score = score(&[gpu]);
            if best.as_ref().is_none_or(|&(most, _)| score > most) {
                best = Some((score, vec![gpu]));
            }
        }
        return best.unwrap();
    }
    let first: Vec<usize> = suitable().take(request.gpus.into()).collect();
    (score(&first), first)
}

fn place(typical: &Typical, cluster: &Cluster, request: &Request) -> Option<(NodeId, Vec<usize>)> {
    let mut best: Option<(u32, NodeId, Vec<usize>)> = None;
    for (id, node) in cluster.nodes().filter(|(_, node)| fit(node, request).is_ok()) {
        let (score, gpus) = choose(typical, node, request);
        if best.as_ref().is_none_or(|&(most, ..)| score > most) {
            best = Some((score, id, gpus));
        }
    }
    best.map(|(_, id, gpus)| (id, gpus))
}

fn node() -> impl Strategy<Value = NodeSpec> {
    (1..=12u32, 0..=8u8, 0..3u8).prop_map(|(cpu, gpus, model)| NodeSpec {
        cpu_milli: cpu * 8_000,
        memory_mib: 262_144,
        gpus,
        model: ModelId::new(model).unwrap(),
        gpu_milli: WHOLE_GPU_MILLI,
        gpu_memory_mib: 0,
        gpu_memory_leasable_mib: 0,
        gpu_units_milli: 0,
        labels: LabelSet::NONE,
        domains: Vec::new(),
    })
}

fn request() -> impl Strategy<Value = Request> {
    let gpus = prop_oneof![
        4 => (Just(1u8), prop::sample::select(vec![190u16, 250, 460, 470, 650, 810])),
        3 => (prop::sample::select(vec![1u8, 2, 4, 8]), Just(1000u16)),
        1 => Just((0u8, 0u16)),
    ];
    (1..=12u32, gpus, 1..8u8).prop_map(|(cpu, (gpus, milli), models)| {
        let accepted = (0..3).filter(|index| models >> index & 1 == 1).filter_map(ModelId::new);
        Request::cpu(cpu * 1_500, 4_096).with_gpus(gpus, milli).with_models(accepted.collect())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_placer_decides_as_the_paper_says(
        specs in prop::collection::vec(node(), 1..12),
        classes in prop::collection::vec(request(), 1..12),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 1..120),
    ) {
        let work: Vec<Request> = picks.iter().map(|pick| *pick.get(&classes)).collect();
        let typical = typical(&work);
        let mut placer = Placer::new(Policy::Fgd(Fragmentation::from_requests(&work)));
        let mut cluster = Cluster::new();
        for spec in specs {
            cluster.add_node(spec).unwrap();
        }
        let mut running: Vec<Placement> = Vec::new();
        for (request, pick) in work.iter().zip(&picks) {
            let expect = place(&typical, &cluster, request);
            let found = placer.place(&cluster, request).ok();
            let found_at = found.map(|placement| (placement.node, placement.gpus.iter().collect::<Vec<_>>()));
            prop_assert_eq!(found_at, expect, "{:?}", request);
            if let Some(placement) = found {
                cluster.allocate(&placement).unwrap();
                running.push(placement);
            }
            // Now and then one ends, so that nodes are not only filled.
            if !running.is_empty() && pick.index(4) == 0 {
                cluster.release(&running.swap_remove(pick.index(running.len()))).unwrap();
            }
        }
    }
}
