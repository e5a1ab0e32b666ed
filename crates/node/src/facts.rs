//! Where this node's GPUs stand, as NVML says: asked once, before the node joins a server.

use std::io;
use std::path::Path;

use sluice_worker_link::health::{FACTS_ARGUMENT, Facts};

use crate::config::WorkerCommand;
use crate::health;
use crate::inventory::{Inventory, PROBE_PATIENCE, ask_worker};

/// Of each GPU, in their order; nothing where there is no NVML, or it does not say.
pub(crate) fn of(inventory: &Inventory, library: Option<&Path>, worker: &WorkerCommand) -> Vec<Facts> {
    let none = || vec![Facts::default(); inventory.snapshots.len()];
    let Some(library) = library else { return none() };
    match ask(inventory, library, worker) {
        Ok(facts) if facts.len() == inventory.snapshots.len() => facts,
        Ok(_) => none(),
        Err(error) => {
            tracing::warn!("where the GPUs stand is not known: {error}");
            none()
        }
    }
}

fn ask(inventory: &Inventory, library: &Path, worker: &WorkerCommand) -> io::Result<Vec<Facts>> {
    let watch = serde_json::to_string(&health::watched(inventory, library))?;
    Ok(serde_json::from_slice(&ask_worker(worker, FACTS_ARGUMENT, &watch, PROBE_PATIENCE)?)?)
}

#[cfg(test)]
mod tests {
    use sluice_worker_link::link::Driver;

    use super::*;

    #[test]
    fn a_worker_that_fails_or_talks_nonsense_leaves_the_facts_out() {
        let driver = Driver::Software { memory: Vec::new() };
        let inventory = Inventory { driver, cards: Vec::new(), snapshots: Vec::new() };
        for script in ["exit 3", "echo nonsense", "echo '[{}, {}]'"] {
            let arguments = vec!["-c".into(), script.into()];
            let worker = WorkerCommand { program: "/bin/sh".into(), arguments };
            assert_eq!(of(&inventory, Some(Path::new("/nowhere")), &worker), [], "{script}");
        }
    }
}
