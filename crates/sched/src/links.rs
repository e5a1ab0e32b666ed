//! Links between the GPUs of a node, and which of several GPUs are linked best.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::score::fitting_gpus;
use crate::{GPUS_PER_NODE_MAX, GpuSet, Node, Request};

/// What the GPUs of a request may have to have in common, each with each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Link {
    Nvlink,
    Numa,
}

/// How near the GPUs of a node are to each other: the higher, the nearer; 0 where no link is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Links {
    nearness: Option<Arc<[[u16; GPUS_PER_NODE_MAX]; GPUS_PER_NODE_MAX]>>,
    /// The others that each has a link to, by [`Link`].
    linked: [[GpuSet; GPUS_PER_NODE_MAX]; 2],
    gpus: usize,
}

impl Links {
    /// `nearness` is asked of each pair once, the smaller index first; a node has at most
    /// [`GPUS_PER_NODE_MAX`] GPUs.
    pub fn new(gpus: usize, nearness: impl Fn(usize, usize) -> u16) -> Links {
        let gpus = gpus.min(GPUS_PER_NODE_MAX);
        let mut table = [[0; GPUS_PER_NODE_MAX]; GPUS_PER_NODE_MAX];
        let mut all = Vec::new();
        for (one, other) in pairs(gpus) {
            let near = nearness(one, other);
            (table[one][other], table[other][one]) = (near, near);
            all.push(near);
        }
        // Where all are as near, it does not matter which are taken.
        let differ = all.iter().any(|near| near != &all[0]);
        Links { nearness: differ.then(|| Arc::new(table)), gpus, ..Links::default() }
    }

    /// Says which pairs have a link; asked as by [`Links::new`].
    pub fn with(mut self, link: Link, has: impl Fn(usize, usize) -> bool) -> Links {
        let linked = &mut self.linked[link as usize];
        for (one, other) in pairs(self.gpus).filter(|&(one, other)| has(one, other)) {
            (linked[one], linked[other]) = (linked[one].with(other), linked[other].with(one));
        }
        self
    }

    /// `count` of these GPUs, each linked to each; none if there are no such.
    pub(crate) fn all_linked(&self, link: Link, among: GpuSet, count: usize) -> Option<GpuSet> {
        if count == 0 {
            return Some(GpuSet::EMPTY);
        }
        let mut rest = among;
        for gpu in among.iter() {
            if rest.len() < count {
                return None;
            }
            rest = rest.without(gpu);
            let others = rest.and(self.linked[link as usize][gpu]);
            if let Some(found) = self.all_linked(link, others, count - 1) {
                return Some(found.with(gpu));
            }
        }
        None
    }

    /// Of all pairs of these GPUs.
    fn nearness(&self, gpus: GpuSet) -> u32 {
        let Some(table) = &self.nearness else { return 0 };
        let of =
            |one: usize| gpus.iter().filter(move |&other| other > one).map(move |other| table[one][other]);
        gpus.iter().flat_map(of).map(u32::from).sum()
    }
}

/// In place of the GPUs that a policy has chosen, others of which as much is free and on which the
/// request fits as well: those that are nearest to each other, and of equal ones those that leave
/// the nearest to the next. To a policy they are the same. Where the request wants them linked,
/// they are, if as little as possible is free of them then.
pub(crate) fn nearest(node: &Node, request: &Request, chosen: GpuSet) -> GpuSet {
    let links = node.links();
    let wanted_link = request.linked.filter(|_| chosen.len() > 1);
    if (links.nearness.is_none() && wanted_link.is_none()) || chosen.is_empty() {
        return chosen;
    }
    let free = |gpu: usize| (node.gpus()[gpu].milli, node.gpus()[gpu].memory_mib);
    let mut wanted: Vec<_> = chosen.iter().map(free).collect();
    wanted.sort_unstable();
    let fitting: Vec<usize> = fitting_gpus(node, request).map(|(gpu, _)| gpu).collect();
    let all = fitting.iter().fold(GpuSet::EMPTY, |set, &gpu| set.with(gpu));
    let is_linked =
        |gpus: GpuSet| wanted_link.is_none_or(|link| links.all_linked(link, gpus, gpus.len()).is_some());
    let mut best = None;
    // At most 12,870 of them, on the one node that was chosen.
    subsets(&fitting, chosen.len(), GpuSet::EMPTY, &mut |gpus| {
        let mut offered: Vec<_> = gpus.iter().map(free).collect();
        offered.sort_unstable();
        let is_same = offered == wanted;
        if !is_linked(gpus) || (wanted_link.is_none() && !is_same) {
            return;
        }
        let left: u32 = offered.iter().map(|&(milli, _)| u32::from(milli)).sum();
        let rest = gpus.iter().fold(all, GpuSet::without);
        let rank = (is_same, Reverse(left), links.nearness(gpus), links.nearness(rest));
        if best.is_none_or(|(known, _)| rank > known) {
            best = Some((rank, gpus));
        }
    });
    best.map_or(chosen, |(_, gpus)| gpus)
}

/// Of indices below, the smaller first.
fn pairs(gpus: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..gpus).flat_map(move |one| (one + 1..gpus).map(move |other| (one, other)))
}

/// All sets of `count` of these GPUs, beside those that are in the set already.
fn subsets(gpus: &[usize], count: usize, set: GpuSet, take: &mut impl FnMut(GpuSet)) {
    if count == 0 {
        return take(set);
    }
    for (at, &gpu) in gpus.iter().enumerate() {
        if gpus.len() - at < count {
            return;
        }
        subsets(&gpus[at + 1..], count - 1, set.with(gpu), take);
    }
}
