//! How fast this node's GPUs are: measured once with each driver, and kept beside the journal, so
//! that the next start does not wait for it and says the same.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use sluice_api::node::{Gpu, MEMORY_RATE_MAX, Rates};
use sluice_api::usage::GFLOPS_MAX;
use sluice_wire::control::DeviceSnapshot;
use sluice_worker_link::link::Driver;
use sluice_worker_link::measure::{self, ARGUMENT};

use crate::config::WorkerCommand;
use crate::inventory::{Inventory, ask_worker};

/// In the folder of the journal: [`Rates`] by [`name`].
const FILE: &str = "measured.json";

/// A driver that takes longer goes unmeasured: time to be loaded, and for each GPU to make its
/// context and compile a kernel.
const PATIENCE: Duration = Duration::from_secs(15);
const PATIENCE_PER_GPU: Duration = Duration::from_secs(3);

/// Of each GPU, in their order; nothing of one that cannot be measured.
pub(crate) fn rates(inventory: &Inventory, worker: &WorkerCommand, folder: &Path) -> Vec<Option<Rates>> {
    let names: Vec<String> = inventory.snapshots.iter().map(name).collect();
    // It computes nothing, and would be the fastest of all.
    if matches!(inventory.driver, Driver::Recording { .. }) {
        return vec![None; names.len()];
    }
    let mut kept = read(folder);
    if names.iter().any(|name| !kept.contains_key(name)) {
        match ask(inventory, worker) {
            Ok(measured) => {
                for (gpu, (name, measured)) in names.iter().zip(measured).enumerate() {
                    match measured {
                        Ok(measured) => drop(kept.entry(name.clone()).or_insert(rounded(measured))),
                        Err(error) => tracing::warn!(gpu, "GPU {gpu} could not be measured: {error}"),
                    }
                }
                if let Err(error) = write(folder, &kept) {
                    tracing::warn!(
                        "{}: {error}; GPUs are measured at each start",
                        folder.join(FILE).display()
                    );
                }
            }
            Err(error) => tracing::warn!("the GPUs could not be measured: {error}"),
        }
    }
    names.iter().map(|name| kept.get(name).copied()).collect()
}

/// Another driver may do better with the same GPU.
fn name(snapshot: &DeviceSnapshot) -> String {
    format!("{} with {}", sluice_control::uuid_text(snapshot.uuid), snapshot.driver_version)
}

fn ask(inventory: &Inventory, worker: &WorkerCommand) -> io::Result<Vec<Result<measure::Rates, String>>> {
    let gpus = inventory.snapshots.len();
    let patience = PATIENCE + PATIENCE_PER_GPU * gpus as u32;
    let said = ask_worker(worker, ARGUMENT, &serde_json::to_string(&inventory.driver)?, patience)?;
    let measured: Vec<_> = serde_json::from_slice(&said)?;
    match measured.len() == gpus {
        true => Ok(measured),
        false => Err(io::Error::other(format!("{} of {gpus} were", measured.len()))),
    }
}

fn rounded(measured: measure::Rates) -> Rates {
    Rates {
        gflops: two_digits(measured.flops / 1e9).min(GFLOPS_MAX),
        memory_bytes_per_s: two_digits(measured.bytes_per_s).min(MEMORY_RATE_MAX),
    }
}

/// A server would refuse the node.
fn is_absurd(rates: &Rates) -> bool {
    rates.gflops > GFLOPS_MAX || rates.memory_bytes_per_s > MEMORY_RATE_MAX
}

/// What is measured says no more than two digits; anything that works does one a second.
fn two_digits(rate: f64) -> u64 {
    let rate = rate.max(1.0) as u64;
    let unit = 10_u64.pow(rate.ilog10().saturating_sub(1));
    rate.saturating_add(unit / 2) / unit * unit
}

/// What cannot be read, and what is no possible measurement, is measured anew.
fn read(folder: &Path) -> BTreeMap<String, Rates> {
    let kept = fs::read(folder.join(FILE)).ok().and_then(|text| serde_json::from_slice(&text).ok());
    let mut kept: BTreeMap<String, Rates> = kept.unwrap_or_default();
    kept.retain(|_, rates| !is_absurd(rates));
    kept
}

fn write(folder: &Path, kept: &BTreeMap<String, Rates>) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    // A reader finds the old file or the new one.
    let new = folder.join(format!("{FILE}.new"));
    fs::write(&new, serde_json::to_vec_pretty(kept)?)?;
    fs::rename(new, folder.join(FILE))
}

/// What to look at: a GPU that does less than a third of what its driver's figures say.
pub(crate) fn oddity(index: usize, gpu: &Gpu) -> Option<String> {
    let (measured, figures) = gpu.measured.zip(gpu.figures)?;
    let is_slow = |measured: u64, figure: u64| measured < figure / 3;
    let slow = [
        (measured.gflops, figures.gflops, 1e3, "TFLOPS"),
        (measured.memory_bytes_per_s, figures.memory_bytes_per_s, 1e9, "GB/s of memory"),
    ]
    .into_iter()
    .find(|&(measured, figure, ..)| is_slow(measured, figure));
    let (measured, figure, per, unit) = slow?;
    Some(format!(
        "GPU {index} ({}) was measured at {:.1} {unit}, less than a third of its figure ({:.1}): is it too hot, short of power, or used by \
         others?",
        gpu.name,
        measured as f64 / per,
        figure as f64 / per
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::tests::card;

    #[test]
    fn what_was_measured_is_kept_and_a_worker_that_fails_leaves_it_out() {
        let folder = std::env::temp_dir().join(format!("sluice-measured-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let inventory = |driver_version| Inventory {
            driver: Driver::Library { path: "/a".into() },
            cards: Vec::new(),
            snapshots: vec![DeviceSnapshot { driver_version, ..card("a card", &[]) }],
        };
        let says = |script: &str, driver_version| {
            let arguments = vec!["-c".into(), script.into()];
            let worker = WorkerCommand { program: "/bin/sh".into(), arguments };
            rates(&inventory(driver_version), &worker, &folder)
        };
        for failing in ["exit 3", "echo nonsense", "echo '[]'", r#"echo '[{"Err": "it is busy"}]'"#] {
            assert_eq!(says(failing, 12_040), [None], "{failing}");
        }
        let rate = r#"echo '[{"Ok": {"flops": 51234567890123.0, "bytes_per_s": 2.96e12}}]'"#;
        let measured = Some(Rates { gflops: 51_000, memory_bytes_per_s: 3_000_000_000_000 });
        assert_eq!(says(rate, 12_040), [measured]);
        assert_eq!(says("exit 3", 12_040), [measured], "it is kept");
        assert_eq!(says("exit 3", 13_000), [None], "another driver");
        fs::write(folder.join(FILE), "torn").unwrap();
        assert_eq!(says("exit 3", 12_040), [None]);
        assert_eq!(says(rate, 12_040), [measured]);
        let absurd = fs::read_to_string(folder.join(FILE)).unwrap().replace("51000", "1000000001");
        fs::write(folder.join(FILE), absurd).unwrap();
        assert_eq!(says("exit 3", 12_040), [None], "a server would refuse it");
        assert_eq!(says(rate, 12_040), [measured]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_is_kept_stays_while_another_gpu_is_measured() {
        let folder = std::env::temp_dir().join(format!("sluice-measured-two-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let says = |script: &str, gpus: u8| {
            let snapshot = |gpu| DeviceSnapshot { uuid: [gpu; 16], ..card("a card", &[]) };
            let driver = Driver::Library { path: "/a".into() };
            let inventory =
                Inventory { driver, cards: Vec::new(), snapshots: (0..gpus).map(snapshot).collect() };
            let arguments = vec!["-c".into(), script.into()];
            let worker = WorkerCommand { program: "/bin/sh".into(), arguments };
            let rates = rates(&inventory, &worker, &folder).into_iter();
            rates.map(|rates| rates.map(|rates| rates.gflops)).collect::<Vec<_>>()
        };
        let one = r#"{"Ok": {"flops": 9e12, "bytes_per_s": 1e12}}"#;
        let slower = r#"{"Ok": {"flops": 2e12, "bytes_per_s": 1e12}}"#;
        assert_eq!(says(&format!("echo '[{one}]'"), 1), [Some(9000)]);
        assert_eq!(says(&format!("echo '[{slower}, {slower}]'"), 2), [Some(9000), Some(2000)]);
        assert!(!folder.join(format!("{FILE}.new")).exists());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn rates_have_two_digits() {
        for (rate, expect) in [(0.2, 1), (7.9, 7), (94.0, 94), (994.0, 990), (995.0, 1000)] {
            assert_eq!(two_digits(rate), expect, "{rate}");
        }
        let absurd = measure::Rates { flops: f64::INFINITY, bytes_per_s: f64::NAN };
        assert_eq!(rounded(absurd), Rates { gflops: GFLOPS_MAX, memory_bytes_per_s: 1 });
    }

    #[test]
    fn a_gpu_far_below_its_figures_is_spoken_of() {
        let rates = |gflops, memory| Some(Rates { gflops, memory_bytes_per_s: memory });
        let says = |figures, measured| {
            oddity(3, &Gpu { name: "H100".into(), figures, measured, ..Gpu::default() }).unwrap_or_default()
        };
        let figures = rates(66_908, 3_352_000_000_000);
        assert_eq!(says(figures, rates(50_000, 2_900_000_000_000)), "");
        assert!(
            says(figures, rates(20_000, 2_900_000_000_000))
                .contains("GPU 3 (H100) was measured at 20.0 TFLOPS")
        );
        assert!(says(figures, rates(50_000, 900_000_000_000)).contains("900.0 GB/s of memory"));
        assert_eq!(says(rates(0, 0), rates(1, 1)), "", "nothing is known of it");
        assert_eq!(says(None, rates(1, 1)), "");
    }
}
