//! Calls that are not inlined: those of functions that can reach themselves.
//!
//! Such a function is lowered once per kernel, as a *subroutine*: a region of blocks with one way
//! in and one way out. All state of a running instance (an *activation*) is in registers of that
//! region or in a frame on the thread's stack, which lies in local memory behind the kernel's own
//! frame ([`Kernel::needs_stack`]):
//!
//! ```text
//!   caller:   check that the new frame fits into the stack
//!             store arguments and the number of this call in it                callee:
//!             sp += size of the caller's frame, jump ---------------------->   body
//!   behind:   sp -= size of the caller's frame <-------------------------   switch by that number
//!             load results and the caller's registers that are live here
//! ```
//!
//! Which registers have to be kept is known when all blocks are there, so [`Variables::spill`]
//! writes the stores and loads. The size of a frame is known then too: constants that stand for it
//! are filled in by [`Lowering::finish_stack`].

use std::collections::{HashMap, HashSet};

use sluice_ptx::ast::{Call, Function, Module, Operand, Statement, Symbol};

use super::call::{Candidates, Passed};
use super::layout::{Home, resolve_function};
use super::{Frame, LowerErrorKind, Lowered, Lowering};
use crate::inst::{BinaryOp, Inst, IntCond, RuntimeFunction, Space, SpecialRegister};
use crate::kernel::{Target, Terminator};
use crate::ssa::{Activation, SpilledCall};
use crate::types::{BlockId, InstId, Type, Value};

/// Where a frame keeps the number of the call that it belongs to, and the bytes that this takes.
const RETURN_NUMBER: (i32, u32) = (0, 4);

/// A function that is lowered out of line, and what has been lowered of it.
pub(super) struct Subroutine<'m> {
    function: &'m Function,
    /// Its instance, until it is being lowered.
    frame: Option<Frame<'m>>,
    /// Where calls jump to, and where its `ret` does.
    entry: BlockId,
    exit: BlockId,
    params: Vec<Home>,
    returns: Vec<Home>,
    /// By number of the call: where its caller continues.
    continuations: Vec<BlockId>,
}

/// The frame of an activation: the kernel's own, or that of a subroutine.
pub(super) struct StackFrame {
    /// In bytes, so far.
    pub(super) bytes: u32,
    /// Constants that are to hold its size.
    sizes: Vec<InstId>,
    /// Its registers and calls.
    pub(super) activation: Activation,
}

impl StackFrame {
    pub(super) fn new(entry: BlockId) -> StackFrame {
        StackFrame { bytes: 0, sizes: Vec::new(), activation: Activation::new(entry) }
    }
}

impl<'m> Lowering<'m> {
    /// Calls a subroutine and continues behind the call.
    pub(super) fn call_subroutine(&mut self, call: &'m Call, callee: &'m Function) -> Lowered {
        let number = self.subroutine(callee)?;
        let arguments = self.passed(call, callee)?;
        let results = self.result_homes(call, callee)?;

        // The new frame, and what the caller puts there.
        let line = self.line;
        let sp_before = self.stack_pointer();
        let size = self.frame_size(self.activation);
        let new_sp = self.build().binary(BinaryOp::Add, sp_before, size);
        self.check_stack(new_sp, number + 1);
        // What follows may be in another block than what came before.
        let sp_before = self.stack_pointer();
        let return_number = self.subroutines[number].continuations.len() as u32;
        let mut build = self.build();
        let return_number = build.i32(return_number);
        build.store(Space::Local, new_sp, RETURN_NUMBER.0, return_number);
        let mut registers = Vec::new();
        for (index, passed) in arguments.into_iter().enumerate() {
            match (passed, self.subroutines[number].params[index]) {
                (Passed::Variable(home), Home::Stack(offset)) => {
                    let param = &callee.params[index];
                    let align = param.align.min(self.symbol_align(&call.arguments[index]));
                    let from = self.home_address(home, 0)?;
                    let to = self.build().binary_imm(BinaryOp::Add, new_sp, u64::from(offset));
                    self.copy(from, (Space::Local, to), param.size, align);
                }
                (Passed::Value(value), Home::Register(variable)) => registers.push((variable, value)),
                _ => return Err(super::call::malformed(call)),
            }
        }
        let before = self.here();
        let [enter, leave, behind] = [(); 3].map(|()| self.kernel.add_block());
        self.end_block(Terminator::Jump(Target::new(enter)));

        self.start_block(enter);
        let stack_pointer = self.stack_pointer;
        self.variables.write(stack_pointer, new_sp);
        for (variable, value) in registers {
            let value = self.coerce(value, self.variables.ty(variable), false);
            self.variables.write(variable, value);
        }
        let entry = self.subroutines[number].entry;
        self.end_block(Terminator::Jump(Target::new(entry)));
        self.subroutines[number].continuations.push(leave);

        // Results are read before the caller's registers come back: a function that calls itself
        // has the same ones.
        self.start_block(leave);
        self.line = line;
        let callee_sp = self.variables.read(&mut self.kernel, stack_pointer);
        let sp_after = match self.activation {
            0 => self.build().i32(0),
            _ => {
                let size = self.frame_size(self.activation);
                self.build().binary(BinaryOp::Sub, callee_sp, size)
            }
        };
        let mut values = Vec::new();
        for home in &self.subroutines[number].returns.clone() {
            if let Home::Register(variable) = *home {
                values.push(self.variables.read(&mut self.kernel, variable));
            }
        }
        self.end_block(Terminator::Jump(Target::new(behind)));

        self.start_block(behind);
        self.variables.write(stack_pointer, sp_after);
        let spilled = SpilledCall { block: before, continuation: behind, sp_before, sp_after };
        self.frames[self.activation].activation.calls.push(spilled);
        let mut values = values.into_iter();
        let homes = self.subroutines[number].returns.clone();
        for (index, (result, home)) in results.into_iter().zip(homes).enumerate() {
            match (result, home) {
                (Some(to), Home::Stack(offset)) => {
                    let param = &callee.returns[index];
                    let align = param.align.min(self.symbol_align(&call.returns[index]));
                    let from = self.build().binary_imm(BinaryOp::Add, callee_sp, u64::from(offset));
                    let to = self.home_address(to, 0)?;
                    self.copy((Space::Local, from), to, param.size, align);
                }
                (None, Home::Register(_)) => {
                    if let Some(value) = values.next() {
                        self.write(&call.returns[index], value)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The number of the subroutine of this function.
    fn subroutine(&mut self, function: &'m Function) -> Lowered<usize> {
        if let Some(known) = self.subroutines.iter().position(|known| std::ptr::eq(known.function, function))
        {
            return Ok(known);
        }
        let unresolved = || LowerErrorKind::Unresolved(function.name.to_string());
        let body = function.body.as_ref().ok_or_else(unresolved)?;
        let [entry, exit] = [(); 2].map(|()| self.kernel.add_block());
        let mut stack = StackFrame::new(entry);
        stack.bytes = RETURN_NUMBER.1;
        let mut frame = Frame::new(body, Some(exit), &mut self.variables, &mut stack);
        let mut homes = [&function.params, &function.returns].map(|params| Vec::with_capacity(params.len()));
        for (homes, params) in homes.iter_mut().zip([&function.params, &function.returns]) {
            for param in params {
                homes.push(match param.register {
                    Some(register) => Home::Register(frame.registers[register.0 as usize]),
                    None => Home::Stack(super::layout::place(
                        &mut stack.bytes,
                        param.size,
                        param.align,
                        &mut self.kernel.local_align,
                    )?),
                });
            }
        }
        let [params, returns] = homes;
        self.frames.push(stack);
        frame.params.clone_from(&params);
        frame.returns.clone_from(&returns);
        let frame = Some(frame);
        let continuations = Vec::new();
        self.subroutines.push(Subroutine { function, frame, entry, exit, params, returns, continuations });
        Ok(self.subroutines.len() - 1)
    }

    /// Lowers the bodies of all subroutines that were called, and of those that they call.
    pub(super) fn lower_subroutines(&mut self) -> Lowered {
        let mut next = 0;
        while let Some(subroutine) = self.subroutines.get_mut(next) {
            let (function, entry, exit) = (subroutine.function, subroutine.entry, subroutine.exit);
            let Some(frame) = subroutine.frame.take() else { break };
            self.frame = frame;
            // Activation 0 is the kernel itself.
            self.activation = next + 1;
            self.line = function.line;
            let body = self.frame.body;
            let start = self.kernel.add_block();
            self.start_block(entry);
            self.end_block(Terminator::Jump(Target::new(start)));
            self.start_block(start);
            self.enter_body(function, body)?;
            self.lower_body(body)?;
            self.end_block(Terminator::Jump(Target::new(exit)));
            next += 1;
        }
        for number in 0..self.subroutines.len() {
            self.activation = number + 1;
            self.return_to_callers(number);
        }
        Ok(())
    }

    /// Ends the grid where the frame of an activation would reach beyond the thread's stack.
    fn check_stack(&mut self, sp: Value, activation: usize) {
        let size = self.frame_size(activation);
        let mut build = self.build();
        let end = build.special(SpecialRegister::LocalBytes);
        let left = build.binary(BinaryOp::Sub, end, sp);
        let overflows = build.compare(IntCond::LtU, left, size);
        let [full, fits] = [(); 2].map(|()| self.kernel.add_block());
        self.end_block(Terminator::Branch {
            cond: overflows,
            then: Target::new(full),
            otherwise: Target::new(fits),
        });
        self.start_block(full);
        let function = RuntimeFunction::StackOverflow;
        self.build().push(Inst::CallRuntime { function, args: Box::default() });
        self.end_block(Terminator::Trap);
        self.start_block(fits);
    }

    /// The way out of a subroutine: to the call whose number is in the frame.
    fn return_to_callers(&mut self, number: usize) {
        self.start_block(self.subroutines[number].exit);
        let sp = self.stack_pointer();
        let mut targets: Vec<Target> =
            self.subroutines[number].continuations.iter().map(|block| Target::new(*block)).collect();
        let Some(last) = targets.pop() else { return self.end_block(Terminator::Trap) };
        if targets.is_empty() {
            return self.end_block(Terminator::Jump(last));
        }
        let index = self.build().load(Space::Local, Type::I32, sp, RETURN_NUMBER.0);
        self.end_block(Terminator::Switch { index, targets, default: last });
    }

    /// Registers that are live across calls get their places in frames, and the sizes of frames are
    /// filled in.
    pub(super) fn finish_stack(&mut self) -> Lowered<Vec<(Value, Value)>> {
        if self.subroutines.is_empty() {
            return Ok(Vec::new());
        }
        let align = self.kernel.local_align;
        let mut ends: Vec<u32> = self.frames.iter().map(|frame| frame.bytes).collect();
        let activations: Vec<&Activation> = self.frames.iter().map(|frame| &frame.activation).collect();
        let aliases = self.variables.spill(&mut self.kernel, &activations, &mut |activation, bytes| {
            let place = ends[activation].next_multiple_of(bytes);
            ends[activation] = place.saturating_add(bytes);
            place as i32
        });
        for (frame, end) in self.frames.iter_mut().zip(ends) {
            let too_large = || LowerErrorKind::TooMuchMemory(sluice_ptx::Space::Local.text());
            let end = end.checked_next_multiple_of(align).filter(|end| *end <= i32::MAX as u32);
            frame.bytes = end.ok_or_else(too_large)?;
            for id in &frame.sizes {
                let bits = u64::from(frame.bytes);
                self.kernel.insts[id.index()].inst = Inst::Const { ty: Type::I32, bits };
            }
        }
        self.kernel.needs_stack = true;
        Ok(aliases)
    }

    /// Where the current activation's frame starts, in local memory.
    pub(super) fn stack_pointer(&mut self) -> Value {
        match self.activation {
            0 => self.build().i32(0),
            _ => self.variables.read(&mut self.kernel, self.stack_pointer),
        }
    }

    /// The size of an activation's frame, known at the end.
    fn frame_size(&mut self, activation: usize) -> Value {
        let id = self.build().push(Inst::Const { ty: Type::I32, bits: 0 });
        self.frames[activation].sizes.push(id);
        self.kernel.inst(id).result(0)
    }

    /// The alignment of the variable that an operand of a call names, as far as this body says it.
    fn symbol_align(&self, operand: &Operand) -> u32 {
        match operand {
            Operand::Symbol { symbol: Symbol::Variable(id), .. } => {
                self.frame.body.variables.get(id.0 as usize).map_or(1, |variable| variable.align)
            }
            _ => u32::MAX,
        }
    }

    /// Copies bytes in the largest pieces that both alignments allow.
    fn copy(&mut self, from: (Space, Value), to: (Space, Value), bytes: u64, align: u32) {
        let mut offset = 0;
        while offset < bytes {
            let mut piece = u64::from(align.clamp(1, 8));
            while piece > bytes - offset {
                piece /= 2;
            }
            let ty = Type::int_of_bits(piece as u32 * 8).unwrap_or(Type::I8);
            let mut build = self.build();
            let value = build.load(from.0, ty, from.1, offset as i32);
            build.store(to.0, to.1, offset as i32, value);
            offset += piece;
        }
    }
}

/// The functions of a module that can reach themselves, as far as `entry` can call them.
pub(super) fn recursive_functions<'m>(
    module: &'m Module,
    entry: &'m Function,
    candidates: &Candidates<'m>,
) -> HashSet<&'m str> {
    let mut graph =
        CallGraph { module, candidates, numbers: HashMap::new(), open: Vec::new(), found: HashSet::new() };
    graph.visit(entry);
    graph.found
}

/// Tarjan's search for strongly connected components ("Depth-First Search and Linear Graph
/// Algorithms"), over functions. It keeps its own stack: chains of calls may be long.
struct CallGraph<'a, 'm> {
    module: &'m Module,
    candidates: &'a Candidates<'m>,
    /// By name: when a function was met, and the earliest function that it reaches; u32::MAX once
    /// its component is complete.
    numbers: HashMap<&'m str, (u32, u32)>,
    /// Functions whose component is not complete.
    open: Vec<&'m str>,
    found: HashSet<&'m str>,
}

/// A function on the way to the one that is being looked at.
struct Visit<'m> {
    name: &'m str,
    callees: Vec<&'m Function>,
    next: usize,
}

impl<'m> CallGraph<'_, 'm> {
    fn visit(&mut self, entry: &'m Function) {
        let mut path = vec![self.enter(entry)];
        while let Some(at) = path.last_mut() {
            let name = at.name;
            let Some(callee) = at.callees.get(at.next).copied() else {
                path.pop();
                self.leave(name);
                if let Some(caller) = path.last() {
                    let reached = self.numbers[name].1;
                    self.reach(caller.name, reached);
                }
                continue;
            };
            at.next += 1;
            match self.numbers.get(&*callee.name) {
                None => path.push(self.enter(callee)),
                Some((_, u32::MAX)) => {}
                Some((number, _)) => {
                    let number = *number;
                    if *callee.name == *name {
                        self.found.insert(name);
                    }
                    self.reach(name, number);
                }
            }
        }
    }

    fn enter(&mut self, function: &'m Function) -> Visit<'m> {
        let number = self.numbers.len() as u32;
        self.numbers.insert(&function.name, (number, number));
        self.open.push(&function.name);
        Visit { name: &function.name, callees: self.callees(function), next: 0 }
    }

    fn reach(&mut self, from: &'m str, number: u32) {
        if let Some((_, lowest)) = self.numbers.get_mut(from) {
            *lowest = (*lowest).min(number);
        }
    }

    /// Completes the component whose first function this is.
    fn leave(&mut self, name: &'m str) {
        let (number, lowest) = self.numbers[name];
        if number != lowest {
            return;
        }
        let start = self.open.iter().rposition(|open| *open == name).unwrap_or(0);
        let component = self.open.split_off(start);
        if component.len() > 1 {
            self.found.extend(&component);
        }
        for member in component {
            if let Some((_, lowest)) = self.numbers.get_mut(member) {
                *lowest = u32::MAX;
            }
        }
    }

    fn callees(&self, function: &'m Function) -> Vec<&'m Function> {
        let Some(body) = &function.body else { return Vec::new() };
        let mut callees: Vec<&Function> = Vec::new();
        let mut seen = HashSet::new();
        let mut add = |callee: &'m Function| {
            if seen.insert(&*callee.name) {
                callees.push(callee);
            }
        };
        for statement in &body.statements {
            let Statement::Call(call) = statement else { continue };
            match &call.callee {
                sluice_ptx::ast::Callee::Function(name) => {
                    resolve_function(self.module, name).into_iter().for_each(&mut add);
                }
                sluice_ptx::ast::Callee::Indirect { targets, .. } => {
                    // A name that is not there is reported where the call is lowered.
                    self.candidates.of(body, *targets).into_iter().flatten().for_each(&mut add);
                }
            }
        }
        callees
    }
}
