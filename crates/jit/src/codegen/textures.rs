//! Texture instructions: one call reads for all active lanes.

use cranelift_codegen::ir::{InstBuilder, Value as Clif, types};
use sluice_ir::{Inst, InstId, Value};

use super::emitter::Emitter;
use crate::runtime;

impl Emitter<'_> {
    pub(super) fn sample(&mut self, id: InstId) {
        let kernel = self.kernel;
        let data = kernel.inst(id);
        let Inst::Sample { sampling, object, place, level } = data.inst else {
            unreachable!("not a texture instruction")
        };
        data.inst.for_each_arg(|value| self.prepare(value));
        let how = self.b.ins().iconst(types::I32, i64::from(sampling.to_bits()));
        // The four arrays of the scratch take operands that have no slot. Results may overwrite
        // them: each lane's operands are read before its results are written.
        let [x, y, z] = [0, 1, 2].map(|axis| self.words_or_null(place[axis], axis as u32));
        let level = self.words_or_null(level, 3);
        let results: Vec<Clif> =
            (0..4).map(|index| self.wanted_words(data.result(index), index as u32)).collect();
        let call = |emitter: &mut Self, object: Clif, lanes: Clif| {
            let mut args = vec![emitter.ctx, object, how, lanes, x, y, z, level];
            args.extend_from_slice(&results);
            emitter.call(runtime::sample as *const (), &args, None);
        };
        if self.plan.is_varying(object) {
            self.for_active_lanes(|emitter, lane| {
                let object = emitter.value(object, Some(lane));
                let one = emitter.b.ins().iconst(types::I32, 1);
                let index = emitter.b.ins().ireduce(types::I32, lane.index);
                let bit = emitter.b.ins().ishl(one, index);
                call(emitter, object, bit);
            });
        } else {
            let object = self.uniform(object);
            call(self, object, self.mask);
        }
    }

    /// The words of an operand; null for a constant zero, which most operands are.
    fn words_or_null(&mut self, value: Value, array: u32) -> Clif {
        match self.kernel.constant(value) {
            Some(0) => self.b.ins().iconst(types::I64, 0),
            _ => self.words(value, array),
        }
    }

    /// Where a result goes; null where nothing uses it.
    fn wanted_words(&mut self, result: Value, array: u32) -> Clif {
        match self.plan.slot(result) {
            None => self.b.ins().iconst(types::I64, 0),
            Some(_) => self.result_words(result, array),
        }
    }
}
