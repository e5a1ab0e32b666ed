//! Calls: device functions are lowered in place, but for those that can reach themselves
//! ([`super::subroutine`]); a few names belong to the runtime.
//!
//! A call through a pointer compares the pointer with every function whose address is taken and
//! whose signature fits, and does what that one does. The addresses are made of names
//! ([`function_address`]), so that what loads a module can put them into tables without knowing how
//! a kernel is compiled.

use std::collections::HashSet;

use sluice_ptx::ast::{Body, Call, Callee, Function, IndirectTargets, Module, Name, Operand, Param, Symbol};

use super::layout::{Home, resolve_function};
use super::operand::register_type;
use super::{CALL_DEPTH_MAX, Frame, LowerErrorKind, Lowered, Lowering};
use crate::inst::{Inst, IntCond, MemoryOperand, MemoryOrder, RuntimeFunction, Space};
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
                Some(callee) if callee.body.is_some() => lowering.call_function(call, callee),
                _ => lowering.call_runtime(call, name),
            },
        })
    }

    /// A function that can reach itself has its code once, and so has one at the end of a long
    /// chain of calls.
    fn call_function(&mut self, call: &'m Call, callee: &'m Function) -> Lowered {
        let is_inlined = !self.recursive.contains(&*callee.name) && self.depth < CALL_DEPTH_MAX;
        if is_inlined { self.inline(call, callee) } else { self.call_subroutine(call, callee) }
    }

    /// Calls the function at `pointer`. A pointer to none of those that the call can mean ends the
    /// grid: null, or a function that was left out.
    fn call_one_of(&mut self, call: &'m Call, pointer: Value, targets: IndirectTargets) -> Lowered {
        let candidates = self.candidates.of(self.frame.body, targets)?;
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
            self.call_function(call, callee)?;
            self.end_block(Terminator::Jump(Target::new(join)));
            self.start_block(next);
        }
        match self.module.left_out {
            0 => self.end_grid("a call through a pointer that is no function of this signature"),
            left_out => {
                let what = format!("a call through a table of {left_out} functions");
                self.unless_missing(Err(LowerErrorKind::Unsupported(what)))?;
            }
        }
        self.start_block(join);
        Ok(())
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

    fn local_place(&mut self, call: &Call, symbol: &Symbol) -> Lowered<MemoryOperand> {
        match self.symbol_address(symbol, 0)? {
            (Space::Local, addr) => Ok(MemoryOperand { space: Space::Local, addr, offset: 0 }),
            _ => Err(malformed(call)),
        }
    }

    /// Lowers the callee's body here. Parameters in `.param` space are the caller's variables;
    /// those in registers are copied.
    fn inline(&mut self, call: &'m Call, callee: &'m Function) -> Lowered {
        let body = callee.body.as_ref().ok_or_else(|| LowerErrorKind::Unresolved(callee.name.to_string()))?;
        // What the caller passes, before its frame is put away.
        let params = self.passed(call, callee)?;
        let returns = self.result_homes(call, callee)?;

        let continuation = self.kernel.add_block();
        let stack = &mut self.frames[self.activation];
        let frame = Frame::new(body, Some(continuation), &mut self.variables, stack);
        let caller = std::mem::replace(&mut self.frame, frame);
        let line = self.line;
        self.depth += 1;

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

        self.depth -= 1;
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

    /// The arguments of a call, one per parameter of the callee.
    pub(super) fn passed(&mut self, call: &Call, callee: &Function) -> Lowered<Vec<Passed>> {
        if call.arguments.len() != callee.params.len() {
            return Err(malformed(call));
        }
        let pairs = call.arguments.iter().zip(&callee.params);
        pairs
            .map(|(argument, param)| match (param.register, argument) {
                (None, Operand::Symbol { symbol, offset: 0 }) => {
                    Ok(Passed::Variable(self.home_of(call, symbol)?))
                }
                _ => Ok(Passed::Value(self.argument(argument, register_type(param.ty))?)),
            })
            .collect()
    }

    /// Where a call wants the callee's results that are in memory. Linking joins a call and a
    /// definition by their name alone, so a result may be wanted that the callee does not have;
    /// what is there then is undefined.
    pub(super) fn result_homes(&mut self, call: &Call, callee: &Function) -> Lowered<Vec<Option<Home>>> {
        if call.returns.len() < callee.returns.len() {
            return Err(malformed(call));
        }
        let pairs = call.returns.iter().zip(&callee.returns);
        pairs
            .map(|(result, param)| match (param.register, result) {
                (None, Operand::Symbol { symbol, offset: 0 }) => Ok(Some(self.home_of(call, symbol)?)),
                (None, _) => Err(malformed(call)),
                (Some(_), _) => Ok(None),
            })
            .collect()
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

/// The address that stands for a function: where no variable can be, and the same wherever the name
/// is. (64-bit FNV-1a of the name.)
pub fn function_address(name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    0xf << 60 | hash >> 4
}

/// An argument that is passed to a callee.
pub(super) enum Passed {
    Variable(Home),
    Value(Value),
}

pub(super) fn malformed(call: &Call) -> LowerErrorKind {
    match &call.callee {
        Callee::Function(name) => LowerErrorKind::Malformed(format!("call {name}")),
        Callee::Indirect { .. } => LowerErrorKind::Malformed("an indirect call".into()),
    }
}

/// What indirect calls can reach.
pub(super) struct Candidates<'m> {
    module: &'m Module,
    /// Functions whose addresses are taken.
    addressed: Vec<&'m Function>,
}

impl<'m> Candidates<'m> {
    /// `addressed` are the names whose addresses are taken, by code that the kernel can reach or by
    /// variables.
    pub(super) fn new(module: &'m Module, addressed: &HashSet<&'m str>) -> Candidates<'m> {
        let functions = module.functions.iter().filter(|function| has_body(function));
        let addressed = functions.filter(|function| addressed.contains(&*function.name)).collect();
        Candidates { module, addressed }
    }

    /// The functions that a call in this body can reach.
    pub(super) fn of(&self, body: &Body, targets: IndirectTargets) -> Lowered<Vec<&'m Function>> {
        match targets {
            IndirectTargets::Targets(index) => {
                let resolve = |name: &Name| {
                    resolve_function(self.module, name)
                        .filter(|function| has_body(function))
                        .ok_or_else(|| LowerErrorKind::Unresolved(name.to_string()))
                };
                body.call_targets[index as usize].iter().map(resolve).collect()
            }
            IndirectTargets::Prototype(index) => {
                let prototype = &body.prototypes[index as usize];
                let same = |a: &[Param], b: &[Param]| {
                    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.size == b.size)
                };
                let fits = |function: &&&Function| {
                    same(&function.params, &prototype.params) && same(&function.returns, &prototype.returns)
                };
                Ok(self.addressed.iter().filter(fits).copied().collect())
            }
        }
    }
}

fn has_body(function: &Function) -> bool {
    !function.is_entry && function.body.is_some()
}
