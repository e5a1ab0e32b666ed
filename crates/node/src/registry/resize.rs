//! Leases that get more or less of their GPUs while their programs run.
//!
//! The table of leases decides; from then on the arbiter divides by the new share, allocations
//! count against the new memory, and the workers answer `cuMemGetInfo` with it. Nothing is sent to
//! clients, and no program is stopped.

use sluice_worker_link::link::Packet;

use super::{Ledger, Registry};
use crate::arbiter::Weight;
use crate::lease::{Lease, Refusal, Resize};

/// What a lease has on each of its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) share_ppm: u32,
    pub(crate) limit_ppm: u32,
    /// Bytes.
    pub(crate) memory: u64,
}

impl Lease {
    pub(crate) fn size(&self) -> Size {
        let Weight { share_ppm, limit_ppm, .. } = self.weight();
        Size { share_ppm, limit_ppm, memory: self.memory }
    }
}

impl Registry {
    /// Changes what a lease has; in force when this returns.
    pub(crate) fn resize(&self, lease: u64, resize: &Resize) -> Result<Size, Refusal> {
        let mut ledger = self.lock();
        self.resize_in(&mut ledger, lease, resize)
    }

    pub(super) fn resize_in(
        &self,
        ledger: &mut Ledger,
        lease: u64,
        resize: &Resize,
    ) -> Result<Size, Refusal> {
        // Room is held for its present size.
        if ledger.moving(lease).is_some() {
            return Err(Refusal::Moving);
        }
        let entry = ledger.books.resize(lease, resize)?;
        let (weight, gpus, size) = (entry.weight(), entry.gpus.clone(), entry.size());
        // With the table locked, so that a session which begins now gets the new weight as well.
        self.turns.set_weight(lease, &gpus, weight);
        for session in ledger.sessions.values().filter(|session| session.lease == lease && session.is_up) {
            // An error means that the worker has ended.
            let _ = session.link.send_now(&Packet::Resized { memory: size.memory });
        }
        Ok(size)
    }

    /// The lease of this number, or that of the session of this number: both are counted in one
    /// sequence.
    pub(crate) fn lease_numbered(&self, number: u64) -> Option<u64> {
        let ledger = self.lock();
        let of_session = || ledger.sessions.get(&number).map(|session| session.lease);
        ledger.leases.contains_key(&number).then_some(number).or_else(of_session)
    }

    /// A worker serves its session. What its lease has may have changed since it was sent to the
    /// worker.
    pub(super) fn session_is_up(&self, session: u64) {
        let mut ledger = self.lock();
        let Some(record) = ledger.sessions.get_mut(&session) else { return };
        record.is_up = true;
        let (lease, link) = (record.lease, record.link.clone());
        if let Some(entry) = ledger.books.lease(lease) {
            let _ = link.send_now(&Packet::Resized { memory: entry.memory });
        }
        // It may have been suspended or resumed as well.
        self.settle(&mut ledger, session);
    }
}
