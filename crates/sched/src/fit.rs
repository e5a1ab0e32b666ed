//! Whether a request fits a node, and why not.

use crate::{Cluster, GpuSet, Node, Request};

/// The first filter that a node fails, in the order in which they are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Misfit {
    /// No longer part of the cluster.
    Removed,
    /// Taken out of scheduling.
    Unschedulable,
    /// Lacks a label asked for.
    Label,
    /// Its GPUs are of a model that is not accepted, or it has fewer GPUs than asked for.
    Model,
    /// Too little free CPU.
    Cpu,
    /// Too little free host memory.
    Memory,
    /// Too few GPUs with the share of compute free.
    GpuCompute,
    /// Too few GPUs with share and device memory free.
    GpuMemory,
    /// Of those that have it free too few are linked as asked for.
    GpuLinks,
}

impl Misfit {
    pub const ALL: [Misfit; 9] = [
        Misfit::Removed,
        Misfit::Unschedulable,
        Misfit::Label,
        Misfit::Model,
        Misfit::Cpu,
        Misfit::Memory,
        Misfit::GpuCompute,
        Misfit::GpuMemory,
        Misfit::GpuLinks,
    ];

    fn describe(self) -> &'static str {
        match self {
            Misfit::Removed => "were removed",
            Misfit::Unschedulable => "take no new work",
            Misfit::Label => "lack a label",
            Misfit::Model => "have no such GPUs",
            Misfit::Cpu => "have too little CPU free",
            Misfit::Memory => "have too little memory free",
            Misfit::GpuCompute => "have too few GPUs free",
            Misfit::GpuMemory => "have too little device memory free",
            Misfit::GpuLinks => "have too few linked GPUs free",
        }
    }
}

/// Why a request is not placed: how many nodes failed which filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unplaced {
    pub nodes: u32,
    misfits: [u32; Misfit::ALL.len()],
}

impl Unplaced {
    /// Nodes that were removed are no nodes: nothing counts them.
    pub fn count(&self, misfit: Misfit) -> u32 {
        self.misfits[misfit as usize]
    }

    /// Nothing counted yet of this number of nodes.
    pub(crate) fn of(nodes: u32) -> Unplaced {
        Unplaced { nodes, ..Unplaced::default() }
    }

    pub(crate) fn add(&mut self, misfit: Misfit) {
        self.misfits[misfit as usize] += u32::from(misfit != Misfit::Removed);
    }

    pub(crate) fn remove(&mut self, misfit: Misfit) {
        self.misfits[misfit as usize] -= u32::from(misfit != Misfit::Removed);
    }

    /// Looks at every node.
    pub fn explain(cluster: &Cluster, request: &Request) -> Unplaced {
        let mut unplaced = Unplaced::of(cluster.usage().nodes);
        for (_, node) in cluster.nodes() {
            if let Err(misfit) = fit(node, request) {
                unplaced.add(misfit);
            }
        }
        unplaced
    }
}

impl std::fmt::Display for Unplaced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "0 of {} nodes fit", self.nodes)?;
        for misfit in Misfit::ALL {
            if self.count(misfit) > 0 {
                write!(f, ", {} {}", self.count(misfit), misfit.describe())?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Unplaced {}

/// Whether the request fits the node as it is now.
pub fn fit(node: &Node, request: &Request) -> Result<(), Misfit> {
    let spec = node.spec();
    let request = &request.on(spec);
    if node.is_removed() {
        return Err(Misfit::Removed);
    }
    if !node.is_schedulable() {
        return Err(Misfit::Unschedulable);
    }
    if !spec.labels.contains_all(request.labels) {
        return Err(Misfit::Label);
    }
    if request.gpus > 0 && (spec.gpus < request.gpus || !request.models.contains(spec.model)) {
        return Err(Misfit::Model);
    }
    if node.free_cpu_milli() < request.cpu_milli {
        return Err(Misfit::Cpu);
    }
    if node.free_memory_mib() < request.memory_mib {
        return Err(Misfit::Memory);
    }
    let (mut with_compute, mut with_both) = (0, GpuSet::EMPTY);
    let takes_milli = spec.takes_milli(request.gpu_milli);
    for (index, gpu) in node.gpus().iter().enumerate() {
        let compute = gpu.milli >= takes_milli;
        with_compute += u8::from(compute);
        if compute && gpu.has_memory_for(request) {
            with_both = with_both.with(index);
        }
    }
    if with_compute < request.gpus {
        return Err(Misfit::GpuCompute);
    }
    let count = usize::from(request.gpus);
    if with_both.len() < count {
        return Err(Misfit::GpuMemory);
    }
    let linked = |link| node.links().all_linked(link, with_both, count).is_some();
    if count > 1 && !request.linked.is_none_or(linked) {
        return Err(Misfit::GpuLinks);
    }
    Ok(())
}
