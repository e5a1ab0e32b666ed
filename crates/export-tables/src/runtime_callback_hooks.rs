//! TOOLS_RUNTIME_CALLBACK_HOOKS: buffers in which tools would leave their hooks. Every runtime
//! requires it.

use std::cell::UnsafeCell;
use std::ffi::c_void;

use crate::Table;

/// A094798C-2E74-2E74-93F2-0800200C0A66
pub(crate) const UUID: [u8; 16] = 0xA094798C_2E74_2E74_93F2_0800200C0A66_u128.to_be_bytes();

static TABLE: Table<7> =
    Table::sized().with(2, callback_buffer as *const c_void).with(6, enabled_buffer as *const c_void);

pub(crate) fn address() -> *const c_void {
    TABLE.address()
}

/// Memory that its receivers may write, but which this crate never looks at again.
struct Buffer<const N: usize>(UnsafeCell<[u64; N]>);

// SAFETY: only the address leaves this module, and nothing here reads or writes what is behind it.
unsafe impl<const N: usize> Sync for Buffer<N> {}

static CALLBACK_BUFFER: Buffer<1024> = Buffer(UnsafeCell::new([0; 1024]));
static ENABLED_BUFFER: Buffer<14> = Buffer(UnsafeCell::new([0; 14]));

/// Slot 2 (public, measured): a zeroed buffer of 1024 words, in which zero means that no tool
/// listens.
unsafe extern "C" fn callback_buffer(buffer: *mut *mut c_void, words: *mut usize) {
    // SAFETY: the runtime passes two places to write to.
    unsafe { hand_out(&CALLBACK_BUFFER, buffer, words) }
}

/// Slot 6 (public, measured): a second zeroed buffer, of 14 words.
unsafe extern "C" fn enabled_buffer(buffer: *mut *mut c_void, words: *mut usize) {
    // SAFETY: the runtime passes two places to write to.
    unsafe { hand_out(&ENABLED_BUFFER, buffer, words) }
}

/// # Safety
/// `buffer` and `words` are null or valid for writing.
unsafe fn hand_out<const N: usize>(from: &'static Buffer<N>, buffer: *mut *mut c_void, words: *mut usize) {
    if buffer.is_null() || words.is_null() {
        return;
    }
    // SAFETY: neither is null, and the caller vouches for the rest.
    unsafe {
        buffer.write(from.0.get().cast());
        words.write(N);
    }
}
