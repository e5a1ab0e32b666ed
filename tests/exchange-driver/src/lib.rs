//! A `libcuda.so.1` for the byte exchange of `tests/exchange`: the recording driver, but for the
//! functions that client and worker handle by generated code. Those answer from the bytes of their
//! arguments, follow every pointer that they get, and end the process on a handle or an address
//! that nobody has been given. Of those by hand it records the arguments (`by_hand`); copies and
//! fills it makes, and compares what lies in memory (`memory`). Launches are recorded only.

#![allow(non_snake_case)] // CUDA's names

use std::sync::LazyLock;

use sluice_cuda::DriverTable;

#[path = "../../exchange/src/answer.rs"]
mod answer;
mod by_hand;
mod call;
mod captures;
mod generated;
mod graphs;
mod memory;
mod modules;
mod references;
mod textures;
mod tiles;

/// The driver behind it.
fn table() -> &'static DriverTable {
    static TABLE: LazyLock<DriverTable> =
        LazyLock::new(|| sluice_recording::table(sluice_recording::Model::H200, 1));
    &TABLE
}
