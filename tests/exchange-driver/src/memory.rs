//! What copies between host and device did: how many bytes went through which stream, and what lies
//! in device memory.
//!
//! A worker makes of one copy as many as it likes, so that calls cannot be compared one by one.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use sluice_cuda::{CUdeviceptr, CUresult, CUstream};

use crate::answer::{FILL, LOOK, digest, filled};
use crate::call::{log, number_of};
use crate::table;

/// Bytes to the device and from it so far, by stream.
static COPIED: Mutex<BTreeMap<usize, [u64; 2]>> = Mutex::new(BTreeMap::new());

/// To the device, and from it.
pub(crate) const UP: usize = 0;
pub(crate) const DOWN: usize = 1;

/// Notes a copy that the driver behind has taken.
pub(crate) fn copied(stream: CUstream, way: usize, bytes: usize, result: CUresult) -> CUresult {
    if result.is_success() {
        let mut copied = COPIED.lock().unwrap_or_else(PoisonError::into_inner);
        copied.entry(place(stream)).or_default()[way] += bytes as u64;
    }
    result
}

/// Both names of the default stream are one.
fn place(stream: CUstream) -> usize {
    if stream <= CUstream::LEGACY { 0 } else { stream.0 }
}

/// What a write of 64 bits asks for, when the stream has got there.
pub(crate) fn request(stream: CUstream, address: CUdeviceptr, value: u64) {
    let bytes = (value & u64::from(u32::MAX)) as usize;
    match value >> 32 {
        LOOK => look(stream, address, bytes),
        FILL => transfer(stream, address, &mut filled(address, bytes), UP),
        _ => {}
    }
}

fn look(stream: CUstream, address: CUdeviceptr, bytes: usize) {
    let mut contents = vec![0; bytes];
    transfer(stream, address, &mut contents, DOWN);
    let copied = COPIED.lock().unwrap_or_else(PoisonError::into_inner);
    let [up, down] = copied.get(&place(stream)).copied().unwrap_or_default();
    let number = number_of("Stream", stream.0).expect("the call's own stream");
    let hash = digest(&contents);
    log(format!("look {number:x} {address:x} {bytes:x} {hash:016x} up {up:x} down {down:x}"));
}

/// Copies through the driver behind, behind all that is in the stream.
fn transfer(stream: CUstream, address: CUdeviceptr, bytes: &mut [u8], way: usize) {
    let to_device = table().cuMemcpyHtoDAsync_v2.expect("the recording driver has it");
    let to_host = table().cuMemcpyDtoHAsync_v2.expect("the recording driver has it");
    let synchronize = table().cuStreamSynchronize.expect("the recording driver has it");
    // SAFETY: the buffer is as long, and the copy is done when it is given back.
    let results = unsafe {
        let copied = match way {
            UP => to_device(address, bytes.as_ptr().cast(), bytes.len(), stream),
            _ => to_host(bytes.as_mut_ptr().cast(), address, bytes.len(), stream),
        };
        [copied, synchronize(stream)]
    };
    assert_eq!(results, [CUresult::SUCCESS; 2], "{} bytes at {address:#x}", bytes.len());
}
