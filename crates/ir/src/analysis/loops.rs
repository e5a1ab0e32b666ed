//! Natural loops and how they nest.

use crate::analysis::{Cfg, Dominators};
use crate::kernel::Kernel;
use crate::types::BlockId;

/// Index of a loop in [`Loops`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LoopId(pub u32);

/// The natural loops of a kernel: one for each block that dominates the source of an edge to it.
#[derive(Clone, Debug)]
pub struct Loops {
    /// By loop: its header. A loop comes after those it contains.
    pub headers: Vec<BlockId>,
    /// By loop: the loop right around it.
    pub parents: Vec<Option<LoopId>>,
    /// By block: the innermost loop that it is in.
    innermost: Vec<Option<LoopId>>,
    /// Whether some cycle has no header: it is entered in the middle, which compilers do not
    /// produce.
    pub is_irreducible: bool,
}

impl Loops {
    pub fn new(kernel: &Kernel, cfg: &Cfg, dominators: &Dominators) -> Loops {
        let mut loops = Loops {
            headers: Vec::new(),
            parents: Vec::new(),
            innermost: vec![None; kernel.blocks.len()],
            is_irreducible: false,
        };
        // Backwards in reverse post-order meets inner loops first.
        for header in cfg.order.iter().rev() {
            let mut latches = Vec::new();
            for pred in cfg.preds(*header) {
                if dominators.dominates(*header, *pred) {
                    latches.push(*pred);
                } else if cfg.position(*pred) >= cfg.position(*header) {
                    loops.is_irreducible = true;
                }
            }
            if !latches.is_empty() {
                loops.add(cfg, *header, latches);
            }
        }
        loops
    }

    fn add(&mut self, cfg: &Cfg, header: BlockId, latches: Vec<BlockId>) {
        let id = LoopId(self.headers.len() as u32);
        self.headers.push(header);
        self.parents.push(None);
        // First, so that the walk stops there.
        self.innermost[header.index()] = Some(id);
        let mut work = latches;
        while let Some(block) = work.pop() {
            match self.outermost(block) {
                Some(seen) if seen == id => {}
                Some(inner) => {
                    // A whole inner loop at once: continue before its header.
                    self.parents[inner.0 as usize] = Some(id);
                    work.extend_from_slice(cfg.preds(self.headers[inner.0 as usize]));
                }
                None => {
                    self.innermost[block.index()] = Some(id);
                    work.extend_from_slice(cfg.preds(block));
                }
            }
        }
    }

    /// The outermost loop found so far that contains the block.
    fn outermost(&self, block: BlockId) -> Option<LoopId> {
        let mut at = self.innermost[block.index()]?;
        while let Some(parent) = self.parents[at.0 as usize] {
            at = parent;
        }
        Some(at)
    }

    pub fn innermost(&self, block: BlockId) -> Option<LoopId> {
        self.innermost[block.index()]
    }

    pub fn parent(&self, of: LoopId) -> Option<LoopId> {
        self.parents[of.0 as usize]
    }

    pub fn header(&self, of: LoopId) -> BlockId {
        self.headers[of.0 as usize]
    }

    /// Whether the block is in this loop or one inside it.
    pub fn contains(&self, outer: LoopId, block: BlockId) -> bool {
        let mut at = self.innermost(block);
        while let Some(id) = at {
            // An outer loop has a higher number than what it contains.
            if id >= outer {
                return id == outer;
            }
            at = self.parent(id);
        }
        false
    }
}
