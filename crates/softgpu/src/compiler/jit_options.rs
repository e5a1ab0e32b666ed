//! Options of the functions that load and link code: the log buffers, the time that it takes, and
//! limits for all kernels. The other options tune machine code that does not exist here and change
//! nothing (CUDA Driver API, `CUjit_option`).

use std::ffi::{c_char, c_void};
use std::time::Instant;

use sluice_cuda::CUjit_option;
use sluice_ptx::Tuning;

/// Where one call tells what it has done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Logs {
    error: Buffer,
    info: Buffer,
    /// The value of the option that asks for the time, or null.
    wall_time: *mut *mut c_void,
    begun: Instant,
    /// What the options demand of all kernels.
    pub(crate) tuning: Tuning,
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
    /// Both arrays are null or have `count` elements, and stay until the last use of the result.
    /// Each value is what its option demands.
    pub(crate) unsafe fn find(count: u32, options: *mut CUjit_option, values: *mut *mut c_void) -> Self {
        let (error, info, wall_time) = (Buffer::NONE, Buffer::NONE, std::ptr::null_mut());
        let mut logs = Self { error, info, wall_time, begun: Instant::now(), tuning: Tuning::default() };
        if options.is_null() || values.is_null() {
            return logs;
        }
        for index in 0..count as usize {
            // SAFETY: by this function's contract.
            let (option, value) = unsafe { (options.add(index).read_unaligned(), values.add(index)) };
            // SAFETY: by this function's contract.
            let read = || unsafe { value.read_unaligned() };
            // Numbers of 32 bits in the place of a pointer; programs leave the upper half unset.
            let number = || read() as usize as u32;
            match option {
                // Of two the first counts.
                CUjit_option::MAX_REGISTERS => {
                    logs.tuning.registers_max.get_or_insert(number());
                }
                CUjit_option::MAX_THREADS_PER_BLOCK => {
                    logs.tuning.threads_max.get_or_insert(number());
                }
                CUjit_option::MIN_CTA_PER_SM => {
                    logs.tuning.blocks_min.get_or_insert(number());
                }
                CUjit_option::OVERRIDE_DIRECTIVE_VALUES => logs.tuning.overrides |= number() != 0,
                CUjit_option::WALL_TIME => logs.wall_time = value,
                CUjit_option::ERROR_LOG_BUFFER => logs.error.text = read().cast(),
                CUjit_option::ERROR_LOG_BUFFER_SIZE_BYTES => logs.error.size = value,
                CUjit_option::INFO_LOG_BUFFER => logs.info.text = read().cast(),
                CUjit_option::INFO_LOG_BUFFER_SIZE_BYTES => logs.info.size = value,
                _ => {}
            }
        }
        logs
    }

    /// The time counts from now on.
    pub(crate) fn begin(&mut self) {
        self.begun = Instant::now();
    }

    /// Tells what went wrong, empty for nothing, and how long it took: a `float` of milliseconds in
    /// the place of the option's value.
    pub(crate) fn finish(&self, error: &str) {
        self.error.write(error);
        self.info.write("");
        if !self.wall_time.is_null() {
            let time = self.begun.elapsed().as_secs_f32() * 1e3;
            // SAFETY: the pointer was taken from the caller's array of option values.
            unsafe { self.wall_time.cast::<f32>().write_unaligned(time) };
        }
    }
}
