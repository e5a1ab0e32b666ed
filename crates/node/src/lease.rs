//! The accounts of a node: which lease holds what of each GPU, and how much memory its sessions
//! have taken.
//!
//! Pure state: the daemon asks, the accounts answer. Limits belong to the lease and count over all
//! its sessions, so a program that starts ten processes gets no more than one that starts one. What
//! a session took is on its own account as well, which is how a worker killed in the middle of
//! anything gives back exactly what it had.

mod accounts;
mod ask;
mod books;
mod refusal;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::arbiter::Weight;
use crate::lease::accounts::Account;

pub use self::ask::{Ask, Resize};
pub use self::books::{Books, Overcommit};
pub use self::refusal::{Refusal, bytes_text};

/// One GPU that the node divides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// As the driver names it.
    pub name: String,
    /// Whole device memory in bytes.
    pub memory: u64,
}

/// What was granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub ask: Ask,
    /// Indices of the node's GPUs in the order in which the client sees them.
    pub gpus: Vec<usize>,
    /// Bytes on each GPU.
    pub memory: u64,
    /// Its sessions get no GPU time, and its share is free for others.
    pub suspended: bool,
    /// It is suspended, and the memory of all its sessions has left the GPUs as far as it can: what
    /// it has left there is all that is kept from others.
    vacated: bool,
    sessions: BTreeMap<u64, Vec<Account>>,
    /// Bytes on each GPU that sessions share: on no session's account.
    shared: Vec<u64>,
}

impl Lease {
    /// The part of each GPU's compute that no other lease may have.
    pub(crate) fn held_ppm(&self) -> u32 {
        if self.suspended { 0 } else { self.ask.share_ppm }
    }

    /// What the arbiter divides GPU time by.
    pub(crate) fn weight(&self) -> Weight {
        let Ask { share_ppm, limit_ppm, premium, wait_ns, .. } = self.ask;
        Weight { share_ppm, limit_ppm, premium, wait_ns }
    }

    /// Bytes that all sessions together have taken on the lease's `gpu`th GPU. What is kept for one
    /// of them is not taken, and changes at any time.
    pub fn used(&self, gpu: usize) -> u64 {
        let taken: u64 = self.accounts(gpu).map(|(_, account)| account.taken).sum();
        taken + self.shared.get(gpu).copied().unwrap_or(0)
    }

    /// Whether its memory stays on its GPUs, however far they are overcommitted.
    pub(crate) fn is_fixed(&self) -> bool {
        self.ask.is_fixed()
    }

    /// Bytes that its sessions have on a node's GPU now.
    fn resident_on(&self, gpu: usize) -> u64 {
        let Some(place) = self.gpus.iter().position(|&of_lease| of_lease == gpu) else { return 0 };
        let elsewhere: u64 = self.accounts(place).map(|(_, account)| account.swapped + account.awaited).sum();
        self.used(place).saturating_sub(elsewhere)
    }

    /// Bytes that it keeps from others on each of its GPUs, where its memory has left them.
    pub(crate) fn stays_vacated(&self) -> Option<u64> {
        let most = || self.gpus.iter().map(|&gpu| self.resident_on(gpu)).max();
        if self.vacated { most() } else { None }
    }

    /// Bytes of one session that are in a file.
    pub fn filed_by(&self, session: u64) -> u64 {
        self.sessions.get(&session).map_or(0, |all| all.iter().map(|account| account.filed).sum())
    }

    /// Bytes of one session that have left its GPUs.
    pub fn swapped_by(&self, session: u64) -> u64 {
        self.sessions.get(&session).map_or(0, |all| all.iter().map(|account| account.swapped).sum())
    }

    /// Bytes of one session that are in a file, of one GPU of the lease.
    pub(crate) fn filed_by_on(&self, session: u64, gpu: usize) -> u64 {
        self.sessions.get(&session).and_then(|all| all.get(gpu)).map_or(0, |account| account.filed)
    }

    /// Bytes of one session that have left its GPUs, of one GPU of the lease.
    pub(crate) fn swapped_by_on(&self, session: u64, gpu: usize) -> u64 {
        self.sessions.get(&session).and_then(|all| all.get(gpu)).map_or(0, |account| account.swapped)
    }

    /// Bytes that one session has on all its GPUs, without those that it waits for.
    pub fn used_by(&self, session: u64) -> u64 {
        self.sessions.get(&session).map_or(0, |accounts| accounts.iter().map(Account::has).sum())
    }

    /// Bytes that one session has on its GPUs now, with those that are reserved for it.
    pub(crate) fn unmoved_of(&self, session: u64) -> u64 {
        let unmoved = |account: &Account| account.has().saturating_sub(account.swapped) + account.reserve;
        self.sessions.get(&session).map_or(0, |accounts| accounts.iter().map(unmoved).sum())
    }

    /// The most that one session can have on its GPUs in a moment: also what is left of the lease,
    /// and what it waits for.
    pub(crate) fn within_reach_of(&self, session: u64) -> u64 {
        let Some(accounts) = self.sessions.get(&session) else { return 0 };
        let reach = |(gpu, account): (usize, &Account)| {
            account.taken.saturating_sub(account.swapped) + account.reserve + self.left(gpu)
        };
        accounts.iter().enumerate().map(reach).sum()
    }

    /// Returns the memory that a session uses on one GPU of the lease, in bytes.
    pub(crate) fn used_by_on(&self, session: u64, gpu: usize) -> u64 {
        self.sessions.get(&session).and_then(|accounts| accounts.get(gpu)).map_or(0, Account::has)
    }

    /// Bytes that no lease has.
    fn left(&self, gpu: usize) -> u64 {
        self.memory.saturating_sub(self.used(gpu) + self.reserves(gpu))
    }

    fn reserves(&self, gpu: usize) -> u64 {
        self.accounts(gpu).map(|(_, account)| account.reserve).sum()
    }

    fn accounts(&self, gpu: usize) -> impl Iterator<Item = (u64, Account)> {
        self.sessions.iter().filter_map(move |(&session, accounts)| Some((session, *accounts.get(gpu)?)))
    }

    fn account_mut(&mut self, session: u64, gpu: usize) -> Option<&mut Account> {
        self.sessions.get_mut(&session)?.get_mut(gpu)
    }
}

#[cfg(test)]
mod tests;
