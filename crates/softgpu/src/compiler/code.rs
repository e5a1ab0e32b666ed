//! The software GPU's own machine: the PTX of an image, and its entries compiled on first use.
//!
//! Loading indexes the text only; real images hold hundreds of entries of which a program uses a
//! few.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use sluice_image::ComputeCapability;
use sluice_image::Image;
use sluice_ir::lower::{Global, lower_kernel, lower_kernel_with_counters, module_globals};
use sluice_ir::{Space, passes};
use sluice_jit::CompiledKernel;
use sluice_ptx::ast::{self, Variable};
use sluice_ptx::device_runtime;
use sluice_ptx::link::Input;
use sluice_ptx::{ModuleIndex, STATIC_SHARED_MAX, SourceLines, Tuning};

use crate::base::messages;
use crate::base::status::{Result, Status};
use crate::compiler::link;
use crate::compiler::load::status_of;
use crate::device::coverage::{CoveredModule, KernelCoverage};
use crate::device::driver;
use crate::device::execution;
use crate::device::machine::LOCAL_BYTES_MAX;
use crate::device::machine::PARAMS_MAX;
use crate::device::machine::{Code, Kernel, Limits, Machine, Shape, Signature};
use crate::device::sanitizer::sanitizer;
use crate::work::conditional;

/// Machine code for the kernels of texts up to this size is made when something is first asked
/// about them, which keeps it out of the time of a launch on the GPU. Larger texts are libraries,
/// whose users ask what each kernel takes and launch a few.
const SMALL: usize = 256 << 10;
/// The function by which device code allocates (CUDA C++ Programming Guide, Dynamic Global Memory
/// Allocation).
const DEVICE_MALLOC: &str = "malloc";
/// Bytes of all texts of one program together.
const TEXTS_MAX: usize = 512 << 20;

/// Compiles PTX for the CPU.
pub(crate) struct Compiling;

impl Machine for Compiling {
    fn load(
        &self,
        images: &[&[u8]],
        device: &Limits,
        tuning: Tuning,
    ) -> std::result::Result<Arc<dyn Code>, (Status, String)> {
        let mut texts = Vec::new();
        let mut bytes = 0;
        for image in images {
            let text = ptx(image, device)?;
            bytes += text.len();
            if bytes > TEXTS_MAX {
                let error = format!("the texts of a program have more than {TEXTS_MAX} bytes");
                return Err((Status::INVALID_IMAGE, error));
            }
            texts.push(text);
        }
        let mut texts: Vec<&[u8]> = texts.iter().map(AsRef::as_ref).collect();
        if texts.iter().any(|text| leaves_set_conditional_open(text)) {
            texts.push(conditional::SET_CONDITIONAL);
        }
        let runtime = device_runtime::missing(&texts);
        texts.extend(runtime.map_err(|error| (Status::INVALID_PTX, error.to_string()))?);
        let linked;
        let text = match texts.as_slice() {
            [one] => one,
            [] => return Err((Status::INVALID_IMAGE, "no image".to_owned())),
            several => {
                linked = linked_text(several)?;
                &linked[..]
            }
        };
        match tuning.apply(text).map_err(|error| error.to_string()).and_then(|text| PtxCode::new(&text)) {
            Ok(code) => Ok(Arc::new(code)),
            Err(message) => Err((Status::INVALID_PTX, message)),
        }
    }

    /// A multiprocessor is a part of a thread's time, and needs no other.
    fn partitions(&self, _: ComputeCapability) -> (u8, u8) {
        (1, 1)
    }

    /// A thread of the executor runs one block or the blocks of one cluster, and there may be fewer
    /// of them than multiprocessors; of a cooperative launch each block has its own memory.
    fn threads_with_local_memory(&self, _: &Limits, shape: &Shape, multiprocessors: u32) -> u64 {
        let executor = driver().map_or(1, |driver| driver.threads as u64);
        let product =
            |size: [u32; 3]| size.iter().fold(1_u64, |product, &n| product.saturating_mul(u64::from(n)));
        let blocks = product(shape.grid);
        let at_once = match shape.cooperative {
            true => blocks,
            false => blocks.min(executor.min(multiprocessors.into()) * shape.cluster.map_or(1, product)),
        };
        at_once.saturating_mul(product(shape.block))
    }

    fn way_out(&self) -> &'static str {
        "a module has no PTX that a software GPU can run. Build it with PTX for compute capability 12.0 or lower, or \
         tell the program to hand PTX over (CuPy: CUPY_COMPILE_WITH_PTX=1)"
    }
}

/// One text from those of a program built as relocatable device code.
fn linked_text(texts: &[&[u8]]) -> std::result::Result<Vec<u8>, (Status, String)> {
    let names: Vec<String> = (1..=texts.len()).map(|number| format!("part {number}")).collect();
    let inputs = names.iter().zip(texts).map(|(name, &text)| Input { name, text });
    sluice_ptx::link::link(&inputs.collect::<Vec<_>>())
        .map_err(|error| (link::status_of(&error), error.to_string()))
}

/// Whether a text declares `cudaGraphSetConditional` and has none itself.
fn leaves_set_conditional_open(text: &[u8]) -> bool {
    let name = conditional::SET_CONDITIONAL_NAME;
    let declares = |line: &[u8]| line.starts_with(b".extern .func") && line.ends_with(name);
    text.split(|&byte| byte == b'\n').any(|line| {
        let line = line.trim_ascii();
        declares(line.split(|&byte| byte == b'(').next().unwrap_or_default().trim_ascii())
    })
}

/// The PTX of one image that the device would compile.
fn ptx<'a>(image: &'a [u8], device: &Limits) -> std::result::Result<Cow<'a, [u8]>, (Status, String)> {
    let parsed = Image::parse(image).and_then(|image| image.ptx(device.capability));
    parsed.map_err(|error| (status_of(&error), error.to_string()))
}

struct PtxCode {
    index: ModuleIndex,
    is_small: bool,
    entries: Mutex<HashMap<String, Arc<Slot>>>,
    lines: OnceLock<Arc<SourceLines>>,
    /// Where the coverage of its kernels is recorded.
    coverage: Option<CoveredModule>,
}

/// An entry's place: empty until it is asked for, then its code or why there is none.
type Slot = OnceLock<Result<Arc<Entry>>>;

/// A compiled entry.
pub(crate) struct Entry {
    pub(crate) kernel: CompiledKernel,
    /// The module variables that it and its functions use, with their first contents.
    pub(crate) globals: Vec<Global>,
    pub(crate) needs_heap: bool,
    /// Registers of 32 bits that a thread takes.
    pub(crate) registers: u32,
    /// Lines of the source, for reports of the sanitizer.
    pub(crate) lines: Option<Arc<SourceLines>>,
    /// Where its coverage is recorded.
    pub(crate) coverage: Option<KernelCoverage>,
}

impl Entry {
    /// Bytes of constant variables that it and its functions use, one behind the other.
    pub(crate) fn constant_bytes(&self) -> u32 {
        let constants = self.globals.iter().filter(|global| global.space == Space::Const);
        let end = |end: u64, global: &Global| end.next_multiple_of(global.align.into()) + global.bytes;
        u32::try_from(constants.fold(0, end)).unwrap_or(u32::MAX)
    }
}

/// Registers that a machine keeps for itself beside those for a kernel's values: for the stack and
/// for addresses.
const REGISTERS_RESERVED: u32 = 4;
/// The most that a thread can have, and all that a block has (CUDA C++ Programming Guide, "Compute
/// Capabilities").
const REGISTERS_MAX: u32 = 255;
const REGISTERS_OF_BLOCK: u32 = 64 << 10;

/// Registers that a thread of a kernel takes: what its values need, and no more than `.maxnreg`
/// says and than lets its largest block run, or as many of them as `.minnctapersm` says. A kernel
/// that needs more would spill on a GPU; here values are where they fit.
fn registers(kernel: &sluice_ir::Kernel, entry: &ast::Function) -> u32 {
    let wanted = sluice_ir::analysis::pressure(kernel) + REGISTERS_RESERVED;
    let most = entry.directives.max_registers.unwrap_or(REGISTERS_MAX).clamp(1, REGISTERS_MAX);
    // Without `.maxntid` an assembler does not heed it.
    let has_threads = entry.directives.max_threads.or(entry.directives.required_threads).is_some();
    let blocks = entry.directives.min_blocks_per_sm.filter(|_| has_threads).unwrap_or(1).max(1);
    let threads = threads_max(entry).max(1).saturating_mul(blocks);
    wanted.min(most).min((REGISTERS_OF_BLOCK / threads).max(1))
}

impl PtxCode {
    /// Indexes a PTX text. The error is a message for the JIT error log.
    fn new(text: &[u8]) -> std::result::Result<Self, String> {
        let is_small = text.len() <= SMALL;
        let index = ModuleIndex::new(text).map_err(|error| error.to_string())?;
        // A mistake shows at load, as with the hardware driver, and not when its kernel is first
        // used.
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        index.check(threads).map_err(|error| error.to_string())?;
        if index.address_size() != 64 {
            return Err(format!("{}-bit addresses: only 64-bit PTX runs", index.address_size()));
        }
        let coverage = CoveredModule::new(&index);
        Ok(Self { index, is_small, entries: Mutex::default(), lines: OnceLock::new(), coverage })
    }

    /// The entry as it is declared; device functions are not entries.
    fn declaration(&self, name: &str) -> Result<&ast::Function> {
        self.index.function(name).filter(|function| function.is_entry).ok_or(Status::NOT_FOUND)
    }

    /// The text's line information.
    fn lines(&self) -> &Arc<SourceLines> {
        self.lines.get_or_init(|| Arc::new(SourceLines::new(self.index.text())))
    }

    fn compile(&self, name: &str) -> Result<Arc<Entry>> {
        let complain = |error: &dyn std::fmt::Display| messages::say(format_args!("kernel {name}: {error}"));
        let module = self.index.closure(name).map_err(|error| {
            complain(&error);
            Status::INVALID_PTX
        })?;
        let lower = match self.coverage {
            Some(_) => lower_kernel_with_counters,
            None => lower_kernel,
        };
        let mut kernel = lower(&module, name).map_err(|error| {
            complain(&error);
            Status::INVALID_PTX
        })?;
        match sanitizer() {
            Some(_) => passes::pipeline_with_checks(&mut kernel),
            None => passes::pipeline(&mut kernel),
        }
        if u64::from(kernel.local_bytes) > LOCAL_BYTES_MAX {
            complain(&format_args!(
                "uses too much local memory: {} bytes a thread, and CUDA has at most {LOCAL_BYTES_MAX}",
                kernel.local_bytes
            ));
            return Err(Status::INVALID_PTX);
        }
        if u64::from(kernel.shared.static_bytes) > STATIC_SHARED_MAX {
            complain(&format_args!(
                "uses too much shared data ({:#x} bytes, {STATIC_SHARED_MAX:#x} max)",
                kernel.shared.static_bytes
            ));
            return Err(Status::INVALID_PTX);
        }
        let registers = registers(&kernel, self.declaration(name)?);
        let prepared = execution::compiler()?.prepare(kernel);
        if self.is_small {
            prepared.load([32, 1, 1]).map_err(|error| {
                complain(&error);
                Status::INVALID_PTX
            })?;
        }
        let needs_heap = module.function(DEVICE_MALLOC).is_some();
        let globals = module_globals(&module);
        let lines = sanitizer().map(|_| Arc::clone(self.lines()));
        let coverage = self.coverage.as_ref().map(|module| module.add_kernel(prepared.counters()));
        Ok(Arc::new(Entry { kernel: prepared, globals, needs_heap, registers, lines, coverage }))
    }
}

impl Code for PtxCode {
    fn entry_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for function in self.index.functions().iter().filter(|function| function.is_entry) {
            if !names.contains(&&*function.name) {
                names.push(&function.name);
            }
        }
        names
    }

    fn signature(&self, name: &str) -> Result<Signature> {
        Signature::of_ptx(self.declaration(name)?)
    }

    /// Others who ask for the same one wait.
    fn kernel(&self, name: &str) -> Result<Arc<dyn Kernel>> {
        let place = {
            let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(entries.entry(name.to_owned()).or_default())
        };
        match place.get_or_init(|| execution::within_compile_limit(name, || self.compile(name))) {
            Ok(entry) => Ok(Arc::clone(entry) as Arc<dyn Kernel>),
            Err(status) => Err(*status),
        }
    }

    fn global(&self, name: &str) -> Result<Global> {
        ptx_global(&self.index, name)
    }

    fn is_function(&self, name: &str) -> bool {
        self.index.function(name).is_some()
    }

    fn ptx_version(&self) -> i32 {
        ptx_version(&self.index)
    }
}

impl Signature {
    /// As an entry is declared.
    pub fn of_ptx(function: &ast::Function) -> Result<Signature> {
        let directives = &function.directives;
        Ok(Signature {
            params: params(function)?,
            threads_max: threads_max(function),
            required_threads: directives.required_threads,
            explicit_cluster: directives.explicit_cluster,
            required_cluster: directives.required_cluster,
            max_cluster_blocks: directives.max_cluster_rank,
        })
    }
}

/// The module variable of this name, with its first contents.
pub fn ptx_global(index: &ModuleIndex, name: &str) -> Result<Global> {
    let variable: Variable = index.parse_variable(name).ok_or(Status::NOT_FOUND)?.map_err(|error| {
        messages::say(format_args!("variable {name}: {error}"));
        Status::INVALID_PTX
    })?;
    let module = ast::Module { variables: vec![variable], ..Default::default() };
    module_globals(&module).pop().ok_or(Status::NOT_FOUND)
}

/// Version of the virtual architecture that a text is for: 90 for `sm_90a`.
pub fn ptx_version(index: &ModuleIndex) -> i32 {
    let target = index.target().first().map_or("", |target| &**target);
    let digits: String = target.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

/// Threads that a block of this entry may have (`.maxntid`, `.reqntid`), at most 1024.
fn threads_max(function: &ast::Function) -> u32 {
    let directives = &function.directives;
    let limit = directives.required_threads.or(directives.max_threads);
    limit
        .map_or(1024, |limit| limit.iter().fold(1u32, |product, &n| product.saturating_mul(n)).clamp(1, 1024))
}

/// Offset and size in bytes of each parameter of an entry.
fn params(function: &ast::Function) -> Result<Vec<(u64, u64)>> {
    let slots: Vec<(u64, u64)> = function.params.iter().map(|param| (param.offset, param.size)).collect();
    let fit = |&(offset, size): &(u64, u64)| offset.checked_add(size).is_some_and(|end| end <= PARAMS_MAX);
    if slots.iter().all(fit) { Ok(slots) } else { Err(Status::INVALID_PTX) }
}
