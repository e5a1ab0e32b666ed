//! The GPUs: dcgm-exporter's names, labels and units for what NVML says of them, and
//! `sluice_gpu_*` for what the node counts.
//!
//! The names, types and units are those of dcgm-exporter's default counters
//! (github.com/NVIDIA/dcgm-exporter, etc/default-counters.csv). Of a software GPU, which has no
//! NVML, the node itself knows how busy it is and how much of its memory is used; a temperature or
//! a clock it has none, and so none is shown.

use std::fmt;

use sluice_control::uuid_text;
use sluice_metrics::{Metric, Page};
use sluice_wire::control::GpuStatus;
use sluice_worker_link::health::Figures;

use super::Snapshot;

const SM_CLOCK: Metric = Metric::gauge("DCGM_FI_DEV_SM_CLOCK", "Clock of the multiprocessors in MHz");
const MEM_CLOCK: Metric = Metric::gauge("DCGM_FI_DEV_MEM_CLOCK", "Clock of the memory in MHz");
const GPU_TEMP: Metric = Metric::gauge("DCGM_FI_DEV_GPU_TEMP", "Temperature of the GPU in degrees Celsius");
const POWER_USAGE: Metric = Metric::gauge("DCGM_FI_DEV_POWER_USAGE", "Power draw in W");
const ENERGY: Metric = Metric::foreign(
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "Energy since the driver was loaded in mJ; it only grows",
);
const PCIE_REPLAY: Metric = Metric::foreign(
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    "PCIe packets that were sent again since the driver was loaded; it only grows",
);
const GPU_UTIL: Metric =
    Metric::gauge("DCGM_FI_DEV_GPU_UTIL", "Percent of the last sample period in which a kernel ran");
const MEM_COPY_UTIL: Metric =
    Metric::gauge("DCGM_FI_DEV_MEM_COPY_UTIL", "Percent of it in which memory was read or written");
const ENC_UTIL: Metric = Metric::gauge("DCGM_FI_DEV_ENC_UTIL", "Utilisation of the video encoder in percent");
const DEC_UTIL: Metric = Metric::gauge("DCGM_FI_DEV_DEC_UTIL", "Utilisation of the video decoder in percent");
const XID_ERRORS: Metric =
    Metric::gauge("DCGM_FI_DEV_XID_ERRORS", "Number of the last Xid error that was seen; 0 if none was");
const FB_FREE: Metric = Metric::gauge("DCGM_FI_DEV_FB_FREE", "Free memory of the GPU in MiB");
const FB_USED: Metric = Metric::gauge("DCGM_FI_DEV_FB_USED", "Used memory of the GPU in MiB");
const FB_RESERVED: Metric =
    Metric::gauge("DCGM_FI_DEV_FB_RESERVED", "Memory that the driver keeps for itself in MiB");
const UNCORRECTABLE: Metric = Metric::foreign(
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
    "Rows of memory that were replaced because of uncorrectable errors",
);
const CORRECTABLE: Metric = Metric::foreign(
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
    "Rows of memory that were replaced because of correctable errors",
);
const REMAP_FAILURE: Metric =
    Metric::gauge("DCGM_FI_DEV_ROW_REMAP_FAILURE", "1 if a row of memory could not be replaced");

const BUSY: Metric = Metric::gauge(
    "sluice_gpu_busy_ratio",
    "Part of the last second in which a session had the GPU and work for it, as the node counts it",
);
const SHARE_LEASED: Metric = Metric::gauge(
    "sluice_gpu_share_leased_ratio",
    "Share of the GPU that is leased; above 1 where its pool is overcommitted",
);
const MEMORY: Metric = Metric::gauge("sluice_gpu_memory", "Memory of the GPU").of("bytes");
const MEMORY_LEASED: Metric =
    Metric::gauge("sluice_gpu_memory_leased", "Memory of the GPU that is leased").of("bytes");
const MEMORY_USED: Metric =
    Metric::gauge("sluice_gpu_memory_used", "Memory of the GPU that sessions have allocated").of("bytes");
const SESSIONS: Metric =
    Metric::gauge("sluice_gpu_sessions", "Sessions whose leases have a share of the GPU");
const FAULTS: Metric =
    Metric::counter("sluice_gpu_faults", "Faults of the GPU that were found since the node was started");

struct Card<'a> {
    status: &'a GpuStatus,
    /// `None` where there is no NVML, or it does not know the GPU.
    figures: Option<&'a Figures>,
    faults: u64,
    labels: Vec<(&'static str, String)>,
}

pub(super) fn write(page: &mut Page<'_>, snapshot: &Snapshot) -> fmt::Result {
    let card = |status| card(status, snapshot);
    let cards: Vec<Card<'_>> = snapshot.readings.gpus.iter().map(card).collect();
    let mut family = |metric: &Metric, value: &dyn Fn(&Card<'_>) -> Option<f64>| {
        page.family(metric, cards.iter().filter_map(|card| Some((card.labels.as_slice(), value(card)?))))
    };
    let mut figure = |metric: &Metric, value: &dyn Fn(&Figures) -> Option<f64>| {
        family(metric, &|card| card.figures.and_then(value))
    };
    figure(&SM_CLOCK, &|figures| figures.sm_clock_mhz.map(f64::from))?;
    figure(&MEM_CLOCK, &|figures| figures.memory_clock_mhz.map(f64::from))?;
    figure(&GPU_TEMP, &|figures| figures.temperature_c.map(f64::from))?;
    figure(&POWER_USAGE, &|figures| figures.power_mw.map(|mw| f64::from(mw) / 1e3))?;
    figure(&ENERGY, &|figures| figures.energy_mj.map(|mj| mj as f64))?;
    figure(&PCIE_REPLAY, &|figures| figures.pcie_replays.map(f64::from))?;
    figure(&MEM_COPY_UTIL, &|figures| figures.memory_busy_percent.map(f64::from))?;
    figure(&ENC_UTIL, &|figures| figures.encoder_percent.map(f64::from))?;
    figure(&DEC_UTIL, &|figures| figures.decoder_percent.map(f64::from))?;
    figure(&XID_ERRORS, &|figures| Some(figures.xid.unwrap_or(0) as f64))?;
    figure(&FB_RESERVED, &|figures| figures.memory_reserved.map(mib))?;
    figure(&UNCORRECTABLE, &|figures| figures.remapped_uncorrectable.map(f64::from))?;
    figure(&CORRECTABLE, &|figures| figures.remapped_correctable.map(f64::from))?;
    figure(&REMAP_FAILURE, &|figures| figures.remap_failed.map(|failed| f64::from(u8::from(failed))))?;
    family(&GPU_UTIL, &|card| card.busy_percent())?;
    family(&FB_FREE, &|card| {
        card.memory(|figures| figures.memory_free, |status| status.memory.saturating_sub(status.memory_used))
    })?;
    family(&FB_USED, &|card| card.memory(|figures| figures.memory_used, |status| status.memory_used))?;
    family(&BUSY, &|card| Some(ratio(card.status.busy_ppm)))?;
    family(&SHARE_LEASED, &|card| Some(ratio(card.status.share_leased_ppm)))?;
    family(&MEMORY, &|card| Some(card.status.memory as f64))?;
    family(&MEMORY_LEASED, &|card| Some(card.status.memory_leased as f64))?;
    family(&MEMORY_USED, &|card| Some(card.status.memory_used as f64))?;
    family(&SESSIONS, &|card| Some(f64::from(card.status.sessions)))?;
    family(&FAULTS, &|card| Some(card.faults as f64))
}

fn card<'a>(status: &'a GpuStatus, snapshot: &'a Snapshot) -> Card<'a> {
    let figures = snapshot.figures.get(&status.index);
    let mut labels = vec![
        ("gpu", status.index.to_string()),
        ("UUID", uuid_text(status.uuid)),
        ("modelName", status.name.clone()),
        ("Hostname", snapshot.node.clone()),
    ];
    if !status.is_software {
        labels.push(("device", format!("nvidia{}", status.index)));
    }
    let known = [
        ("pci_bus_id", figures.and_then(|figures| figures.pci_bus_id.clone())),
        ("DCGM_FI_DRIVER_VERSION", figures.and_then(|figures| figures.driver_version.clone())),
    ];
    labels.extend(known.into_iter().filter_map(|(name, value)| Some((name, value?))));
    let faults = snapshot.faults.get(&status.index).copied().unwrap_or(0);
    Card { status, figures, faults, labels }
}

impl Card<'_> {
    /// A software GPU's sessions are all that uses it. Of other GPUs without NVML it is not known
    /// what else does.
    fn busy_percent(&self) -> Option<f64> {
        match self.figures {
            Some(figures) => figures.busy_percent.map(f64::from),
            None => self.status.is_software.then(|| ratio(self.status.busy_ppm) * 100.0),
        }
    }

    fn memory(
        &self,
        of_figures: impl Fn(&Figures) -> Option<u64>,
        of_software: impl Fn(&GpuStatus) -> u64,
    ) -> Option<f64> {
        match self.figures {
            Some(figures) => of_figures(figures).map(mib),
            None => self.status.is_software.then(|| mib(of_software(self.status))),
        }
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn ratio(ppm: u32) -> f64 {
    f64::from(ppm) / 1e6
}
