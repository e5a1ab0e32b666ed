//! Fragmentation: free GPU compute that the usual work cannot use where it is.

use std::collections::HashMap;

use sluice_sched::{Cluster, Request, fit};

/// The most frequent kinds of GPU requests of a workload, and how often each comes.
#[derive(Clone, Debug)]
pub(crate) struct Mix {
    kinds: Vec<(Request, u64)>,
}

/// Kinds that are looked at; rarer ones say little and cost as much.
const KINDS_MAX: usize = 64;

impl Mix {
    pub(crate) fn of<'a>(requests: impl IntoIterator<Item = (&'a Request, u32)>) -> Mix {
        let mut counts: HashMap<Request, u64> = HashMap::new();
        for (request, times) in requests.into_iter().filter(|(request, _)| request.gpus > 0) {
            *counts.entry(*request).or_default() += u64::from(times);
        }
        let mut kinds: Vec<(Request, u64)> = counts.into_iter().collect();
        // Equally frequent kinds in a fixed order, so that reports repeat.
        kinds.sort_by_key(|(request, count)| {
            let Request { cpu_milli, memory_mib, gpus, gpu_milli, gpu_memory_mib, models, .. } = *request;
            (std::cmp::Reverse(*count), gpus, gpu_milli, cpu_milli, memory_mib, gpu_memory_mib, models)
        });
        kinds.truncate(KINDS_MAX);
        Mix { kinds }
    }

    /// The part of the free GPU compute, in percent, that the next request could not use: a node's
    /// room is lost to a request that does not fit there, and so is the room of GPUs that are too
    /// full for it; the mean over the mix (Weng et al.).
    pub(crate) fn stranded_percent(&self, cluster: &Cluster) -> f64 {
        let total: u64 = self.kinds.iter().map(|(_, count)| count).sum();
        let (mut free, mut usable) = (0u64, 0u128);
        for (_, node) in cluster.nodes().filter(|(_, node)| node.free_gpu_milli() > 0) {
            free += u64::from(node.free_gpu_milli());
            for (request, count) in self.kinds.iter().filter(|(request, _)| fit(node, request).is_ok()) {
                let room = node.gpus().iter().filter(|gpu| gpu.milli >= request.gpu_milli);
                let room: u64 = room.map(|gpu| u64::from(gpu.milli)).sum();
                usable += u128::from(room) * u128::from(*count);
            }
        }
        if free == 0 || total == 0 {
            return 0.0;
        }
        100.0 - usable as f64 * 100.0 / (free as f64 * total as f64)
    }
}

#[cfg(test)]
mod tests {
    use sluice_sched::{Placer, Policy};

    use super::*;
    use crate::site::Site;
    use crate::trace::nodes_from_text;

    #[test]
    fn room_counts_as_stranded_for_whom_it_is_too_small() {
        let nodes = nodes_from_text("name,cpus,memory_gib,gpus,model\na,8,32,2,T4\n").unwrap();
        let mut cluster = Site::new(&nodes).unwrap().cluster([0]);
        let (half, whole) =
            (Request::cpu(1000, 1024).with_gpus(1, 500), Request::cpu(1000, 1024).with_gpus(1, 1000));
        let mix = Mix::of([(&half, 1), (&whole, 1)]);
        assert_eq!(mix.stranded_percent(&cluster), 0.0);
        let mut placer = Placer::new(Policy::BestFit);
        let mut place = |request| {
            let placement = placer.place(&cluster, request).unwrap();
            cluster.allocate(&placement).unwrap();
            mix.stranded_percent(&cluster)
        };
        // Of 1.5 GPUs, the whole request can use 1 and the half one all: 1/6 is stranded.
        assert!((place(&half) - 100.0 / 6.0).abs() < 1e-9);
        // Only half a GPU is left: of no use to the whole request.
        assert!((place(&whole) - 50.0).abs() < 1e-9);
    }

    #[test]
    fn work_without_a_gpu_strands_nothing() {
        let nodes = nodes_from_text("name,cpus,memory_gib,gpus,model\na,8,32,2,T4\n").unwrap();
        let cluster = Site::new(&nodes).unwrap().cluster([0]);
        assert_eq!(Mix::of([(&Request::cpu(1, 1), 5)]).stranded_percent(&cluster), 0.0);
    }
}
