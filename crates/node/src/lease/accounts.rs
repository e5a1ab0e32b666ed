//! The account of each session: the bytes that it has taken of its lease, those of them that are in
//! host memory or still awaited, and those that are reserved for it.

use serde::{Deserialize, Serialize};

use crate::lease::refusal::bytes_text;
use crate::lease::{Books, Lease, Refusal};

/// Bytes of one session on one GPU of its lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Account {
    /// What it uses.
    pub(super) taken: u64,
    /// The part of `taken` that is not on the GPU now.
    pub(super) swapped: u64,
    /// The part of `swapped` that is in a file instead of in host memory.
    pub(super) filed: u64,
    /// The part of `taken` that the session still waits for.
    pub(super) awaited: u64,
    /// Bytes that are reserved for it, so that its client may use them unasked. No other session
    /// gets them, and they are not shown as used.
    pub(super) reserve: u64,
}

impl Account {
    pub(super) fn has(&self) -> u64 {
        self.taken.saturating_sub(self.awaited)
    }
}

/// Most bytes that are kept for a session on a GPU, and the part of its lease that they are at
/// most.
const RESERVE_MAX: u64 = 256 << 20;
const RESERVE_PART: u64 = 64;
/// Reserves grow in steps of what sessions commit at least.
const RESERVE_STEP: u64 = 2 << 20;

impl Books {
    /// `moved` bytes of a session have left each of its GPUs, of which `filed` are in a file.
    pub fn moved_out(&mut self, lease: u64, session: u64, moved: &[u64], filed: &[u64]) {
        let accounts = self.leases.get_mut(&lease).and_then(|lease| lease.sessions.get_mut(&session));
        for (account, (bytes, filed)) in accounts.into_iter().flatten().zip(moved.iter().zip(filed)) {
            account.swapped = account.swapped.saturating_add(*bytes).min(account.taken);
            account.filed = account.filed.saturating_add(*filed).min(account.swapped);
        }
    }

    /// All bytes of a session are on its GPUs again.
    pub fn moved_in(&mut self, lease: u64, session: u64) {
        let accounts = self.leases.get_mut(&lease).and_then(|lease| lease.sessions.get_mut(&session));
        accounts.into_iter().flatten().for_each(|account| (account.swapped, account.filed) = (0, 0));
    }

    /// Opens an account for a session of a lease; false when the lease is no more.
    pub fn open_session(&mut self, lease: u64, session: u64) -> bool {
        let Some(lease) = self.leases.get_mut(&lease) else { return false };
        let accounts = vec![Account::default(); lease.gpus.len()];
        lease.sessions.entry(session).or_insert(accounts);
        true
    }

    /// Closes it: what the session had is free again.
    pub fn close_session(&mut self, lease: u64, session: u64) {
        if let Some(lease) = self.leases.get_mut(&lease) {
            lease.sessions.remove(&session);
        }
    }

    /// A session that has come from another worker has taken and reserved these bytes of each of
    /// its GPUs.
    pub fn adopt(&mut self, lease: u64, session: u64, taken: &[u64], reserved: &[u64]) {
        let accounts = self.leases.get_mut(&lease).and_then(|lease| lease.sessions.get_mut(&session));
        let has = taken.iter().zip(reserved);
        for (account, (&taken, &reserve)) in accounts.into_iter().flatten().zip(has) {
            *account = Account { taken, reserve, ..Account::default() };
        }
    }

    /// Opens an account for a clone of a session, with what that has taken. Nothing is kept for it.
    pub fn open_clone(&mut self, lease: u64, of: u64, session: u64) -> Result<(), Refusal> {
        let entry = self.leases.get(&lease).ok_or(Refusal::Gone)?;
        let accounts = entry.sessions.get(&of).ok_or(Refusal::Gone)?;
        let taken: Vec<u64> = accounts.iter().map(|account| account.taken).collect();
        self.open_session(lease, session);
        self.settle_clone(lease, session, &taken).inspect_err(|_| self.close_session(lease, session))
    }

    /// A clone has taken this much of each of its GPUs. After a refusal it has what it had.
    pub fn settle_clone(&mut self, lease: u64, session: u64, taken: &[u64]) -> Result<(), Refusal> {
        let entry = self.leases.get_mut(&lease).ok_or(Refusal::Gone)?;
        for (gpu, &needs) in taken.iter().enumerate() {
            let had = entry.account_mut(session, gpu).ok_or(Refusal::Gone)?.taken;
            let (left, memory) = (entry.left(gpu) + had, entry.memory);
            if needs > left {
                let needed = memory.saturating_add(needs - left);
                let [needs, left, memory, needed] = [needs, left, memory, needed].map(bytes_text);
                return Err(Refusal::NoMemoryForClone { lease, needs, left, memory, needed });
            }
        }
        for (gpu, &taken) in taken.iter().enumerate() {
            let account = entry.account_mut(session, gpu).ok_or(Refusal::Gone)?;
            *account = Account { taken, ..Account::default() };
        }
        Ok(())
    }

    /// Takes `bytes` on the lease's `gpu`th GPU for a session, if its lease has them left; of the
    /// session's own reserve `reserve` bytes at most. The answer is what is left of these.
    pub fn take(&mut self, lease: u64, session: u64, gpu: usize, bytes: u64, reserve: u64) -> Option<u64> {
        let lease = self.leases.get_mut(&lease)?;
        let left = lease.left(gpu);
        let account = lease.account_mut(session, gpu)?;
        let spent = bytes.saturating_sub(left);
        if spent > reserve.min(account.reserve) {
            return None;
        }
        account.reserve -= spent;
        account.taken += bytes;
        Some(reserve - spent)
    }

    /// A session has to wait for bytes that it has taken.
    pub fn await_bytes(&mut self, lease: u64, session: u64, gpu: usize, bytes: u64) {
        let account = self.leases.get_mut(&lease).and_then(|lease| lease.account_mut(session, gpu));
        if let Some(account) = account {
            account.awaited = account.awaited.saturating_add(bytes).min(account.taken);
        }
    }

    /// A session waits no longer: it has the bytes, or gives them back.
    pub fn arrived(&mut self, lease: u64, session: u64, gpu: usize) -> u64 {
        let account = self.leases.get_mut(&lease).and_then(|lease| lease.account_mut(session, gpu));
        account.map_or(0, |account| std::mem::take(&mut account.awaited))
    }

    /// The session uses bytes of its reserve.
    pub fn spend(&mut self, lease: u64, session: u64, gpu: usize, bytes: u64) {
        let account = self.leases.get_mut(&lease).and_then(|lease| lease.account_mut(session, gpu));
        if let Some(account) = account {
            account.reserve = account.reserve.saturating_sub(bytes);
            account.taken = account.taken.saturating_add(bytes);
        }
    }

    /// Keeps more for a session, as far as there is more. One session has a small part of the
    /// lease, all have twice that at most: each gets no more than half of what the others leave of
    /// it. The answer is how much more.
    pub fn fill_reserve(&mut self, lease: u64, session: u64, gpu: usize) -> u64 {
        if self.overcommit.is_some() {
            // What is kept for a session would have to be on the GPU.
            return 0;
        }
        let Some(lease) = self.leases.get_mut(&lease).filter(|lease| !lease.suspended) else { return 0 };
        let (left, all) = (lease.left(gpu), lease.reserves(gpu));
        let most = (lease.memory / RESERVE_PART).min(RESERVE_MAX) / RESERVE_STEP * RESERVE_STEP;
        let Some(account) = lease.account_mut(session, gpu) else { return 0 };
        let others = all - account.reserve;
        let half = (2 * most).saturating_sub(others) / 2;
        let wanted = most.min(half.next_multiple_of(RESERVE_STEP));
        let more = wanted.saturating_sub(account.reserve).min(left) / RESERVE_STEP * RESERVE_STEP;
        account.reserve += more;
        more
    }

    /// Gives bytes back; never more than the session had.
    pub fn give_back(&mut self, lease: u64, session: u64, gpu: usize, bytes: u64) {
        let account = self.leases.get_mut(&lease).and_then(|lease| lease.account_mut(session, gpu));
        if let Some(account) = account {
            account.taken = account.taken.saturating_sub(bytes);
            account.swapped = account.swapped.min(account.taken);
            account.filed = account.filed.min(account.swapped);
            account.awaited = account.awaited.min(account.taken);
        }
    }

    /// Moves bytes from a session's account to what the lease's sessions share; false if it does
    /// not have them.
    pub fn share(&mut self, lease: u64, session: u64, gpu: usize, bytes: u64) -> bool {
        let Some(Lease { sessions, shared, .. }) = self.leases.get_mut(&lease) else { return false };
        match (sessions.get_mut(&session).and_then(|a| a.get_mut(gpu)), shared.get_mut(gpu)) {
            (Some(account), Some(shared)) if bytes <= account.taken => {
                account.taken -= bytes;
                *shared += bytes;
                true
            }
            _ => false,
        }
    }

    /// Gives back bytes that were shared.
    pub fn unshare(&mut self, lease: u64, gpu: usize, bytes: u64) {
        if let Some(shared) = self.leases.get_mut(&lease).and_then(|l| l.shared.get_mut(gpu)) {
            *shared = shared.saturating_sub(bytes);
        }
    }
}
