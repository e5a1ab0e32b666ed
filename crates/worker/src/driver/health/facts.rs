//! What NVML says of where GPUs stand: asked once, in a process of its own, since nothing of it
//! changes while a node runs.

use std::io::{self, Write};

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use sluice_worker_link::health::{Facts, Watch};

use super::HealthError;

/// `NVML_NVLINK_MAX_LINKS`.
const LINKS_MAX: u32 = 18;
/// NUMA nodes that are looked for.
const NUMA_NODES_MAX: usize = 1024;
/// `NVML_AFFINITY_SCOPE_NODE`.
const SCOPE_NODE: u32 = 0;
/// `NVML_NVLINK_DEVICE_TYPE_SWITCH`.
const TYPE_SWITCH: u32 = 2;
/// `NVML_P2P_CAPS_INDEX_NVLINK`, and `NVML_P2P_STATUS_OK`.
const CAPS_NVLINK: u32 = 2;
const STATUS_OK: u32 = 0;

pub(crate) fn say(watch: &Watch, out: &mut impl Write) -> Result<(), HealthError> {
    let failed = |source| HealthError::Nvml { library: watch.library.clone(), source };
    let nvml = Nvml::builder().lib_path(watch.library.as_ref()).init().map_err(failed)?;
    let devices: Vec<Option<Device<'_>>> =
        watch.gpus.iter().map(|uuid| nvml.device_by_uuid(uuid.as_str()).ok()).collect();
    let known: Vec<Option<GpuFacts>> =
        devices.iter().map(|device| device.as_ref().map(|device| look(&nvml, device))).collect();
    let facts = (0..).zip(&known).map(|(gpu, this)| match this {
        None => Facts::default(),
        Some(this) => {
            let linked = |one: usize, other: usize| {
                devices[one].as_ref().zip(devices[other].as_ref()).is_some_and(|(a, b)| p2p(&nvml, a, b))
            };
            Facts { nvlinks: peers(gpu, &known, linked), ..this.facts.clone() }
        }
    });
    let facts: Vec<Facts> = facts.collect();
    tell(&facts, out).map_err(HealthError::Output)
}

fn tell(facts: &[Facts], out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, facts)?;
    out.flush()
}

/// A GPU, and where its links lead.
#[derive(Debug, Default)]
struct GpuFacts {
    facts: Facts,
    /// PCI addresses of what is directly at the other end of each active link.
    ends: Vec<String>,
    /// Active links to switches.
    to_switches: u32,
}

fn look(nvml: &Nvml, device: &Device<'_>) -> GpuFacts {
    let pci = device.pci_info().ok();
    let facts = Facts {
        vendor_id: pci.as_ref().map(|pci| pci.pci_device_id as u16),
        pci: pci.as_ref().map(|pci| address(pci.domain, pci.bus, pci.device)),
        numa_node: numa_node(nvml, device),
        pcie: device.max_pcie_link_gen().ok().zip(device.max_pcie_link_width().ok()),
        nvlinks: Vec::new(),
    };
    let mut known = GpuFacts { facts, ..GpuFacts::default() };
    for number in 0..LINKS_MAX {
        let link = device.link_wrapper_for(number);
        match link.is_active() {
            Ok(true) if leads_to_switch(nvml, device, number) => known.to_switches += 1,
            Ok(true) => {
                let end = link.remote_pci_info().ok();
                known.ends.extend(end.map(|end| address(end.domain, end.bus, end.device)));
            }
            Ok(false) => {}
            // It has no links, or no more.
            Err(NvmlError::NotSupported | NvmlError::InvalidArg) => break,
            Err(_) => {}
        }
    }
    known
}

/// A GPU is function 0 of its device; NVML's numbers leave the function out.
fn address(domain: u32, bus: u32, device: u32) -> String {
    format!("{domain:04x}:{bus:02x}:{device:02x}.0")
}

/// GPUs that links lead to, straight or through switches: of two GPUs at switches the one with
/// fewer links there says how many.
fn peers(gpu: usize, known: &[Option<GpuFacts>], linked: impl Fn(usize, usize) -> bool) -> Vec<(u32, u32)> {
    let Some(this) = &known[gpu] else { return Vec::new() };
    let mut peers = Vec::new();
    for (other, there) in known.iter().enumerate().filter(|(other, _)| *other != gpu) {
        let Some(there) = there else { continue };
        let is_there = |end: &&String| there.facts.pci.as_ref() == Some(*end);
        let straight = this.ends.iter().filter(is_there).count() as u32;
        let through = this.to_switches.min(there.to_switches);
        let through = if through > 0 && linked(gpu, other) { through } else { 0 };
        if straight + through > 0 {
            peers.push((other as u32, straight + through));
        }
    }
    peers
}

fn numa_node(nvml: &Nvml, device: &Device<'_>) -> Option<u32> {
    let affinity = nvml.lib().nvmlDeviceGetMemoryAffinity.as_ref().ok()?;
    let mut nodes = [0; NUMA_NODES_MAX / u64::BITS as usize];
    // SAFETY: the handle is of a device of this library, and NVML writes as many words as the call
    // says there are.
    let result = unsafe { affinity(device.handle(), nodes.len() as u32, nodes.as_mut_ptr(), SCOPE_NODE) };
    let word = nodes.iter().position(|word| *word != 0).filter(|_| result == 0)?;
    Some(word as u32 * u64::BITS + nodes[word].trailing_zeros())
}

/// The wrapper's own question gives no answer.
fn leads_to_switch(nvml: &Nvml, device: &Device<'_>, link: u32) -> bool {
    let Ok(question) = &nvml.lib().nvmlDeviceGetNvLinkRemoteDeviceType else { return false };
    let mut kind = u32::MAX;
    // SAFETY: the handle is of a device of this library, and NVML writes one number.
    let result = unsafe { question(device.handle(), link, &mut kind) };
    result == 0 && kind == TYPE_SWITCH
}

/// Whether two GPUs reach each other over NVLink.
fn p2p(nvml: &Nvml, one: &Device<'_>, other: &Device<'_>) -> bool {
    let Ok(question) = &nvml.lib().nvmlDeviceGetP2PStatus else { return false };
    let mut status = u32::MAX;
    // SAFETY: both handles are of devices of this library, and NVML writes one number.
    let result = unsafe { question(one.handle(), other.handle(), CAPS_NVLINK, &mut status) };
    result == 0 && status == STATUS_OK
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(bus: u32, ends: &[u32], to_switches: u32) -> Option<GpuFacts> {
        let facts = Facts { pci: Some(address(0, bus, 0)), ..Facts::default() };
        Some(GpuFacts { facts, ends: ends.iter().map(|&bus| address(0, bus, 0)).collect(), to_switches })
    }

    #[test]
    fn straight_links_are_counted_by_where_they_lead() {
        // A bridge of two links, a GPU on its own, and a link to something that is no GPU here.
        let known = [at(1, &[2, 2, 9], 0), at(2, &[1, 1], 0), at(3, &[], 0), None];
        let peers = |gpu| peers(gpu, &known, |_, _| true);
        assert_eq!([peers(0), peers(1), peers(2), peers(3)], [vec![(1, 2)], vec![(0, 2)], vec![], vec![]]);
    }

    #[test]
    fn behind_switches_all_are_linked_that_reach_each_other() {
        let known = [at(1, &[], 18), at(2, &[], 18), at(3, &[], 12), at(4, &[], 0)];
        let reach = |one: usize, other: usize| one != 1 && other != 1;
        assert_eq!(peers(0, &known, |_, _| true), [(1, 18), (2, 12)]);
        assert_eq!(peers(0, &known, reach), [(2, 12)]);
    }

    #[test]
    fn addresses_are_written_as_the_kernel_writes_them() {
        assert_eq!(address(0, 0x3b, 0), "0000:3b:00.0");
        assert_eq!(address(0x10000, 0xff, 31), "10000:ff:1f.0");
    }
}
