//! Memory that others of the lease share, and connections to other nodes.

use std::os::fd::OwnedFd;

use sluice_cuda::CUresult;
use sluice_wire::ExportToken;

use super::{Budget, Imported};
use crate::link::{Export, Packet};

impl Budget {
    /// Lets others of the lease import something.
    pub(crate) fn export(&self, export: Export, file: Option<OwnedFd>) -> Result<ExportToken, CUresult> {
        let memory = match export {
            Export::Memory { gpu, bytes } => Some((gpu, bytes)),
            Export::Event { .. } => None,
        };
        match self.ask(&Packet::Export(export), file)? {
            (Packet::Exported(Some(token)), _) => {
                // It is the lease's from now on.
                memory.into_iter().for_each(|(gpu, bytes)| self.discount(gpu, bytes));
                Ok(token)
            }
            _ => Err(CUresult::OUT_OF_MEMORY),
        }
    }

    /// What another session of the lease has exported; `CUDA_ERROR_INVALID_HANDLE` if there is no
    /// such thing.
    pub(crate) fn import(&self, token: ExportToken) -> Result<Imported, CUresult> {
        match self.ask(&Packet::Import(token), None)? {
            (Packet::Imported(Some((export, is_own))), file) => Ok(Imported { export, file, is_own }),
            _ => Err(CUresult::INVALID_HANDLE),
        }
    }

    /// Once for each export and import.
    pub(crate) fn drop_export(&self, token: ExportToken) {
        // Without a daemon this process is about to end.
        let _ = self.link.send(&Packet::DropExport(token));
    }

    /// Lets another session of the client's program connect once: this session's number, and what
    /// that one has to show.
    pub(crate) fn offer_peer(&self) -> Result<(u64, [u8; 32]), CUresult> {
        match self.ask(&Packet::PeerOffer, None)? {
            (Packet::PeerOffered { session, token }, _) => Ok((session, token)),
            _ => Err(CUresult::UNKNOWN),
        }
    }

    /// Asks for a connection to another session, which comes under this number.
    pub(crate) fn connect_peer(
        &self,
        number: u64,
        node: String,
        session: u64,
        token: [u8; 32],
    ) -> Result<(), CUresult> {
        let packet = Packet::PeerConnect { number, node, session, token };
        self.link.send(&packet).map_err(|_| CUresult::UNKNOWN)
    }
}
