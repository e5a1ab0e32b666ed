//! What is free on a node, and which of its GPUs to take by what would be free then.

use crate::score::Choice;
use crate::score::fit::{first_gpus, fitting_gpus, tightest_gpus};
use crate::{GPUS_PER_NODE_MAX, GpuSet, ModelId, Node, Request, WHOLE_GPU_MILLI};

/// What is free on a node.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) model: ModelId,
    pub(crate) cpu_milli: u32,
    /// Of all GPUs together.
    pub(crate) gpu_milli: u32,
    /// Of a GPU that is free as a whole.
    pub(crate) whole_milli: u16,
    gpus: [u16; GPUS_PER_NODE_MAX],
    gpu_count: usize,
}

impl Room {
    pub(crate) fn of(node: &Node) -> Room {
        let mut gpus = [0; GPUS_PER_NODE_MAX];
        for (free, gpu) in gpus.iter_mut().zip(node.gpus()) {
            *free = gpu.milli;
        }
        Room {
            model: node.spec().model,
            cpu_milli: node.free_cpu_milli(),
            gpu_milli: gpus.iter().map(|&milli| u32::from(milli)).sum(),
            whole_milli: node.spec().gpu_milli,
            gpus,
            gpu_count: node.gpus().len(),
        }
    }

    /// Free compute of each GPU, in thousandths.
    pub(crate) fn gpus(&self) -> &[u16] {
        &self.gpus[..self.gpu_count]
    }
}

/// The GPUs with the highest score, the first of equal ones; `score` gets what would be free of
/// each GPU. A request for a share of one GPU tries each; several GPUs are the tightest ones that
/// fit. The request fits the node.
pub(crate) fn choose_gpus(node: &Node, request: &Request, score: impl Fn(&[u16]) -> u32) -> Choice {
    let mut room = Room::of(node);
    let milli = node.spec().takes_milli(request.gpu_milli);
    let mut taking = |gpus: GpuSet| {
        gpus.iter().for_each(|gpu| room.gpus[gpu] -= milli);
        let score = score(room.gpus());
        gpus.iter().for_each(|gpu| room.gpus[gpu] += milli);
        Choice { score, gpus }
    };
    match request.gpus {
        1 if request.gpu_milli < WHOLE_GPU_MILLI => {}
        0 | 1 => return taking(first_gpus(node, request)),
        _ => return taking(tightest_gpus(node, request)),
    }
    let mut best: Option<Choice> = None;
    let mut tried = [0; GPUS_PER_NODE_MAX];
    for (gpu, free) in fitting_gpus(node, request) {
        // GPUs with the same room score the same.
        if tried[..gpu].contains(&free.milli) {
            continue;
        }
        tried[gpu] = free.milli;
        let choice = taking(GpuSet::EMPTY.with(gpu));
        if best.is_none_or(|best| choice.score > best.score) {
            best = Some(choice);
        }
    }
    best.unwrap_or(Choice { score: 0, gpus: GpuSet::EMPTY })
}
