//! Nodes as the scheduler sees them.
//!
//! A node of the scheduler has equal GPUs, at most [`GPUS_PER_NODE_MAX`] of them; one of ours with
//! different or more GPUs is several *sites* there, which stand on the same node. GPUs that are
//! equal in all that requests look at are of one *kind*, which is what the scheduler calls a model.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sluice_api::lease::{Level, NewLease};
use sluice_api::node::{Gpu, NodeId};
use sluice_api::{GPU_PPM, UNIT_GFLOPS};
use sluice_sched::{
    DomainId, GPUS_PER_NODE_MAX, LabelId, LabelSet, Link, Links, ModelId, ModelSet, NodeSpec,
};

use super::enter::milli;
use crate::fleet::{Fleet, Node};

/// What is equal about the GPUs of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    pub(super) pool: String,
    pub(super) name: String,
    pub(super) memory: u64,
    /// Bytes of each that may be leased.
    pub(super) leasable: u64,
    pub(super) gflops: u64,
    /// Millionths of each that may be leased in parts.
    pub(super) promised_ppm: u32,
}

impl Kind {
    pub(super) fn of(fleet: &Fleet, node: &Node, (index, gpu): (u32, &Gpu)) -> Kind {
        Kind {
            pool: fleet.pool_of(node, index).into(),
            name: gpu.name.clone(),
            memory: gpu.memory,
            leasable: fleet.leasable_memory(node, index),
            gflops: gpu.gflops,
            promised_ppm: fleet.promised_ppm(node, index),
        }
    }

    /// Returns the part of the memory that corresponds to a share of the compute, in bytes: the
    /// part that the share is of what may be leased.
    pub(super) fn memory_of(&self, share_ppm: u64) -> u64 {
        let of_ppm = if share_ppm == u64::from(GPU_PPM) { GPU_PPM } else { self.promised_ppm };
        (u128::from(self.memory) * u128::from(share_ppm) / u128::from(of_ppm)) as u64
    }

    /// For people to read.
    pub(super) fn describe(&self) -> String {
        let Kind { name, memory, pool, .. } = self;
        format!("{name}, {} MiB, pool {pool}", memory >> 20)
    }

    fn is_asked_for(&self, ask: &NewLease, serves: impl Fn(&str) -> bool) -> bool {
        let name = self.name.to_lowercase();
        ask.pool.as_ref().is_none_or(|pool| *pool == self.pool)
            && serves(&self.pool)
            && (ask.models.is_empty() || ask.models.iter().any(|model| name.contains(&model.to_lowercase())))
            && ask.gflops_min.is_none_or(|min| self.gflops >= min)
            && ask.units_milli.is_none_or(|units| self.gflops >= units)
            && ask.gpu_memory_min.is_none_or(|min| self.memory >= min)
    }
}

/// Some GPUs of a node, all of one kind.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub(super) node: NodeId,
    /// The node's indices of them; the scheduler counts them from 0.
    pub(super) gpus: Vec<u32>,
}

/// The kinds of GPUs, labels and names of domains that have been met; all get numbers, which never
/// change.
#[derive(Debug, Default)]
pub(super) struct Atlas {
    kinds: Vec<Kind>,
    /// Without a value: whatever it is.
    labels: Vec<(String, Option<String>)>,
    domains: HashMap<(Level, String), DomainId>,
}

/// More kinds of GPUs or labels than the scheduler tells apart.
#[derive(Debug)]
pub(super) struct TooMany;

impl Atlas {
    /// The sites of a node, with what the scheduler gets of each.
    pub(super) fn sites(&mut self, fleet: &Fleet, node: &Node) -> Result<Vec<(Site, NodeSpec)>, TooMany> {
        let mut by_kind: BTreeMap<ModelId, Vec<u32>> = BTreeMap::new();
        for (index, gpu) in (0..).zip(&node.gpus) {
            by_kind.entry(self.kind(Kind::of(fleet, node, (index, gpu)))?).or_default().push(index);
        }
        let mut labels = LabelSet::NONE;
        for (name, value) in &node.labels {
            labels = labels.with(self.label(name, Some(value))?);
            if is_place(name) {
                labels = labels.with(self.label(name, None)?);
            }
        }
        let domains: Vec<DomainId> = Level::ALL.into_iter().map(|level| self.domain(level, node)).collect();
        let mut sites = Vec::new();
        for (model, gpus) in by_kind {
            let Kind { memory, leasable, gflops, promised_ppm, .. } = self.kinds[model.index()];
            for gpus in gpus.chunks(GPUS_PER_NODE_MAX) {
                let spec = NodeSpec {
                    cpu_milli: 0,
                    memory_mib: 0,
                    gpus: gpus.len() as u8,
                    model,
                    gpu_milli: milli(promised_ppm.into()),
                    gpu_memory_mib: u32::try_from(memory >> 20).unwrap_or(u32::MAX),
                    gpu_memory_leasable_mib: u32::try_from(leasable >> 20).unwrap_or(u32::MAX),
                    gpu_units_milli: u32::try_from(gflops).unwrap_or(u32::MAX),
                    labels,
                    domains: domains.clone(),
                };
                sites.push((Site { node: node.id, gpus: gpus.to_vec() }, spec));
            }
        }
        Ok(sites)
    }

    /// Whether nothing about the node is new; what is makes waiting requests fit that did not
    /// before.
    pub(super) fn knows(&self, fleet: &Fleet, node: &Node) -> bool {
        let known = |(name, value): (&String, &String)| {
            self.labels.iter().any(|label| (&label.0, label.1.as_ref()) == (name, Some(value)))
        };
        (0..).zip(&node.gpus).all(|gpu| self.kinds.contains(&Kind::of(fleet, node, gpu)))
            && node.labels.iter().all(known)
    }

    /// The kind that the scheduler calls this.
    pub(super) fn kind_of(&self, model: ModelId) -> Option<&Kind> {
        self.kinds.get(model.index())
    }

    /// The pools that its GPUs are in, some several times.
    pub(super) fn pools(&self) -> impl Iterator<Item = &str> {
        self.kinds.iter().map(|kind| &*kind.pool)
    }

    /// The kinds that a request accepts.
    pub(super) fn accepted(&self, ask: &NewLease, serves: impl Fn(&str) -> bool) -> ModelSet {
        let accepted = (0..).zip(&self.kinds).filter(|(_, kind)| kind.is_asked_for(ask, &serves));
        accepted.filter_map(|(id, _)| ModelId::new(id)).collect()
    }

    /// The labels that a request asks for; the error is one that no node has. Only nodes that say
    /// where they stand are known to stand apart.
    pub(super) fn labels_of(&self, ask: &NewLease) -> Result<LabelSet, String> {
        let id = |name: &str, value: Option<&str>| {
            let known = self.labels.iter().position(|label| (&*label.0, label.1.as_deref()) == (name, value));
            known.and_then(|index| LabelId::new(index as u8))
        };
        let named = ask.labels.iter().map(|(name, value)| {
            id(name, Some(value)).ok_or_else(|| format!("no node has the label {name}={value}"))
        });
        let place = ask.spread.map(Level::name).filter(|name| is_place(name)).map(|name| {
            id(name, None).ok_or_else(|| {
                format!("no node says in which {name} it stands (`sluice node --label {name}=NAME`)")
            })
        });
        named.chain(place).collect()
    }

    /// The memory that is asked for on a GPU of a kind, in MiB: unless said the same part as of
    /// what may be leased of its compute.
    pub(super) fn memory_mib(&self, model: ModelId, ask: &NewLease) -> u64 {
        if ask.memory > 0 {
            return ask.memory.div_ceil(1 << 20);
        }
        let of = |kind: &Kind| kind.memory_of(ask.share_of(kind.gflops).min(GPU_PPM.into()));
        self.kinds.get(model.index()).map_or(0, of) >> 20
    }

    /// GFLOPS of the slowest and of the fastest GPUs among these.
    pub(super) fn gflops(&self, models: ModelSet) -> (u64, u64) {
        let gflops = || self.of(models).map(|kind| kind.gflops);
        (gflops().min().unwrap_or(0), gflops().max().unwrap_or(0))
    }

    /// What is asked for of a GPU of a kind, in thousandths of it and of units.
    pub(super) fn compute(&self, model: ModelId, ask: &NewLease) -> (u64, u64) {
        let gflops = self.kinds.get(model.index()).map_or(0, |kind| kind.gflops);
        let milli = u64::from(milli(ask.share_of(gflops)));
        (milli, ask.units_milli.unwrap_or(milli * gflops / 1000))
    }

    /// The pools of these kinds that are overcommitted, in words.
    pub(super) fn overcommitted(&self, models: ModelSet) -> Option<String> {
        let overcommitted = self.of(models).filter(|kind| kind.promised_ppm > GPU_PPM);
        let pools: BTreeMap<&str, u32> = overcommitted.map(|kind| (&*kind.pool, kind.promised_ppm)).collect();
        let words = |(pool, ppm): (&&str, &u32)| {
            format!("pool {pool} is overcommitted: {} % of each GPU may be leased", ppm / (GPU_PPM / 100))
        };
        let leasable = |kind: &&Kind| kind.leasable > kind.memory;
        let of_memory: BTreeSet<String> = self
            .of(models)
            .filter(leasable)
            .map(|kind| {
                let Kind { pool, name, memory, leasable, .. } = kind;
                format!(
                    "memory of {name} in pool {pool} is overcommitted: {} MiB of each GPU may be leased, {} MiB to one lease",
                    leasable >> 20,
                    memory >> 20
                )
            })
            .collect();
        let words: Vec<String> = pools.iter().map(words).chain(of_memory).collect();
        (!words.is_empty()).then(|| words.join("; "))
    }

    /// The reason that no GPU of the pools that serve has this number of units, if so.
    pub(super) fn too_few_units(&self, milli: u64, serves: impl Fn(&str) -> bool) -> Option<String> {
        let most = self.kinds.iter().filter(|kind| serves(&kind.pool)).map(|kind| kind.gflops).max()?;
        let units = |milli: u64| milli as f64 / UNIT_GFLOPS as f64;
        (most < milli).then(|| {
            format!("{} units of a GPU: none that it may use has more than {}", units(milli), units(most))
        })
    }

    pub(super) fn of(&self, models: ModelSet) -> impl Iterator<Item = &Kind> {
        let of = move |model: ModelId| self.kinds.get(model.index()).filter(|_| models.contains(model));
        ModelId::all().filter_map(of)
    }

    fn label(&mut self, name: &str, value: Option<&str>) -> Result<LabelId, TooMany> {
        let known = self.labels.iter().position(|label| (&*label.0, label.1.as_deref()) == (name, value));
        let index = known.unwrap_or(self.labels.len());
        let id = u8::try_from(index).ok().and_then(LabelId::new).ok_or(TooMany)?;
        if known.is_none() {
            self.labels.push((name.to_owned(), value.map(str::to_owned)));
        }
        Ok(id)
    }

    fn kind(&mut self, kind: Kind) -> Result<ModelId, TooMany> {
        let known = self.kinds.iter().position(|other| *other == kind);
        let index = known.unwrap_or(self.kinds.len());
        let id = u8::try_from(index).ok().and_then(ModelId::new).ok_or(TooMany)?;
        if known.is_none() {
            self.kinds.push(kind);
        }
        Ok(id)
    }

    /// A node that does not say where it stands is near no other.
    fn domain(&mut self, level: Level, node: &Node) -> DomainId {
        let name = match (level, node.labels.get(level.name())) {
            (Level::Zone | Level::Rack | Level::Switch, Some(name)) => format!("={name}"),
            _ => node.id.to_string(),
        };
        let next = DomainId(self.domains.len() as u32);
        *self.domains.entry((level, name)).or_insert(next)
    }
}

/// Whether a label says where its node stands.
fn is_place(label: &str) -> bool {
    Level::ALL.iter().any(|level| level.name() == label && *level != Level::Node)
}

/// How near some GPUs of a node are to each other, as far as the node says: by NVLinks, the more
/// the better, else by a NUMA node that they have in common.
pub(super) fn links(node: &Node, gpus: &[u32]) -> Links {
    let of = |at: usize| gpus.get(at).and_then(|&gpu| Some((gpu, node.gpus.get(gpu as usize)?)));
    let nvlinks = |one: usize, other: usize| {
        let pair = of(one).zip(of(other));
        let links = pair.and_then(|((_, one), (at, _))| one.nvlinks.iter().find(|links| links.gpu == at));
        links.map_or(0, |links| links.links.min(NVLINKS_MAX) as u16)
    };
    let same_numa = |one: usize, other: usize| {
        let [one, other] = [one, other].map(|at| of(at).and_then(|(_, gpu)| gpu.numa_node));
        one.is_some() && one == other
    };
    Links::new(gpus.len(), |one, other| nvlinks(one, other) * 2 + u16::from(same_numa(one, other)))
        .with(Link::Nvlink, |one, other| nvlinks(one, other) > 0)
        .with(Link::Numa, same_numa)
}

/// The most links to one other GPU; more are not distinguished.
const NVLINKS_MAX: u32 = 1000;
