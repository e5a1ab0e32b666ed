//! What sessions of one lease export to each other.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use sluice_wire::ExportToken;
use sluice_worker_link::link::{Export, Packet, PacketSocket};

use super::{Ledger, Registry, random};

impl Registry {
    /// Enters what a session exports; nothing if it does not have that memory, or its lease has too
    /// many exports.
    pub(super) fn export(
        &self,
        lease: u64,
        session: u64,
        export: Export,
        file: Option<OwnedFd>,
    ) -> Option<ExportToken> {
        let mut ledger = self.lock();
        if ledger.leases.get(&lease)?.exports.is_full() {
            return None;
        }
        if let Export::Memory { gpu, bytes } = export {
            if !ledger.books.share(lease, session, gpu as usize, bytes) {
                return None;
            }
            ledger.plan_export(lease, session, gpu, bytes, self.now_ns());
        }
        let token = ExportToken(random());
        ledger.leases.get_mut(&lease)?.exports.insert(token, export, file, session);
        Some(token)
    }

    /// Answers a session that wants what another of its lease has exported.
    pub(super) fn import(
        &self,
        lease: u64,
        session: u64,
        token: ExportToken,
        link: &PacketSocket,
    ) -> io::Result<()> {
        let imported =
            self.lock().leases.get_mut(&lease).and_then(|lease| lease.exports.import(token, session));
        let file = imported.as_ref().and_then(|imported| imported.file.clone());
        let answer = imported.map(|imported| (imported.export, imported.is_own));
        match file {
            Some(file) => link.send_fd(&Packet::Imported(answer), file.as_fd()),
            None => link.send_now(&Packet::Imported(answer)),
        }
    }

    pub(super) fn drop_export(&self, lease: u64, session: u64, token: ExportToken) {
        let mut ledger = self.lock();
        let record = ledger.leases.get_mut(&lease);
        if let Some(unused) = record.and_then(|record| record.exports.release(token, session)) {
            ledger.unshare(lease, &unused);
        }
    }
}

impl Ledger {
    /// Shared memory that no session holds any more is the lease's again.
    pub(super) fn unshare(&mut self, lease: u64, export: &Export) {
        if let Export::Memory { gpu, bytes } = *export {
            self.books.unshare(lease, gpu as usize, bytes);
            self.plan_unshare(lease, gpu, bytes);
        }
    }
}
