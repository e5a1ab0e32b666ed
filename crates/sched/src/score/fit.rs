//! Best fit, and which GPUs of a node to take where a policy has no view of its own.

use crate::{Gpu, GpuSet, Node, Random, Request};

/// 100 for a node that the request fills, down to 0 for the largest node left empty: the mean over
/// CPU and GPU compute of what stays free, relative to the most that any node has of them.
pub(crate) fn best_fit(node: &Node, request: &Request, cpu_milli_max: u32, gpu_milli_max: u32) -> u32 {
    let cpu_left = u64::from(node.free_cpu_milli() - request.cpu_milli);
    let gpu_left = u64::from(node.free_gpu_milli() - takes_milli(node, request));
    let (cpu_max, gpu_max) = (u64::from(cpu_milli_max.max(1)), u64::from(gpu_milli_max.max(1)));
    // One division, so that nothing is lost before the result is cut to a whole number.
    let whole = u128::from(2 * cpu_max) * u128::from(gpu_max);
    let left = u128::from(cpu_left) * u128::from(gpu_max) + u128::from(gpu_left) * u128::from(cpu_max);
    (whole.saturating_sub(left) * 100 / whole) as u32
}

/// What the request takes of what is free of the node's GPUs, in thousandths. It fits the node.
pub(crate) fn takes_milli(node: &Node, request: &Request) -> u32 {
    u32::from(request.gpus) * u32::from(node.spec().takes_milli(request.gpu_milli))
}

/// The GPUs with the least compute free among those on which the request fits. The request fits the
/// node.
pub(crate) fn tightest_gpus(node: &Node, request: &Request) -> GpuSet {
    gpus_by(node, request, |gpu| gpu.milli)
}

/// The GPUs with the most compute free. The request fits the node.
pub(crate) fn loosest_gpus(node: &Node, request: &Request) -> GpuSet {
    gpus_by(node, request, |gpu| u16::MAX - gpu.milli)
}

fn gpus_by(node: &Node, request: &Request, key: impl Fn(&Gpu) -> u16) -> GpuSet {
    let mut chosen = GpuSet::EMPTY;
    for _ in 0..request.gpus {
        let fitting = fitting_gpus(node, request).filter(|&(index, _)| !chosen.contains(index));
        if let Some((index, _)) = fitting.min_by_key(|(_, gpu)| key(gpu)) {
            chosen = chosen.with(index);
        }
    }
    chosen
}

/// The first GPUs on which the request fits. The request fits the node.
pub(crate) fn first_gpus(node: &Node, request: &Request) -> GpuSet {
    fitting_gpus(node, request)
        .take(request.gpus.into())
        .fold(GpuSet::EMPTY, |set, (index, _)| set.with(index))
}

/// Any GPUs on which the request fits, each choice equally likely. The request fits the node.
pub(crate) fn random_gpus(node: &Node, request: &Request, random: &mut Random) -> GpuSet {
    let mut fitting: Vec<usize> = fitting_gpus(node, request).map(|(index, _)| index).collect();
    random.shuffle(&mut fitting);
    fitting.into_iter().take(request.gpus.into()).fold(GpuSet::EMPTY, GpuSet::with)
}

pub(crate) fn fitting_gpus<'a>(
    node: &'a Node,
    request: &'a Request,
) -> impl Iterator<Item = (usize, &'a Gpu)> {
    let milli = node.spec().takes_milli(request.gpu_milli);
    node.gpus().iter().enumerate().filter(move |(_, gpu)| gpu.milli >= milli && gpu.has_memory_for(request))
}
