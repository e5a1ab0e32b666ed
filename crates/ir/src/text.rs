//! The text form of a kernel: what file tests hold and what a person reads.
//!
//! ```text
//! kernel saxpy
//! params 24 0:4:4 8:8:8 16:8:8
//! shared 0 align 16
//! local 0 align 1
//!
//! b0:
//!   v0 = special.tid_x
//!   v1 = const.i32 0x10
//!   v2 = icmp.lt_u.i32 v0, v1
//!   branch v2, b1(v0), b2
//! b1(v3: i32):
//!   v4 = load.global.weak.block.f32.1 v9 + 16 if v2
//!   exit
//! ```
//!
//! Parameters are `offset:bytes:align`. Results stand on the left; the types of block parameters
//! are written, those of results follow from their instructions. Numbers of values are kept,
//! numbers of instructions are not. Source lines are left out. [`parse`] reads what
//! [`std::fmt::Display`] writes.

mod names;
mod parse;

use std::fmt::{self, Display, Formatter};

use crate::{
    ConvertOp, FloatOp, Inst, InstData, Kernel, MatrixForm, MemoryOperand, MemoryOrder, Target, Terminator,
    Value,
};
use names::Named;

pub use parse::{TextError, parse};

impl Display for Kernel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "kernel {}", self.name)?;
        write!(f, "params {}", self.params.bytes)?;
        for slot in &self.params.params {
            write!(f, " {}:{}:{}", slot.offset, slot.bytes, slot.align)?;
        }
        write!(f, "\nshared {} align {}", self.shared.static_bytes, self.shared.align)?;
        if let Some(offset) = self.shared.dynamic_offset {
            write!(f, " dynamic {offset}")?;
        }
        let stack = if self.needs_stack { " stack" } else { "" };
        writeln!(f, "\nlocal {} align {}{stack}", self.local_bytes, self.local_align)?;
        for (word, threads) in [("maxntid", self.max_threads), ("reqntid", self.required_threads)] {
            if let Some([x, y, z]) = threads {
                writeln!(f, "{word} {x} {y} {z}")?;
            }
        }
        for global in &self.globals {
            writeln!(f, "global {global}")?;
        }
        for missing in &self.missing {
            writeln!(f, "missing {missing}")?;
        }
        for id in self.block_ids() {
            let block = self.block(id);
            write!(f, "\n{id}")?;
            let params = block.params.iter().map(|param| format!("{param}: {}", self.ty(*param)));
            write_list(f, params)?;
            writeln!(f, ":")?;
            for inst in &block.insts {
                writeln!(f, "  {}", self.inst(*inst))?;
            }
            writeln!(f, "  {}", block.terminator)?;
        }
        Ok(())
    }
}

/// `(a, b)`, or nothing when there is nothing in it.
fn write_list(f: &mut Formatter<'_>, items: impl Iterator<Item = String>) -> fmt::Result {
    let items: Vec<String> = items.collect();
    if items.is_empty() { Ok(()) } else { write!(f, "({})", items.join(", ")) }
}

impl Display for InstData {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (index, result) in self.results().enumerate() {
            write!(f, "{}{result}", if index == 0 { "" } else { ", " })?;
        }
        write!(f, "{}{}", if self.result_count == 0 { "" } else { " = " }, self.inst)
    }
}

impl Display for Target {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.block)?;
        write_list(f, self.args.iter().map(Value::to_string))
    }
}

impl Display for Terminator {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Terminator::Jump(target) => write!(f, "jump {target}"),
            Terminator::Branch { cond, then, otherwise } => write!(f, "branch {cond}, {then}, {otherwise}"),
            Terminator::Switch { index, targets, default } => {
                write!(f, "switch {index}, {default}")?;
                targets.iter().try_for_each(|target| write!(f, ", {target}"))
            }
            Terminator::Exit => f.write_str("exit"),
            Terminator::Trap => f.write_str("trap"),
        }
    }
}

/// Operands separated by commas.
fn operands(f: &mut Formatter<'_>, args: &[Value]) -> fmt::Result {
    for (index, arg) in args.iter().enumerate() {
        write!(f, "{}{arg}", if index == 0 { " " } else { ", " })?;
    }
    Ok(())
}

fn place(f: &mut Formatter<'_>, place: &MemoryOperand) -> fmt::Result {
    write!(f, " {} {} {}", place.addr, if place.offset < 0 { '-' } else { '+' }, place.offset.unsigned_abs())
}

fn access(f: &mut Formatter<'_>, word: &str, place: &MemoryOperand, order: MemoryOrder) -> fmt::Result {
    write!(f, "{word}.{}.{}.{}", place.space.name(), order.ordering.name(), order.scope.name())
}

fn guarded(f: &mut Formatter<'_>, guard: Option<Value>) -> fmt::Result {
    guard.map_or(Ok(()), |guard| write!(f, " if {guard}"))
}

impl Display for Inst {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Inst::Const { ty, bits } => write!(f, "const.{ty} {bits:#x}"),
            Inst::Unary { op, ty, arg } => write!(f, "{}.{ty} {arg}", op.name()),
            Inst::Binary { op, ty, args } => {
                write!(f, "{}.{ty}", op.name())?;
                operands(f, args)
            }
            Inst::Float { op, rounding, ty, args } => {
                write!(f, "{}.{}.{ty}", FloatOp::name(*op), rounding.name())?;
                operands(f, args)
            }
            Inst::Fma { rounding, ty, args } => {
                write!(f, "fma.{}.{ty}", rounding.name())?;
                operands(f, args)
            }
            Inst::Sqrt { rounding, ty, arg } => write!(f, "sqrt.{}.{ty} {arg}", rounding.name()),
            Inst::Permute { args } => {
                f.write_str("permute")?;
                operands(f, args)
            }
            Inst::Compare { cond, ty, args } => {
                write!(f, "icmp.{}.{ty}", cond.name())?;
                operands(f, args)
            }
            Inst::FloatCompare { cond, ty, args } => {
                write!(f, "fcmp.{}.{ty}", cond.name())?;
                operands(f, args)
            }
            Inst::Select { ty, cond, args: [then, otherwise] } => {
                write!(f, "select.{ty} {cond}, {then}, {otherwise}")
            }
            Inst::Convert { op, from, to, arg } => {
                let (word, rounding) = convert_words(*op);
                f.write_str(word)?;
                if let Some(rounding) = rounding {
                    write!(f, ".{}", rounding.name())?;
                }
                write!(f, ".{from}.{to} {arg}")
            }
            Inst::Special { register } => write!(f, "special.{}", names::register_name(*register)),
            Inst::GlobalAddress { global } => write!(f, "global {global}"),
            Inst::WindowBase { window } => write!(f, "window.{}", window.name()),
            Inst::Load { place: at, ty, count, order, guard } => {
                access(f, "load", at, *order)?;
                write!(f, ".{ty}.{count}")?;
                place(f, at)?;
                guarded(f, *guard)
            }
            Inst::Store { place: at, ty, values, order, guard } => {
                access(f, "store", at, *order)?;
                write!(f, ".{ty}")?;
                place(f, at)?;
                values.iter().try_for_each(|value| write!(f, ", {value}"))?;
                guarded(f, *guard)
            }
            Inst::Atomic { op, place: at, ty, arg, compare, order, guard } => {
                access(f, "atomic", at, *order)?;
                write!(f, ".{}.{ty}", op.name())?;
                place(f, at)?;
                write!(f, ", {arg}")?;
                if let Some(compare) = compare {
                    write!(f, ", {compare}")?;
                }
                guarded(f, *guard)
            }
            Inst::Fence { scope } => write!(f, "fence.{}", scope.name()),
            Inst::Shuffle { mode, value, lane, clamp, mask } => {
                write!(f, "shuffle.{} {value}, {lane}, {clamp}, {mask}", mode.name())
            }
            Inst::Vote { kind, predicate, mask } => write!(f, "vote.{} {predicate}, {mask}", kind.name()),
            Inst::Match { kind, ty, value, mask } => write!(f, "match.{}.{ty} {value}, {mask}", kind.name()),
            Inst::Redux { op, ty, value, mask } => write!(f, "redux.{}.{ty} {value}, {mask}", op.name()),
            Inst::MatrixMultiply { form, args, mask } => {
                let MatrixForm { m, n, k, a, b } = form;
                write!(f, "matrix.{m}.{n}.{k}.{}.{}", a.name(), b.name())?;
                operands(f, args)?;
                write!(f, ", {mask}")
            }
            Inst::WarpSync { mask } => write!(f, "warpsync {mask}"),
            Inst::ActiveMask => f.write_str("activemask"),
            Inst::Barrier { kind, id, count, predicate } => {
                write!(f, "barrier.{} {id}", kind.name())?;
                if let Some(count) = count {
                    write!(f, " count {count}")?;
                }
                predicate.map_or(Ok(()), |predicate| write!(f, " of {predicate}"))
            }
            Inst::ClusterBarrier { waits } => {
                write!(f, "cluster_barrier.{}", if *waits { "wait" } else { "arrive" })
            }
            Inst::Nanosleep { nanoseconds } => write!(f, "nanosleep {nanoseconds}"),
            Inst::Sample { sampling, object, place: [x, y, z], level } => {
                write!(f, "sample.{} {object}, {x}, {y}, {z}, {level}", sampling.to_bits())
            }
            Inst::CallRuntime { function, args } => {
                write!(f, "call.{}", function.name())?;
                operands(f, args)
            }
        }
    }
}

/// The word of a conversion and its rounding, where it has one.
fn convert_words(op: ConvertOp) -> (&'static str, Option<crate::Rounding>) {
    match op {
        ConvertOp::Truncate => ("trunc", None),
        ConvertOp::SignExtend => ("sext", None),
        ConvertOp::ZeroExtend => ("zext", None),
        ConvertOp::Bitcast => ("bitcast", None),
        ConvertOp::HalfToFloat => ("half_to_float", None),
        ConvertOp::BfloatToFloat => ("bfloat_to_float", None),
        ConvertOp::FloatToFloat(rounding) => ("float_to_float", Some(rounding)),
        ConvertOp::FloatToHalf(rounding) => ("float_to_half", Some(rounding)),
        ConvertOp::FloatToBfloat(rounding) => ("float_to_bfloat", Some(rounding)),
        ConvertOp::SignedToFloat(rounding) => ("signed_to_float", Some(rounding)),
        ConvertOp::UnsignedToFloat(rounding) => ("unsigned_to_float", Some(rounding)),
        ConvertOp::FloatToSigned(rounding) => ("float_to_signed", Some(rounding)),
        ConvertOp::FloatToUnsigned(rounding) => ("float_to_unsigned", Some(rounding)),
        ConvertOp::RoundToIntegral(rounding) => ("round", Some(rounding)),
        ConvertOp::FloatToTf32(rounding) => ("float_to_tf32", Some(rounding)),
    }
}
