//! Atomics, and functions of the runtime: lane by lane.

use sluice_ir::{
    AtomicOp, BinaryOp, Inst, InstId, MemoryOperand, Ordering, RuntimeFunction, Scope, Space, Type, Value,
};

use super::emitter::{Emitter, NotCovered};
use super::memory::mark;
use super::writer::{Val, constant, type_name};
use crate::runtime;

/// The parts of an atomic that its lanes have in common.
#[derive(Clone, Copy)]
struct Atomic {
    op: AtomicOp,
    ty: Type,
    space: Space,
}

impl Emitter<'_> {
    pub(super) fn atomic(&mut self, id: InstId) -> Result<(), NotCovered> {
        let kernel = self.kernel;
        let data = kernel.inst(id);
        let Inst::Atomic { op, ref place, ty, arg, compare, order, guard } = data.inst else {
            unreachable!("an atomic")
        };
        let is_strong = !matches!(order.ordering, Ordering::Weak | Ordering::Relaxed | Ordering::Volatile);
        if order.scope == Scope::System && is_strong {
            return Err(NotCovered("an atomic that orders what others than the device see".into()));
        }
        let atomic = Atomic { op, ty, space: place.space };
        let mask = self.access_mask(guard);
        if data.result_count == 0 && self.combined(atomic, place, arg, &mask) {
            return Ok(());
        }
        let at = self.vector_place(place);
        self.check_vector(place, &at, ty.bytes(), &mask);
        let pointers = self.pointers(place.space, &at);
        let lanes = self.lanes;
        let addresses = format!("ptrtoint <{lanes} x ptr> {pointers} to <{lanes} x i64>");
        let addresses = self.w.op(Type::I64, lanes, &addresses);
        let mut args = vec![addresses, self.vector(arg)];
        args.extend(compare.map(|compare| self.vector(compare)));
        let args: Vec<&Val> = args.iter().collect();
        let results: &[Type] = if data.result_count > 0 { &[ty] } else { &[] };
        let mut refused = None;
        let old = self.lane_loop(&mask, &args, results, |emitter, _, args| {
            match emitter.atomic_lane(atomic, &args[0], &args[1], args.get(2)) {
                Ok(old) if !results.is_empty() => vec![old],
                Ok(_) => vec![],
                Err(reason) => {
                    refused = Some(reason);
                    vec![]
                }
            }
        });
        if let Some(reason) = refused {
            return Err(reason);
        }
        if let Some(old) = old.into_iter().next() {
            self.define(data.result(0), old);
        }
        Ok(())
    }

    /// One access for all lanes, where they make it at one place and do not look at what was there.
    /// Says whether that is possible.
    fn combined(&mut self, atomic: Atomic, place: &MemoryOperand, arg: Value, mask: &Val) -> bool {
        use AtomicOp::*;
        let is_same = self.shape(place.addr) == sluice_ir::analysis::Shape::Uniform;
        if !is_same || place.space == Space::Local || !matches!(atomic.ty, Type::I32 | Type::I64) {
            return false;
        }
        let top = 1u64 << (atomic.ty.bits() - 1);
        let (name, neutral) = match atomic.op {
            Add => ("add", 0),
            Or => ("or", 0),
            Xor => ("xor", 0),
            And => ("and", u64::MAX),
            MinS => ("smin", top - 1),
            MaxS => ("smax", top),
            MinU => ("umin", u64::MAX),
            MaxU => ("umax", 0),
            _ => return false,
        };
        let arg = self.vector(arg);
        let at = self.scalar_place(place);
        let [go, end] = ["go", "end"].map(|name| self.w.fresh(name));
        let any = self.any(mask);
        self.w.line(&format!("br i1 {}, label %{go}, label %{end}", any.name));
        self.w.label(&go);
        let neutral = constant(atomic.ty, self.lanes, neutral);
        let arg = self.w.select(mask, &arg, &neutral);
        let function = format!("llvm.vector.reduce.{name}.v{}{}", self.lanes, atomic.ty.name());
        let sum = self.w.call_named(&function, (atomic.ty, 1), &[&arg], &[]);
        self.check_scalar(place, &at, atomic.ty.bytes());
        let pointer = self.pointer(place.space, &at);
        let address = self.w.op(Type::I64, 1, &format!("ptrtoint ptr {pointer} to i64"));
        // It is one of those that every type of an integer has.
        let _ = self.atomic_lane(atomic, &address, &sum, None);
        self.w.line(&format!("br label %{end}"));
        self.w.label(&end);
        true
    }

    /// The old value at an address of the process.
    fn atomic_lane(
        &mut self,
        atomic: Atomic,
        address: &Val,
        arg: &Val,
        compare: Option<&Val>,
    ) -> Result<Val, NotCovered> {
        let Atomic { op, ty, space } = atomic;
        let pointer = self.w.raw(&format!("inttoptr i64 {} to ptr", address.name));
        if space == Space::Shared
            && let Some(old) = self.shared_atomic(atomic, &pointer, arg, compare)?
        {
            return Ok(old);
        }
        let int = ty.as_int();
        let (name, bytes) = (type_name(int, 1), ty.bytes());
        if let Some(compare) = compare {
            let (compare, arg) = (self.w.bits(compare, int), self.w.bits(arg, int));
            let pair = self.w.raw(&format!(
                "cmpxchg ptr {pointer}, {}, {} seq_cst seq_cst, align {bytes}",
                compare.arg(),
                arg.arg()
            ));
            let old = self.w.op(int, 1, &format!("extractvalue {{ {name}, i1 }} {pair}, 0"));
            return Ok(self.w.bits(&old, ty));
        }
        let rmw = match op {
            AtomicOp::Add => "add",
            AtomicOp::And => "and",
            AtomicOp::Or => "or",
            AtomicOp::Xor => "xor",
            AtomicOp::MinS => "min",
            AtomicOp::MaxS => "max",
            AtomicOp::MinU => "umin",
            AtomicOp::MaxU => "umax",
            AtomicOp::Exchange => "xchg",
            _ => {
                let (name, function) = match (op, ty) {
                    (AtomicOp::FAdd, Type::F32) => ("atomic_add_f32", runtime::atomic_add_f32 as *const ()),
                    (AtomicOp::FAdd, Type::F64) => ("atomic_add_f64", runtime::atomic_add_f64 as *const ()),
                    (AtomicOp::Inc, Type::I32) => ("atomic_inc", runtime::atomic_inc as *const ()),
                    (AtomicOp::Dec, Type::I32) => ("atomic_dec", runtime::atomic_dec as *const ()),
                    _ => return Err(NotCovered(format!("atomic {op:?} of {ty}"))),
                };
                let call = self.w.call_runtime((name, function), &[address.arg(), arg.arg()], Some(ty), "");
                return Ok(call.expect("a result"));
            }
        };
        let arg = self.w.bits(arg, int);
        let old = format!("atomicrmw {rmw} ptr {pointer}, {} seq_cst, align {bytes}", arg.arg());
        let old = self.w.op(int, 1, &old);
        Ok(self.w.bits(&old, ty))
    }

    /// A read and a write: one thread runs all blocks that can reach a block's shared memory. None
    /// for what the runtime computes.
    fn shared_atomic(
        &mut self,
        Atomic { op, ty, space }: Atomic,
        pointer: &str,
        arg: &Val,
        compare: Option<&Val>,
    ) -> Result<Option<Val>, NotCovered> {
        let binary = match op {
            AtomicOp::Add => Some(BinaryOp::Add),
            AtomicOp::And => Some(BinaryOp::And),
            AtomicOp::Or => Some(BinaryOp::Or),
            AtomicOp::Xor => Some(BinaryOp::Xor),
            AtomicOp::MinS => Some(BinaryOp::MinS),
            AtomicOp::MaxS => Some(BinaryOp::MaxS),
            AtomicOp::MinU => Some(BinaryOp::MinU),
            AtomicOp::MaxU => Some(BinaryOp::MaxU),
            AtomicOp::Exchange | AtomicOp::FAdd => None,
            _ => return Ok(None),
        };
        let load = format!("load {}, ptr {pointer}, align {}, {}", arg.t(), ty.bytes(), mark(space));
        let old = self.w.op(ty, 1, &load);
        let new = match (binary, compare) {
            (Some(op), _) => self.binary(op, ty, &old, arg)?,
            (None, Some(compare)) => {
                let (bits, compare) = (self.w.bits(&old, ty.as_int()), self.w.bits(compare, ty.as_int()));
                let is_equal = self.w.icmp("eq", &bits, &compare);
                self.w.select(&is_equal, arg, &old)
            }
            (None, None) if op == AtomicOp::FAdd => self.w.binary("fadd", &old, arg),
            (None, None) => arg.clone(),
        };
        self.w.line(&format!("store {}, ptr {pointer}, align {}, {}", new.arg(), ty.bytes(), mark(space)));
        Ok(Some(old))
    }

    pub(super) fn runtime_function(&mut self, id: InstId) -> Result<(), NotCovered> {
        let kernel = self.kernel;
        let data = kernel.inst(id);
        let Inst::CallRuntime { function, ref args } = data.inst else { unreachable!("a call") };
        let (name, address) = match function {
            RuntimeFunction::Vprintf => ("vprintf", runtime::vprintf as *const ()),
            RuntimeFunction::AssertFail => ("assert_fail", runtime::assert_fail as *const ()),
            RuntimeFunction::Malloc => ("malloc", runtime::malloc as *const ()),
            RuntimeFunction::Free => ("free", runtime::free as *const ()),
            RuntimeFunction::Missing => ("missing", runtime::missing as *const ()),
            RuntimeFunction::StackOverflow => ("stack_overflow", runtime::stack_overflow as *const ()),
            _ => return Err(NotCovered(format!("{function:?}"))),
        };
        // Not by the names of C, of which LLVM knows what they do.
        let name = format!("device_{name}");
        let mask = self.mask.clone();
        let args: Vec<Val> = args.iter().map(|&arg| self.vector(arg)).collect();
        let args: Vec<&Val> = args.iter().collect();
        let result = function.result();
        let results: Vec<Type> = result.into_iter().collect();
        let done = self.lane_loop(&mask, &args, &results, |emitter, _, args| {
            let mut all = vec!["ptr %ctx".to_owned()];
            all.extend(args.iter().map(Val::arg));
            emitter.w.call_runtime((&name, address), &all, result, "").into_iter().collect()
        });
        if let (Some(value), 1) = (done.into_iter().next(), data.result_count) {
            self.define(data.result(0), value);
        }
        Ok(())
    }
}
