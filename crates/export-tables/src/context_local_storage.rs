//! CONTEXT_LOCAL_STORAGE: values that libraries attach to a context. Every runtime requires it, and
//! looks its own state up here on most calls; so reading takes a shared lock only.
//!
//! The only table without a size word. Public, and the answer for an absent key measured.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{PoisonError, RwLock};

use sluice_cuda::{CUcontext, CUresult};

use crate::{Table, driver, entered, write};

/// C693336E-1121-DF11-A8C3-68F355D89593
pub(crate) const UUID: [u8; 16] = 0xC693336E_1121_DF11_A8C3_68F355D89593_u128.to_be_bytes();

static TABLE: Table<4> = Table::sized()
    .with(0, put as *const c_void)
    .with(1, delete as *const c_void)
    .with(2, get as *const c_void)
    .with(3, std::ptr::null());

pub(crate) fn address() -> *const c_void {
    TABLE.address()
}

/// Called with context, key and value when the context goes.
type Destructor = extern "C" fn(CUcontext, usize, usize);

#[derive(Clone, Copy)]
struct Value {
    word: usize,
    destructor: Option<Destructor>,
}

static STORAGE: RwLock<BTreeMap<(CUcontext, usize), Value>> = RwLock::new(BTreeMap::new());

/// Drops everything that was attached to `ctx`, calling the destructors. To be called when a
/// context is destroyed or a primary context reset.
pub fn context_destroyed(ctx: CUcontext) {
    // A destructor may come back to this table, so the lock is gone before the first one runs.
    let values: Vec<_> = {
        let mut storage = STORAGE.write().unwrap_or_else(PoisonError::into_inner);
        storage.extract_if((ctx, 0)..=(ctx, usize::MAX), |_, _| true).collect()
    };
    for ((ctx, key), value) in values {
        if let Some(destructor) = value.destructor {
            destructor(ctx, key, value.word);
        }
    }
}

/// Slot 0: attaches a value, replacing what the key held.
extern "C" fn put(ctx: CUcontext, key: usize, word: usize, destructor: Option<Destructor>) -> CUresult {
    entered(|| {
        let ctx = match or_current(ctx) {
            Ok(ctx) => ctx,
            Err(error) => return error,
        };
        let mut storage = STORAGE.write().unwrap_or_else(PoisonError::into_inner);
        storage.insert((ctx, key), Value { word, destructor });
        CUresult::SUCCESS
    })
}

/// Slot 1: detaches a value without calling its destructor.
extern "C" fn delete(ctx: CUcontext, key: usize) -> CUresult {
    entered(|| {
        let ctx = match or_current(ctx) {
            Ok(ctx) => ctx,
            Err(error) => return error,
        };
        STORAGE.write().unwrap_or_else(PoisonError::into_inner).remove(&(ctx, key));
        CUresult::SUCCESS
    })
}

/// Slot 2: reads a value. An absent key is `CUDA_ERROR_INVALID_HANDLE`.
unsafe extern "C" fn get(to: *mut usize, ctx: CUcontext, key: usize) -> CUresult {
    entered(|| {
        let value = or_current(ctx).and_then(|ctx| {
            let storage = STORAGE.read().unwrap_or_else(PoisonError::into_inner);
            storage.get(&(ctx, key)).map(|value| value.word).ok_or(CUresult::INVALID_HANDLE)
        });
        // SAFETY: callers pass a place for the value.
        unsafe { write(to, value) }
    })
}

/// `NULL` stands for the calling thread's context.
fn or_current(ctx: CUcontext) -> Result<CUcontext, CUresult> {
    let ctx = if ctx.is_null() { driver()?.current_context()? } else { ctx };
    if ctx.is_null() { Err(CUresult::INVALID_CONTEXT) } else { Ok(ctx) }
}
