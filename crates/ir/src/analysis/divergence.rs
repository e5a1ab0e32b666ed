//! Where the lanes that a branch separates meet again, and which loops they leave at different
//! times.
//!
//! Works on the block numbers of [`crate::passes::layout`]: forward edges lead to higher numbers,
//! so the ways out of a branch are followed by one walk upwards. Each block gets the name of the
//! one way that leads to it, or, where two ways meet, its own; the walk ends where all ways have
//! met (compare LLVM's synchronisation dependence analysis).

use std::cell::Cell;

use crate::analysis::{Cfg, Dominators, LoopId, Loops};
use crate::kernel::{Definition, Kernel};
use crate::types::{BlockId, Value};

const NONE: u32 = u32::MAX;

pub(super) struct Regions {
    cfg: Cfg,
    loops: Loops,
    /// By block: lanes of one warp can arrive by several edges at once.
    joins: Vec<bool>,
    /// By loop: lanes can leave it in different iterations, or by different edges.
    divergent_loops: Vec<bool>,
    /// By value: the innermost loop of its definition and the outermost one that some use lies
    /// outside of.
    escapes: Vec<Option<(LoopId, LoopId)>>,
    /// Scratch: by block, the way that leads to it.
    labels: Vec<u32>,
}

impl Regions {
    pub(super) fn new(kernel: &Kernel) -> Regions {
        let cfg = Cfg::new(kernel);
        let dominators = Dominators::new(&cfg);
        let loops = Loops::new(kernel, &cfg, &dominators);
        let mut regions = Regions {
            joins: vec![false; kernel.blocks.len()],
            divergent_loops: vec![false; loops.headers.len()],
            escapes: vec![None; kernel.values.len()],
            labels: vec![NONE; kernel.blocks.len()],
            cfg,
            loops,
        };
        if !regions.loops.headers.is_empty() {
            regions.find_escapes(kernel);
        }
        regions
    }

    pub(super) fn is_irreducible(&self) -> bool {
        self.loops.is_irreducible
    }

    pub(super) fn preds(&self, block: BlockId) -> &[BlockId] {
        self.cfg.preds(block)
    }

    pub(super) fn is_join(&self, block: BlockId) -> bool {
        self.joins[block.index()]
    }

    /// Whether the edge leaves a loop that lanes leave at different times.
    pub(super) fn leaves_divergently(&self, from: BlockId, to: BlockId) -> bool {
        let mut at = self.loops.innermost(from);
        while let Some(id) = at {
            if self.loops.contains(id, to) {
                return false;
            }
            if self.divergent_loops[id.0 as usize] {
                return true;
            }
            at = self.loops.parent(id);
        }
        false
    }

    /// Whether a value is used outside a loop around its definition that lanes leave at different
    /// times: the iterations after a lane has left must not change what the lane has.
    pub(super) fn escapes_divergently(&self, value: Value) -> bool {
        let Some((inner, outer)) = self.escapes[value.index()] else { return false };
        let mut at = Some(inner);
        while let Some(id) = at.filter(|id| *id <= outer) {
            if self.divergent_loops[id.0 as usize] {
                return true;
            }
            at = self.loops.parent(id);
        }
        false
    }

    fn find_escapes(&mut self, kernel: &Kernel) {
        let mut home = vec![BlockId(0); kernel.insts.len()];
        for id in kernel.block_ids() {
            for inst in &kernel.block(id).insts {
                home[inst.index()] = id;
            }
        }
        for id in kernel.block_ids() {
            let mut visit = |value: Value| {
                let from = match kernel.values[value.index()].definition {
                    Definition::Result { inst, .. } => home[inst.index()],
                    Definition::Param { block, .. } => block,
                    Definition::None => return,
                };
                let Some(inner) = self.loops.innermost(from) else { return };
                let mut left = None;
                let mut at = Some(inner);
                while let Some(around) = at.filter(|around| !self.loops.contains(*around, id)) {
                    left = Some(around);
                    at = self.loops.parent(around);
                }
                if let Some(left) = left {
                    let slot = &mut self.escapes[value.index()];
                    let outer = slot.map_or(left, |(_, outer)| outer.max(left));
                    *slot = Some((inner, outer));
                }
            };
            let block = kernel.block(id);
            block.insts.iter().for_each(|inst| kernel.inst(*inst).inst.for_each_arg(&mut visit));
            block.terminator.for_each_arg(&mut visit);
        }
    }

    /// Lanes may leave this block for different successors.
    pub(super) fn diverge(&mut self, kernel: &Kernel, block: BlockId) {
        let ways: Vec<BlockId> =
            kernel.block(block).terminator.targets().map(|target| target.block).collect();
        let mut around = Vec::new();
        let mut at = self.loops.innermost(block);
        while let Some(id) = at {
            around.push(id);
            at = self.loops.parent(id);
        }
        let mut left = self.follow(kernel, Some(block), &ways, &around);
        // Lanes that leave a loop one after the other go different ways from there on.
        while let Some(id) = left.pop() {
            if std::mem::replace(&mut self.divergent_loops[id.0 as usize], true) {
                continue;
            }
            let exits = self.exits(kernel, id);
            let mut outer = Vec::new();
            let mut at = self.loops.parent(id);
            while let Some(parent) = at {
                outer.push(parent);
                at = self.loops.parent(parent);
            }
            left.extend(self.follow(kernel, None, &exits, &outer));
        }
    }

    /// Marks where ways from here meet. Returns the loops of `around` that one of the ways leaves
    /// before all have met.
    fn follow(
        &mut self,
        kernel: &Kernel,
        from: Option<BlockId>,
        ways: &[BlockId],
        around: &[LoopId],
    ) -> Vec<LoopId> {
        let mut left = Vec::new();
        let mut pending = 0;
        let mut touched = Vec::new();
        let mut next = u32::MAX;
        // Whether a way has come to a block that ends its threads.
        let ends_somewhere = Cell::new(false);
        let mut reach = |regions: &mut Regions,
                         source: Option<BlockId>,
                         to: BlockId,
                         way: u32,
                         pending: &mut u32,
                         is_alone: bool| {
            for id in around {
                if !is_alone && !regions.loops.contains(*id, to) && !left.contains(id) {
                    left.push(*id);
                }
            }
            if source.is_some_and(|source| to <= source) {
                return; // A back edge: an iteration starts when all lanes are at the last block.
            }
            let label = &mut regions.labels[to.index()];
            if *label == NONE {
                *label = way;
                touched.push(to);
                // A block that ends its threads leads nowhere, so nothing is to be waited for
                // behind it.
                match kernel.block(to).terminator.targets().next() {
                    Some(_) => *pending += 1,
                    None => ends_somewhere.set(true),
                }
            } else if *label != way {
                *label = to.0;
                regions.joins[to.index()] = true;
            }
        };
        for (index, way) in ways.iter().enumerate() {
            // Names of ways are above the names of blocks.
            let name = (kernel.blocks.len() + index) as u32;
            reach(self, from, *way, name, &mut pending, false);
            next = next.min(way.0);
        }
        let mut at = next;
        // Whether all ways but one have ended.
        let mut is_alone = false;
        while pending > 0 && (at as usize) < kernel.blocks.len() {
            let id = BlockId(at);
            at += 1;
            let label = self.labels[id.index()];
            if label == NONE || from == Some(id) || kernel.block(id).terminator.targets().next().is_none() {
                continue;
            }
            pending -= 1;
            if pending == 0 {
                // All have met (but those that wait for a next iteration, whose ways out are
                // followed for the loop), or one continues, perhaps to the block in which another
                // ended.
                if !ends_somewhere.get() {
                    break;
                }
                is_alone = true;
            }
            for target in kernel.block(id).terminator.targets() {
                reach(self, Some(id), target.block, label, &mut pending, is_alone);
            }
        }
        for block in touched {
            self.labels[block.index()] = NONE;
        }
        left
    }

    /// Where the edges out of a loop lead, each target once.
    fn exits(&self, kernel: &Kernel, id: LoopId) -> Vec<BlockId> {
        let mut exits = Vec::new();
        for block in kernel.block_ids().filter(|block| self.loops.contains(id, *block)) {
            for target in kernel.block(block).terminator.targets() {
                if !self.loops.contains(id, target.block) && !exits.contains(&target.block) {
                    exits.push(target.block);
                }
            }
        }
        exits
    }
}
