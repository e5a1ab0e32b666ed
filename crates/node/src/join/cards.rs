//! What a node says of its GPUs when it joins: what the driver's snapshot has, and what NVML knows beyond it.

use sluice_api::node::{Gpu, NvLinks, PcieLink};
use sluice_api::usage::GFLOPS_MAX;
use sluice_cuda::CUdevice_attribute;
use sluice_wire::control::DeviceSnapshot;
use sluice_worker::health::facts::Facts;

/// In the order of the snapshots, as are the facts, if there are any. A rate that the node's operator states counts before all figures.
pub(crate) fn gpus(snapshots: &[DeviceSnapshot], facts: &[Facts], stated_gflops: Option<u64>) -> Vec<Gpu> {
    let none = Facts::default();
    let facts = facts.iter().chain(std::iter::repeat(&none));
    let gpu = |(snapshot, facts)| {
        let gflops = stated_gflops.unwrap_or_else(|| gflops(snapshot));
        gpu(snapshot, facts, gflops)
    };
    snapshots.iter().zip(facts).map(gpu).collect()
}

fn gpu(snapshot: &DeviceSnapshot, facts: &Facts, gflops: u64) -> Gpu {
    let (major, minor) = snapshot.compute_capability();
    Gpu {
        name: snapshot.name.clone(),
        uuid: sluice_control::uuid_text(snapshot.uuid),
        memory: snapshot.memory,
        software: snapshot.is_software,
        compute_capability: format!("{major}.{minor}"),
        driver_version: snapshot.driver_version,
        gflops,
        vendor: if snapshot.is_software { Some("sluice".into()) } else { facts.vendor_id.map(vendor) },
        pci: facts.pci.clone(),
        numa_node: facts.numa_node,
        pcie: facts.pcie.map(|(generation, lanes)| PcieLink { generation, lanes }),
        nvlinks: facts.nvlinks.iter().map(|&(gpu, links)| NvLinks { gpu, links }).collect(),
    }
}

/// Vendors by their PCI ids (the PCI ID Repository, pci-ids.ucw.cz); others by the number.
fn vendor(id: u16) -> String {
    match id {
        0x10de => "nvidia".into(),
        0x1002 => "amd".into(),
        0x8086 => "intel".into(),
        other => format!("{other:04x}"),
    }
}

/// Peak of 32-bit arithmetic: lanes of a multiprocessor (CUDA C++ Programming Guide, "Arithmetic Instructions") x multiprocessors x
/// clock x 2 for a multiply-add; 0 where the figures do not say. Nothing is known of a software GPU.
fn gflops(snapshot: &DeviceSnapshot) -> u64 {
    if snapshot.is_software { 0 } else { of_figures(snapshot).unwrap_or(0) }
}

fn of_figures(snapshot: &DeviceSnapshot) -> Option<u64> {
    let lanes = match snapshot.compute_capability() {
        (8, 0) | (7, _) | (6, 0) => 64,
        (6.., _) => 128,
        _ => return None,
    };
    let of = |attribute| snapshot.attribute(attribute).and_then(|value| u64::try_from(value).ok());
    let multiprocessors = of(CUdevice_attribute::MULTIPROCESSOR_COUNT)?;
    let clock_khz = of(CUdevice_attribute::CLOCK_RATE)?;
    let flops = [multiprocessors, clock_khz, 2].into_iter().try_fold(lanes, u64::checked_mul)?;
    Some(flops / 1_000_000).filter(|gflops| *gflops <= GFLOPS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::tests::card;

    #[test]
    fn what_an_operator_states_counts_before_figures() {
        let attributes = [
            (CUdevice_attribute::COMPUTE_CAPABILITY_MAJOR, 9),
            (CUdevice_attribute::MULTIPROCESSOR_COUNT, 132),
            (CUdevice_attribute::CLOCK_RATE, 1_980_000),
        ];
        let known = card("H100", &attributes);
        let cards = [known.clone(), DeviceSnapshot { is_software: true, ..known }];
        let rates = |stated| gpus(&cards, &[], stated).into_iter().map(|gpu| gpu.gflops).collect::<Vec<_>>();
        // NVIDIA's data sheet of the H100 SXM says 67 TFLOPS.
        assert_eq!(rates(None), [66_908, 0]);
        assert_eq!(rates(Some(2_500)), [2_500, 2_500]);
    }
}
