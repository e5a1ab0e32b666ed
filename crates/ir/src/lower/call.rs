//! Calls: device functions are lowered in place; a few names belong to the runtime.
//!
//! A call through a pointer compares the pointer with every function whose address is taken and whose signature fits,
//! and does what that one does. The addresses are made of names ([`function_address`]), so that what loads a module can
//! put them into tables without knowing how a kernel is compiled.

use sluice_ptx::ast::{Call, Callee, Function, IndirectTargets, Name, Operand, Param, Symbol};

use super::layout::{Home, resolve_function};
use super::operand::register_type;
use super::{CALL_DEPTH_MAX, Frame, LowerErrorKind, Lowered, Lowering};
use crate::inst::{Inst, IntCond, MemoryOrder, Place, RuntimeFunction, Space};
use crate::kernel::{Target, Terminator};
use crate::types::{Type, Value};

impl<'m> Lowering<'m> {
    pub(super) fn call(&mut self, call: &'m Call) -> Lowered {
        let guard = call.guard.map(|guard| self.guard_value(guard));
        self.branch_around(guard, |lowering| match &call.callee {
            Callee::Indirect { register, targets } => {
                let pointer = lowering.register(*register);
                let pointer = lowering.coerce(pointer, Type::I64, false);
                lowering.call_one_of(call, pointer, *targets)
            }
            Callee::Function(name) => match resolve_function(lowering.module, name) {
                Some(callee) if callee.body.is_some() => lowering.inline(call, callee),
                _ => lowering.call_runtime(call, name),
            },
        })
    }

    /// Calls the function at `pointer`; a pointer to none of them traps, or ends the grid with what is missing where there are
    /// functions that were left out.
    fn call_one_of(&mut self, call: &'m Call, pointer: Value, targets: IndirectTargets) -> Lowered {
        let candidates = self.candidates(targets)?;
        let left_out = self.module.left_out;
        if candidates.is_empty() && left_out == 0 {
            return Err(LowerErrorKind::IndirectCall);
        }
        let join = self.kernel.add_block();
        for callee in candidates {
            let then = self.kernel.add_block();
            let next = self.kernel.add_block();
            let mut build = self.build();
            let address = build.i64(function_address(&callee.name));
            let cond = build.compare(IntCond::Eq, pointer, address);
            self.end_block(Terminator::Branch {
                cond,
                then: Target::new(then),
                otherwise: Target::new(next),
            });
            self.start_block(then);
            self.inline(call, callee)?;
            self.end_block(Terminator::Jump(Target::new(join)));
            self.start_block(next);
        }
        if left_out > 0 {
            let what = format!("a call through a table of {left_out} functions");
            self.unless_missing(Err(LowerErrorKind::Unsupported(what)))?;
        }
        self.end_block(Terminator::Trap);
        self.start_block(join);
        Ok(())
    }

    /// What an indirect call can reach.
    fn candidates(&self, targets: IndirectTargets) -> Lowered<Vec<&'m Function>> {
        let with_body = |function: &&Function| !function.is_entry && function.body.is_some();
        match targets {
            IndirectTargets::Targets(index) => {
                let names = &self.frame.body.call_targets[index as usize];
                let resolve = |name: &Name| {
                    resolve_function(self.module, name)
                        .filter(with_body)
                        .ok_or_else(|| LowerErrorKind::Unresolved(name.to_string()))
                };
                names.iter().map(resolve).collect()
            }
            IndirectTargets::Prototype(index) => {
                let prototype = &self.frame.body.prototypes[index as usize];
                let same = |a: &[Param], b: &[Param]| {
                    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.size == b.size)
                };
                let functions = self.module.functions.iter().filter(with_body).filter(|function| {
                    same(&function.params, &prototype.params)
                        && same(&function.returns, &prototype.returns)
                        && self.layout.addressed.contains(&*function.name)
                });
                Ok(functions.collect())
            }
        }
    }

    fn call_runtime(&mut self, call: &'m Call, name: &str) -> Lowered {
        let function = match name {
            "vprintf" => RuntimeFunction::Vprintf,
            "__assertfail" => RuntimeFunction::AssertFail,
            "malloc" => RuntimeFunction::Malloc,
            "free" => RuntimeFunction::Free,
            _ => return Err(LowerErrorKind::Unresolved(name.to_owned())),
        };
        let params = function.params();
        if call.arguments.len() != params.len() {
            return Err(malformed(call));
        }
        let mut args = Vec::with_capacity(params.len());
        for (argument, ty) in call.arguments.iter().zip(params) {
            args.push(self.argument(argument, *ty)?);
        }
        let id = self.build().push(Inst::CallRuntime { function, args: args.into() });
        let result = self.kernel.inst(id).results().next();
        match (result, call.returns.first()) {
            (Some(result), Some(Operand::Symbol { symbol, .. })) => {
                let place = self.local_place(call, symbol)?;
                let ty = self.kernel.ty(result);
                self.build().push(Inst::Store {
                    place,
                    ty,
                    values: Box::new([result]),
                    order: MemoryOrder::WEAK,
                    guard: None,
                });
                Ok(())
            }
            (Some(result), Some(register)) => self.write(register, result),
            _ => Ok(()),
        }
    }

    /// The value of an argument.
    fn argument(&mut self, argument: &Operand, ty: Type) -> Lowered<Value> {
        match argument {
            Operand::Symbol { symbol: symbol @ Symbol::Variable(_), offset: 0 } => {
                let (space, addr) = self.symbol_address(symbol, 0)?;
                Ok(self.build().load(space, ty, addr, 0))
            }
            other => self.read(other, ty),
        }
    }

    fn local_place(&mut self, call: &Call, symbol: &Symbol) -> Lowered<Place> {
        match self.symbol_address(symbol, 0)? {
            (Space::Local, addr) => Ok(Place { space: Space::Local, addr, offset: 0 }),
            _ => Err(malformed(call)),
        }
    }

    /// Lowers the callee's body here. Parameters in `.param` space are the caller's variables; those in registers are
    /// copied.
    fn inline(&mut self, call: &'m Call, callee: &'m Function) -> Lowered {
        if self.calls.contains(&&*callee.name) || self.calls.len() >= CALL_DEPTH_MAX {
            return Err(LowerErrorKind::Recursion(callee.name.to_string()));
        }
        let body = callee.body.as_ref().ok_or_else(|| LowerErrorKind::Unresolved(callee.name.to_string()))?;
        if call.arguments.len() != callee.params.len() || call.returns.len() != callee.returns.len() {
            return Err(malformed(call));
        }

        // What the caller passes, before its frame is put away.
        let mut params = Vec::with_capacity(callee.params.len());
        for (argument, param) in call.arguments.iter().zip(&callee.params) {
            params.push(match (param.register, argument) {
                (None, Operand::Symbol { symbol, offset: 0 }) => {
                    Passed::Variable(self.home_of(call, symbol)?)
                }
                (_, argument) => Passed::Value(self.argument(argument, register_type(param.ty))?),
            });
        }
        let mut returns = Vec::with_capacity(callee.returns.len());
        for (result, param) in call.returns.iter().zip(&callee.returns) {
            returns.push(match (param.register, result) {
                (None, Operand::Symbol { symbol, offset: 0 }) => Some(self.home_of(call, symbol)?),
                (None, _) => return Err(malformed(call)),
                (Some(_), _) => None,
            });
        }

        let continuation = self.kernel.add_block();
        let frame = Frame {
            body,
            registers: Vec::new(),
            labels: Vec::new(),
            variables: Vec::new(),
            params: Vec::new(),
            returns: Vec::new(),
            carry: self.variables.declare(Type::I1),
            continuation: Some(continuation),
        };
        let caller = std::mem::replace(&mut self.frame, frame);
        let line = self.line;
        self.calls.push(&callee.name);

        self.enter_body(callee, body)?;
        for (passed, param) in params.into_iter().zip(&callee.params) {
            let home = match (passed, param.register) {
                (Passed::Variable(home), _) => home,
                (Passed::Value(value), Some(register)) => {
                    let variable = self.frame.registers[register.0 as usize];
                    let value = self.coerce(value, self.variables.ty(variable), false);
                    self.variables.write(variable, value);
                    Home::Register(variable)
                }
                (Passed::Value(_), None) => return Err(malformed(call)),
            };
            self.frame.params.push(home);
        }
        for (home, param) in returns.into_iter().zip(&callee.returns) {
            let home = match (home, param.register) {
                (Some(home), _) => home,
                (None, Some(register)) => Home::Register(self.frame.registers[register.0 as usize]),
                (None, None) => return Err(malformed(call)),
            };
            self.frame.returns.push(home);
        }
        self.lower_body(body)?;
        self.end_block(Terminator::Jump(Target::new(continuation)));

        self.calls.pop();
        self.line = line;
        let callee_frame = std::mem::replace(&mut self.frame, caller);
        self.start_block(continuation);
        for (result, home) in call.returns.iter().zip(callee_frame.returns) {
            if let Home::Register(variable) = home {
                let value = self.variables.read(&mut self.kernel, variable);
                self.write(result, value)?;
            }
        }
        Ok(())
    }

    fn home_of(&mut self, call: &Call, symbol: &Symbol) -> Lowered<Home> {
        let homes = match symbol {
            Symbol::Variable(id) => self.frame.variables.get(id.0 as usize),
            Symbol::Param(index) => self.frame.params.get(*index as usize),
            Symbol::Return(index) => self.frame.returns.get(*index as usize),
            Symbol::Module(_) => None,
        };
        homes.copied().ok_or_else(|| malformed(call))
    }
}

/// The address that stands for a function: where no variable can be, and the same wherever the name is. (64-bit FNV-1a of
/// the name.)
pub fn function_address(name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    0xf << 60 | hash >> 4
}

/// An argument on its way into a callee.
enum Passed {
    Variable(Home),
    Value(Value),
}

fn malformed(call: &Call) -> LowerErrorKind {
    match &call.callee {
        Callee::Function(name) => LowerErrorKind::Malformed(format!("call {name}")),
        Callee::Indirect { .. } => LowerErrorKind::IndirectCall,
    }
}
