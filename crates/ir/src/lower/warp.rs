//! Instructions that look across lanes, and barriers (PTX ISA, "Parallel Synchronization and
//! Communication Instructions"). The older forms without `.sync` take the lanes that happen to
//! execute them.

use sluice_ptx::ast::{Instruction, Operand};
use sluice_ptx::{Modifier, Type as PtxType};

use super::operand::register_type;
use super::{Lowered, Lowering, choose, malformed, operand, ptx_type, unsupported};
use crate::inst::{
    BarrierKind, Inst, IntCond, MatchKind, ReduxOp, ShuffleMode, SpecialRegister, UnaryOp, VoteKind,
};
use crate::types::{Type, Value};

impl<'m> Lowering<'m> {
    /// `bar`, `barrier`.
    pub(super) fn barrier(&mut self, i: &Instruction) -> Lowered {
        if i.has(Modifier::Warp) {
            let mask = self.read(operand(i, 0)?, Type::I32)?;
            self.build().push(Inst::WarpSync { mask });
            return Ok(());
        }
        if i.modifiers.iter().any(|modifier| matches!(modifier, Modifier::Cluster)) {
            return self.cluster_barrier(i);
        }
        if i.has(Modifier::Red) {
            return self.barrier_reduction(i);
        }
        let kind = if i.has(Modifier::Arrive) { BarrierKind::Arrive } else { BarrierKind::Sync };
        let id = self.read(operand(i, 0)?, Type::I32)?;
        let count = match i.operands.get(1) {
            Some(count) => Some(self.read(count, Type::I32)?),
            None => None,
        };
        self.build().push(Inst::Barrier { kind, id, count, predicate: None });
        Ok(())
    }

    /// `bar.red.op d, id[, count], p`.
    fn barrier_reduction(&mut self, i: &Instruction) -> Lowered {
        let kind = choose(
            i,
            &[
                (Modifier::And, BarrierKind::ReduceAnd),
                (Modifier::Or, BarrierKind::ReduceOr),
                (Modifier::Popc, BarrierKind::ReducePopc),
            ],
        );
        let kind = kind.ok_or_else(|| malformed(i))?;
        let (count, predicate) = match &i.operands[..] {
            [_, _, predicate] => (None, predicate),
            [_, _, count, predicate] => (Some(count), predicate),
            _ => return Err(malformed(i)),
        };
        let id = self.read(operand(i, 1)?, Type::I32)?;
        let count = count.map(|count| self.read(count, Type::I32)).transpose()?;
        let predicate = Some(self.read(predicate, Type::I1)?);
        let result = self.build().value(Inst::Barrier { kind, id, count, predicate });
        self.write(operand(i, 0)?, result)
    }

    /// The member mask at this place, or the active lanes where the instruction is not `.sync`.
    fn member_mask(&mut self, i: &Instruction, place: usize) -> Lowered<Value> {
        if i.has(Modifier::Sync) {
            self.read(operand(i, place)?, Type::I32)
        } else {
            Ok(self.build().value(Inst::ActiveMask))
        }
    }

    /// `shfl.sync.mode.b32 d[|p], a, b, c, membermask`.
    pub(super) fn shfl(&mut self, i: &Instruction) -> Lowered {
        let mode = choose(
            i,
            &[
                (Modifier::Up, ShuffleMode::Up),
                (Modifier::Down, ShuffleMode::Down),
                (Modifier::Bfly, ShuffleMode::Butterfly),
                (Modifier::Idx, ShuffleMode::Index),
            ],
        );
        let mode = mode.ok_or_else(|| malformed(i))?;
        let value = self.read(operand(i, 1)?, Type::I32)?;
        let lane = self.read(operand(i, 2)?, Type::I32)?;
        let clamp = self.read(operand(i, 3)?, Type::I32)?;
        let mask = self.member_mask(i, 4)?;
        let id = self.build().push(Inst::Shuffle { mode, value, lane, clamp, mask });
        let (value, in_range) = (self.kernel.inst(id).result(0), self.kernel.inst(id).result(1));
        self.write_pair(operand(i, 0)?, value, in_range)
    }

    pub(super) fn write_pair(&mut self, operand: &Operand, first: Value, second: Value) -> Lowered {
        match operand {
            Operand::Pair(pair) => {
                self.write(&pair[0], first)?;
                self.write(&pair[1], second)
            }
            one => self.write(one, first),
        }
    }

    /// `vote[.sync].mode d, p[, membermask]`.
    pub(super) fn vote(&mut self, i: &Instruction) -> Lowered {
        let kind = choose(
            i,
            &[
                (Modifier::All, VoteKind::All),
                (Modifier::Any, VoteKind::Any),
                (Modifier::Uni, VoteKind::Uniform),
                (Modifier::Ballot, VoteKind::Ballot),
            ],
        );
        let kind = kind.ok_or_else(|| malformed(i))?;
        let predicate = self.read(operand(i, 1)?, Type::I1)?;
        let mask = self.member_mask(i, 2)?;
        let result = self.build().value(Inst::Vote { kind, predicate, mask });
        self.write(operand(i, 0)?, result)
    }

    /// `match.any.sync.type d, a, membermask` and `match.all.sync.type d[|p], a, membermask`.
    pub(super) fn match_sync(&mut self, i: &Instruction) -> Lowered {
        let ty = register_type(ptx_type(i)?);
        let kind = if i.has(Modifier::All) { MatchKind::All } else { MatchKind::Any };
        let value = self.read(operand(i, 1)?, ty)?;
        let mask = self.member_mask(i, 2)?;
        let id = self.build().push(Inst::Match { kind, ty, value, mask });
        let results: Vec<Value> = self.kernel.inst(id).results().collect();
        self.write_pair(operand(i, 0)?, results[0], *results.last().expect("match has a result"))
    }

    /// `redux.sync.op.type d, a, membermask`.
    pub(super) fn redux(&mut self, i: &Instruction) -> Lowered {
        let ptx = ptx_type(i)?;
        let signed = ptx.is_signed();
        let op = choose(
            i,
            &[
                (Modifier::Add, ReduxOp::Add),
                (Modifier::And, ReduxOp::And),
                (Modifier::Or, ReduxOp::Or),
                (Modifier::Xor, ReduxOp::Xor),
                (Modifier::Min, if signed { ReduxOp::MinS } else { ReduxOp::MinU }),
                (Modifier::Max, if signed { ReduxOp::MaxS } else { ReduxOp::MaxU }),
            ],
        );
        let op = match (op.ok_or_else(|| malformed(i))?, ptx) {
            (op, ptx) if !ptx.is_float() => op,
            (ReduxOp::MinU, PtxType::F32) if i.has(Modifier::PropagateNan) => ReduxOp::FMinNan,
            (ReduxOp::MinU, PtxType::F32) => ReduxOp::FMin,
            (ReduxOp::MaxU, PtxType::F32) if i.has(Modifier::PropagateNan) => ReduxOp::FMaxNan,
            (ReduxOp::MaxU, PtxType::F32) => ReduxOp::FMax,
            _ => return Err(unsupported(i)),
        };
        let ty = register_type(ptx);
        let mut value = self.read(operand(i, 1)?, ty)?;
        if i.has(Modifier::AbsValue) {
            value = self.build().unary(UnaryOp::FAbs, value);
        }
        let mask = self.member_mask(i, 2)?;
        let result = self.build().value(Inst::Redux { op, ty, value, mask });
        self.write(operand(i, 0)?, result)
    }

    pub(super) fn activemask(&mut self, i: &Instruction) -> Lowered {
        let result = self.build().value(Inst::ActiveMask);
        self.write(operand(i, 0)?, result)
    }

    /// `elect.sync d|p, membermask`: the lowest lane of the mask leads.
    pub(super) fn elect(&mut self, i: &Instruction) -> Lowered {
        let mask = self.read(operand(i, 1)?, Type::I32)?;
        let mut build = self.build();
        build.push(Inst::WarpSync { mask });
        let reversed = build.unary(UnaryOp::Brev, mask);
        let leader = build.unary(UnaryOp::Clz, reversed);
        let lane = build.special(SpecialRegister::LaneId);
        let leads = build.compare(IntCond::Eq, lane, leader);
        self.write_pair(operand(i, 0)?, leader, leads)
    }
}
