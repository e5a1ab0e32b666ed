//! Loads, stores, atomics, fences, asynchronous copies (PTX ISA, "Data Movement", "Parallel
//! Synchronization and Communication Instructions").

use sluice_ptx::ast::{Instruction, Operand};
use sluice_ptx::{Modifier, Opcode, Space as PtxSpace, Type as PtxType};

use super::cluster::address;
use super::operand::register_type;
use super::{Lowered, Lowering, choose, malformed, operand, ptx_type, unsupported};
use crate::inst::{
    AtomicOp, BinaryOp, Inst, IntCond, MemoryOperand, MemoryOrder, Ordering, Scope, Space, UnaryOp,
};
use crate::types::{Type, Value};

impl<'m> Lowering<'m> {
    pub(super) fn ld(&mut self, i: &Instruction) -> Lowered {
        let ptx = ptx_type(i)?;
        let place = self.place_in(address(i, 1)?, i.space())?;
        let mut order = memory_order(i, Ordering::Weak);
        if i.has(Modifier::Nc) || matches!(place.space, Space::Param | Space::Const) {
            order = MemoryOrder::INVARIANT;
        }
        let results = parts(i, operand(i, 0)?)?;
        if ptx == PtxType::B128 {
            for (index, result) in results.iter().enumerate() {
                let place = MemoryOperand { offset: place.offset.wrapping_add(16 * index as i32), ..place };
                let halves = self.load(place, Type::I64, 2, order);
                self.write_wide(i, result, [halves[0], halves[1]])?;
            }
            return Ok(());
        }
        let values = self.load(place, register_type(ptx), results.len() as u8, order);
        for (result, value) in results.iter().zip(values) {
            self.write_extended(result, value, ptx.is_signed())?;
        }
        Ok(())
    }

    fn load(&mut self, place: MemoryOperand, ty: Type, count: u8, order: MemoryOrder) -> Vec<Value> {
        let guard = self.guard;
        let id = self.build().push(Inst::Load { place, ty, count, order, guard });
        self.kernel.inst(id).results().collect()
    }

    pub(super) fn st(&mut self, i: &Instruction) -> Lowered {
        let ptx = ptx_type(i)?;
        let place = self.place_in(address(i, 0)?, i.space())?;
        let order = memory_order(i, Ordering::Weak);
        let sources = parts(i, operand(i, 1)?)?;
        let mut values = Vec::with_capacity(sources.len());
        let ty = if ptx == PtxType::B128 { Type::I64 } else { register_type(ptx) };
        for source in sources {
            match ptx {
                PtxType::B128 => values.extend(self.read_wide(i, source)?),
                _ => values.push(self.read(source, ty)?),
            }
        }
        let guard = self.guard;
        let bytes = ty.bytes() * values.len() as u32;
        self.build().push(Inst::Store { place, ty, values: values.into(), order, guard });
        self.complete_async(i, 2, bytes)
    }

    /// `atom` and `red`.
    pub(super) fn atomic(&mut self, i: &Instruction) -> Lowered {
        let ptx = ptx_type(i)?;
        let has_result = i.opcode == Opcode::Atom;
        let first = usize::from(has_result);
        let place = self.place_in(address(i, first)?, i.space())?;
        let order = memory_order(i, Ordering::Relaxed);
        if ptx == PtxType::B128 {
            return Err(unsupported(i));
        }
        let op = atomic_op(i, ptx)?;
        let ty = register_type(ptx);
        let results = if has_result { parts(i, operand(i, 0)?)? } else { &[] };
        let args = parts(i, operand(i, first + 1)?)?;
        if has_result && results.len() != args.len() && !matches!(results, [Operand::Sink]) {
            return Err(malformed(i));
        }
        for (index, arg) in args.iter().enumerate() {
            let place = MemoryOperand {
                offset: place.offset.wrapping_add(ty.bytes() as i32 * index as i32),
                ..place
            };
            let mut arg = self.read(arg, ty)?;
            let mut compare = None;
            if i.has(Modifier::Cas) {
                compare = Some(arg);
                arg = self.read(operand(i, first + 2)?, ty)?;
            }
            let guard = self.guard;
            let block = self.here();
            let line = self.line;
            let inst = Inst::Atomic { op, place, ty, arg, compare, order, guard };
            match results.get(index) {
                None | Some(Operand::Sink) => {
                    self.kernel.push_without_result(block, inst, line);
                }
                Some(result) => {
                    let old = self.build().value(inst);
                    self.write_extended(result, old, ptx.is_signed())?;
                }
            }
        }
        self.complete_async(i, first + 2, ty.bytes() * args.len() as u32)
    }

    /// `membar`, `fence`.
    pub(super) fn fence(&mut self, i: &Instruction) -> Lowered {
        // Those without a scope order proxies, which are one and the same here, and nothing for the
        // host.
        let scope = scope(i).unwrap_or(Scope::Device);
        self.build().push(Inst::Fence { scope });
        Ok(())
    }

    /// `cp.async` copies when it is issued; waiting for it is then nothing.
    pub(super) fn cp(&mut self, i: &'m Instruction) -> Lowered {
        let is_async = i.has(Modifier::Async);
        if is_async && i.has(Modifier::Bulk) {
            return self.copy_bulk(i);
        }
        if is_async && i.has(Modifier::Mbarrier) {
            return self.arrive_behind_copies(i);
        }
        let waits = [Modifier::CommitGroup, Modifier::WaitGroup, Modifier::WaitAll];
        if is_async && waits.into_iter().any(|modifier| i.has(modifier)) {
            return Ok(());
        }
        if !is_async || i.space().is_none() {
            return Err(unsupported(i));
        }
        let to = self.place(address(i, 0)?, Some(Space::Shared))?;
        let from = self.place(address(i, 1)?, Some(Space::Global))?;
        let Operand::Integer(bytes @ (4 | 8 | 16)) = operand(i, 2)? else { return Err(malformed(i)) };
        let count = *bytes as u8 / 4;
        let hint = usize::from(i.has(Modifier::L2CacheHint));
        let values = match i.operands.get(3).filter(|_| i.operands.len() > 3 + hint) {
            None => self.load(from, Type::I32, count, MemoryOrder::WEAK),
            Some(source) => self.copy_partially(i, from, count, source)?,
        };
        let guard = self.guard;
        let order = MemoryOrder::WEAK;
        self.build().push(Inst::Store { place: to, ty: Type::I32, values: values.into(), order, guard });
        Ok(())
    }

    /// The first `source` bytes of a copy and zeros behind them (or nothing at all where `source`
    /// is a predicate that says to ignore the source).
    fn copy_partially(
        &mut self,
        i: &Instruction,
        from: MemoryOperand,
        count: u8,
        source: &Operand,
    ) -> Lowered<Vec<Value>> {
        let wanted = match source {
            Operand::Register(register) => {
                let value = self.register(*register);
                if self.kernel.ty(value) == Type::I1 {
                    let mut build = self.build();
                    let (none, all) = (build.i32(0), build.i32(u32::from(count) * 4));
                    build.select(value, none, all)
                } else {
                    self.read(source, Type::I32)?
                }
            }
            Operand::Integer(_) => self.read(source, Type::I32)?,
            _ => return Err(malformed(i)),
        };
        let outer = self.guard;
        let mut values = Vec::new();
        for index in 0..u32::from(count) {
            let mut build = self.build();
            let start = build.i32(index * 4);
            let is_wanted = build.compare(IntCond::GtU, wanted, start);
            let guard = match outer {
                Some(outer) => build.binary(BinaryOp::And, outer, is_wanted),
                None => is_wanted,
            };
            self.guard = Some(guard);
            let place = MemoryOperand { offset: from.offset.wrapping_add(4 * index as i32), ..from };
            let value = self.load(place, Type::I32, 1, MemoryOrder::WEAK)[0];
            self.guard = outer;
            // The last word may be wanted in part.
            let mut build = self.build();
            let left = build.binary(BinaryOp::Sub, wanted, start);
            let bits = build.binary_imm(BinaryOp::Shl, left, 3);
            let ones = build.i32(u32::MAX);
            let unwanted = build.binary(BinaryOp::Shl, ones, bits);
            let mask = build.unary(UnaryOp::Not, unwanted);
            values.push(build.binary(BinaryOp::And, value, mask));
        }
        Ok(values)
    }
}

/// The elements of a vector operand, or the one operand.
fn parts<'i>(i: &Instruction, operand: &'i Operand) -> Lowered<&'i [Operand]> {
    match operand {
        Operand::Vector(parts) if matches!(parts.len(), 1 | 2 | 4 | 8) => Ok(parts),
        Operand::Vector(_) => Err(malformed(i)),
        one => Ok(std::slice::from_ref(one)),
    }
}

/// The space that an instruction names; generic addressing where it names none.
pub(super) fn named_space(i: &Instruction) -> Option<Space> {
    i.space().map(|named| space(Some(named)))
}

pub(super) fn space(space: Option<PtxSpace>) -> Space {
    match space {
        Some(PtxSpace::Global) => Space::Global,
        Some(PtxSpace::Shared | PtxSpace::SharedCta | PtxSpace::SharedCluster) => Space::Shared,
        Some(PtxSpace::Local) => Space::Local,
        Some(PtxSpace::Param | PtxSpace::ParamEntry | PtxSpace::ParamFunc) => Space::Param,
        Some(PtxSpace::Const) => Space::Const,
        _ => Space::Generic,
    }
}

/// The ordering that the modifiers ask for, or `default`.
fn memory_order(i: &Instruction, default: Ordering) -> MemoryOrder {
    let ordering = choose(
        i,
        &[
            (Modifier::Weak, Ordering::Weak),
            (Modifier::Volatile, Ordering::Volatile),
            (Modifier::Mmio, Ordering::Volatile),
            (Modifier::Relaxed, Ordering::Relaxed),
            (Modifier::Acquire, Ordering::Acquire),
            (Modifier::Release, Ordering::Release),
            (Modifier::AcqRel, Ordering::AcquireRelease),
        ],
    );
    let ordering = ordering.unwrap_or(default);
    let scope = scope(i).unwrap_or(match ordering {
        Ordering::Volatile => Scope::System,
        Ordering::Weak => Scope::Block,
        _ => Scope::Device,
    });
    MemoryOrder { ordering, scope }
}

fn scope(i: &Instruction) -> Option<Scope> {
    choose(
        i,
        &[
            (Modifier::Cta, Scope::Block),
            (Modifier::Cluster, Scope::Cluster),
            (Modifier::Gpu, Scope::Device),
            (Modifier::Gl, Scope::Device),
            (Modifier::Sys, Scope::System),
        ],
    )
}

pub(super) fn atomic_op(i: &Instruction, ptx: PtxType) -> Lowered<AtomicOp> {
    let signed = ptx.is_signed();
    let op = choose(
        i,
        &[
            (Modifier::Add, AtomicOp::Add),
            (Modifier::And, AtomicOp::And),
            (Modifier::Or, AtomicOp::Or),
            (Modifier::Xor, AtomicOp::Xor),
            (Modifier::Inc, AtomicOp::Inc),
            (Modifier::Dec, AtomicOp::Dec),
            (Modifier::Min, if signed { AtomicOp::MinS } else { AtomicOp::MinU }),
            (Modifier::Max, if signed { AtomicOp::MaxS } else { AtomicOp::MaxU }),
            (Modifier::Exch, AtomicOp::Exchange),
            (Modifier::Cas, AtomicOp::Exchange),
        ],
    );
    match (op.ok_or_else(|| malformed(i))?, ptx) {
        (AtomicOp::Add, PtxType::F32 | PtxType::F64) => Ok(AtomicOp::FAdd),
        (AtomicOp::Add, PtxType::F16 | PtxType::F16x2) => Ok(AtomicOp::HalfAdd),
        (AtomicOp::Add, PtxType::Bf16 | PtxType::Bf16x2) => Ok(AtomicOp::BfloatAdd),
        (AtomicOp::Exchange, _) => Ok(AtomicOp::Exchange),
        (_, ptx) if ptx.is_float() => Err(unsupported(i)),
        (op, _) => Ok(op),
    }
}
