//! Fragmentation gradient descent (Weng et al., "Beware of Fragmentation", USENIX ATC 2023): a
//! request goes where it makes the least free GPU compute useless to the requests that usually
//! come.

use std::collections::HashMap;

use crate::score::Choice;
use crate::score::room::{Room, choose_gpus};
use crate::{GPUS_PER_NODE_MAX, MODELS_MAX, ModelId, ModelSet, Node, NodeSpec, Request, WHOLE_GPU_MILLI};

/// Of all requests, the share that the typical ones cover (section 4.2 of the paper).
const TYPICAL_PERCENT: usize = 95;

/// The typical requests, laid out so that the fragmentation of a node is some twenty table lookups.
///
/// A typical request counts all free compute of a node as fragmented where it does not fit, and
/// else the compute of the GPUs that are too full for it; a node's fragmentation is the mean over
/// the typical requests. Amounts here are that mean times the number of requests, in whole
/// thousandths of a GPU: comparisons are exact.
#[derive(Debug, Clone)]
pub struct Fragmentation {
    /// Requests counted, those without a GPU included.
    requests: u64,
    /// Distinct shares of a GPU that typical requests ask for, ascending.
    levels: Vec<u16>,
    /// Distinct amounts of CPU that typical requests ask for, ascending.
    cpu_milli: Vec<u32>,
    /// `[model][amounts of CPU that are free][level]`.
    fitting: Vec<Fitting>,
}

impl Fragmentation {
    /// Of these requests the most frequent kinds that make up 95 %; kinds differ in CPU, GPUs,
    /// share and models.
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
        let mut this = Fragmentation {
            requests: typical.iter().map(|&(_, count)| u64::from(count)).sum(),
            fitting: Vec::new(),
            levels,
            cpu_milli,
        };
        this.fill(typical);
        this
    }

    fn fill(&mut self, typical: &[(Kind, u32)]) {
        self.fitting =
            vec![[0; GPUS_PER_NODE_MAX + 1]; MODELS_MAX * (self.cpu_milli.len() + 1) * self.levels.len()];
        for (kind, count) in typical.iter().filter(|(kind, _)| kind.gpus > 0) {
            let level = self.levels.partition_point(|&level| level < kind.gpu_milli);
            let first_cpu = self.cpu_milli.partition_point(|&cpu| cpu < kind.cpu_milli) + 1;
            for model in ModelId::all().filter(|&model| kind.models.contains(model)) {
                for cpu in first_cpu..=self.cpu_milli.len() {
                    let row = self.row(model, cpu) + level;
                    self.fitting[row][kind.gpus.into()..].iter_mut().for_each(|fitting| *fitting += count);
                }
            }
        }
    }

    fn row(&self, model: ModelId, cpu: usize) -> usize {
        (model.index() * (self.cpu_milli.len() + 1) + cpu) * self.levels.len()
    }

    /// Typical requests that fit a node with this much CPU free, by level and by the GPUs with room
    /// for it.
    fn fitting(&self, model: ModelId, cpu_milli: u32) -> &[Fitting] {
        let cpu = self.cpu_milli.partition_point(|&cpu| cpu <= cpu_milli);
        &self.fitting[self.row(model, cpu)..][..self.levels.len()]
    }

    /// The fragmentation of such a node whose GPUs have this much free, times the number of typical
    /// requests.
    fn amount(&self, fitting: &[Fitting], spec: &NodeSpec, free: &[u16]) -> i64 {
        let mut gpus = [0; GPUS_PER_NODE_MAX];
        let gpus = &mut gpus[..free.len()];
        gpus.copy_from_slice(free);
        gpus.sort_unstable_by_key(|&milli| std::cmp::Reverse(milli));
        // From the largest level down, more and more GPUs have room for it.
        let (mut with_room, mut milli_with_room, mut useful) = (0, 0, 0);
        for (level, fitting) in fitting.iter().enumerate().rev() {
            while with_room < gpus.len() && gpus[with_room] >= spec.takes_milli(self.levels[level]) {
                milli_with_room += u64::from(gpus[with_room]);
                with_room += 1;
            }
            useful += u64::from(fitting[with_room]) * milli_with_room;
        }
        let total: u64 = free.iter().map(|&milli| u64::from(milli)).sum();
        (self.requests * total - useful) as i64
    }

    /// The fragmentation of the node as it is, times the number of typical requests.
    pub(crate) fn of(&self, node: &Node) -> i64 {
        let room = Room::of(node);
        self.amount(self.fitting(room.model, room.cpu_milli), node.spec(), room.gpus())
    }

    pub(crate) fn choose(&self, node: &Node, request: &Request) -> Choice {
        let before = self.of(node);
        let fitting = self.fitting(node.spec().model, node.free_cpu_milli() - request.cpu_milli);
        choose_gpus(node, request, |gpus| self.score(before, self.amount(fitting, node.spec(), gpus)))
    }

    /// 0 to 100: the sigmoid of the fragmentation taken away, in GPUs.
    fn score(&self, before: i64, after: i64) -> u32 {
        let scale = self.requests.max(1) as f64 * f64::from(WHOLE_GPU_MILLI);
        let gain = (before - after) as f64 / scale;
        (100.0 / (1.0 + (-gain).exp())) as u32
    }
}

/// Typical requests that fit, by the number of GPUs with room for them.
type Fitting = [u32; GPUS_PER_NODE_MAX + 1];

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
