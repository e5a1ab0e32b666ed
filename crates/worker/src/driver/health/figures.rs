//! What NVML says of a card's load and condition, for metrics and the server's lists; nothing is
//! decided by it.

use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor, TemperatureThreshold};
use nvml_wrapper::{Device, Nvml};
use sluice_worker_link::health::Figures;

pub(super) fn read(nvml: &Nvml, device: &Device<'_>, xid: Option<u64>) -> Figures {
    let busy = device.utilization_rates().ok();
    let memory = device.memory_info().ok();
    let rows = remapped_rows(nvml, device);
    Figures {
        sm_clock_mhz: device.clock_info(Clock::SM).ok(),
        memory_clock_mhz: device.clock_info(Clock::Memory).ok(),
        temperature_c: device.temperature(TemperatureSensor::Gpu).ok(),
        slowdown_at_c: device.temperature_threshold(TemperatureThreshold::Slowdown).ok(),
        power_mw: device.power_usage().ok(),
        power_limit_mw: device.enforced_power_limit().ok(),
        energy_mj: device.total_energy_consumption().ok(),
        pcie_replays: device.pcie_replay_counter().ok(),
        busy_percent: busy.as_ref().map(|busy| busy.gpu),
        memory_busy_percent: busy.map(|busy| busy.memory),
        encoder_percent: device.encoder_utilization().ok().map(|encoder| encoder.utilization),
        decoder_percent: device.decoder_utilization().ok().map(|decoder| decoder.utilization),
        memory_free: memory.as_ref().map(|memory| memory.free),
        memory_used: memory.as_ref().map(|memory| memory.used),
        memory_reserved: memory.map(|memory| memory.reserved),
        remapped_correctable: rows.map(|rows| rows.correctable),
        remapped_uncorrectable: rows.map(|rows| rows.uncorrectable),
        remap_failed: rows.map(|rows| rows.failed),
        xid,
        driver_version: nvml.sys_driver_version().ok(),
        pci_bus_id: device.pci_info().ok().map(|pci| pci.bus_id),
    }
}

/// Rows of memory that were replaced, and whether more are to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct RemappedRows {
    correctable: u32,
    uncorrectable: u32,
    /// Some wait to be replaced at the next reset.
    pub(super) pending: bool,
    /// There was none left to replace one with.
    pub(super) failed: bool,
}

/// `None` on GPUs that have no such rows.
pub(super) fn remapped_rows(nvml: &Nvml, device: &Device<'_>) -> Option<RemappedRows> {
    let rows = nvml.lib().nvmlDeviceGetRemappedRows.as_ref().ok()?;
    let (mut correctable, mut uncorrectable, mut pending, mut failed) = (0, 0, 0, 0);
    // SAFETY: the handle is of a device of this library, and NVML writes one number to each of the
    // four places.
    let result =
        unsafe { rows(device.handle(), &mut correctable, &mut uncorrectable, &mut pending, &mut failed) };
    let rows = RemappedRows { correctable, uncorrectable, pending: pending != 0, failed: failed != 0 };
    (result == 0).then_some(rows)
}
