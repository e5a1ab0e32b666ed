//! What NVML says of the health of GPUs, found out in a process of its own: a driver that hangs
//! affects no other process, and its silence is noticed.
//!
//! Events (Xid errors, double-bit ECC errors) are waited for; what has no events is looked at once
//! a second. Each look is one line of JSON on standard output, whether there is something to say or
//! not.

mod card;
pub(crate) mod facts;
mod figures;
mod xid;

use std::io::{self, Write};
use std::time::Duration;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError, TemperatureSensor, TemperatureThreshold};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, EventSet, Nvml};

use card::{Card, Reading};
use figures::remapped_rows;
use sluice_worker_link::health::{Look, Watch};

/// How often NVML is asked what it has no events for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Events that are taken between two looks.
const EVENTS_MAX: usize = 64;

/// Why GPUs are not watched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HealthError {
    #[error("{library}: {source}")]
    Nvml { library: String, source: NvmlError },
    #[error("{library} knows none of the GPUs")]
    NoGpus { library: String },
    #[error("cannot say it: {0}")]
    Output(io::Error),
}

/// Watches until the reader is gone.
pub(crate) fn watch(watch: &Watch, out: &mut impl Write) -> Result<(), HealthError> {
    let failed = |source| HealthError::Nvml { library: watch.library.clone(), source };
    let nvml = Nvml::builder().lib_path(watch.library.as_ref()).init().map_err(failed)?;
    let mut watched = Vec::new();
    for (gpu, uuid) in (0..).zip(&watch.gpus) {
        match nvml.device_by_uuid(uuid.as_str()) {
            Ok(device) => watched.push(Watched { device, card: Card::new(gpu) }),
            Err(error) => eprintln!("sluice node: GPU {gpu} is not watched: NVML: {error}"),
        }
    }
    if watched.is_empty() {
        return Err(HealthError::NoGpus { library: watch.library.clone() });
    }
    let events = register(&nvml, &watched);
    loop {
        let mut look = Look::default();
        wait(events.as_ref(), &mut watched, &mut look);
        for Watched { device, card } in &mut watched {
            card.look(&read(&nvml, device), &mut look);
            look.figures.push((card.gpu(), figures::read(&nvml, device, card.last_xid())));
        }
        if say(&look, out).is_err() {
            return Ok(());
        }
    }
}

struct Watched<'nvml> {
    device: Device<'nvml>,
    card: Card,
}

fn say(look: &Look, out: &mut impl Write) -> io::Result<()> {
    let mut line = serde_json::to_vec(look)?;
    line.push(b'\n');
    out.write_all(&line)?;
    out.flush()
}

/// One set for all GPUs that have events; none where no GPU has.
fn register<'nvml>(nvml: &'nvml Nvml, watched: &[Watched<'nvml>]) -> Option<EventSet<'nvml>> {
    let wanted = EventTypes::CRITICAL_XID_ERROR | EventTypes::DOUBLE_BIT_ECC_ERROR;
    let kinds =
        |device: &Device<'_>| device.supported_event_types().map_or(EventTypes::empty(), |all| all & wanted);
    let mut with_events: Vec<&Watched<'_>> =
        watched.iter().filter(|watched| !kinds(&watched.device).is_empty()).collect();
    // A GPU that cannot be registered takes the set with it: the others get a new one.
    'again: while !with_events.is_empty() {
        let mut set = nvml.create_event_set().ok()?;
        for (place, watched) in with_events.iter().enumerate() {
            set = match watched.device.register_events(kinds(&watched.device), set) {
                Ok(set) => set,
                Err(error) => {
                    eprintln!(
                        "sluice node: GPU {}: NVML gives no events of it: {}",
                        watched.card.gpu(),
                        error.error
                    );
                    with_events.remove(place);
                    continue 'again;
                }
            };
        }
        return Some(set);
    }
    None
}

/// Takes the events that come before the next look is due.
fn wait(events: Option<&EventSet<'_>>, watched: &mut [Watched<'_>], look: &mut Look) {
    let Some(events) = events else { return std::thread::sleep(LOOK_EVERY) };
    let mut limit_ms = LOOK_EVERY.as_millis() as u32;
    for _ in 0..EVENTS_MAX {
        let event = match events.wait(limit_ms) {
            Ok(event) => event,
            Err(NvmlError::Timeout) => return,
            // A lost GPU ends the wait at once, for ever: the look says which it is.
            Err(_) => {
                return if limit_ms > 0 {
                    std::thread::sleep(LOOK_EVERY)
                };
            }
        };
        limit_ms = 0;
        // SAFETY: a handle is read and compared, and used for nothing else.
        let same = |device: &Device<'_>| unsafe { device.handle() == event.device.handle() };
        let Some(of) = watched.iter_mut().find(|watched| same(&watched.device)) else { continue };
        match event.event_data {
            Some(XidError::Value(number)) => of.card.xid(number, look),
            Some(XidError::Unknown) => {
                eprintln!("sluice node: GPU {}: an Xid error without a number", of.card.gpu())
            }
            None if event.event_type.contains(EventTypes::DOUBLE_BIT_ECC_ERROR) => of.card.double_bit(look),
            None => {}
        }
    }
}

/// What a GPU says now; what it does not know is nothing.
fn read(nvml: &Nvml, device: &Device<'_>) -> Reading {
    let temperature = device.temperature(TemperatureSensor::Gpu);
    let uncorrected = device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile);
    let is_lost = |error: Option<&NvmlError>| matches!(error, Some(NvmlError::GpuLost));
    let reasons = device.current_throttle_reasons().unwrap_or(ThrottleReasons::empty());
    let rows = remapped_rows(nvml, device);
    Reading {
        lost: is_lost(temperature.as_ref().err()) || is_lost(uncorrected.as_ref().err()),
        temperature_c: temperature.ok(),
        slowdown_at_c: device.temperature_threshold(TemperatureThreshold::Slowdown).ok(),
        braked: reasons
            .intersects(ThrottleReasons::HW_THERMAL_SLOWDOWN | ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN),
        uncorrected: uncorrected.ok(),
        remap_pending: rows.is_some_and(|rows| rows.pending),
        remap_failed: rows.is_some_and(|rows| rows.failed),
    }
}
