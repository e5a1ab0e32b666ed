//! Chains of fused multiply-adds: `sum = fma(factor_i, row_i, sum)` for several `i`, where the
//! factors are the same in all lanes and the lanes of each row are neighbours in memory, both
//! loaded at constant distances. That is what the inner loop of a matrix product becomes once it is
//! unrolled. Where a thread has several sums, chains over the same rows form a tile. A tile is a
//! step of its own: for a whole warp one call of [`crate::math::fma_tile`], else lane by lane.
//!
//! The loads of a tile happen together at its end, so nothing may be written between the first of
//! them and there.

use std::collections::{HashMap, HashSet};

use cranelift_codegen::ir::InstBuilder;
use cranelift_codegen::ir::types;
use sluice_ir::analysis::Shape;
use sluice_ir::{
    Definition, Effect, Inst, InstId, Kernel, MemoryOperand, Ordering, Rounding, Space, Type, Value,
};

use super::emitter::Emitter;
use super::memory::Extent;
use super::plan::Step;
use crate::math;

/// Fewer steps than this stay what they are.
const LINKS_MIN: usize = 4;

/// Chains over the same rows, in one step of a node.
#[derive(Debug, Clone)]
pub(super) struct Chain {
    /// The loads of factors, then the other loads and the multiply-adds, in program order.
    pub insts: Vec<InstId>,
    /// How many of `insts` load factors, once for all lanes.
    pub factor_loads: usize,
    ty: Type,
    columns: Vec<ChainColumn>,
    /// The first factor of the first column and the first row, and the bytes from one to the next.
    factor: MemoryOperand,
    row: MemoryOperand,
    factor_stride: i32,
    row_stride: i32,
    count: u32,
}

/// One chain of a tile.
#[derive(Debug, Clone, Copy)]
struct ChainColumn {
    /// The first addend, and what comes out.
    sum: Value,
    result: Value,
    /// Bytes from the first factor of the tile to the first one of this column.
    factor: i32,
}

/// One multiply-add that can be part of a chain.
struct ChainStep {
    fma: InstId,
    ty: Type,
    sum: Value,
    result: Value,
    factor_load: InstId,
    factor: MemoryOperand,
    row_load: InstId,
    row: MemoryOperand,
}

/// Makes steps of the chains in `steps`.
pub(super) fn split_off(kernel: &Kernel, shapes: &[Shape], uses: &[u32], steps: Vec<Step>) -> Vec<Step> {
    let mut done: Vec<Step> = Vec::with_capacity(steps.len());
    for step in steps {
        match step {
            Step::Lanes(insts) => split_lanes(kernel, shapes, uses, insts, &mut done),
            step => done.push(step),
        }
    }
    done
}

/// How often each value is used.
pub(super) fn count_uses(kernel: &Kernel) -> Vec<u32> {
    let mut uses = vec![0; kernel.values.len()];
    for block in &kernel.blocks {
        let mut count = |value: Value| uses[value.index()] += 1;
        block.insts.iter().for_each(|&id| kernel.inst(id).inst.for_each_arg(&mut count));
        block.terminator.for_each_arg(&mut count);
    }
    uses
}

fn split_lanes(kernel: &Kernel, shapes: &[Shape], uses: &[u32], insts: Vec<InstId>, done: &mut Vec<Step>) {
    let is_read_only = insts.iter().all(|&id| kernel.inst(id).inst.effect() != Effect::Writes);
    let chains = if is_read_only { find(kernel, shapes, uses, &insts, done) } else { Vec::new() };
    let members: HashSet<InstId> = chains.iter().flat_map(|chain| &chain.insts).copied().collect();
    let mut rest: Vec<InstId> = insts.into_iter().filter(|id| !members.contains(id)).collect();
    done.retain(|step| !matches!(step, Step::Once(id) if members.contains(id)));
    // What waits for the result of a chain comes behind it.
    let results = |chain: &Chain| chain.columns.clone().into_iter().map(|column| column.result);
    let mut pending: HashSet<Value> = chains.iter().flat_map(results).collect();
    for chain in chains {
        let mut late = pending.clone();
        let (before, behind): (Vec<InstId>, Vec<InstId>) = rest.into_iter().partition(|&id| {
            let data = kernel.inst(id);
            let mut waits = false;
            data.inst.for_each_arg(|value| waits |= late.contains(&value));
            if waits {
                late.extend(data.results());
            }
            !waits
        });
        if !before.is_empty() {
            done.push(Step::Lanes(before));
        }
        rest = behind;
        results(&chain).for_each(|result| {
            pending.remove(&result);
        });
        done.push(Step::Chain(Box::new(chain)));
    }
    if !rest.is_empty() {
        done.push(Step::Lanes(rest));
    }
}

/// The chains among the instructions of a step behind the steps `before`, in the order of their
/// ends.
fn find(kernel: &Kernel, shapes: &[Shape], uses: &[u32], insts: &[InstId], before: &[Step]) -> Vec<Chain> {
    let places: HashMap<InstId, usize> = insts.iter().enumerate().map(|(place, &id)| (id, place)).collect();
    let unwritten = loaded_since_last_write(kernel, before);
    let mut growing: Vec<Vec<ChainStep>> = Vec::new();
    for &id in insts {
        let Some(link) = link(kernel, shapes, id) else { continue };
        if !places.contains_key(&link.row_load) || !unwritten.contains(&link.factor_load) {
            continue;
        }
        let before =
            growing.iter_mut().find(|links| links.last().is_some_and(|last| last.result == link.sum));
        match before {
            Some(links) if uses[link.sum.index()] == 1 && continues(links, &link) => links.push(link),
            _ => growing.push(vec![link]),
        }
    }
    let mut chains: Vec<Chain> = tiles(kernel, shapes, &places, growing)
        .into_iter()
        .filter_map(|tile| finish(kernel, uses, &places, tile))
        .collect();
    chains.sort_by_key(|chain| chain.insts.last().map(|last| places[last]));
    chains
}

/// Puts chains over the same rows together. Their sums come from other steps, so that none can
/// depend on another's result.
fn tiles(
    kernel: &Kernel,
    shapes: &[Shape],
    places: &HashMap<InstId, usize>,
    chains: Vec<Vec<ChainStep>>,
) -> Vec<Vec<Vec<ChainStep>>> {
    let rows = |links: &[ChainStep]| -> Vec<InstId> { links.iter().map(|link| link.row_load).collect() };
    let is_free = |sum: Value| {
        let is_inside = match kernel.values[sum.index()].definition {
            Definition::Result { inst, .. } => places.contains_key(&inst),
            _ => false,
        };
        shapes[sum.index()] == Shape::Varying && !is_inside
    };
    let mut tiles: Vec<Vec<Vec<ChainStep>>> = Vec::new();
    for links in chains {
        let fits = |tile: &&mut Vec<Vec<ChainStep>>| {
            let (Some(first), [own, ..]) = (tile.first(), &links[..]) else { return false };
            let is_apart = |a: &ChainStep, b: &ChainStep| stride(&first[0], a) == stride(own, b);
            is_free(own.sum)
                && is_free(first[0].sum)
                && rows(first) == rows(&links)
                && is_same_array(&first[0].factor, &own.factor)
                && first.iter().zip(&links).all(|(a, b)| is_apart(a, b))
        };
        match tiles.iter_mut().find(fits) {
            Some(tile) => tile.push(links),
            None => tiles.push(vec![links]),
        }
    }
    tiles
}

/// Bytes between the factors of two links.
fn stride(from: &ChainStep, to: &ChainStep) -> i64 {
    i64::from(to.factor.offset) - i64::from(from.factor.offset)
}

fn is_same_array(a: &MemoryOperand, b: &MemoryOperand) -> bool {
    (a.space, a.addr) == (b.space, b.addr)
}

/// Loads done once that no write follows.
fn loaded_since_last_write(kernel: &Kernel, steps: &[Step]) -> HashSet<InstId> {
    let writes = |step: &&Step| {
        let is_write = |&id: &InstId| kernel.inst(id).inst.effect() == Effect::Writes;
        matches!(step, Step::Collective(_)) || step.insts().iter().any(is_write)
    };
    steps
        .iter()
        .rev()
        .take_while(|step| !writes(step))
        .filter_map(|step| if let Step::Once(id) = step { Some(*id) } else { None })
        .collect()
}

/// `fma(factor, row, sum)` with a uniform factor and a row of neighbours, in either order.
fn link(kernel: &Kernel, shapes: &[Shape], id: InstId) -> Option<ChainStep> {
    let data = kernel.inst(id);
    let Inst::Fma { rounding: Rounding::Near, ty, args: [a, b, sum] } = data.inst else {
        return None;
    };
    // The scratch of a warp has room for floats only, so sums of doubles must have a slot.
    match ty {
        Type::F32 => {}
        Type::F64 if shapes[sum.index()] == Shape::Varying => {}
        _ => return None,
    }
    [(a, b), (b, a)].into_iter().find_map(|(factor, row)| {
        let (factor_load, factor) = loaded(kernel, ty, factor)?;
        let (row_load, row_place) = loaded(kernel, ty, row)?;
        let is_uniform = shapes[factor.addr.index()] == Shape::Uniform;
        let is_row = shapes[row_place.addr.index()] == Shape::Affine { stride: i64::from(ty.bytes()) }
            && kernel.inst(row_load).result_count == 1;
        (is_uniform && is_row).then(|| ChainStep {
            fma: id,
            ty,
            sum,
            result: data.result(0),
            factor_load,
            factor,
            row_load,
            row: row_place,
        })
    })
}

/// The plain load of numbers of this type that defines a value, and where this one of them comes
/// from.
fn loaded(kernel: &Kernel, wanted: Type, value: Value) -> Option<(InstId, MemoryOperand)> {
    let Definition::Result { inst, index } = kernel.values[value.index()].definition else {
        return None;
    };
    let Inst::Load { place, ty, order, guard: None, .. } = kernel.inst(inst).inst else {
        return None;
    };
    if ty != wanted {
        return None;
    }
    let is_plain = matches!(order.ordering, Ordering::Weak | Ordering::Invariant);
    let is_shared_space = !matches!(place.space, Space::Local | Space::Param);
    let offset = place.offset.checked_add(ty.bytes() as i32 * i32::from(index))?;
    (is_plain && is_shared_space).then_some((inst, MemoryOperand { offset, ..place }))
}

/// Whether a link is as far from the last as that is from the one before.
fn continues(links: &[ChainStep], next: &ChainStep) -> bool {
    let Some(last) = links.last() else { return false };
    if !is_same_array(&last.factor, &next.factor) || !is_same_array(&last.row, &next.row) {
        return false;
    }
    let Some(before) = links.len().checked_sub(2).map(|place| &links[place]) else { return true };
    let step = |a: &MemoryOperand, b: &MemoryOperand| i64::from(b.offset) - i64::from(a.offset);
    step(&last.factor, &next.factor) == step(&before.factor, &last.factor)
        && step(&last.row, &next.row) == step(&before.row, &last.row)
}

fn finish(
    kernel: &Kernel,
    uses: &[u32],
    places: &HashMap<InstId, usize>,
    tile: Vec<Vec<ChainStep>>,
) -> Option<Chain> {
    let [first, second, ..] = &tile.first()?[..] else { return None };
    let count = tile[0].len();
    if count < LINKS_MIN {
        return None;
    }
    let distinct = |load: fn(&ChainStep) -> InstId| {
        let mut seen = HashSet::new();
        let all = tile.iter().flatten().map(load);
        all.filter(|&load| seen.insert(load)).collect::<Vec<InstId>>()
    };
    let (mut insts, rows) = (distinct(|link| link.factor_load), distinct(|link| link.row_load));
    // Nothing else may use what is loaded for the tile, and each factor is used once.
    let wanted = |loads: &[InstId]| -> u32 {
        loads.iter().flat_map(|&load| kernel.inst(load).results()).map(|value| uses[value.index()]).sum()
    };
    let links = count * tile.len();
    if wanted(&insts) as usize != links || wanted(&rows) as usize != links {
        return None;
    }
    let factor_loads = insts.len();
    let mut others = rows;
    others.extend(tile.iter().flatten().map(|link| link.fma));
    others.sort_by_key(|id| places[id]);
    insts.extend(others);
    let column = |links: &Vec<ChainStep>| {
        let factor = links[0].factor.offset.checked_sub(first.factor.offset)?;
        Some(ChainColumn { sum: links[0].sum, result: links.last()?.result, factor })
    };
    let chain = Chain {
        insts,
        factor_loads,
        ty: first.ty,
        columns: tile.iter().map(column).collect::<Option<_>>()?,
        factor: first.factor,
        row: first.row,
        factor_stride: second.factor.offset.checked_sub(first.factor.offset)?,
        row_stride: second.row.offset.checked_sub(first.row.offset)?,
        count: count as u32,
    };
    let (factors, rows) = chain.extents(kernel, 8);
    (factors.is_some() && rows.is_some()).then_some(chain)
}

impl Chain {
    /// All that the loads of factors touch, and all that those of rows do; None if they are too far
    /// apart.
    fn extents(&self, kernel: &Kernel, lanes: u32) -> (Option<Extent>, Option<Extent>) {
        let extent = |loads: &[InstId], lanes: u32| {
            let mut all: Option<Extent> = None;
            for &id in loads {
                let Inst::Load { place, ty, count, .. } = &kernel.inst(id).inst else { continue };
                let own = Extent::new(place, ty.bytes() * u32::from(*count), lanes);
                match &mut all {
                    Some(all) if all.can_join(&own) => all.join(&own),
                    Some(_) => return None,
                    None => all = Some(own),
                }
            }
            all
        };
        let (factors, others) = self.insts.split_at(self.factor_loads);
        (extent(factors, 1), extent(others, lanes))
    }
}

impl Emitter<'_> {
    pub(super) fn chain(&mut self, chain: &Chain) {
        let kernel = self.kernel;
        let (factor_loads, others) = chain.insts.split_at(chain.factor_loads);
        chain.columns.iter().for_each(|column| self.prepare(column.sum));
        [chain.factor.addr, chain.row.addr].into_iter().for_each(|value| self.prepare(value));
        let (all, some, done) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        let is_full = self.is_full(self.mask);
        self.b.ins().brif(is_full, all, &[], some, &[]);

        self.b.switch_to_block(all);
        self.whole_chain(chain);
        self.b.ins().jump(done, &[]);

        self.b.switch_to_block(some);
        // What is checked and loaded here holds on this way only.
        let checked = self.checked.len();
        factor_loads.iter().for_each(|&id| self.once(id));
        self.lane_loop(others, &[]);
        self.checked.truncate(checked);
        for value in factor_loads.iter().flat_map(|&id| kernel.inst(id).results()) {
            self.uniform.remove(&value);
        }
        self.b.ins().jump(done, &[]);
        self.b.switch_to_block(done);
    }

    fn whole_chain(&mut self, chain: &Chain) {
        let (Some(factors), Some(rows)) = chain.extents(self.kernel, self.plan.lanes as u32) else {
            return self.unsupported("a chain of multiply-adds over far places".into());
        };
        let Some(function) = math::fma_tile(chain.ty, self.plan.lanes) else {
            return self.unsupported("a chain of multiply-adds on this processor".into());
        };
        let columns = chain.columns.iter().map(|column| math::Column {
            sum: self.words_place(column.sum, 0),
            result: self.result_place(column.result, 1),
            factor: column.factor,
        });
        let tile = math::Tile {
            factor_stride: chain.factor_stride,
            row_stride: chain.row_stride,
            count: chain.count,
            columns: columns.collect(),
        };
        let [factor, row] =
            [(factors, chain.factor.offset), (rows, chain.row.offset)].map(|(extent, offset)| {
                let start = self.extent_address(&extent);
                self.b.ins().iadd_imm_s(start, i64::from(offset) - i64::from(extent.start))
            });
        let tile = self.symbols.tile(self.b.func, tile);
        let place = self.b.ins().symbol_value(types::I64, tile);
        self.call(function as *const (), &[self.ctx, place, factor, row], None);
    }
}
