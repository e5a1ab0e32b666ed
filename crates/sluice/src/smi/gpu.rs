//! One GPU of a lease and its processes, in the units in which `nvidia-smi` prints, and what can be
//! asked of them.

use jiff::Zoned;
use sluice_control::{driver_version, uuid_text};
use sluice_wire::control::{DeviceSnapshot, Devices};

use super::csv::Property;

pub(crate) struct LeasedGpu {
    pub(crate) index: usize,
    /// How many there are.
    pub(crate) count: usize,
    pub(crate) name: String,
    pub(crate) uuid: String,
    pub(crate) memory_mib: u64,
    pub(crate) used_mib: u64,
    /// In the mean since the first of its processes began.
    pub(crate) busy_percent: u64,
    pub(crate) compute_capability: String,
    pub(crate) driver_version: String,
    pub(crate) cuda_version: String,
    pub(crate) processes: Vec<Process>,
}

/// A process with a session under the lease.
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) name: String,
    pub(crate) used_mib: u64,
    /// Of its GPU.
    gpu_name: String,
    gpu_uuid: String,
    gpu_bus_id: String,
}

impl LeasedGpu {
    pub(crate) fn all(devices: &Devices) -> Vec<LeasedGpu> {
        let each = devices.devices.iter().enumerate();
        each.map(|(index, device)| LeasedGpu::new(index, device, devices)).collect()
    }

    fn new(index: usize, device: &DeviceSnapshot, devices: &Devices) -> LeasedGpu {
        let sessions = || devices.sessions.iter().filter(|session| session.gpu as usize == index);
        let used: u64 = sessions().map(|session| session.memory_used).sum();
        let busy_us: u64 = sessions().map(|session| session.busy_us).sum();
        let age_us = sessions().map(|session| session.age_ms).max().unwrap_or(0).max(1) * 1000;
        let (major, minor) = device.compute_capability();
        let processes = sessions().map(|session| Process {
            pid: session.process,
            name: session.name.clone(),
            used_mib: session.memory_used >> 20,
            gpu_name: device.name.clone(),
            gpu_uuid: uuid_text(device.uuid),
            gpu_bus_id: bus_id(index),
        });
        LeasedGpu {
            index,
            count: devices.devices.len(),
            name: device.name.clone(),
            uuid: uuid_text(device.uuid),
            memory_mib: device.memory >> 20,
            used_mib: used >> 20,
            busy_percent: (busy_us.saturating_mul(100) / age_us).min(100),
            compute_capability: format!("{major}.{minor}"),
            driver_version: driver_version(device.driver_version),
            cuda_version: format!("{}.{}", device.driver_version / 1000, device.driver_version % 1000 / 10),
            processes: processes.collect(),
        }
    }

    pub(crate) fn bus_id(&self) -> String {
        bus_id(self.index)
    }

    pub(crate) fn free_mib(&self) -> u64 {
        self.memory_mib.saturating_sub(self.used_mib)
    }

    /// Whether this is what `--id` means: an index, a UUID or a place on the bus.
    pub(crate) fn is(&self, id: &str) -> bool {
        let bus_id = self.bus_id();
        id == self.index.to_string()
            || [&*self.uuid, &bus_id, &bus_id[4..]].iter().any(|own| id.eq_ignore_ascii_case(own))
    }
}

/// The place in the lease, as CUDA and NVML say it (`PCI_BUS_ID` in the client library).
fn bus_id(index: usize) -> String {
    format!("00000000:{:02X}:00.0", index + 1)
}

/// `--query-gpu`, by the names of `nvidia-smi --help-query-gpu`.
pub(crate) const OF_GPUS: &[Property<LeasedGpu>] = &[
    Property { names: &["timestamp"], unit: "", value: |_| Some(now("%Y/%m/%d %H:%M:%S%.3f")) },
    Property { names: &["driver_version"], unit: "", value: |gpu| Some(gpu.driver_version.clone()) },
    Property { names: &["count"], unit: "", value: |gpu| Some(gpu.count.to_string()) },
    Property { names: &["name", "gpu_name"], unit: "", value: |gpu| Some(gpu.name.clone()) },
    Property { names: &["uuid", "gpu_uuid"], unit: "", value: |gpu| Some(gpu.uuid.clone()) },
    Property { names: &["pci.bus_id", "gpu_bus_id"], unit: "", value: |gpu| Some(gpu.bus_id()) },
    Property { names: &["pci.domain"], unit: "", value: |_| Some("0x0000".into()) },
    Property { names: &["pci.bus"], unit: "", value: |gpu| Some(format!("0x{:02X}", gpu.index + 1)) },
    Property { names: &["pci.device"], unit: "", value: |_| Some("0x00".into()) },
    Property { names: &["index"], unit: "", value: |gpu| Some(gpu.index.to_string()) },
    Property { names: &["compute_cap"], unit: "", value: |gpu| Some(gpu.compute_capability.clone()) },
    Property { names: &["memory.total"], unit: "MiB", value: |gpu| Some(gpu.memory_mib.to_string()) },
    Property { names: &["memory.reserved"], unit: "MiB", value: |_| Some("0".into()) },
    Property { names: &["memory.used"], unit: "MiB", value: |gpu| Some(gpu.used_mib.to_string()) },
    Property { names: &["memory.free"], unit: "MiB", value: |gpu| Some(gpu.free_mib().to_string()) },
    Property { names: &["utilization.gpu"], unit: "%", value: |gpu| Some(gpu.busy_percent.to_string()) },
    Property { names: &["compute_mode"], unit: "", value: |_| Some("Default".into()) },
    Property { names: &["persistence_mode"], unit: "", value: |_| Some("Enabled".into()) },
    Property { names: &["mig.mode.current"], unit: "", value: |_| Some("Disabled".into()) },
    Property { names: &["mig.mode.pending"], unit: "", value: |_| Some("Disabled".into()) },
    // Properties of a GPU that a lease does not have.
    Property { names: &["serial", "gpu_serial"], unit: "", value: |_| None },
    Property { names: &["vbios_version"], unit: "", value: |_| None },
    Property { names: &["display_active"], unit: "", value: |_| None },
    Property { names: &["display_mode"], unit: "", value: |_| None },
    Property { names: &["pstate"], unit: "", value: |_| None },
    Property { names: &["temperature.gpu"], unit: "", value: |_| None },
    Property { names: &["temperature.memory"], unit: "", value: |_| None },
    Property { names: &["fan.speed"], unit: "%", value: |_| None },
    Property { names: &["power.draw"], unit: "W", value: |_| None },
    Property { names: &["power.limit"], unit: "W", value: |_| None },
    Property { names: &["enforced.power.limit"], unit: "W", value: |_| None },
    Property { names: &["utilization.memory"], unit: "%", value: |_| None },
    Property { names: &["utilization.encoder"], unit: "%", value: |_| None },
    Property { names: &["utilization.decoder"], unit: "%", value: |_| None },
    Property { names: &["clocks.current.graphics", "clocks.gr"], unit: "MHz", value: |_| None },
    Property { names: &["clocks.current.sm", "clocks.sm"], unit: "MHz", value: |_| None },
    Property { names: &["clocks.current.memory", "clocks.mem"], unit: "MHz", value: |_| None },
    Property { names: &["clocks.max.graphics", "clocks.max.gr"], unit: "MHz", value: |_| None },
    Property { names: &["clocks.max.sm"], unit: "MHz", value: |_| None },
    Property { names: &["clocks.max.memory", "clocks.max.mem"], unit: "MHz", value: |_| None },
    Property { names: &["ecc.mode.current"], unit: "", value: |_| None },
    Property { names: &["pcie.link.gen.current"], unit: "", value: |_| None },
    Property { names: &["pcie.link.width.current"], unit: "", value: |_| None },
    Property { names: &["pci.device_id"], unit: "", value: |_| None },
    Property { names: &["pci.sub_device_id"], unit: "", value: |_| None },
    Property { names: &["power.management"], unit: "", value: |_| None },
    Property { names: &["power.draw.average"], unit: "W", value: |_| None },
    Property { names: &["power.draw.instant"], unit: "W", value: |_| None },
    Property { names: &["power.default_limit"], unit: "W", value: |_| None },
    Property { names: &["power.min_limit"], unit: "W", value: |_| None },
    Property { names: &["power.max_limit"], unit: "W", value: |_| None },
    Property { names: &["clocks.current.video", "clocks.video"], unit: "MHz", value: |_| None },
    Property { names: &["ecc.mode.pending"], unit: "", value: |_| None },
    Property { names: &["ecc.errors.corrected.volatile.total"], unit: "", value: |_| None },
    Property { names: &["ecc.errors.uncorrected.volatile.total"], unit: "", value: |_| None },
    Property { names: &["pcie.link.gen.max"], unit: "", value: |_| None },
    Property { names: &["pcie.link.width.max"], unit: "", value: |_| None },
    Property { names: &["gpu_operation_mode.current", "gom.current"], unit: "", value: |_| None },
    Property { names: &["accounting.mode"], unit: "", value: |_| None },
    Property { names: &["inforom.img", "inforom.image"], unit: "", value: |_| None },
];

/// `--query-compute-apps`, by the names of `nvidia-smi --help-query-compute-apps`.
pub(crate) const OF_PROCESSES: &[Property<Process>] = &[
    Property { names: &["timestamp"], unit: "", value: |_| Some(now("%Y/%m/%d %H:%M:%S%.3f")) },
    Property { names: &["gpu_name"], unit: "", value: |process| Some(process.gpu_name.clone()) },
    Property { names: &["gpu_bus_id"], unit: "", value: |process| Some(process.gpu_bus_id.clone()) },
    Property { names: &["gpu_serial"], unit: "", value: |_| None },
    Property { names: &["gpu_uuid"], unit: "", value: |process| Some(process.gpu_uuid.clone()) },
    Property { names: &["pid"], unit: "", value: |process| Some(process.pid.to_string()) },
    Property { names: &["process_name", "name"], unit: "", value: |process| Some(process.name.clone()) },
    Property {
        names: &["used_gpu_memory", "used_memory"],
        unit: "MiB",
        value: |process| Some(process.used_mib.to_string()),
    },
];

/// The time here.
pub(crate) fn now(format: &str) -> String {
    Zoned::now().strftime(format).to_string()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn gpu(index: usize) -> LeasedGpu {
        LeasedGpu {
            index,
            count: 2,
            name: "A GPU".into(),
            uuid: format!("GPU-{index}"),
            memory_mib: 1024,
            used_mib: 24,
            busy_percent: 50,
            compute_capability: "12.0".into(),
            driver_version: "580.65.06".into(),
            cuda_version: "13.0".into(),
            processes: vec![Process {
                pid: 77,
                name: "python3 train.py".into(),
                used_mib: 24,
                gpu_name: "A GPU".into(),
                gpu_uuid: format!("GPU-{index}"),
                gpu_bus_id: bus_id(index),
            }],
        }
    }

    #[test]
    fn a_gpu_is_known_by_its_index_its_uuid_and_its_place() {
        let gpu = gpu(1);
        for id in ["1", "gpu-1", "00000000:02:00.0", "0000:02:00.0"] {
            assert!(gpu.is(id), "{id}");
        }
        assert!(!gpu.is("0") && !gpu.is("GPU-0") && !gpu.is("00000000:01:00.0"));
    }
}
