//! Fragmentation gradient descent (Weng et al., "Beware of Fragmentation", USENIX ATC 2023): a request goes where it makes
//! the least free GPU compute useless to the requests that usually come.

use std::collections::HashMap;

use crate::score::Choice;
use crate::score::fit::{first_gpus, fitting_gpus, tightest_gpus};
use crate::{GPUS_PER_NODE_MAX, GpuSet, ModelId, ModelSet, Node, Request, WHOLE_GPU_MILLI};

/// Of all requests, the share that the typical ones cover (section 4.2 of the paper).
const TYPICAL_PERCENT: usize = 95;

/// The typical requests, laid out so that the fragmentation of a node is some twenty table lookups.
///
/// A typical request counts all free compute of a node as fragmented where it does not fit, and else the compute of the GPUs
/// that are too full for it; a node's fragmentation is the mean over the typical requests. Amounts here are that mean
/// times the number of requests, in whole thousandths of a GPU: comparisons are exact.
#[derive(Debug, Clone)]
pub struct Fragmentation {
    /// Requests counted, those without a GPU included.
    requests: u64,
    /// Distinct shares of a GPU that typical requests ask for, ascending.
    levels: Vec<u16>,
    /// For each free compute of a GPU: how many levels it has room for.
    level_count: Vec<u8>,
    /// Distinct amounts of CPU that typical requests ask for, ascending.
    cpu_milli: Vec<u32>,
    /// Requests that fit, `[model][amounts of CPU that are free][level][GPUs with room for the level]`.
    fitting: Vec<u32>,
}

impl Fragmentation {
    /// Of these requests the most frequent kinds that make up 95 %; kinds differ in CPU, GPUs, share and models.
    pub fn from_requests<'a>(requests: impl IntoIterator<Item = &'a Request>) -> Fragmentation {
        Fragmentation::new(&typical(requests))
    }

    fn new(typical: &[(Kind, u32)]) -> Fragmentation {
        let mut levels: Vec<u16> =
            typical.iter().filter(|(kind, _)| kind.gpus > 0).map(|(kind, _)| kind.gpu_milli).collect();
        levels.sort_unstable();
        levels.dedup();
        let mut cpu_milli: Vec<u32> = typical.iter().map(|(kind, _)| kind.cpu_milli).collect();
        cpu_milli.sort_unstable();
        cpu_milli.dedup();
        let level_count =
            (0..=WHOLE_GPU_MILLI).map(|free| levels.partition_point(|&level| level <= free) as u8).collect();
        let mut this = Fragmentation {
            requests: typical.iter().map(|&(_, count)| u64::from(count)).sum(),
            fitting: Vec::new(),
            levels,
            level_count,
            cpu_milli,
        };
        this.fill(typical);
        this
    }

    fn fill(&mut self, typical: &[(Kind, u32)]) {
        let models = 64;
        self.fitting = vec![0; models * (self.cpu_milli.len() + 1) * self.row_len()];
        for (kind, count) in typical.iter().filter(|(kind, _)| kind.gpus > 0) {
            let level = self.levels.partition_point(|&level| level < kind.gpu_milli);
            let first_cpu = self.cpu_milli.partition_point(|&cpu| cpu < kind.cpu_milli) + 1;
            for model in (0..64).filter_map(ModelId::new).filter(|&model| kind.models.contains(model)) {
                for cpu in first_cpu..=self.cpu_milli.len() {
                    let row = self.row(model, cpu) + level * (GPUS_PER_NODE_MAX + 1);
                    for gpus in usize::from(kind.gpus)..=GPUS_PER_NODE_MAX {
                        self.fitting[row + gpus] += count;
                    }
                }
            }
        }
    }

    fn row_len(&self) -> usize {
        self.levels.len() * (GPUS_PER_NODE_MAX + 1)
    }

    fn row(&self, model: ModelId, cpu: usize) -> usize {
        (model.index() * (self.cpu_milli.len() + 1) + cpu) * self.row_len()
    }

    /// The fragmentation of a node with so much free, times the number of typical requests.
    fn amount(&self, model: ModelId, cpu_milli: u32, gpus: &[u16]) -> u64 {
        let mut gpus_at = [0u8; 256];
        let mut milli_at = [0u32; 256];
        for &milli in gpus {
            let level_count = usize::from(self.level_count[usize::from(milli)]);
            gpus_at[level_count] += 1;
            milli_at[level_count] += u32::from(milli);
        }
        let cpu = self.cpu_milli.partition_point(|&cpu| cpu <= cpu_milli);
        let fitting = &self.fitting[self.row(model, cpu)..][..self.row_len()];
        let (mut room_gpus, mut room_milli, mut useful) = (0, 0, 0);
        for level in (0..self.levels.len()).rev() {
            room_gpus += usize::from(gpus_at[level + 1]);
            room_milli += milli_at[level + 1];
            useful += u64::from(fitting[level * (GPUS_PER_NODE_MAX + 1) + room_gpus]) * u64::from(room_milli);
        }
        let total = u64::from(room_milli + milli_at[0]);
        self.requests * total - useful
    }

    pub(crate) fn choose(&self, node: &Node, request: &Request) -> Choice {
        let mut free = [0; GPUS_PER_NODE_MAX];
        for (free, gpu) in free.iter_mut().zip(node.gpus()) {
            *free = gpu.milli;
        }
        let free = &mut free[..node.gpus().len()];
        let model = node.spec().model;
        let before = self.amount(model, node.free_cpu_milli(), free);
        let cpu_milli = node.free_cpu_milli() - request.cpu_milli;
        let mut score = |gpus: GpuSet| {
            gpus.iter().for_each(|gpu| free[gpu] -= request.gpu_milli);
            let after = self.amount(model, cpu_milli, free);
            gpus.iter().for_each(|gpu| free[gpu] += request.gpu_milli);
            Choice { score: self.score(before, after), gpus }
        };
        match request.gpus {
            1 if request.gpu_milli < WHOLE_GPU_MILLI => {
                let mut best: Option<Choice> = None;
                let mut tried = [u16::MAX; GPUS_PER_NODE_MAX];
                for (gpu, room) in fitting_gpus(node, request) {
                    // GPUs with the same room score the same, and the first one is taken.
                    if tried[..gpu].contains(&room.milli) {
                        continue;
                    }
                    tried[gpu] = room.milli;
                    let choice = score(GpuSet::EMPTY.with(gpu));
                    if best.is_none_or(|best| choice.score > best.score) {
                        best = Some(choice);
                    }
                }
                best.unwrap_or(Choice { score: 0, gpus: GpuSet::EMPTY })
            }
            _ if request.gpu_milli < WHOLE_GPU_MILLI => score(tightest_gpus(node, request)),
            _ => score(first_gpus(node, request)),
        }
    }

    /// 0 to 100: the sigmoid of the fragmentation taken away, in GPUs.
    fn score(&self, before: u64, after: u64) -> u32 {
        let scale = self.requests.max(1) as f64 * f64::from(WHOLE_GPU_MILLI);
        let gain = (before as f64 - after as f64) / scale;
        (100.0 / (1.0 + (-gain).exp())) as u32
    }
}

/// What makes requests typical; memory does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Kind {
    cpu_milli: u32,
    gpus: u8,
    gpu_milli: u16,
    models: ModelSet,
}

fn typical<'a>(requests: impl IntoIterator<Item = &'a Request>) -> Vec<(Kind, u32)> {
    let mut counts: HashMap<Kind, u32> = HashMap::new();
    for &Request { cpu_milli, gpus, gpu_milli, models, .. } in requests {
        let models = if gpus == 0 { ModelSet::ALL } else { models };
        *counts.entry(Kind { cpu_milli, gpus, gpu_milli, models }).or_default() += 1;
    }
    let total: usize = counts.values().map(|&count| count as usize).sum();
    let mut kinds: Vec<(Kind, u32)> = counts.into_iter().collect();
    kinds.sort_unstable_by_key(|&(kind, count)| (std::cmp::Reverse(count), kind));
    let mut covered = 0;
    let enough = kinds.iter().position(|&(_, count)| {
        covered += count as usize;
        covered * 100 >= total * TYPICAL_PERCENT
    });
    kinds.truncate(enough.map_or(0, |last| last + 1));
    kinds
}
