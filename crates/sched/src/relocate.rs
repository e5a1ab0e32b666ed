//! Making room by moving what runs: a request that fits nowhere gets the room of a few placements
//! that fit elsewhere.
//!
//! For each node that could hold the request, the cheapest placements are looked for whose room
//! suffices: one of them, else the smallest ones together. The cheapest sets are then tried in
//! turn: the request takes the room, and every placement that had to leave must find another place
//! at once. No work is evicted for good. Where the policy can tell, a relocation that would spoil
//! more room than the request takes is not made. The search is bounded by [`RelocationLimits`].

use crate::{Cluster, Misfit, Node, NodeId, Placement, Placer, Policy, Request, Trial, Unplaced, fit};

/// Bounds of one search.
#[derive(Debug, Clone, Copy)]
pub struct RelocationLimits {
    /// Placements moved for one request.
    pub moves: usize,
    /// Sets of placements tried for one request.
    pub tries: usize,
}

impl Default for RelocationLimits {
    fn default() -> RelocationLimits {
        RelocationLimits { moves: 3, tries: 32 }
    }
}

/// A placement that goes elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move<Job> {
    pub job: Job,
    pub from: Placement,
    pub to: Placement,
}

/// Where a request goes once the moves are made: all `from` are released first, then all `to` and
/// `placement` allocated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relocation<Job> {
    pub placement: Placement,
    pub moves: Vec<Move<Job>>,
}

/// Looks for a relocation; `running` has for each node the movable placements on it. The cluster is
/// left as it was.
pub fn relocate<Job: Copy>(
    cluster: &mut Cluster,
    placer: &mut Placer,
    running: &[Vec<(Job, Placement)>],
    request: &Request,
    limits: RelocationLimits,
) -> Result<Relocation<Job>, Unplaced> {
    let mut candidates: Vec<Candidate<Job>> = cluster
        .nodes()
        .zip(running)
        .filter_map(|((id, node), running)| Candidate::new(id, node, running, request, limits.moves))
        .collect();
    candidates.sort_by_key(|candidate| (candidate.cost, candidate.node));
    let tried = candidates.iter().take(limits.tries);
    let found = tried.filter_map(|candidate| candidate.attempt(cluster, placer, request)).next();
    found.ok_or_else(|| Unplaced::explain(cluster, request))
}

/// Placements of one node whose room suffices.
struct Candidate<Job> {
    cost: u64,
    node: NodeId,
    leaving: Vec<(Job, Placement)>,
}

impl<Job: Copy> Candidate<Job> {
    fn new(
        id: NodeId,
        node: &Node,
        running: &[(Job, Placement)],
        request: &Request,
        moves_max: usize,
    ) -> Option<Candidate<Job>> {
        match fit(node, request) {
            Err(Misfit::Removed | Misfit::Unschedulable | Misfit::Label | Misfit::Model) => return None,
            Err(Misfit::Cpu | Misfit::Memory | Misfit::GpuCompute | Misfit::GpuMemory | Misfit::GpuLinks)
            | Ok(()) => {}
        }
        let suffices = |leaving: &[(Job, Placement)]| {
            let without =
                leaving.iter().try_fold(node.clone(), |node, (_, placement)| node.without(placement));
            without.is_some_and(|node| fit(&node, request).is_ok())
        };
        let cost = |leaving: &[(Job, Placement)]| leaving.iter().map(|(_, placement)| size(placement)).sum();
        let mut by_size = running.to_vec();
        by_size.sort_by_key(|(_, placement)| size(placement));
        if let Some(one) = by_size.iter().find(|&&one| suffices(&[one])) {
            return Some(Candidate { cost: cost(&[*one]), node: id, leaving: vec![*one] });
        }
        by_size.truncate(moves_max);
        if !suffices(&by_size) {
            return None;
        }
        // Without those that turn out not to be needed, the largest first.
        for index in (0..by_size.len()).rev() {
            let one = by_size.remove(index);
            if !suffices(&by_size) {
                by_size.insert(index, one);
            }
        }
        Some(Candidate { cost: cost(&by_size), node: id, leaving: by_size })
    }

    fn attempt(
        &self,
        cluster: &mut Cluster,
        placer: &mut Placer,
        request: &Request,
    ) -> Option<Relocation<Job>> {
        let mut trial = Trial::new(cluster);
        let mut touched = vec![self.node];
        for (_, from) in &self.leaving {
            trial.release(from).ok()?;
        }
        let placement = placer.place_among(trial.cluster(), request, [self.node]).ok()?;
        trial.allocate(&placement).ok()?;
        let mut moves = Vec::new();
        for &(job, from) in &self.leaving {
            let to = placer.place(trial.cluster(), &from.request).ok()?;
            trial.allocate(&to).ok()?;
            moves.push(Move { job, from, to });
            if !touched.contains(&to.node) {
                touched.push(to.node);
            }
        }
        let waste = |cluster: &Cluster, policy: &Policy| -> i64 {
            touched.iter().map(|&node| policy.waste(cluster.node(node))).sum()
        };
        let after = waste(trial.cluster(), placer.policy());
        drop(trial);
        (after <= waste(cluster, placer.policy())).then_some(Relocation { placement, moves })
    }
}

/// What a move costs: GPU compute first, since its state has to travel; then CPU.
fn size(placement: &Placement) -> u64 {
    let Request { cpu_milli, .. } = placement.request;
    placement.request.total_gpu_milli() << 32 | u64::from(cpu_milli)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LabelSet, ModelId, ModelSet, NodeSpec, WHOLE_GPU_MILLI};

    const SHARE: Request = Request::cpu(1_000, 1_024).with_gpus(1, 600);

    fn cluster(models: &[u8]) -> Cluster {
        let mut cluster = Cluster::new();
        for &model in models {
            let spec = NodeSpec {
                cpu_milli: 16_000,
                memory_mib: 16_384,
                gpus: 2,
                model: ModelId::new(model).unwrap(),
                gpu_milli: WHOLE_GPU_MILLI,
                gpu_memory_mib: 0,
                gpu_memory_leasable_mib: 0,
                gpu_units_milli: 0,
                labels: LabelSet::NONE,
                domains: Vec::new(),
            };
            cluster.add_node(spec).unwrap();
        }
        cluster
    }

    /// Starts jobs on the nodes named, numbered in order.
    fn start(cluster: &mut Cluster, jobs: &[(usize, Request)]) -> Vec<Vec<(usize, Placement)>> {
        let mut running = vec![Vec::new(); cluster.nodes().len()];
        for (job, &(node, request)) in jobs.iter().enumerate() {
            let node = NodeId::from_index(node);
            let placement = Placer::new(Policy::BestFit).place_among(cluster, &request, [node]).unwrap();
            cluster.allocate(&placement).unwrap();
            running[node.index()].push((job, placement));
        }
        running
    }

    /// The jobs moved, each with the node it goes to, and the request's node; the plan is carried
    /// out to see that it can be.
    fn check(
        models: &[u8],
        jobs: &[(usize, Request)],
        request: Request,
        limits: RelocationLimits,
        expect: Option<(&[(usize, usize)], usize)>,
    ) {
        let mut cluster = cluster(models);
        let running = start(&mut cluster, jobs);
        let used = *cluster.usage();
        let mut placer = Placer::new(Policy::BestFit);
        let found = relocate(&mut cluster, &mut placer, &running, &request, limits);
        assert_eq!(*cluster.usage(), used, "a search changes nothing");
        let Some((moves, node)) = expect else {
            assert!(found.is_err(), "{found:?}");
            return;
        };
        let found = found.unwrap();
        let moved: Vec<_> = found.moves.iter().map(|moved| (moved.job, moved.to.node.index())).collect();
        assert_eq!((&moved[..], found.placement.node.index()), (moves, node));
        found.moves.iter().for_each(|moved| cluster.release(&moved.from).unwrap());
        found.moves.iter().for_each(|moved| cluster.allocate(&moved.to).unwrap());
        cluster.allocate(&found.placement).unwrap();
    }

    #[test]
    fn the_smallest_job_in_the_way_moves() {
        let whole = SHARE.with_gpus(2, 1000);
        let small = SHARE.with_gpus(1, 300);
        let limits = RelocationLimits::default();
        // Two nodes with one share each: the smaller one joins the other.
        check(&[0, 0], &[(0, SHARE), (1, small)], whole, limits, Some((&[(1, 0)], 1)));
        // Nowhere to go: three shares of 600 fill three GPUs of four.
        check(&[0, 0], &[(0, SHARE), (0, SHARE), (1, SHARE), (1, SHARE)], whole, limits, None);
    }

    #[test]
    fn a_job_that_takes_any_model_leaves_for_one_that_insists() {
        let whole = SHARE.with_gpus(2, 1000);
        let insists = whole.with_models(ModelSet::NONE.with(ModelId::new(1).unwrap()));
        let limits = RelocationLimits::default();
        check(&[0, 1], &[(1, whole)], insists, limits, Some((&[(0, 0)], 1)));
        check(&[0, 1], &[(1, insists)], insists, limits, None);
    }

    #[test]
    fn limits_hold() {
        let request = SHARE.with_gpus(2, 1000).with_models(ModelSet::NONE.with(ModelId::new(0).unwrap()));
        let jobs = [(0, SHARE), (0, SHARE), (1, SHARE), (1, SHARE.with_gpus(1, 900))];
        for (moves, tries, expect) in [(2, 8, Some((&[(0, 2), (1, 2)][..], 0))), (1, 8, None), (2, 0, None)] {
            check(&[0, 0, 1], &jobs, request, RelocationLimits { moves, tries }, expect);
        }
    }
}
