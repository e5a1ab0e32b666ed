//! Values of a chunk: from the frame, from single lanes or from a rule for all lanes, and back to
//! the frame.

use std::collections::HashMap;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Type as ClifType, Value as Clif, types};
use sluice_ir::analysis::Shape;
use sluice_ir::{Type, Value};

use super::{Chunk, QUAD, Quad, Vector};
use crate::codegen::emitter::{Emitter, frame_flags};
use crate::codegen::lanes::Lane;
use crate::codegen::scalar::clif_type;

impl Emitter<'_> {
    pub(super) fn define_quad(&mut self, value: Value, quad: usize, forms: Quad, chunk: &mut Chunk) {
        chunk.values.insert((value, quad), forms);
        if self.kernel.ty(value) != Type::I1 && self.plan.escapes(value) {
            self.store_quad(value, quad, forms, chunk);
        }
    }

    pub(super) fn store_quad(&mut self, value: Value, quad: usize, forms: Quad, chunk: &Chunk) {
        let bytes = self.kernel.ty(value).bytes();
        let slot = self.plan.slot(value).expect("an escaping value has a slot");
        let offset = (slot + bytes * (quad * QUAD) as u32) as i32;
        let address = self.chunk_address(bytes, chunk);
        let forms = match (chunk.active, forms) {
            (Some(active), Quad { vector: Some(vector), .. }) => {
                Quad { vector: Some(self.blend(value, quad, active, vector, chunk)), each: None }
            }
            _ => forms,
        };
        match (forms.vector, forms.each) {
            (Some(vector), _) => {
                self.store_lanes(self.kernel.ty(value), vector, frame_flags(), address, offset)
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

    /// A new value in the active lanes, and in others what they have.
    fn blend(&mut self, value: Value, quad: usize, active: Clif, new: Vector, chunk: &Chunk) -> Vector {
        let ty = self.kernel.ty(value);
        match (new, self.load_slot(value, ty, quad, chunk)) {
            (Vector::Words(new), Vector::Words(old)) => Vector::Words(self.choose(active, new, old)),
            (Vector::Wides([low, high]), Vector::Wides(old)) => {
                let wide = [self.b.ins().swiden_low(active), self.b.ins().swiden_high(active)];
                Vector::Wides([self.choose(wide[0], low, old[0]), self.choose(wide[1], high, old[1])])
            }
            _ => unreachable!("a type has one form"),
        }
    }

    /// The warp's memory plus the first lane's place in an array of elements of this size.
    pub(super) fn chunk_address(&mut self, bytes: u32, chunk: &Chunk) -> Clif {
        if chunk.quads * QUAD == self.plan.lanes {
            return self.ctx;
        }
        let place = self.b.ins().ishl_imm_u(chunk.first, i64::from(bytes.trailing_zeros()));
        self.b.ins().iadd(self.ctx, place)
    }

    /// A value as a vector. Above integers of 8 and 16 bits the lanes' bits mean nothing.
    pub(super) fn vector(&mut self, value: Value, quad: usize, chunk: &mut Chunk) -> Vector {
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

    pub(super) fn splat(&mut self, ty: Type, scalar: Clif) -> Vector {
        match ty {
            Type::I1 => {
                let word = self.b.ins().uextend(types::I32, scalar);
                let word = self.b.ins().ineg(word);
                Vector::Words(self.b.ins().splat(types::I32X4, word))
            }
            Type::I8 | Type::I16 => {
                let word = self.b.ins().uextend(types::I32, scalar);
                Vector::Words(self.b.ins().splat(types::I32X4, word))
            }
            _ => {
                let vector = self.b.ins().splat(vector_type(ty), scalar);
                if ty.bits() == 64 { Vector::Wides([vector; 2]) } else { Vector::Words(vector) }
            }
        }
    }

    pub(super) fn affine_vector(
        &mut self,
        value: Value,
        ty: Type,
        stride: i64,
        quad: usize,
        chunk: &Chunk,
    ) -> Vector {
        let base = self.uniform(value);
        let (base, ty) = match ty {
            Type::I8 | Type::I16 => (self.b.ins().uextend(types::I32, base), Type::I32),
            _ => (base, ty),
        };
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

    pub(in crate::codegen) fn vector_constant(&mut self, ty: Type, bytes: Vec<u8>) -> Clif {
        let constant = self.b.func.dfg.constants.insert(bytes.into());
        self.b.ins().vconst(vector_type(ty), constant)
    }

    /// Four bits of a predicate to lanes.
    pub(super) fn predicate_vector(&mut self, value: Value, quad: usize, chunk: &Chunk) -> Vector {
        let bits = self.predicate(value);
        let first = self.lane_number(chunk, quad, 0);
        let first = self.b.ins().ireduce(types::I32, first);
        let bits = self.b.ins().ushr(bits, first);
        let bits = self.b.ins().splat(types::I32X4, bits);
        self.bits_to_lanes(bits)
    }

    /// The lowest four bits of each word to lanes, the first bit to the first lane.
    pub(super) fn bits_to_lanes(&mut self, bits: Clif) -> Vector {
        let own = [1u32, 2, 4, 8].iter().flat_map(|bit| bit.to_le_bytes()).collect();
        let own = self.vector_constant(Type::I32, own);
        let set = self.b.ins().band(bits, own);
        Vector::Words(self.b.ins().icmp(IntCC::Equal, set, own))
    }

    pub(super) fn load_slot(&mut self, value: Value, ty: Type, quad: usize, chunk: &Chunk) -> Vector {
        let slot = self.plan.slot(value).expect("a value from another step has a slot");
        let address = self.chunk_address(ty.bytes(), chunk);
        let offset = (slot + ty.bytes() * (quad * QUAD) as u32) as i32;
        self.load_lanes(ty, frame_flags(), address, offset)
    }

    /// Four lanes from consecutive places in memory.
    pub(super) fn load_lanes(&mut self, ty: Type, flags: MemFlagsData, address: Clif, offset: i32) -> Vector {
        match ty {
            Type::I8 => {
                let bytes = self.b.ins().load(types::I32, flags, address, offset);
                let bytes = self.b.ins().scalar_to_vector(types::I32X4, bytes);
                let bytes = self.bits(types::I8X16, bytes);
                let shorts = self.b.ins().uwiden_low(bytes);
                Vector::Words(self.b.ins().uwiden_low(shorts))
            }
            Type::I16 => Vector::Words(self.b.ins().uload16x4(flags, address, offset)),
            _ => {
                let low = self.b.ins().load(vector_type(ty), flags, address, offset);
                if ty.bits() != 64 {
                    return Vector::Words(low);
                }
                Vector::Wides([low, self.b.ins().load(vector_type(ty), flags, address, offset + 16)])
            }
        }
    }

    /// Four lanes to consecutive places in memory.
    pub(super) fn store_lanes(
        &mut self,
        ty: Type,
        vector: Vector,
        flags: MemFlagsData,
        address: Clif,
        offset: i32,
    ) {
        match (vector, ty) {
            (Vector::Words(words), Type::I8 | Type::I16) => {
                let step = ty.bytes() as u8;
                let picks: Vec<u8> = (0..16).map(|byte| byte / step % 4 * 4 + byte % step).collect();
                let bytes = self.bits(types::I8X16, words);
                let picks = self.b.func.dfg.immediates.push(picks.into());
                let packed = self.b.ins().shuffle(bytes, bytes, picks);
                let vector = if ty == Type::I8 { types::I32X4 } else { types::I64X2 };
                let packed = self.bits(vector, packed);
                let packed = self.b.ins().extractlane(packed, 0);
                self.b.ins().store(flags, packed, address, offset);
            }
            (Vector::Words(words), _) => _ = self.b.ins().store(flags, words, address, offset),
            (Vector::Wides([low, high]), _) => {
                self.b.ins().store(flags, low, address, offset);
                self.b.ins().store(flags, high, address, offset + 16);
            }
        }
    }

    pub(super) fn gather_lanes(&mut self, ty: Type, each: [Clif; QUAD]) -> Vector {
        if ty == Type::I1 {
            let words = each.map(|lane| {
                let word = self.b.ins().uextend(types::I32, lane);
                self.b.ins().ineg(word)
            });
            return self.gather_lanes(Type::I32, words);
        }
        if matches!(ty, Type::I8 | Type::I16) {
            let words = each.map(|lane| self.b.ins().uextend(types::I32, lane));
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
    pub(super) fn each(&mut self, value: Value, quad: usize, chunk: &mut Chunk) -> [Clif; QUAD] {
        let known = chunk.values.get(&(value, quad)).copied().unwrap_or_default();
        if let Some(each) = known.each {
            return each;
        }
        let ty = self.kernel.ty(value);
        let each = match known.vector {
            Some(vector) => self.extract(ty, vector),
            None if self.plan.shape(value) == Shape::Varying && ty != Type::I1 => {
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

    pub(super) fn extract(&mut self, ty: Type, vector: Vector) -> [Clif; QUAD] {
        match vector {
            Vector::Words(words) => [0u8, 1, 2, 3].map(|number| {
                let lane = self.b.ins().extractlane(words, number);
                match ty {
                    Type::I1 => {
                        let bit = self.b.ins().band_imm_u(lane, 1);
                        self.b.ins().ireduce(types::I8, bit)
                    }
                    Type::I8 | Type::I16 => self.b.ins().ireduce(clif_type(ty), lane),
                    _ => lane,
                }
            }),
            Vector::Wides(halves) => [0usize, 1, 2, 3]
                .map(|number| self.b.ins().extractlane(halves[number / 2], (number % 2) as u8)),
        }
    }

    /// The bits of a predicate in all quads of the chunk, at their places in the warp's mask.
    pub(super) fn chunk_bits(&mut self, value: Value, chunk: &mut Chunk) -> Clif {
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
}

pub(super) fn vector_type(ty: Type) -> ClifType {
    match ty {
        Type::F32 => types::F32X4,
        Type::F64 => types::F64X2,
        Type::I64 => types::I64X2,
        _ => types::I32X4,
    }
}
