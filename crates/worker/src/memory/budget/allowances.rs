//! What the client may use unasked, and the memory behind it.

use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Claim;
use crate::memory::ballast::{Ballast, Source};
use crate::memory::chunks::CHUNK;
use crate::outbox::{Outbox, Push};

/// What the client may use unasked, by GPU.
pub(super) struct Allowances {
    pub(super) of_gpus: Mutex<Vec<Allowed>>,
    pub(super) outbox: Arc<Outbox>,
}

/// Bytes of a GPU that the daemon keeps for the session.
#[derive(Default)]
pub(super) struct Allowed {
    /// What the client knows of, and may use.
    pub(super) allowed: u64,
    /// What the client does not know of.
    pub(super) kept: u64,
    /// No more is allowed than these have.
    pub(super) ballast: Vec<Ballast>,
    pub(super) source: Option<Arc<Source>>,
}

impl Allowed {
    pub(super) fn behind(&self) -> u64 {
        self.ballast.iter().map(Ballast::bytes).sum()
    }

    /// Allows as much as may be. The answer is how much more that is.
    fn allow(&mut self) -> u64 {
        let more = self.kept.min(self.behind().saturating_sub(self.allowed));
        self.kept -= more;
        self.allowed += more;
        more
    }
}

impl Allowances {
    /// Takes memory that is to be behind what is kept, and allows that. The answer is how much more
    /// is allowed.
    pub(super) fn load(&self, gpu: u32) -> u64 {
        let wanted = {
            let all = self.lock();
            all.get(gpu as usize).and_then(|of| Some((of.source.clone()?, of.kept / CHUNK * CHUNK)))
        };
        // The driver is called without the lock.
        let Some(ballast) = wanted.and_then(|(source, bytes)| source.ballast(bytes)) else { return 0 };
        let mut all = self.lock();
        let Some(of) = all.get_mut(gpu as usize) else { return 0 };
        of.ballast.push(ballast);
        of.allow()
    }

    /// Takes as much memory as is allowed; false if it is not to be had.
    pub(super) fn reload(&self, gpu: usize) -> bool {
        let missing = {
            let all = self.lock();
            let missing = |of: &Allowed| (of.source.clone(), of.allowed.saturating_sub(of.behind()));
            all.get(gpu).map(missing)
        };
        // The driver is called without the lock.
        let ballast = match missing {
            Some((Some(source), bytes)) if bytes > 0 => source.ballast(bytes.next_multiple_of(CHUNK)),
            _ => return true,
        };
        let Some(ballast) = ballast else { return false };
        if let Some(of) = self.lock().get_mut(gpu) {
            of.ballast.push(ballast);
        }
        true
    }

    pub(super) fn withhold(&self, gpu: u32) -> (u64, u64) {
        let mut all = self.lock();
        all.get_mut(gpu as usize).map_or((0, 0), |of| (take(&mut of.allowed), take(&mut of.kept)))
    }

    /// Follows [`Allowances::withhold`]: `allowed` bytes were allowed, and `left` bytes of all are
    /// left. The answer is what is there now.
    pub(super) fn put_back(&self, gpu: u32, allowed: u64, left: u64) -> u64 {
        let mut all = self.lock();
        let Some(of) = all.get_mut(gpu as usize) else { return left };
        of.kept += left;
        // The lease has nothing else left, and needs all that the GPU has for it.
        let dropped = if left < allowed { take(&mut of.ballast) } else { Vec::new() };
        // What has come meanwhile is sent already.
        let before = of.allowed;
        of.allow();
        self.tell(gpu, (of.allowed - before) as i64 - allowed as i64);
        let now = of.allowed + of.kept;
        // The driver is called without the lock.
        drop(all);
        drop(dropped);
        now
    }

    pub(super) fn grow(&self, gpu: u32, bytes: u64) {
        let mut all = self.lock();
        let Some(of) = all.get_mut(gpu as usize) else { return };
        of.kept += bytes;
        let more = of.allow();
        self.tell(gpu, more as i64);
    }

    /// The GPU is short of memory; whether this makes some free. Nothing more is allowed for now.
    /// A client that waits loses its allowance at once; one that does not may have used it already,
    /// and what was held is free for that.
    pub(super) fn drop_ballast(&self, gpu: u32, claim: Claim) -> bool {
        let mut all = self.lock();
        let Some(of) = all.get_mut(gpu as usize) else { return false };
        let dropped = take(&mut of.ballast);
        if !dropped.is_empty() && claim == Claim::Asked {
            let gone = take(&mut of.allowed);
            of.kept += gone;
            self.tell(gpu, -(gone as i64));
        }
        drop(all);
        !dropped.is_empty()
    }

    /// This is called before anything else is sent about the GPU, so that the client gets the
    /// changes in their order.
    pub(super) fn tell(&self, device: u32, change: i64) {
        if change != 0 {
            self.outbox.push(Push::Allowance { device, change });
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Allowed>> {
        self.of_gpus.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
