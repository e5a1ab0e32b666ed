//! Objects of the program that graphs keep alive (CUDA Driver API, User Objects).

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use sluice_cuda::CUhostFn;

/// Something of the program's that graphs keep alive (`cuUserObjectCreate`); its destructor runs
/// with the last reference.
pub(crate) struct UserObject {
    pub(crate) destroy: CUhostFn,
    pub(crate) data: *mut c_void,
}

// SAFETY: the program gave the pointer for its function to be called with it, from any thread.
unsafe impl Send for UserObject {}

// SAFETY: as above; the pointer is never followed here.
unsafe impl Sync for UserObject {}

impl Drop for UserObject {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy {
            // SAFETY: the program gave function and argument for this one call.
            unsafe { destroy(self.data) }
        }
    }
}

/// What a launch keeps alive, though the executable graph may be destroyed meanwhile.
pub(crate) struct Kept(pub(crate) Mutex<Vec<Arc<UserObject>>>);

impl Kept {
    /// A destructor may be called.
    pub(crate) fn let_go(&self) {
        let kept = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        drop(kept);
    }
}
