//! Core dumps of device code, and checkpoints: what programs and tools ask of a process that has
//! neither.
//!
//! Device code runs on the node, and no dump of it is written there or here. So the settings can be
//! read and set as on any driver, but not to a value that would have a dump written. A checkpoint
//! of this process would leave its device memory out.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use sluice_cuda::*;

use crate::abi::out;
use crate::{context, session};

/// A setting (`CUcoredumpSettings`): the form of its value, and its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    /// One byte that can only be zero, as no dump is ever begun: on an exception, and by a pipe.
    Never,
    /// One byte.
    Switch(bool),
    /// A name of up to [`NAME_MAX`] bytes with its NUL, that begins with this, followed by host and
    /// process.
    Name(&'static str),
    /// Four bytes of flags.
    Flags,
}

/// Bytes of a name with its NUL (CUDA Driver API, section "Coredump Attributes Control API").
const NAME_MAX: usize = 1024;

fn setting(attribute: u32) -> Result<Setting, CUresult> {
    Ok(match attribute {
        1 | 4 => Setting::Never,
        2 => Setting::Switch(true),
        3 => Setting::Switch(false),
        5 => Setting::Name("core.cuda"),
        6 => Setting::Name("corepipe.cuda"),
        7 => Setting::Flags,
        _ => return Err(CUresult::INVALID_VALUE),
    })
}

impl Setting {
    /// Bytes that a value has at most.
    fn size(self) -> usize {
        match self {
            Setting::Never | Setting::Switch(_) => 1,
            Setting::Name(_) => NAME_MAX,
            Setting::Flags => 4,
        }
    }

    fn default_value(self) -> Vec<u8> {
        match self {
            Setting::Never => vec![0],
            Setting::Switch(on) => vec![u8::from(on)],
            Setting::Name(start) => {
                let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
                format!("{start}.{}.{}\0", host.trim(), std::process::id()).into_bytes()
            }
            Setting::Flags => vec![0; 4],
        }
    }

    /// The value in the program's bytes, if it is one and can be kept.
    fn accept(self, bytes: &[u8]) -> Result<Vec<u8>, CUresult> {
        match self {
            Setting::Never if bytes == [0] => Ok(vec![0]),
            Setting::Never if bytes.len() == 1 => Err(CUresult::NOT_SUPPORTED),
            Setting::Switch(_) if bytes.len() == 1 => Ok(vec![u8::from(bytes[0] != 0)]),
            Setting::Flags if bytes.len() == 4 => Ok(bytes.to_vec()),
            Setting::Name(_) if bytes.len() <= NAME_MAX => {
                let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
                let name = bytes[..end].iter().copied().chain([0]).collect::<Vec<u8>>();
                if name.len() <= NAME_MAX { Ok(name) } else { Err(CUresult::INVALID_VALUE) }
            }
            _ => Err(CUresult::INVALID_VALUE),
        }
    }
}

/// Values by context (its number; `None` for all of them) and setting.
type Values = HashMap<(Option<u64>, u32), Vec<u8>>;

/// What was set.
static VALUES: Mutex<Option<Values>> = Mutex::new(None);

/// # Safety
/// `size` is null or valid, and `value` null or has room for as many bytes as it says.
unsafe fn get(
    scope: Option<u64>,
    attribute: u32,
    value: *mut c_void,
    size: *mut usize,
) -> Result<(), CUresult> {
    let setting = setting(attribute)?;
    if size.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    if value.is_null() {
        // SAFETY: not null, and the program's to be written.
        return unsafe { out::write(size, setting.size()) };
    }
    let bytes = {
        let mut values = VALUES.lock().unwrap_or_else(PoisonError::into_inner);
        let values = values.get_or_insert_default();
        let own = scope.and_then(|_| values.get(&(scope, attribute)));
        own.or_else(|| values.get(&(None, attribute))).cloned().unwrap_or_else(|| setting.default_value())
    };
    // SAFETY: by this function's contract.
    let room = unsafe { size.read_unaligned() };
    if room < bytes.len() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: as above; there is room for the bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast(), bytes.len());
        out::write(size, bytes.len())
    }
}

/// # Safety
/// `size` is null or valid, and `value` null or has as many bytes as it says.
unsafe fn set(
    scope: Option<u64>,
    attribute: u32,
    value: *mut c_void,
    size: *mut usize,
) -> Result<(), CUresult> {
    let setting = setting(attribute)?;
    if size.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    if value.is_null() {
        // SAFETY: not null, and the program's to be written.
        return unsafe { out::write(size, setting.size()) };
    }
    // SAFETY: by this function's contract.
    let bytes =
        unsafe { std::slice::from_raw_parts(value.cast::<u8>(), size.read_unaligned().min(NAME_MAX)) };
    let accepted = setting.accept(bytes)?;
    VALUES
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get_or_insert_default()
        .insert((scope, attribute), accepted);
    Ok(())
}

/// The calling thread's context.
fn here() -> Result<Option<u64>, CUresult> {
    session::get()?;
    Ok(Some(context::current()?.number))
}

// The entry points. CUDA Driver API, sections "Coredump Attributes Control API" and "CUDA
// Checkpointing".

pub(crate) unsafe fn cuCoredumpGetAttribute(
    attrib: u32,
    value: *mut c_void,
    size: *mut usize,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { get(here()?, attrib, value, size) }
}

pub(crate) unsafe fn cuCoredumpGetAttributeGlobal(
    attrib: u32,
    value: *mut c_void,
    size: *mut usize,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { get(None, attrib, value, size) }
}

/// What begins a dump from outside belongs to the process, not to a context.
pub(crate) unsafe fn cuCoredumpSetAttribute(
    attrib: u32,
    value: *mut c_void,
    size: *mut usize,
) -> Result<(), CUresult> {
    const OF_THE_PROCESS: [u32; 2] = [4, 6];
    let scope = here()?;
    if OF_THE_PROCESS.contains(&attrib) {
        return Err(CUresult::NOT_SUPPORTED);
    }
    // SAFETY: the same contract.
    unsafe { set(scope, attrib, value, size) }
}

pub(crate) unsafe fn cuCoredumpSetAttributeGlobal(
    attrib: u32,
    value: *mut c_void,
    size: *mut usize,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { set(None, attrib, value, size) }
}

/// Only the state of this process is known here, and it can only be running, as the other calls
/// say.
pub(crate) unsafe fn cuCheckpointProcessGetState(pid: i32, state: *mut u32) -> Result<(), CUresult> {
    const RUNNING: u32 = 0;
    if u32::try_from(pid) != Ok(std::process::id()) {
        return Err(CUresult::NOT_SUPPORTED);
    }
    // SAFETY: the program passes a place for the state.
    unsafe { out::write(state, RUNNING) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_taken_as_their_setting_wants_them() {
        let check = |attribute, bytes: &[u8], want: Result<&[u8], CUresult>| {
            assert_eq!(setting(attribute).unwrap().accept(bytes), want.map(<[u8]>::to_vec), "{attribute}");
        };
        check(1, &[0], Ok(&[0]));
        check(1, &[1], Err(CUresult::NOT_SUPPORTED));
        check(2, &[7], Ok(&[1]));
        check(2, &[0, 0], Err(CUresult::INVALID_VALUE));
        check(5, b"dump\0rest", Ok(b"dump\0"));
        check(5, b"dump", Ok(b"dump\0"));
        check(5, &[b'x'; NAME_MAX], Err(CUresult::INVALID_VALUE));
        check(7, &[1, 0, 0, 0], Ok(&[1, 0, 0, 0]));
        assert_eq!(setting(0), Err(CUresult::INVALID_VALUE));
        assert_eq!(setting(8), Err(CUresult::INVALID_VALUE));
    }

    #[test]
    fn what_is_set_for_a_context_hides_what_is_set_for_all() {
        let read = |scope| {
            let (mut value, mut size) = (9_u8, 1);
            // SAFETY: places of the test, of the size that is given.
            unsafe { get(scope, 3, std::ptr::from_mut(&mut value).cast(), &mut size) }.unwrap();
            value
        };
        let write = |scope, mut value: u8| {
            // SAFETY: as above.
            unsafe { set(scope, 3, std::ptr::from_mut(&mut value).cast(), &mut 1) }.unwrap();
        };
        assert_eq!(read(Some(7_000_001)), 0);
        write(None, 1);
        assert_eq!((read(None), read(Some(7_000_001))), (1, 1));
        write(Some(7_000_001), 0);
        assert_eq!((read(None), read(Some(7_000_001))), (1, 0));
    }
}
