//! What is asked of any instruction: its effect, its results, its operands.

use super::{BarrierKind, Inst, MatchKind, Ordering, RuntimeFunction, SpecialRegister, VoteKind};
use crate::types::{Type, Value};

/// What an instruction may do besides giving its results; decides what passes may do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Depends on operands only: merge, move, drop freely.
    Pure,
    /// Reads what may change: drop freely, do not move across writes.
    Reads,
    /// Kept, in order.
    Writes,
}

impl Inst {
    /// Waits for all lanes of a member mask or for other warps. [`crate::passes::split_at_sync`]
    /// puts such an instruction first in its block (or behind one of the same mask), so a back end
    /// that gathers lanes at block starts has them together there.
    pub fn is_collective(&self) -> bool {
        matches!(
            self,
            Inst::Shuffle { .. }
                | Inst::Vote { .. }
                | Inst::Match { .. }
                | Inst::Redux { .. }
                | Inst::MatrixMultiply { .. }
                | Inst::WarpSync { .. }
                | Inst::Barrier { .. }
                | Inst::ClusterBarrier { .. }
        )
    }

    pub fn effect(&self) -> Effect {
        match self {
            Inst::Const { .. }
            | Inst::Unary { .. }
            | Inst::Binary { .. }
            | Inst::Float { .. }
            | Inst::Fma { .. }
            | Inst::Sqrt { .. }
            | Inst::Permute { .. }
            | Inst::Compare { .. }
            | Inst::FloatCompare { .. }
            | Inst::Select { .. }
            | Inst::Convert { .. }
            | Inst::GlobalAddress { .. }
            | Inst::WindowBase { .. } => Effect::Pure,
            Inst::Special { register } => match register {
                SpecialRegister::Clock | SpecialRegister::Clock64 | SpecialRegister::GlobalTimer => {
                    Effect::Writes
                }
                _ => Effect::Pure,
            },
            Inst::Load { order, .. } => match order.ordering {
                Ordering::Invariant | Ordering::Weak => Effect::Reads,
                _ => Effect::Writes,
            },
            Inst::Sample { .. } | Inst::CallRuntime { function: RuntimeFunction::SurfaceLoad, .. } => {
                Effect::Reads
            }
            Inst::ActiveMask => Effect::Writes,
            Inst::Store { .. }
            | Inst::Atomic { .. }
            | Inst::Fence { .. }
            | Inst::Shuffle { .. }
            | Inst::Vote { .. }
            | Inst::Match { .. }
            | Inst::Redux { .. }
            | Inst::MatrixMultiply { .. }
            | Inst::WarpSync { .. }
            | Inst::Barrier { .. }
            | Inst::ClusterBarrier { .. }
            | Inst::Nanosleep { .. }
            | Inst::CallRuntime { .. } => Effect::Writes,
        }
    }

    /// Calls `f` with the type of each result, in order.
    pub fn result_types(&self, mut f: impl FnMut(Type)) {
        match self {
            Inst::Const { ty, .. }
            | Inst::Unary { ty, .. }
            | Inst::Binary { ty, .. }
            | Inst::Float { ty, .. }
            | Inst::Fma { ty, .. }
            | Inst::Sqrt { ty, .. }
            | Inst::Select { ty, .. }
            | Inst::Redux { ty, .. }
            // Without a result it is `red`: see `Kernel::push_without_result`.
            | Inst::Atomic { ty, .. } => f(*ty),
            Inst::Permute { .. } | Inst::ActiveMask => f(Type::I32),
            Inst::Compare { .. } | Inst::FloatCompare { .. } => f(Type::I1),
            Inst::Convert { to, .. } => f(*to),
            Inst::Special { register } => f(register.ty()),
            Inst::GlobalAddress { .. } | Inst::WindowBase { .. } => f(Type::I64),
            Inst::Load { ty, count, .. } => (0..*count).for_each(|_| f(*ty)),
            Inst::Sample { .. } => (0..4).for_each(|_| f(Type::I32)),
            Inst::MatrixMultiply { form, .. } => (0..form.sums()).for_each(|_| f(form.sum_type())),
            Inst::Shuffle { .. } => {
                f(Type::I32);
                f(Type::I1);
            }
            Inst::Vote { kind, .. } => f(if *kind == VoteKind::Ballot { Type::I32 } else { Type::I1 }),
            Inst::Match { kind, .. } => {
                f(Type::I32);
                if *kind == MatchKind::All {
                    f(Type::I1);
                }
            }
            Inst::Barrier { kind, .. } => match kind {
                BarrierKind::Sync | BarrierKind::Arrive => {}
                BarrierKind::ReduceAnd | BarrierKind::ReduceOr => f(Type::I1),
                BarrierKind::ReducePopc => f(Type::I32),
            },
            Inst::CallRuntime { function, .. } => function.result().into_iter().for_each(f),
            Inst::Store { .. }
            | Inst::Fence { .. }
            | Inst::WarpSync { .. }
            | Inst::ClusterBarrier { .. }
            | Inst::Nanosleep { .. } => {}
        }
    }

    /// Calls `f` with each operand, in the order of the text form.
    pub fn for_each_arg(&self, mut f: impl FnMut(Value)) {
        match self {
            Inst::Const { .. }
            | Inst::Special { .. }
            | Inst::GlobalAddress { .. }
            | Inst::WindowBase { .. }
            | Inst::Fence { .. }
            | Inst::ClusterBarrier { .. }
            | Inst::ActiveMask => {}
            Inst::Unary { arg, .. } | Inst::Sqrt { arg, .. } | Inst::Convert { arg, .. } => f(*arg),
            Inst::Binary { args, .. }
            | Inst::Float { args, .. }
            | Inst::Compare { args, .. }
            | Inst::FloatCompare { args, .. } => args.iter().copied().for_each(f),
            Inst::Fma { args, .. } | Inst::Permute { args } => args.iter().copied().for_each(f),
            Inst::Select { cond, args, .. } => [*cond, args[0], args[1]].into_iter().for_each(f),
            Inst::Load { place, guard, .. } => {
                f(place.addr);
                guard.iter().copied().for_each(f);
            }
            Inst::Store { place, values, guard, .. } => {
                f(place.addr);
                values.iter().copied().for_each(&mut f);
                guard.iter().copied().for_each(f);
            }
            Inst::Atomic { place, arg, compare, guard, .. } => {
                f(place.addr);
                f(*arg);
                compare.iter().copied().for_each(&mut f);
                guard.iter().copied().for_each(f);
            }
            Inst::Shuffle { value, lane, clamp, mask, .. } => {
                [*value, *lane, *clamp, *mask].into_iter().for_each(f)
            }
            Inst::Vote { predicate, mask, .. } => [*predicate, *mask].into_iter().for_each(f),
            Inst::Match { value, mask, .. } | Inst::Redux { value, mask, .. } => {
                [*value, *mask].into_iter().for_each(f);
            }
            Inst::MatrixMultiply { args, mask, .. } => {
                args.iter().copied().for_each(&mut f);
                f(*mask);
            }
            Inst::WarpSync { mask } => f(*mask),
            Inst::Barrier { id, count, predicate, .. } => {
                f(*id);
                count.iter().copied().for_each(&mut f);
                predicate.iter().copied().for_each(f);
            }
            Inst::Nanosleep { nanoseconds } => f(*nanoseconds),
            Inst::Sample { object, place: [x, y, z], level, .. } => {
                [*object, *x, *y, *z, *level].into_iter().for_each(f)
            }
            Inst::CallRuntime { args, .. } => args.iter().copied().for_each(f),
        }
    }

    /// Calls `f` with a reference to each operand, in the order of [`Inst::for_each_arg`].
    pub fn for_each_arg_mut(&mut self, mut f: impl FnMut(&mut Value)) {
        match self {
            Inst::Const { .. }
            | Inst::Special { .. }
            | Inst::GlobalAddress { .. }
            | Inst::WindowBase { .. }
            | Inst::Fence { .. }
            | Inst::ClusterBarrier { .. }
            | Inst::ActiveMask => {}
            Inst::Unary { arg, .. } | Inst::Sqrt { arg, .. } | Inst::Convert { arg, .. } => f(arg),
            Inst::Binary { args, .. }
            | Inst::Float { args, .. }
            | Inst::Compare { args, .. }
            | Inst::FloatCompare { args, .. } => args.iter_mut().for_each(f),
            Inst::Fma { args, .. } | Inst::Permute { args } => args.iter_mut().for_each(f),
            Inst::Select { cond, args, .. } => {
                f(cond);
                args.iter_mut().for_each(f);
            }
            Inst::Load { place, guard, .. } => {
                f(&mut place.addr);
                guard.iter_mut().for_each(f);
            }
            Inst::Store { place, values, guard, .. } => {
                f(&mut place.addr);
                values.iter_mut().for_each(&mut f);
                guard.iter_mut().for_each(f);
            }
            Inst::Atomic { place, arg, compare, guard, .. } => {
                f(&mut place.addr);
                f(arg);
                compare.iter_mut().for_each(&mut f);
                guard.iter_mut().for_each(f);
            }
            Inst::Shuffle { value, lane, clamp, mask, .. } => {
                [value, lane, clamp, mask].into_iter().for_each(f)
            }
            Inst::Vote { predicate, mask, .. } => [predicate, mask].into_iter().for_each(f),
            Inst::Match { value, mask, .. } | Inst::Redux { value, mask, .. } => {
                [value, mask].into_iter().for_each(f);
            }
            Inst::MatrixMultiply { args, mask, .. } => {
                args.iter_mut().for_each(&mut f);
                f(mask);
            }
            Inst::WarpSync { mask } => f(mask),
            Inst::Barrier { id, count, predicate, .. } => {
                f(id);
                count.iter_mut().for_each(&mut f);
                predicate.iter_mut().for_each(f);
            }
            Inst::Nanosleep { nanoseconds } => f(nanoseconds),
            Inst::Sample { object, place: [x, y, z], level, .. } => {
                [object, x, y, z, level].into_iter().for_each(f)
            }
            Inst::CallRuntime { args, .. } => args.iter_mut().for_each(f),
        }
    }
}
