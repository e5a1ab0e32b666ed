//! Asking the daemon for memory of the lease, for what others of the lease share, and for
//! connections to other nodes.
//!
//! The books are the daemon's: the limit counts over all sessions of the lease, and what a killed
//! worker had comes back without its help. Device memory is taken in chunks of 2 MiB and more, so a
//! question costs little.
//!
//! The daemon keeps a little of each GPU for the session ahead of time. That is the client's
//! *allowance*: so much it may use by queued commands, and what it has used is said here, so that
//! the daemon keeps more.
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
//! ([`ballast`](crate::ballast)).

use std::mem::take;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use sluice_cuda::CUresult;
use sluice_wire::ExportToken;

use crate::ballast::{Ballast, Source};
use crate::chunks::CHUNK;
use crate::link::{Export, Link, Packet};
use crate::memory::presence::Presence;
use crate::outbox::{Outbox, Push};

/// The asking side. Questions go one at a time, so that answers need no number. Those for memory,
/// which may wait for other sessions to leave the GPU, hold no other question up: a thread that
/// asks one of those may hold a use of the memory that has to leave.
pub(crate) struct Budget {
    link: Arc<Link>,
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

/// What the client may use unasked, by GPU.
struct Allowances {
    of_gpus: Mutex<Vec<Allowed>>,
    outbox: Arc<Outbox>,
}

/// Bytes of a GPU that the daemon keeps for the session.
#[derive(Default)]
struct Allowed {
    /// What the client knows of, and may use,
    allowed: u64,
    /// and what it does not know of.
    kept: u64,
    /// No more is allowed than these have.
    ballast: Vec<Ballast>,
    source: Option<Arc<Source>>,
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
#[derive(Clone)]
pub(crate) struct Answers {
    sender: SyncSender<Answer>,
    takes: SyncSender<Answer>,
    allowances: Arc<Allowances>,
}

impl Budget {
    /// Of so many GPUs, on which nothing is allowed yet. What changes in that is told through the
    /// outbox.
    pub(crate) fn new(link: Arc<Link>, gpus: usize, outbox: Arc<Outbox>) -> (Budget, Answers) {
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

    /// So much is kept for the session on a GPU from the start. The answer is what is allowed of
    /// that, for which memory comes from the source; without one there is never any.
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

    /// A command that nobody waits for has failed: that is the end of the session, and both sides
    /// are told why.
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
            // Until the answer nobody else can use it.
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
                // What was on its way here when the daemon was asked is all that was missing.
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

    /// Bytes of a GPU that are taken from its card, and that this session still has to use.
    pub(crate) fn held(&self, gpu: u32) -> u64 {
        self.allowances.lock().get(gpu as usize).map_or(0, Allowed::behind)
    }

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

impl Answers {
    pub(crate) fn pass_on(&self, answer: Answer) {
        let sender = if matches!(answer.0, Packet::Taken(_)) { &self.takes } else { &self.sender };
        // Nobody asks any more: the process is about to end.
        let _ = sender.send(answer);
    }

    /// The user of the program is told something.
    pub(crate) fn notice(&self, text: String) {
        self.allowances.outbox.push(Push::Notice(text));
    }

    /// More is kept for the session.
    pub(crate) fn reserved(&self, gpu: u32, bytes: u64) {
        self.allowances.grow(gpu, bytes);
    }
}

impl Allowed {
    fn behind(&self) -> u64 {
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
    fn load(&self, gpu: u32) -> u64 {
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
    fn reload(&self, gpu: usize) -> bool {
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

    fn withhold(&self, gpu: u32) -> (u64, u64) {
        let mut all = self.lock();
        all.get_mut(gpu as usize).map_or((0, 0), |of| (take(&mut of.allowed), take(&mut of.kept)))
    }

    /// After [`Allowances::withhold`]: so much was allowed, and so much of all is left. The answer
    /// is what is there now.
    fn put_back(&self, gpu: u32, allowed: u64, left: u64) -> u64 {
        let mut all = self.lock();
        let Some(of) = all.get_mut(gpu as usize) else { return left };
        of.kept += left;
        // The lease has nothing else left, and needs all that the card has for it.
        let dropped = if left < allowed { take(&mut of.ballast) } else { Vec::new() };
        // What has come meanwhile is told already.
        let before = of.allowed;
        of.allow();
        self.tell(gpu, (of.allowed - before) as i64 - allowed as i64);
        let now = of.allowed + of.kept;
        // The driver is called without the lock.
        drop(all);
        drop(dropped);
        now
    }

    fn grow(&self, gpu: u32, bytes: u64) {
        let mut all = self.lock();
        let Some(of) = all.get_mut(gpu as usize) else { return };
        of.kept += bytes;
        let more = of.allow();
        self.tell(gpu, more as i64);
    }

    /// The card is short of memory; whether this makes some free. Nothing more is allowed for now.
    /// A client that waits loses its allowance at once; one that does not may have used it already,
    /// and what was held is free for that.
    fn drop_ballast(&self, gpu: u32, claim: Claim) -> bool {
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

    /// Before anything else is told of the GPU, so that the client hears of changes in their order.
    fn tell(&self, device: u32, change: i64) {
        if change != 0 {
            self.outbox.push(Push::Allowance { device, change });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Allowed>> {
        self.of_gpus.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use sluice_cuda::{
        CUmemAllocationHandleType, CUmemAllocationProp, CUmemGenericAllocationHandle, DriverTable,
    };
    use sluice_transport::Stream;

    use super::*;
    use crate::counters::CounterPage;

    const RESERVE: u64 = 8 * CHUNK;

    /// A budget of one GPU with a reserve, the side of the reader, and the daemon's end of the
    /// link.
    fn budget() -> (Budget, Answers, Link, Arc<Outbox>) {
        let (link, daemon) = Link::pair().unwrap();
        let (ours, _) = UnixStream::pair().unwrap();
        let counters = Arc::new(CounterPage::create().unwrap());
        let outbox = Arc::new(Outbox::new(Arc::new(Stream::from(ours)), true, counters));
        let (budget, answers) = Budget::new(Arc::new(link), 1, Arc::clone(&outbox));
        let source = Source { table: table(), ordinal: 0, handle_types: CUmemAllocationHandleType::NONE };
        assert_eq!(budget.begin(0, RESERVE, Some(source)), RESERVE);
        (budget, answers, daemon, outbox)
    }

    unsafe extern "C" fn create(
        _: *mut CUmemGenericAllocationHandle,
        _: usize,
        _: *const CUmemAllocationProp,
        _: u64,
    ) -> CUresult {
        CUresult::SUCCESS
    }

    unsafe extern "C" fn release(_: CUmemGenericAllocationHandle) -> CUresult {
        CUresult::SUCCESS
    }

    /// A driver that has memory for ballast.
    fn table() -> DriverTable {
        DriverTable { cuMemCreate: Some(create), cuMemRelease: Some(release), ..DriverTable::EMPTY }
    }

    /// What the client has been told.
    fn told(outbox: &Outbox) -> Vec<i64> {
        let change = |push: Push| match push {
            Push::Allowance { device: 0, change } => change,
            _ => panic!("it is told something else"),
        };
        outbox.take_pushes().into_iter().map(change).collect()
    }

    /// Asks, and has the daemon answer.
    fn ask(
        budget: &Budget,
        answers: &Answers,
        daemon: &Link,
        bytes: u64,
        answer: Option<u64>,
    ) -> (Result<(), CUresult>, u64) {
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| budget.charge(Claim::Asked, (0, bytes), || Ok(())));
            let Some(Packet::Take { gpu: 0, bytes: wanted, reserve }) = daemon.receive().unwrap() else {
                panic!("nothing is asked for")
            };
            assert_eq!(wanted, bytes);
            answers.pass_on((Packet::Taken(answer), None));
            (asked.join().unwrap(), reserve)
        })
    }

    #[test]
    fn what_is_allowed_is_used_unasked_and_no_more() {
        let (budget, answers, daemon, outbox) = budget();
        budget.charge(Claim::Allowed, (0, 6 * CHUNK), || Ok(())).unwrap();
        assert_eq!(daemon.receive().unwrap(), Some(Packet::Spend { gpu: 0, bytes: 6 * CHUNK }));
        let more = || budget.charge(Claim::Allowed, (0, 3 * CHUNK), || Ok(()));
        assert_eq!(more(), Err(CUresult::OUT_OF_MEMORY));
        answers.reserved(0, 4 * CHUNK);
        assert_eq!(told(&outbox), [4 * CHUNK as i64]);
        assert_eq!(more(), Ok(()));
        // It is never more than what is behind it.
        answers.reserved(0, 100 * CHUNK);
        assert_eq!(told(&outbox), [5 * CHUNK as i64]);
    }

    #[test]
    fn who_waits_at_the_end_of_the_lease_gets_what_is_kept() {
        let (budget, answers, daemon, outbox) = budget();
        let (got, offered) = ask(&budget, &answers, &daemon, 50 * CHUNK, Some(RESERVE));
        assert_eq!((got, offered, told(&outbox)), (Ok(()), RESERVE, vec![]));
        let (got, _) = ask(&budget, &answers, &daemon, 50 * CHUNK, None);
        assert_eq!((got, told(&outbox)), (Err(CUresult::OUT_OF_MEMORY), vec![]));
        // All is taken away, and what is left allowed again once there is something behind it.
        let (got, _) = ask(&budget, &answers, &daemon, 50 * CHUNK, Some(2 * CHUNK));
        assert_eq!((got, told(&outbox)), (Ok(()), vec![-(RESERVE as i64), 2 * CHUNK as i64]));
        let (got, offered) = ask(&budget, &answers, &daemon, 2 * CHUNK, Some(0));
        assert_eq!((got, offered, told(&outbox)), (Ok(()), 2 * CHUNK, vec![-(2 * CHUNK as i64)]));
        assert_eq!(budget.charge(Claim::Allowed, (0, 1), || Ok(())), Err(CUresult::OUT_OF_MEMORY));
    }

    #[test]
    fn what_is_on_its_way_here_is_offered_too() {
        let (budget, answers, daemon, _outbox) = budget();
        let take = |reserve| Some(Packet::Take { gpu: 0, bytes: 10 * CHUNK, reserve });
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| budget.charge(Claim::Asked, (0, 10 * CHUNK), || Ok(())));
            assert_eq!(daemon.receive().unwrap(), take(RESERVE));
            answers.reserved(0, 2 * CHUNK);
            answers.pass_on((Packet::Taken(None), None));
            assert_eq!(daemon.receive().unwrap(), take(RESERVE + 2 * CHUNK));
            answers.pass_on((Packet::Taken(Some(0)), None));
            assert_eq!(asked.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn what_the_driver_refuses_is_asked_for_again_where_others_can_make_room() {
        unsafe extern "C" fn get(free: *mut usize, _: *mut usize) -> CUresult {
            // SAFETY: the caller's to be written.
            unsafe { *free = 3 << 20 };
            CUresult::SUCCESS
        }
        let (budget, answers, daemon, _outbox) = budget();
        let bytes = 10 * CHUNK;
        let next = || daemon.receive::<Packet>().unwrap().unwrap();
        let granted = || {
            assert!(matches!(next(), Packet::Take { .. }));
            answers.pass_on((Packet::Taken(Some(RESERVE)), None));
        };
        let charge = |mut refusals: i32| {
            budget.charge(Claim::Asked, (0, bytes), || {
                refusals -= 1;
                if refusals < 0 { Ok(()) } else { Err(CUresult::OUT_OF_MEMORY) }
            })
        };
        // The ballast is given up first, and then there is nobody to make room.
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| charge(2));
            granted();
            assert_eq!(asked.join().unwrap(), Err(CUresult::OUT_OF_MEMORY));
            assert_eq!(next(), Packet::GiveBack { gpu: 0, bytes });
        });
        budget.overcommits(Some(get));
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| charge(2));
            for _ in 0..2 {
                granted();
                assert_eq!(next(), Packet::GiveBack { gpu: 0, bytes });
                assert_eq!(next(), Packet::CardFull { gpu: 0, free: 3 << 20 });
            }
            granted();
            assert_eq!(asked.join().unwrap(), Ok(()));
        });
        assert_eq!(budget.taken(0), bytes);
    }

    /// A request may have to wait for memory that leaves, and that for threads that ask something
    /// else.
    #[test]
    fn a_request_that_waits_holds_no_other_question_up() {
        let (budget, answers, daemon, _outbox) = budget();
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| budget.charge(Claim::Asked, (0, 10 * CHUNK), || Ok(())));
            assert!(matches!(daemon.receive().unwrap(), Some(Packet::Take { .. })));
            let used = scope.spawn(|| budget.used(0));
            assert_eq!(daemon.receive().unwrap(), Some(Packet::QueryUsed { gpu: 0 }));
            answers.pass_on((Packet::Used(7), None));
            assert_eq!(used.join().unwrap(), Ok(7));
            let driver = scope.spawn(|| budget.take_for_driver(0, CHUNK));
            assert_eq!(daemon.receive().unwrap(), Some(Packet::TakeAtOnce { gpu: 0, bytes: CHUNK }));
            answers.pass_on((Packet::TakenAtOnce(true), None));
            assert_eq!(driver.join().unwrap(), Ok(()));
            assert_eq!(budget.taken(0), CHUNK);
            answers.pass_on((Packet::Taken(Some(RESERVE)), None));
            assert_eq!(asked.join().unwrap(), Ok(()));
        });
        assert_eq!(budget.taken(0), 11 * CHUNK);
        budget.give_back(0, 4 * CHUNK);
        let refused = budget.charge(Claim::Allowed, (0, CHUNK), || Err::<(), _>(CUresult::UNKNOWN));
        assert_eq!((refused, budget.taken(0)), (Err(CUresult::UNKNOWN), 7 * CHUNK));
    }

    #[test]
    fn without_memory_behind_it_what_is_kept_is_for_who_waits() {
        let (budget, answers, daemon, outbox) = budget();
        assert_eq!(budget.begin(0, RESERVE, None), 0);
        let (got, offered) = ask(&budget, &answers, &daemon, CHUNK, Some(RESERVE - CHUNK));
        assert_eq!((got, offered, told(&outbox)), (Ok(()), RESERVE, vec![]));
        assert_eq!(budget.charge(Claim::Allowed, (0, 1), || Ok(())), Err(CUresult::OUT_OF_MEMORY));
    }

    #[test]
    fn a_card_that_is_short_of_memory_refuses_only_who_waits() {
        let (budget, answers, daemon, outbox) = budget();
        let mut calls = 0;
        let mut second = || {
            calls += 1;
            if calls == 2 { Ok(()) } else { Err(CUresult::OUT_OF_MEMORY) }
        };
        assert_eq!(budget.charge(Claim::Allowed, (0, CHUNK), &mut second), Ok(()));
        assert!(told(&outbox).is_empty(), "what was sent meanwhile is still allowed");
        assert_eq!(budget.charge(Claim::Allowed, (0, CHUNK), || Ok(())), Ok(()));
        let of_others = budget.charge(Claim::Allowed, (0, CHUNK), || Err::<(), _>(CUresult::OUT_OF_MEMORY));
        assert_eq!(of_others, Err(CUresult::OUT_OF_MEMORY));
        for _ in 0..3 {
            assert_eq!(daemon.receive().unwrap(), Some(Packet::Spend { gpu: 0, bytes: CHUNK }));
        }
        assert_eq!(daemon.receive().unwrap(), Some(Packet::GiveBack { gpu: 0, bytes: CHUNK }));
        assert!(matches!(outbox.take_pushes()[..], [Push::Notice(_)]), "and the user is told why");
        let (got, _) = ask(&budget, &answers, &daemon, CHUNK, Some(5 * CHUNK));
        assert_eq!((got, told(&outbox)), (Ok(()), vec![-5 * CHUNK as i64, 5 * CHUNK as i64]));
    }
}
