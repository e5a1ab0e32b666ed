//! `nvidia-smi` for programs under a lease: the leased GPUs with the leased memory.
//!
//! The forms that programs ask for, in the layouts that they read: the overview, `-L`, `-q` (also
//! as XML), `--query-gpu`, `--query-compute-apps` and `topo -m`. What a lease has no answer for is
//! `N/A`, as where a GPU has none.

mod csv;
mod gpu;
mod log;

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Parser;
use sluice_control::{Connection, joined, own_leases};
use sluice_wire::control::{Control, Devices, DevicesRequest};

use crate::cli::{SmiArgs, SmiCommand};
use crate::output::Stdout;
use crate::table::{self, Align};
use gpu::{LeasedGpu, Process};

/// The command line under the name `nvidia-smi`.
#[derive(Parser)]
#[command(name = "nvidia-smi", about = "The GPUs of a Sluice lease (a stand-in for NVIDIA's tool)", version)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) arguments: SmiArgs,
}

pub(crate) fn run(arguments: &SmiArgs) -> Result<ExitCode> {
    if arguments.help_query_gpu || arguments.help_query_compute_apps {
        let help =
            if arguments.help_query_gpu { csv::help(gpu::OF_GPUS) } else { csv::help(gpu::OF_PROCESSES) };
        Stdout.write_all(help.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        let text = answer(arguments)?;
        let mut out = Stdout;
        out.write_all(text.as_bytes())?;
        out.flush()?;
        let Some(seconds) = arguments.repeat else { return Ok(ExitCode::SUCCESS) };
        std::thread::sleep(Duration::from_secs(seconds));
    }
}

fn answer(arguments: &SmiArgs) -> Result<String> {
    let mut gpus = LeasedGpu::all(&devices()?);
    if let Some(ids) = &arguments.id {
        let ids: Vec<&str> = ids.split(',').map(str::trim).collect();
        if let Some(id) = ids.iter().find(|id| !gpus.iter().any(|gpu| gpu.is(id))) {
            bail!("no leased GPU is {id}");
        }
        gpus.retain(|gpu| ids.iter().any(|id| gpu.is(id)));
    }
    let format = arguments.format.as_deref();
    if let Some(SmiCommand::Topo { .. }) = arguments.command {
        Ok(topology(&gpus))
    } else if arguments.list_gpus {
        Ok(gpus.iter().map(|gpu| format!("GPU {}: {} (UUID: {})\n", gpu.index, gpu.name, gpu.uuid)).collect())
    } else if let Some(names) = &arguments.query_gpu {
        csv::table(gpu::OF_GPUS, gpus.iter(), names, format)
    } else if let Some(names) = &arguments.query_compute_apps {
        csv::table(gpu::OF_PROCESSES, gpus.iter().flat_map(|gpu| &gpu.processes), names, format)
    } else if arguments.query {
        Ok(log::text(&gpus, &arguments.display, arguments.xml))
    } else {
        Ok(overview(&gpus))
    }
}

/// What this program's leases have, and who uses it.
fn devices() -> Result<Devices> {
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
    Ok(joined(devices.collect::<Result<_, _>>()?))
}

fn overview(gpus: &[LeasedGpu]) -> String {
    let mut text = String::new();
    if let Some(gpu) = gpus.first() {
        let driver = &gpu.driver_version;
        // Programs look for these words.
        let _ = writeln!(
            text,
            "Sluice lease | NVIDIA-SMI {driver} | Driver Version: {driver} | CUDA Version: {}\n",
            gpu.cuda_version
        );
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
    let row = |gpu: &LeasedGpu, process: &Process| {
        let memory = format!("{}MiB", process.used_mib);
        vec![gpu.index.to_string(), process.pid.to_string(), process.name.clone(), memory]
    };
    let rows = gpus.iter().flat_map(|gpu| gpu.processes.iter().map(move |process| row(gpu, process)));
    let rows: Vec<Vec<String>> = rows.collect();
    if !rows.is_empty() {
        let columns = [
            ("GPU", Align::Right),
            ("PID", Align::Right),
            ("Process", Align::Left),
            ("Memory", Align::Right),
        ];
        let _ = write!(text, "\n{}", table::render(&columns, &rows));
    }
    text
}

/// The GPUs of a lease reach no memory but their own: what goes between them goes through the host.
fn topology(gpus: &[LeasedGpu]) -> String {
    let names = || gpus.iter().map(|gpu| format!("GPU{}", gpu.index));
    let mut text = String::from("\t");
    names().for_each(|name| text += &format!("{name}\t"));
    text += "CPU Affinity\tNUMA Affinity\tGPU NUMA ID\n";
    for (row, name) in names().enumerate() {
        text += &format!("{name}\t");
        (0..gpus.len()).for_each(|column| text += if row == column { " X \t" } else { "SYS\t" });
        text += "N/A\tN/A\tN/A\n";
    }
    text += "\nLegend:\n\n  X    = Self\n  SYS  = Through the host: GPUs of a Sluice lease do not reach each other's memory\n";
    text
}

#[cfg(test)]
mod tests {
    use super::gpu::tests::gpu;
    use super::*;

    #[test]
    fn the_overview_says_what_programs_look_for() {
        let text = overview(&[gpu(0)]);
        // As `torch.utils.collect_env` looks: up to the blank.
        let (_, rest) = text.split_once("Driver Version: ").expect("the driver");
        assert_eq!(rest.split(' ').next(), Some("580.65.06"));
        assert!(text.contains("CUDA Version: 13.0\n"), "{text}");
        assert!(text.contains("24MiB / 1024MiB") && text.contains("python3 train.py"), "{text}");
    }

    #[test]
    fn the_topology_is_a_row_for_each_gpu() {
        let text = topology(&[gpu(0), gpu(1)]);
        let rows: Vec<Vec<&str>> = text.lines().take(3).map(|line| line.split('\t').collect()).collect();
        assert_eq!(rows[0], ["", "GPU0", "GPU1", "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]);
        assert_eq!(rows[2], ["GPU1", "SYS", " X ", "N/A", "N/A", "N/A"]);
    }
}
