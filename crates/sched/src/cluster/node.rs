//! A node, what it offers, and what is free there.

use std::cmp::Ordering;

use super::{ClusterError, GpuSet, Placement};
use crate::{GPUS_PER_NODE_MAX, LabelSet, Links, ModelId, PROMISED_MILLI_MAX, Request, WHOLE_GPU_MILLI};

/// A node by its place in the cluster; policies break ties by the smaller id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(super) u32);

impl NodeId {
    pub(crate) fn from_index(index: usize) -> NodeId {
        NodeId(index as u32)
    }

    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A rack, block, zone: a set of nodes that are near each other, as the caller numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DomainId(pub u32);

/// What a node has. Capacities are what may be promised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSpec {
    pub cpu_milli: u32,
    pub memory_mib: u32,
    pub gpus: u8,
    /// The model of all its GPUs; not looked at where it has none.
    pub model: ModelId,
    /// Compute of each GPU that may be promised, in thousandths of what it has:
    /// [`WHOLE_GPU_MILLI`], or up to [`PROMISED_MILLI_MAX`] where it is overcommitted.
    pub gpu_milli: u16,
    /// Device memory of each GPU: nothing on it may have more.
    pub gpu_memory_mib: u32,
    /// Device memory of each GPU that may be promised: what it has, or more where memory is
    /// overcommitted.
    pub gpu_memory_leasable_mib: u32,
    /// Compute of each GPU in thousandths of the units in which GPUs of all models are counted
    /// alike; 0 where it is not known, or does not matter.
    pub gpu_units_milli: u32,
    pub labels: LabelSet,
    /// Where it stands, the widest domain first (zone, block, rack). All nodes of a cluster have
    /// the same levels.
    pub domains: Vec<DomainId>,
}

impl NodeSpec {
    /// What a share takes of what may be promised of a GPU. A whole GPU is all of it: it has no
    /// other holder, whether it is overcommitted or not. No GPU has more than that.
    pub fn takes_milli(&self, gpu_milli: u16) -> u16 {
        match gpu_milli.cmp(&WHOLE_GPU_MILLI) {
            Ordering::Less => gpu_milli,
            Ordering::Equal => self.gpu_milli,
            Ordering::Greater => u16::MAX,
        }
    }

    /// For how many such requests the memory of an empty GPU is enough, at most `most`.
    pub fn parts_of_empty_gpu(&self, request: &Request, most: u32) -> u32 {
        self.whole_gpu().memory_parts(request, most)
    }

    fn whole_gpu(&self) -> Gpu {
        Promised::default().free_of(self)
    }
}

/// What is free of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Gpu {
    pub milli: u16,
    /// For all that comes together.
    pub memory_mib: u32,
    /// For one request. Less than `memory_mib` where memory is overcommitted, since each has to
    /// fit on the GPU beside what never leaves it.
    pub largest_mib: u32,
    /// For requests whose memory never leaves the GPU.
    pub fixed_mib: u32,
}

impl Gpu {
    /// Whether its memory is enough for a request.
    pub fn has_memory_for(&self, request: &Request) -> bool {
        let free_mib = if request.fixed { self.fixed_mib } else { self.largest_mib };
        request.gpu_memory_mib <= free_mib
    }

    /// For how many such requests its memory is enough, at most `most`.
    pub(crate) fn memory_parts(&self, request: &Request, most: u32) -> u32 {
        let free_mib = if request.fixed { self.fixed_mib } else { self.memory_mib };
        let parts = free_mib.checked_div(request.gpu_memory_mib).unwrap_or(most).min(most);
        if self.has_memory_for(request) { parts } else { 0 }
    }
}

/// What is promised of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Promised {
    milli: u16,
    pub(super) memory_mib: u32,
    /// The part of `memory_mib` that never leaves the GPU.
    fixed_mib: u32,
    /// As a whole, to one request.
    whole: bool,
}

impl Promised {
    /// One more request, within what may be promised. What it had on this GPU `before` it keeps,
    /// also if less may be promised since.
    fn with(self, request: &Request, spec: &NodeSpec, before: Option<&Request>) -> Option<Promised> {
        let whole = request.gpu_milli == WHOLE_GPU_MILLI;
        let had_milli = before.is_some_and(|before| request.gpu_milli <= before.gpu_milli);
        let most_milli = if had_milli { PROMISED_MILLI_MAX } else { spec.gpu_milli };
        let milli = self.milli.checked_add(request.gpu_milli).filter(|&milli| milli <= most_milli)?;
        let had_memory = before.is_some_and(|before| {
            request.gpu_memory_mib <= before.gpu_memory_mib && (before.fixed || !request.fixed)
        });
        let has_memory = match had_memory {
            true => request.gpu_memory_mib <= spec.gpu_memory_mib,
            false => self.free_of(spec).has_memory_for(request),
        };
        let memory_mib = self.memory_mib.checked_add(request.gpu_memory_mib).filter(|_| has_memory)?;
        let fixed_mib = self.fixed_mib.checked_add(fixed_mib(request))?;
        // One without a share, whose work is suspended, is beside any.
        let in_the_way = if whole { self.milli > 0 } else { self.whole && request.gpu_milli > 0 };
        (!in_the_way).then_some(Promised { milli, memory_mib, fixed_mib, whole: whole || self.whole })
    }

    pub(crate) fn without(self, request: &Request) -> Option<Promised> {
        let whole = request.gpu_milli == WHOLE_GPU_MILLI;
        let milli = self.milli.checked_sub(request.gpu_milli)?;
        let memory_mib = self.memory_mib.checked_sub(request.gpu_memory_mib)?;
        let fixed_mib = self.fixed_mib.checked_sub(fixed_mib(request))?;
        let is_beside = request.gpu_milli == 0;
        let stays_whole = is_beside && self.whole;
        (is_beside || whole == self.whole).then_some(Promised {
            milli,
            memory_mib,
            fixed_mib,
            whole: stays_whole,
        })
    }

    /// What may still be promised of a GPU of such a node.
    pub(crate) fn free_of(self, spec: &NodeSpec) -> Gpu {
        let milli = if self.whole { 0 } else { spec.gpu_milli.saturating_sub(self.milli) };
        let memory_mib = spec.gpu_memory_leasable_mib.saturating_sub(self.memory_mib);
        let beside_fixed_mib = spec.gpu_memory_mib.saturating_sub(self.fixed_mib);
        Gpu {
            milli,
            memory_mib,
            largest_mib: memory_mib.min(beside_fixed_mib),
            // Its GPU holds it and the largest of the others at a time; all of the others are more
            // than that, and known.
            fixed_mib: spec.gpu_memory_mib.saturating_sub(self.memory_mib),
        }
    }
}

/// What a request takes of the memory that never leaves a GPU.
fn fixed_mib(request: &Request) -> u32 {
    if request.fixed { request.gpu_memory_mib } else { 0 }
}

/// A node and what is free on it.
#[derive(Debug, Clone)]
pub struct Node {
    pub(super) spec: NodeSpec,
    pub(super) free_cpu_milli: u32,
    pub(super) free_memory_mib: u32,
    /// What is free of those that are not fenced.
    pub(super) gpus: [Gpu; GPUS_PER_NODE_MAX],
    pub(super) promised: [Promised; GPUS_PER_NODE_MAX],
    /// These keep what they have and get nothing new.
    pub(super) fenced: GpuSet,
    pub(super) links: Links,
    pub(super) state: NodeState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeState {
    Schedulable,
    /// Keeps what it has and gets nothing new.
    Unschedulable,
    /// Its place among the nodes is left empty, until a new node takes it.
    Removed,
}

impl Node {
    pub(super) fn new(spec: NodeSpec) -> Node {
        let mut gpus = [Gpu::default(); GPUS_PER_NODE_MAX];
        gpus[..usize::from(spec.gpus)].fill(spec.whole_gpu());
        Node {
            free_cpu_milli: spec.cpu_milli,
            free_memory_mib: spec.memory_mib,
            gpus,
            promised: [Promised::default(); GPUS_PER_NODE_MAX],
            fenced: GpuSet::EMPTY,
            links: Links::default(),
            state: NodeState::Schedulable,
            spec,
        }
    }

    pub fn spec(&self) -> &NodeSpec {
        &self.spec
    }

    pub fn free_cpu_milli(&self) -> u32 {
        self.free_cpu_milli
    }

    pub fn free_memory_mib(&self) -> u32 {
        self.free_memory_mib
    }

    /// What is free of each GPU; nothing of one that is fenced, or of which more is promised than
    /// may be.
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus[..usize::from(self.spec.gpus)]
    }

    /// Free compute of all GPUs, in thousandths of one.
    pub fn free_gpu_milli(&self) -> u32 {
        self.gpus().iter().map(|gpu| u32::from(gpu.milli)).sum()
    }

    pub fn is_schedulable(&self) -> bool {
        self.state == NodeState::Schedulable
    }

    /// Those of its GPUs that get nothing new.
    pub fn fenced(&self) -> GpuSet {
        self.fenced
    }

    pub(crate) fn links(&self) -> &Links {
        &self.links
    }

    /// Whether it has enough GPUs that are linked as the request wants them, whatever is free of
    /// them.
    pub fn has_linked(&self, request: &Request) -> bool {
        let all = (0..usize::from(self.spec.gpus)).fold(GpuSet::EMPTY, GpuSet::with);
        let count = usize::from(request.gpus);
        count < 2 || request.linked.is_none_or(|link| self.links.all_linked(link, all, count).is_some())
    }

    /// How many of its GPUs take work.
    pub fn usable_gpus(&self) -> usize {
        usize::from(self.spec.gpus) - self.fenced.len()
    }

    /// Whether it is no longer part of the cluster.
    pub fn is_removed(&self) -> bool {
        self.state == NodeState::Removed
    }

    /// No GPU of it is in use, nor any CPU or memory.
    pub fn is_empty(&self) -> bool {
        self.free_cpu_milli == self.spec.cpu_milli
            && self.free_memory_mib == self.spec.memory_mib
            && self.promised.iter().all(|&promised| promised == Promised::default())
    }

    /// The node as it would be without a placement that is on it.
    pub(crate) fn without(mut self, placement: &Placement) -> Option<Node> {
        self.add(placement)?;
        Some(self)
    }

    pub(crate) fn promised(&self) -> &[Promised; GPUS_PER_NODE_MAX] {
        &self.promised
    }

    pub(super) fn set_fenced(&mut self, gpu: usize, fenced: bool) {
        self.fenced = if fenced { self.fenced.with(gpu) } else { self.fenced.without(gpu) };
        self.offer(gpu);
    }

    /// Has what is free of a GPU follow from what is promised of it.
    fn offer(&mut self, gpu: usize) {
        let free = self.promised[gpu].free_of(&self.spec);
        self.gpus[gpu] = if self.fenced.contains(gpu) { Gpu::default() } else { free };
    }

    /// More than may be promised of its GPUs, in thousandths of one.
    pub(super) fn over_milli(&self) -> u64 {
        self.promised
            .iter()
            .map(|promised| u64::from(promised.milli.saturating_sub(self.spec.gpu_milli)))
            .sum()
    }

    /// What its request had there `before`, if it was there, stays promised.
    pub(super) fn subtract(&mut self, placement: &Placement, before: Option<&Request>) -> Option<()> {
        let request = &placement.request;
        let cpu_milli = self.free_cpu_milli.checked_sub(request.cpu_milli)?;
        let memory_mib = self.free_memory_mib.checked_sub(request.memory_mib)?;
        self.promise(placement, |promised, spec| promised.with(request, spec, before))?;
        (self.free_cpu_milli, self.free_memory_mib) = (cpu_milli, memory_mib);
        Some(())
    }

    pub(super) fn add(&mut self, placement: &Placement) -> Option<()> {
        let request = &placement.request;
        let cpu_milli = up_to(self.free_cpu_milli, request.cpu_milli, self.spec.cpu_milli)?;
        let memory_mib = up_to(self.free_memory_mib, request.memory_mib, self.spec.memory_mib)?;
        self.promise(placement, |promised, _| promised.without(request))?;
        (self.free_cpu_milli, self.free_memory_mib) = (cpu_milli, memory_mib);
        Some(())
    }

    /// Changes what is promised of all the placement's GPUs, or of none.
    fn promise(
        &mut self,
        placement: &Placement,
        change: impl Fn(Promised, &NodeSpec) -> Option<Promised>,
    ) -> Option<()> {
        let mut after = self.promised;
        for gpu in placement.gpus.iter() {
            after[gpu] = change(after[gpu], &self.spec)?;
        }
        self.promised = after;
        placement.gpus.iter().for_each(|gpu| self.offer(gpu));
        Some(())
    }
}

pub(super) fn gpu_milli_of(spec: &NodeSpec) -> u32 {
    u32::from(spec.gpus) * u32::from(spec.gpu_milli)
}

pub(super) fn check_gpu_milli(gpu_milli: u16) -> Result<(), ClusterError> {
    let may_be = (WHOLE_GPU_MILLI..=PROMISED_MILLI_MAX).contains(&gpu_milli);
    if may_be { Ok(()) } else { Err(ClusterError::GpuMilli { gpu_milli }) }
}

fn up_to(amount: u32, more: u32, limit: u32) -> Option<u32> {
    amount.checked_add(more).filter(|&sum| sum <= limit)
}
