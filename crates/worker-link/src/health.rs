//! What NVML says of GPUs, as the processes tell it that ask NVML for a node.

use serde::{Deserialize, Serialize};

/// The argument that makes a worker a watcher; a [`Watch`] as JSON follows it.
pub const ARGUMENT: &str = "health";
/// The argument that makes a worker say the facts; a [`Watch`] as JSON follows it. The answer is a
/// list of [`Facts`] as JSON, one for each GPU of the watch, in their order.
pub const FACTS_ARGUMENT: &str = "facts";

/// What to watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// Path of the `libnvidia-ml.so.1`.
    pub library: String,
    /// The UUIDs of the GPUs, as NVML writes them; findings count in this order.
    pub gpus: Vec<String>,
}

/// What one look has found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// What has happened since the last look, and does not go away by itself.
    pub lasting: Vec<Finding>,
    /// What is so now.
    pub passing: Vec<Finding>,
    /// What NVML says of each GPU that it knows, by its index.
    #[serde(default)]
    pub figures: Vec<(u32, Figures)>,
}

/// Something wrong with a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub gpu: u32,
    /// For people.
    pub what: String,
    pub harm: Harm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Harm {
    /// What it computes is right, slower or with less in reserve.
    Degraded,
    /// Some program has had wrong data or none; the others are right so far.
    Contained,
    /// It is gone, or nothing that it computes can be trusted.
    Lost,
}

/// One GPU at one moment. What NVML does not say of it, or says only of other GPUs, is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    pub sm_clock_mhz: Option<u32>,
    pub memory_clock_mhz: Option<u32>,
    pub temperature_c: Option<u32>,
    /// The temperature at which the GPU slows down.
    pub slowdown_at_c: Option<u32>,
    pub power_mw: Option<u32>,
    /// The power that the GPU draws at most.
    pub power_limit_mw: Option<u32>,
    /// Since the driver was loaded.
    pub energy_mj: Option<u64>,
    /// PCIe packets that were sent again, since the driver was loaded.
    pub pcie_replays: Option<u32>,
    /// Percent of the last sample period in which a kernel ran.
    pub busy_percent: Option<u32>,
    /// Percent of it in which memory was read or written.
    pub memory_busy_percent: Option<u32>,
    pub encoder_percent: Option<u32>,
    pub decoder_percent: Option<u32>,
    pub memory_free: Option<u64>,
    pub memory_used: Option<u64>,
    /// Bytes that the driver keeps for itself.
    pub memory_reserved: Option<u64>,
    pub remapped_correctable: Option<u32>,
    pub remapped_uncorrectable: Option<u32>,
    pub remap_failed: Option<bool>,
    /// The number of the last Xid error that was seen.
    pub xid: Option<u64>,
    /// Such as `550.54.15`.
    pub driver_version: Option<String>,
    /// As `nvidia-smi` writes it.
    pub pci_bus_id: Option<String>,
}

/// Of one GPU. What NVML does not say is not there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Of the PCI device.
    pub vendor_id: Option<u16>,
    /// `domain:bus:device.function`, hexadecimal.
    pub pci: Option<String>,
    /// Whose memory is nearest.
    pub numa_node: Option<u32>,
    /// The generation and the lanes of PCIe that the GPU and its slot have in common.
    pub pcie: Option<(u32, u32)>,
    /// Other GPUs of the watch that NVLinks lead to, and how many.
    pub nvlinks: Vec<(u32, u32)>,
}
