//! Nodes, what is free on them, and what is allocated where.

mod gpu_set;
mod node;

use std::collections::BTreeSet;
use std::sync::atomic;
use std::sync::atomic::AtomicU64;

use crate::recency::Recency;
use crate::{GPUS_PER_NODE_MAX, Links, MODELS_MAX, ModelId, PROMISED_MILLI_MAX, Request, WHOLE_GPU_MILLI};

pub use gpu_set::GpuSet;
pub(crate) use node::Promised;
pub use node::{DomainId, Gpu, Node, NodeId, NodeSpec};

use node::{NodeState, check_gpu_milli, gpu_milli_of};

/// One request at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// As it is on this node, see [`Request::on`].
    pub request: Request,
    pub node: NodeId,
    pub gpus: GpuSet,
}

/// Sums over a cluster, or over the nodes with one GPU model of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    pub nodes: u32,
    pub gpus: u32,
    pub cpu_milli: u64,
    pub cpu_milli_used: u64,
    pub memory_mib: u64,
    pub memory_mib_used: u64,
    /// As much as may be promised of each, or is where that is more.
    pub gpu_milli: u64,
    pub gpu_milli_used: u64,
    pub gpu_memory_mib_used: u64,
}

/// An allocation or release that the cluster refused; nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    #[error("there is no node {}; the cluster has {nodes} nodes", node.0)]
    NoNode { node: NodeId, nodes: u32 },
    #[error("node {} has {has} GPUs, the placement names another", node.0)]
    NoGpu { node: NodeId, has: u8 },
    #[error("the placement names {placed} GPUs, its request asks for {requested}")]
    GpuCount { placed: usize, requested: u8 },
    #[error("node {} has too little free for the placement", node.0)]
    OverCommit { node: NodeId },
    #[error("releasing the placement would leave node {} with more free than it has", node.0)]
    OverRelease { node: NodeId },
    #[error("node {} is in use; what is on it has to leave first", node.0)]
    InUse { node: NodeId },
    #[error("a node with {gpus} GPUs; at most {GPUS_PER_NODE_MAX} are supported")]
    TooManyGpus { gpus: u8 },
    #[error(
        "{gpu_milli} thousandths of each GPU to be promised; {WHOLE_GPU_MILLI} to {PROMISED_MILLI_MAX} may be"
    )]
    GpuMilli { gpu_milli: u16 },
    #[error(
        "{leasable_mib} MiB of memory to be promised of GPUs that have {memory_mib} MiB; it is that or more"
    )]
    GpuMemory { memory_mib: u32, leasable_mib: u32 },
}

/// All nodes. Allocation and release are exact inverses, and anything that would promise more than
/// a node has is refused.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
    removed: BTreeSet<NodeId>,
    usage: Usage,
    by_model: Vec<Usage>,
    recency: Recency,
    /// The most CPU and GPU compute that one node has.
    largest_node: (u32, u32),
    identity: u64,
}

/// Distinguishes clusters (and clones, which change on their own from then on) for the placers'
/// indexes. It decides nothing.
static NEXT_IDENTITY: AtomicU64 = AtomicU64::new(0);

fn next_identity() -> u64 {
    NEXT_IDENTITY.fetch_add(1, atomic::Ordering::Relaxed)
}

impl Clone for Cluster {
    fn clone(&self) -> Cluster {
        Cluster {
            nodes: self.nodes.clone(),
            removed: self.removed.clone(),
            usage: self.usage,
            by_model: self.by_model.clone(),
            recency: self.recency.clone(),
            largest_node: self.largest_node,
            identity: next_identity(),
        }
    }
}

impl Default for Cluster {
    fn default() -> Cluster {
        Cluster::new()
    }
}

impl Cluster {
    pub fn new() -> Cluster {
        Cluster {
            nodes: Vec::new(),
            removed: BTreeSet::new(),
            usage: Usage::default(),
            by_model: vec![Usage::default(); MODELS_MAX],
            recency: Recency::new(),
            largest_node: (0, 0),
            identity: next_identity(),
        }
    }

    /// Nodes get their ids in the order in which they are added; the id of a removed node goes to
    /// the next one added.
    pub fn add_node(&mut self, spec: NodeSpec) -> Result<NodeId, ClusterError> {
        if usize::from(spec.gpus) > GPUS_PER_NODE_MAX {
            return Err(ClusterError::TooManyGpus { gpus: spec.gpus });
        }
        check_gpu_milli(spec.gpu_milli)?;
        let (memory_mib, leasable_mib) = (spec.gpu_memory_mib, spec.gpu_memory_leasable_mib);
        if leasable_mib < memory_mib {
            return Err(ClusterError::GpuMemory { memory_mib, leasable_mib });
        }
        self.count_node(&spec, |sum, amount| sum + amount);
        let (cpu_milli, gpu_milli) = self.largest_node;
        self.largest_node = (cpu_milli.max(spec.cpu_milli), gpu_milli.max(gpu_milli_of(&spec)));
        let node = match self.removed.pop_first() {
            Some(node) => {
                self.nodes[node.index()] = Node::new(spec);
                self.recency.touch(node);
                node
            }
            None => {
                self.nodes.push(Node::new(spec));
                self.recency.push();
                NodeId(self.nodes.len() as u32 - 1)
            }
        };
        // What placers know of the other nodes may depend on this one: scores are relative to the
        // largest.
        self.identity = next_identity();
        Ok(node)
    }

    /// Takes out a node on which nothing is allocated. The others keep their ids.
    pub fn remove_node(&mut self, node: NodeId) -> Result<(), ClusterError> {
        self.check_node(node)?;
        if !self.node(node).is_empty() {
            return Err(ClusterError::InUse { node });
        }
        let spec = self.nodes[node.index()].spec.clone();
        self.count_node(&spec, |sum, amount| sum - amount);
        let nothing = NodeSpec { cpu_milli: 0, memory_mib: 0, gpus: 0, ..spec };
        self.nodes[node.index()] = Node { state: NodeState::Removed, ..Node::new(nothing) };
        self.removed.insert(node);
        self.largest_node = self.find_largest_node();
        self.recency.touch(node);
        self.identity = next_identity();
        Ok(())
    }

    /// A node that is not schedulable keeps what it has and gets nothing new.
    pub fn set_schedulable(&mut self, node: NodeId, schedulable: bool) -> Result<(), ClusterError> {
        self.check_node(node)?;
        self.nodes[node.index()].state =
            if schedulable { NodeState::Schedulable } else { NodeState::Unschedulable };
        self.recency.touch(node);
        Ok(())
    }

    /// Says how near its GPUs are to each other: of GPUs that are the same to the policy, those are
    /// taken that are nearest. False if that was known already.
    pub fn set_links(&mut self, node: NodeId, links: Links) -> Result<bool, ClusterError> {
        self.check_node(node)?;
        if self.node(node).links == links {
            return Ok(false);
        }
        self.nodes[node.index()].links = links;
        self.recency.touch(node);
        Ok(true)
    }

    /// A GPU that is fenced keeps what it has and gets nothing new. False if it was so already.
    pub fn set_fenced(&mut self, node: NodeId, gpu: usize, fenced: bool) -> Result<bool, ClusterError> {
        self.check_node(node)?;
        let has = self.node(node).spec.gpus;
        if gpu >= usize::from(has) {
            return Err(ClusterError::NoGpu { node, has });
        }
        if self.node(node).fenced.contains(gpu) == fenced {
            return Ok(false);
        }
        self.nodes[node.index()].set_fenced(gpu, fenced);
        self.recency.touch(node);
        Ok(true)
    }

    /// Also onto a fenced GPU, as far as there is room: what runs there already is counted in this
    /// way.
    pub fn allocate(&mut self, placement: &Placement) -> Result<(), ClusterError> {
        self.node_of(placement)?;
        self.take(placement, None)
    }

    /// Allocates what was allocated before: it stays if less may be promised of its GPUs since.
    /// They get nothing new until there is room.
    pub fn restore(&mut self, placement: &Placement) -> Result<(), ClusterError> {
        self.node_of(placement)?;
        self.take(placement, Some(&placement.request))
    }

    /// Allocates what was allocated for another request until now: only what grows has to be free.
    pub fn reallocate(&mut self, placement: &Placement, before: &Request) -> Result<(), ClusterError> {
        self.node_of(placement)?;
        self.take(placement, Some(before))
    }

    fn take(&mut self, placement: &Placement, before: Option<&Request>) -> Result<(), ClusterError> {
        let node = placement.node;
        let over_milli = self.node(node).over_milli();
        let taken = self.nodes[node.index()].subtract(placement, before);
        taken.ok_or(ClusterError::OverCommit { node })?;
        self.count(placement, over_milli, |used, amount| used + amount);
        Ok(())
    }

    pub fn release(&mut self, placement: &Placement) -> Result<(), ClusterError> {
        let before = self.node_of(placement)?.over_milli();
        let node = placement.node;
        self.nodes[node.index()].add(placement).ok_or(ClusterError::OverRelease { node })?;
        self.count(placement, before, |used, amount| used - amount);
        Ok(())
    }

    /// A node that was added; it may have been removed since.
    pub fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node.index()]
    }

    /// All nodes in the order of their ids, with the empty places of those that were removed.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().map(|(index, node)| (NodeId(index as u32), node))
    }

    /// Sums over all nodes.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Sums over the nodes with GPUs of this model (and those without GPUs whose spec names it).
    pub fn usage_of(&self, model: ModelId) -> &Usage {
        &self.by_model[model.index()]
    }

    /// The most CPU and the most GPU compute, both in thousandths, that one node has.
    pub(crate) fn largest_node(&self) -> (u32, u32) {
        self.largest_node
    }

    pub(crate) fn recency(&self) -> &Recency {
        &self.recency
    }

    pub(crate) fn identity(&self) -> u64 {
        self.identity
    }

    fn find_largest_node(&self) -> (u32, u32) {
        let specs = || self.nodes.iter().map(Node::spec);
        (specs().map(|spec| spec.cpu_milli).max().unwrap_or(0), specs().map(gpu_milli_of).max().unwrap_or(0))
    }

    fn check_node(&self, node: NodeId) -> Result<(), ClusterError> {
        let known = self.nodes.get(node.index()).is_some_and(|node| !node.is_removed());
        if known { Ok(()) } else { Err(ClusterError::NoNode { node, nodes: self.usage.nodes }) }
    }

    /// The node of a placement that could be one.
    fn node_of(&self, placement: &Placement) -> Result<&Node, ClusterError> {
        let Placement { request, node, gpus } = *placement;
        self.check_node(node)?;
        if gpus.len() != usize::from(request.gpus) {
            return Err(ClusterError::GpuCount { placed: gpus.len(), requested: request.gpus });
        }
        let has = self.node(node).spec.gpus;
        if gpus.0.checked_shr(u32::from(has)).unwrap_or(0) != 0 {
            return Err(ClusterError::NoGpu { node, has });
        }
        Ok(self.node(node))
    }

    fn count_node(&mut self, spec: &NodeSpec, change: impl Fn(u64, u64) -> u64) {
        let count = |sum: u32, amount: u32| change(sum.into(), amount.into()) as u32;
        for usage in [&mut self.usage, &mut self.by_model[spec.model.index()]] {
            usage.nodes = count(usage.nodes, 1);
            usage.gpus = count(usage.gpus, spec.gpus.into());
            usage.gpu_milli = change(usage.gpu_milli, gpu_milli_of(spec).into());
            usage.cpu_milli = change(usage.cpu_milli, spec.cpu_milli.into());
            usage.memory_mib = change(usage.memory_mib, spec.memory_mib.into());
        }
    }

    /// Counts what was allocated or released; `over_before` is what was allocated of its node
    /// before beyond what may be promised.
    fn count(&mut self, placement: &Placement, over_before: u64, change: impl Fn(u64, u64) -> u64) {
        let Placement { request, node, .. } = placement;
        let over = self.node(*node).over_milli();
        let model = self.nodes[node.index()].spec.model;
        let gpu_memory_mib = u64::from(request.gpus) * u64::from(request.gpu_memory_mib);
        for usage in [&mut self.usage, &mut self.by_model[model.index()]] {
            usage.cpu_milli_used = change(usage.cpu_milli_used, request.cpu_milli.into());
            usage.memory_mib_used = change(usage.memory_mib_used, request.memory_mib.into());
            usage.gpu_milli = usage.gpu_milli + over - over_before;
            usage.gpu_milli_used = change(usage.gpu_milli_used, request.total_gpu_milli());
            usage.gpu_memory_mib_used = change(usage.gpu_memory_mib_used, gpu_memory_mib);
        }
        self.recency.touch(*node);
    }
}
