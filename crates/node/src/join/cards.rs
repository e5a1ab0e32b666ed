//! What a node says of its GPUs when it joins: what the driver's snapshot has, and what NVML knows
//! beyond it.

use sluice_api::node::{Gpu, MEMORY_RATE_MAX, NvLinks, PcieLink, Rates};
use sluice_api::usage::GFLOPS_MAX;
use sluice_cuda::CUdevice_attribute;
use sluice_wire::control::DeviceSnapshot;
use sluice_worker_link::health::Facts;

/// In the order of the snapshots, as are the facts and what was measured, if there are any. A rate
/// that the node's operator states counts before all figures.
pub(crate) fn gpus(
    snapshots: &[DeviceSnapshot],
    facts: &[Facts],
    measured: &[Option<Rates>],
    stated_gflops: Option<u64>,
) -> Vec<Gpu> {
    let none = Facts::default();
    let facts = facts.iter().chain(std::iter::repeat(&none));
    let measured = measured.iter().copied().chain(std::iter::repeat(None));
    let gpu = |((snapshot, facts), measured)| gpu(snapshot, facts, measured, stated_gflops);
    snapshots.iter().zip(facts).zip(measured).map(gpu).collect()
}

fn gpu(snapshot: &DeviceSnapshot, facts: &Facts, measured: Option<Rates>, stated_gflops: Option<u64>) -> Gpu {
    let figures = figures(snapshot);
    let (major, minor) = snapshot.compute_capability();
    Gpu {
        name: snapshot.name.clone(),
        uuid: sluice_control::uuid_text(snapshot.uuid),
        memory: snapshot.memory,
        memory_leasable: 0,
        software: snapshot.is_software,
        compute_capability: format!("{major}.{minor}"),
        driver_version: snapshot.driver_version,
        gflops: stated_gflops.or(figures.map(|figures| figures.gflops)).unwrap_or(0),
        stated: stated_gflops.is_some(),
        figures,
        measured,
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

/// Nothing is known of a software GPU, whatever its attributes say.
fn figures(snapshot: &DeviceSnapshot) -> Option<Rates> {
    let (gflops, memory) = (gflops(snapshot), memory_bytes_per_s(snapshot));
    let is_known = !snapshot.is_software && (gflops.is_some() || memory.is_some());
    is_known.then(|| Rates { gflops: gflops.unwrap_or(0), memory_bytes_per_s: memory.unwrap_or(0) })
}

fn attribute(snapshot: &DeviceSnapshot, attribute: CUdevice_attribute) -> Option<u64> {
    snapshot.attribute(attribute).and_then(|value| u64::try_from(value).ok())
}

/// Two transfers a clock, of as many bits as the bus is wide.
fn memory_bytes_per_s(snapshot: &DeviceSnapshot) -> Option<u64> {
    let clock_khz = attribute(snapshot, CUdevice_attribute::MEMORY_CLOCK_RATE)?;
    let bits = attribute(snapshot, CUdevice_attribute::GLOBAL_MEMORY_BUS_WIDTH)?;
    let bytes = clock_khz.checked_mul(2 * 1000)?.checked_mul(bits / 8)?;
    Some(bytes).filter(|bytes| *bytes <= MEMORY_RATE_MAX)
}

/// Peak of 32-bit arithmetic: lanes of a multiprocessor (CUDA C++ Programming Guide, "Arithmetic
/// Instructions") x multiprocessors x clock x 2 for a multiply-add.
fn gflops(snapshot: &DeviceSnapshot) -> Option<u64> {
    let lanes = match snapshot.compute_capability() {
        (8, 0) | (7, _) | (6, 0) => 64,
        (6.., _) => 128,
        _ => return None,
    };
    let multiprocessors = attribute(snapshot, CUdevice_attribute::MULTIPROCESSOR_COUNT)?;
    let clock_khz = attribute(snapshot, CUdevice_attribute::CLOCK_RATE)?;
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
            (CUdevice_attribute::MEMORY_CLOCK_RATE, 2_619_000),
            (CUdevice_attribute::GLOBAL_MEMORY_BUS_WIDTH, 5120),
        ];
        let known = card("H100", &attributes);
        let cards = [known.clone(), DeviceSnapshot { is_software: true, ..known }];
        let measured = Some(Rates { gflops: 51_000, memory_bytes_per_s: 3_000_000_000_000 });
        let gpus = |stated| <[Gpu; 2]>::try_from(gpus(&cards, &[], &[measured; 2], stated)).unwrap();
        let rates = |stated| gpus(stated).map(|gpu| (gpu.gflops, gpu.stated));
        assert_eq!(rates(None), [(66_908, false), (0, false)], "what was measured does not count");
        assert_eq!(rates(Some(2_500)), [(2_500, true), (2_500, true)]);
        // NVIDIA's data sheet of the H100 SXM says 67 TFLOPS and 3.35 TB/s.
        let figures = Rates { gflops: 66_908, memory_bytes_per_s: 3_352_320_000_000 };
        assert_eq!(gpus(Some(1)).map(|gpu| gpu.figures), [Some(figures), None]);
    }
}
