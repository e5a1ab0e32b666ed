//! Which GPUs of a node are taken where some are linked.

use sluice_sched::{
    Cluster, Fragmentation, GpuSet, LabelSet, Link, Links, Misfit, ModelId, NodeSpec, Placement, Placer,
    Policy, Request,
};

/// One node whose GPUs are linked as rows of digits say, and what GPUs are taken for one request
/// after the other.
fn check(policy: &Policy, rows: &[&str], requests: &[(u8, u16)], expect: &[&[usize]]) {
    let mut cluster = cluster(rows);
    let mut placer = Placer::new(policy.clone());
    for (&(gpus, milli), &expect) in requests.iter().zip(expect) {
        let request = Request::cpu(0, 0).with_gpus(gpus, milli);
        let placement = placer.place(&cluster, &request).unwrap();
        assert_eq!(placement.gpus.iter().collect::<Vec<_>>(), expect, "{gpus} x {milli} of {rows:?}");
        cluster.allocate(&placement).unwrap();
    }
}

fn cluster(rows: &[&str]) -> Cluster {
    let spec = NodeSpec {
        cpu_milli: 0,
        memory_mib: 0,
        gpus: rows.len() as u8,
        model: ModelId::new(0).unwrap(),
        gpu_milli: 1000,
        gpu_memory_mib: 16_384,
        gpu_memory_leasable_mib: 16_384,
        gpu_units_milli: 0,
        labels: LabelSet::NONE,
        domains: Vec::new(),
    };
    let mut cluster = Cluster::new();
    let node = cluster.add_node(spec).unwrap();
    let near = |one: usize, other: usize| u16::from(rows[one].as_bytes()[other] - b'0');
    let links = Links::new(rows.len(), near).with(Link::Nvlink, |one, other| near(one, other) > 0);
    cluster.set_links(node, links).unwrap();
    cluster
}

fn policies() -> [Policy; 3] {
    let usual =
        [(1, 1000), (2, 1000), (1, 500)].map(|(gpus, milli)| Request::cpu(0, 0).with_gpus(gpus, milli));
    [Policy::BestFit, Policy::Spread, Policy::Fgd(Fragmentation::from_requests(&usual))]
}

/// Pairs 0-2 and 1-3.
const PAIRS: [&str; 4] = ["0090", "0009", "9000", "0900"];

#[test]
fn several_gpus_of_a_request_are_those_that_are_linked_best() {
    for policy in policies() {
        check(&policy, &PAIRS, &[(2, 1000), (2, 1000)], &[&[0, 2], &[1, 3]]);
        // Two islands of three and four; within the larger the links of some are wider.
        let islands = ["0330000", "3030000", "3300000", "0000111", "0001011", "0001101", "0001110"];
        let islands = islands.map(|row| row.replace('1', "2"));
        let islands: Vec<&str> = islands.iter().map(String::as_str).collect();
        check(&policy, &islands, &[(3, 1000), (3, 1000)], &[&[0, 1, 2], &[3, 4, 5]]);
        check(&policy, &islands, &[(4, 1000)], &[&[3, 4, 5, 6]]);
    }
}

#[test]
fn a_single_gpu_leaves_pairs_whole() {
    let one_alone = ["090", "900", "000"];
    for policy in policies() {
        check(&policy, &one_alone, &[(1, 1000), (2, 1000)], &[&[2], &[0, 1]]);
        check(&policy, &PAIRS, &[(1, 1000), (2, 1000), (1, 1000)], &[&[0], &[1, 3], &[2]]);
    }
}

#[test]
fn links_do_not_outweigh_what_the_policy_wants() {
    // A half of GPU 1 is taken: another half goes there, and two halves go where a GPU is broken
    // already.
    let policy = Policy::BestFit;
    let mut cluster = cluster(&PAIRS);
    let node = cluster.nodes().next().unwrap().0;
    let half = Request::cpu(0, 0).with_gpus(1, 500);
    cluster.allocate(&Placement { request: half, node, gpus: GpuSet::EMPTY.with(1) }).unwrap();
    let mut placer = Placer::new(policy);
    let taken = |request: &Request, placer: &mut Placer| placer.place(&cluster, request).unwrap().gpus;
    assert_eq!(taken(&half, &mut placer), GpuSet::EMPTY.with(1));
    let halves = half.with_gpus(2, 500);
    assert_eq!(
        taken(&halves, &mut placer),
        GpuSet::EMPTY.with(1).with(3),
        "of the whole ones the one that is linked to it"
    );
}

#[test]
fn without_links_nothing_is_another() {
    let none = ["000", "000", "000"];
    let all = ["011", "101", "110"];
    for policy in policies() {
        for rows in [&none, &all] {
            check(&policy, rows, &[(1, 1000), (2, 1000)], &[&[0], &[1, 2]]);
        }
    }
}

#[test]
fn a_request_that_wants_linked_gpus_gets_those_or_none() {
    let linked = |gpus, milli| Request::cpu(0, 0).with_gpus(gpus, milli).with_linked(Link::Nvlink);
    for policy in policies() {
        let mut cluster = cluster(&PAIRS);
        let node = cluster.nodes().next().unwrap().0;
        let mut placer = Placer::new(policy);
        // The policy would take GPU 1, of which a part is gone; no other is linked to it that has
        // as much.
        let taken =
            Placement { request: Request::cpu(0, 0).with_gpus(1, 700), node, gpus: GpuSet::EMPTY.with(1) };
        cluster.allocate(&taken).unwrap();
        let pair = placer.place(&cluster, &linked(2, 500)).unwrap();
        assert_eq!(pair.gpus, GpuSet::EMPTY.with(0).with(2));
        cluster.allocate(&pair).unwrap();
        let whole = placer.place(&cluster, &linked(2, 1000)).unwrap_err();
        assert_eq!((whole.count(Misfit::GpuCompute), whole.count(Misfit::GpuLinks)), (1, 0));
        cluster.release(&pair).unwrap();
        let three = placer.place(&cluster, &linked(3, 100)).unwrap_err();
        assert_eq!(three.count(Misfit::GpuLinks), 1, "no three are linked to each other");
        assert_eq!(placer.place(&cluster, &linked(1, 100)).unwrap().gpus.len(), 1, "one is linked to itself");
        let numa = Request::cpu(0, 0).with_gpus(2, 100).with_linked(Link::Numa);
        assert_eq!(
            placer.place(&cluster, &numa).unwrap_err().count(Misfit::GpuLinks),
            1,
            "nobody has said so"
        );
    }
}
