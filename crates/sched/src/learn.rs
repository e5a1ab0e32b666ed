//! Learning the leftover potential of a workload by replaying its history.
//!
//! Requests drawn from the history arrive at the empty cluster until they have asked for all of its
//! GPUs. Each time a node changes, the states of its GPUs are noted; at the end it is known what of
//! them was left over. The next round places by what was learned, and learns from that. Rounds do
//! not get better forever, they swing: the best one is kept.

use crate::score::{Observations, States};
use crate::{Cluster, ClusterError, Fragmentation, Leftover, NodeSpec, Placer, Policy, Random, Request};

/// Arrivals of one replay, where a history asks for so little that the cluster would never fill.
const ARRIVALS_MAX: usize = 300_000;
/// What the rounds before count for, each time.
const FADE: f64 = 0.95;

/// How long to train. The figures in the benchmarks were made with the defaults, which take some
/// ten seconds for a thousand nodes.
#[derive(Debug, Clone, Copy)]
pub struct Training {
    /// Rounds of replaying and learning.
    pub rounds: u32,
    /// Replays in each round.
    pub replays: u32,
    /// Decides what is drawn from the history.
    pub seed: u64,
}

impl Default for Training {
    fn default() -> Training {
        Training { rounds: 24, replays: 6, seed: 1 }
    }
}

/// A history that nothing can be learned from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrainingError {
    #[error("no request in the history asks for a GPU; give one with GPU work, or use another policy")]
    NoGpuRequested,
    #[error("no node has a GPU; give nodes with GPUs, or use another policy")]
    NoGpu,
    #[error("no rounds or no replays to learn from; ask for at least one of each")]
    NoReplay,
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

impl Training {
    /// The leftover potential of work like `history` on nodes like these: the same for the same
    /// arguments.
    pub fn learn(&self, nodes: &[NodeSpec], history: &[Request]) -> Result<Leftover, TrainingError> {
        if history.iter().all(|request| request.total_gpu_milli() == 0) {
            return Err(TrainingError::NoGpuRequested);
        }
        if nodes.iter().all(|spec| spec.gpus == 0) {
            return Err(TrainingError::NoGpu);
        }
        let mut observations = Observations::new(States::new(nodes, history));
        // The first states are seen under a policy that needs no training, which is no candidate.
        self.round(nodes, history, &Policy::Fgd(Fragmentation::from_requests(history)), &mut observations)?;
        let mut best: Option<(u64, Leftover)> = None;
        for _ in 0..self.rounds {
            let leftover = observations.leftover();
            observations.fade(FADE);
            let allocated =
                self.round(nodes, history, &Policy::Sluice(leftover.clone()), &mut observations)?;
            if best.as_ref().is_none_or(|&(most, _)| allocated > most) {
                best = Some((allocated, leftover));
            }
        }
        best.map(|(_, leftover)| leftover).ok_or(TrainingError::NoReplay)
    }

    /// The compute allocated at the end, summed over replays. All rounds have the same arrivals, so
    /// that they compare.
    fn round(
        &self,
        nodes: &[NodeSpec],
        history: &[Request],
        policy: &Policy,
        observations: &mut Observations,
    ) -> Result<u64, ClusterError> {
        let mut random = Random::new(self.seed);
        (0..self.replays).map(|_| replay(nodes, history, policy, &mut random, observations)).sum()
    }
}

/// The state of a GPU's free compute at some moment of a replay.
struct Sighting {
    node: usize,
    gpu: usize,
    state: usize,
    free_milli: u16,
}

fn replay(
    nodes: &[NodeSpec],
    history: &[Request],
    policy: &Policy,
    random: &mut Random,
    observations: &mut Observations,
) -> Result<u64, ClusterError> {
    let mut specs = nodes.to_vec();
    random.shuffle(&mut specs);
    let mut cluster = Cluster::new();
    for spec in specs {
        cluster.add_node(spec)?;
    }
    let states = observations.states();
    let mut sightings = Vec::new();
    let mut sight = |node: usize, cluster: &Cluster| {
        let id = crate::NodeId::from_index(node);
        states.of(cluster.node(id), |gpu, state, free_milli| {
            sightings.push(Sighting { node, gpu, state, free_milli });
        });
    };
    (0..nodes.len()).for_each(|node| sight(node, &cluster));
    let mut placer = Placer::new(policy.clone());
    let mut to_arrive = cluster.usage().gpu_milli as i64;
    for _ in 0..ARRIVALS_MAX {
        let request = history[random.below(history.len())];
        to_arrive -= request.total_gpu_milli() as i64;
        if let Ok(placement) = placer.place(&cluster, &request) {
            cluster.allocate(&placement)?;
            sight(placement.node.index(), &cluster);
        }
        if to_arrive <= 0 {
            break;
        }
    }
    let ends: Vec<_> = cluster.nodes().map(|(_, node)| node.gpus()).collect();
    for Sighting { node, gpu, state, free_milli } in sightings {
        observations.add(state, free_milli, ends[node][gpu].milli);
    }
    Ok(cluster.usage().gpu_milli_used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LabelSet, ModelId, ModelSet, WHOLE_GPU_MILLI};

    fn node(model: u8) -> NodeSpec {
        NodeSpec {
            cpu_milli: 32_000,
            memory_mib: 65_536,
            gpus: 4,
            model: ModelId::new(model).unwrap(),
            gpu_milli: WHOLE_GPU_MILLI,
            gpu_memory_mib: 0,
            gpu_memory_leasable_mib: 0,
            gpu_units_milli: 0,
            labels: LabelSet::NONE,
            domains: Vec::new(),
        }
    }

    const ANY: Request = Request::cpu(4_000, 4_096).with_gpus(1, 1000);
    const QUICK: Training = Training { rounds: 3, replays: 4, seed: 1 };

    fn nodes() -> Vec<NodeSpec> {
        [vec![node(1); 4], vec![node(0); 12]].concat()
    }

    fn first_model(history: &[Request]) -> usize {
        let leftover = QUICK.learn(&nodes(), history).unwrap();
        let mut cluster = Cluster::new();
        for spec in nodes() {
            cluster.add_node(spec).unwrap();
        }
        let placement = Placer::new(Policy::Sluice(leftover)).place(&cluster, &ANY).unwrap();
        cluster.node(placement.node).spec().model.index()
    }

    #[test]
    fn models_that_others_insist_on_are_spared() {
        let insists = |model| ANY.with_models(ModelSet::NONE.with(ModelId::new(model).unwrap()));
        assert_eq!(first_model(&[ANY, insists(1)]), 0);
        assert_eq!(first_model(&[ANY, insists(0), insists(0), insists(0)]), 1);
    }

    #[test]
    fn the_same_history_teaches_the_same() {
        let learn = || format!("{:?}", QUICK.learn(&nodes(), &[ANY, ANY.with_gpus(1, 300)]).unwrap());
        assert_eq!(learn(), learn());
    }

    #[test]
    fn a_history_without_gpus_is_refused() {
        let learn = |nodes: &[NodeSpec], history: &[Request]| QUICK.learn(nodes, history).map(drop);
        let cpu = Request::cpu(1_000, 1_024);
        assert_eq!(learn(&nodes(), &[]), Err(TrainingError::NoGpuRequested));
        assert_eq!(learn(&nodes(), &[cpu]), Err(TrainingError::NoGpuRequested));
        assert_eq!(learn(&[NodeSpec { gpus: 0, ..node(0) }], &[ANY]), Err(TrainingError::NoGpu));
        let none = Training { rounds: 0, ..QUICK };
        assert_eq!(none.learn(&nodes(), &[ANY]).map(drop), Err(TrainingError::NoReplay));
    }
}
