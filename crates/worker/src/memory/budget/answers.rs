//! The answers of the daemon, passed on to the threads that wait for them.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use super::allowances::Allowances;
use crate::link::{Export, Packet};
use crate::outbox::Push;

/// A packet, and the descriptor that came with it.
pub(super) type Answer = (Packet, Option<OwnedFd>);

/// What another session exported.
#[derive(Debug)]
pub(crate) struct Imported {
    pub(crate) export: Export,
    pub(crate) file: Option<OwnedFd>,
    /// Whether the other session is this one.
    pub(crate) is_own: bool,
}

/// The side of the link's reader.
#[derive(Clone)]
pub(crate) struct Answers {
    pub(super) sender: SyncSender<Answer>,
    pub(super) takes: SyncSender<Answer>,
    pub(super) allowances: Arc<Allowances>,
}

impl Answers {
    pub(crate) fn pass_on(&self, answer: Answer) {
        let sender = if matches!(answer.0, Packet::Taken(_)) { &self.takes } else { &self.sender };
        // No thread asks any more: the process is about to end.
        let _ = sender.send(answer);
    }

    /// Sends a notice to the user of the program.
    pub(crate) fn notice(&self, text: String) {
        self.allowances.outbox.push(Push::Notice(text));
    }

    /// More is kept for the session.
    pub(crate) fn reserved(&self, gpu: u32, bytes: u64) {
        self.allowances.grow(gpu, bytes);
    }
}
