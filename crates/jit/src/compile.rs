//! From IR to machine code.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sluice_ir::{Access, Inst, Kernel, SpecialRegister};
use thiserror::Error;

use crate::block::Code;
use crate::code_store::{CodeStore, Stored};
use crate::codegen::{self, Target, Tids};
use crate::llvm;
use crate::machine_code::MachineCode;
use crate::object::Object;
use crate::optimizer;

/// The range of device addresses that code by LLVM takes for granted: more than a warp accesses at
/// once.
const RANGE_BYTES_MIN: u64 = 1 << 16;

/// Compiles kernels for this machine. Cheap to clone, usable from many threads at a time.
#[derive(Clone)]
pub struct Compiler {
    machine: Arc<Target>,
}

/// Why a kernel was not compiled.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CompileError {
    #[error("the software GPU does not run on this processor: {0}")]
    Processor(String),
    #[error("kernel {kernel} has {blocks} basic blocks, at most {max} are possible")]
    TooManyBlocks { kernel: String, blocks: usize, max: u32 },
    #[error(
        "kernel {kernel} is too large: compiling its {blocks} blocks and {instructions} instructions takes about \
         {needed_mib} MiB of memory, and {max_mib} MiB are allowed"
    )]
    TooLarge { kernel: String, blocks: usize, instructions: usize, needed_mib: u64, max_mib: u64 },
    #[error("kernel {kernel}: {what} is not supported by the software GPU")]
    Unsupported { kernel: String, what: String },
    #[error("kernel {kernel}: code generation failed: {reason}")]
    Backend { kernel: String, reason: String },
    #[error("no memory for machine code: {0}")]
    Memory(String),
}

impl Compiler {
    pub fn new() -> Result<Compiler, CompileError> {
        Ok(Compiler { machine: Arc::new(Target::host()?) })
    }

    /// Limits the memory that compilations take, all threads together, to about this many bytes. A
    /// kernel that would take more is refused; others wait for each other.
    pub fn set_memory_max(&self, bytes: u64) {
        self.machine.memory.set_max(bytes);
    }

    /// Has kernels that take long compiled again by LLVM, where its library is installed. The
    /// library is loaded when the first such kernel is there.
    pub fn set_optimizes(&self, optimizes: bool) {
        self.machine.optimizes.store(optimizes, Ordering::Relaxed);
    }

    /// Has machine code stored between processes, and used from there. The first call counts. False
    /// where this build has no build id ([`CodeStore`] needs one to tell builds apart).
    pub fn set_code_store(&self, store: Arc<dyn CodeStore>) -> bool {
        self.machine.stored.get_or_init(|| Stored::new(store, &self.machine)).is_some()
    }

    /// Compiles a kernel on which the passes of [`sluice_ir`] have run.
    pub fn compile(&self, kernel: &Kernel) -> Result<CompiledKernel, CompileError> {
        let compiled = self.prepare(kernel.clone());
        compiled.load([32, 1, 1])?;
        Ok(compiled)
    }

    /// Prepares a kernel whose machine code is made when a launch needs it: libraries ask what each
    /// of their kernels takes, and launch a few.
    pub fn prepare(&self, kernel: Kernel) -> CompiledKernel {
        CompiledKernel {
            kernel: Arc::new(kernel),
            machine: self.machine.clone(),
            forms: Default::default(),
            better: Default::default(),
        }
    }
}

/// Who makes machine code.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) enum Generator {
    Cranelift,
    Llvm,
}

/// Code by LLVM for one form, once there is some.
#[derive(Default)]
struct Better {
    code: OnceLock<MachineCode>,
    /// Has been looked for in the store.
    stored: OnceLock<Option<()>>,
    /// How long launches have taken, in nanoseconds.
    spent: AtomicU64,
    is_asked: AtomicBool,
}

impl Better {
    /// How long launches take until better code is worth its time.
    const DUE: Duration = Duration::from_millis(10);

    /// Adds a launch; true once, when it is time for better code.
    fn is_due(&self, elapsed: Duration) -> bool {
        let elapsed = elapsed.as_nanos() as u64;
        let spent = self.spent.fetch_add(elapsed, Ordering::Relaxed).saturating_add(elapsed);
        u128::from(spent) >= Self::DUE.as_nanos() && !self.is_asked.swap(true, Ordering::Relaxed)
    }
}

/// Machine code of one kernel. It is freed when this is dropped, so not while a launch runs.
pub struct CompiledKernel {
    kernel: Arc<Kernel>,
    machine: Arc<Target>,
    /// By [`Form`]; each is compiled when a block of its shape comes.
    forms: [OnceLock<Result<MachineCode, CompileError>>; 4],
    /// By [`Form`], code by LLVM.
    better: Arc<[Better; 4]>,
}

impl CompiledKernel {
    pub fn name(&self) -> &str {
        &self.kernel.name
    }

    /// Bytes of the parameter buffer.
    pub fn param_bytes(&self) -> u32 {
        self.kernel.params.bytes
    }

    /// Names of the module variables whose addresses a launch must give, in order.
    pub fn globals(&self) -> &[String] {
        &self.kernel.globals
    }

    /// What a [`crate::FaultKind::Missing`] means: a line of the PTX, and what cannot be done
    /// there.
    pub fn missing(&self, what: u32) -> Option<&str> {
        self.kernel.missing.get(what as usize).map(String::as_str)
    }

    /// Bytes of local memory per thread, without a stack.
    pub fn local_bytes(&self) -> u32 {
        self.kernel.local_bytes
    }

    /// Bytes of local memory per thread of a launch that gives `stack_bytes` to kernels that need a
    /// stack.
    pub fn local_bytes_with(&self, stack_bytes: u32) -> u32 {
        let stack = if self.kernel.needs_stack { stack_bytes } else { 0 };
        // Frames on the stack are aligned as the kernel's own; windows are shorter than 4 GiB.
        let end = self.kernel.local_bytes.saturating_add(stack).min(i32::MAX as u32);
        end / self.kernel.local_align * self.kernel.local_align
    }

    /// Bytes of static shared memory per block.
    pub fn static_shared_bytes(&self) -> u32 {
        self.kernel.shared.static_bytes
    }

    /// The accesses that an instrumented kernel has checked.
    pub(crate) fn accesses(&self) -> &[Access] {
        &self.kernel.accesses
    }

    /// What each counter of the kernel counts: the threads that execute these lines of the PTX
    /// text.
    pub fn counters(&self) -> &[Vec<u32>] {
        &self.kernel.counters
    }

    /// Makes the machine code for blocks of this shape, unless it is there.
    pub fn load(&self, block: [u32; 3]) -> Result<(), CompileError> {
        self.code(block, u64::MAX).map(drop)
    }

    /// Whether the machine code for blocks of this shape, or the reason why there is none, is
    /// there.
    pub fn is_loaded(&self, block: [u32; 3]) -> bool {
        let form = Form::of(&self.kernel, block) as usize;
        self.forms[form].get().is_some() || self.better[form].code.get().is_some()
    }

    /// Makes code for blocks of this shape by LLVM, which launches use from now on. The error says
    /// why the kernel stays with the code that it has.
    pub fn optimize(&self, block: [u32; 3]) -> Result<(), String> {
        let form = Form::of(&self.kernel, block);
        optimize(&self.kernel, &self.machine, form, &self.better[form as usize])
    }

    /// Adds the time of a launch with blocks of this shape: where launches add up to much, the
    /// kernel gets better code in the background.
    pub(crate) fn ran(&self, block: [u32; 3], elapsed: Duration) {
        let form = Form::of(&self.kernel, block);
        let better = &self.better[form as usize];
        if !self.machine.optimizes.load(Ordering::Relaxed) || !better.is_due(elapsed) {
            return;
        }
        let (kernel, machine, all) = (self.kernel.clone(), self.machine.clone(), self.better.clone());
        optimizer::later(move || {
            // A kernel that LLVM does not cover stays as it is.
            let _ = optimize(&kernel, &machine, form, &all[form as usize]);
        });
    }

    /// Shared memory of a block with this much dynamic memory.
    pub(crate) fn shared_bytes(&self, dynamic_bytes: u32) -> u32 {
        let shared = &self.kernel.shared;
        let start = shared.dynamic_offset.unwrap_or(shared.static_bytes).max(shared.static_bytes);
        start.saturating_add(dynamic_bytes)
    }

    /// The code by LLVM for one form, if it is there or stored.
    fn better(&self, form: Form) -> Option<&MachineCode> {
        let better = &self.better[form as usize];
        if better.code.get().is_none() && self.machine.optimizes.load(Ordering::Relaxed) {
            better.stored.get_or_init(|| {
                let stored = self.machine.stored.get().and_then(Option::as_ref)?;
                let (tids, lanes) = form.warp();
                let object = stored.read(&stored.key(&self.kernel, tids, lanes, Generator::Llvm))?;
                let _ = better.code.set(MachineCode::new(object).ok()?);
                Some(())
            });
        }
        better.code.get()
    }

    /// The machine code for one form, from where it is stored if it is there.
    fn make(&self, tids: Tids, lanes: usize) -> Result<MachineCode, CompileError> {
        let stored = self.machine.stored.get().and_then(Option::as_ref);
        let stored =
            stored.map(|stored| (stored, stored.key(&self.kernel, tids, lanes, Generator::Cranelift)));
        let known = stored.as_ref().and_then(|(stored, key)| stored.read(key));
        if let Some(code) = known.and_then(|object| MachineCode::new(object).ok()) {
            return Ok(code);
        }
        let object = self.compile(tids, lanes)?;
        if let Some((stored, key)) = stored {
            stored.write(&key, &object);
        }
        MachineCode::new(object).map_err(|error| CompileError::Memory(error.to_string()))
    }

    /// What Cranelift cannot lower it panics at; the caller gets an error instead.
    fn compile(&self, tids: Tids, lanes: usize) -> Result<Object, CompileError> {
        let _taken = self.machine.memory.take(&self.kernel)?;
        let compile = AssertUnwindSafe(|| codegen::compile(&self.machine, &self.kernel, tids, lanes));
        catch_unwind(compile).unwrap_or_else(|_| {
            let reason = "an instruction that the code generator does not know".to_owned();
            Err(CompileError::Backend { kernel: self.kernel.name.clone(), reason })
        })
    }

    /// The code for a block shape.
    /// `range_bytes` is the size of the range of device addresses.
    pub(crate) fn code(&self, block: [u32; 3], range_bytes: u64) -> Result<Code, CompileError> {
        let form = Form::of(&self.kernel, block);
        if range_bytes >= RANGE_BYTES_MIN
            && let Some(code) = self.better(form)
        {
            return Ok(code.code());
        }
        let (tids, lanes) = form.warp();
        let compiled = self.forms[form as usize].get_or_init(|| self.make(tids, lanes));
        compiled.as_ref().map(MachineCode::code).map_err(Clone::clone)
    }
}

/// Makes code by LLVM for one form, unless it is there.
fn optimize(kernel: &Kernel, machine: &Target, form: Form, better: &Better) -> Result<(), String> {
    if better.code.get().is_some() {
        return Ok(());
    }
    let llvm = llvm::llvm()?;
    let (tids, lanes) = form.warp();
    let _taken = machine.memory.take(kernel).map_err(|error| error.to_string())?;
    let compile = AssertUnwindSafe(|| llvm::compile(llvm, kernel, tids, lanes));
    let object = catch_unwind(compile).map_err(|_| "an instruction that is not known".to_owned())?;
    let object = object.map_err(|reason| reason.to_string())?;
    if let Some(stored) = machine.stored.get().and_then(Option::as_ref) {
        stored.write(&stored.key(kernel, tids, lanes, Generator::Llvm), &object);
    }
    let code = MachineCode::new(object).map_err(|error| error.to_string())?;
    // Another thread's is as good.
    let _ = better.code.set(code);
    Ok(())
}

/// How the threads of a warp lie in their block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// 32 neighbours in x, equal in y and z.
    Rows,
    /// 16 neighbours in x, equal in y and z: where nothing in the kernel depends on the width of a
    /// warp, a row of 16 threads is one.
    HalfRows,
    /// 8 neighbours in x, equal in y and z, under the same condition.
    QuarterRows,
    /// Anyhow.
    Any,
}

impl Form {
    /// What is known of the threads of a warp, and how many it has.
    fn warp(self) -> (Tids, usize) {
        match self {
            Form::Rows => (Tids::Rows, 32),
            Form::HalfRows => (Tids::Rows, 16),
            Form::QuarterRows => (Tids::Rows, 8),
            Form::Any => (Tids::Any, 32),
        }
    }

    fn of(kernel: &Kernel, [x, y, z]: [u32; 3]) -> Form {
        if x.is_multiple_of(32) || (y == 1 && z == 1) {
            return Form::Rows;
        }
        match x {
            _ if sees_warps(kernel) => Form::Any,
            x if x.is_multiple_of(16) => Form::HalfRows,
            x if x.is_multiple_of(8) => Form::QuarterRows,
            _ => Form::Any,
        }
    }
}

/// Whether a kernel looks at its warp: at other lanes, or at its place in it. What watches an
/// instrumented kernel does.
fn sees_warps(kernel: &Kernel) -> bool {
    use SpecialRegister::{LaneId, Nwarpid, WarpId};
    if kernel.is_instrumented {
        return true;
    }
    kernel.blocks.iter().flat_map(|block| &block.insts).any(|&id| match &kernel.inst(id).inst {
        Inst::ActiveMask | Inst::Special { register: LaneId | WarpId | Nwarpid } => true,
        Inst::Barrier { .. } | Inst::ClusterBarrier { .. } => false,
        inst => inst.is_collective(),
    })
}
