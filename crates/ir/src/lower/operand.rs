//! Reading and writing operands.

use sluice_ptx::ast::{Address, AddressBase, Instruction, Operand, RegisterId, Symbol};
use sluice_ptx::{SpecialRegister as Ptx, Type as PtxType};

use super::call::function_address;
use super::layout::{Home, resolve_function};
use super::{LowerErrorKind, Lowered, Lowering, malformed};
use crate::inst::{
    BinaryOp, ConvertOp, Inst, IntCond, MemoryOperand, Space, SpecialRegister, UnaryOp, Window,
};
use crate::ssa::Variable;
use crate::types::{GlobalId, Type, Value};

/// The type of the variable that stands for a register of this PTX type (for half of it, if it has
/// 128 bits).
pub(super) fn register_type(ty: PtxType) -> Type {
    match ty {
        PtxType::F32 => Type::F32,
        PtxType::F64 => Type::F64,
        _ => int_type(ty),
    }
}

/// The integer type with the width of a PTX type. 4-bit types and the like, which no register has,
/// count as 8 bits.
pub(super) fn int_type(ty: PtxType) -> Type {
    match ty.bits() {
        1 => Type::I1,
        ..=8 => Type::I8,
        16 => Type::I16,
        32 => Type::I32,
        _ => Type::I64,
    }
}

impl<'m> Lowering<'m> {
    fn variable(&self, register: RegisterId) -> Variable {
        self.frame.registers[register.0 as usize]
    }

    /// A register's value, in the register's type.
    pub(super) fn register(&mut self, register: RegisterId) -> Value {
        let variable = self.variable(register);
        self.variables.read(&mut self.kernel, variable)
    }

    /// The two halves of a 128-bit register, or of a pair in braces.
    pub(super) fn read_wide(&mut self, i: &Instruction, operand: &Operand) -> Lowered<[Value; 2]> {
        match operand {
            Operand::Register(register) if self.is_wide(*register) => {
                let low = self.variable(*register);
                let high = Variable(low.0 + 1);
                Ok([low, high].map(|half| self.variables.read(&mut self.kernel, half)))
            }
            Operand::Vector(parts) if parts.len() == 2 => {
                Ok([self.read(&parts[0], Type::I64)?, self.read(&parts[1], Type::I64)?])
            }
            _ => Err(malformed(i)),
        }
    }

    pub(super) fn write_wide(&mut self, i: &Instruction, operand: &Operand, halves: [Value; 2]) -> Lowered {
        match operand {
            Operand::Register(register) if self.is_wide(*register) => {
                let low = self.variable(*register);
                self.assign(low, halves[0]);
                self.assign(Variable(low.0 + 1), halves[1]);
                Ok(())
            }
            Operand::Vector(parts) if parts.len() == 2 => {
                self.write(&parts[0], halves[0])?;
                self.write(&parts[1], halves[1])
            }
            Operand::Sink => Ok(()),
            _ => Err(malformed(i)),
        }
    }

    pub(super) fn is_wide(&self, register: RegisterId) -> bool {
        self.frame.body.registers[register.0 as usize].ty == PtxType::B128
    }

    /// An operand's value as type `ty`: reinterpreted where the widths agree, its low bits or
    /// zero-extended where not.
    pub(super) fn read(&mut self, operand: &Operand, ty: Type) -> Lowered<Value> {
        Ok(match operand {
            Operand::Register(register) => {
                let value = self.register(*register);
                self.coerce(value, ty, false)
            }
            Operand::NegatedRegister(register) => {
                let value = self.register(*register);
                let value = self.build().unary(UnaryOp::Not, value);
                self.coerce(value, ty, false)
            }
            Operand::Sum { register, offset } => {
                let value = self.register(*register);
                let value = self.coerce(value, ty.as_int(), false);
                let sum = self.build().binary_imm(BinaryOp::Add, value, *offset as u64);
                self.coerce(sum, ty, false)
            }
            Operand::Special(register) => {
                let value = self.special(*register);
                self.coerce(value, ty, false)
            }
            Operand::Integer(value) => {
                let bits = match ty {
                    Type::F32 => u64::from((*value as f32).to_bits()),
                    Type::F64 => (*value as f64).to_bits(),
                    Type::I1 => u64::from(*value != 0),
                    _ => *value as u64,
                };
                self.build().constant(ty, bits)
            }
            Operand::F32(bits) => {
                let bits = match ty {
                    Type::F64 => f64::from(f32::from_bits(*bits)).to_bits(),
                    _ => u64::from(*bits),
                };
                self.build().constant(ty, bits)
            }
            Operand::F64(bits) => {
                let bits = match ty {
                    Type::F32 | Type::I32 => u64::from((f64::from_bits(*bits) as f32).to_bits()),
                    _ => *bits,
                };
                self.build().constant(ty, bits)
            }
            Operand::Symbol { symbol, offset } => {
                let (_, value) = self.symbol_address(symbol, *offset)?;
                self.coerce(value, ty, false)
            }
            Operand::Vector(parts) => self.pack(parts, ty)?,
            Operand::Sink
            | Operand::Address(_)
            | Operand::Pair(_)
            | Operand::Bracketed(_)
            | Operand::Part(..)
            | Operand::Label(_)
            | Operand::BranchTargets(_) => return Err(LowerErrorKind::Malformed("an instruction".into())),
        })
    }

    /// The operands of a vector as one value, the first in the lowest bits.
    pub(super) fn pack(&mut self, parts: &[Operand], ty: Type) -> Lowered<Value> {
        let wide = ty.as_int();
        let part_bits = wide.bits() / parts.len().max(1) as u32;
        let part_type = Type::int_of_bits(part_bits)
            .filter(|_| part_bits >= 8)
            .ok_or_else(|| LowerErrorKind::Malformed("a vector operand".into()))?;
        let mut whole = None;
        for (index, part) in parts.iter().enumerate() {
            let value = self.read(part, part_type)?;
            let mut build = self.build();
            let value = build.resize(wide, false, value);
            let value = match index {
                0 => value,
                _ => build.binary_imm(BinaryOp::Shl, value, u64::from(part_bits) * index as u64),
            };
            whole = Some(match whole {
                None => value,
                Some(whole) => build.binary(BinaryOp::Or, whole, value),
            });
        }
        let whole = whole.ok_or_else(|| LowerErrorKind::Malformed("an empty vector operand".into()))?;
        Ok(self.build().bitcast(ty, whole))
    }

    /// A value as another type: the same bits, widened by sign or with zeros, or cut.
    pub(super) fn coerce(&mut self, value: Value, ty: Type, signed: bool) -> Value {
        let from = self.kernel.ty(value);
        let mut build = self.build();
        if from == ty {
            return value;
        }
        if from.bits() == ty.bits() {
            return build.bitcast(ty, value);
        }
        let int = build.bitcast(from.as_int(), value);
        if ty == Type::I1 {
            let zero = build.constant(from.as_int(), 0);
            return build.compare(IntCond::Ne, int, zero);
        }
        let int = build.resize(ty.as_int(), signed, int);
        build.bitcast(ty, int)
    }

    /// Assigns a destination operand; a narrower value is widened with zeros.
    pub(super) fn write(&mut self, operand: &Operand, value: Value) -> Lowered {
        self.write_extended(operand, value, false)
    }

    /// Assigns a destination operand; a narrower value is widened as `signed` says.
    pub(super) fn write_extended(&mut self, operand: &Operand, value: Value, signed: bool) -> Lowered {
        match operand {
            Operand::Register(register) => {
                let variable = self.variable(*register);
                let ty = self.variables.ty(variable);
                let value = self.coerce(value, ty, signed);
                self.assign(variable, value);
                Ok(())
            }
            Operand::Sink => Ok(()),
            Operand::Vector(parts) => self.unpack(parts, value),
            _ => Err(LowerErrorKind::Malformed("an instruction's destination".into())),
        }
    }

    pub(super) fn unpack(&mut self, parts: &[Operand], value: Value) -> Lowered {
        let wide = self.kernel.ty(value).as_int();
        let part_bits = wide.bits() / parts.len().max(1) as u32;
        let part_type = Type::int_of_bits(part_bits)
            .filter(|_| part_bits >= 8)
            .ok_or_else(|| LowerErrorKind::Malformed("a vector operand".into()))?;
        let value = self.build().bitcast(wide, value);
        for (index, part) in parts.iter().enumerate() {
            let mut build = self.build();
            let shifted = match index {
                0 => value,
                _ => build.binary_imm(BinaryOp::ShrU, value, u64::from(part_bits) * index as u64),
            };
            let piece = build.resize(part_type, false, shifted);
            self.write(part, piece)?;
        }
        Ok(())
    }

    /// Assigns a variable where the current guard holds.
    pub(super) fn assign(&mut self, variable: Variable, value: Value) {
        let value = match self.guard {
            None => value,
            Some(guard) => {
                let old = self.variables.read(&mut self.kernel, variable);
                self.build().select(guard, value, old)
            }
        };
        self.variables.write(variable, value);
    }

    // ---- Addresses
    // ----------------------------------------------------------------------------------------

    /// A symbol's address with the space that it counts in.
    pub(super) fn symbol_address(&mut self, symbol: &Symbol, offset: i64) -> Lowered<(Space, Value)> {
        let home = self.home(symbol)?;
        self.home_address(home, offset)
    }

    /// The address of what lives at `home`, with its space.
    pub(super) fn home_address(&mut self, home: Home, offset: i64) -> Lowered<(Space, Value)> {
        let window = |base: u32| u64::from(base.wrapping_add(offset as u32));
        Ok(match home {
            Home::Shared(base) => (Space::Shared, self.build().constant(Type::I32, window(base))),
            Home::Local(base) => (Space::Local, self.build().constant(Type::I32, window(base))),
            Home::Stack(base) => {
                let sp = self.stack_pointer();
                (Space::Local, self.build().binary_imm(BinaryOp::Add, sp, window(base)))
            }
            Home::Param(base) => (Space::Param, self.build().constant(Type::I32, window(base))),
            Home::Global(global) => {
                let mut build = self.build();
                let base = build.global_address(global);
                let address = match offset {
                    0 => base,
                    _ => build.binary_imm(BinaryOp::Add, base, offset as u64),
                };
                (Space::Global, address)
            }
            Home::Function(address) => (Space::Global, self.build().i64(address.wrapping_add(offset as u64))),
            Home::Register(_) => return Err(LowerErrorKind::Malformed("the address of a register".into())),
        })
    }

    fn home(&mut self, symbol: &Symbol) -> Lowered<Home> {
        match symbol {
            Symbol::Param(index) => Ok(self.frame.params[*index as usize]),
            Symbol::Return(index) => Ok(self.frame.returns[*index as usize]),
            Symbol::Variable(id) => Ok(self.frame.variables[id.0 as usize]),
            Symbol::Module(name) => self.module_home(name),
        }
    }

    fn module_home(&mut self, name: &str) -> Lowered<Home> {
        if let Some(home) = self.layout.shared_home(name) {
            return Ok(home);
        }
        match self.module.variable(name) {
            Some(variable) => Ok(Home::Global(self.global(&variable.name))),
            None if resolve_function(self.module, name).is_some() => {
                Ok(Home::Function(function_address(name)))
            }
            None => Err(LowerErrorKind::Unresolved(name.to_owned())),
        }
    }

    /// The id of a module variable.
    pub(super) fn global(&mut self, name: &'m str) -> GlobalId {
        let globals = &mut self.kernel.globals;
        *self.globals.entry(name).or_insert_with(|| {
            globals.push(name.to_owned());
            GlobalId::new(globals.len() - 1)
        })
    }

    /// Where an address operand points when the instruction names `space` (None: generic).
    pub(super) fn place(&mut self, address: &Address, space: Option<Space>) -> Lowered<MemoryOperand> {
        match &address.base {
            AddressBase::Symbol(symbol) => {
                let (home, addr) = self.symbol_address(symbol, address.offset)?;
                // The symbol knows its space better than the instruction: parameters of functions
                // live in local memory.
                Ok(MemoryOperand {
                    space: if home == Space::Global { space.unwrap_or(home) } else { home },
                    addr,
                    offset: 0,
                })
            }
            AddressBase::Register(register) => {
                let space = space.unwrap_or(Space::Generic);
                let base = self.register(*register);
                let addr = self.coerce(base, space.address_type(), false);
                Ok(self.with_offset(space, addr, address.offset))
            }
            AddressBase::Absolute => {
                let space = space.unwrap_or(Space::Generic);
                let addr = self.build().constant(space.address_type(), address.offset as u64);
                Ok(MemoryOperand { space, addr, offset: 0 })
            }
        }
    }

    fn with_offset(&mut self, space: Space, addr: Value, offset: i64) -> MemoryOperand {
        match i32::try_from(offset) {
            Ok(offset) => MemoryOperand { space, addr, offset },
            Err(_) => {
                let addr = self.build().binary_imm(BinaryOp::Add, addr, offset as u64);
                MemoryOperand { space, addr, offset: 0 }
            }
        }
    }

    /// An address of a window as a generic address.
    pub(super) fn generic(&mut self, window: Window, offset: Value) -> Value {
        let mut build = self.build();
        let base = build.value(Inst::WindowBase { window });
        let offset = build.convert(ConvertOp::ZeroExtend, Type::I64, offset);
        build.binary(BinaryOp::Add, base, offset)
    }

    // ---- Special registers
    // --------------------------------------------------------------------------------

    fn special(&mut self, register: Ptx) -> Value {
        use SpecialRegister as S;
        if let Some(value) = self.cluster_register(register) {
            return value;
        }
        let mut build = self.build();
        let direct = match register {
            Ptx::TidX => S::TidX,
            Ptx::TidY => S::TidY,
            Ptx::TidZ => S::TidZ,
            Ptx::NtidX => S::NtidX,
            Ptx::NtidY => S::NtidY,
            Ptx::NtidZ => S::NtidZ,
            Ptx::CtaidX => S::CtaidX,
            Ptx::CtaidY => S::CtaidY,
            Ptx::CtaidZ => S::CtaidZ,
            Ptx::NctaidX => S::NctaidX,
            Ptx::NctaidY => S::NctaidY,
            Ptx::NctaidZ => S::NctaidZ,
            Ptx::Laneid => S::LaneId,
            Ptx::Warpid => S::WarpId,
            Ptx::Nwarpid => S::Nwarpid,
            Ptx::Smid => S::SmId,
            Ptx::Nsmid => S::Nsmid,
            Ptx::Gridid => S::GridId,
            Ptx::Clock => S::Clock,
            Ptx::Clock64 => S::Clock64,
            Ptx::Globaltimer | Ptx::GlobaltimerLo => S::GlobalTimer,
            Ptx::DynamicSmemSize => S::DynamicSharedBytes,
            Ptx::TotalSmemSize | Ptx::AggrSmemSize => S::TotalSharedBytes,
            Ptx::ClockHi | Ptx::GlobaltimerHi => {
                let whole = build.special(if register == Ptx::ClockHi { S::Clock64 } else { S::GlobalTimer });
                let high = build.binary_imm(BinaryOp::ShrU, whole, 32);
                return build.convert(ConvertOp::Truncate, Type::I32, high);
            }
            Ptx::LanemaskEq | Ptx::LanemaskLt | Ptx::LanemaskLe | Ptx::LanemaskGt | Ptx::LanemaskGe => {
                let lane = build.special(S::LaneId);
                let ones = build.i32(u32::MAX);
                let one = build.i32(1);
                let from_lane = build.binary(BinaryOp::Shl, ones, lane);
                return match register {
                    Ptx::LanemaskEq => build.binary(BinaryOp::Shl, one, lane),
                    Ptx::LanemaskLt => build.unary(UnaryOp::Not, from_lane),
                    Ptx::LanemaskGe => from_lane,
                    Ptx::LanemaskGt => build.binary(BinaryOp::Shl, from_lane, one),
                    _ => {
                        let above = build.binary(BinaryOp::Shl, from_lane, one);
                        build.unary(UnaryOp::Not, above)
                    }
                };
            }
            other => match environment(other) {
                Some(index) => S::EnvReg(index),
                // Fourth components, performance counters, reserved shared memory: all nothing.
                None => return build.i32(0),
            },
        };
        build.special(direct)
    }
}

/// N of `%envregN`.
fn environment(register: Ptx) -> Option<u8> {
    register.text().strip_prefix("%envreg")?.parse().ok()
}
