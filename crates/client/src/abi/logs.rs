//! What this library has to say: one line each on stderr, to the callbacks that programs register,
//! and kept for those that ask later. CUDA Driver API, section "Error Log Management Functions".

use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;

use crate::abi::call::outside;
use crate::abi::out;

/// Most messages that are kept, as CUDA keeps a hundred.
const KEPT_MAX: usize = 100;

#[derive(Debug, Default)]
struct Log {
    kept: VecDeque<String>,
    /// Messages ever: an iterator is the count at its time. It wraps as C's does.
    count: u32,
    callbacks: Vec<Callback>,
    registered: usize,
}

#[derive(Clone, Copy, Debug)]
struct Callback {
    handle: CUlogsCallbackHandle,
    function: unsafe extern "C" fn(*mut c_void, CUlogLevel, *mut c_char, usize),
    user_data: *mut c_void,
}

// SAFETY: the program passed the pointer to be handed back to its function, on whichever thread
// that is called.
unsafe impl Send for Callback {}

static LOG: Mutex<Log> =
    Mutex::new(Log { kept: VecDeque::new(), count: 0, callbacks: Vec::new(), registered: 0 });

fn log() -> MutexGuard<'static, Log> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Log {
    fn keep(&mut self, text: String) {
        if self.kept.len() == KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(text);
        self.count = self.count.wrapping_add(1);
    }

    /// The kept messages that came after `since`, a count of messages.
    fn after(&self, since: u32) -> impl Iterator<Item = &str> {
        let new = self.count.wrapping_sub(since) as usize;
        self.kept.iter().skip(self.kept.len().saturating_sub(new)).map(String::as_str)
    }
}

/// Keeps a message and passes it to the registered callbacks.
pub(crate) fn message(text: &str) {
    let callbacks = {
        let mut log = log();
        log.keep(text.to_string());
        log.callbacks.clone()
    };
    // Without the lock: a callback may well call CUDA.
    let Ok(text) = CString::new(text) else { return };
    for Callback { function, user_data, .. } in callbacks {
        let mut bytes = text.clone().into_bytes_with_nul();
        let length = bytes.len() - 1;
        // SAFETY: the program registered this function with this argument; the text is its own to
        // write to.
        outside(|| unsafe { function(user_data, CUlogLevel::WARNING, bytes.as_mut_ptr().cast(), length) });
    }
}

/// The messages since `*iterator` (since the first one kept, if null), which moves behind the last.
///
/// # Safety
/// `iterator` is null or valid for reading and writing.
unsafe fn since(iterator: *mut u32) -> String {
    let log = log();
    // SAFETY: as the caller says.
    let from = unsafe { iterator.as_mut() }.map_or(0, |at| std::mem::replace(at, log.count));
    let from = if iterator.is_null() { log.count.wrapping_sub(KEPT_MAX as u32) } else { from };
    log.after(from).map(|text| format!("{text}\n")).collect()
}

// The entry points.

pub(crate) unsafe fn cuLogsRegisterCallback(
    callbackFunc: CUlogsCallback,
    userData: *mut c_void,
    callback_out: *mut CUlogsCallbackHandle,
) -> Result<(), CUresult> {
    let function = callbackFunc.ok_or(CUresult::INVALID_VALUE)?;
    let mut log = log();
    log.registered += 1;
    let handle = CUlogsCallbackHandle(log.registered);
    // SAFETY: the program passes null or a place for the handle.
    unsafe { out::write_if_wanted(callback_out, handle) };
    log.callbacks.push(Callback { handle, function, user_data: userData });
    Ok(())
}

pub(crate) unsafe fn cuLogsUnregisterCallback(callback: CUlogsCallbackHandle) -> Result<(), CUresult> {
    let mut log = log();
    let index = log.callbacks.iter().position(|one| one.handle == callback).ok_or(CUresult::INVALID_VALUE)?;
    log.callbacks.remove(index);
    Ok(())
}

pub(crate) unsafe fn cuLogsCurrent(iterator_out: *mut u32, flags: u32) -> Result<(), CUresult> {
    check_flags(flags)?;
    // SAFETY: the program passes a place for the iterator.
    unsafe { out::write(iterator_out, log().count) }
}

pub(crate) unsafe fn cuLogsDumpToFile(
    iterator: *mut u32,
    pathToFile: *const c_char,
    flags: u32,
) -> Result<(), CUresult> {
    check_flags(flags)?;
    if pathToFile.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the program passes a string, and null or an iterator.
    let (path, text) = unsafe { (CStr::from_ptr(pathToFile), since(iterator)) };
    let path = path.to_str().map_err(|_| CUresult::INVALID_VALUE)?;
    std::fs::write(path, text).map_err(|_| CUresult::INVALID_VALUE)
}

/// Of a text that does not fit, the end is kept: the newest lines say most.
pub(crate) unsafe fn cuLogsDumpToMemory(
    iterator: *mut u32,
    buffer: *mut c_char,
    size: *mut usize,
    flags: u32,
) -> Result<(), CUresult> {
    check_flags(flags)?;
    if buffer.is_null() || size.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and the program passes the buffer's size.
    let room = unsafe { size.read_unaligned() }.checked_sub(1).ok_or(CUresult::INVALID_VALUE)?;
    // SAFETY: the program passes null or an iterator.
    let text = unsafe { since(iterator) };
    let kept = &text.as_bytes()[text.len().saturating_sub(room)..];
    // SAFETY: the buffer has room for that many bytes and a NUL.
    unsafe {
        std::ptr::copy_nonoverlapping(kept.as_ptr(), buffer.cast(), kept.len());
        buffer.add(kept.len()).write(0);
        size.write_unaligned(kept.len());
    }
    Ok(())
}

fn check_flags(flags: u32) -> Result<(), CUresult> {
    if flags == 0 { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iterator_gives_what_came_after_it() {
        let mut log = Log::default();
        for i in 0..150 {
            log.keep(format!("message {i}"));
        }
        assert_eq!(log.after(148).collect::<Vec<_>>(), ["message 148", "message 149"]);
        assert_eq!(log.after(150).count(), 0);
        assert_eq!(log.after(0).count(), KEPT_MAX);
    }

    #[test]
    fn a_callback_gets_messages_until_it_is_unregistered() {
        unsafe extern "C" fn note(data: *mut c_void, _: CUlogLevel, text: *mut c_char, length: usize) {
            // SAFETY: the test passes this list, and the message has so many bytes.
            let (list, text) = unsafe {
                (&*data.cast::<Mutex<Vec<String>>>(), std::slice::from_raw_parts(text.cast(), length))
            };
            list.lock().unwrap().push(String::from_utf8_lossy(text).into_owned());
        }
        let list: Mutex<Vec<String>> = Mutex::default();
        let mut handle = CUlogsCallbackHandle::NULL;
        let data = std::ptr::from_ref(&list).cast_mut().cast();
        // SAFETY: the list outlives the registration.
        unsafe {
            cuLogsRegisterCallback(Some(note), data, &mut handle).unwrap();
            message("the first");
            cuLogsUnregisterCallback(handle).unwrap();
            message("the second");
            assert_eq!(cuLogsUnregisterCallback(handle), Err(CUresult::INVALID_VALUE));
        }
        assert_eq!(*list.lock().unwrap(), ["the first"]);
    }
}
