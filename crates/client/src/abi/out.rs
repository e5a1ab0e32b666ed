//! Writing through the pointers that programs pass.

use sluice_cuda::CUresult;

/// Writes a result that the program must want: null is `CUDA_ERROR_INVALID_VALUE`.
///
/// # Safety
/// `to` is null or valid for writing a `T`.
pub(crate) unsafe fn write<T>(to: *mut T, value: T) -> Result<(), CUresult> {
    if to.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller vouches for the rest. Programs may pack structures, so no
    // alignment is assumed.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Writes a result where null means that the program does not want it.
///
/// # Safety
/// `to` is null or valid for writing a `T`.
pub(crate) unsafe fn write_if_wanted<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: as above.
        unsafe { to.write_unaligned(value) };
    }
}

/// Refuses a question of which neither answer is wanted.
pub(crate) fn one_wanted<A, B>(first: *mut A, second: *mut B) -> Result<(), CUresult> {
    if first.is_null() && second.is_null() { Err(CUresult::INVALID_VALUE) } else { Ok(()) }
}

/// Writes `text` and a NUL into `length` bytes, cutting the text if it is longer.
///
/// # Safety
/// `to` is null or valid for writing `length` bytes.
pub(crate) unsafe fn write_text(to: *mut std::ffi::c_char, length: i32, text: &str) -> Result<(), CUresult> {
    let length = usize::try_from(length).unwrap_or(0);
    if to.is_null() || length == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let kept = text.len().min(length - 1);
    // SAFETY: at most `length` bytes are written, which the caller vouches for.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), kept);
        to.add(kept).write(0);
    }
    Ok(())
}
