//! Launches of kernels, whose failures are cuBLAS's statuses.

pub(crate) use sluice_library_base::kernels::Launch;

use crate::abi::{Outcome, Status};
use crate::ptx::Source;

/// Launches a kernel in the current context, and loads it before if it is not there yet.
///
/// `name` decides what `source` returns.
pub(crate) fn launch(
    at: Launch,
    name: String,
    source: impl FnOnce(&str) -> Source,
    arguments: &[u64],
) -> Outcome {
    sluice_library_base::kernels::launch(at, name, source, arguments).map_err(Status::from)
}
