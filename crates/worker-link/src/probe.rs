//! What a process says that a node has load a CUDA driver and look at its devices.

use sluice_wire::control::DeviceSnapshot;
use sluice_wire::{Decode, Reader, WireError};

/// The argument that makes a worker a probe; a [`Driver`](crate::link::Driver) as JSON follows it.
pub const ARGUMENT: &str = "probe";

/// Reads what a probe wrote.
pub fn decode(bytes: &[u8]) -> Result<Vec<DeviceSnapshot>, WireError> {
    let mut reader = Reader::new(bytes);
    let snapshots = Vec::decode(&mut reader)?;
    reader.end()?;
    Ok(snapshots)
}
