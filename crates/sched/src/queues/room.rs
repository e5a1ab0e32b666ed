//! How many tasks of one kind a node has room for.

use crate::cluster::Promised;
use crate::{GPUS_PER_NODE_MAX, Gpu, GpuSet, Link, Links, Node, NodeSpec, Placement, Request};

/// What is free on a node, to try things out on. Says nothing of labels and models.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room<'a> {
    spec: &'a NodeSpec,
    cpu_milli: u32,
    memory_mib: u32,
    gpus: [Gpu; GPUS_PER_NODE_MAX],
    promised: [Promised; GPUS_PER_NODE_MAX],
    /// Offer nothing, whatever leaves them.
    fenced: GpuSet,
    links: &'a Links,
}

impl Room<'_> {
    pub(super) fn of(node: &Node) -> Room<'_> {
        let mut gpus = [Gpu::default(); GPUS_PER_NODE_MAX];
        gpus[..node.gpus().len()].copy_from_slice(node.gpus());
        let (spec, promised, fenced) = (node.spec(), *node.promised(), node.fenced());
        let (cpu_milli, memory_mib) = (node.free_cpu_milli(), node.free_memory_mib());
        Room { spec, cpu_milli, memory_mib, gpus, promised, fenced, links: node.links() }
    }

    /// As if nothing were on the node.
    pub(super) fn when_empty(node: &Node) -> Room<'_> {
        let spec = node.spec();
        let mut gpus = [Gpu::default(); GPUS_PER_NODE_MAX];
        let promised = [Promised::default(); GPUS_PER_NODE_MAX];
        gpus[..usize::from(spec.gpus)].fill(promised[0].free_of(spec));
        node.fenced().iter().for_each(|gpu| gpus[gpu] = Gpu::default());
        let (cpu_milli, memory_mib, fenced) = (spec.cpu_milli, spec.memory_mib, node.fenced());
        Room { spec, cpu_milli, memory_mib, gpus, promised, fenced, links: node.links() }
    }

    /// As if the placement's task had gone.
    pub(super) fn give_back(&mut self, placement: &Placement) {
        let request = &placement.request;
        self.cpu_milli += request.cpu_milli;
        self.memory_mib += request.memory_mib;
        for gpu in placement.gpus.iter().filter(|&gpu| !self.fenced.contains(gpu)) {
            if let Some(promised) = self.promised[gpu].without(request) {
                self.promised[gpu] = promised;
                self.gpus[gpu] = promised.free_of(self.spec);
            }
        }
    }

    /// How many tasks that each ask for this fit side by side, at most `most`.
    pub(super) fn slots(&self, request: &Request, most: u32) -> u32 {
        let by = |free: u32, each: u32| free.checked_div(each).unwrap_or(most);
        let host =
            by(self.cpu_milli, request.cpu_milli).min(by(self.memory_mib, request.memory_mib)).min(most);
        if request.gpus == 0 || host == 0 {
            return host;
        }
        let milli = self.spec.takes_milli(request.gpu_milli);
        let holds = |gpu: &&Gpu| gpu.milli >= milli && gpu.has_memory_for(request);
        if let Some(link) = request.linked.filter(|_| request.gpus > 1) {
            return self.linked_slots(request, link, host);
        }
        let for_one = self.gpus.iter().filter(holds).count() >= request.gpus.into();
        if !for_one || host == 1 {
            return u32::from(for_one);
        }
        let parts = self.gpus.map(|gpu| gpu_parts(&gpu, milli, request));
        // t tasks fit if there are t times as many GPUs as one asks for, and no task sits twice on
        // one GPU.
        let fit = |tasks: u32| {
            parts.iter().map(|&part| part.min(tasks)).sum::<u32>() >= tasks * u32::from(request.gpus)
        };
        let total = parts.iter().sum::<u32>() / u32::from(request.gpus);
        (1..=host.min(total)).rev().find(|&tasks| fit(tasks)).unwrap_or(0)
    }
}

impl Room<'_> {
    /// How many tasks whose GPUs are linked fit side by side: a lower bound, since they are sought
    /// one by one.
    fn linked_slots(&self, request: &Request, link: Link, most: u32) -> u32 {
        let milli = self.spec.takes_milli(request.gpu_milli);
        let mut parts = self.gpus.map(|gpu| gpu_parts(&gpu, milli, request));
        let mut tasks = 0;
        while tasks < most {
            let open = (0..GPUS_PER_NODE_MAX).filter(|&gpu| parts[gpu] > 0).fold(GpuSet::EMPTY, GpuSet::with);
            let Some(gpus) = self.links.all_linked(link, open, request.gpus.into()) else { break };
            gpus.iter().for_each(|gpu| parts[gpu] -= 1);
            tasks += 1;
        }
        tasks
    }
}

/// How many tasks that take `milli` one GPU could take, looking at the GPU alone.
fn gpu_parts(gpu: &Gpu, milli: u16, request: &Request) -> u32 {
    gpu.memory_parts(request, u32::from(gpu.milli / milli.max(1)))
}
