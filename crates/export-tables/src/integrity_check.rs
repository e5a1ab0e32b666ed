//! INTEGRITY_CHECK: how the CUDA runtime makes sure that it talks to a driver that knows the
//! answer. Every runtime asks three times, with its own version plus 0, 1 and 2, and fails with
//! `cudaErrorSoftwareValidityNotEstablished` on a wrong answer.
//!
//! The first two answers are constants. The third is an HMAC (RFC 2104) over MD2 (RFC 1319) with a
//! fixed key, of what only this process can know: which is why the client computes it and no node
//! could. The facts are public (ZLUDA's `dark_api`); that they amount to HMAC-MD2 is our reading of
//! them.

use std::ffi::c_void;

use sluice_cuda::CUresult;

use crate::md2::hmac_md2;
use crate::{DeviceIdentity, Table, cudart_interface, driver, entered, write};

/// D4082055-BDE6-704B-8D34-BA123C66E1F2
pub(crate) const UUID: [u8; 16] = 0xD4082055_BDE6_704B_8D34_BA123C66E1F2_u128.to_be_bytes();

static TABLE: Table<3> = Table::sized().with(1, integrity_check as *const c_void);

pub(crate) fn address() -> *const c_void {
    TABLE.address()
}

const FIRST_ANSWER: [u64; 2] = [0x3341_181C_03CB_675C, 0x8ED3_83AA_1F4C_D1E8];
const SECOND_ANSWER: [u64; 2] = [0x1841_181C_03CB_675C, 0x8ED3_83AA_1F4C_D1E8];
const KEY: [u8; 16] = 0x146ADDAE_53A9A752_AA084136_0BF55A9F_u128.to_be_bytes();

/// Slot 1 (public, measured).
unsafe extern "C" fn integrity_check(version: u32, unix_seconds: u64, answer: *mut [u64; 2]) -> CUresult {
    entered(|| {
        let value = match version % 10 {
            0 => Ok(FIRST_ANSWER),
            1 => Ok(SECOND_ANSWER),
            _ => describe(version, unix_seconds).map(|(process, devices)| keyed_answer(&process, &devices)),
        };
        // SAFETY: the runtime passes a place for two words.
        unsafe { write(answer, value) }
    })
}

/// What the third answer covers besides the devices, in the order in which it is hashed.
struct Process {
    driver_version: u32,
    runtime_version: u32,
    process: u32,
    /// The low half of `pthread_self`.
    thread: u32,
    cudart_interface: u64,
    integrity_check: u64,
    /// The address in slot 1 of the integrity table.
    function: u64,
    unix_seconds: u64,
}

fn describe(runtime_version: u32, unix_seconds: u64) -> Result<(Process, Vec<DeviceIdentity>), CUresult> {
    let driver = driver()?;
    // SAFETY: pthread_self has no preconditions.
    let thread = unsafe { libc::pthread_self() } as u32;
    let process = Process {
        driver_version: driver.driver_version(),
        runtime_version,
        process: std::process::id(),
        thread,
        cudart_interface: cudart_interface::address() as u64,
        integrity_check: address() as u64,
        function: TABLE.0[1] as u64,
        unix_seconds,
    };
    Ok((process, driver.devices()?))
}

fn keyed_answer(process: &Process, devices: &[DeviceIdentity]) -> [u64; 2] {
    let digest = hmac_md2(&KEY, &message(process, devices));
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| digest[at + i]));
    [word(0), word(8)]
}

fn message(process: &Process, devices: &[DeviceIdentity]) -> Vec<u8> {
    let mut message = Vec::with_capacity(48 + 28 * devices.len());
    for word in [process.driver_version, process.runtime_version, process.process, process.thread] {
        message.extend(word.to_le_bytes());
    }
    for word in [process.cudart_interface, process.integrity_check, process.function, process.unix_seconds] {
        message.extend(word.to_le_bytes());
    }
    for device in devices {
        message.extend(device.uuid.bytes);
        for word in [device.pci_domain, device.pci_bus, device.pci_device] {
            message.extend(word.to_le_bytes());
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values that ZLUDA's tests publish for one process of a real driver: the state of the inner
    /// hash after the process part. Here it is enough that the message is laid out the same.
    #[test]
    fn message_has_the_layout_that_the_runtime_hashes() {
        let process = Process {
            driver_version: 0x2f30,
            runtime_version: 12082,
            process: 0x002f_a423,
            thread: 0xf79c_1000,
            cudart_interface: 0x7fff_f695_8240,
            integrity_check: 0x7fff_f695_8220,
            function: 0x7fff_f2aa_f4a0,
            unix_seconds: 0x682b_9cee,
        };
        let device = DeviceIdentity {
            uuid: sluice_cuda::CUuuid { bytes: [7; 16] },
            pci_domain: 0,
            pci_bus: 2,
            pci_device: 0,
        };
        let message = message(&process, &[device]);
        assert_eq!(message.len(), 76);
        assert_eq!(message[..8], [0x30, 0x2f, 0, 0, 0x32, 0x2f, 0, 0]);
        assert_eq!(message[16..22], [0x40, 0x82, 0x95, 0xf6, 0xff, 0x7f]);
        assert_eq!(message[68], 2);
    }
}
