//! `cvt`, `mov`, `cvta`, `isspacep` (PTX ISA, "Data Movement and Conversion Instructions").

use sluice_ptx::ast::{Instruction, Operand};
use sluice_ptx::{Modifier, Space as PtxSpace, Type as PtxType};

use super::float::rounding;
use super::half::Half;
use super::operand::{int_type, register_type};
use super::{Lowered, Lowering, choose, malformed, operand, ptx_type, unsupported};
use crate::inst::{
    BinaryOp, ConvertOp, FloatCond, Inst, IntCond, Rounding, Space, SpecialRegister, UnaryOp, Window,
};
use crate::types::{Type, Value};

impl<'m> Lowering<'m> {
    pub(super) fn mov(&mut self, i: &Instruction) -> Lowered {
        let ptx = ptx_type(i)?;
        let (to, from) = (operand(i, 0)?, operand(i, 1)?);
        if ptx == PtxType::B128 {
            let halves = self.read_wide(i, from)?;
            return self.write_wide(i, to, halves);
        }
        if i.vector_width() > 1 {
            return self.mov_vector(i, to, from);
        }
        let value = self.read(from, register_type(ptx))?;
        self.write(to, value)
    }

    /// `mov.v4.u16 {a, b, c, d}, v`: element by element. All are read before the first is written.
    fn mov_vector(&mut self, i: &Instruction, to: &Operand, from: &Operand) -> Lowered {
        let (Operand::Vector(to), Operand::Vector(from)) = (to, from) else { return Err(malformed(i)) };
        if to.len() != from.len() || to.len() != i.vector_width() as usize {
            return Err(malformed(i));
        }
        let ty = register_type(ptx_type(i)?);
        let values: Vec<Value> = from.iter().map(|part| self.read(part, ty)).collect::<Lowered<_>>()?;
        to.iter().zip(values).try_for_each(|(part, value)| self.write(part, value))
    }

    /// `cvta`: between a window and the generic address space. Global and constant addresses are
    /// generic already.
    pub(super) fn cvta(&mut self, i: &Instruction) -> Lowered {
        let space = i.space().ok_or_else(|| malformed(i))?;
        let window = match window(space) {
            Some(window) => window,
            None => {
                let address = self.read(operand(i, 1)?, Type::I64)?;
                return self.write(operand(i, 0)?, address);
            }
        };
        let is_cluster = space == PtxSpace::SharedCluster;
        if i.modifiers.contains(&Modifier::To) {
            let generic = self.read(operand(i, 1)?, Type::I64)?;
            if window == Window::Shared && (is_cluster || self.layout.reaches_other_blocks) {
                // Programs convert addresses of other blocks' shared memory by `cvta.to.shared` as
                // well.
                let address = self.cluster_of_generic(generic);
                return self.write(operand(i, 0)?, address);
            }
            let mut build = self.build();
            let base = build.value(Inst::WindowBase { window });
            let offset = build.binary(BinaryOp::Sub, generic, base);
            return self.write(operand(i, 0)?, offset);
        }
        let offset = self.read(operand(i, 1)?, Type::I32)?;
        let generic = if is_cluster { self.generic_of_cluster(offset) } else { self.generic(window, offset) };
        self.write(operand(i, 0)?, generic)
    }

    /// `isspacep`: an address is in a window if its distance from the window's start is below its
    /// size.
    pub(super) fn isspacep(&mut self, i: &Instruction) -> Lowered {
        let space = i.space().ok_or_else(|| malformed(i))?;
        let address = self.read(operand(i, 1)?, Type::I64)?;
        let inside = match window(space) {
            _ if space == PtxSpace::SharedCluster => self.is_in_cluster(address),
            Some(window) => self.is_inside(window, address),
            None => {
                // Global is what is in no window; constant variables are in global memory here.
                let windows = [Window::Shared, Window::Local, Window::Param];
                let mut inside = match self.layout.reaches_other_blocks {
                    true => self.is_in_cluster(address),
                    false => self.build().constant(Type::I1, 0),
                };
                for window in windows {
                    let hit = self.is_inside(window, address);
                    inside = self.or(inside, hit);
                }
                self.build().unary(UnaryOp::Not, inside)
            }
        };
        self.write(operand(i, 0)?, inside)
    }

    fn is_inside(&mut self, window: Window, address: Value) -> Value {
        let param_bytes = self.kernel.params.bytes;
        let mut build = self.build();
        let size = match window {
            Window::Shared => build.special(SpecialRegister::TotalSharedBytes),
            Window::Param => build.i32(param_bytes),
            Window::Local => build.special(SpecialRegister::LocalBytes),
        };
        let mut build = self.build();
        let base = build.value(Inst::WindowBase { window });
        let distance = build.binary(BinaryOp::Sub, address, base);
        let size = build.resize(Type::I64, false, size);
        build.compare(IntCond::LtU, distance, size)
    }

    // ---- cvt
    // ---------------------------------------------------------------------------------------------

    pub(super) fn cvt(&mut self, i: &Instruction) -> Lowered {
        let mut types = i.types();
        if i.has(Modifier::Pack) {
            return self.pack_integers(i);
        }
        let (Some(to), Some(from)) = (types.next(), types.next()) else { return Err(malformed(i)) };
        if super::minifloat::is_narrow(to, from) {
            return self.convert_narrow(i, to, from);
        }
        if i.operands.len() > 2 {
            return self.pack_floats(i, to, from);
        }
        let source = self.read(operand(i, 1)?, register_type(from))?;
        let result = match (Kind::of(to), Kind::of(from)) {
            (Some(Kind::Int), Some(Kind::Int)) => self.int_to_int(i, to, from, source),
            (Some(Kind::Int), Some(kind)) => self.float_to_int(i, to, kind, source),
            (Some(kind), Some(Kind::Int)) => self.int_to_float(i, kind, from, source),
            (Some(to), Some(from)) => self.float_to_float(i, to, from, source)?,
            _ if to == PtxType::Tf32 && from == PtxType::F32 => {
                let rounding = rounding(i).unwrap_or(Rounding::NearAway);
                let value = self.build().convert(ConvertOp::FloatToTf32(rounding), Type::F32, source);
                self.clamp_float(i, value)
            }
            _ => return Err(unsupported(i)),
        };
        self.write_extended(operand(i, 0)?, result, to.is_signed())
    }

    fn int_to_int(&mut self, i: &Instruction, to: PtxType, from: PtxType, source: Value) -> Value {
        let ty = int_type(to);
        if !i.has(Modifier::Sat) {
            return self.build().resize(ty, from.is_signed(), source);
        }
        // Clamped in 64 bits, signed; an unsigned 64-bit source is first cut to what that can hold.
        let mut build = self.build();
        let mut wide = build.resize(Type::I64, from.is_signed(), source);
        if from == PtxType::U64 || from == PtxType::B64 {
            wide = build.binary_imm(BinaryOp::MinU, wide, i64::MAX as u64);
        }
        let (low, high): (i64, i64) = match (to.is_signed(), to.bits()) {
            (true, 64) => (i64::MIN, i64::MAX),
            (true, bits) => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
            (false, 64) => (0, i64::MAX),
            (false, bits) => (0, (1 << bits) - 1),
        };
        if to.bits() == 64 && !to.is_signed() && !from.is_signed() {
            return source;
        }
        let clamped = build.binary_imm(BinaryOp::MaxS, wide, low as u64);
        let clamped = build.binary_imm(BinaryOp::MinS, clamped, high as u64);
        build.resize(ty, false, clamped)
    }

    fn float_to_int(&mut self, i: &Instruction, to: PtxType, kind: Kind, source: Value) -> Value {
        let rounding = integral_rounding(i).unwrap_or(Rounding::Zero);
        let source = self.widen(i, kind, source);
        let op = match to.is_signed() {
            true => ConvertOp::FloatToSigned(rounding),
            false => ConvertOp::FloatToUnsigned(rounding),
        };
        self.build().convert(op, int_type(to), source)
    }

    fn int_to_float(&mut self, i: &Instruction, kind: Kind, from: PtxType, source: Value) -> Value {
        let rounding = rounding(i).unwrap_or(Rounding::Near);
        let convert = |rounding| match from.is_signed() {
            true => ConvertOp::SignedToFloat(rounding),
            false => ConvertOp::UnsignedToFloat(rounding),
        };
        match kind {
            Kind::Half(half) => {
                // Through F64, which holds every integer that a half can tell from its neighbours:
                // with 53 digits cut off and the last one set if any was lost, so that ties at the
                // 8 or 11 digits are still decided.
                let mut build = self.build();
                let cut = build.convert(convert(Rounding::Zero), Type::F64, source);
                let wide = match from.bits() {
                    64 => {
                        let up = build.convert(convert(Rounding::Up), Type::F64, source);
                        let down = build.convert(convert(Rounding::Down), Type::F64, source);
                        let lost = build.float_compare(FloatCond::Ne, up, down);
                        let lost = build.convert(ConvertOp::ZeroExtend, Type::I64, lost);
                        let bits = build.bitcast(Type::I64, cut);
                        let odd = build.binary(BinaryOp::Or, bits, lost);
                        build.bitcast(Type::F64, odd)
                    }
                    _ => cut,
                };
                build.convert(half.narrow(rounding), Type::I16, wide)
            }
            _ => {
                let value = self.build().convert(convert(rounding), kind.wide(), source);
                self.clamp_float(i, value)
            }
        }
    }

    fn float_to_float(&mut self, i: &Instruction, to: Kind, from: Kind, source: Value) -> Lowered<Value> {
        let direction = rounding(i).unwrap_or(Rounding::Near);
        let mut value = self.widen(i, from, source);
        if let Some(rounding) = integral_rounding(i) {
            let ty = self.kernel.ty(value);
            value = self.build().convert(ConvertOp::RoundToIntegral(rounding), ty, value);
        }
        if let Kind::Half(half) = to {
            let value = self.clamp_float(i, value);
            return Ok(self.narrow(i, half, direction, value));
        }
        if self.kernel.ty(value) != to.wide() {
            value = self.build().convert(ConvertOp::FloatToFloat(direction), to.wide(), value);
        }
        if i.has(Modifier::Ftz) && to == Kind::F32 {
            value = self.build().unary(UnaryOp::FlushSubnormal, value);
        }
        Ok(self.clamp_float(i, value))
    }

    /// A float as F32 or F64.
    fn widen(&mut self, i: &Instruction, kind: Kind, source: Value) -> Value {
        match kind {
            Kind::Half(half) => self.build().convert(half.widen(), Type::F32, source),
            Kind::F32 if i.has(Modifier::Ftz) => self.build().unary(UnaryOp::FlushSubnormal, source),
            _ => source,
        }
    }

    fn narrow(&mut self, i: &Instruction, half: Half, rounding: Rounding, value: Value) -> Value {
        let result = self.build().convert(half.narrow(rounding), Type::I16, value);
        if !i.has(Modifier::Satfinite) {
            return result;
        }
        // Infinity becomes the largest finite number of its sign; NaN stays.
        let (infinity, largest) = match half {
            Half::Ieee => (0x7c00, 0x7bff),
            Half::Bfloat => (0x7f80, 0x7f7f),
        };
        let mut build = self.build();
        let magnitude = build.binary_imm(BinaryOp::And, result, 0x7fff);
        let infinity = build.constant(Type::I16, infinity);
        let is_infinite = build.compare(IntCond::Eq, magnitude, infinity);
        let sign = build.binary_imm(BinaryOp::And, result, 0x8000);
        let largest = build.binary_imm(BinaryOp::Or, sign, largest);
        build.select(is_infinite, largest, result)
    }

    /// `.sat` and `.relu`.
    pub(super) fn clamp_float(&mut self, i: &Instruction, value: Value) -> Value {
        let ty = self.kernel.ty(value);
        let mut build = self.build();
        let number =
            |value: f64| if ty == Type::F32 { u64::from((value as f32).to_bits()) } else { value.to_bits() };
        let mut value = value;
        if i.has(Modifier::Sat) {
            value = build.binary_imm(BinaryOp::FMax, value, number(0.0));
            value = build.binary_imm(BinaryOp::FMin, value, number(1.0));
        }
        if i.has(Modifier::Relu) {
            value = build.binary_imm(BinaryOp::FMaxNan, value, number(0.0));
        }
        value
    }

    /// `cvt.rn.f16x2.f32 d, a, b`: a to the high half, b to the low one.
    fn pack_floats(&mut self, i: &Instruction, to: PtxType, from: PtxType) -> Lowered {
        let half = match to {
            PtxType::F16x2 => Half::Ieee,
            PtxType::Bf16x2 => Half::Bfloat,
            _ => return Err(unsupported(i)),
        };
        if from != PtxType::F32 || i.operands.len() != 3 {
            return Err(unsupported(i));
        }
        let direction = rounding(i).unwrap_or(Rounding::Near);
        let mut halves = [Value(0); 2];
        for (slot, place) in halves.iter_mut().zip([2, 1]) {
            let value = self.read(operand(i, place)?, Type::F32)?;
            let value = self.clamp_float(i, value);
            *slot = self.narrow(i, half, direction, value);
        }
        let result = self.join_halves(halves);
        self.write(operand(i, 0)?, result)
    }
}

/// What a type is to `cvt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Int,
    F32,
    F64,
    Half(Half),
}

impl Kind {
    fn of(ty: PtxType) -> Option<Kind> {
        match ty {
            PtxType::F32 => Some(Kind::F32),
            PtxType::F64 => Some(Kind::F64),
            PtxType::F16 => Some(Kind::Half(Half::Ieee)),
            PtxType::Bf16 => Some(Kind::Half(Half::Bfloat)),
            ty if ty.is_float() || !matches!(ty.bits(), 8 | 16 | 32 | 64) => None,
            _ => Some(Kind::Int),
        }
    }

    /// The type in which values of this kind are computed.
    fn wide(self) -> Type {
        if self == Kind::F64 { Type::F64 } else { Type::F32 }
    }
}

fn integral_rounding(i: &Instruction) -> Option<Rounding> {
    choose(
        i,
        &[
            (Modifier::Rni, Rounding::Near),
            (Modifier::Rzi, Rounding::Zero),
            (Modifier::Rmi, Rounding::Down),
            (Modifier::Rpi, Rounding::Up),
        ],
    )
}

/// The window that a PTX space is, if it is one.
fn window(space: PtxSpace) -> Option<Window> {
    match super::memory::space(Some(space)) {
        Space::Shared => Some(Window::Shared),
        Space::Local => Some(Window::Local),
        Space::Param => Some(Window::Param),
        _ => None,
    }
}
