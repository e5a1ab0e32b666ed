//! `libnvidia-ml.so.1` for programs under a lease: the GPUs that NVML shows are the leased ones,
//! with the leased memory.
//!
//! NVML data come from the node, never from the worker: every query asks the node for the state of
//! the lease, over a connection of its own. What no lease has (fans, clocks, power limits, NVLink,
//! MIG) answers `NVML_ERROR_NOT_SUPPORTED`, which programs show as "N/A". All names of the API are
//! exported, because some programs link by symbol; [`absent`] lists those that are not built.

mod abi;
mod absent;
mod device;
mod lease;
mod system;
