//! What the generated stubs ask of a session.

use sluice_cuda::{CUdeviceptr, CUresult};
use sluice_wire::{Command, DevicePtr, Handle};

pub(crate) use crate::session::answers::About;

/// A session as the generated stubs see it.
///
/// A command whose function the node's driver lacks is refused here, by
/// `DeviceSnapshot::functions`: once queued, its failure would be another call's, or the session's.
pub(crate) trait Issue {
    /// Sends a command and does not wait. The error of an earlier one may come back.
    fn queue<C: Command>(&self, command: &C) -> Result<(), CUresult>;

    /// Sends a command, waits, and gives its answer to `read`.
    fn call<C: Command, R>(
        &self,
        command: &C,
        read: impl for<'a> FnOnce(C::Reply<'a>) -> R,
    ) -> Result<R, CUresult>;

    /// As `call`, for a question whose answer follows from its arguments and what it is `about`: it
    /// is sent once, and again when that has changed.
    fn ask<C: Command, R>(
        &self,
        about: About,
        command: &C,
        read: impl for<'a> FnOnce(C::Reply<'a>) -> R,
    ) -> Result<R, CUresult>;

    /// The number of a live handle, default streams included.
    fn find<H: Handle>(&self, handle: H) -> Result<H::Id, CUresult>;

    /// Makes a handle of an object that the worker is about to make.
    fn mint<H: Handle>(&self) -> Result<H, CUresult>;

    /// The handle is of no more use.
    fn forget<H: Handle>(&self, handle: H);

    /// The address as it travels, if the program may use `bytes` bytes from it on.
    fn range(&self, address: CUdeviceptr, bytes: u64) -> Result<DevicePtr, CUresult>;
}

/// Refuses null where CUDA wants an answer written.
pub(crate) fn wanted<T>(pointer: *mut T) -> Result<(), CUresult> {
    if pointer.is_null() { Err(CUresult::INVALID_VALUE) } else { Ok(()) }
}

/// The most items of an array argument: far above any use, and it keeps a wild count from being
/// followed.
const ITEMS_MAX: u64 = 1 << 20;

/// An array argument as a slice; null is fine where there are no items.
///
/// # Safety
///
/// Unless null, `start` points to `count` items that stay as they are while the slice lives.
pub(crate) unsafe fn list<'a, T>(start: *const T, count: u64) -> Result<&'a [T], CUresult> {
    match count {
        0 => Ok(&[]),
        1..=ITEMS_MAX if !start.is_null() => {
            // SAFETY: not null, and the caller vouches for the count.
            Ok(unsafe { std::slice::from_raw_parts(start, count as usize) })
        }
        _ => Err(CUresult::INVALID_VALUE),
    }
}
