//! Asking the daemon for memory of the lease.
//!
//! The books are the daemon's: the limit counts over all sessions of the lease, and what a killed worker had comes
//! back without its help. Device memory is taken in chunks of 2 MiB and more, so a question costs little.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use sluice_cuda::CUresult;

use crate::link::{Link, Packet};

/// The asking side. Questions go one at a time, so that answers need no number.
#[derive(Debug)]
pub(crate) struct Budget {
    link: Arc<Link>,
    answers: Mutex<Receiver<Packet>>,
}

/// The side of the link's reader.
#[derive(Clone, Debug)]
pub(crate) struct Answers(SyncSender<Packet>);

impl Budget {
    pub(crate) fn new(link: Arc<Link>) -> (Budget, Answers) {
        let (sender, answers) = sync_channel(1);
        (Budget { link, answers: Mutex::new(answers) }, Answers(sender))
    }

    /// Takes bytes on the lease's `gpu`th GPU; `CUDA_ERROR_OUT_OF_MEMORY` if the lease has none left.
    pub(crate) fn take(&self, gpu: u32, bytes: u64) -> Result<(), CUresult> {
        match self.ask(&Packet::Take { gpu, bytes })? {
            Packet::Taken(true) => Ok(()),
            _ => Err(CUresult::OUT_OF_MEMORY),
        }
    }

    pub(crate) fn give_back(&self, gpu: u32, bytes: u64) {
        // Without a daemon this process is about to end.
        let _ = self.link.send(&Packet::GiveBack { gpu, bytes });
    }

    /// Bytes that all sessions of the lease have taken on a GPU.
    pub(crate) fn used(&self, gpu: u32) -> Result<u64, CUresult> {
        match self.ask(&Packet::QueryUsed { gpu })? {
            Packet::Used(bytes) => Ok(bytes),
            _ => Err(CUresult::UNKNOWN),
        }
    }

    fn ask(&self, question: &Packet) -> Result<Packet, CUresult> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        self.link.send(question).map_err(|_| CUresult::UNKNOWN)?;
        answers.recv().map_err(|_| CUresult::UNKNOWN)
    }
}

impl Answers {
    pub(crate) fn pass_on(&self, answer: Packet) {
        // Nobody asks any more: the process is about to end.
        let _ = self.0.send(answer);
    }
}
