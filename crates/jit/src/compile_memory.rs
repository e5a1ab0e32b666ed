//! How much memory compilations may take, all threads together.
//!
//! What a kernel takes is estimated from its size before its compilation begins: the code generator
//! cannot be stopped. Its time grows with the same numbers, so a limit on memory is one on time as
//! well.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use sluice_ir::Kernel;

use crate::compile::CompileError;

/// Bytes that the code generator takes for a block and for an instruction, measured on kernels of
/// 500 to 8,000 blocks and of 15,000 to 60,000 instructions.
const BLOCK_BYTES: u64 = 88 << 10;
const INSTRUCTION_BYTES: u64 = 2700;

/// The limit unless one is set.
const MAX: u64 = 2 << 30;

/// The account of all compilations of a process.
pub(crate) struct CompileMemory {
    max: AtomicU64,
    used: Mutex<u64>,
    given_back: Condvar,
}

impl Default for CompileMemory {
    fn default() -> CompileMemory {
        CompileMemory { max: AtomicU64::new(MAX), used: Mutex::new(0), given_back: Condvar::new() }
    }
}

/// Memory that a compilation takes while this is there.
pub(crate) struct CompileGrant<'m> {
    of: &'m CompileMemory,
    bytes: u64,
}

impl CompileMemory {
    pub(crate) fn set_max(&self, bytes: u64) {
        self.max.store(bytes, Ordering::Relaxed);
    }

    /// Waits until other compilations leave room for this kernel. Refuses what the limit has no
    /// room for at all.
    pub(crate) fn take(&self, kernel: &Kernel) -> Result<CompileGrant<'_>, CompileError> {
        let blocks = kernel.blocks.len();
        let instructions: usize = kernel.blocks.iter().map(|block| block.insts.len()).sum();
        let bytes = blocks as u64 * BLOCK_BYTES + instructions as u64 * INSTRUCTION_BYTES;
        let max = self.max.load(Ordering::Relaxed);
        if bytes > max {
            let kernel = kernel.name.clone();
            let [needed_mib, max_mib] = [bytes, max].map(|bytes| bytes >> 20);
            return Err(CompileError::TooLarge { kernel, blocks, instructions, needed_mib, max_mib });
        }
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        while *used > 0 && *used + bytes > max {
            used = self.given_back.wait(used).unwrap_or_else(PoisonError::into_inner);
        }
        *used += bytes;
        Ok(CompileGrant { of: self, bytes })
    }
}

impl Drop for CompileGrant<'_> {
    fn drop(&mut self) {
        *self.of.used.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes;
        self.of.given_back.notify_all();
    }
}
