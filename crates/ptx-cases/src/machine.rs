//! One way to run a kernel for each back end: the reference interpreter and compiled code.

use std::fmt;
use std::ops::Range;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sluice_ir::interp::{self, InterpFault, SparseMemory};
use sluice_ir::lower::{Global, function_address, lower_kernel, module_globals};
use sluice_ir::{Kernel, passes, verify};
use sluice_jit::{
    CompiledKernel, Compiler, Control, DeviceHeap, Executor, FaultKind, LaunchConfig, LaunchError,
    LaunchMemory,
};
use sluice_sanitize::{self as sanitize, Finding, LaunchInfo, NewRegion, Sanitizer, Tools};

/// An entry that all back ends are to run.
pub struct Program {
    /// As lowered.
    lowered: Kernel,
    /// Behind the passes.
    optimized: Kernel,
    code: CompiledKernel,
    /// The kernel again, for code by LLVM.
    better: CompiledKernel,
    globals: Vec<Global>,
}

/// A launch, but for where its buffers are.
#[derive(Clone, Debug)]
pub struct Launch {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Blocks of a cluster.
    pub cluster: Option<[u32; 3]>,
    /// Whether blocks may wait for each other.
    pub cooperative: bool,
    pub shared_bytes: u32,
    /// Stack of each thread.
    pub stack_bytes: u32,
    pub args: Vec<Arg>,
}

#[derive(Clone, Debug)]
pub enum Arg {
    /// Memory with this content, passed by address.
    Buffer(Vec<u8>),
    /// Passed by value.
    Value(Vec<u8>),
}

/// What a launch left behind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Contents of the buffers among the arguments, in order.
    pub buffers: Vec<Vec<u8>>,
    pub printed: String,
}

/// How device code fails, as far as back ends must agree; spelled as here (lower case) in cases.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    IllegalAddress,
    MisalignedAddress,
    IllegalInstruction,
    Trap,
    Assert,
    Deadlock,
    /// What the compiler could not do was reached.
    Missing,
    StackOverflow,
    /// It did not end, or could not start; never expected.
    Other(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::IllegalAddress => "illegal address",
            Fault::MisalignedAddress => "misaligned address",
            Fault::IllegalInstruction => "illegal instruction",
            Fault::Trap => "trap",
            Fault::Assert => "assert",
            Fault::Deadlock => "deadlock",
            Fault::Missing => "missing",
            Fault::StackOverflow => "stack overflow",
            Fault::Other(reason) => reason,
        })
    }
}

/// Instructions that the interpreter executes at most.
const STEPS_MAX: u64 = 1 << 26;
/// After this time compiled code counts as endless.
const WATCHDOG: Duration = Duration::from_secs(30);
/// Distance of device addresses in the interpreter, where nothing is mapped.
const INTERP_BASE: u64 = 1 << 32;

impl Program {
    /// Parses, lowers, optimizes and compiles. The error is the first stage's that refuses.
    pub fn new(text: &str, entry: &str) -> Result<Program, String> {
        let module = sluice_ptx::parse(text).map_err(|error| error.to_string())?;
        let lowered = lower_kernel(&module, entry).map_err(|error| error.to_string())?;
        verify::verify(&lowered).map_err(|error| format!("after lowering: {error}"))?;
        let mut optimized = lowered.clone();
        passes::pipeline(&mut optimized);
        verify::verify_scheduled(&optimized).map_err(|error| format!("after the passes: {error}"))?;
        let compiler = Compiler::new().map_err(|error| error.to_string())?;
        let code = compiler.compile(&optimized).map_err(|error| error.to_string())?;
        let better = compiler.prepare(optimized.clone());
        Ok(Program { lowered, optimized, code, better, globals: module_globals(&module) })
    }

    /// Runs on the interpreter. Seed 0 takes the kernel as lowered, others take it behind the
    /// passes.
    pub fn interpret(&self, launch: &Launch, seed: u64) -> Result<Outcome, Fault> {
        let kernel = if seed == 0 { &self.lowered } else { &self.optimized };
        let mut memory = SparseMemory::default();
        let mut next = INTERP_BASE;
        let placed = self.place(launch, &mut |bytes| {
            let address = next;
            next += (bytes.len() as u64).next_multiple_of(PAGE) + PAGE;
            memory.insert(address, bytes.to_vec());
            address
        });
        for (address, bytes) in &placed.relocated {
            memory.insert(*address, bytes.clone());
        }
        let launch = interp::Launch {
            kernel,
            grid: launch.grid,
            block: launch.block,
            cluster: launch.cluster,
            dynamic_shared_bytes: launch.shared_bytes,
            stack_bytes: launch.stack_bytes,
            params: &placed.params,
            globals: &placed.globals,
            seed,
            steps_max: STEPS_MAX,
        };
        interp::run(&launch, &mut memory).map_err(|fault| match fault {
            InterpFault::IllegalAddress { .. } => Fault::IllegalAddress,
            InterpFault::MisalignedAddress { .. } => Fault::MisalignedAddress,
            InterpFault::Trap => Fault::Trap,
            InterpFault::Assert => Fault::Assert,
            InterpFault::Deadlock => Fault::Deadlock,
            InterpFault::Missing => Fault::Missing,
            InterpFault::StackOverflow => Fault::StackOverflow,
            other => Fault::Other(other.to_string()),
        })?;
        let buffers = placed.buffers.iter().map(|(at, _)| memory.get(*at).unwrap_or_default().to_vec());
        Ok(Outcome { buffers: buffers.collect(), printed: String::new() })
    }

    /// Runs compiled code, up to `threads` blocks at a time.
    pub fn execute(&self, launch: &Launch, threads: usize) -> Result<Outcome, Fault> {
        self.execute_code(&self.code, launch, threads, None)
    }

    /// Runs code by LLVM; None where its library is not there, or does not cover the kernel.
    pub fn execute_by_llvm(&self, launch: &Launch, threads: usize) -> Option<Result<Outcome, Fault>> {
        self.better.optimize(launch.block).ok()?;
        Some(self.execute_code(&self.better, launch, threads, None))
    }

    /// Runs instrumented code; what was found as well.
    pub fn execute_checked(
        &self,
        launch: &Launch,
        threads: usize,
    ) -> Result<(Result<Outcome, Fault>, Vec<Finding>), String> {
        let mut kernel = self.lowered.clone();
        passes::pipeline_with_checks(&mut kernel);
        verify::verify_scheduled(&kernel).map_err(|error| format!("after instrumenting: {error}"))?;
        let compiler = Compiler::new().map_err(|error| error.to_string())?;
        let code = compiler.compile(&kernel).map_err(|error| error.to_string())?;
        let sanitizer = Sanitizer::new(Tools::default(), None);
        let outcome = self.execute_code(&code, launch, threads, Some(&sanitizer));
        Ok((outcome, sanitizer.findings()))
    }

    fn execute_code(
        &self,
        code: &CompiledKernel,
        launch: &Launch,
        threads: usize,
        sanitizer: Option<&Arc<Sanitizer>>,
    ) -> Result<Outcome, Fault> {
        let mut device = Device::new();
        let allocated = |base, bytes| {
            if let Some(sanitizer) = sanitizer {
                let label = "a buffer";
                sanitizer.allocated(NewRegion { base, bytes, label, is_written: true, can_leak: false });
            }
        };
        let placed = self.place(launch, &mut |bytes| {
            let address = device.allocate(bytes);
            allocated(address, bytes.len() as u64);
            address
        });
        allocated(device.heap().start, HEAP_BYTES);
        let watched = sanitizer.map(|sanitizer| {
            let info = LaunchInfo {
                kernel: code.name().to_owned(),
                block: launch.block,
                grid: launch.grid,
                source: Arc::new(|_| None),
            };
            sanitize::Launch::begin(sanitizer, info)
        });
        for (address, bytes) in &placed.relocated {
            device.write(*address, bytes);
        }
        let heap = DeviceHeap::new(device.heap());
        let config = LaunchConfig {
            grid: launch.grid,
            block: launch.block,
            cluster: launch.cluster,
            cooperative: launch.cooperative,
            dynamic_shared_bytes: launch.shared_bytes,
            stack_bytes: launch.stack_bytes,
            params: &placed.params,
            globals: &placed.globals,
            monitor: watched.as_ref(),
            ..LaunchConfig::default()
        };
        let memory = LaunchMemory { range: device.range(), arena: device.arena(), heap: Some(&heap) };
        let executor = Executor::new(threads).map_err(|error| Fault::Other(error.to_string()))?;
        let printed = Arc::new(Mutex::new(String::new()));
        let sink = printed.clone();
        let control = Control::new().launch(Some(Arc::new(move |bytes: &[u8]| {
            let mut printed = sink.lock().unwrap_or_else(PoisonError::into_inner);
            printed.push_str(&String::from_utf8_lossy(bytes));
        })));
        let result = std::thread::scope(|scope| {
            let (done, waiting) = channel::<()>();
            let control = &control;
            scope.spawn(move || {
                if waiting.recv_timeout(WATCHDOG) == Err(RecvTimeoutError::Timeout) {
                    control.cancel();
                }
            });
            let result = executor.launch(code, &config, &memory, control);
            drop(done);
            result
        });
        result.map_err(|error| match &error {
            LaunchError::Fault(fault) => match fault.kind {
                FaultKind::IllegalAddress { .. } | FaultKind::OutOfWindow { .. } => Fault::IllegalAddress,
                FaultKind::MisalignedAddress { .. } => Fault::MisalignedAddress,
                FaultKind::IllegalInstruction => Fault::IllegalInstruction,
                FaultKind::Trap => Fault::Trap,
                FaultKind::Assert => Fault::Assert,
                FaultKind::Deadlock => Fault::Deadlock,
                FaultKind::Missing { .. } => Fault::Missing,
                FaultKind::StackOverflow => Fault::StackOverflow,
                _ => Fault::Other(error.to_string()),
            },
            _ => Fault::Other(error.to_string()),
        })?;
        let buffers = placed.buffers.iter().map(|&(at, len)| device.read(at, len)).collect();
        let printed = printed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Outcome { buffers, printed })
    }

    /// Gives every buffer and module variable an address.
    fn place(&self, launch: &Launch, allocate: &mut dyn FnMut(&[u8]) -> u64) -> Placed {
        let mut placed = Placed { params: vec![0; self.lowered.params.bytes as usize], ..Placed::default() };
        for (arg, slot) in launch.args.iter().zip(&self.lowered.params.params) {
            let bytes = match arg {
                Arg::Buffer(content) => {
                    let address = allocate(content);
                    placed.buffers.push((address, content.len()));
                    &address.to_le_bytes().to_vec()
                }
                Arg::Value(bytes) => bytes,
            };
            let start = slot.offset as usize;
            let bytes = &bytes[..bytes.len().min(slot.bytes as usize)];
            placed.params[start..start + bytes.len()].copy_from_slice(bytes);
        }
        let initial = |global: &Global| {
            let mut bytes = global.init.clone();
            bytes.resize(global.bytes as usize, 0);
            bytes
        };
        let addresses: Vec<u64> = self.globals.iter().map(|global| allocate(&initial(global))).collect();
        let address_of = |name: &str| {
            let index = self.globals.iter().position(|global| global.name == name);
            index.map_or_else(|| function_address(name), |index| addresses[index])
        };
        placed.globals = self.lowered.globals.iter().map(|name| address_of(name)).collect();
        for (global, address) in self.globals.iter().zip(&addresses) {
            if global.relocations.is_empty() {
                continue;
            }
            let mut bytes = initial(global);
            for relocation in &global.relocations {
                let target = address_of(&relocation.symbol).wrapping_add(relocation.addend as u64);
                let stored = (target & relocation.mask) >> relocation.mask.trailing_zeros();
                let at = relocation.offset as usize;
                let len = relocation.bytes as usize;
                bytes[at..at + len].copy_from_slice(&stored.to_le_bytes()[..len]);
            }
            placed.relocated.push((*address, bytes));
        }
        placed
    }
}

#[derive(Default)]
struct Placed {
    params: Vec<u8>,
    /// Address and length of each buffer.
    buffers: Vec<(u64, usize)>,
    globals: Vec<u64>,
    /// Module variables that hold addresses.
    relocated: Vec<(u64, Vec<u8>)>,
}

const RANGE_BYTES: u64 = 1 << 32;
const ARENA_BYTES: u64 = 256 << 20;
const HEAP_BYTES: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// Device memory for one launch: buffers from the start of a reserved range, heap and arena at its
/// end, unmapped pages between all of them.
struct Device {
    base: u64,
    next: u64,
}

impl Device {
    fn new() -> Device {
        // SAFETY: a fresh reservation that nothing else uses.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                RANGE_BYTES as usize,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED, "4 GiB of addresses");
        let device = Device { base: base as u64, next: base as u64 };
        device.open(device.arena());
        device.open(device.heap());
        device
    }

    fn range(&self) -> Range<u64> {
        self.base..self.base + RANGE_BYTES
    }

    fn arena(&self) -> Range<u64> {
        self.range().end - ARENA_BYTES..self.range().end
    }

    fn heap(&self) -> Range<u64> {
        let end = self.arena().start - PAGE;
        end - HEAP_BYTES..end
    }

    fn open(&self, range: Range<u64>) {
        let (start, len) = (range.start as *mut libc::c_void, (range.end - range.start) as usize);
        // SAFETY: inside our own reservation.
        let result = unsafe { libc::mprotect(start, len, libc::PROT_READ | libc::PROT_WRITE) };
        assert_eq!(result, 0, "memory for a buffer");
    }

    fn allocate(&mut self, content: &[u8]) -> u64 {
        let len = (content.len() as u64).next_multiple_of(PAGE).max(PAGE);
        let address = self.next;
        assert!(address + len + PAGE < self.heap().start, "buffers fit");
        self.open(address..address + len);
        self.next = address + len + PAGE;
        self.write(address, content);
        address
    }

    fn write(&self, address: u64, content: &[u8]) {
        // SAFETY: `allocate` mapped at least this much at the address.
        unsafe { (address as *mut u8).copy_from_nonoverlapping(content.as_ptr(), content.len()) };
    }

    fn read(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: as in `write`; no kernel runs any more.
        unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(address as *const u8, len) };
        bytes
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: `new` mapped exactly this, and no launch outlives the device.
        unsafe { libc::munmap(self.base as *mut libc::c_void, RANGE_BYTES as usize) };
    }
}
