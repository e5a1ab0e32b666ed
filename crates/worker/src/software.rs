//! The software GPU that is linked into the worker.

use sluice_cuda::DriverTable;

use crate::driver::DriverError;

/// Its table, with a card of each of these sizes in bytes.
pub(crate) fn table(memory: &[u64]) -> Result<DriverTable, DriverError> {
    let _ = memory;
    Err(DriverError::Software("this build has none".into()))
}
