//! Asking the daemon for memory of the lease, for what others of the lease share, and for
//! connections to other nodes.
//!
//! The daemon keeps the account: the limit counts over all sessions of the lease, and what a killed
//! worker had comes back without its help. Device memory is taken in chunks of 2 MiB and more, so a
//! question costs little.
//!
//! The daemon keeps a little of each GPU for the session ahead of time. That is the client's
//! *allowance*: the amount that it may use by queued commands, and what it has used is said here,
//! so that the daemon keeps more.
//!
//! ```text
//!  daemon                            worker                             client
//!    | -- Start, with reserves ------> | -- SessionOpened, allowances ---> |
//!    |                                 | <-- a queued commit ------------- |  its count goes down
//!    | <-- Spend --------------------- |  this count goes down             |
//!    | -- Reserved ------------------> |  this count goes up               |
//!    |                                 | -- Allowance -------------------> |  its count goes up
//! ```
//!
//! So the count here is never below the client's: a command that exceeds it comes from a client
//! that does not keep to the protocol. Only where the client waits for memory is any of it taken
//! away, at the end of the lease: then all of it may go into that. Meanwhile the client uses none
//! of it on that GPU. No more is allowed than the worker holds itself
//! ([`ballast`](crate::memory::ballast)).

mod allowances;
mod answers;
mod shared;

use std::mem::take;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use sluice_cuda::CUresult;

use crate::link::{Packet, PacketSocket};
use crate::memory::ballast::{Ballast, Source};
use crate::memory::presence::Presence;
use crate::outbox::{Outbox, Push};

pub(crate) use answers::{Answers, Imported};

use allowances::{Allowances, Allowed};
use answers::Answer;

/// The asking side. Questions go one at a time, so that answers need no number. Those for memory,
/// which may wait for other sessions to leave the GPU, hold no other question up: a thread that
/// asks one of those may hold a use of the memory that has to leave.
pub(crate) struct Budget {
    link: Arc<PacketSocket>,
    answers: Mutex<Receiver<Answer>>,
    takes: Mutex<Receiver<Answer>>,
    /// Bytes of each GPU that the session has, wherever they are now.
    taken: Vec<AtomicU64>,
    allowances: Arc<Allowances>,
    presence: Arc<Presence>,
    /// The driver's `cuMemGetInfo`, where other sessions can make room on the GPU.
    free: OnceLock<MemGetInfo>,
}

type MemGetInfo = unsafe extern "C" fn(*mut usize, *mut usize) -> CUresult;

/// How often memory is asked for that the daemon grants and the driver refuses. Each time the
/// daemon knows better what fits.
const GRANTS_MAX: usize = 16;

/// How the client comes by memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It waits for the answer.
    Asked,
    /// It uses its allowance.
    Allowed,
}

impl Budget {
    /// The budget of `gpus` GPUs, on which nothing is allowed yet. Changes of that are sent through
    /// the outbox.
    pub(crate) fn new(link: Arc<PacketSocket>, gpus: usize, outbox: Arc<Outbox>) -> (Budget, Answers) {
        let ((sender, answers), (takes_sender, takes)) = (sync_channel(1), sync_channel(1));
        let taken = (0..gpus).map(|_| AtomicU64::new(0)).collect();
        let of_gpus = Mutex::new((0..gpus).map(|_| Allowed::default()).collect());
        let allowances = Arc::new(Allowances { of_gpus, outbox });
        let wanting = Arc::clone(&link);
        // Without a daemon this process is about to end.
        let presence = Presence::new(move || _ = wanting.send(&Packet::Wanted));
        let allowances_here = Arc::clone(&allowances);
        let (answers, takes) = (Mutex::new(answers), Mutex::new(takes));
        let free = OnceLock::new();
        let budget = Budget { link, answers, takes, taken, allowances: allowances_here, presence, free };
        (budget, Answers { sender, takes: takes_sender, allowances })
    }

    /// Notes that `reserve` bytes are kept for the session on a GPU from the start. The answer is
    /// what is allowed of that, for which memory comes from the source; without one there is never
    /// any.
    pub(crate) fn begin(&self, gpu: u32, reserve: u64, source: Option<Source>) -> u64 {
        if let Some(of) = self.allowances.lock().get_mut(gpu as usize) {
            *of = Allowed { kept: reserve, source: source.map(Arc::new), ..Allowed::default() };
        }
        self.allowances.load(gpu)
    }

    /// Other sessions can make room where the driver has too little, and this says how much it has.
    pub(crate) fn overcommits(&self, free: Option<MemGetInfo>) {
        if let Some(free) = free {
            let _ = self.free.set(free);
        }
    }

    /// Tells the daemon that the driver has too little memory on a GPU, whose context is current.
    pub(crate) fn say_full(&self, gpu: u32) {
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is current, and the driver writes two sizes to locals.
        let known = self.free.get().is_some_and(|get| unsafe { get(&mut free, &mut total) }.is_success());
        if known {
            // Without a daemon this process is about to end.
            let _ = self.link.send(&Packet::CardFull { gpu, free: free as u64 });
        }
    }

    /// Makes something that takes up these bytes of the lease's `gpu`th GPU. Fails with
    /// `CUDA_ERROR_OUT_OF_MEMORY` if the lease has none left. What the driver refuses is asked for
    /// again where other sessions can make room.
    pub(crate) fn charge<T>(
        &self,
        claim: Claim,
        (gpu, bytes): (u32, u64),
        mut make: impl FnMut() -> Result<T, CUresult>,
    ) -> Result<T, CUresult> {
        for _ in 1..GRANTS_MAX {
            let mut is_refused = false;
            let made = self.charge_once(claim, (gpu, bytes), || {
                make().inspect_err(|&result| is_refused = result == CUresult::OUT_OF_MEMORY)
            });
            if made.is_ok() || !is_refused || claim == Claim::Allowed || self.free.get().is_none() {
                return made;
            }
            self.say_full(gpu);
        }
        self.charge_once(claim, (gpu, bytes), make)
    }

    fn charge_once<T>(
        &self,
        claim: Claim,
        (gpu, bytes): (u32, u64),
        mut make: impl FnMut() -> Result<T, CUresult>,
    ) -> Result<T, CUresult> {
        match claim {
            Claim::Asked => self.ask_for(gpu, bytes)?,
            Claim::Allowed => self.spend(gpu, bytes)?,
        }
        let made = match make() {
            Err(CUresult::OUT_OF_MEMORY) if self.allowances.drop_ballast(gpu, claim) => make(),
            made => made,
        };
        match (&made, claim) {
            (Ok(_), _) => self.count(gpu, bytes),
            // It is given back as it was taken.
            (Err(_), _) => self.say_given_back(gpu, bytes),
        }
        match (&made, claim) {
            (Ok(_), Claim::Asked) => {
                let more = self.allowances.load(gpu);
                self.allowances.tell(gpu, more as i64);
            }
            (Ok(_), Claim::Allowed) => {}
            (Err(_), Claim::Asked) => {}
            (Err(result), Claim::Allowed) => self.explain(bytes, *result),
        }
        made
    }

    /// A command without an answer has failed: that is the end of the session, and both sides get
    /// the reason.
    fn explain(&self, bytes: u64, result: CUresult) {
        let outside = match result {
            CUresult::OUT_OF_MEMORY => ": what uses the GPU outside of its leases leaves too little",
            _ => "",
        };
        let text = format!(
            "the driver refuses {bytes} bytes of device memory that the lease has ({result}){outside}"
        );
        eprintln!("sluice worker: {text}");
        self.allowances.outbox.push(Push::Notice(text));
    }

    fn spend(&self, gpu: u32, bytes: u64) -> Result<(), CUresult> {
        let mut all = self.allowances.lock();
        let of = all.get_mut(gpu as usize).filter(|of| bytes <= of.allowed);
        of.ok_or(CUresult::OUT_OF_MEMORY)?.allowed -= bytes;
        // Without a daemon this process is about to end.
        let _ = self.link.send(&Packet::Spend { gpu, bytes });
        Ok(())
    }

    fn ask_for(&self, gpu: u32, bytes: u64) -> Result<(), CUresult> {
        loop {
            // Until the answer no other thread can use it.
            let (allowed, kept) = self.allowances.withhold(gpu);
            let reserve = allowed + kept;
            // The answer may take until other memory has been moved, and this session's may be
            // among that.
            let take = Packet::Take { gpu, bytes, reserve };
            let answer = self.presence.outside(|| self.ask_in(&self.takes, &take, None));
            let left = match answer {
                Ok((Packet::Taken(left), _)) => left,
                _ => None,
            };
            let now = self.allowances.put_back(gpu, allowed, left.unwrap_or(reserve));
            answer?;
            match left {
                Some(_) => return Ok(()),
                // What was in flight to this side when the daemon was asked is all that was
                // missing.
                None if now > reserve => {}
                None => return Err(CUresult::OUT_OF_MEMORY),
            }
        }
    }

    /// Takes bytes of a GPU that the driver needs for itself; `CUDA_ERROR_OUT_OF_MEMORY` if the
    /// lease has too few. The client does not know of this and may be using its allowance, so none
    /// of that goes into it.
    pub(crate) fn take_for_driver(&self, gpu: u32, bytes: u64) -> Result<(), CUresult> {
        match self.ask(&Packet::TakeAtOnce { gpu, bytes }, None)? {
            (Packet::TakenAtOnce(true), _) => {
                self.count(gpu, bytes);
                Ok(())
            }
            (Packet::TakenAtOnce(false), _) => Err(CUresult::OUT_OF_MEMORY),
            _ => Err(CUresult::UNKNOWN),
        }
    }

    /// For each GPU: bytes that the client may use unasked, and bytes that are kept beyond these.
    pub(crate) fn allowances(&self) -> Vec<(u64, u64)> {
        self.allowances.lock().iter().map(|of| (of.allowed, of.kept)).collect()
    }

    /// Counts bytes of a GPU that the session had in another worker, where the daemon has counted
    /// them, and continues with an allowance of which its client knows.
    pub(crate) fn adopt(&self, gpu: u32, bytes: u64, allowed: u64) -> Result<(), CUresult> {
        self.count(gpu, bytes);
        let now = self.allowances.lock().get(gpu as usize).map_or(0, |of| of.allowed);
        let more = now.checked_sub(allowed).ok_or(CUresult::OUT_OF_MEMORY)?;
        self.allowances.tell(gpu, more as i64);
        Ok(())
    }

    /// Whether the session's memory is on its GPUs.
    pub(crate) fn presence(&self) -> &Arc<Presence> {
        &self.presence
    }

    /// Gives the memory behind all allowances back, while the client can use none of them.
    pub(crate) fn drop_reserves(&self) {
        let reserves: Vec<Vec<Ballast>> =
            self.allowances.lock().iter_mut().map(|of| take(&mut of.ballast)).collect();
        // The driver is called without the lock.
        drop(reserves);
    }

    /// Takes memory that is behind all allowances, after [`Budget::drop_reserves`]; false if the
    /// GPU has too little.
    pub(crate) fn take_reserves(&self) -> bool {
        let gpus = self.allowances.lock().len();
        (0..gpus).all(|gpu| self.allowances.reload(gpu))
    }

    pub(crate) fn give_back(&self, gpu: u32, bytes: u64) {
        self.discount(gpu, bytes);
        self.say_given_back(gpu, bytes);
    }

    /// Bytes of a GPU that the session has, wherever they are now.
    pub(crate) fn taken(&self, gpu: u32) -> u64 {
        self.taken.get(gpu as usize).map_or(0, |taken| taken.load(Relaxed))
    }

    fn count(&self, gpu: u32, bytes: u64) {
        if let Some(taken) = self.taken.get(gpu as usize) {
            taken.fetch_add(bytes, Relaxed);
        }
    }

    fn discount(&self, gpu: u32, bytes: u64) {
        if let Some(taken) = self.taken.get(gpu as usize) {
            let _ = taken.fetch_update(Relaxed, Relaxed, |now| Some(now.saturating_sub(bytes)));
        }
    }

    fn say_given_back(&self, gpu: u32, bytes: u64) {
        // Without a daemon this process is about to end.
        let _ = self.link.send(&Packet::GiveBack { gpu, bytes });
    }

    /// Bytes of a GPU that all sessions of the lease have taken.
    pub(crate) fn used(&self, gpu: u32) -> Result<u64, CUresult> {
        match self.ask(&Packet::QueryUsed { gpu }, None)? {
            (Packet::Used(bytes), _) => Ok(bytes),
            _ => Err(CUresult::UNKNOWN),
        }
    }

    /// Bytes of a GPU that are taken from its memory, and that this session still has to use.
    pub(crate) fn held(&self, gpu: u32) -> u64 {
        self.allowances.lock().get(gpu as usize).map_or(0, Allowed::behind)
    }

    fn ask(&self, question: &Packet, file: Option<OwnedFd>) -> Result<Answer, CUresult> {
        self.ask_in(&self.answers, question, file)
    }

    fn ask_in(
        &self,
        answers: &Mutex<Receiver<Answer>>,
        question: &Packet,
        file: Option<OwnedFd>,
    ) -> Result<Answer, CUresult> {
        let answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = match &file {
            Some(file) => self.link.send_fd(question, file.as_fd()),
            None => self.link.send(question),
        };
        sent.map_err(|_| CUresult::UNKNOWN)?;
        answers.recv().map_err(|_| CUresult::UNKNOWN)
    }
}

#[cfg(test)]
mod tests;
