//! Accesses whose lanes are neighbours.

use std::collections::HashMap;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value as Clif};
use sluice_ir::analysis::Shape;
use sluice_ir::{BinaryOp, ConvertOp, Inst, InstId, MemoryOperand, Ordering, Space, Type, Value};

use super::{Chunk, Hoisted, QUAD};
use crate::codegen::emitter::Emitter;
use crate::codegen::memory::Extent;

impl Emitter<'_> {
    /// Finds the accesses whose lanes are neighbours and checks them for the whole warp, those that
    /// differ by a constant together.
    pub(super) fn hoist_all(&mut self, insts: &[InstId]) -> HashMap<InstId, Hoisted> {
        let mut hoisted = HashMap::new();
        for (extent, members) in self.neighbour_extents(insts) {
            let address = self.extent_address(&extent);
            hoist(&mut hoisted, &extent, address, members);
        }
        hoisted
    }

    /// Finds the accesses whose lanes are neighbours, and whether all that all lanes of the warp
    /// would access is in range, at run time.
    pub(super) fn hoist_if_in_range(&mut self, insts: &[InstId]) -> (HashMap<InstId, Hoisted>, Option<Clif>) {
        let mut hoisted = HashMap::new();
        let mut all_fit: Option<Clif> = None;
        for (extent, members) in self.neighbour_extents(insts) {
            let checked = self.extent_place(&extent);
            let fits = self.b.ins().bxor_imm_u(checked.is_bad, 1);
            all_fit = Some(match all_fit {
                Some(others) => self.b.ins().band(others, fits),
                None => fits,
            });
            hoist(&mut hoisted, &extent, checked.address, members);
        }
        (hoisted, all_fit)
    }

    /// What the accesses whose lanes are neighbours touch, together with their offsets.
    fn neighbour_extents(&self, insts: &[InstId]) -> Vec<(Extent, Vec<(InstId, i32)>)> {
        let kernel = self.kernel;
        let mut groups: Vec<(Extent, Vec<(InstId, i32)>)> = Vec::new();
        for &id in insts {
            let Some((place, bytes)) = self.neighbour_access(&kernel.inst(id).inst) else { continue };
            let own = Extent::new(place, bytes, self.plan.lanes as u32);
            match groups.iter_mut().find(|(extent, _)| extent.can_join(&own)) {
                Some((extent, members)) => {
                    extent.join(&own);
                    members.push((id, place.offset));
                }
                None => groups.push((own, vec![(id, place.offset)])),
            }
        }
        groups
    }

    /// The place of an access whose lanes are neighbours, and its bytes per lane.
    pub(super) fn neighbour_access<'i>(&self, inst: &'i Inst) -> Option<(&'i MemoryOperand, u32)> {
        let (place, ty, count, order, guard) = match inst {
            Inst::Load { place, ty, count, order, guard } => (place, ty, u32::from(*count), order, guard),
            Inst::Store { place, ty, values, order, guard } => (place, ty, values.len() as u32, order, guard),
            _ => return None,
        };
        let bytes = ty.bytes() * count;
        let stride = self.lane_stride(place.addr)?;
        let is_plain = matches!(order.ordering, Ordering::Weak | Ordering::Invariant);
        let is_shared_space = !matches!(place.space, Space::Local | Space::Param);
        let fits = stride == i64::from(bytes) && guard.is_none() && is_plain && is_shared_space;
        fits.then_some((place, bytes))
    }

    /// The distance between the lanes of an address, if it is always the same.
    fn lane_stride(&self, value: Value) -> Option<i64> {
        match self.plan.shape(value) {
            Shape::Affine { stride } => Some(stride),
            _ => self.assumed.get(&value).copied(),
        }
    }

    /// Finds values of a step whose lanes are at a constant distance if no index wraps around 2^32
    /// within the warp: an unsigned index made wide, and what is computed from it. Until
    /// [`Emitter::drop_assumptions`] they count as such, and `uniform` gives their lane 0. Returns
    /// whether that holds, at run time; None if there are none.
    pub(in crate::codegen) fn assume_no_wrap(&mut self, insts: &[InstId]) -> Option<Clif> {
        let kernel = self.kernel;
        let mut holds: Option<Clif> = None;
        for &id in insts {
            let data = kernel.inst(id);
            let Some(stride) = self.assumed_stride(&data.inst) else { continue };
            let mut args = Vec::with_capacity(2);
            data.inst.for_each_arg(|value| args.push(self.uniform(value)));
            let base = self.scalar(&data.inst, &args);
            if matches!(data.inst, Inst::Convert { .. }) {
                let last = self.b.ins().iadd_imm_s(base, stride * (self.plan.lanes as i64 - 1));
                let above = self.b.ins().ushr_imm_u(last, 32);
                let fits = self.b.ins().icmp_imm_u(IntCC::Equal, above, 0);
                holds = Some(match holds {
                    Some(others) => self.b.ins().band(others, fits),
                    None => fits,
                });
            }
            self.assumed.insert(data.result(0), stride);
            self.uniform.insert(data.result(0), base);
        }
        holds
    }

    /// The stride of an instruction's result under the assumption; None if nothing is assumed of
    /// it.
    fn assumed_stride(&self, inst: &Inst) -> Option<i64> {
        let affine = |value: Value| match self.plan.shape(value) {
            Shape::Uniform => Some(0),
            Shape::Affine { stride } => Some(stride),
            Shape::Varying => self.assumed.get(&value).copied(),
        };
        match *inst {
            Inst::Convert { op: ConvertOp::ZeroExtend, from: Type::I32, to: Type::I64, arg } => {
                match self.plan.shape(arg) {
                    Shape::Affine { stride } if stride.unsigned_abs() < 1 << 32 => Some(stride),
                    _ => None,
                }
            }
            Inst::Binary { op, ty: Type::I64, args: [a, b] } => {
                if !self.assumed.contains_key(&a) && !self.assumed.contains_key(&b) {
                    return None;
                }
                let constant = |value: Value| self.kernel.constant(value);
                match op {
                    BinaryOp::Add => Some(affine(a)?.wrapping_add(affine(b)?)),
                    BinaryOp::Sub => Some(affine(a)?.wrapping_sub(affine(b)?)),
                    BinaryOp::Mul => Some(affine(a)?.wrapping_mul(constant(b)? as i64)),
                    BinaryOp::Shl if constant(b)? < 32 => Some(affine(a)? << constant(b)?),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Forgets what [`Emitter::assume_no_wrap`] has found.
    pub(in crate::codegen) fn drop_assumptions(&mut self) {
        for value in self.assumed.keys() {
            self.uniform.remove(value);
        }
        self.assumed.clear();
    }

    /// Loads or stores of neighbouring lanes.
    pub(super) fn neighbours(&mut self, id: InstId, base: Hoisted, chunk: &mut Chunk) {
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
                    self.store_quad_to(*ty, values, address, start, quad, chunk);
                }
            }
            _ => unreachable!("only loads and stores are hoisted"),
        }
    }

    pub(super) fn element_address(&mut self, base: Clif, bytes: usize, chunk: &Chunk) -> Clif {
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
}

fn hoist(
    hoisted: &mut HashMap<InstId, Hoisted>,
    extent: &Extent,
    address: Clif,
    members: Vec<(InstId, i32)>,
) {
    let place = |(id, offset)| (id, Hoisted { address, offset: offset - extent.start });
    hoisted.extend(members.into_iter().map(place));
}
