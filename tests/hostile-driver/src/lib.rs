//! A CUDA driver that trusts nobody: the recording driver behind a wall that looks at every
//! argument of every call.
//!
//! A real driver is lenient where it can be and undefined where it cannot: a stale handle may be
//! followed, a length that is too large may be read. This one follows every pointer as far as the
//! API says, and takes it for a violation when a handle is not a live one of its own, when device
//! memory is not all allocated, when a count is beyond what the API documents, or when a number is
//! none that the API defines. Behind a worker, such an argument can only be one that came from the
//! wire unchecked. A violation ends the process, unless somebody wants to hear of it
//! ([`on_violation`]).
//!
//! ```text
//!   generated  one wrapper per function: what driver.api says of each argument
//!   by_hand    what it does not say: structures, lists, and numbers with a meaning
//!   structures what the structures hold
//!   live       whether a handle is live, as the driver behind answers
//!   waits      waits for values in memory, which are not done
//!   objects    owners of references of user objects, and which texture references are modules'
//! ```
//!
//! Parameters of kernels are opaque bytes: what a kernel does with them is confined to its context.

mod by_hand;
mod call;
mod generated;
mod live;
mod objects;
mod structures;
mod waits;

use std::sync::LazyLock;

use sluice_cuda::DriverTable;
use sluice_recording::Model;

pub use call::{calls, on_violation};

/// The driver, with one card.
pub fn table() -> DriverTable {
    DriverTable {
        cuUserObjectCreate: Some(objects::cuUserObjectCreate),
        cuModuleGetTexRef: Some(objects::cuModuleGetTexRef),
        cuStreamWaitValue32: Some(waits::cuStreamWaitValue32),
        cuStreamWaitValue32_v2: Some(waits::cuStreamWaitValue32_v2),
        cuStreamWaitValue64: Some(waits::cuStreamWaitValue64),
        cuStreamWaitValue64_v2: Some(waits::cuStreamWaitValue64_v2),
        ..generated::table()
    }
}

/// The driver behind it.
pub fn inner() -> &'static DriverTable {
    static TABLE: LazyLock<DriverTable> = LazyLock::new(|| sluice_recording::table(Model::H200, 1));
    &TABLE
}
