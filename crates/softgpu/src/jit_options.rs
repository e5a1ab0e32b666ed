//! Options of the functions that load and link code: the log buffers. The other options tune machine code
//! that does not exist here and change nothing (CUDA Driver API, `CUjit_option`).

use std::ffi::{c_char, c_void};

use sluice_cuda::CUjit_option;

/// The log buffers of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Logs {
    error: Buffer,
    info: Buffer,
}

/// A buffer for text, and where in the option values its size stands.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    text: *mut c_char,
    size: *mut *mut c_void,
}

impl Buffer {
    const NONE: Buffer = Buffer { text: std::ptr::null_mut(), size: std::ptr::null_mut() };

    /// Writes the text, cut to the buffer, and how much of it was written.
    fn write(self, text: &str) {
        if self.size.is_null() {
            return;
        }
        // SAFETY: the pointer was taken from the caller's array of option values.
        let size = unsafe { self.size.read_unaligned() } as usize;
        let text = &text.as_bytes()[..text.len().min(size.saturating_sub(1))];
        if !self.text.is_null() && size > 0 {
            // SAFETY: the caller says that the buffer has `size` bytes; text and NUL are no more.
            unsafe {
                std::ptr::copy_nonoverlapping(text.as_ptr(), self.text.cast(), text.len());
                self.text.add(text.len()).write(0);
            }
        }
        // SAFETY: as for the read.
        unsafe { self.size.write_unaligned(std::ptr::without_provenance_mut(text.len())) };
    }
}

impl Logs {
    /// Finds the log buffers among `count` options.
    ///
    /// # Safety
    /// Both arrays are null or have `count` elements, and stay until the last use of the result. Each value is
    /// what its option demands.
    pub(crate) unsafe fn find(count: u32, options: *mut CUjit_option, values: *mut *mut c_void) -> Self {
        let mut logs = Self { error: Buffer::NONE, info: Buffer::NONE };
        if options.is_null() || values.is_null() {
            return logs;
        }
        for index in 0..count as usize {
            // SAFETY: by this function's contract.
            let (option, value) = unsafe { (options.add(index).read_unaligned(), values.add(index)) };
            // SAFETY: by this function's contract.
            let read = || unsafe { value.read_unaligned() };
            match option {
                CUjit_option::ERROR_LOG_BUFFER => logs.error.text = read().cast(),
                CUjit_option::ERROR_LOG_BUFFER_SIZE_BYTES => logs.error.size = value,
                CUjit_option::INFO_LOG_BUFFER => logs.info.text = read().cast(),
                CUjit_option::INFO_LOG_BUFFER_SIZE_BYTES => logs.info.size = value,
                _ => {}
            }
        }
        logs
    }

    /// Tells what went wrong; empty for nothing.
    pub(crate) fn finish(&self, error: &str) {
        self.error.write(error);
        self.info.write("");
    }
}
