//! Where GPUs stand, and what they are linked to:
//!
//! ```text
//! pci UUID 0000:3b:00.0     its PCI address; NVIDIA's, as all cards here are
//! numa UUID 1               the nearest NUMA node
//! pcie UUID 5x16            the generation and the lanes of its PCIe link
//! nvlink UUID 0000:5e:00.0  one more NVLink, to the GPU at this address, or to a `switch`
//! ```
//!
//! What the file does not say is not supported.

use std::ffi::{c_char, c_uint, c_ulong, c_void};

use super::{INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS, answer, words};

const VENDOR_NVIDIA: c_uint = 0x10de;
const DEVICE: c_uint = 0x2330;
const TYPE_GPU: u64 = 0;
const TYPE_SWITCH: u64 = 2;
const P2P_OK: u64 = 0;
const P2P_NOT_SUPPORTED: u64 = 5;

/// `nvmlPciInfo_t`.
#[repr(C)]
pub(crate) struct PciInfo {
    bus_id_legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    pci_device_id: c_uint,
    pci_subsystem_id: c_uint,
    bus_id: [c_char; 32],
}

fn last(device: *mut c_void, word: &str) -> Result<String, c_uint> {
    words(device, word)?.pop().ok_or(NOT_SUPPORTED)
}

/// `domain:bus:device.function`
fn pci_info(address: &str) -> Option<PciInfo> {
    let (rest, _function) = address.rsplit_once('.')?;
    let mut numbers = rest.split(':').map(|number| c_uint::from_str_radix(number, 16).ok());
    let (domain, bus, device) = (numbers.next()??, numbers.next()??, numbers.next()??);
    let mut info = PciInfo {
        bus_id_legacy: [0; 16],
        domain,
        bus,
        device,
        pci_device_id: DEVICE << 16 | VENDOR_NVIDIA,
        pci_subsystem_id: 0,
        bus_id: [0; 32],
    };
    let text = address.bytes().take(info.bus_id.len() - 1).map(|byte| byte as c_char);
    info.bus_id.iter_mut().zip(text).for_each(|(place, byte)| *place = byte);
    Some(info)
}

fn answer_pci(place: *mut PciInfo, address: Result<String, c_uint>) -> c_uint {
    match address.map(|address| pci_info(&address)) {
        Ok(Some(info)) => {
            // SAFETY: NVML's callers pass a place for the answer.
            unsafe { place.write(info) };
            SUCCESS
        }
        Ok(None) => INVALID_ARGUMENT,
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetPciInfo_v3(device: *mut c_void, info: *mut PciInfo) -> c_uint {
    answer_pci(info, last(device, "pci"))
}

/// The generation and the lanes, of which `which` is asked for.
fn pcie(device: *mut c_void, which: usize) -> Result<u64, c_uint> {
    let link = last(device, "pcie")?;
    link.split('x').nth(which).and_then(|number| number.parse().ok()).ok_or(INVALID_ARGUMENT)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetMaxPcieLinkGeneration(
    device: *mut c_void,
    generation: *mut c_uint,
) -> c_uint {
    answer(generation, pcie(device, 0), |value| value as c_uint)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetMaxPcieLinkWidth(device: *mut c_void, lanes: *mut c_uint) -> c_uint {
    answer(lanes, pcie(device, 1), |value| value as c_uint)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetMemoryAffinity(
    device: *mut c_void,
    size: c_uint,
    nodes: *mut c_ulong,
    _scope: c_uint,
) -> c_uint {
    let node = match last(device, "numa").map(|node| node.parse::<c_uint>()) {
        Ok(Ok(node)) if node / c_ulong::BITS < size => node,
        Ok(_) => return INVALID_ARGUMENT,
        Err(code) => return code,
    };
    for word in 0..size {
        let bits = if word == node / c_ulong::BITS { 1 << (node % c_ulong::BITS) } else { 0 };
        // SAFETY: NVML's callers pass a place for so many words.
        unsafe { nodes.add(word as usize).write(bits) };
    }
    SUCCESS
}

/// Where a link leads; none of one that is not used.
fn end(device: *mut c_void, link: c_uint) -> Result<Option<String>, c_uint> {
    let ends = words(device, "nvlink")?;
    if ends.is_empty() { Err(NOT_SUPPORTED) } else { Ok(ends.into_iter().nth(link as usize)) }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetNvLinkState(
    device: *mut c_void,
    link: c_uint,
    active: *mut c_uint,
) -> c_uint {
    answer(active, end(device, link).map(|end| end.is_some().into()), |value| value as c_uint)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
    device: *mut c_void,
    link: c_uint,
    info: *mut PciInfo,
) -> c_uint {
    answer_pci(info, end(device, link).and_then(|end| end.ok_or(INVALID_ARGUMENT)))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetNvLinkRemoteDeviceType(
    device: *mut c_void,
    link: c_uint,
    kind: *mut c_uint,
) -> c_uint {
    let end = end(device, link).and_then(|end| end.ok_or(INVALID_ARGUMENT));
    answer(kind, end.map(|end| if end == "switch" { TYPE_SWITCH } else { TYPE_GPU }), |value| value as c_uint)
}

/// GPUs reach each other where both are at a switch.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetP2PStatus(
    one: *mut c_void,
    other: *mut c_void,
    _caps: c_uint,
    status: *mut c_uint,
) -> c_uint {
    let switched = |device| Ok(words(device, "nvlink")?.iter().any(|end| end == "switch"));
    let both = switched(one).and_then(|one| Ok(one && switched(other)?));
    answer(status, both.map(|both| if both { P2P_OK } else { P2P_NOT_SUPPORTED }), |value| value as c_uint)
}
