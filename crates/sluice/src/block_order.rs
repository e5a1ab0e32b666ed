//! `sluice run --block-order`: the order of blocks on a private software GPU.

use sluice_wire::control::LeaseGranted;

use crate::child::NotStarted;
use crate::cli::{BlockOrder, RunArgs};
use crate::run::failed;

/// Read by workers, which inherit it from the private node in this process.
const VARIABLE: &str = "SLUICE_BLOCK_ORDER";

/// Tells the workers of the private node that is about to start, and prints how to repeat the run.
pub(crate) fn apply(arguments: &RunArgs) {
    let Some(order) = arguments.ci.block_order else { return };
    let order = match order {
        BlockOrder::Random(None) => BlockOrder::Random(Some(seed())),
        order => order,
    };
    if !arguments.quiet {
        eprintln!("sluice: blocks run one at a time; --block-order {order} repeats it");
    }
    // SAFETY: the node is not started yet, and no other thread here reads the environment.
    unsafe { std::env::set_var(VARIABLE, order.to_string()) };
}

/// The order of blocks is up to the software GPU alone.
pub(crate) fn check(arguments: &RunArgs, lease: &LeaseGranted) -> Result<(), NotStarted> {
    let other = lease.devices.iter().find(|device| !device.is_software);
    match (arguments.ci.block_order, other) {
        (Some(_), Some(device)) => Err(failed(format!(
            "--block-order: {} chooses the order of blocks by itself; add --gpus software",
            device.name
        ))),
        _ => Ok(()),
    }
}

/// A number that differs from run to run.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // Short enough to be typed again.
    RandomState::new().hash_one(std::process::id()) % 1_000_000
}
