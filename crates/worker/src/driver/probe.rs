//! What a CUDA driver has, found out in a process that ends right after.

use std::io::Write;

use sluice_cuda::CUresult;
use sluice_wire::Encode;

use crate::connection::snapshot;
use crate::driver::{self, DriverError};
use crate::link::Driver;

/// Loads the driver, and writes a snapshot of each of its devices, with all of its memory, to
/// `out`.
pub(crate) fn probe(what: &Driver, out: &mut impl Write) -> Result<(), DriverError> {
    let table = driver::start(what)?;
    let failed = |result: CUresult| DriverError::Call { function: "device query", result };
    let is_software = matches!(what, Driver::Software { .. });
    let mut snapshots = Vec::new();
    for ordinal in 0..snapshot::count(&table).map_err(failed)? {
        driver::retain_context(&table, ordinal)?;
        let memory = snapshot::memory(&table, ordinal).map_err(failed)?;
        snapshots.push(snapshot::take(&table, ordinal, memory, is_software).map_err(failed)?);
    }
    let mut bytes = Vec::new();
    snapshots.encode(&mut bytes);
    out.write_all(&bytes).and_then(|()| out.flush()).map_err(|e| DriverError::Output(e.to_string()))
}
