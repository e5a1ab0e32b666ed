//! Host memory that a program makes this process keep: images, loaded modules, what the nodes of
//! its graphs hold, and the buffers of copies in graphs, and memory that device code and the
//! program use at the same time. There is one account for all of it, since programs differ in what
//! they need much of.
//!
//! It counts bytes that the client has sent or named. What a driver makes of them, such as machine
//! code, is some multiple that is not known here. What is only in flight is not counted: there the
//! client waits for room (`pipeline`, `outbox`, `staging`).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use sluice_cuda::CUresult;

/// The account of a session.
pub(crate) struct HostMemory {
    limit: u64,
    used: AtomicU64,
    /// Tells the program's user something, without waiting.
    tell: Box<dyn Fn(String) + Send + Sync>,
    told: AtomicBool,
}

/// Bytes that are kept for as long as this is.
#[derive(Debug)]
pub(crate) struct HostCharge {
    bytes: u64,
    of: Arc<HostMemory>,
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostMemory").field("used", &self.used).finish_non_exhaustive()
    }
}

impl HostMemory {
    /// At most `limit` bytes; `tell` says once why calls fail that would need more.
    pub(crate) fn new(limit: u64, tell: impl Fn(String) + Send + Sync + 'static) -> Arc<HostMemory> {
        let (used, told) = (AtomicU64::new(0), AtomicBool::new(false));
        Arc::new(HostMemory { limit, used, tell: Box::new(tell), told })
    }

    /// In bytes.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Keeps this number of bytes, unless they are too many.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Result<HostCharge, CUresult> {
        self.try_take(bytes).ok_or_else(|| self.refusal())
    }

    /// As [`HostMemory::take`], for who can make room and ask again.
    pub(crate) fn try_take(self: &Arc<Self>, bytes: u64) -> Option<HostCharge> {
        let more = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.used.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(HostCharge { bytes, of: Arc::clone(self) })
    }

    /// Refuses bytes that would be too many. Who keeps them after that says so by
    /// [`HostMemory::add`].
    pub(crate) fn check_room(&self, bytes: u64) -> Result<(), CUresult> {
        let sum = self.used.load(Relaxed).saturating_add(bytes);
        if sum <= self.limit { Ok(()) } else { Err(self.refusal()) }
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.used.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Relaxed);
    }

    fn refusal(&self) -> CUresult {
        if !self.told.swap(true, Relaxed) {
            (self.tell)(format!(
                "CUDA_ERROR_OUT_OF_MEMORY: the program's modules, graphs, copies in graphs and mapped memory need more than {} MiB of the node's own \
                 memory, the most that one session may keep there; `sluice node --host-memory` sets it",
                self.limit >> 20
            ));
        }
        CUresult::OUT_OF_MEMORY
    }
}

impl Drop for HostCharge {
    fn drop(&mut self) {
        self.of.give_back(self.bytes);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Mutex;

    use super::*;

    /// An account that is not reported.
    pub(crate) fn of(limit: u64) -> Arc<HostMemory> {
        HostMemory::new(limit, drop)
    }

    #[test]
    fn what_is_kept_is_limited_and_comes_back() {
        let memory = of(100);
        let held = memory.take(60).unwrap();
        assert_eq!(memory.check_room(40), Ok(()));
        assert!(memory.try_take(41).is_none() && memory.try_take(u64::MAX).is_none());
        memory.add(40);
        assert_eq!(memory.check_room(1), Err(CUresult::OUT_OF_MEMORY));
        drop(held);
        assert_eq!(memory.take(61).err(), Some(CUresult::OUT_OF_MEMORY));
        let _held = memory.take(60).unwrap();
        memory.give_back(40);
        assert_eq!(memory.check_room(40), Ok(()));
        assert_eq!(memory.check_room(u64::MAX), Err(CUresult::OUT_OF_MEMORY));
    }

    #[test]
    fn the_user_is_told_once() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&said);
        let memory = HostMemory::new(64 << 20, move |text| heard.lock().unwrap().push(text));
        assert!(memory.try_take(1 << 30).is_none());
        assert!(said.lock().unwrap().is_empty(), "room is made first");
        for _ in 0..2 {
            assert!(memory.take(1 << 30).is_err());
        }
        let said = said.lock().unwrap();
        assert!(
            said.len() == 1 && said[0].contains("64 MiB") && said[0].contains("--host-memory"),
            "{said:?}"
        );
    }
}
