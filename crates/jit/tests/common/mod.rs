//! Device memory for tests, and the way from PTX to a launch.

#![allow(dead_code)] // Each test binary uses a part of this.

use std::ops::Range;

use sluice_ir::Kernel;
use sluice_jit::{
    CompiledKernel, Compiler, Control, Executor, LaunchConfig, LaunchError, LaunchMemory, LaunchStats,
};

/// A reserved device address range: buffers at its start, an arena at its end, and nothing mapped
/// between.
pub(crate) struct Device {
    pub(crate) executor: Executor,
    pub(crate) control: Control,
    base: u64,
    next: u64,
    arena: Range<u64>,
}

const RANGE_BYTES: usize = 1 << 32;
const ARENA_BYTES: u64 = 256 << 20;
const PAGE: u64 = 4096;
/// Buffers of at least this many bytes start at a multiple of it.
const HUGE_PAGE: u64 = 2 << 20;

impl Device {
    pub(crate) fn new(threads: usize) -> Device {
        // SAFETY: a fresh reservation.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                RANGE_BYTES,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED);
        let base = base as u64;
        let end = base + RANGE_BYTES as u64;
        let arena = end - ARENA_BYTES..end;
        open(arena.clone());
        let executor = Executor::new(threads).expect("threads start");
        Device { executor, control: Control::new(), base, next: base, arena }
    }

    /// A buffer with this content; an unmapped page follows it.
    pub(crate) fn buffer(&mut self, content: &[u8]) -> u64 {
        let is_large = content.len() as u64 >= HUGE_PAGE;
        let address = if is_large { self.next.next_multiple_of(HUGE_PAGE) } else { self.next };
        let len = (content.len() as u64).next_multiple_of(PAGE).max(PAGE);
        open(address..address + len);
        self.next = address + len + PAGE;
        // SAFETY: just mapped, and long enough.
        unsafe { (address as *mut u8).copy_from_nonoverlapping(content.as_ptr(), content.len()) };
        address
    }

    pub(crate) fn floats(&mut self, values: &[f32]) -> u64 {
        self.buffer(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
    }

    pub(crate) fn words(&mut self, values: &[u32]) -> u64 {
        self.buffer(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
    }

    pub(crate) fn read(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: tests read what `buffer` mapped.
        unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(address as *const u8, len) };
        bytes
    }

    pub(crate) fn read_words(&self, address: u64, count: usize) -> Vec<u32> {
        self.read(address, 4 * count)
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
            .collect()
    }

    pub(crate) fn read_floats(&self, address: u64, count: usize) -> Vec<f32> {
        self.read_words(address, count).into_iter().map(f32::from_bits).collect()
    }

    pub(crate) fn memory(&self) -> LaunchMemory<'static> {
        LaunchMemory {
            range: self.base..self.base + RANGE_BYTES as u64,
            arena: self.arena.clone(),
            heap: None,
        }
    }

    pub(crate) fn launch(
        &self,
        kernel: &CompiledKernel,
        config: &LaunchConfig<'_>,
    ) -> Result<LaunchStats, LaunchError> {
        self.executor.launch(kernel, config, &self.memory(), &self.control.launch(None))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: `new` mapped exactly this.
        unsafe { libc::munmap(self.base as *mut libc::c_void, RANGE_BYTES) };
    }
}

fn open(range: Range<u64>) {
    let (start, len) = (range.start as *mut libc::c_void, (range.end - range.start) as usize);
    // SAFETY: inside the test's own reservation.
    let result = unsafe { libc::mprotect(start, len, libc::PROT_READ | libc::PROT_WRITE) };
    assert_eq!(result, 0);
    // As the driver does it; where there are no huge pages, small ones do.
    // SAFETY: as above.
    unsafe { libc::madvise(start, len, libc::MADV_HUGEPAGE) };
}

/// The kernel `entry` of a PTX text, ready for a back end.
pub(crate) fn lower(text: &str, entry: &str) -> Kernel {
    let module = sluice_ptx::parse(text).expect("the text parses");
    let mut kernel = sluice_ir::lower::lower_kernel(&module, entry).expect("the kernel lowers");
    sluice_ir::passes::pipeline(&mut kernel);
    sluice_ir::verify::verify_scheduled(&kernel).expect("the kernel is well formed");
    kernel
}

pub(crate) fn compile(text: &str, entry: &str) -> CompiledKernel {
    Compiler::new().expect("this processor").compile(&lower(text, entry)).expect("the kernel compiles")
}

/// A parameter buffer from 64-bit and 32-bit values, each at its own alignment.
#[derive(Default)]
pub(crate) struct Params(pub(crate) Vec<u8>);

impl Params {
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.0.resize(self.0.len().next_multiple_of(bytes.len()), 0);
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn pointer(mut self, address: u64) -> Params {
        self.put(&address.to_le_bytes());
        self
    }

    pub(crate) fn word(mut self, value: u32) -> Params {
        self.put(&value.to_le_bytes());
        self
    }

    pub(crate) fn float(self, value: f32) -> Params {
        self.word(value.to_bits())
    }
}

/// Who makes the machine code of a test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Generator {
    Cranelift,
    Llvm,
}

/// The generators that are here; says so where LLVM is not.
pub(crate) fn generators() -> Vec<Generator> {
    match sluice_jit::llvm_library() {
        Ok(_) => vec![Generator::Cranelift, Generator::Llvm],
        Err(reason) => {
            println!("SKIPPED with LLVM: {reason}");
            vec![Generator::Cranelift]
        }
    }
}
