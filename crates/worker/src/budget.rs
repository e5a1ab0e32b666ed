//! Asking the daemon for memory of the lease, for what others of the lease share, and for connections to other nodes.
//!
//! The books are the daemon's: the limit counts over all sessions of the lease, and what a killed worker had comes
//! back without its help. Device memory is taken in chunks of 2 MiB and more, so a question costs little.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use sluice_cuda::CUresult;
use sluice_wire::ExportToken;

use crate::link::{Export, Link, Packet};

/// The asking side. Questions go one at a time, so that answers need no number.
#[derive(Debug)]
pub(crate) struct Budget {
    link: Arc<Link>,
    answers: Mutex<Receiver<Answer>>,
}

/// A packet, and the descriptor that came with it.
type Answer = (Packet, Option<OwnedFd>);

/// What another session exported.
#[derive(Debug)]
pub(crate) struct Imported {
    pub(crate) export: Export,
    pub(crate) file: Option<OwnedFd>,
    /// Whether the other session is this one.
    pub(crate) is_own: bool,
}

/// The side of the link's reader.
#[derive(Clone, Debug)]
pub(crate) struct Answers(SyncSender<Answer>);

impl Budget {
    pub(crate) fn new(link: Arc<Link>) -> (Budget, Answers) {
        let (sender, answers) = sync_channel(1);
        (Budget { link, answers: Mutex::new(answers) }, Answers(sender))
    }

    /// Takes bytes on the lease's `gpu`th GPU; `CUDA_ERROR_OUT_OF_MEMORY` if the lease has none left.
    pub(crate) fn take(&self, gpu: u32, bytes: u64) -> Result<(), CUresult> {
        match self.ask(&Packet::Take { gpu, bytes }, None)? {
            (Packet::Taken(true), _) => Ok(()),
            _ => Err(CUresult::OUT_OF_MEMORY),
        }
    }

    pub(crate) fn give_back(&self, gpu: u32, bytes: u64) {
        // Without a daemon this process is about to end.
        let _ = self.link.send(&Packet::GiveBack { gpu, bytes });
    }

    /// Bytes that all sessions of the lease have taken on a GPU.
    pub(crate) fn used(&self, gpu: u32) -> Result<u64, CUresult> {
        match self.ask(&Packet::QueryUsed { gpu }, None)? {
            (Packet::Used(bytes), _) => Ok(bytes),
            _ => Err(CUresult::UNKNOWN),
        }
    }

    /// Lets others of the lease import something.
    pub(crate) fn export(&self, export: Export, file: Option<OwnedFd>) -> Result<ExportToken, CUresult> {
        match self.ask(&Packet::Export(export), file)? {
            (Packet::Exported(Some(token)), _) => Ok(token),
            _ => Err(CUresult::OUT_OF_MEMORY),
        }
    }

    /// What another session of the lease has exported; `CUDA_ERROR_INVALID_HANDLE` if there is no such thing.
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

    /// Lets another session of the client's program connect once: this session's number, and what that one has to show.
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

    fn ask(&self, question: &Packet, file: Option<OwnedFd>) -> Result<Answer, CUresult> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = match &file {
            Some(file) => self.link.send_fd(question, file.as_fd()),
            None => self.link.send(question),
        };
        sent.map_err(|_| CUresult::UNKNOWN)?;
        answers.recv().map_err(|_| CUresult::UNKNOWN)
    }
}

impl Answers {
    pub(crate) fn pass_on(&self, answer: Answer) {
        // Nobody asks any more: the process is about to end.
        let _ = self.0.send(answer);
    }
}
