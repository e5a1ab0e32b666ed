//! One call: how its arguments are followed and checked.

use std::ffi::{CStr, c_char};
use std::ops::RangeInclusive;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use sluice_cuda::{CUdeviceptr, CUresult};

use crate::inner;
use crate::live::Live;
use crate::structures::{GRANULE, is_readable};

/// Most items of any list that the API takes; the largest are the edges of a graph.
const LIST_MAX: u64 = 1 << 20;

/// What no argument may be.
pub(crate) type Violation = String;

/// The arguments of one call, which the caller vouches for as the CUDA Driver API demands: what
/// they point to may be followed while the call lasts. A pointer that leads nowhere ends the
/// process, which is what this driver is for.
pub(crate) struct Call;

static LISTENER: OnceLock<fn(&str)> = OnceLock::new();

/// Has violations reported to `listener`; the call that has one then fails with
/// `CUDA_ERROR_UNKNOWN`. Otherwise the process ends with a line on stderr. Only the first listener
/// counts.
pub fn on_violation(listener: fn(&str)) {
    // A second one is not needed: whoever comes first hears of everything.
    let _ = LISTENER.set(listener);
}

static CALLS: AtomicU64 = AtomicU64::new(0);

/// How many calls there were in this process.
pub fn calls() -> u64 {
    CALLS.load(Relaxed)
}

/// Checks a call, and passes it on to the driver behind.
pub(crate) fn checked(
    function: &str,
    check: impl FnOnce(&Call) -> Result<(), Violation>,
    forward: impl FnOnce() -> Option<CUresult>,
) -> CUresult {
    CALLS.fetch_add(1, Relaxed);
    let Err(violation) = check(&Call) else { return forward().unwrap_or(CUresult::NOT_SUPPORTED) };
    let line = format!("{function}: {violation}");
    match LISTENER.get() {
        Some(listener) => listener(&line),
        None => {
            eprintln!("hostile driver: {line}");
            std::process::abort()
        }
    }
    CUresult::UNKNOWN
}

/// Fills a place that the API writes.
const PATTERN: u8 = 0xa5;

impl Call {
    /// A handle that this driver gave out and that is still good.
    pub(crate) fn live<H: Live>(&self, handle: H) -> Result<(), Violation> {
        if handle.is_live() { Ok(()) } else { Err(format!("{handle:?} is not live")) }
    }

    pub(crate) fn live_list<H: Live>(&self, start: *const H, count: u64) -> Result<(), Violation> {
        self.list(start, count)?.into_iter().try_for_each(|handle| self.live(handle))
    }

    /// Device memory, all of which is allocated.
    pub(crate) fn device(&self, address: CUdeviceptr, bytes: u64) -> Result<(), Violation> {
        let nobodys = || format!("{bytes} bytes at {address:#x} are not all allocated");
        let end = address.checked_add(bytes).ok_or_else(nobodys)?;
        let ask = inner().cuMemGetAddressRange_v2.ok_or("the driver behind has no cuMemGetAddressRange")?;
        let mut at = address;
        while at < end {
            let (mut base, mut size) = (0, 0);
            // SAFETY: two places for numbers.
            at = match unsafe { ask(&mut base, &mut size, at) } {
                CUresult::SUCCESS => base + size as u64,
                // Device code has failed meanwhile, after which the driver behind answers nothing,
                // and follows nothing.
                failed if failed.is_sticky() => return Ok(()),
                // Not to be written, but perhaps to be read.
                _ if is_readable(at) => (at / GRANULE + 1) * GRANULE,
                _ => return Err(nobodys()),
            };
        }
        Ok(())
    }

    /// An address whose value decides how the device accesses it.
    pub(crate) fn aligned(&self, address: CUdeviceptr, to: u64) -> Result<(), Violation> {
        if address.is_multiple_of(to) { Ok(()) } else { Err(format!("{address:#x} is not aligned to {to}")) }
    }

    /// A place that the API writes. It is written here already, so that a place that cannot be is
    /// found.
    pub(crate) fn out<T>(&self, place: *mut T) -> Result<(), Violation> {
        self.out_list(place, 1)
    }

    pub(crate) fn out_list<T>(&self, start: *mut T, count: u64) -> Result<(), Violation> {
        if start.is_null() || count > LIST_MAX {
            return Err(format!("{count} places at {start:?}"));
        }
        // SAFETY: the caller gave so many places to be written, as this type says.
        unsafe { std::ptr::write_bytes(start, PATTERN, count as usize) };
        Ok(())
    }

    pub(crate) fn read<T: Copy>(&self, place: *const T) -> Result<T, Violation> {
        if place.is_null() {
            return Err("a null pointer".into());
        }
        // SAFETY: the caller gave a value to be read, as this type says.
        Ok(unsafe { place.read_unaligned() })
    }

    pub(crate) fn list<T: Copy>(&self, start: *const T, count: u64) -> Result<Vec<T>, Violation> {
        if count > LIST_MAX * 64 {
            return Err(format!("a list of {count}"));
        }
        // SAFETY: so many values, as for one.
        (0..count as usize).map(|index| self.read(unsafe { start.add(index) })).collect()
    }

    pub(crate) fn text(&self, text: *const c_char) -> Result<(), Violation> {
        if text.is_null() {
            return Err("a null pointer for a name".into());
        }
        // SAFETY: the caller gave a text with a NUL at its end, as this type says.
        let _ = unsafe { CStr::from_ptr(text) }.to_bytes().len();
        Ok(())
    }

    /// A number with no bits but these.
    pub(crate) fn bits(&self, value: u64, bits: u64) -> Result<(), Violation> {
        if value & !bits == 0 { Ok(()) } else { Err(format!("{value:#x} has bits that nobody defines")) }
    }

    pub(crate) fn within(&self, value: u64, range: RangeInclusive<u64>) -> Result<(), Violation> {
        if range.contains(&value) { Ok(()) } else { Err(format!("{value} is not within {range:?}")) }
    }

    pub(crate) fn one_of<T: PartialEq + std::fmt::Debug>(&self, value: T, of: &[T]) -> Result<(), Violation> {
        if of.contains(&value) { Ok(()) } else { Err(format!("{value:?} is none of {of:?}")) }
    }

    /// Nobody has said what the pointers of this function mean.
    pub(crate) fn undescribed(&self) -> Result<(), Violation> {
        Err("its arguments are described neither in driver.api nor by hand (tests/hostile-driver)".into())
    }
}
