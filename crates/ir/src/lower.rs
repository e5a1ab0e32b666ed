//! From a PTX syntax tree to a kernel in SSA form.
//!
//! Statement by statement: a PTX register is a [`Variable`](crate::ssa::Variable), a label starts a
//! block, and a call lowers the callee's body in place, or jumps to the one that is there (there
//! are no calls in the IR). A predicated instruction computes for all lanes and keeps the old value
//! where the guard is false; memory accesses carry the guard; what cannot be done for all lanes is
//! branched around. What the compiler cannot do ends the grid where it is reached
//! ([`Kernel::missing`]): large libraries have kernels in which only some paths ask for it.
//!
//! Reading order: this file (functions, blocks, dispatch), [`layout`] (where variables live),
//! [`operand`], then the files by kind of instruction.

mod call;
mod cluster;
mod compare;
mod convert;
mod counters;
mod float;
mod half;
mod integer;
mod layout;
mod matrix;
mod mbarrier;
mod memory;
mod minifloat;
mod operand;
mod subroutine;
mod tensor;
mod texture;
mod video;
mod warp;

use std::collections::{HashMap, HashSet};

use sluice_ptx::ast::{Body, Function, Guard, Instruction, Module, Operand, Statement};
use sluice_ptx::{Modifier, Opcode};

pub use call::function_address;
pub use layout::{Global, GlobalRelocation, Reference, module_globals};

use crate::builder::Builder;
use crate::inst::{BinaryOp, Inst, RuntimeFunction, UnaryOp};
use crate::kernel::{Kernel, Target, Terminator};
use crate::ssa::{Variable, Variables};
use crate::types::{BlockId, GlobalId, Type, Value};
use call::Candidates;
use counters::Counting;
use layout::{Home, Layout};
use subroutine::{StackFrame, Subroutine};

/// What a kernel lacks is named at most this number of times, and in this number of characters: the
/// program chooses both.
const MISSING_MAX: usize = 256;
const MISSING_CHARS_MAX: usize = 100;

/// The most instructions (and blocks, and registers) that one kernel may have, inlined functions
/// counted as often as they are called.
pub const INSTRUCTIONS_MAX: usize = 1 << 20;

/// The deepest nesting of calls that are inlined.
pub const CALL_DEPTH_MAX: usize = 128;

/// The entry named `entry` as a kernel, with everything it calls inlined. The result satisfies
/// [`crate::verify`] and has not been through any pass.
pub fn lower_kernel(module: &Module, entry: &str) -> Result<Kernel, LowerError> {
    lower(module, entry, None)
}

/// [`lower_kernel`] with a counter in each basic block ([`Kernel::counters`]).
pub fn lower_kernel_with_counters(module: &Module, entry: &str) -> Result<Kernel, LowerError> {
    lower(module, entry, Some(Counting::default()))
}

fn lower(module: &Module, entry: &str, counting: Option<Counting>) -> Result<Kernel, LowerError> {
    let fail = |line, kind| LowerError { entry: entry.to_owned(), line, kind };
    let function = module
        .function(entry)
        .filter(|function| function.is_entry)
        .ok_or_else(|| fail(0, LowerErrorKind::NoSuchEntry))?;
    let mut lowering = Lowering::new(module, function, counting).map_err(|kind| fail(function.line, kind))?;
    let aliases = lowering.run(function).map_err(|kind| fail(lowering.line, kind))?;
    let Lowering { mut kernel, variables, .. } = lowering;
    variables.finish_with(&mut kernel, aliases);
    // The parser does not look at types, so a text can ask for what no instruction can do.
    crate::verify::verify(&kernel).map_err(|error| fail(0, LowerErrorKind::IllTyped(error.to_string())))?;
    Ok(kernel)
}

/// Why an entry cannot be lowered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {entry}, PTX line {line}: {kind}")]
pub struct LowerError {
    pub entry: String,
    /// From 1; 0 when unknown.
    pub line: u32,
    pub kind: LowerErrorKind,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LowerErrorKind {
    #[error("the module has no such entry")]
    NoSuchEntry,
    #[error("instruction {0} is not supported by the software GPU")]
    Unsupported(String),
    #[error("operands of {0} that PTX does not allow")]
    Malformed(String),
    #[error("an instruction with registers of the wrong type ({0})")]
    IllTyped(String),
    #[error("{0} is not defined in this module")]
    Unresolved(String),
    #[error("more than {INSTRUCTIONS_MAX} instructions after inlining")]
    TooLarge,
    #[error("{0} variables larger than 2 GiB")]
    TooMuchMemory(&'static str),
}

type Lowered<T = ()> = Result<T, LowerErrorKind>;

/// The state of lowering one kernel.
struct Lowering<'m> {
    module: &'m Module,
    layout: Layout<'m>,
    kernel: Kernel,
    variables: Variables,
    /// The block that is being filled; None after a terminator, until the next label.
    block: Option<BlockId>,
    /// PTX line of the current instruction.
    line: u32,
    /// Guard of the current instruction, where it keeps old values (see the module's
    /// documentation).
    guard: Option<Value>,
    frame: Frame<'m>,
    /// Functions that are being inlined into each other.
    depth: usize,
    globals: HashMap<&'m str, GlobalId>,
    candidates: Candidates<'m>,
    /// Functions that can reach themselves.
    recursive: HashSet<&'m str>,
    subroutines: Vec<Subroutine<'m>>,
    /// That of the kernel, then those of the subroutines.
    frames: Vec<StackFrame>,
    /// The frame that is being filled.
    activation: usize,
    /// Where the running subroutine's frame starts.
    stack_pointer: Variable,
    counting: Option<Counting>,
}

/// One instance of a function's body.
struct Frame<'m> {
    body: &'m Body,
    /// By register: its variable. A 128-bit register has a second one right behind.
    registers: Vec<Variable>,
    /// By label.
    labels: Vec<BlockId>,
    /// Where body variables, parameters and return parameters live.
    variables: Vec<Home>,
    params: Vec<Home>,
    returns: Vec<Home>,
    /// The condition code register's carry flag.
    carry: Variable,
    /// Where `ret` goes; None in an entry, where it ends the thread.
    continuation: Option<BlockId>,
}

impl<'m> Frame<'m> {
    /// An instance with registers, which belong to a frame on the stack, and without labels and
    /// variables.
    fn new(
        body: &'m Body,
        continuation: Option<BlockId>,
        variables: &mut Variables,
        stack: &mut StackFrame,
    ) -> Frame<'m> {
        let start = variables.len();
        let carry = variables.declare(Type::I1);
        let mut registers = Vec::with_capacity(body.registers.len());
        for register in &body.registers {
            let ty = operand::register_type(register.ty);
            registers.push(variables.declare(ty));
            if register.ty == sluice_ptx::Type::B128 {
                variables.declare(ty);
            }
        }
        stack.activation.own(start..variables.len());
        let (labels, homes) = (Vec::new(), Vec::new());
        let (params, returns) = (Vec::new(), Vec::new());
        Frame { body, registers, labels, variables: homes, params, returns, carry, continuation }
    }
}

impl<'m> Lowering<'m> {
    fn new(module: &'m Module, function: &'m Function, counting: Option<Counting>) -> Lowered<Self> {
        let layout = Layout::new(module, function)?;
        let candidates = Candidates::new(module, &layout.addressed);
        let mut kernel = Kernel {
            name: function.name.to_string(),
            params: layout.entry_params(function)?,
            shared: layout.shared,
            local_align: 16,
            max_threads: function.directives.max_threads,
            required_threads: function.directives.required_threads,
            ..Kernel::default()
        };
        let entry = kernel.add_block();
        let mut variables = Variables::default();
        variables.enter(entry);
        let body = function.body.as_ref().ok_or(LowerErrorKind::NoSuchEntry)?;
        let stack_pointer = variables.declare(Type::I32);
        let mut frames = vec![StackFrame::new(entry)];
        let mut frame = Frame::new(body, None, &mut variables, &mut frames[0]);
        frame.params = function.params.iter().map(|param| Home::Param(param.offset as u32)).collect();
        Ok(Lowering {
            module,
            layout,
            kernel,
            variables,
            block: Some(entry),
            line: function.line,
            guard: None,
            frame,
            depth: 1,
            globals: HashMap::new(),
            recursive: subroutine::recursive_functions(module, function, &candidates),
            candidates,
            subroutines: Vec::new(),
            frames,
            activation: 0,
            stack_pointer,
            counting,
        })
    }

    /// Lowers everything. The result are values that stand for others.
    fn run(&mut self, function: &'m Function) -> Lowered<Vec<(Value, Value)>> {
        let body = self.frame.body;
        self.enter_body(function, body)?;
        self.lower_body(body)?;
        self.end_block(Terminator::Exit);
        self.lower_subroutines()?;
        let aliases = self.finish_stack()?;
        self.kernel.local_bytes = self.frames[0].bytes.next_multiple_of(self.kernel.local_align);
        Ok(aliases)
    }

    /// Sets up labels and variables of the current frame.
    fn enter_body(&mut self, function: &'m Function, body: &'m Body) -> Lowered {
        self.frame.labels = body.labels.iter().map(|_| self.kernel.add_block()).collect();
        self.frame.variables = self.body_variables(function, body)?;
        Ok(())
    }

    fn lower_body(&mut self, body: &'m Body) -> Lowered {
        for statement in &body.statements {
            match statement {
                Statement::Label(label) => {
                    let block = self.frame.labels[label.0 as usize];
                    self.end_block(Terminator::Jump(Target::new(block)));
                    self.start_block(block);
                }
                _ if self.block.is_none() => {} // Nothing jumps here.
                Statement::Instruction(instruction) => {
                    self.line = instruction.line;
                    self.count_line();
                    self.instruction(instruction)?;
                }
                Statement::Call(call) => {
                    self.line = call.line;
                    self.count_line();
                    self.call(call)?;
                }
            }
            let largest = self.kernel.insts.len().max(self.kernel.blocks.len()).max(self.variables.len());
            if largest > INSTRUCTIONS_MAX {
                return Err(LowerErrorKind::TooLarge);
            }
        }
        Ok(())
    }

    // ---- Blocks
    // -------------------------------------------------------------------------------------------

    fn start_block(&mut self, block: BlockId) {
        self.block = Some(block);
        self.variables.enter(block);
    }

    /// Ends the current block, if one is open.
    fn end_block(&mut self, terminator: Terminator) {
        if let Some(block) = self.block.take() {
            self.kernel.block_mut(block).terminator = terminator;
        }
    }

    /// The block being filled. Only called while lowering a statement, when there is one.
    fn here(&self) -> BlockId {
        self.block.expect("statements that nothing reaches are skipped")
    }

    fn build(&mut self) -> Builder<'_> {
        Builder { block: self.here(), kernel: &mut self.kernel, line: self.line }
    }

    /// Lowers what `f` does for the lanes whose guard holds, and continues with all of them.
    fn branch_around(&mut self, guard: Option<Value>, f: impl FnOnce(&mut Self) -> Lowered) -> Lowered {
        let Some(guard) = guard else { return f(self) };
        let then = self.kernel.add_block();
        let join = self.kernel.add_block();
        self.end_block(Terminator::Branch {
            cond: guard,
            then: Target::new(then),
            otherwise: Target::new(join),
        });
        self.start_block(then);
        f(self)?;
        self.end_block(Terminator::Jump(Target::new(join)));
        self.start_block(join);
        Ok(())
    }

    // ---- Instructions
    // -------------------------------------------------------------------------------------

    fn instruction(&mut self, i: &'m Instruction) -> Lowered {
        let guard = i.guard.map(|guard| self.guard_value(guard));
        match i.opcode {
            Opcode::Bra => self.branch(i, guard),
            Opcode::Brx | Opcode::Ret | Opcode::Exit | Opcode::Trap => {
                self.branch_around(guard, |lowering| lowering.leave(i))
            }
            _ if is_collective(i) => self.branch_around(guard, |lowering| {
                let done = lowering.operation(i);
                lowering.unless_missing(done)
            }),
            _ => {
                self.guard = guard;
                let done = self.operation(i);
                self.guard = None;
                match done {
                    Err(LowerErrorKind::Unsupported(_)) => {
                        self.branch_around(guard, |lowering| lowering.unless_missing(done))
                    }
                    _ => done,
                }
            }
        }
    }

    /// What is not supported becomes the end of the grid, here. Whatever was written of it before
    /// does no harm.
    fn unless_missing(&mut self, done: Lowered) -> Lowered {
        let Err(LowerErrorKind::Unsupported(what)) = done else { return done };
        // An instruction may be long, and be in a function that is called often.
        let what: String = what.chars().take(MISSING_CHARS_MAX).collect();
        self.end_grid(&format!("{what} is not supported by the software GPU"));
        Ok(())
    }

    /// Ends the grid, here, with a message.
    fn end_grid(&mut self, why: &str) {
        let what = format!("PTX line {}: {why}", self.line);
        let missing = &mut self.kernel.missing;
        let number = match missing.iter().position(|known| *known == what) {
            Some(known) => known,
            // One of those that are named.
            None if missing.len() == MISSING_MAX => MISSING_MAX - 1,
            None => {
                missing.push(what);
                missing.len() - 1
            }
        };
        let mut build = self.build();
        let number = build.i32(number as u32);
        build.push(Inst::CallRuntime { function: RuntimeFunction::Missing, args: Box::new([number]) });
        self.end_block(Terminator::Trap);
    }

    fn guard_value(&mut self, guard: Guard) -> Value {
        let value = self.register(guard.register);
        let value = self.coerce(value, Type::I1, false);
        if guard.is_negated { self.build().unary(UnaryOp::Not, value) } else { value }
    }

    fn branch(&mut self, i: &'m Instruction, guard: Option<Value>) -> Lowered {
        let [Operand::Label(label)] = &i.operands[..] else { return Err(malformed(i)) };
        let target = Target::new(self.frame.labels[label.0 as usize]);
        match guard {
            None => self.end_block(Terminator::Jump(target)),
            Some(cond) => {
                let next = self.kernel.add_block();
                self.end_block(Terminator::Branch { cond, then: target, otherwise: Target::new(next) });
                self.start_block(next);
            }
        }
        Ok(())
    }

    /// Instructions that end a block without condition.
    fn leave(&mut self, i: &'m Instruction) -> Lowered {
        let terminator = match i.opcode {
            Opcode::Ret => match self.frame.continuation {
                Some(block) => Terminator::Jump(Target::new(block)),
                None => Terminator::Exit,
            },
            Opcode::Exit => Terminator::Exit,
            Opcode::Trap => Terminator::Trap,
            _ => {
                let [index, Operand::BranchTargets(targets)] = &i.operands[..] else {
                    return Err(malformed(i));
                };
                let index = self.read(index, Type::I32)?;
                let labels = &self.frame.body.branch_targets[*targets as usize];
                let mut targets: Vec<Target> =
                    labels.iter().map(|label| Target::new(self.frame.labels[label.0 as usize])).collect();
                // An index beyond the list is undefined in PTX; here it takes the last one.
                let default = targets.pop().ok_or_else(|| malformed(i))?;
                Terminator::Switch { index, targets, default }
            }
        };
        self.end_block(terminator);
        Ok(())
    }

    /// Everything that does not end a block, by kind.
    fn operation(&mut self, i: &'m Instruction) -> Lowered {
        use Opcode::*;
        match i.opcode {
            Mov => self.mov(i),
            Ld | Ldu => self.ld(i),
            St => self.st(i),
            Atom | Red => self.atomic(i),
            Cvta => self.cvta(i),
            Isspacep => self.isspacep(i),
            Mapa => self.mapa(i),
            Getctarank => self.getctarank(i),
            Cp => self.cp(i),
            Membar | Fence => self.fence(i),
            Setp => self.setp(i),
            Set => self.set(i),
            Selp => self.selp(i),
            Slct => self.slct(i),
            Testp => self.testp(i),
            Cvt => self.cvt(i),
            Add | Sub | Mul | Mad | Fma | Div | Abs | Neg | Min | Max | Copysign => {
                if i.ty().is_some_and(sluice_ptx::Type::is_float) { self.float(i) } else { self.integer(i) }
            }
            Rcp | Sqrt | Rsqrt | Sin | Cos | Lg2 | Ex2 | Tanh => self.float(i),
            Rem | Addc | Subc | Madc | Mad24 | Mul24 | Sad | Cnot | Not | And | Or | Xor | Shl | Shr
            | Shf | Bfe | Bfi | Bfind | Bmsk | Brev | Clz | Popc | Prmt | Lop3 | Dp4a | Dp2a | Szext => {
                self.integer(i)
            }
            Vadd | Vsub | Vabsdiff | Vmin | Vmax | Vshl | Vshr | Vmad | Vset | Vadd2 | Vsub2 | Vavrg2
            | Vabsdiff2 | Vmin2 | Vmax2 | Vset2 | Vadd4 | Vsub4 | Vavrg4 | Vabsdiff4 | Vmin4 | Vmax4
            | Vset4 => self.video(i),
            Bar | Barrier => self.barrier(i),
            Shfl => self.shfl(i),
            Vote => self.vote(i),
            Match => self.match_sync(i),
            Redux => self.redux(i),
            Activemask => self.activemask(i),
            Elect => self.elect(i),
            Mbarrier => self.mbarrier(i),
            Tensormap => self.tensormap(i),
            Mma | Wmma | Ldmatrix | Stmatrix => self.matrix(i),
            Tex | Tld4 => self.texture(i),
            Suld => self.surface_load(i),
            Sust => self.surface_store(i),
            Nanosleep => {
                let nanoseconds = self.read(operand(i, 0)?, Type::I32)?;
                self.build().push(Inst::Nanosleep { nanoseconds });
                Ok(())
            }
            // A hint about caches, as a value that other hints take.
            Createpolicy => {
                let policy = self.build().i64(0);
                self.write(operand(i, 0)?, policy)
            }
            // Hints, and waiting for grids that have always ended: launches of a stream run one
            // after the other.
            Griddepcontrol | Prefetch | Prefetchu | Discard | Applypriority | Setmaxnreg | Pmevent
            | Brkpt => Ok(()),
            _ => Err(unsupported(i)),
        }
    }
}

/// Whether an instruction must not be executed for lanes whose guard is false: it waits for lanes
/// or has an effect that carries no guard.
fn is_collective(i: &Instruction) -> bool {
    use Opcode::*;
    // Copies in bulk and changes of barriers are loops.
    let is_loop = match i.opcode {
        Cp => i.has(Modifier::Bulk) || i.has(Modifier::Mbarrier),
        St | Red => i.has(Modifier::Async),
        _ => false,
    };
    is_loop
        || matches!(
            i.opcode,
            Bar | Barrier
                | Shfl
                | Vote
                | Match
                | Redux
                | Activemask
                | Elect
                | Mbarrier
                | Tensormap
                | Nanosleep
                | Mma
                | Wmma
                | Ldmatrix
                | Stmatrix
                | Tex
                | Tld4
                | Suld
                | Sust
        )
}

fn unsupported(i: &Instruction) -> LowerErrorKind {
    LowerErrorKind::Unsupported(i.mnemonic())
}

fn malformed(i: &Instruction) -> LowerErrorKind {
    LowerErrorKind::Malformed(i.mnemonic())
}

/// The operand at this index.
fn operand(i: &Instruction, index: usize) -> Lowered<&Operand> {
    i.operands.get(index).ok_or_else(|| malformed(i))
}

/// The type of an instruction that must have one.
fn ptx_type(i: &Instruction) -> Lowered<sluice_ptx::Type> {
    i.ty().ok_or_else(|| malformed(i))
}

/// The first of `choices` that the instruction has as a modifier.
fn choose<T: Copy>(i: &Instruction, choices: &[(Modifier, T)]) -> Option<T> {
    i.modifiers.iter().find_map(|modifier| {
        choices.iter().find(|(candidate, _)| candidate == modifier).map(|(_, meaning)| *meaning)
    })
}

impl Lowering<'_> {
    /// Bitwise inclusive combination of two integers.
    fn or(&mut self, a: Value, b: Value) -> Value {
        self.build().binary(BinaryOp::Or, a, b)
    }
}
