//! Results of driver functions.

use std::panic::{AssertUnwindSafe, catch_unwind};

pub(crate) use sluice_cuda::CUresult as Status;

/// What the parts of the driver return; the error is what the program sees.
pub(crate) type Result<T> = std::result::Result<T, Status>;

/// Runs the body of a driver function. No panic may cross into the C caller: one that happens is a
/// bug of this driver, which the panic's message has already reported on stderr, and the program
/// gets `CUDA_ERROR_UNKNOWN`.
pub(crate) fn call(body: impl FnOnce() -> Result<()>) -> Status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::SUCCESS,
        Ok(Err(status)) => status,
        Err(_) => Status::UNKNOWN,
    }
}

/// Stores a result where the caller asked for it; a null pointer is the caller's error.
///
/// # Safety
/// `place` is null or points to writable memory for a `T`, as the CUDA Driver API demands of output
/// arguments.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) -> Result<()> {
    if place.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: not null, and writable by this function's contract; C callers may pass unaligned
    // addresses.
    unsafe { place.write_unaligned(value) };
    Ok(())
}

/// Stores a result that the caller may have left out by passing a null pointer.
///
/// # Safety
/// As for [`put`].
pub(crate) unsafe fn put_optional<T>(place: *mut T, value: T) {
    // SAFETY: handed on; a null pointer is an answer that is not wanted.
    let _ = unsafe { put(place, value) };
}

/// Refuses a null output pointer before anything is done that would have to be undone.
pub(crate) fn require<T>(place: *const T) -> Result<()> {
    if place.is_null() { Err(Status::INVALID_VALUE) } else { Ok(()) }
}

/// Refuses a question of which neither answer is wanted.
pub(crate) fn require_one<A, B>(first: *const A, second: *const B) -> Result<()> {
    if first.is_null() && second.is_null() { Err(Status::INVALID_VALUE) } else { Ok(()) }
}
