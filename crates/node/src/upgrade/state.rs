//! What a state has.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use sluice_wire::control::DeviceSnapshot;
use sluice_worker_link::link::Driver;

use super::{Passed, RestoreError, StateError};
use crate::config::NodeConfig;
use crate::daemon::{SavedListener, listen_name};
use crate::inventory::Inventory;
use crate::join::SavedMembership;
use crate::lease::Card;
use crate::registry::saved::SavedRegistry;

/// All that a daemon knows.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    /// Of the program that has written it.
    pub(crate) release: String,
    /// Since when nothing has been done.
    #[serde(with = "crate::upgrade::with::moment")]
    pub(crate) stopped: Instant,
    /// Counts the requests to stop the node, of which one may come at this moment.
    pub(crate) stop: Passed,
    /// Most bytes of all swap files together, where there are any.
    pub(crate) swap_file_bytes: Option<u64>,
    pub(crate) listeners: Vec<SavedListener>,
    /// Connections that have said nothing yet.
    pub(crate) silent: Vec<SavedConnection>,
    pub(crate) inventory: SavedInventory,
    pub(crate) registry: SavedRegistry,
    pub(crate) membership: Option<SavedMembership>,
    /// The process that has watched the GPUs' health, and was not waited for.
    pub(crate) watcher: Option<u32>,
}

/// A connection that has said nothing yet.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedConnection {
    pub(crate) socket: Passed,
    pub(crate) peer: String,
    /// The number of the event of where it came in.
    pub(crate) listener: u64,
    #[serde(with = "crate::upgrade::with::moment")]
    pub(crate) deadline: Instant,
}

/// An [`Inventory`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedInventory {
    driver: Driver,
    cards: Vec<Card>,
    #[serde(with = "crate::upgrade::with::wire")]
    snapshots: Vec<DeviceSnapshot>,
}

impl SavedInventory {
    pub(crate) fn of(inventory: &Inventory) -> SavedInventory {
        let Inventory { driver, cards, snapshots } = inventory.clone();
        SavedInventory { driver, cards, snapshots }
    }

    pub(crate) fn restored(self) -> Inventory {
        let SavedInventory { driver, cards, snapshots } = self;
        Inventory { driver, cards, snapshots }
    }
}

/// The state of a daemon, as its next program finds it.
#[derive(Debug)]
pub struct HandedOver(pub(crate) State);

impl HandedOver {
    /// Reads what [`CHECK_STATE`](crate::CHECK_STATE) and [`TAKE_OVER`](crate::TAKE_OVER) name.
    ///
    /// # Safety
    ///
    /// The descriptor is this process's by the word of its parent, or of the program before this
    /// one, and belongs to nothing else here.
    pub unsafe fn read(descriptor: RawFd) -> Result<HandedOver, StateError> {
        // No program that this one starts gets it: it has secrets.
        crate::spawn::set_inherited(descriptor, false)?;
        // SAFETY: it is open, or the call before had failed; by the caller's promise nothing else
        // has it.
        let file = unsafe { OwnedFd::from_raw_fd(descriptor) };
        State::read(file).map(HandedOver)
    }

    /// Whether a node with these settings can continue from it.
    pub fn check(&self, config: &NodeConfig) -> Result<(), RestoreError> {
        let State { listeners, inventory, registry, membership, swap_file_bytes, .. } = &self.0;
        let here: Vec<String> = config.listen.iter().map(listen_name).collect();
        let saved: Vec<String> = listeners.iter().filter_map(|listener| listener.asked.clone()).collect();
        if saved != here || saved.len() > listeners.len() {
            return Err(RestoreError::Listeners { saved: saved.join(", "), here: here.join(", ") });
        }
        if membership.is_some() != config.join.is_some() {
            return Err(RestoreError::Server);
        }
        if swap_file_bytes.is_some() != config.swap_file.is_some() {
            return Err(RestoreError::SwapFile);
        }
        if let Some(swap_file) = &config.swap_file {
            swap_file.check_folder()?;
        }
        let gpus = inventory.cards.len();
        if inventory.snapshots.len() != gpus {
            return Err(RestoreError::Unsound);
        }
        registry.check(gpus, config.memory_overcommit_ppm > crate::arbiter::PPM)
    }
}
