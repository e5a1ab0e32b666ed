//! Steps of a warp whose lanes are all active, on vectors.
//!
//! The lanes are cut into chunks of one to eight *quads* of four lanes, and a loop goes over the chunks. A value of
//! a quad is one vector of 32-bit elements, two of 64-bit elements, or, for what has no vector instruction, four
//! single lanes. Predicates are vectors of 32-bit lanes that are all ones or zeros.
//!
//! An access whose lanes are neighbours is checked once for the whole warp, in front of the loop.

use std::collections::HashMap;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::immediates::V128Imm;
use cranelift_codegen::ir::{BlockArg, InstBuilder, Type as ClifType, Value as Clif, types};
use sluice_ir::analysis::Shape;
use sluice_ir::{
    BinaryOp, ConvertOp, Inst, InstId, Kernel, Ordering, Place, Rounding, Space, Type, UnaryOp, Value,
};

use super::emitter::{Emitter, frame_flags};
use super::lanes::Lane;
use super::memory::{Extent, memory_flags};
use super::scalar::clif_type;
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
}

/// Where the lanes of an access are neighbours: lane 0's place, as a host address and a displacement.
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
        let quads = self.quads_per_chunk(insts, &hoisted);
        self.each_chunk(quads, predicates.len(), |emitter, first| {
            let mut chunk = Chunk { first, quads, values: HashMap::new(), hoisted: hoisted.clone() };
            for &id in insts {
                emitter.chunk_inst(id, &mut chunk);
            }
            predicates.iter().map(|&value| emitter.chunk_bits(value, &mut chunk)).collect()
        })
    }

    /// Whether vectors are worth a second version of a step: enough of it has a form on vectors.
    pub(super) fn gains_from_chunks(&self, insts: &[InstId]) -> bool {
        let is_light = |id: &&InstId| {
            is_vector_inst(self.kernel, **id) || self.neighbour_access(&self.kernel.inst(**id).inst).is_some()
        };
        let light = insts.iter().filter(is_light).count();
        2 * light > insts.len()
    }

    /// Copies arguments to parameters in all 32 lanes.
    pub(super) fn assign_chunks(&mut self, pairs: &[(Value, Value)]) {
        let quads = if pairs.len() <= 3 { 4.min(self.plan.lanes / QUAD) } else { 1 };
        self.each_chunk(quads, 0, |emitter, first| {
            let mut chunk = Chunk { first, quads, values: HashMap::new(), hoisted: HashMap::new() };
            let mut stores = Vec::new();
            for &(param, arg) in pairs {
                for quad in 0..quads {
                    let value = if is_vector_type(emitter.kernel.ty(arg)) {
                        Quad { vector: Some(emitter.vector(arg, quad, &mut chunk)), each: None }
                    } else {
                        Quad { vector: None, each: Some(emitter.each(arg, quad, &mut chunk)) }
                    };
                    stores.push((param, quad, value));
                }
            }
            for (param, quad, value) in stores {
                emitter.store_quad(param, quad, value, &chunk);
            }
            Vec::new()
        });
    }

    /// Writes a value of 1 or 32 bits as words to an array in the warp's memory, whatever lanes are active.
    pub(super) fn write_words(&mut self, value: Value, place: u32) {
        let quads = self.plan.lanes / QUAD;
        self.each_chunk(quads, 0, |emitter, first| {
            let mut chunk = Chunk { first, quads, values: HashMap::new(), hoisted: HashMap::new() };
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

    /// Runs `body` for each chunk with the number of its first lane. Its results are merged by `or`.
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
    fn quads_per_chunk(&self, insts: &[InstId], hoisted: &HashMap<InstId, Hoisted>) -> usize {
        let kernel = self.kernel;
        let is_light = |id: &InstId| is_vector_inst(kernel, *id) || hoisted.contains_key(id);
        if insts.len() > 160 || !insts.iter().all(is_light) {
            return 1;
        }
        let mut live: Vec<Value> = Vec::new();
        let mut live_max = 1;
        for (place, &id) in insts.iter().enumerate().rev() {
            live.retain(|&value| !kernel.inst(id).results().any(|result| result == value));
            // What is loaded for the next instruction only is an operand in memory there.
            let loaded =
                place.checked_sub(1).map(|before| insts[before]).filter(|id| hoisted.contains_key(id));
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

    fn define_quad(&mut self, value: Value, quad: usize, forms: Quad, chunk: &mut Chunk) {
        chunk.values.insert((value, quad), forms);
        if self.kernel.ty(value) != Type::I1 && self.plan.escapes(value) {
            self.store_quad(value, quad, forms, chunk);
        }
    }

    fn store_quad(&mut self, value: Value, quad: usize, forms: Quad, chunk: &Chunk) {
        let bytes = self.kernel.ty(value).bytes();
        let slot = self.plan.slot(value).expect("an escaping value has a slot");
        let offset = (slot + bytes * (quad * QUAD) as u32) as i32;
        let address = self.chunk_address(bytes, chunk);
        match (forms.vector, forms.each) {
            (Some(Vector::Words(words)), _) => _ = self.b.ins().store(frame_flags(), words, address, offset),
            (Some(Vector::Wides([low, high])), _) => {
                self.b.ins().store(frame_flags(), low, address, offset);
                self.b.ins().store(frame_flags(), high, address, offset + 16);
            }
            (None, Some(each)) => {
                for (number, lane) in each.into_iter().enumerate() {
                    self.b.ins().store(
                        frame_flags(),
                        lane,
                        address,
                        offset + (bytes as usize * number) as i32,
                    );
                }
            }
            (None, None) => unreachable!("a value has a form"),
        }
    }

    /// The warp's memory plus the first lane's place in an array of elements of this size.
    fn chunk_address(&mut self, bytes: u32, chunk: &Chunk) -> Clif {
        if chunk.quads * QUAD == self.plan.lanes {
            return self.ctx;
        }
        let place = self.b.ins().ishl_imm_u(chunk.first, i64::from(bytes.trailing_zeros()));
        self.b.ins().iadd(self.ctx, place)
    }

    // ---- Operands -------------------------------------------------------------------------------------------

    /// A value of 1, 32 or 64 bits as a vector.
    fn vector(&mut self, value: Value, quad: usize, chunk: &mut Chunk) -> Vector {
        let quad = if self.plan.shape(value) == Shape::Uniform { 0 } else { quad };
        let known = chunk.values.get(&(value, quad)).copied().unwrap_or_default();
        if let Some(vector) = known.vector {
            return vector;
        }
        let ty = self.kernel.ty(value);
        let vector = match (known.each, self.plan.shape(value)) {
            (Some(each), _) => self.gather_lanes(ty, each),
            (None, Shape::Uniform) => {
                let scalar = self.uniform(value);
                self.splat(ty, scalar)
            }
            (None, Shape::Affine { stride }) => self.affine_vector(value, ty, stride, quad, chunk),
            (None, Shape::Varying) if ty == Type::I1 => self.predicate_vector(value, quad, chunk),
            (None, Shape::Varying) => self.load_slot(value, ty, quad, chunk),
        };
        chunk.values.entry((value, quad)).or_default().vector = Some(vector);
        vector
    }

    fn splat(&mut self, ty: Type, scalar: Clif) -> Vector {
        match ty {
            Type::I1 => {
                let word = self.b.ins().uextend(types::I32, scalar);
                let word = self.b.ins().ineg(word);
                Vector::Words(self.b.ins().splat(types::I32X4, word))
            }
            _ => {
                let vector = self.b.ins().splat(vector_type(ty), scalar);
                if ty.bits() == 64 { Vector::Wides([vector; 2]) } else { Vector::Words(vector) }
            }
        }
    }

    fn affine_vector(&mut self, value: Value, ty: Type, stride: i64, quad: usize, chunk: &Chunk) -> Vector {
        let base = self.uniform(value);
        let first = self.lane_number(chunk, quad, 0);
        let start = self.affine_at(base, ty, stride, first);
        let start = self.b.ins().splat(vector_type(ty), start);
        let steps = |from: usize, count: usize| -> Vec<u8> {
            let numbers = (from..from + count).map(|lane| (lane as i64).wrapping_mul(stride).to_le_bytes());
            numbers.flat_map(|bytes| bytes[..ty.bytes() as usize].to_vec()).collect()
        };
        if ty.bits() == 64 {
            let (low, high) = (self.vector_constant(ty, steps(0, 2)), self.vector_constant(ty, steps(2, 2)));
            return Vector::Wides([self.b.ins().iadd(start, low), self.b.ins().iadd(start, high)]);
        }
        let steps = self.vector_constant(ty, steps(0, 4));
        Vector::Words(self.b.ins().iadd(start, steps))
    }

    fn vector_constant(&mut self, ty: Type, bytes: Vec<u8>) -> Clif {
        let constant = self.b.func.dfg.constants.insert(bytes.into());
        self.b.ins().vconst(vector_type(ty), constant)
    }

    /// Four bits of a predicate to lanes.
    fn predicate_vector(&mut self, value: Value, quad: usize, chunk: &Chunk) -> Vector {
        let bits = self.predicate(value);
        let first = self.lane_number(chunk, quad, 0);
        let first = self.b.ins().ireduce(types::I32, first);
        let bits = self.b.ins().ushr(bits, first);
        let bits = self.b.ins().splat(types::I32X4, bits);
        let own = [1u32, 2, 4, 8].iter().flat_map(|bit| bit.to_le_bytes()).collect();
        let own = self.vector_constant(Type::I32, own);
        let set = self.b.ins().band(bits, own);
        Vector::Words(self.b.ins().icmp(IntCC::Equal, set, own))
    }

    fn load_slot(&mut self, value: Value, ty: Type, quad: usize, chunk: &Chunk) -> Vector {
        let slot = self.plan.slot(value).expect("a value from another step has a slot");
        let address = self.chunk_address(ty.bytes(), chunk);
        let offset = (slot + ty.bytes() * (quad * QUAD) as u32) as i32;
        let low = self.b.ins().load(vector_type(ty), frame_flags(), address, offset);
        if ty.bits() != 64 {
            return Vector::Words(low);
        }
        let high = self.b.ins().load(vector_type(ty), frame_flags(), address, offset + 16);
        Vector::Wides([low, high])
    }

    fn gather_lanes(&mut self, ty: Type, each: [Clif; QUAD]) -> Vector {
        if ty == Type::I1 {
            let words = each.map(|lane| {
                let word = self.b.ins().uextend(types::I32, lane);
                self.b.ins().ineg(word)
            });
            return self.gather_lanes(Type::I32, words);
        }
        let vector = vector_type(ty);
        let mut build = |lanes: &[Clif]| {
            let mut result = self.b.ins().scalar_to_vector(vector, lanes[0]);
            for (place, &lane) in lanes.iter().enumerate().skip(1) {
                result = self.b.ins().insertlane(result, lane, place as u8);
            }
            result
        };
        match ty.bits() {
            64 => Vector::Wides([build(&each[..2]), build(&each[2..])]),
            _ => Vector::Words(build(&each)),
        }
    }

    /// A value as four single lanes.
    fn each(&mut self, value: Value, quad: usize, chunk: &mut Chunk) -> [Clif; QUAD] {
        let known = chunk.values.get(&(value, quad)).copied().unwrap_or_default();
        if let Some(each) = known.each {
            return each;
        }
        let ty = self.kernel.ty(value);
        let each = match known.vector {
            Some(vector) => self.extract(ty, vector),
            None if self.plan.shape(value) == Shape::Varying && is_vector_type(ty) && ty != Type::I1 => {
                // One load of the quad is less than four.
                let vector = self.vector(value, quad, chunk);
                self.extract(ty, vector)
            }
            None => [0, 1, 2, 3].map(|number| {
                let index = self.lane_number(chunk, quad, number);
                let lane = Lane { index, values: HashMap::new() };
                self.value(value, Some(&lane))
            }),
        };
        chunk.values.entry((value, quad)).or_default().each = Some(each);
        each
    }

    fn extract(&mut self, ty: Type, vector: Vector) -> [Clif; QUAD] {
        match vector {
            Vector::Words(words) => [0u8, 1, 2, 3].map(|number| {
                let lane = self.b.ins().extractlane(words, number);
                if ty != Type::I1 {
                    return lane;
                }
                let bit = self.b.ins().band_imm_u(lane, 1);
                self.b.ins().ireduce(types::I8, bit)
            }),
            Vector::Wides(halves) => [0usize, 1, 2, 3]
                .map(|number| self.b.ins().extractlane(halves[number / 2], (number % 2) as u8)),
        }
    }

    /// The bits of a predicate in all quads of the chunk, at their places in the warp's mask.
    fn chunk_bits(&mut self, value: Value, chunk: &mut Chunk) -> Clif {
        let mut bits = self.b.ins().iconst(types::I32, 0);
        for quad in 0..chunk.quads {
            let Vector::Words(words) = self.vector(value, quad, chunk) else {
                unreachable!("predicates are words")
            };
            let four = self.b.ins().vhigh_bits(types::I32, words);
            let four = self.b.ins().ishl_imm_u(four, (quad * QUAD) as i64);
            bits = self.b.ins().bor(bits, four);
        }
        if chunk.quads * QUAD == self.plan.lanes {
            return bits;
        }
        let first = self.b.ins().ireduce(types::I32, chunk.first);
        self.b.ins().ishl(bits, first)
    }

    // ---- Pure instructions ----------------------------------------------------------------------------------

    fn vector_inst(&mut self, inst: &Inst, quad: usize, chunk: &mut Chunk) -> Vector {
        if let Inst::Convert { op, from, to, arg } = *inst {
            let arg = self.vector(arg, quad, chunk);
            return self.convert_vector(op, from, to, arg);
        }
        if let Inst::Binary { op, args: [value, amount], .. } = *inst
            && op.is_shift()
        {
            let amount = self.uniform(amount);
            return match self.vector(value, quad, chunk) {
                Vector::Words(words) => Vector::Words(self.scalar(inst, &[words, amount])),
                Vector::Wides(halves) => Vector::Wides(halves.map(|half| self.scalar(inst, &[half, amount]))),
            };
        }
        let mut args = Vec::with_capacity(3);
        inst.for_each_arg(|value| args.push(self.vector(value, quad, chunk)));
        let is_wide = args.iter().any(|arg| matches!(arg, Vector::Wides(_)));
        if !is_wide {
            let args: Vec<Clif> = args.into_iter().map(|arg| self.half(arg, 0)).collect();
            return Vector::Words(self.scalar(inst, &args));
        }
        let halves = [0, 1].map(|number| {
            let args: Vec<Clif> = args.iter().map(|&arg| self.half(arg, number)).collect();
            self.scalar(inst, &args)
        });
        match inst {
            Inst::Compare { .. } | Inst::FloatCompare { .. } => Vector::Words(self.narrow_halves(halves)),
            _ => Vector::Wides(halves),
        }
    }

    /// Half of a wide vector; of a predicate beside wide ones, its lanes made as wide.
    fn half(&mut self, vector: Vector, number: usize) -> Clif {
        match vector {
            Vector::Wides(halves) => halves[number],
            Vector::Words(words) => words,
        }
    }

    /// The low 32 bits of each of four wide lanes.
    fn narrow_halves(&mut self, [low, high]: [Clif; 2]) -> Clif {
        let low = self.bits(types::I8X16, low);
        let high = self.bits(types::I8X16, high);
        let picks = [0u8, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27];
        let picks = self.b.func.dfg.immediates.push(V128Imm::from(&picks[..]).0.to_vec().into());
        let words = self.b.ins().shuffle(low, high, picks);
        self.bits(types::I32X4, words)
    }

    fn convert_vector(&mut self, op: ConvertOp, from: Type, to: Type, arg: Vector) -> Vector {
        match (op, arg) {
            (ConvertOp::Truncate, Vector::Wides(halves)) => Vector::Words(self.narrow_halves(halves)),
            (ConvertOp::ZeroExtend | ConvertOp::SignExtend, Vector::Words(words)) => {
                let is_signed = op == ConvertOp::SignExtend;
                let words =
                    if from == Type::I1 && !is_signed { self.b.ins().ushr_imm_u(words, 31) } else { words };
                if to.bits() == 32 {
                    return Vector::Words(words);
                }
                Vector::Wides(if is_signed {
                    [self.b.ins().swiden_low(words), self.b.ins().swiden_high(words)]
                } else {
                    [self.b.ins().uwiden_low(words), self.b.ins().uwiden_high(words)]
                })
            }
            (ConvertOp::Bitcast, Vector::Words(words)) => Vector::Words(self.bits(vector_type(to), words)),
            (ConvertOp::Bitcast, Vector::Wides(halves)) => {
                Vector::Wides(halves.map(|half| self.bits(vector_type(to), half)))
            }
            (ConvertOp::FloatToFloat(_), Vector::Words(words)) => {
                let low = self.b.ins().fvpromote_low(words);
                let bytes = self.bits(types::I8X16, words);
                let picks: Vec<u8> = (8..16).chain(8..16).collect();
                let picks = self.b.func.dfg.immediates.push(picks.into());
                let upper = self.b.ins().shuffle(bytes, bytes, picks);
                let upper = self.bits(types::F32X4, upper);
                Vector::Wides([low, self.b.ins().fvpromote_low(upper)])
            }
            (ConvertOp::FloatToFloat(_), Vector::Wides(halves)) => {
                let [low, high] = halves.map(|half| {
                    let narrow = self.b.ins().fvdemote(half);
                    self.bits(types::I8X16, narrow)
                });
                let picks: Vec<u8> = (0..8).chain(16..24).collect();
                let picks = self.b.func.dfg.immediates.push(picks.into());
                let words = self.b.ins().shuffle(low, high, picks);
                Vector::Words(self.bits(types::F32X4, words))
            }
            (ConvertOp::SignedToFloat(_), Vector::Words(words)) => {
                Vector::Words(self.b.ins().fcvt_from_sint(types::F32X4, words))
            }
            (ConvertOp::UnsignedToFloat(_), Vector::Words(words)) => {
                Vector::Words(self.b.ins().fcvt_from_uint(types::F32X4, words))
            }
            (
                ConvertOp::FloatToSigned(rounding) | ConvertOp::FloatToUnsigned(rounding),
                Vector::Words(words),
            ) => {
                let integral = match rounding {
                    Rounding::Zero => words,
                    _ => self.round_to_integral(rounding, from, words),
                };
                Vector::Words(match op {
                    ConvertOp::FloatToSigned(_) => self.b.ins().fcvt_to_sint_sat(types::I32X4, integral),
                    _ => self.b.ins().fcvt_to_uint_sat(types::I32X4, integral),
                })
            }
            (ConvertOp::RoundToIntegral(rounding), Vector::Words(words)) => {
                Vector::Words(self.round_to_integral(rounding, from, words))
            }
            (ConvertOp::RoundToIntegral(rounding), Vector::Wides(halves)) => {
                Vector::Wides(halves.map(|half| self.round_to_integral(rounding, from, half)))
            }
            _ => unreachable!("not a conversion of vectors: {op:?} from {from} to {to}"),
        }
    }

    // ---- Memory ---------------------------------------------------------------------------------------------

    /// Finds the accesses whose lanes are neighbours and checks them for the whole warp, those that differ by a
    /// constant together.
    fn hoist_all(&mut self, insts: &[InstId]) -> HashMap<InstId, Hoisted> {
        let kernel = self.kernel;
        let mut groups: Vec<(Extent, Vec<(InstId, i32)>)> = Vec::new();
        for &id in insts {
            let Some((place, bytes)) = self.neighbour_access(&kernel.inst(id).inst) else { continue };
            let own = Extent::new(place, bytes * self.plan.lanes as u32);
            match groups.iter_mut().find(|(extent, _)| extent.can_join(&own)) {
                Some((extent, members)) => {
                    extent.join(&own);
                    members.push((id, place.offset));
                }
                None => groups.push((own, vec![(id, place.offset)])),
            }
        }
        let mut hoisted = HashMap::new();
        for (extent, members) in groups {
            let address = self.extent_address(&extent);
            for (id, offset) in members {
                hoisted.insert(id, Hoisted { address, offset: offset - extent.start });
            }
        }
        hoisted
    }

    /// The place of an access whose lanes are neighbours, and its bytes per lane.
    fn neighbour_access<'i>(&self, inst: &'i Inst) -> Option<(&'i Place, u32)> {
        let (place, ty, count, order, guard) = match inst {
            Inst::Load { place, ty, count, order, guard } => (place, ty, u32::from(*count), order, guard),
            Inst::Store { place, ty, values, order, guard } => (place, ty, values.len() as u32, order, guard),
            _ => return None,
        };
        let bytes = ty.bytes() * count;
        let Shape::Affine { stride } = self.plan.shape(place.addr) else { return None };
        let is_plain = matches!(order.ordering, Ordering::Weak | Ordering::Invariant);
        let is_shared_space = !matches!(place.space, Space::Local | Space::Param);
        let fits = stride == i64::from(bytes) && guard.is_none() && is_plain && is_shared_space;
        fits.then_some((place, bytes))
    }

    /// Loads or stores of neighbouring lanes.
    fn neighbours(&mut self, id: InstId, base: Hoisted, chunk: &mut Chunk) {
        let kernel = self.kernel;
        let data = kernel.inst(id);
        match &data.inst {
            Inst::Load { ty, count, .. } => {
                let count = usize::from(*count);
                let address = self.element_address(base.address, ty.bytes() as usize * count, chunk);
                for quad in 0..chunk.quads {
                    let start = base.offset + (quad * QUAD * count * ty.bytes() as usize) as i32;
                    for (value, forms) in data.results().zip(self.load_quad(*ty, count, address, start)) {
                        self.define_quad(value, quad, forms, chunk);
                    }
                }
            }
            Inst::Store { ty, values, .. } => {
                let count = values.len();
                let address = self.element_address(base.address, ty.bytes() as usize * count, chunk);
                for quad in 0..chunk.quads {
                    let start = base.offset + (quad * QUAD * count * ty.bytes() as usize) as i32;
                    if count == 1 && is_vector_type(*ty) {
                        let vector = self.vector(values[0], quad, chunk);
                        self.store_vector(vector, address, start);
                        continue;
                    }
                    for (element, &value) in values.iter().enumerate() {
                        let each = self.each(value, quad, chunk);
                        for (number, lane) in each.into_iter().enumerate() {
                            let offset = start + ((number * count + element) * ty.bytes() as usize) as i32;
                            self.b.ins().store(memory_flags(), lane, address, offset);
                        }
                    }
                }
            }
            _ => unreachable!("only loads and stores are hoisted"),
        }
    }

    fn element_address(&mut self, base: Clif, bytes: usize, chunk: &Chunk) -> Clif {
        if chunk.quads * QUAD == self.plan.lanes {
            return base;
        }
        let place = if bytes.is_power_of_two() {
            self.b.ins().ishl_imm_u(chunk.first, i64::from(bytes.trailing_zeros()))
        } else {
            self.b.ins().imul_imm_u(chunk.first, bytes as i64)
        };
        self.b.ins().iadd(base, place)
    }

    fn store_vector(&mut self, vector: Vector, address: Clif, offset: i32) {
        match vector {
            Vector::Words(words) => _ = self.b.ins().store(memory_flags(), words, address, offset),
            Vector::Wides([low, high]) => {
                self.b.ins().store(memory_flags(), low, address, offset);
                self.b.ins().store(memory_flags(), high, address, offset + 16);
            }
        }
    }

    /// Four lanes of `count` elements each.
    fn load_quad(&mut self, ty: Type, count: usize, address: Clif, start: i32) -> Vec<Quad> {
        let flags = memory_flags();
        let bytes = ty.bytes() as i32;
        if count == 1 && is_vector_type(ty) {
            let low = self.b.ins().load(vector_type(ty), flags, address, start);
            let vector = if ty.bits() == 64 {
                Vector::Wides([low, self.b.ins().load(vector_type(ty), flags, address, start + 16)])
            } else {
                Vector::Words(low)
            };
            return vec![Quad { vector: Some(vector), each: None }];
        }
        (0..count as i32)
            .map(|element| {
                let each = [0, 1, 2, 3].map(|number| {
                    let offset = start + (number * count as i32 + element) * bytes;
                    self.b.ins().load(clif_type(ty), flags, address, offset)
                });
                Quad { vector: None, each: Some(each) }
            })
            .collect()
    }
}

fn vector_type(ty: Type) -> ClifType {
    match ty {
        Type::F32 => types::F32X4,
        Type::F64 => types::F64X2,
        Type::I64 => types::I64X2,
        _ => types::I32X4,
    }
}

fn is_vector_type(ty: Type) -> bool {
    !matches!(ty, Type::I8 | Type::I16)
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

/// Whether an instruction has a form on vectors.
fn is_vector_inst(kernel: &Kernel, id: InstId) -> bool {
    let is_float = |ty: Type| ty.is_float();
    let is_int = |ty: Type| matches!(ty, Type::I32 | Type::I64);
    match &kernel.inst(id).inst {
        Inst::Unary { op, ty, .. } => match op {
            UnaryOp::Not => is_int(*ty) || *ty == Type::I1,
            UnaryOp::Neg | UnaryOp::Abs => is_int(*ty),
            UnaryOp::Ex2 | UnaryOp::Lg2 | UnaryOp::Sin | UnaryOp::Cos | UnaryOp::Tanh => *ty == Type::F32,
            UnaryOp::FNeg | UnaryOp::FAbs | UnaryOp::FlushSubnormal | UnaryOp::Rcp | UnaryOp::Rsqrt => true,
            _ => false,
        },
        Inst::Binary { op, ty, args } => match op {
            BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => is_int(*ty) || *ty == Type::I1,
            BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul => is_int(*ty),
            BinaryOp::MinS | BinaryOp::MaxS | BinaryOp::MinU | BinaryOp::MaxU => is_int(*ty),
            BinaryOp::Shl | BinaryOp::ShrS | BinaryOp::ShrU => {
                is_int(*ty) && kernel.constant(args[1]).is_some_and(|amount| amount < u64::from(ty.bits()))
            }
            BinaryOp::FMin | BinaryOp::FMax | BinaryOp::FMinNan | BinaryOp::FMaxNan => true,
            _ => false,
        },
        Inst::Float { rounding, .. } | Inst::Fma { rounding, .. } | Inst::Sqrt { rounding, .. } => {
            *rounding == Rounding::Near
        }
        Inst::Compare { ty, .. } => is_int(*ty),
        Inst::FloatCompare { .. } => true,
        // Beside a predicate, wide lanes would need a wide predicate.
        Inst::Select { ty, .. } => matches!(ty, Type::I1 | Type::I32 | Type::F32),
        Inst::Convert { op, from, to, .. } => match op {
            ConvertOp::Truncate => *from == Type::I64 && *to == Type::I32,
            ConvertOp::SignExtend | ConvertOp::ZeroExtend => {
                matches!(from, Type::I1 | Type::I32) && is_int(*to)
            }
            ConvertOp::Bitcast => is_vector_type(*to),
            ConvertOp::FloatToFloat(rounding) => from != to && *rounding == Rounding::Near,
            ConvertOp::SignedToFloat(rounding) | ConvertOp::UnsignedToFloat(rounding) => {
                (*from, *to, *rounding) == (Type::I32, Type::F32, Rounding::Near)
            }
            ConvertOp::FloatToSigned(rounding) | ConvertOp::FloatToUnsigned(rounding) => {
                (*from, *to) == (Type::F32, Type::I32) && *rounding != Rounding::NearAway
            }
            ConvertOp::RoundToIntegral(rounding) => is_float(*to) && *rounding != Rounding::NearAway,
            _ => false,
        },
        _ => false,
    }
}
