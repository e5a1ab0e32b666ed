//! Steps of a warp of which some lanes are active.
//!
//! Quads whose lanes are all active come first, on vectors; then the lanes that are left, one by
//! one. In loops where nothing but values comes out of any instruction, vectors are computed for
//! all quads with active lanes instead, and blended with what the other lanes have.

use std::collections::HashMap;

use cranelift_codegen::ir::{BlockArg, InstBuilder, Value as Clif, types};
use sluice_ir::{InstId, Type, Value};

use super::{Chunk, Hoisted, Vector};
use crate::codegen::emitter::Emitter;
use crate::codegen::lanes::Lane;

/// The first lane of each quad, as bits.
const FIRSTS: u64 = 0x1111_1111;

impl Emitter<'_> {
    /// A run of instructions for the lanes of the node. `holds` says at run time whether what is
    /// assumed of addresses holds. Returns the bits of `predicates`.
    pub(in crate::codegen) fn partial_chunks(
        &mut self,
        insts: &[InstId],
        predicates: &[Value],
        holds: Option<Clif>,
    ) -> Vec<Clif> {
        let mask = self.mask;
        if holds.is_none() && self.plan.nodes[self.current as usize].blends {
            let quads = self.quads_of(mask, false);
            return self.each_quad(quads, predicates.len(), |emitter, first| {
                let active = Some(emitter.active_of_quad(mask, first));
                emitter.quad(insts, predicates, first, &HashMap::new(), active)
            });
        }
        let (hoisted, fits) = self.hoist_if_in_range(insts);
        let mut quads = self.quads_of(mask, true);
        for condition in [holds, fits].into_iter().flatten() {
            let none = self.b.ins().iconst(types::I32, 0);
            quads = self.b.ins().select(condition, quads, none);
        }
        let in_quads = self.each_quad(quads, predicates.len(), |emitter, first| {
            emitter.quad(insts, predicates, first, &hoisted, None)
        });
        let in_lanes = self.each_lane_left(mask, quads, predicates.len(), |emitter, lane| {
            insts.iter().for_each(|&id| emitter.lane_inst(id, lane));
            predicates.iter().map(|value| lane.values[value]).collect()
        });
        in_quads.into_iter().zip(in_lanes).map(|(one, other)| self.b.ins().bor(one, other)).collect()
    }

    /// Copies arguments to parameters in some lanes.
    pub(in crate::codegen) fn assign_partly(&mut self, pairs: &[(Value, Value)], lanes: Clif) {
        let blends = self.plan.nodes[self.current as usize].blends;
        let quads = self.quads_of(lanes, !blends);
        self.each_quad(quads, 0, |emitter, first| {
            let active = blends.then(|| emitter.active_of_quad(lanes, first));
            let first = emitter.b.ins().uextend(types::I64, first);
            emitter.assign_chunk(pairs, &mut Chunk { active, ..Chunk::new(first, 1) });
            Vec::new()
        });
        if !blends {
            self.each_lane_left(lanes, quads, 0, |emitter, lane| {
                emitter.assign_lane(pairs, lane);
                Vec::new()
            });
        }
    }

    /// A quad's instructions, and the bits of its predicates at their places.
    fn quad(
        &mut self,
        insts: &[InstId],
        predicates: &[Value],
        first: Clif,
        hoisted: &HashMap<InstId, Hoisted>,
        active: Option<Clif>,
    ) -> Vec<Clif> {
        let first = self.b.ins().uextend(types::I64, first);
        let mut chunk = Chunk { hoisted: hoisted.clone(), active, ..Chunk::new(first, 1) };
        insts.iter().for_each(|&id| self.chunk_inst(id, &mut chunk));
        predicates.iter().map(|&value| self.chunk_bits(value, &mut chunk)).collect()
    }

    /// The first lanes of quads of which all lanes (or any) are in a mask.
    fn quads_of(&mut self, lanes: Clif, all: bool) -> Clif {
        let mut quads = lanes;
        for distance in [1, 2] {
            let others = self.b.ins().ushr_imm_u(quads, distance);
            quads = if all { self.b.ins().band(quads, others) } else { self.b.ins().bor(quads, others) };
        }
        let firsts = self.constant(Type::I32, FIRSTS);
        self.b.ins().band(quads, firsts)
    }

    /// The lanes of a quad that are in a mask, as a vector of all ones or zeros.
    fn active_of_quad(&mut self, lanes: Clif, first: Clif) -> Clif {
        let bits = self.b.ins().ushr(lanes, first);
        let bits = self.b.ins().splat(types::I32X4, bits);
        let Vector::Words(mask) = self.bits_to_lanes(bits) else { unreachable!("bits make words") };
        mask
    }

    /// Runs `body` for the first lane of each quad of a mask of first lanes, which may be zero. Its
    /// results, `count` words, are merged by `or`.
    fn each_quad(
        &mut self,
        quads: Clif,
        count: usize,
        body: impl FnOnce(&mut Self, Clif) -> Vec<Clif>,
    ) -> Vec<Clif> {
        let [head, done] = [(); 2].map(|()| self.b.create_block());
        self.b.append_block_param(head, types::I32);
        for block in [head, done] {
            (0..count).for_each(|_| _ = self.b.append_block_param(block, types::I32));
        }
        let zero = BlockArg::Value(self.constant(Type::I32, 0));
        let mut entry = vec![BlockArg::Value(quads)];
        entry.resize(count + 1, zero);
        self.b.ins().brif(quads, head, &entry, done, &entry[1..]);

        self.b.switch_to_block(head);
        let params = self.b.block_params(head).to_vec();
        let first = self.b.ins().ctz(params[0]);
        let results = body(self, first);
        let less = self.b.ins().iadd_imm_s(params[0], -1);
        let rest = self.b.ins().band(params[0], less);
        let merged = results.into_iter().zip(&params[1..]).map(|(one, &other)| self.b.ins().bor(one, other));
        let again: Vec<BlockArg> =
            [rest].into_iter().chain(merged.collect::<Vec<_>>()).map(BlockArg::Value).collect();
        self.b.ins().brif(rest, head, &again, done, &again[1..]);
        self.b.switch_to_block(done);
        self.b.block_params(done).to_vec()
    }

    /// Runs `body` for the lanes of a mask that are in none of the quads, as
    /// [`Emitter::each_lane`] does.
    fn each_lane_left(
        &mut self,
        lanes: Clif,
        quads: Clif,
        count: usize,
        body: impl FnMut(&mut Self, &mut Lane) -> Vec<Clif>,
    ) -> Vec<Clif> {
        let in_quads = self.b.ins().imul_imm_u(quads, 0xf);
        let left = self.b.ins().band_not(lanes, in_quads);
        let (some, done) = (self.b.create_block(), self.b.create_block());
        (0..count).for_each(|_| _ = self.b.append_block_param(done, types::I32));
        let zero = BlockArg::Value(self.constant(Type::I32, 0));
        self.b.ins().brif(left, some, &[], done, &vec![zero; count]);
        self.b.switch_to_block(some);
        let bits = self.each_lane(left, count, body);
        let bits: Vec<BlockArg> = bits.into_iter().map(BlockArg::Value).collect();
        self.b.ins().jump(done, &bits);
        self.b.switch_to_block(done);
        self.b.block_params(done).to_vec()
    }
}
