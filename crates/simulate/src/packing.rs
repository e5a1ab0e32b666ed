//! A cluster that fills up: what was placed where, and making room by moving it.

use std::collections::HashSet;

use sluice_sched::{Cluster, Placement, Placer, RelocationLimits, Request, Trial, relocate};

/// What one job asks for, as often as it has members.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    pub(crate) request: Request,
    pub(crate) members: u32,
}

impl Wish {
    /// GPU compute of all members.
    pub(crate) fn gpu_milli(&self) -> u64 {
        self.request.total_gpu_milli() * u64::from(self.members)
    }
}

pub(crate) struct Packing {
    cluster: Cluster,
    placer: Placer,
    migrate: bool,
    /// What runs on each node, each placement under a number of its own; kept where it may be
    /// moved.
    running: Vec<Vec<(u32, Placement)>>,
    placed: u32,
    moves: u64,
    /// Requests that could not be placed even by moving others, with the cluster as it is.
    hopeless: HashSet<Request>,
}

impl Packing {
    pub(crate) fn new(cluster: Cluster, placer: Placer, migrate: bool) -> Packing {
        let running = vec![Vec::new(); cluster.nodes().len()];
        Packing { cluster, placer, migrate, running, placed: 0, moves: 0, hopeless: HashSet::new() }
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Placements moved so far.
    pub(crate) fn moves(&self) -> u64 {
        self.moves
    }

    /// All members of the job, or none. Others are moved for single jobs only.
    pub(crate) fn place(&mut self, wish: &Wish) -> bool {
        let placed =
            self.place_together(wish) || self.migrate && wish.members == 1 && self.make_room(&wish.request);
        if placed {
            self.hopeless.clear();
        }
        placed
    }

    fn place_together(&mut self, wish: &Wish) -> bool {
        let mut trial = Trial::new(&mut self.cluster);
        let mut placements = Vec::new();
        for _ in 0..wish.members {
            let Ok(placement) = self.placer.place(trial.cluster(), &wish.request) else { return false };
            if trial.allocate(&placement).is_err() {
                return false;
            }
            placements.push(placement);
        }
        trial.commit();
        placements.into_iter().for_each(|placement| self.note(placement));
        true
    }

    fn make_room(&mut self, request: &Request) -> bool {
        if self.hopeless.contains(request) {
            return false;
        }
        let Packing { cluster, placer, running, .. } = self;
        let Ok(found) = relocate(cluster, placer, running, request, RelocationLimits::default()) else {
            self.hopeless.insert(*request);
            return false;
        };
        let mut trial = Trial::new(&mut self.cluster);
        let released = found.moves.iter().all(|one| trial.release(&one.from).is_ok());
        let moved = released && found.moves.iter().all(|one| trial.allocate(&one.to).is_ok());
        if !moved || trial.allocate(&found.placement).is_err() {
            return false;
        }
        trial.commit();
        for one in &found.moves {
            self.running[one.from.node.index()].retain(|(number, _)| *number != one.job);
            self.running[one.to.node.index()].push((one.job, one.to));
            self.moves += 1;
        }
        self.note(found.placement);
        true
    }

    fn note(&mut self, placement: Placement) {
        if self.migrate {
            self.running[placement.node.index()].push((self.placed, placement));
            self.placed += 1;
        }
    }
}
