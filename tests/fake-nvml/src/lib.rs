//! NVML for tests: it knows any GPU that it is asked for, and each is as well as the file named by
//! `FAKE_NVML` says. The file is only ever appended to, a fact a line; the last word about
//! something holds:
//!
//! ```text
//! xid UUID 79          an Xid error event
//! temperature UUID 95  degrees; 40 unless said (the slowdown limit is 90)
//! ecc UUID 2           uncorrectable ECC errors since the driver was loaded
//! pending UUID 1       rows wait to be replaced
//! busy UUID 70         percent; 50 unless said (memory is busy for half of that)
//! power UUID 200000    milliwatts; 123400 unless said (the limit is 700000)
//! lost UUID 1          the GPU has fallen off the bus
//! hang                 no call returns any more
//! ```
//!
//! And where it stands, see [`places`]. Instead of a UUID `#0` is the GPU that was asked for first,
//! `#1` the next one.
//!
//! Signatures and numbers are those of NVIDIA's NVML API reference.

mod places;

use std::ffi::{CStr, c_char, c_uint, c_ulonglong, c_void};
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

const SUCCESS: c_uint = 0;
const INVALID_ARGUMENT: c_uint = 2;
const INSUFFICIENT_SIZE: c_uint = 7;
const NOT_SUPPORTED: c_uint = 3;
const TIMEOUT: c_uint = 10;
const GPU_IS_LOST: c_uint = 15;

const EVENT_DOUBLE_BIT_ECC: c_ulonglong = 2;
const EVENT_XID: c_ulonglong = 8;
const SLOWDOWN_AT_C: c_uint = 90;
const POWER_LIMIT_MW: u64 = 700_000;
const DRIVER: &CStr = c"580.159.04";

/// The UUIDs that were asked for; a handle is a place here, from 1.
static GPUS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Events of the file that were given out.
static GIVEN: AtomicUsize = AtomicUsize::new(0);

/// `nvmlEventData_t`.
#[repr(C)]
pub struct EventData {
    device: *mut c_void,
    kind: c_ulonglong,
    data: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// The lines so far, in words; never returns after `hang`.
fn facts() -> Vec<Vec<String>> {
    let text =
        std::env::var_os("FAKE_NVML").and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    // What stands behind the last line's end is still being written.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let facts: Vec<Vec<String>> =
        whole.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect();
    while facts.iter().any(|fact| fact.first().is_some_and(|word| word == "hang")) {
        std::thread::park();
    }
    facts
}

fn handle(uuid: &str) -> *mut c_void {
    let Ok(mut gpus) = GPUS.lock() else { return std::ptr::null_mut() };
    let place = gpus.iter().position(|known| known == uuid).unwrap_or_else(|| {
        gpus.push(uuid.to_owned());
        gpus.len() - 1
    });
    std::ptr::without_provenance_mut(place + 1)
}

/// What the file says about a GPU, or `usual`; an error once it is lost.
fn about(device: *mut c_void, word: &str, usual: u64) -> Result<u64, c_uint> {
    let last = |word: &str| -> Result<Option<u64>, c_uint> {
        Ok(words(device, word)?.last().and_then(|said| said.parse().ok()))
    };
    if last("lost")?.is_some_and(|lost| lost != 0) {
        return Err(GPU_IS_LOST);
    }
    Ok(last(word)?.unwrap_or(usual))
}

/// All that the file says about a GPU under this word.
fn words(device: *mut c_void, word: &str) -> Result<Vec<String>, c_uint> {
    let place = device.addr().wrapping_sub(1);
    let uuid = GPUS.lock().ok().and_then(|gpus| gpus.get(place).cloned()).ok_or(INVALID_ARGUMENT)?;
    let number = format!("#{place}");
    let mut facts = facts();
    facts.retain(|fact| fact.len() == 3 && fact[0] == word && (fact[1] == uuid || fact[1] == number));
    Ok(facts.into_iter().filter_map(|mut fact| fact.pop()).collect())
}

fn answer<T>(place: *mut T, value: Result<u64, c_uint>, as_type: fn(u64) -> T) -> c_uint {
    match value {
        Ok(value) => {
            // SAFETY: NVML's callers pass a place for the answer.
            unsafe { place.write(as_type(value)) };
            SUCCESS
        }
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> c_uint {
    facts();
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> c_uint {
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut *mut c_void) -> c_uint {
    // SAFETY: NVML's callers pass a text that ends with 0.
    let uuid = unsafe { CStr::from_ptr(uuid) }.to_string_lossy();
    // SAFETY: and a place for the answer.
    unsafe { device.write(handle(&uuid)) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetTemperature(
    device: *mut c_void,
    _sensor: c_uint,
    degrees: *mut c_uint,
) -> c_uint {
    answer(degrees, about(device, "temperature", 40), |value| value as c_uint)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetClockInfo(device: *mut c_void, _which: c_uint, mhz: *mut c_uint) -> c_uint {
    answer(mhz, about(device, "clock", 1410), |value| value as c_uint)
}

/// `nvmlUtilization_t`.
#[repr(C)]
pub struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetUtilizationRates(device: *mut c_void, busy: *mut Utilization) -> c_uint {
    let as_rates = |percent: u64| Utilization { gpu: percent as c_uint, memory: percent as c_uint / 2 };
    answer(busy, about(device, "busy", 50), as_rates)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetPowerUsage(device: *mut c_void, milliwatts: *mut c_uint) -> c_uint {
    answer(milliwatts, about(device, "power", 123_400), |value| value as c_uint)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetEnforcedPowerLimit(device: *mut c_void, milliwatts: *mut c_uint) -> c_uint {
    answer(milliwatts, about(device, "powerlimit", POWER_LIMIT_MW), |value| value as c_uint)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> c_uint {
    let text = DRIVER.to_bytes_with_nul();
    if (length as usize) < text.len() {
        return INSUFFICIENT_SIZE;
    }
    // SAFETY: NVML's callers pass a place of so many bytes for the text, which fits there.
    unsafe { version.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len()) };
    SUCCESS
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
pub struct Memory {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// A card of 4 GiB with this much used.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: *mut c_void, memory: *mut Memory) -> c_uint {
    const TOTAL: c_ulonglong = 4 << 30;
    let as_memory =
        |used: u64| Memory { version: 0, total: TOTAL, reserved: 0, free: TOTAL.saturating_sub(used), used };
    answer(memory, about(device, "used", 1 << 30), as_memory)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetTemperatureThreshold(
    device: *mut c_void,
    _which: c_uint,
    degrees: *mut c_uint,
) -> c_uint {
    answer(degrees, about(device, "limit", SLOWDOWN_AT_C.into()), |value| value as c_uint)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: *mut c_void,
    _kind: c_uint,
    _counter: c_uint,
    count: *mut c_ulonglong,
) -> c_uint {
    answer(count, about(device, "ecc", 0), |value| value)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetRemappedRows(
    device: *mut c_void,
    corrected: *mut c_uint,
    uncorrected: *mut c_uint,
    pending: *mut c_uint,
    failed: *mut c_uint,
) -> c_uint {
    for place in [corrected, uncorrected, failed] {
        answer(place, Ok(0), |value| value as c_uint);
    }
    answer(pending, about(device, "pending", 0), |value| value as c_uint)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetSupportedEventTypes(device: *mut c_void, kinds: *mut c_ulonglong) -> c_uint {
    answer(kinds, about(device, "events", EVENT_XID | EVENT_DOUBLE_BIT_ECC), |value| value)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetCreate(set: *mut *mut c_void) -> c_uint {
    answer(set, Ok(1), |value| std::ptr::without_provenance_mut(value as usize))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceRegisterEvents(
    _device: *mut c_void,
    _kinds: c_ulonglong,
    _set: *mut c_void,
) -> c_uint {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetFree(_set: *mut c_void) -> c_uint {
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetWait_v2(
    _set: *mut c_void,
    event: *mut EventData,
    timeout_ms: c_uint,
) -> c_uint {
    let deadline = Instant::now() + Duration::from_millis(timeout_ms.into());
    loop {
        let facts = facts();
        let is_event = |fact: &&Vec<String>| fact.len() == 3 && fact[0] == "xid";
        if let Some(fact) = facts.iter().filter(is_event).nth(GIVEN.load(Relaxed)) {
            GIVEN.fetch_add(1, Relaxed);
            let data = EventData {
                device: handle(&fact[1]),
                kind: EVENT_XID,
                data: fact[2].parse().unwrap_or(0),
                gpu_instance: c_uint::MAX,
                compute_instance: c_uint::MAX,
            };
            // SAFETY: NVML's callers pass a place for the event.
            unsafe { event.write(data) };
            return SUCCESS;
        }
        if Instant::now() >= deadline {
            return TIMEOUT;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
