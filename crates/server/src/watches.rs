//! Who waits for a change of which lease.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_api::lease::LeaseId;
use tokio::sync::{Notify, watch};

pub(crate) struct Watches {
    leases: Mutex<HashMap<LeaseId, Arc<Notify>>>,
    /// Counts changes of anything that is watched.
    all: watch::Sender<u64>,
}

/// Waits for changes of one lease.
pub(crate) struct Watch<'a> {
    watches: &'a Watches,
    id: LeaseId,
    changed: Arc<Notify>,
}

impl Default for Watches {
    fn default() -> Watches {
        Watches { leases: Mutex::default(), all: watch::Sender::new(0) }
    }
}

impl Watches {
    pub(crate) fn of(&self, id: LeaseId) -> Watch<'_> {
        let changed = Arc::clone(self.lock().entry(id).or_default());
        Watch { watches: self, id, changed }
    }

    /// Counts up whenever something has changed.
    pub(crate) fn all(&self) -> watch::Receiver<u64> {
        self.all.subscribe()
    }

    /// These leases have changed, or something else has, and the database has it.
    pub(crate) fn tell(&self, changed: Vec<LeaseId>) {
        let watched = self.lock();
        for id in changed {
            if let Some(watchers) = watched.get(&id) {
                watchers.notify_waiters();
            }
        }
        drop(watched);
        self.all.send_modify(|count| *count += 1);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LeaseId, Arc<Notify>>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch<'_> {
    /// The next change after this was called, not only after it was awaited.
    pub(crate) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let mut watched = self.watches.lock();
        // This one and the map's: no other stream watches.
        if Arc::strong_count(&self.changed) <= 2 {
            watched.remove(&self.id);
        }
    }
}
