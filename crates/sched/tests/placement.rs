//! Properties of the cluster's accounting and of placement, on random clusters and random work.

use proptest::prelude::*;
use sluice_sched::{
    Cluster, DomainId, Fragmentation, LabelSet, Misfit, ModelId, ModelSet, NodeSpec, Placement, Placer,
    Policy, Request, Training, Trial, Unplaced, WHOLE_GPU_MILLI,
};

const MODELS: u8 = 3;

fn model(index: u8) -> ModelId {
    ModelId::new(index).unwrap()
}

fn node_specs() -> impl Strategy<Value = Vec<NodeSpec>> {
    let gpu_milli =
        prop_oneof![3 => Just(WHOLE_GPU_MILLI), 1 => prop::sample::select(vec![1500, 2000, 10_000])];
    let node = (1..=16u32, 1..=64u32, 0..=8u8, 0..MODELS, 8..=80u32, gpu_milli);
    let node = node.prop_map(|(cpu, memory, gpus, model_index, gpu_memory, gpu_milli)| NodeSpec {
        cpu_milli: cpu * 8_000,
        memory_mib: memory * 8_192,
        gpus,
        model: model(model_index),
        gpu_milli,
        gpu_memory_mib: gpu_memory * 1024,
        gpu_memory_leasable_mib: gpu_memory * 1024,
        gpu_units_milli: 0,
        labels: LabelSet::NONE,
        domains: vec![DomainId(0)],
    });
    prop::collection::vec(node, 1..40)
}

fn request() -> impl Strategy<Value = Request> {
    let gpus = prop_oneof![
        3 => (Just(1u8), (1..=20u16).prop_map(|twentieths| twentieths * 50)),
        2 => (prop::sample::select(vec![1u8, 2, 4, 8]), Just(1000u16)),
        1 => (prop::sample::select(vec![2u8, 3]), (1..=20u16).prop_map(|twentieths| twentieths * 50)),
        1 => Just((0u8, 0u16)),
    ];
    (1..=32u32, 1..=32u32, gpus, 0..=24u32, 0..1u8 << MODELS).prop_map(
        |(cpu, memory, (gpus, milli), device, models)| {
            let accepted = (0..MODELS).filter(|index| models == 0 || models >> index & 1 == 1).map(model);
            let device = if gpus == 0 { 0 } else { device };
            Request::cpu(cpu * 500, memory * 512)
                .with_gpus(gpus, milli)
                .with_gpu_memory(device * 1024)
                .with_models(accepted.collect::<ModelSet>())
        },
    )
}

fn cluster(specs: &[NodeSpec]) -> Cluster {
    let mut cluster = Cluster::new();
    for spec in specs {
        cluster.add_node(spec.clone()).unwrap();
    }
    cluster
}

fn policies(specs: &[NodeSpec], history: &[Request]) -> Vec<Policy> {
    let training = Training { rounds: 1, replays: 1, seed: 3 };
    let learned = training.learn(specs, history).map(Policy::Sluice);
    let untrained = [
        Policy::Random { seed: 7 },
        Policy::BestFit,
        Policy::Spread,
        Policy::Fgd(Fragmentation::from_requests(history)),
    ];
    untrained.into_iter().chain(learned).collect()
}

/// Everything that is free, as one comparable value.
fn free(cluster: &Cluster) -> Vec<(u32, u32, Vec<sluice_sched::Gpu>)> {
    cluster
        .nodes()
        .map(|(_, node)| (node.free_cpu_milli(), node.free_memory_mib(), node.gpus().to_vec()))
        .collect()
}

/// What the placements take from each node is what is missing there.
fn assert_accounted(cluster: &Cluster, running: &[Placement]) {
    for (id, node) in cluster.nodes() {
        let here = || running.iter().filter(|placement| placement.node == id);
        let spec = node.spec();
        assert_eq!(here().map(|p| p.request.cpu_milli).sum::<u32>(), spec.cpu_milli - node.free_cpu_milli());
        assert_eq!(
            here().map(|p| p.request.memory_mib).sum::<u32>(),
            spec.memory_mib - node.free_memory_mib()
        );
        for (index, gpu) in node.gpus().iter().enumerate() {
            let on = || here().filter(|placement| placement.gpus.contains(index));
            // A whole GPU is alone, and takes all that may be promised of it.
            let whole = on().any(|p| p.request.gpu_milli == 1000);
            assert!(!whole || on().count() == 1, "a whole GPU is promised to others as well");
            let takes = if whole { spec.gpu_milli } else { on().map(|p| p.request.gpu_milli).sum() };
            assert_eq!(takes, spec.gpu_milli - gpu.milli);
            let memory: u32 = on().map(|p| p.request.gpu_memory_mib).sum();
            assert_eq!(memory, spec.gpu_memory_mib - gpu.memory_mib);
        }
    }
    let used: u64 = running.iter().map(|placement| placement.request.total_gpu_milli()).sum();
    assert_eq!(cluster.usage().gpu_milli_used, used);
}

/// Arrivals and, where the number says so, the end of one that runs.
fn replay(cluster: &mut Cluster, placer: &mut Placer, work: &[(Request, usize)]) -> Vec<Placement> {
    let mut running: Vec<Placement> = Vec::new();
    for (request, end) in work {
        if let Ok(placement) = placer.place(cluster, request) {
            cluster.allocate(&placement).expect("a placement is always accepted");
            running.push(placement);
        }
        if end % 3 == 0 && !running.is_empty() {
            let ended = running.swap_remove(end % running.len());
            cluster.release(&ended).unwrap();
        }
    }
    running
}

fn work(count: usize) -> impl Strategy<Value = Vec<(Request, usize)>> {
    // Few classes, so that indexes are used again and again.
    prop::collection::vec(request(), 1..20).prop_flat_map(move |classes| {
        prop::collection::vec((prop::sample::select(classes), any::<usize>()), 1..count)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn accounts_balance_and_emptying_restores_everything(specs in node_specs(), work in work(150)) {
        let history: Vec<Request> = work.iter().map(|(request, _)| *request).collect();
        for policy in policies(&specs, &history) {
            let mut cluster = cluster(&specs);
            let empty = free(&cluster);
            let running = replay(&mut cluster, &mut Placer::new(policy), &work);
            assert_accounted(&cluster, &running);
            for placement in &running {
                cluster.release(placement).unwrap();
            }
            prop_assert_eq!(free(&cluster), empty);
            prop_assert!(cluster.nodes().all(|(_, node)| node.is_empty()));
        }
    }

    #[test]
    fn the_index_places_as_a_look_at_every_node_does(specs in node_specs(), work in work(200)) {
        let history: Vec<Request> = work.iter().map(|(request, _)| *request).collect();
        for policy in policies(&specs, &history).into_iter().skip(1) {
            let mut cluster = cluster(&specs);
            let mut placer = Placer::new(policy.clone());
            let mut running: Vec<Placement> = Vec::new();
            for (request, end) in &work {
                let indexed = placer.place(&cluster, request);
                let all: Vec<_> = cluster.nodes().map(|(id, _)| id).collect();
                prop_assert_eq!(indexed, Placer::new(policy.clone()).place_among(&cluster, request, all));
                if let Ok(placement) = indexed {
                    cluster.allocate(&placement).unwrap();
                    running.push(placement);
                }
                if end % 3 == 0 && !running.is_empty() {
                    cluster.release(&running.swap_remove(end % running.len())).unwrap();
                }
                if end % 17 == 0 {
                    let (node, _) = cluster.nodes().nth(end % specs.len()).unwrap();
                    let schedulable = cluster.node(node).is_schedulable();
                    cluster.set_schedulable(node, !schedulable).unwrap();
                }
            }
        }
    }

    #[test]
    fn equal_questions_get_equal_answers(specs in node_specs(), work in work(100)) {
        let history: Vec<Request> = work.iter().map(|(request, _)| *request).collect();
        for policy in policies(&specs, &history) {
            let run = || replay(&mut cluster(&specs), &mut Placer::new(policy.clone()), &work);
            prop_assert_eq!(run(), run());
        }
    }

    #[test]
    fn the_unplaced_are_told_why(specs in node_specs(), request in request()) {
        let cluster = cluster(&specs);
        let unplaced = Unplaced::explain(&cluster, &request);
        let counted: u32 = Misfit::ALL.iter().map(|&misfit| unplaced.count(misfit)).sum();
        match Placer::new(Policy::BestFit).place(&cluster, &request) {
            Ok(_) => prop_assert!(counted < unplaced.nodes),
            Err(why) => {
                prop_assert_eq!(why, unplaced);
                prop_assert_eq!(counted, unplaced.nodes);
            }
        }
    }

    #[test]
    fn a_dropped_trial_leaves_no_trace(specs in node_specs(), work in work(100), keep in any::<bool>()) {
        let mut cluster = cluster(&specs);
        let mut placer = Placer::new(Policy::BestFit);
        let running = replay(&mut cluster, &mut placer, &work);
        let before = (free(&cluster), *cluster.usage());
        let mut trial = Trial::new(&mut cluster);
        for placement in running.iter().take(running.len() / 2) {
            trial.release(placement).unwrap();
        }
        let savepoint = trial.savepoint();
        let half = free(trial.cluster());
        for (request, _) in &work {
            if let Ok(placement) = placer.place(trial.cluster(), request) {
                trial.allocate(&placement).unwrap();
            }
        }
        trial.rollback_to(savepoint);
        prop_assert_eq!(free(trial.cluster()), half.clone());
        if keep {
            trial.commit();
            prop_assert_eq!(free(&cluster), half);
        } else {
            drop(trial);
            prop_assert_eq!((free(&cluster), *cluster.usage()), before);
        }
    }
}

#[test]
fn a_thousand_requests_at_once_never_get_more_than_there_is() {
    // A burst of small memory requests on shared GPUs, the case in which fractional accounting goes
    // wrong elsewhere.
    let spec = NodeSpec {
        cpu_milli: 64_000,
        memory_mib: 256 * 1024,
        gpus: 2,
        model: model(0),
        gpu_milli: WHOLE_GPU_MILLI,
        gpu_memory_mib: 46_068,
        gpu_memory_leasable_mib: 46_068,
        gpu_units_milli: 0,
        labels: LabelSet::NONE,
        domains: Vec::new(),
    };
    let mut cluster = cluster(&vec![spec; 10]);
    let mut placer = Placer::new(Policy::BestFit);
    let request = Request::cpu(100, 100).with_gpus(1, 10).with_gpu_memory(2_000);
    let mut running = Vec::new();
    let refused = (0..1000).filter(|_| match placer.place(&cluster, &request) {
        Ok(placement) => {
            cluster.allocate(&placement).unwrap();
            running.push(placement);
            false
        }
        Err(why) => {
            assert_eq!(why.count(Misfit::GpuMemory), 10);
            true
        }
    });
    // 23 of 2,000 MiB fit in 46,068 MiB.
    assert_eq!(refused.count(), 1000 - 20 * 23);
    assert_accounted(&cluster, &running);
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let spec = NodeSpec {
        cpu_milli: 8_000,
        memory_mib: 8_192,
        gpus: 1,
        model: model(0),
        gpu_milli: WHOLE_GPU_MILLI,
        gpu_memory_mib: 16_384,
        gpu_memory_leasable_mib: 16_384,
        gpu_units_milli: 0,
        labels: LabelSet::NONE,
        domains: Vec::new(),
    };
    let mut cluster = cluster(&[spec]);
    let request = Request::cpu(1_000, 1_024).with_gpus(1, 600).with_gpu_memory(1_024);
    let placement = Placer::new(Policy::BestFit).place(&cluster, &request).unwrap();
    let error = |result: Result<(), sluice_sched::ClusterError>| result.unwrap_err().to_string();

    assert!(error(cluster.release(&placement)).contains("more free than it has"));
    cluster.allocate(&placement).unwrap();
    let before = free(&cluster);
    assert!(error(cluster.allocate(&placement)).contains("too little free"));
    let two = Placement { gpus: placement.gpus.with(1), ..placement };
    assert!(error(cluster.allocate(&two)).contains("2 GPUs, its request asks for 1"));
    let second = Placement { gpus: sluice_sched::GpuSet::EMPTY.with(1), ..placement };
    assert!(error(cluster.allocate(&second)).contains("has 1 GPUs"));
    assert_eq!(free(&cluster), before);
}
