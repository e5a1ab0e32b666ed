//! The control-flow graph: reverse post-order, predecessors, dominators, dominance frontiers.

use crate::kernel::Kernel;
use crate::types::BlockId;

const UNREACHED: u32 = u32::MAX;

/// Order and predecessors of the blocks that the entry reaches.
#[derive(Clone, Debug)]
pub struct Cfg {
    /// Reachable blocks in reverse post-order, the entry first.
    pub order: Vec<BlockId>,
    /// By block: its place in `order`.
    position: Vec<u32>,
    /// By block: where its predecessors start in `preds`; one more at the end.
    pred_start: Vec<u32>,
    preds: Vec<BlockId>,
}

impl Cfg {
    pub fn new(kernel: &Kernel) -> Cfg {
        let order = reverse_post_order(kernel);
        let count = kernel.blocks.len();
        let mut position = vec![UNREACHED; count];
        for (place, block) in order.iter().enumerate() {
            position[block.index()] = place as u32;
        }

        let mut pred_start = vec![0; count + 1];
        for block in &order {
            for target in kernel.block(*block).terminator.targets() {
                pred_start[target.block.index() + 1] += 1;
            }
        }
        for index in 0..count {
            pred_start[index + 1] += pred_start[index];
        }
        let mut next = pred_start.clone();
        let mut preds = vec![BlockId(0); pred_start[count] as usize];
        for block in &order {
            for target in kernel.block(*block).terminator.targets() {
                let slot = &mut next[target.block.index()];
                preds[*slot as usize] = *block;
                *slot += 1;
            }
        }
        Cfg { order, position, pred_start, preds }
    }

    /// One entry per edge: a predecessor with two edges to this block is here twice. Unreachable
    /// ones are not here.
    pub fn preds(&self, block: BlockId) -> &[BlockId] {
        let range = self.pred_start[block.index()] as usize..self.pred_start[block.index() + 1] as usize;
        &self.preds[range]
    }

    pub fn is_reachable(&self, block: BlockId) -> bool {
        self.position[block.index()] != UNREACHED
    }

    /// Place in reverse post-order. Unreachable blocks come after all others.
    pub fn position(&self, block: BlockId) -> u32 {
        self.position[block.index()]
    }
}

fn reverse_post_order(kernel: &Kernel) -> Vec<BlockId> {
    let mut order = Vec::with_capacity(kernel.blocks.len());
    if kernel.blocks.is_empty() {
        return order;
    }
    let mut seen = vec![false; kernel.blocks.len()];
    let mut stack = vec![(BlockId(0), 0)];
    seen[0] = true;
    while let Some((block, next)) = stack.last_mut() {
        let successor = kernel.block(*block).terminator.targets().nth(*next);
        *next += 1;
        match successor {
            Some(target) => {
                if !std::mem::replace(&mut seen[target.block.index()], true) {
                    stack.push((target.block, 0));
                }
            }
            None => {
                order.push(*block);
                stack.pop();
            }
        }
    }
    order.reverse();
    order
}

/// Immediate dominators (Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm").
#[derive(Clone, Debug)]
pub struct Dominators {
    /// By block; the entry's is itself, an unreachable block's is `UNREACHED`.
    idom: Vec<u32>,
    /// By block: first and last number of its subtree in a walk of the dominator tree.
    span: Vec<(u32, u32)>,
    /// Reachable blocks in pre-order of the dominator tree.
    pub preorder: Vec<BlockId>,
}

impl Dominators {
    pub fn new(cfg: &Cfg) -> Dominators {
        let count = cfg.position.len();
        let mut idom = vec![UNREACHED; count];
        if let Some(entry) = cfg.order.first() {
            idom[entry.index()] = entry.0;
        }
        let mut changed = true;
        while changed {
            changed = false;
            for block in cfg.order.iter().skip(1) {
                let mut new = UNREACHED;
                for pred in cfg.preds(*block) {
                    if idom[pred.index()] != UNREACHED {
                        new = if new == UNREACHED { pred.0 } else { meet(cfg, &idom, new, pred.0) };
                    }
                }
                if idom[block.index()] != new {
                    idom[block.index()] = new;
                    changed = true;
                }
            }
        }
        let (span, preorder) = number_tree(cfg, &idom);
        Dominators { idom, span, preorder }
    }

    /// None for the entry and for unreachable blocks.
    pub fn idom(&self, block: BlockId) -> Option<BlockId> {
        match self.idom[block.index()] {
            UNREACHED => None,
            same if same == block.0 => None,
            idom => Some(BlockId(idom)),
        }
    }

    /// Whether every path to `b` passes `a`; a block dominates itself.
    pub fn dominates(&self, a: BlockId, b: BlockId) -> bool {
        let (first, last) = self.span[a.index()];
        let (place, _) = self.span[b.index()];
        first <= place && place <= last
    }

    /// By block: the joins where its dominance ends.
    pub fn frontiers(&self, cfg: &Cfg) -> Vec<Vec<BlockId>> {
        let mut frontiers = vec![Vec::new(); self.idom.len()];
        for block in &cfg.order {
            let preds = cfg.preds(*block);
            if preds.len() < 2 {
                continue;
            }
            let stop = self.idom(*block);
            for pred in preds {
                let mut runner = Some(*pred);
                while let Some(at) = runner.filter(|at| Some(*at) != stop) {
                    let frontier: &mut Vec<BlockId> = &mut frontiers[at.index()];
                    if frontier.last() == Some(block) {
                        break;
                    }
                    frontier.push(*block);
                    runner = self.idom(at);
                }
            }
        }
        frontiers
    }
}

fn meet(cfg: &Cfg, idom: &[u32], a: u32, b: u32) -> u32 {
    let (mut a, mut b) = (a, b);
    while a != b {
        while cfg.position[a as usize] > cfg.position[b as usize] {
            a = idom[a as usize];
        }
        while cfg.position[b as usize] > cfg.position[a as usize] {
            b = idom[b as usize];
        }
    }
    a
}

fn number_tree(cfg: &Cfg, idom: &[u32]) -> (Vec<(u32, u32)>, Vec<BlockId>) {
    let mut first_child = vec![UNREACHED; idom.len()];
    let mut sibling = vec![UNREACHED; idom.len()];
    // Backwards, so that each list of children ends up in reverse post-order.
    for block in cfg.order.iter().skip(1).rev() {
        let parent = idom[block.index()] as usize;
        sibling[block.index()] = first_child[parent];
        first_child[parent] = block.0;
    }
    // An empty span: unreachable blocks dominate nothing and nothing dominates them.
    let mut span = vec![(UNREACHED, 0); idom.len()];
    let mut preorder = Vec::with_capacity(cfg.order.len());
    let mut stack: Vec<(u32, bool)> = cfg.order.first().map(|entry| (entry.0, false)).into_iter().collect();
    while let Some((block, is_done)) = stack.pop() {
        if is_done {
            span[block as usize].1 = preorder.len() as u32 - 1;
            continue;
        }
        span[block as usize].0 = preorder.len() as u32;
        preorder.push(BlockId(block));
        stack.push((block, true));
        let at = stack.len();
        let mut child = first_child[block as usize];
        while child != UNREACHED {
            stack.push((child, false));
            child = sibling[child as usize];
        }
        stack[at..].reverse();
    }
    (span, preorder)
}
