//! Accesses whose lanes are neighbours, or the same, within each quad, and elements of 32 bits that
//! lanes load and store in pairs and fours.

use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Type as ClifType, Value as Clif, types};
use sluice_ir::analysis::Shape;
use sluice_ir::{Inst, InstId, MemoryOperand, Ordering, Space, Type, Value};

use super::values::vector_type;
use super::{Chunk, QUAD, Quad, Vector};
use crate::codegen::emitter::Emitter;
use crate::codegen::lanes::Lane;
use crate::codegen::memory::memory_flags;
use crate::codegen::scalar::clif_type;

/// Places of the 32-bit elements of two vectors, those of the second from 4 on.
type Picks = [u8; 4];

impl Emitter<'_> {
    /// The place of an access that is one access for each quad, its bytes for each lane, and
    /// whether all lanes of a quad read the same.
    pub(super) fn quad_access<'i>(&self, inst: &'i Inst) -> Option<(&'i MemoryOperand, u32, bool)> {
        let (place, ty, count, order, guard) = match inst {
            Inst::Load { place, ty, count, order, guard } => (place, ty, u32::from(*count), order, guard),
            Inst::Store { place, ty, values, order, guard } => (place, ty, values.len() as u32, order, guard),
            _ => return None,
        };
        let bytes = ty.bytes() * count;
        let stride = self.plan.quad_stride(place.addr)?;
        let is_plain = matches!(order.ordering, Ordering::Weak | Ordering::Invariant);
        let is_same = stride == 0 && matches!(inst, Inst::Load { .. });
        let fits = is_same || stride == i64::from(bytes);
        let is_shared_space = !matches!(place.space, Space::Local | Space::Param);
        (fits && guard.is_none() && is_plain && is_shared_space).then_some((place, bytes, is_same))
    }

    /// The loads or stores of one instruction, quad by quad.
    pub(super) fn quad_accesses(&mut self, id: InstId, chunk: &mut Chunk) {
        let kernel = self.kernel;
        let data = kernel.inst(id);
        let Some((place, bytes, is_same)) = self.quad_access(&data.inst) else {
            unreachable!("an access for each quad")
        };
        for quad in 0..chunk.quads {
            let address = self.first_of_quad(place.addr, quad, chunk);
            let address = match place.offset {
                0 => address,
                offset => self.b.ins().iadd_imm_s(address, i64::from(offset)),
            };
            let lanes = if is_same { 1 } else { QUAD as u32 };
            let address = self.checked_address(place.space, address, lanes * bytes, bytes);
            match &data.inst {
                Inst::Load { ty, count, .. } if is_same => {
                    for (element, value) in data.results().enumerate() {
                        let offset = (element * ty.bytes() as usize) as i32;
                        let one = self.b.ins().load(clif_type(*ty), memory_flags(), address, offset);
                        let vector = self.splat(*ty, one);
                        self.define_quad(value, quad, Quad { vector: Some(vector), each: None }, chunk);
                    }
                    debug_assert_eq!(data.results().count(), usize::from(*count));
                }
                Inst::Load { ty, count, .. } => {
                    let loaded = self.load_quad(*ty, usize::from(*count), address, 0);
                    for (value, forms) in data.results().zip(loaded) {
                        self.define_quad(value, quad, forms, chunk);
                    }
                }
                Inst::Store { ty, values, .. } => self.store_quad_to(*ty, values, address, 0, quad, chunk),
                _ => unreachable!("a load or a store"),
            }
        }
    }

    /// The value of a quad's first lane.
    fn first_of_quad(&mut self, value: Value, quad: usize, chunk: &mut Chunk) -> Clif {
        let known = chunk.values.get(&(value, quad)).copied().unwrap_or_default();
        match (known.each, known.vector) {
            (Some(each), _) => each[0],
            (None, Some(Vector::Words(words))) => self.b.ins().extractlane(words, 0),
            (None, Some(Vector::Wides([low, _]))) => self.b.ins().extractlane(low, 0),
            (None, None) => {
                debug_assert!(self.plan.shape(value) != Shape::Varying || self.plan.slot(value).is_some());
                let lane = Lane { index: self.lane_number(chunk, quad, 0), values: Default::default() };
                self.value(value, Some(&lane))
            }
        }
    }

    /// A quad's elements of a store, lane after lane.
    pub(super) fn store_quad_to(
        &mut self,
        ty: Type,
        values: &[Value],
        address: Clif,
        start: i32,
        quad: usize,
        chunk: &mut Chunk,
    ) {
        if let &[value] = values {
            let vector = self.vector(value, quad, chunk);
            return self.store_lanes(ty, vector, memory_flags(), address, start);
        }
        if ty.bits() == 32 && matches!(values.len(), 2 | 4) {
            let columns: Vec<Clif> = values
                .iter()
                .map(|&value| {
                    let vector = self.vector(value, quad, chunk);
                    self.half(vector, 0)
                })
                .collect();
            let rows = match columns[..] {
                [x, y] => {
                    vec![self.pick_words(ty, x, y, [0, 4, 1, 5]), self.pick_words(ty, x, y, [2, 6, 3, 7])]
                }
                _ => self.turned(ty, &columns),
            };
            for (row, vector) in rows.into_iter().enumerate() {
                self.b.ins().store(memory_flags(), vector, address, start + 16 * row as i32);
            }
            return;
        }
        for (element, &value) in values.iter().enumerate() {
            let each = self.each(value, quad, chunk);
            for (number, lane) in each.into_iter().enumerate() {
                let offset = start + ((number * values.len() + element) * ty.bytes() as usize) as i32;
                self.b.ins().store(memory_flags(), lane, address, offset);
            }
        }
    }

    /// Four lanes of `count` elements each, lane after lane.
    pub(super) fn load_quad(&mut self, ty: Type, count: usize, address: Clif, start: i32) -> Vec<Quad> {
        let flags = memory_flags();
        if count == 1 {
            let vector = self.load_lanes(ty, flags, address, start);
            return vec![Quad { vector: Some(vector), each: None }];
        }
        if ty.bits() == 32 && matches!(count, 2 | 4) {
            let rows = self.load_rows(ty, count, flags, address, start);
            let columns = match rows[..] {
                [a, b] => {
                    vec![self.pick_words(ty, a, b, [0, 2, 4, 6]), self.pick_words(ty, a, b, [1, 3, 5, 7])]
                }
                _ => self.turned(ty, &rows),
            };
            let quad = |words| Quad { vector: Some(Vector::Words(words)), each: None };
            return columns.into_iter().map(quad).collect();
        }
        (0..count)
            .map(|element| {
                let each = [0, 1, 2, 3].map(|number| {
                    let offset = start + ((number * count + element) * ty.bytes() as usize) as i32;
                    self.b.ins().load(clif_type(ty), flags, address, offset)
                });
                Quad { vector: None, each: Some(each) }
            })
            .collect()
    }

    fn load_rows(
        &mut self,
        ty: Type,
        count: usize,
        flags: MemFlagsData,
        address: Clif,
        start: i32,
    ) -> Vec<Clif> {
        let load = |row: usize| self.b.ins().load(vector_type(ty), flags, address, start + 16 * row as i32);
        (0..count).map(load).collect()
    }

    /// Rows for columns of 4 x 4 elements.
    fn turned(&mut self, ty: Type, rows: &[Clif]) -> Vec<Clif> {
        let &[a, b, c, d] = rows else { unreachable!("four rows") };
        let low = [(a, b), (c, d)].map(|(one, other)| self.pick_words(ty, one, other, [0, 4, 1, 5]));
        let high = [(a, b), (c, d)].map(|(one, other)| self.pick_words(ty, one, other, [2, 6, 3, 7]));
        [low, high]
            .into_iter()
            .flat_map(|[one, other]| {
                [[0, 1, 4, 5], [2, 3, 6, 7]].map(|picks| self.pick_words(ty, one, other, picks))
            })
            .collect()
    }

    /// Four 32-bit elements of two vectors.
    fn pick_words(&mut self, ty: Type, one: Clif, other: Clif, picks: Picks) -> Clif {
        let bytes: ClifType = types::I8X16;
        let (one, other) = (self.bits(bytes, one), self.bits(bytes, other));
        let picks: Vec<u8> = picks.iter().flat_map(|pick| (0..4).map(move |byte| 4 * pick + byte)).collect();
        let picks = self.b.func.dfg.immediates.push(picks.into());
        let words = self.b.ins().shuffle(one, other, picks);
        self.bits(vector_type(ty), words)
    }
}
