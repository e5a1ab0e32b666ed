//! Checks that a kernel is well formed.
//!
//! The invariants, each with its own variant of [`Defect`]:
//! 1. Block 0 is the entry; no edge leads to it and it has no parameters.
//! 2. Every id names an entry of its table. A value's definition is where its table says, and an
//!    instruction is in at most one block, once.
//! 3. Each use is dominated by its definition: earlier in the block, or in a block that dominates
//!    it. (Unreachable blocks are not looked at.)
//! 4. Operands have the types that their instruction asks for.
//! 5. An edge passes as many arguments as its target has parameters, of their types.
//! 6. Shapes of instructions: vector accesses of 1, 2, 4 or 8 elements, conversions between types
//!    that fit, `red` without results.
//! 7. Offsets of the layouts lie within what they describe.
//!
//! [`verify_scheduled`] adds what passes promise to a back end: blocks numbered as [`crate`]'s
//! documentation says, and collective instructions first in their blocks, or behind one that has
//! gathered the same lanes.

use crate::analysis::{Cfg, Dominators, Loops};
use crate::inst::{ConvertOp, Inst, Space, UnaryOp};
use crate::kernel::{Definition, InstData, Kernel, Target, Terminator};
use crate::passes::split_at_sync;
use crate::types::{BlockId, InstId, Type, Value};

/// The first thing wrong with a kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("kernel {kernel}, {block}: {defect}")]
pub struct VerifyError {
    pub kernel: String,
    pub block: BlockId,
    pub defect: Defect,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Defect {
    #[error("the entry has parameters or predecessors, or there is none")]
    Entry,
    #[error("{0} is out of range")]
    UnknownId(String),
    #[error("{0} is not defined where its table says")]
    Definition(Value),
    #[error("{0} is in a block twice")]
    Repeated(InstId),
    #[error("{value} is used in {user} but its definition does not dominate that")]
    Dominance { value: Value, user: String },
    #[error("{value} has type {found} where {user} wants {wanted}")]
    Type { value: Value, user: String, found: Type, wanted: Type },
    #[error("the edge to {target} passes {found} arguments for {wanted} parameters")]
    Arguments { target: BlockId, found: usize, wanted: usize },
    #[error("{0} has a shape that no instruction can have")]
    Shape(InstId),
    #[error("the layout of parameters, shared or local memory contradicts itself")]
    Layout,
    #[error("{0} is collective, not the first of its block, and gathers other lanes than the first")]
    Collective(InstId),
    #[error("the block is unreachable or out of order")]
    Order,
}

/// Checks invariants 1 to 7.
pub fn verify(kernel: &Kernel) -> Result<(), VerifyError> {
    let mut verifier = Verifier { kernel, block: BlockId(0) };
    verifier.run().map_err(|defect| verifier.locate(defect))
}

/// Checks [`verify`]'s invariants and what back ends rely on.
pub fn verify_scheduled(kernel: &Kernel) -> Result<(), VerifyError> {
    verify(kernel)?;
    let mut verifier = Verifier { kernel, block: BlockId(0) };
    verifier.check_schedule().map_err(|defect| verifier.locate(defect))
}

struct Verifier<'k> {
    kernel: &'k Kernel,
    /// The block being looked at.
    block: BlockId,
}

impl Verifier<'_> {
    fn locate(&self, defect: Defect) -> VerifyError {
        VerifyError { kernel: self.kernel.name.clone(), block: self.block, defect }
    }

    fn run(&mut self) -> Result<(), Defect> {
        self.check_ids()?;
        self.check_layouts()?;
        let cfg = Cfg::new(self.kernel);
        let entry = self.kernel.blocks.first().ok_or(Defect::Entry)?;
        if !entry.params.is_empty() || !cfg.preds(BlockId(0)).is_empty() {
            return Err(Defect::Entry);
        }
        let dominators = Dominators::new(&cfg);
        let places = self.places()?;
        for block in &cfg.order {
            self.block = *block;
            self.check_block(*block, &dominators, &places)?;
        }
        Ok(())
    }

    /// Invariant 2, ids.
    fn check_ids(&mut self) -> Result<(), Defect> {
        let kernel = self.kernel;
        let value_exists = |value: Value| value.index() < kernel.values.len();
        for id in kernel.block_ids() {
            self.block = id;
            let block = kernel.block(id);
            let mut unknown = None;
            let mut check = |value: Value| {
                if !value_exists(value) {
                    unknown = Some(value.to_string());
                }
            };
            block.params.iter().copied().for_each(&mut check);
            block.terminator.for_each_arg(&mut check);
            for inst in &block.insts {
                let data =
                    kernel.insts.get(inst.index()).ok_or_else(|| Defect::UnknownId(inst.to_string()))?;
                data.inst.for_each_arg(&mut check);
                data.results().for_each(&mut check);
                if let Inst::GlobalAddress { global } = data.inst
                    && global.index() >= kernel.globals.len()
                {
                    return Err(Defect::UnknownId(global.to_string()));
                }
            }
            for target in block.terminator.targets() {
                if target.block.index() >= kernel.blocks.len() {
                    return Err(Defect::UnknownId(target.block.to_string()));
                }
            }
            if let Some(unknown) = unknown {
                return Err(Defect::UnknownId(unknown));
            }
        }
        Ok(())
    }

    /// Invariant 7.
    fn check_layouts(&self) -> Result<(), Defect> {
        let kernel = self.kernel;
        let params_fit = kernel.params.params.iter().all(|param| {
            param.align.is_power_of_two()
                && param.offset.checked_add(param.bytes).is_some_and(|end| end <= kernel.params.bytes)
        });
        let shared = kernel.shared;
        let shared_fits = shared.align.is_power_of_two()
            && shared.dynamic_offset.is_none_or(|offset| offset >= shared.static_bytes);
        let local_fits =
            kernel.local_align.is_power_of_two() && kernel.local_bytes.is_multiple_of(kernel.local_align);
        if params_fit && shared_fits && local_fits { Ok(()) } else { Err(Defect::Layout) }
    }

    /// By instruction: its block and place there; and invariant 2, definitions.
    fn places(&mut self) -> Result<Vec<Option<(BlockId, u32)>>, Defect> {
        let kernel = self.kernel;
        let mut places = vec![None; kernel.insts.len()];
        for id in kernel.block_ids() {
            self.block = id;
            let block = kernel.block(id);
            for (index, param) in block.params.iter().enumerate() {
                if kernel.values[param.index()].definition
                    != (Definition::Param { block: id, index: index as u32 })
                {
                    return Err(Defect::Definition(*param));
                }
            }
            for (index, inst) in block.insts.iter().enumerate() {
                if places[inst.index()].replace((id, index as u32)).is_some() {
                    return Err(Defect::Repeated(*inst));
                }
                for (index, result) in kernel.inst(*inst).results().enumerate() {
                    let definition = Definition::Result { inst: *inst, index: index as u8 };
                    if kernel.values[result.index()].definition != definition {
                        return Err(Defect::Definition(result));
                    }
                }
            }
        }
        Ok(places)
    }

    fn check_block(
        &self,
        id: BlockId,
        dominators: &Dominators,
        places: &[Option<(BlockId, u32)>],
    ) -> Result<(), Defect> {
        let block = self.kernel.block(id);
        // Invariant 3.
        let is_available = |value: Value, before: u32| match self.kernel.values[value.index()].definition {
            Definition::Param { block, .. } => dominators.dominates(block, id),
            Definition::Result { inst, .. } => match places[inst.index()] {
                Some((home, place)) if home == id => place < before,
                Some((home, _)) => dominators.dominates(home, id),
                None => false,
            },
            Definition::None => false,
        };
        for (index, inst) in block.insts.iter().enumerate() {
            let data = self.kernel.inst(*inst);
            let mut missing = None;
            data.inst.for_each_arg(|value| {
                if !is_available(value, index as u32) {
                    missing = Some(value);
                }
            });
            if let Some(value) = missing {
                return Err(Defect::Dominance { value, user: inst.to_string() });
            }
            self.check_inst(*inst, data)?;
        }
        let mut missing = None;
        block.terminator.for_each_arg(|value| {
            if !is_available(value, u32::MAX) {
                missing = Some(value);
            }
        });
        if let Some(value) = missing {
            return Err(Defect::Dominance { value, user: "the terminator".into() });
        }
        match &block.terminator {
            Terminator::Branch { cond, .. } => self.want_for(&"branch", *cond, Type::I1)?,
            Terminator::Switch { index, .. } => self.want_for(&"switch", *index, Type::I32)?,
            _ => {}
        }
        block.terminator.targets().try_for_each(|target| self.check_target(target))
    }

    /// Invariant 5.
    fn check_target(&self, target: &Target) -> Result<(), Defect> {
        let params = &self.kernel.block(target.block).params;
        if params.len() != target.args.len() {
            return Err(Defect::Arguments {
                target: target.block,
                found: target.args.len(),
                wanted: params.len(),
            });
        }
        for (arg, param) in target.args.iter().zip(params) {
            self.want_for(&target.block, *arg, self.kernel.ty(*param))?;
        }
        Ok(())
    }

    fn want_for(&self, user: &dyn ToString, value: Value, wanted: Type) -> Result<(), Defect> {
        match self.kernel.ty(value) {
            found if found == wanted => Ok(()),
            found => Err(Defect::Type { value, user: user.to_string(), found, wanted }),
        }
    }

    /// Invariants 4 and 6.
    fn check_inst(&self, id: InstId, data: &InstData) -> Result<(), Defect> {
        let want = |value: Value, wanted: Type| self.want_for(&id, value, wanted);
        let all = |values: &[Value], wanted: Type| values.iter().try_for_each(|value| want(*value, wanted));
        let guarded = |guard: &Option<Value>| guard.map_or(Ok(()), |guard| want(guard, Type::I1));
        let shape = |holds: bool| if holds { Ok(()) } else { Err(Defect::Shape(id)) };
        let mut results = 0;
        data.inst.result_types(|_| results += 1);
        let is_red = matches!(data.inst, Inst::Atomic { .. }) && data.result_count == 0;
        shape(results == data.result_count || is_red)?;
        match &data.inst {
            Inst::Const { ty, bits } => shape(bits & !ty.mask() == 0),
            Inst::Unary { op, ty, arg } => {
                shape(unary_fits(*op, *ty))?;
                want(*arg, *ty)
            }
            Inst::Binary { op, ty, args } => {
                shape(op.is_float() == ty.is_float())?;
                want(args[0], *ty)?;
                want(args[1], if op.is_shift() { Type::I32 } else { *ty })
            }
            Inst::Float { ty, args, .. } => {
                shape(ty.is_float())?;
                all(args, *ty)
            }
            Inst::Fma { ty, args, .. } => {
                shape(ty.is_float())?;
                all(args, *ty)
            }
            Inst::Sqrt { ty, arg, .. } => {
                shape(ty.is_float())?;
                want(*arg, *ty)
            }
            Inst::Permute { args } => all(args, Type::I32),
            Inst::Compare { ty, args, .. } => {
                shape(ty.is_int())?;
                all(args, *ty)
            }
            Inst::FloatCompare { ty, args, .. } => {
                shape(ty.is_float())?;
                all(args, *ty)
            }
            Inst::Select { ty, cond, args } => {
                want(*cond, Type::I1)?;
                all(args, *ty)
            }
            Inst::Convert { op, from, to, arg } => {
                shape(conversion_fits(*op, *from, *to))?;
                want(*arg, *from)
            }
            Inst::Special { .. } | Inst::GlobalAddress { .. } | Inst::WindowBase { .. } => Ok(()),
            Inst::Load { place, count, guard, .. } => {
                shape(matches!(count, 1 | 2 | 4 | 8))?;
                want(place.addr, place.space.address_type())?;
                guarded(guard)
            }
            Inst::Store { place, ty, values, guard, .. } => {
                shape(matches!(values.len(), 1 | 2 | 4 | 8))?;
                shape(!matches!(place.space, Space::Const | Space::Param))?;
                want(place.addr, place.space.address_type())?;
                all(values, *ty)?;
                guarded(guard)
            }
            Inst::Atomic { place, ty, arg, compare, guard, .. } => {
                want(place.addr, place.space.address_type())?;
                want(*arg, *ty)?;
                compare.map_or(Ok(()), |compare| want(compare, *ty))?;
                guarded(guard)
            }
            Inst::Fence { .. } | Inst::ActiveMask | Inst::ClusterBarrier { .. } => Ok(()),
            Inst::Shuffle { value, lane, clamp, mask, .. } => all(&[*value, *lane, *clamp, *mask], Type::I32),
            Inst::Vote { predicate, mask, .. } => {
                want(*predicate, Type::I1)?;
                want(*mask, Type::I32)
            }
            Inst::Match { ty, value, mask, .. } | Inst::Redux { ty, value, mask, .. } => {
                want(*value, *ty)?;
                want(*mask, Type::I32)
            }
            Inst::MatrixMultiply { form, args, mask } => {
                let factors = form.a_registers() + form.b_registers();
                shape(form.is_valid() && args.len() == factors + form.sums())?;
                let (factors, sums) = args.split_at(factors);
                all(factors, Type::I32)?;
                all(sums, form.sum_type())?;
                want(*mask, Type::I32)
            }
            Inst::WarpSync { mask } => want(*mask, Type::I32),
            Inst::Barrier { id, count, predicate, .. } => {
                want(*id, Type::I32)?;
                count.map_or(Ok(()), |count| want(count, Type::I32))?;
                predicate.map_or(Ok(()), |predicate| want(predicate, Type::I1))
            }
            Inst::Nanosleep { nanoseconds } => want(*nanoseconds, Type::I32),
            Inst::Sample { object, place, level, .. } => {
                want(*object, Type::I64)?;
                all(place, Type::I32)?;
                want(*level, Type::I32)
            }
            Inst::CallRuntime { function, args } => {
                shape(args.len() == function.params().len())?;
                args.iter().zip(function.params()).try_for_each(|(arg, ty)| want(*arg, *ty))
            }
        }
    }

    /// What passes promise to a back end.
    fn check_schedule(&mut self) -> Result<(), Defect> {
        let cfg = Cfg::new(self.kernel);
        let dominators = Dominators::new(&cfg);
        let loops = Loops::new(self.kernel, &cfg, &dominators);
        // By loop: its first and last block and the number of blocks directly or indirectly in it.
        let mut extents = vec![(u32::MAX, 0, 0); loops.headers.len()];
        for id in self.kernel.block_ids() {
            self.block = id;
            if !cfg.is_reachable(id) {
                return Err(Defect::Order);
            }
            let insts = &self.kernel.block(id).insts;
            if let Some(late) = split_at_sync::first_late(self.kernel, insts) {
                return Err(Defect::Collective(insts[late]));
            }
            let back_edges = cfg.preds(id).iter().filter(|pred| **pred >= id).count();
            if back_edges > 1 && !loops.is_irreducible {
                return Err(Defect::Order);
            }
            let mut around = loops.innermost(id);
            while let Some(inner) = around {
                let (first, last, count) = &mut extents[inner.0 as usize];
                *first = id.0.min(*first);
                *last = id.0.max(*last);
                *count += 1;
                around = loops.parent(inner);
            }
        }
        if loops.is_irreducible {
            // There is no good order; analyses then assume nothing about lanes.
            return Ok(());
        }
        for (header, (first, last, count)) in loops.headers.iter().zip(extents) {
            self.block = *header;
            let ends_with_latch = cfg.preds(*header).iter().any(|pred| pred.0 == last);
            if first != header.0 || last - first + 1 != count || !ends_with_latch {
                return Err(Defect::Order);
            }
        }
        Ok(())
    }
}

fn unary_fits(op: UnaryOp, ty: Type) -> bool {
    use UnaryOp::*;
    match op {
        Not => ty.is_int(),
        Neg | Abs => ty.is_int() && ty != Type::I1,
        Clz | Popc | Brev => matches!(ty, Type::I32 | Type::I64),
        FNeg | FAbs | Rcp | Rsqrt => ty.is_float(),
        FlushSubnormal | Ex2 | Lg2 | Sin | Cos | Tanh => ty == Type::F32,
    }
}

fn conversion_fits(op: ConvertOp, from: Type, to: Type) -> bool {
    use ConvertOp::*;
    let is_number = |ty: Type| ty.is_int() && ty != Type::I1;
    match op {
        Truncate => from.is_int() && to.is_int() && from.bits() > to.bits(),
        SignExtend | ZeroExtend => from.is_int() && to.is_int() && from.bits() < to.bits(),
        Bitcast => from.bits() == to.bits(),
        FloatToFloat(_) => from.is_float() && to.is_float(),
        HalfToFloat | BfloatToFloat => from == Type::I16 && to.is_float(),
        FloatToHalf(_) | FloatToBfloat(_) => from.is_float() && to == Type::I16,
        SignedToFloat(_) | UnsignedToFloat(_) => is_number(from) && to.is_float(),
        FloatToSigned(_) | FloatToUnsigned(_) => from.is_float() && is_number(to),
        RoundToIntegral(_) => from.is_float() && from == to,
        FloatToTf32(_) => from == Type::F32 && to == Type::F32,
    }
}
