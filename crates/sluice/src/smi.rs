//! `nvidia-smi` for programs under a lease: the leased GPUs with the leased memory.
//!
//! Three forms: the overview, `-L`, and `--query-gpu=... --format=csv`. What a lease has no answer for is `[N/A]`.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use sluice_control::{Connection, driver_version, joined, own_leases, uuid_text};
use sluice_wire::control::{Control, DeviceSnapshot, Devices, DevicesRequest};

use crate::cli::SmiArgs;
use crate::table::{self, Align};

/// The command line under the name `nvidia-smi`.
#[derive(Parser)]
#[command(name = "nvidia-smi", about = "The GPUs of a Sluice lease (a stand-in for NVIDIA's tool)", version)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) arguments: SmiArgs,
}

pub(crate) fn run(arguments: &SmiArgs) -> Result<ExitCode> {
    let leases = own_leases();
    if leases.is_empty() {
        bail!("this program runs under no lease; start it with `sluice run`");
    }
    let devices = leases.iter().map(|(node, token)| {
        let mut connection = Connection::open(node)?;
        match connection.ask(DevicesRequest { token: *token })? {
            Control::Devices(devices) => Ok(devices),
            _ => Err(connection.unexpected()),
        }
    });
    let devices = joined(devices.collect::<Result<_, _>>()?);
    let mut gpus = LeasedGpu::all(&devices);
    if let Some(id) = &arguments.id {
        gpus.retain(|gpu| *id == gpu.index.to_string() || id.eq_ignore_ascii_case(&gpu.uuid));
        if gpus.is_empty() {
            bail!("no leased GPU is {id}");
        }
    }
    if arguments.list_gpus {
        for gpu in &gpus {
            println!("GPU {}: {} (UUID: {})", gpu.index, gpu.name, gpu.uuid);
        }
    } else if let Some(properties) = &arguments.query_gpu {
        print!("{}", csv(&gpus, properties, arguments.format.as_deref().unwrap_or("csv"))?);
    } else {
        print!("{}", overview(&gpus, &devices));
    }
    Ok(ExitCode::SUCCESS)
}

/// One GPU of the lease, in the units in which `nvidia-smi` prints.
struct LeasedGpu {
    index: usize,
    name: String,
    uuid: String,
    memory_mib: u64,
    used_mib: u64,
    busy_percent: u64,
    compute_capability: String,
    driver_version: String,
    cuda_version: String,
}

impl LeasedGpu {
    fn all(devices: &Devices) -> Vec<LeasedGpu> {
        devices
            .devices
            .iter()
            .enumerate()
            .map(|(index, device)| LeasedGpu::new(index, device, devices))
            .collect()
    }

    fn new(index: usize, device: &DeviceSnapshot, devices: &Devices) -> LeasedGpu {
        let sessions = || devices.sessions.iter().filter(|session| session.gpu as usize == index);
        let used: u64 = sessions().map(|session| session.memory_used).sum();
        let busy_us: u64 = sessions().map(|session| session.busy_us).sum();
        let age_us = sessions().map(|session| session.age_ms).max().unwrap_or(0).max(1) * 1000;
        let (major, minor) = device.compute_capability();
        LeasedGpu {
            index,
            name: device.name.clone(),
            uuid: uuid_text(device.uuid),
            memory_mib: device.memory >> 20,
            used_mib: used >> 20,
            busy_percent: (busy_us.saturating_mul(100) / age_us).min(100),
            compute_capability: format!("{major}.{minor}"),
            driver_version: driver_version(device.driver_version),
            cuda_version: format!("{}.{}", device.driver_version / 1000, device.driver_version % 1000 / 10),
        }
    }

    /// A property by its name in `--help-query-gpu`: the value and its unit.
    fn property(&self, name: &str) -> Option<(String, &'static str)> {
        Some(match name {
            "index" => (self.index.to_string(), ""),
            "count" => ("1".into(), ""),
            "name" | "gpu_name" => (self.name.clone(), ""),
            "uuid" | "gpu_uuid" => (self.uuid.clone(), ""),
            "driver_version" => (self.driver_version.clone(), ""),
            "compute_cap" => (self.compute_capability.clone(), ""),
            "pci.bus_id" | "gpu_bus_id" => (format!("00000000:{:02X}:00.0", self.index + 1), ""),
            "memory.total" => (self.memory_mib.to_string(), "MiB"),
            "memory.used" => (self.used_mib.to_string(), "MiB"),
            "memory.free" => (self.memory_mib.saturating_sub(self.used_mib).to_string(), "MiB"),
            "memory.reserved" => ("0".into(), "MiB"),
            "utilization.gpu" => (self.busy_percent.to_string(), "%"),
            "compute_mode" => ("Default".into(), ""),
            "persistence_mode" => ("Enabled".into(), ""),
            "mig.mode.current" | "mig.mode.pending" => ("Disabled".into(), ""),
            _ if WITHOUT_ANSWER.contains(&name) => ("[N/A]".into(), ""),
            _ => return None,
        })
    }
}

/// Properties of a card that a lease does not have.
const WITHOUT_ANSWER: &[&str] = &[
    "temperature.gpu",
    "temperature.memory",
    "fan.speed",
    "power.draw",
    "power.limit",
    "clocks.sm",
    "clocks.mem",
    "clocks.gr",
    "clocks.max.sm",
    "clocks.max.mem",
    "pstate",
    "serial",
    "vbios_version",
    "utilization.memory",
    "ecc.mode.current",
    "pcie.link.gen.current",
    "pcie.link.width.current",
    "display_active",
    "display_mode",
];

fn csv(gpus: &[LeasedGpu], properties: &str, format: &str) -> Result<String> {
    let mut options = format.split(',').map(str::trim);
    if options.next() != Some("csv") {
        bail!("--format={format}: only csv, csv,noheader and csv,noheader,nounits are there");
    }
    let options: Vec<&str> = options.collect();
    let (header, units) = (!options.contains(&"noheader"), !options.contains(&"nounits"));
    let names: Vec<&str> = properties.split(',').map(str::trim).collect();
    let mut lines = Vec::new();
    let unknown = |name: &str| format!("{name:?} is no property that this stand-in knows");
    if header {
        let Some(gpu) = gpus.first() else { return Ok(String::new()) };
        let mut titles = Vec::new();
        for name in &names {
            let (_, unit) = gpu.property(name).with_context(|| unknown(name))?;
            titles.push(if unit.is_empty() || !units {
                name.to_string()
            } else {
                format!("{name} [{unit}]")
            });
        }
        lines.push(titles.join(", "));
    }
    for gpu in gpus {
        let mut values = Vec::new();
        for name in &names {
            let (value, unit) = gpu.property(name).with_context(|| unknown(name))?;
            values.push(if unit.is_empty() || !units { value } else { format!("{value} {unit}") });
        }
        lines.push(values.join(", "));
    }
    Ok(lines.join("\n") + "\n")
}

fn overview(gpus: &[LeasedGpu], devices: &Devices) -> String {
    let mut text = String::new();
    if let Some(gpu) = gpus.first() {
        text += &format!("Sluice lease: driver {}, CUDA {}\n\n", gpu.driver_version, gpu.cuda_version);
    }
    let rows: Vec<Vec<String>> = gpus
        .iter()
        .map(|gpu| {
            let memory = format!("{}MiB / {}MiB", gpu.used_mib, gpu.memory_mib);
            vec![gpu.index.to_string(), gpu.name.clone(), memory, format!("{}%", gpu.busy_percent)]
        })
        .collect();
    let columns = [
        ("GPU", Align::Right),
        ("Name", Align::Left),
        ("Memory-Usage", Align::Right),
        ("GPU-Util", Align::Right),
    ];
    text += &table::render(&columns, &rows);
    let rows: Vec<Vec<String>> = devices
        .sessions
        .iter()
        .map(|session| {
            let memory = format!("{}MiB", session.memory_used >> 20);
            vec![session.gpu.to_string(), session.process.to_string(), session.name.clone(), memory]
        })
        .collect();
    if !rows.is_empty() {
        let columns = [
            ("GPU", Align::Right),
            ("PID", Align::Right),
            ("Process", Align::Left),
            ("Memory", Align::Right),
        ];
        text += &format!("\n{}", table::render(&columns, &rows));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu() -> LeasedGpu {
        LeasedGpu {
            index: 0,
            name: "A GPU".into(),
            uuid: "GPU-1".into(),
            memory_mib: 1024,
            used_mib: 24,
            busy_percent: 50,
            compute_capability: "12.0".into(),
            driver_version: "580.65.06".into(),
            cuda_version: "13.0".into(),
        }
    }

    #[test]
    fn csv_as_programs_read_it() {
        let check = |properties: &str, format: &str, expect: &str| {
            assert_eq!(csv(&[gpu()], properties, format).expect("known properties"), expect, "{format}");
        };
        check("name, memory.total", "csv", "name, memory.total [MiB]\nA GPU, 1024 MiB\n");
        check("memory.free,utilization.gpu", "csv,noheader", "1000 MiB, 50 %\n");
        check("memory.used", "csv,noheader,nounits", "24\n");
        check("temperature.gpu,compute_cap", "csv,noheader", "[N/A], 12.0\n");
        assert!(csv(&[gpu()], "nonsense", "csv").is_err());
        assert!(csv(&[gpu()], "name", "xml").is_err());
    }
}
