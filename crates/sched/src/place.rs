//! Placing a request: the policy's best node, found in an index that is brought up to date first.

use std::collections::HashMap;

use crate::index::ClassIndex;
use crate::links::nearest;
use crate::score::{Choice, Fragmentation, Leftover, best_fit, random_gpus, tightest_gpus};
use crate::{Cluster, Misfit, Node, NodeId, Placement, Random, Request, Unplaced, fit};

/// Where requests should go.
#[derive(Debug, Clone)]
pub enum Policy {
    /// Any node that fits, each equally likely.
    Random { seed: u64 },
    /// The node that is left with the least.
    BestFit,
    /// The node that is left with the most.
    Spread,
    /// The node where the least GPU compute becomes useless to usual requests.
    Fgd(Fragmentation),
    /// The node where the most of what a placement takes would have been left over.
    Sluice(Leftover),
}

/// Classes of requests whose indexes are kept; the one that was not asked for longest is replaced
/// by a new one.
const CLASSES_MAX: usize = 1024;

/// Places requests by one policy. It keeps the scores of all nodes for each class of requests and
/// brings them up to date from what the cluster says has changed: use one placer per cluster, for
/// as long as the cluster lives.
#[derive(Debug, Clone)]
pub struct Placer {
    policy: Policy,
    random: Random,
    cluster: Option<u64>,
    questions: u64,
    classes: HashMap<Request, Class>,
}

#[derive(Debug, Clone)]
struct Class {
    index: ClassIndex,
    asked: u64,
}

impl Placer {
    pub fn new(policy: Policy) -> Placer {
        let seed = if let Policy::Random { seed } = policy { seed } else { 0 };
        Placer { policy, random: Random::new(seed), cluster: None, questions: 0, classes: HashMap::new() }
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The policy's place for the request, which [`Cluster::allocate`] will accept; or why there is
    /// none.
    pub fn place(&mut self, cluster: &Cluster, request: &Request) -> Result<Placement, Unplaced> {
        if let Policy::Random { .. } = self.policy {
            return self.place_among(cluster, request, cluster.nodes().map(|(id, _)| id));
        }
        if self.cluster != Some(cluster.identity()) {
            self.cluster = Some(cluster.identity());
            self.classes.clear();
        }
        if self.classes.len() >= CLASSES_MAX && !self.classes.contains_key(request) {
            self.forget_one();
        }
        self.questions += 1;
        let class =
            self.classes.entry(*request).or_insert_with(|| Class { index: ClassIndex::new(), asked: 0 });
        class.asked = self.questions;
        let policy = &self.policy;
        class.index.update(cluster, |node| policy.score(cluster, node, request));
        let node = class.index.best()?;
        // The index keeps scores alone: which GPUs earn it is worked out again for the one node
        // that won.
        let chosen = self.policy.score(cluster, cluster.node(node), request);
        let Choice { gpus, .. } = chosen.map_err(|_| Unplaced::explain(cluster, request))?;
        let request = request.on(cluster.node(node).spec());
        Ok(Placement { gpus: nearest(cluster.node(node), &request, gpus), request, node })
    }

    /// Places the request as [`Placer::place`] does, among these nodes only, each of which it looks
    /// at.
    pub fn place_among(
        &mut self,
        cluster: &Cluster,
        request: &Request,
        nodes: impl IntoIterator<Item = NodeId>,
    ) -> Result<Placement, Unplaced> {
        let mut unplaced = Unplaced::of(0);
        let mut best: Option<(NodeId, Choice)> = None;
        let mut fitting = 0;
        for id in nodes {
            match self.policy.score(cluster, cluster.node(id), request) {
                Err(Misfit::Removed) => continue,
                Err(misfit) => unplaced.add(misfit),
                Ok(choice) => {
                    fitting += 1;
                    let better = match (&self.policy, best) {
                        (Policy::Random { .. }, _) => self.random.below(fitting) == 0,
                        (_, Some((best_id, best))) => (choice.score, best_id) > (best.score, id),
                        (_, None) => true,
                    };
                    if better {
                        best = Some((id, choice));
                    }
                }
            }
            unplaced.nodes += 1;
        }
        let (node, Choice { mut gpus, .. }) = best.ok_or(unplaced)?;
        let request = request.on(cluster.node(node).spec());
        if let Policy::Random { .. } = self.policy {
            gpus = random_gpus(cluster.node(node), &request, &mut self.random);
        }
        Ok(Placement { gpus: nearest(cluster.node(node), &request, gpus), request, node })
    }

    fn forget_one(&mut self) {
        let oldest = self.classes.iter().min_by_key(|(_, class)| class.asked).map(|(&request, _)| request);
        oldest.inspect(|request| {
            self.classes.remove(request);
        });
    }
}

impl Policy {
    /// How much of what is free on the node is of no use, as far as the policy has a notion of it;
    /// comparable between nodes.
    pub(crate) fn waste(&self, node: &Node) -> i64 {
        match self {
            Policy::Random { .. } | Policy::BestFit | Policy::Spread => 0,
            Policy::Fgd(fragmentation) => fragmentation.of(node),
            Policy::Sluice(leftover) => leftover.of(node),
        }
    }

    fn score(&self, cluster: &Cluster, node: &Node, request: &Request) -> Result<Choice, Misfit> {
        fit(node, request)?;
        let request = &request.on(node.spec());
        Ok(match self {
            Policy::Random { .. } => Choice { score: 0, gpus: crate::GpuSet::EMPTY },
            Policy::BestFit => {
                let (cpu_milli_max, gpu_milli_max) = cluster.largest_node();
                let score = best_fit(node, request, cpu_milli_max, gpu_milli_max);
                Choice { score, gpus: tightest_gpus(node, request) }
            }
            Policy::Spread => {
                let (cpu_milli_max, gpu_milli_max) = cluster.largest_node();
                let score = 100 - best_fit(node, request, cpu_milli_max, gpu_milli_max);
                Choice { score, gpus: crate::score::loosest_gpus(node, request) }
            }
            Policy::Fgd(fragmentation) => fragmentation.choose(node, request),
            Policy::Sluice(leftover) => leftover.choose(node, request),
        })
    }
}
