//! Steps of a warp on vectors; [`partial`] has those of a warp whose lanes are not all active.
//!
//! The lanes are cut into chunks of one to eight *quads* of four lanes, and a loop goes over the
//! chunks. A value of a quad is one vector of 32-bit elements, two of 64-bit elements, or, for what
//! has no vector instruction, four single lanes. Predicates are vectors of 32-bit lanes that are
//! all ones or zeros. Integers of 8 and 16 bits have 32-bit lanes whose upper bits mean nothing.
//!
//! An access whose lanes are neighbours is checked once for the whole warp, in front of the loop;
//! one whose lanes are neighbours in each quad, once for each quad.

mod memory;
mod partial;
mod quads;
mod values;
mod vectors;

use std::collections::HashMap;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{BlockArg, InstBuilder, Value as Clif, types};
use sluice_ir::{Inst, InstId, Kernel, RuntimeFunction, Type, UnaryOp, Value};

use self::vectors::is_vector_inst;
use super::emitter::{Emitter, frame_flags};
use super::lanes::Lane;
use crate::context::LANES;
use crate::math;

/// Lanes of a quad.
const QUAD: usize = 4;

/// One pass of a loop over chunks.
pub(super) struct Chunk {
    /// Number of the first lane, i64.
    first: Clif,
    quads: usize,
    values: HashMap<(Value, usize), Quad>,
    /// Accesses whose lanes are neighbours.
    hoisted: HashMap<InstId, Hoisted>,
    /// The lanes whose values change, as a vector of all ones or zeros; all lanes without one.
    active: Option<Clif>,
}

impl Chunk {
    fn new(first: Clif, quads: usize) -> Chunk {
        Chunk { first, quads, values: HashMap::new(), hoisted: HashMap::new(), active: None }
    }
}

/// Where the lanes of an access are neighbours: lane 0's place, as a host address and a
/// displacement.
#[derive(Clone, Copy)]
struct Hoisted {
    address: Clif,
    offset: i32,
}

/// A value in four lanes, in one form or both.
#[derive(Clone, Copy, Default)]
struct Quad {
    vector: Option<Vector>,
    each: Option<[Clif; QUAD]>,
}

/// Four lanes of 32 or 64 bits.
#[derive(Clone, Copy)]
enum Vector {
    Words(Clif),
    Wides([Clif; 2]),
}

impl Emitter<'_> {
    /// A run of instructions for all 32 lanes. Returns the bits of `predicates`.
    pub(super) fn chunks(&mut self, insts: &[InstId], predicates: &[Value]) -> Vec<Clif> {
        let hoisted = self.hoist_all(insts);
        let quads = self.quads_per_chunk(insts);
        self.each_chunk(quads, predicates.len(), |emitter, first| {
            let mut chunk = Chunk { hoisted: hoisted.clone(), ..Chunk::new(first, quads) };
            for &id in insts {
                emitter.chunk_inst(id, &mut chunk);
            }
            predicates.iter().map(|&value| emitter.chunk_bits(value, &mut chunk)).collect()
        })
    }

    /// Whether vectors are worth a second version of a step: enough of it has a form on vectors.
    pub(super) fn gains_from_chunks(&self, insts: &[InstId]) -> bool {
        let is_light = |id: &&InstId| {
            is_vector_inst(self.kernel, **id) || self.is_vector_access(&self.kernel.inst(**id).inst)
        };
        // What watches an instrumented kernel sees each lane's access before the next lane's check.
        let is_check = |id: &InstId| {
            matches!(
                self.kernel.inst(*id).inst,
                Inst::CallRuntime { function: RuntimeFunction::CheckAccess, .. }
            )
        };
        let light = insts.iter().filter(is_light).count();
        2 * light > insts.len() && !insts.iter().any(is_check)
    }

    /// Whether the lanes of an access are neighbours, in the warp or in each quad.
    fn is_vector_access(&self, inst: &Inst) -> bool {
        self.neighbour_access(inst).is_some() || self.quad_access(inst).is_some()
    }

    /// Copies arguments to parameters in all 32 lanes.
    pub(super) fn assign_chunks(&mut self, pairs: &[(Value, Value)]) {
        let quads = if pairs.len() <= 3 { 4.min(self.plan.lanes / QUAD) } else { 1 };
        self.each_chunk(quads, 0, |emitter, first| {
            emitter.assign_chunk(pairs, &mut Chunk::new(first, quads));
            Vec::new()
        });
    }

    fn assign_chunk(&mut self, pairs: &[(Value, Value)], chunk: &mut Chunk) {
        let mut stores = Vec::new();
        for &(param, arg) in pairs {
            for quad in 0..chunk.quads {
                let vector = self.vector(arg, quad, chunk);
                stores.push((param, quad, Quad { vector: Some(vector), each: None }));
            }
        }
        for (param, quad, value) in stores {
            self.store_quad(param, quad, value, chunk);
        }
    }

    /// Writes a value of 1 or 32 bits as words to an array in the warp's memory, whatever lanes are
    /// active.
    pub(super) fn write_words(&mut self, value: Value, place: u32) {
        let quads = self.plan.lanes / QUAD;
        self.each_chunk(quads, 0, |emitter, first| {
            let mut chunk = Chunk::new(first, quads);
            for quad in 0..quads {
                let vector = emitter.vector(value, quad, &mut chunk);
                let words = emitter.half(vector, 0);
                emitter.b.ins().store(frame_flags(), words, emitter.ctx, place as i32 + 16 * quad as i32);
            }
            Vec::new()
        });
    }

    /// Lane `l` gets the word of lane `sources[l]`, in all 32 lanes; both arrays may be the same.
    pub(super) fn permute_words(&mut self, from: Clif, to: Clif, sources: &[u32; LANES]) {
        let quads: Vec<Clif> = sources
            .chunks_exact(QUAD)
            .map(|sources| {
                let place = |lane: u32| 4 * lane as i32;
                if sources.windows(2).all(|pair| pair[1] == pair[0] + 1) {
                    return self.b.ins().load(types::I32X4, frame_flags(), from, place(sources[0]));
                }
                let each = [0, 1, 2, 3]
                    .map(|number| self.b.ins().load(types::I32, frame_flags(), from, place(sources[number])));
                let vector = self.gather_lanes(Type::I32, each);
                self.half(vector, 0)
            })
            .collect();
        for (quad, words) in quads.into_iter().enumerate() {
            self.b.ins().store(frame_flags(), words, to, 16 * quad as i32);
        }
    }

    /// Runs `body` for each chunk with the number of its first lane. Its results are merged by
    /// `or`.
    fn each_chunk(
        &mut self,
        quads: usize,
        count: usize,
        body: impl FnOnce(&mut Self, Clif) -> Vec<Clif>,
    ) -> Vec<Clif> {
        let zero = self.b.ins().iconst(types::I64, 0);
        if quads * QUAD == self.plan.lanes {
            return body(self, zero);
        }
        let (head, done) = (self.b.create_block(), self.b.create_block());
        self.b.append_block_param(head, types::I64);
        for _ in 0..count {
            self.b.append_block_param(head, types::I32);
            self.b.append_block_param(done, types::I32);
        }
        let none = self.b.ins().iconst(types::I32, 0);
        let mut entry = vec![BlockArg::Value(zero)];
        entry.extend((0..count).map(|_| BlockArg::Value(none)));
        self.b.ins().jump(head, &entry);
        self.b.switch_to_block(head);
        let params = self.b.block_params(head).to_vec();
        let results = body(self, params[0]);
        let bits: Vec<BlockArg> = results
            .into_iter()
            .zip(&params[1..])
            .map(|(result, &before)| BlockArg::Value(self.b.ins().bor(before, result)))
            .collect();
        let next = self.b.ins().iadd_imm_u(params[0], (quads * QUAD) as i64);
        let is_last = self.b.ins().icmp_imm_u(IntCC::Equal, next, self.plan.lanes as i64);
        let mut again = vec![BlockArg::Value(next)];
        again.extend(bits.iter().copied());
        self.b.ins().brif(is_last, done, &bits, head, &again);
        self.b.switch_to_block(done);
        self.b.block_params(done).to_vec()
    }

    /// How many quads to work on at a time: as many as leave the values in registers.
    pub(super) fn quads_per_chunk(&self, insts: &[InstId]) -> usize {
        let kernel = self.kernel;
        let is_neighbours = |id: &InstId| self.is_vector_access(&kernel.inst(*id).inst);
        let is_light = |id: &InstId| is_vector_inst(kernel, *id) || is_neighbours(id);
        if insts.len() > 160 || !insts.iter().all(is_light) {
            return 1;
        }
        let mut live: Vec<Value> = Vec::new();
        let mut live_max = 1;
        for (place, &id) in insts.iter().enumerate().rev() {
            live.retain(|&value| !kernel.inst(id).results().any(|result| result == value));
            // What is loaded for the next instruction only is an operand in memory there.
            let loaded = place.checked_sub(1).map(|before| insts[before]).filter(is_neighbours);
            let loaded = loaded.map(|id| kernel.inst(id)).filter(|data| data.result_count == 1);
            let loaded = loaded.map(|data| data.result(0)).filter(|&value| !self.plan.escapes(value));
            kernel.inst(id).inst.for_each_arg(|value| {
                let is_operand = Some(value) == loaded;
                if self.plan.is_varying(value) && !is_operand && !live.contains(&value) {
                    live.push(value);
                }
            });
            let weight: usize =
                live.iter().map(|&value| if kernel.ty(value).bits() == 64 { 2 } else { 1 }).sum();
            live_max = live_max.max(weight);
        }
        let quads = match 15 / live_max {
            0 | 1 => 1,
            2 | 3 => 2,
            4..8 => 4,
            _ => 8,
        };
        quads.min(self.plan.lanes / QUAD)
    }

    fn chunk_inst(&mut self, id: InstId, chunk: &mut Chunk) {
        let kernel = self.kernel;
        let data = kernel.inst(id);
        if matches!(data.inst, Inst::Const { .. }) {
            return;
        }
        if let Some(&address) = chunk.hoisted.get(&id) {
            return self.neighbours(id, address, chunk);
        }
        if self.quad_access(&data.inst).is_some() {
            return self.quad_accesses(id, chunk);
        }
        if let Some(function) = approximation(&data.inst) {
            return self.approximate(function, id, chunk);
        }
        if is_vector_inst(kernel, id) {
            for quad in 0..chunk.quads {
                let vector = self.vector_inst(&data.inst, quad, chunk);
                self.define_quad(data.result(0), quad, Quad { vector: Some(vector), each: None }, chunk);
            }
            return;
        }
        for quad in 0..chunk.quads {
            self.lane_by_lane(id, quad, chunk);
        }
    }

    /// A function of the runtime, over the chunk's values in the scratch.
    fn approximate(&mut self, function: *const (), id: InstId, chunk: &mut Chunk) {
        let kernel = self.kernel;
        let data = kernel.inst(id);
        let Inst::Unary { arg, .. } = data.inst else { unreachable!("approximations have one operand") };
        let place = |quad: usize| self.plan.scratch as i32 + 16 * quad as i32;
        for quad in 0..chunk.quads {
            let vector = self.vector(arg, quad, chunk);
            let words = self.half(vector, 0);
            self.b.ins().store(frame_flags(), words, self.ctx, place(quad));
        }
        let values = self.b.ins().iadd_imm_u(self.ctx, i64::from(self.plan.scratch));
        let count = self.b.ins().iconst(types::I64, (chunk.quads * QUAD) as i64);
        self.call(function, &[values, count], None);
        for quad in 0..chunk.quads {
            let words = self.b.ins().load(types::F32X4, frame_flags(), self.ctx, place(quad));
            let forms = Quad { vector: Some(Vector::Words(words)), each: None };
            self.define_quad(data.result(0), quad, forms, chunk);
        }
    }

    /// An instruction without a vector form, for the lanes of one quad.
    fn lane_by_lane(&mut self, id: InstId, quad: usize, chunk: &mut Chunk) {
        let kernel = self.kernel;
        let data = kernel.inst(id);
        let mut args = HashMap::new();
        data.inst.for_each_arg(|value| {
            if self.plan.is_varying(value) {
                args.insert(value, self.each(value, quad, chunk));
            }
        });
        let mut results: Vec<[Clif; QUAD]> = vec![[self.ctx; QUAD]; usize::from(data.result_count)];
        for number in 0..QUAD {
            let index = self.lane_number(chunk, quad, number);
            let values = args.iter().map(|(&value, each)| (value, each[number])).collect();
            let lane = Lane { index, values };
            for (place, result) in self.lane_results(id, &lane).into_iter().enumerate() {
                results[place][number] = result;
            }
        }
        for (value, each) in data.results().zip(results) {
            self.define_quad(value, quad, Quad { vector: None, each: Some(each) }, chunk);
        }
    }

    fn lane_number(&mut self, chunk: &Chunk, quad: usize, number: usize) -> Clif {
        if chunk.quads * QUAD == self.plan.lanes {
            return self.b.ins().iconst(types::I64, (quad * QUAD + number) as i64);
        }
        self.b.ins().iadd_imm_u(chunk.first, (quad * QUAD + number) as i64)
    }
}

/// Whether an instruction can be done for lanes that are not active at no cost.
pub(super) fn is_free(kernel: &Kernel, id: InstId) -> bool {
    let inst = &kernel.inst(id).inst;
    matches!(inst, Inst::Const { .. }) || (is_vector_inst(kernel, id) && approximation(inst).is_none())
}

/// The function over an array that does what an instruction asks.
fn approximation(inst: &Inst) -> Option<*const ()> {
    let Inst::Unary { op, ty: Type::F32, .. } = inst else { return None };
    Some(match op {
        UnaryOp::Ex2 => math::ex2_array as *const (),
        UnaryOp::Lg2 => math::lg2_array as *const (),
        UnaryOp::Sin => math::sin_array as *const (),
        UnaryOp::Cos => math::cos_array as *const (),
        UnaryOp::Tanh => math::tanh_array as *const (),
        _ => return None,
    })
}
