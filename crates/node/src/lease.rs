//! The books of a node: which lease holds what of each GPU, and how much memory its sessions have
//! taken.
//!
//! Pure state: the daemon asks, the books answer. Limits belong to the lease and count over all its
//! sessions, so a program that starts ten processes gets no more than one that starts one. What a
//! session took is on its own account as well, which is how a worker killed in the middle of
//! anything gives back exactly what it had.

use std::collections::{BTreeMap, BTreeSet};

use crate::arbiter::{PPM, Weight};

/// One GPU that the node divides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// As the driver names it.
    pub name: String,
    /// Whole device memory in bytes.
    pub memory: u64,
}

/// What a client asks for, per GPU where it is an amount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Number of distinct GPUs.
    pub gpus: u32,
    /// Share of each GPU's compute, 1 to 1,000,000.
    pub share_ppm: u32,
    /// Bytes on each GPU; 0 asks for the same part of the memory as of the compute.
    pub memory: u64,
    /// The most that it gets of each GPU's compute, also while the GPU would be idle otherwise: not
    /// below the share, and 1,000,000 for no limit.
    pub limit_ppm: u32,
    /// Of each GPU, all leases together may have so much; more than a GPU where its pool is
    /// overcommitted.
    pub promised_ppm: u32,
    /// Its work preempts that of others as long as it stays within its share.
    pub premium: bool,
}

impl Ask {
    /// Of all its GPUs together, in millionths of one.
    pub fn share_ppm_in_all(&self) -> u64 {
        u64::from(self.gpus) * u64::from(self.share_ppm)
    }

    /// Whether its memory stays on its GPUs where memory is overcommitted: it must not be away when
    /// premium work arrives, and one that waits for memory on a GPU must hold none of another.
    fn is_fixed(&self) -> bool {
        self.premium || self.gpus != 1
    }
}

/// What is to become of a lease, as far as it is named; the rest stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resize {
    pub share_ppm: Option<u32>,
    /// Bytes on each GPU.
    pub memory: Option<u64>,
    /// 0 for a limit that equals the share. A limit that equals the share continues doing so unless
    /// another one is named.
    pub limit_ppm: Option<u32>,
    /// As [`Ask::promised_ppm`].
    pub promised_ppm: Option<u32>,
}

/// What was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// Bytes of one session on one GPU of its lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Account {
    /// What it uses.
    taken: u64,
    /// The part of `taken` that is not on the GPU now.
    swapped: u64,
    /// The part of `taken` that the session still waits for.
    awaited: u64,
    /// What is kept for it, so that its client may use it unasked. Nobody else gets it, and nobody
    /// is shown it as used.
    reserve: u64,
}

impl Account {
    fn has(&self) -> u64 {
        self.taken.saturating_sub(self.awaited)
    }
}

/// Most bytes that are kept for a session on a GPU, and the part of its lease that they are at
/// most.
const RESERVE_MAX: u64 = 256 << 20;
const RESERVE_PART: u64 = 64;
/// Reserves grow in steps of what sessions commit at least.
const RESERVE_STEP: u64 = 2 << 20;

/// Why a lease is refused; the text is what the user reads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("a share is more than 0 and at most 1 (0.25 is a quarter of a GPU)")]
    Share,
    #[error("a limit of compute is not below the share ({share}), and this one is {limit}")]
    Limit { share: String, limit: String },
    #[error("a lease has at least one GPU, and this node has {0}")]
    Count(usize),
    #[error("{asked} of memory are more than any GPU of this node has; the largest has {largest}")]
    LargerThanAnyGpu { asked: String, largest: String },
    #[error(
        "no {count} with {share} of the compute and {memory} of memory free; free now: {free}. Ask for less (-p, \
         --memory) or wait for a session to end (`sluice sessions` lists them)"
    )]
    NothingFree { count: String, share: String, memory: String, free: String },
    #[error(
        "GPU {gpu} has no room for that: beside the other leases there, this one can have up to {share} of the compute and \
         {memory} of memory"
    )]
    NoRoom { gpu: usize, share: String, memory: String },
    #[error(
        "its programs hold {held} of memory on GPU {gpu}, {reserved} of it set aside for their next allocations; a lease \
         cannot have less than that. Free memory in the program first, or ask for at least {held}"
    )]
    Held { gpu: usize, held: String, reserved: String },
    #[error(
        "{share} of the compute of GPU {gpu} are free now, and the lease had {asked} when it was suspended: end or suspend \
         another one, or give this one less (`sluice resize`)"
    )]
    NotResumed { gpu: usize, share: String, asked: String },
    #[error(
        "{free} of the memory of GPU {gpu} are free now, and the lease needs {asked}: end or suspend another one, or give this one \
         less (`sluice resize --memory`)"
    )]
    NoMemoryToResume { gpu: usize, free: String, asked: String },
    #[error("there is no such lease any more")]
    Gone,
}

/// How far the memory of GPUs is leased beyond what they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overcommit {
    /// All leases of a GPU together may have so many millionths of its memory.
    pub memory_ppm: u64,
    /// Bytes of host memory for what is not on the GPUs.
    pub swap_memory: u64,
}

/// Everything that is leased on this node.
#[derive(Debug, Default)]
pub struct Books {
    cards: Vec<Card>,
    leases: BTreeMap<u64, Lease>,
    /// Set where leases may have more memory together than the GPUs.
    overcommit: Option<Overcommit>,
}

impl Books {
    /// A node with these GPUs and no lease.
    pub fn new(cards: Vec<Card>) -> Books {
        Books { cards, leases: BTreeMap::new(), overcommit: None }
    }

    /// Leases memory beyond what the GPUs have from now on.
    pub fn with_overcommit(self, overcommit: Overcommit) -> Books {
        Books { overcommit: Some(overcommit), ..self }
    }

    pub fn cards(&self) -> &[Card] {
        &self.cards
    }

    pub fn lease(&self, id: u64) -> Option<&Lease> {
        self.leases.get(&id)
    }

    /// Guaranteed share that all leases together have of a GPU.
    pub fn leased_ppm(&self, gpu: usize) -> u64 {
        self.on(gpu).map(|l| u64::from(l.held_ppm())).sum()
    }

    /// Bytes of a GPU that all leases together keep from others.
    pub fn leased_memory(&self, gpu: usize) -> u64 {
        self.on(gpu).map(|lease| self.held_memory(lease, gpu)).sum()
    }

    /// Bytes of a GPU that a lease keeps from others. One that is suspended keeps all where memory
    /// is overcommitted, so that it can always be resumed.
    fn held_memory(&self, lease: &Lease, gpu: usize) -> u64 {
        if self.overcommit.is_none() && lease.vacated { lease.resident_on(gpu) } else { lease.memory }
    }

    /// The most memory that another lease can have on a GPU.
    pub fn free_memory(&self, gpu: usize) -> u64 {
        self.memory_beside(None, gpu, false)
    }

    /// The most memory that a lease can have on a GPU beside all leases but one. A fixed one never
    /// leaves the GPU.
    ///
    /// Where memory is overcommitted, each lease has to fit beside those that are fixed, and all
    /// that may have to leave a GPU at a time have to fit in host memory: so nothing that is
    /// granted here has to be refused later.
    fn memory_beside(&self, except: Option<u64>, gpu: usize, is_fixed: bool) -> u64 {
        let others =
            || self.leases.iter().filter(move |(id, _)| Some(**id) != except).map(|(_, lease)| lease);
        let on_gpu = |gpu: usize| others().filter(move |lease| lease.gpus.contains(&gpu));
        let card = self.cards[gpu].memory;
        let leased: u64 = on_gpu(gpu).map(|lease| self.held_memory(lease, gpu)).sum();
        let Some(overcommit) = self.overcommit else { return card.saturating_sub(leased) };
        let promised = share_of(card, overcommit.memory_ppm).saturating_sub(leased);
        let fixed = |gpu| on_gpu(gpu).filter(|lease| lease.is_fixed()).map(|lease| lease.memory).sum::<u64>();
        let movable = |gpu| on_gpu(gpu).filter(|lease| !lease.is_fixed()).map(|lease| lease.memory);
        let mut alone = card.saturating_sub(fixed(gpu));
        if is_fixed {
            alone = alone.saturating_sub(movable(gpu).max().unwrap_or(0));
        }
        let swapped_elsewhere = |other: usize| {
            let leased: u64 = on_gpu(other).map(|lease| lease.memory).sum();
            if leased > self.cards[other].memory { movable(other).sum() } else { 0 }
        };
        let elsewhere: u64 = (0..self.cards.len()).filter(|other| *other != gpu).map(swapped_elsewhere).sum();
        let swap_left =
            overcommit.swap_memory.saturating_sub(elsewhere.saturating_add(movable(gpu).sum::<u64>()));
        // One that is fixed leaves for nobody, but others may have to leave for it.
        let swappable = if is_fixed && swap_left > 0 { card } else { swap_left };
        let without_swapping = card.saturating_sub(leased);
        promised.min(alone).min(swappable.max(without_swapping))
    }

    /// Bytes that all sessions together have on a GPU now.
    pub fn used_memory(&self, gpu: usize) -> u64 {
        self.on(gpu).map(|l| l.resident_on(gpu)).sum()
    }

    /// Bytes of all sessions that are in host memory.
    pub fn swapped(&self) -> u64 {
        let accounts = self.leases.values().flat_map(|lease| lease.sessions.values().flatten());
        accounts.map(|account| account.swapped).sum()
    }

    fn on(&self, gpu: usize) -> impl Iterator<Item = &Lease> {
        self.leases.values().filter(move |l| l.gpus.contains(&gpu))
    }

    /// Enters a lease, on the fullest GPUs that still have room, so that large requests find room
    /// later.
    pub fn grant(&mut self, id: u64, ask: Ask) -> Result<&Lease, Refusal> {
        check_compute(ask.share_ppm, ask.limit_ppm)?;
        let count = ask.gpus as usize;
        if count == 0 || count > self.cards.len() {
            return Err(Refusal::Count(self.cards.len()));
        }
        let largest = self.cards.iter().map(|c| c.memory).max().unwrap_or(0);
        if ask.memory > largest {
            let (asked, largest) = (bytes_text(ask.memory), bytes_text(largest));
            return Err(Refusal::LargerThanAnyGpu { asked, largest });
        }
        let mut fitting: Vec<usize> = (0..self.cards.len()).filter(|&gpu| self.fits(gpu, &ask)).collect();
        if fitting.len() < count {
            return Err(self.nothing_free(&ask));
        }
        fitting.sort_by_key(|&gpu| PPM.saturating_sub(self.leased_ppm(gpu)));
        fitting.truncate(count);
        fitting.sort_unstable();
        Ok(self.enter(id, ask, fitting))
    }

    /// Enters a lease on the GPUs that somebody else has chosen.
    pub fn grant_on(&mut self, id: u64, ask: Ask, gpus: &[usize]) -> Result<&Lease, Refusal> {
        check_compute(ask.share_ppm, ask.limit_ppm)?;
        let distinct: BTreeSet<usize> = gpus.iter().copied().collect();
        let all_there = distinct.iter().all(|&gpu| gpu < self.cards.len());
        if gpus.is_empty() || distinct.len() != gpus.len() || !all_there {
            return Err(Refusal::Count(self.cards.len()));
        }
        if !gpus.iter().all(|&gpu| self.fits(gpu, &ask)) {
            return Err(self.nothing_free(&ask));
        }
        Ok(self.enter(id, ask, gpus.to_vec()))
    }

    /// Changes what a lease has, on the GPUs that it has. Nothing is changed by a refusal.
    pub fn resize(&mut self, id: u64, resize: &Resize) -> Result<&Lease, Refusal> {
        let lease = self.leases.get(&id).ok_or(Refusal::Gone)?;
        let ask = resize.of(lease);
        check_compute(ask.share_ppm, ask.limit_ppm)?;
        for (place, &gpu) in lease.gpus.iter().enumerate() {
            let most_ppm = self.free_ppm_but(id, gpu, &ask);
            // Memory that has left the GPU needs room there when the lease is resumed.
            let most_memory = match self.overcommit {
                None if lease.vacated => self.cards[gpu].memory,
                _ => self.memory_beside(Some(id), gpu, lease.is_fixed()),
            };
            // What it has already is never too much: its pool may promise less than it did.
            let is_more = ask.share_ppm > lease.held_ppm() && !lease.suspended || ask.memory > lease.memory;
            let counted_ppm = if lease.suspended { 0 } else { u64::from(ask.share_ppm) };
            if is_more && (counted_ppm > most_ppm || ask.memory > most_memory) {
                let (share, memory) = (percent_text(most_ppm), bytes_text(most_memory));
                return Err(Refusal::NoRoom { gpu, share, memory });
            }
            let (used, reserved) = (lease.used(place), lease.reserves(place));
            if ask.memory < lease.memory && ask.memory < used + reserved {
                let (held, reserved) = (bytes_text(used + reserved), bytes_text(reserved));
                return Err(Refusal::Held { gpu, held, reserved });
            }
        }
        let lease = self.leases.get_mut(&id).ok_or(Refusal::Gone)?;
        lease.memory = ask.memory;
        lease.ask = ask;
        Ok(lease)
    }

    /// Gives the compute of a lease back. Its memory stays its own until it has left the GPUs, when
    /// it is vacated.
    pub fn suspend(&mut self, id: u64) -> Result<&Lease, Refusal> {
        let lease = self.leases.get_mut(&id).ok_or(Refusal::Gone)?;
        lease.suspended = true;
        Ok(lease)
    }

    /// The memory of all sessions of a suspended lease has left the GPUs, as far as it can: what is
    /// free of it there is for others.
    pub fn vacate(&mut self, id: u64) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.vacated = lease.suspended;
        }
    }

    /// `moved` bytes of a session have left each of its GPUs.
    pub fn moved_out(&mut self, lease: u64, session: u64, moved: &[u64]) {
        let accounts = self.leases.get_mut(&lease).and_then(|lease| lease.sessions.get_mut(&session));
        for (account, bytes) in accounts.into_iter().flatten().zip(moved) {
            account.swapped = account.swapped.saturating_add(*bytes).min(account.taken);
        }
    }

    /// All bytes of a session are on its GPUs again.
    pub fn moved_in(&mut self, lease: u64, session: u64) {
        let accounts = self.leases.get_mut(&lease).and_then(|lease| lease.sessions.get_mut(&session));
        accounts.into_iter().flatten().for_each(|account| account.swapped = 0);
    }

    /// Takes the compute of a suspended lease again, and the room for its memory, if both are free.
    pub fn resume(&mut self, id: u64) -> Result<&Lease, Refusal> {
        let lease = self.leases.get(&id).ok_or(Refusal::Gone)?;
        let most_ppm = |gpu: &usize| (self.free_ppm_but(id, *gpu, &lease.ask), *gpu);
        let scarcest = lease.gpus.iter().map(most_ppm).min();
        if let Some((most_ppm, gpu)) = scarcest
            && lease.suspended
            && most_ppm < u64::from(lease.ask.share_ppm)
        {
            let (share, asked) = (percent_text(most_ppm), percent_text(lease.ask.share_ppm.into()));
            return Err(Refusal::NotResumed { gpu, share, asked });
        }
        for &gpu in &lease.gpus {
            let free = self.memory_beside(Some(id), gpu, lease.is_fixed());
            if self.overcommit.is_none() && lease.vacated && free < lease.memory {
                let (free, asked) = (bytes_text(free), bytes_text(lease.memory));
                return Err(Refusal::NoMemoryToResume { gpu, free, asked });
            }
        }
        let lease = self.leases.get_mut(&id).ok_or(Refusal::Gone)?;
        (lease.suspended, lease.vacated) = (false, false);
        Ok(lease)
    }

    fn enter(&mut self, id: u64, ask: Ask, gpus: Vec<usize>) -> &Lease {
        let memory = gpus.iter().map(|&gpu| self.memory_of(gpu, &ask)).min().unwrap_or(0);
        let shared = vec![0; gpus.len()];
        let (suspended, vacated) = (false, false);
        let lease = Lease { ask, gpus, memory, suspended, vacated, sessions: BTreeMap::new(), shared };
        self.leases.entry(id).insert_entry(lease).into_mut()
    }

    fn fits(&self, gpu: usize, ask: &Ask) -> bool {
        let memory = self.memory_of(gpu, ask);
        u64::from(ask.share_ppm) <= self.free_ppm(gpu, ask)
            && memory <= self.memory_beside(None, gpu, ask.is_fixed())
    }

    /// What a lease that asks for this may have of a GPU. A whole GPU is nobody else's, however
    /// much is promised of its parts.
    fn free_ppm(&self, gpu: usize, ask: &Ask) -> u64 {
        free_beside(self.on(gpu), ask)
    }

    /// The same for the lease of this number, which has a part of the GPU already.
    fn free_ppm_but(&self, id: u64, gpu: usize, ask: &Ask) -> u64 {
        let others = self.leases.iter().filter(|(other, lease)| **other != id && lease.gpus.contains(&gpu));
        free_beside(others.map(|(_, lease)| lease), ask)
    }

    fn memory_of(&self, gpu: usize, ask: &Ask) -> u64 {
        match ask.memory {
            0 => share_of(self.cards[gpu].memory, ask.share_ppm.into()),
            bytes => bytes,
        }
    }

    fn nothing_free(&self, ask: &Ask) -> Refusal {
        let free: Vec<String> = self
            .cards
            .iter()
            .enumerate()
            .map(|(gpu, card)| {
                let share = self.free_ppm(gpu, ask);
                let memory = self.memory_beside(None, gpu, ask.is_fixed());
                format!("GPU {gpu} ({}) {} and {}", card.name, percent_text(share), bytes_text(memory))
            })
            .collect();
        let smallest = (0..self.cards.len()).map(|gpu| self.memory_of(gpu, ask)).min().unwrap_or(0);
        Refusal::NothingFree {
            count: if ask.gpus == 1 { "GPU".into() } else { format!("{} GPUs", ask.gpus) },
            share: percent_text(u64::from(ask.share_ppm)),
            memory: bytes_text(smallest),
            free: free.join(", "),
        }
    }

    /// Strikes a lease out. Its sessions' accounts go with it.
    pub fn end(&mut self, id: u64) -> Option<Lease> {
        self.leases.remove(&id)
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

impl Lease {
    /// The part of each GPU's compute that nobody else may have.
    pub(crate) fn held_ppm(&self) -> u32 {
        if self.suspended { 0 } else { self.ask.share_ppm }
    }

    /// What the arbiter divides GPU time by.
    pub(crate) fn weight(&self) -> Weight {
        let Ask { share_ppm, limit_ppm, premium, .. } = self.ask;
        Weight { share_ppm, limit_ppm, premium }
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

    /// Bytes that one session has in host memory.
    pub fn swapped_by(&self, session: u64) -> u64 {
        self.sessions.get(&session).map_or(0, |all| all.iter().map(|account| account.swapped).sum())
    }

    /// Bytes that one session has in host memory, of one GPU of the lease.
    pub(crate) fn swapped_by_on(&self, session: u64, gpu: usize) -> u64 {
        self.sessions.get(&session).and_then(|all| all.get(gpu)).map_or(0, |account| account.swapped)
    }

    /// Bytes that one session has on all its GPUs, without those that it waits for.
    pub fn used_by(&self, session: u64) -> u64 {
        self.sessions.get(&session).map_or(0, |accounts| accounts.iter().map(Account::has).sum())
    }

    /// The same on one GPU of the lease.
    pub(crate) fn used_by_on(&self, session: u64, gpu: usize) -> u64 {
        self.sessions.get(&session).and_then(|accounts| accounts.get(gpu)).map_or(0, Account::has)
    }

    /// Bytes that are nobody's.
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

impl Resize {
    /// What the lease would have been asked for as.
    fn of(&self, lease: &Lease) -> Ask {
        let before = &lease.ask;
        let share_ppm = self.share_ppm.unwrap_or(before.share_ppm);
        let was_capped = before.limit_ppm == before.share_ppm && u64::from(before.limit_ppm) < PPM;
        let limit_ppm = match self.limit_ppm {
            Some(0) => share_ppm,
            Some(limit_ppm) => limit_ppm,
            None if was_capped => share_ppm,
            None => before.limit_ppm,
        };
        Ask {
            gpus: before.gpus,
            share_ppm,
            memory: self.memory.unwrap_or(lease.memory),
            limit_ppm,
            promised_ppm: self.promised_ppm.unwrap_or(before.promised_ppm),
            premium: before.premium,
        }
    }
}

fn check_compute(share_ppm: u32, limit_ppm: u32) -> Result<(), Refusal> {
    if share_ppm == 0 || u64::from(share_ppm) > PPM {
        return Err(Refusal::Share);
    }
    if limit_ppm < share_ppm || u64::from(limit_ppm) > PPM {
        let (share, limit) = (percent_text(share_ppm.into()), percent_text(limit_ppm.into()));
        return Err(Refusal::Limit { share, limit });
    }
    Ok(())
}

/// Millionths of a GPU that a lease may have beside these. A whole GPU is one lease's alone,
/// however much is promised of its parts.
fn free_beside<'a>(others: impl Iterator<Item = &'a Lease>, ask: &Ask) -> u64 {
    let is_whole = |share_ppm: u32| u64::from(share_ppm) == PPM;
    let (mut leased_ppm, mut one_alone) = (0, is_whole(ask.share_ppm));
    for lease in others {
        leased_ppm += u64::from(lease.held_ppm());
        one_alone |= is_whole(lease.held_ppm());
    }
    let promised_ppm = if one_alone { PPM } else { u64::from(ask.promised_ppm) };
    promised_ppm.saturating_sub(leased_ppm)
}

/// `share_ppm` millionths of an amount, rounded down.
fn share_of(amount: u64, share_ppm: u64) -> u64 {
    (u128::from(amount) * u128::from(share_ppm) / u128::from(PPM)) as u64
}

/// `8.0 GiB`, as the messages of a node write sizes.
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

fn percent_text(ppm: u64) -> String {
    let percent = ppm as f64 / 10_000.0;
    if percent.fract() == 0.0 { format!("{percent:.0} %") } else { format!("{percent:.2} %") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn node(cards: usize) -> Books {
        Books::new(vec![Card { name: "software GPU".into(), memory: 16 * GIB }; cards])
    }

    fn ask(share_ppm: u32, memory: u64) -> Ask {
        let whole = PPM as u32;
        Ask { gpus: 1, share_ppm, memory, limit_ppm: whole, promised_ppm: whole, premium: false }
    }

    #[test]
    fn a_lease_grows_and_shrinks_within_its_gpu() {
        let mut books = node(1);
        books.grant(1, ask(500_000, 8 * GIB)).unwrap();
        books.grant(2, ask(250_000, 4 * GIB)).unwrap();
        let share = |share_ppm| Resize { share_ppm: Some(share_ppm), ..Resize::default() };
        let memory = |memory| Resize { memory: Some(memory), ..Resize::default() };
        let refusal = books.resize(2, &share(500_001)).unwrap_err().to_string();
        assert!(refusal.contains("up to 50 % of the compute and 8.0 GiB"), "{refusal}");
        let refusal = books.resize(2, &memory(8 * GIB + 1)).unwrap_err().to_string();
        assert!(refusal.contains("up to 50 % of the compute and 8.0 GiB"), "{refusal}");
        assert_eq!((books.leased_ppm(0), books.leased_memory(0)), (750_000, 12 * GIB), "nothing has changed");
        let lease = books.resize(2, &Resize { memory: Some(8 * GIB), ..share(500_000) }).unwrap();
        assert_eq!((lease.ask.share_ppm, lease.memory), (500_000, 8 * GIB));
        books.resize(1, &Resize { memory: Some(GIB), ..share(1) }).unwrap();
        books.resize(2, &share(999_999)).unwrap();
        assert_eq!((books.leased_ppm(0), books.leased_memory(0)), (1_000_000, 9 * GIB));
        assert_eq!(books.resize(2, &share(0)), Err(Refusal::Share));
        assert_eq!(books.resize(3, &share(1)), Err(Refusal::Gone));
    }

    fn overcommitted(cards: usize, swap_memory: u64) -> Books {
        node(cards).with_overcommit(Overcommit { memory_ppm: 2_000_000, swap_memory })
    }

    #[test]
    fn memory_is_leased_beyond_the_gpu_as_far_as_it_can_be_swapped() {
        let mut books = overcommitted(1, 30 * GIB);
        books.grant(1, ask(100_000, 11 * GIB)).unwrap();
        books.grant(2, ask(100_000, 11 * GIB)).unwrap();
        // All three may have left the GPU when the fourth returns.
        assert_eq!(books.free_memory(0), 8 * GIB);
        let refusal = books.grant(3, ask(100_000, 9 * GIB)).unwrap_err().to_string();
        assert!(refusal.contains("80 % and 8.0 GiB"), "{refusal}");
        books.grant(3, ask(100_000, 8 * GIB)).unwrap();
        assert_eq!((books.leased_memory(0), books.free_memory(0)), (30 * GIB, 0));
        let refusal = books.resize(3, &Resize { memory: Some(9 * GIB), ..Resize::default() });
        assert!(refusal.unwrap_err().to_string().contains("up to 80 % of the compute and 8.0 GiB"));
        // A suspended lease can always be resumed.
        books.suspend(1).unwrap();
        books.vacate(1);
        assert_eq!(books.leased_memory(0), 30 * GIB);
        books.resume(1).unwrap();
        assert!(!books.lease(1).unwrap().suspended);
    }

    #[test]
    fn without_host_memory_a_gpu_is_not_overcommitted() {
        let mut books = overcommitted(2, GIB);
        books.grant_on(1, ask(100_000, 10 * GIB), &[0]).unwrap();
        assert_eq!((books.free_memory(0), books.free_memory(1)), (6 * GIB, 16 * GIB));
        books.grant_on(2, ask(100_000, 6 * GIB), &[0]).unwrap();
        assert_eq!(books.free_memory(0), 0);
    }

    #[test]
    fn no_lease_has_more_than_the_gpu_leaves_beside_those_that_are_fixed() {
        let mut books = overcommitted(1, 100 * GIB);
        let premium = |memory| Ask { premium: true, ..ask(100_000, memory) };
        books.grant(1, premium(6 * GIB)).unwrap();
        assert_eq!(books.free_memory(0), 10 * GIB);
        books.grant(2, ask(100_000, 10 * GIB)).unwrap();
        assert!(books.grant(3, premium(GIB)).is_err(), "lease 2 could never be on the GPU");
        books.grant(3, ask(100_000, 10 * GIB)).unwrap();
        assert_eq!((books.leased_memory(0), books.free_memory(0)), (26 * GIB, 6 * GIB));
    }

    #[test]
    fn two_gpus_share_the_host_memory() {
        let mut books = overcommitted(2, 40 * GIB);
        for (id, gpu) in [(1, 0), (2, 0), (3, 1)] {
            books.grant_on(id, ask(100_000, 12 * GIB), &[gpu]).unwrap();
        }
        // 24 GiB of the first GPU's leases may be in host memory.
        assert_eq!((books.free_memory(0), books.free_memory(1)), (8 * GIB, 4 * GIB));
        let both = Ask { gpus: 2, ..ask(100_000, GIB) };
        books.grant(4, both).expect("it leaves no GPU, and others have host memory to leave for");
    }

    #[test]
    fn memory_that_a_session_waits_for_is_not_shown_as_used() {
        let mut books = overcommitted(1, 40 * GIB);
        books.grant(1, ask(100_000, 8 * GIB)).unwrap();
        books.open_session(1, 10);
        assert_eq!(books.fill_reserve(1, 10, 0), 0, "nothing is kept on the GPU for later");
        books.take(1, 10, 0, 3 * GIB, 0).unwrap();
        books.await_bytes(1, 10, 0, 2 * GIB);
        let lease = books.lease(1).unwrap();
        assert_eq!((lease.used(0), lease.used_by(10), books.used_memory(0)), (3 * GIB, GIB, GIB));
        assert_eq!(books.arrived(1, 10, 0), 2 * GIB);
        assert_eq!((books.lease(1).unwrap().used_by(10), books.used_memory(0)), (3 * GIB, 3 * GIB));
        assert_eq!(books.arrived(1, 10, 0), 0);
    }

    #[test]
    fn memory_that_sessions_hold_stays_theirs() {
        let mut books = node(1);
        books.grant(1, ask(500_000, 8 * GIB)).unwrap();
        books.open_session(1, 10);
        books.take(1, 10, 0, 3 * GIB, 0).unwrap();
        let reserved = books.fill_reserve(1, 10, 0);
        let memory = |memory| Resize { memory: Some(memory), ..Resize::default() };
        let refusal = books.resize(1, &memory(3 * GIB)).unwrap_err().to_string();
        assert!(refusal.contains("hold 3.1 GiB") && refusal.contains("128.0 MiB of it"), "{refusal}");
        books.resize(1, &memory(3 * GIB + reserved)).unwrap();
        assert!(books.take(1, 10, 0, 1, 0).is_none(), "the new limit counts at once");
        assert_eq!(books.take(1, 10, 0, reserved, reserved), Some(0), "and what was set aside can be used");
        books.resize(1, &memory(16 * GIB)).unwrap();
        assert!(books.take(1, 10, 0, 12 * GIB, 0).is_some(), "so does one that is raised");
    }

    #[test]
    fn the_compute_of_a_suspended_lease_is_free_and_its_memory_is_not() {
        let mut books = node(1);
        books.grant(1, ask(750_000, 12 * GIB)).unwrap();
        books.suspend(1).unwrap();
        assert_eq!((books.leased_ppm(0), books.leased_memory(0)), (0, 12 * GIB));
        assert!(books.grant(2, ask(500_000, 5 * GIB)).is_err(), "its memory is its own");
        books.grant(2, ask(500_000, 4 * GIB)).unwrap();
        let refusal = books.resume(1).unwrap_err().to_string();
        assert!(refusal.contains("50 % of the compute of GPU 0 are free now"), "{refusal}");
        assert!(books.lease(1).unwrap().suspended);
        let share = |share_ppm| Resize { share_ppm: Some(share_ppm), ..Resize::default() };
        books.resize(1, &share(900_000)).expect("it counts only when it is resumed");
        assert!(books.resume(1).is_err());
        books.resize(1, &share(500_000)).unwrap();
        books.resume(1).unwrap();
        assert_eq!(books.leased_ppm(0), 1_000_000);
        books.resume(1).expect("resuming twice is harmless");
        books.end(1);
        books.grant(3, ask(500_000, GIB)).unwrap();
    }

    #[test]
    fn memory_that_has_left_the_gpu_is_free_until_its_lease_is_resumed() {
        let mut books = node(1);
        books.grant(1, ask(250_000, 12 * GIB)).unwrap();
        books.open_session(1, 10);
        books.take(1, 10, 0, 10 * GIB, 0).unwrap();
        books.moved_out(1, 10, &[GIB]);
        books.vacate(1);
        assert_eq!(books.leased_memory(0), 12 * GIB, "it is not suspended");
        books.moved_in(1, 10);
        books.suspend(1).unwrap();
        books.moved_out(1, 10, &[9 * GIB]);
        assert_eq!(
            (books.leased_memory(0), books.used_memory(0)),
            (12 * GIB, GIB),
            "others of it may follow"
        );
        books.vacate(1);
        assert_eq!((books.leased_memory(0), books.swapped()), (GIB, 9 * GIB), "a part cannot leave");
        assert_eq!(books.fill_reserve(1, 10, 0), 0, "nothing is set aside there meanwhile");
        let lease = books.lease(1).unwrap();
        assert_eq!((lease.used_by(10), lease.swapped_by(10)), (10 * GIB, 9 * GIB));
        books.resize(1, &Resize { memory: Some(14 * GIB), ..Resize::default() }).expect("it fits the GPU");
        books.grant(2, ask(250_000, 4 * GIB)).unwrap();
        let refusal = books.resume(1).unwrap_err().to_string();
        assert!(
            refusal.contains("12.0 GiB of the memory of GPU 0") && refusal.contains("needs 14.0 GiB"),
            "{refusal}"
        );
        assert!(books.lease(1).unwrap().suspended, "nothing has changed");
        books.resize(1, &Resize { memory: Some(12 * GIB), ..Resize::default() }).unwrap();
        books.resume(1).unwrap();
        assert_eq!(books.leased_memory(0), 16 * GIB, "its room is its own before its memory is back");
        books.moved_in(1, 10);
        assert_eq!((books.used_memory(0), books.swapped()), (10 * GIB, 0));
        books.moved_out(1, 10, &[u64::MAX]);
        assert_eq!(books.swapped(), 10 * GIB, "no more than there is");
        books.close_session(1, 10);
        assert_eq!((books.swapped(), books.used_memory(0)), (0, 0));
    }

    #[test]
    fn a_hard_cap_follows_the_share_and_another_limit_stays() {
        let mut books = node(1);
        let capped = Ask { limit_ppm: 250_000, ..ask(250_000, GIB) };
        books.grant(1, capped.clone()).unwrap();
        let resize = |share_ppm, limit_ppm| Resize { share_ppm, limit_ppm, ..Resize::default() };
        let mut check = |resize: Resize, expect: (u32, u32)| {
            let ask = &books.resize(1, &resize).unwrap().ask;
            assert_eq!((ask.share_ppm, ask.limit_ppm), expect, "{resize:?}");
        };
        check(resize(Some(500_000), None), (500_000, 500_000));
        check(resize(None, Some(750_000)), (500_000, 750_000));
        check(resize(Some(250_000), None), (250_000, 750_000));
        check(resize(None, Some(0)), (250_000, 250_000));
        check(resize(Some(100_000), Some(1_000_000)), (100_000, 1_000_000));
        check(resize(Some(1_000_000), None), (1_000_000, 1_000_000));
        check(resize(Some(100_000), None), (100_000, 1_000_000));
        let refusal = books.resize(1, &resize(None, Some(99_999))).unwrap_err().to_string();
        assert!(refusal.contains("not below the share (10 %)"), "{refusal}");
        assert!(matches!(books.grant(2, Ask { limit_ppm: 1, ..capped }), Err(Refusal::Limit { .. })));
    }

    #[test]
    fn a_lease_grows_to_a_whole_gpu_only_where_it_is_alone() {
        let mut books = node(1);
        let of_150 = |share_ppm| Ask { promised_ppm: 1_500_000, ..ask(share_ppm, GIB) };
        let share = |share_ppm| Resize { share_ppm: Some(share_ppm), ..Resize::default() };
        books.grant_on(1, of_150(750_000), &[0]).unwrap();
        books.grant_on(2, of_150(500_000), &[0]).unwrap();
        assert!(books.resize(1, &share(1_000_000)).is_err());
        books.resize(1, &share(999_999)).unwrap();
        books.end(2);
        books.resize(1, &share(1_000_000)).unwrap();
        // Its pool promises less than it did: what it has stays, and it can become less.
        books.grant_on(3, of_150(1), &[0]).unwrap_err();
        books.resize(1, &Resize { promised_ppm: Some(500_000), ..share(750_000) }).unwrap();
    }

    #[test]
    fn memory_follows_the_share_unless_named() {
        let mut books = node(1);
        assert_eq!(books.grant(1, ask(250_000, 0)).unwrap().memory, 4 * GIB);
        assert_eq!(books.grant(2, ask(250_000, GIB)).unwrap().memory, GIB);
        assert_eq!((books.leased_ppm(0), books.leased_memory(0)), (500_000, 5 * GIB));
    }

    #[test]
    fn shares_and_memory_are_never_oversold() {
        let mut books = node(1);
        books.grant(1, ask(750_000, GIB)).unwrap();
        let refusal = books.grant(2, ask(250_001, GIB)).unwrap_err().to_string();
        assert!(refusal.contains("GPU 0 (software GPU) 25 % and 15.0 GiB"), "{refusal}");
        books.grant(3, ask(250_000, 15 * GIB)).unwrap();
        assert!(books.grant(4, ask(1, 1)).is_err());
        books.end(3);
        books.grant(4, ask(1, 1)).unwrap();
    }

    #[test]
    fn parts_of_an_overcommitted_gpu_are_leased_up_to_what_the_grant_says() {
        let mut books = node(1);
        let of_150 = |share_ppm, memory| Ask { promised_ppm: 1_500_000, ..ask(share_ppm, memory) };
        books.grant_on(1, of_150(750_000, GIB), &[0]).unwrap();
        books.grant_on(2, of_150(750_000, GIB), &[0]).unwrap();
        assert_eq!(books.leased_ppm(0), 1_500_000);
        assert!(books.grant_on(3, of_150(1, GIB), &[0]).is_err());
        books.end(2);
        // The pool promises less than it did: what is there stays.
        assert!(books.grant_on(3, ask(250_001, GIB), &[0]).is_err());
        books.grant_on(3, ask(250_000, GIB), &[0]).unwrap();
        let refusal = books.grant_on(4, of_150(500_000, 15 * GIB), &[0]).unwrap_err().to_string();
        assert!(refusal.contains("50 % and 14.0 GiB"), "memory is leased once: {refusal}");
    }

    #[test]
    fn a_whole_gpu_is_alone_however_much_is_promised() {
        let mut books = node(1);
        let of_1000 = |share_ppm| Ask { promised_ppm: 10_000_000, ..ask(share_ppm, GIB) };
        books.grant_on(1, of_1000(1), &[0]).unwrap();
        assert!(books.grant_on(2, of_1000(1_000_000), &[0]).is_err(), "a part is leased");
        books.end(1);
        books.grant_on(2, of_1000(1_000_000), &[0]).unwrap();
        assert!(books.grant_on(3, of_1000(1), &[0]).is_err(), "the whole is leased");
    }

    #[test]
    fn senseless_requests_say_what_makes_sense() {
        let mut books = node(2);
        assert_eq!(books.grant(1, ask(0, 0)), Err(Refusal::Share));
        assert_eq!(books.grant(1, ask(1_000_001, 0)), Err(Refusal::Share));
        assert_eq!(books.grant(1, Ask { gpus: 3, ..ask(1, 0) }), Err(Refusal::Count(2)));
        assert_eq!(books.grant(1, Ask { gpus: 0, ..ask(1, 0) }), Err(Refusal::Count(2)));
        let refusal = books.grant(1, ask(1000, 17 * GIB)).unwrap_err().to_string();
        assert!(refusal.contains("17.0 GiB") && refusal.contains("16.0 GiB"), "{refusal}");
        assert!(books.grant(1, ask(1000, u64::MAX)).is_err());
    }

    #[test]
    fn several_gpus_are_distinct_and_fill_up_one_after_another() {
        let mut books = node(3);
        let first = books.grant(1, ask(100_000, GIB)).unwrap().gpus.clone();
        assert_eq!(books.grant(2, ask(100_000, GIB)).unwrap().gpus, first);
        let three = Ask { gpus: 3, ..ask(500_000, GIB) };
        assert_eq!(books.grant(3, three).unwrap().gpus, [0, 1, 2]);
    }

    #[test]
    fn a_chosen_place_is_taken_or_refused() {
        let mut books = node(2);
        assert_eq!(books.grant_on(1, ask(750_000, GIB), &[1]).unwrap().gpus, [1]);
        assert!(books.grant_on(2, ask(500_000, GIB), &[1]).is_err());
        assert_eq!(books.grant_on(2, Ask { gpus: 2, ..ask(250_000, GIB) }, &[1, 0]).unwrap().gpus, [1, 0]);
        for gpus in [&[][..], &[2], &[0, 0]] {
            assert_eq!(books.grant_on(3, ask(1, 1), gpus), Err(Refusal::Count(2)), "{gpus:?}");
        }
    }

    #[test]
    fn the_limit_counts_over_all_sessions_of_a_lease() {
        let mut books = node(1);
        books.grant(1, ask(500_000, 4 * GIB)).unwrap();
        assert!(books.open_session(1, 10) && books.open_session(1, 11));
        assert!(books.take(1, 10, 0, 3 * GIB, 0).is_some());
        assert!(books.take(1, 11, 0, 2 * GIB, 0).is_none());
        assert!(books.take(1, 11, 0, GIB, 0).is_some());
        assert!(books.take(1, 11, 0, 1, 0).is_none() && books.take(1, 10, 0, u64::MAX, 0).is_none());
        books.close_session(1, 10);
        assert_eq!(books.lease(1).unwrap().used(0), GIB);
        assert!(books.take(1, 11, 0, 3 * GIB, 0).is_some());
        books.give_back(1, 11, 0, u64::MAX);
        assert_eq!(books.lease(1).unwrap().used(0), 0);
    }

    #[test]
    fn shared_memory_counts_once_and_outlives_its_session() {
        let mut books = node(1);
        books.grant(1, ask(500_000, 4 * GIB)).unwrap();
        books.open_session(1, 10);
        books.open_session(1, 11);
        assert!(books.take(1, 10, 0, 3 * GIB, 0).is_some());
        assert!(!books.share(1, 11, 0, 1) && !books.share(1, 10, 0, 4 * GIB));
        assert!(books.share(1, 10, 0, 2 * GIB));
        assert_eq!(books.lease(1).unwrap().used(0), 3 * GIB);
        books.close_session(1, 10);
        assert_eq!(books.lease(1).unwrap().used(0), 2 * GIB);
        assert!(books.take(1, 11, 0, 3 * GIB, 0).is_none());
        books.unshare(1, 0, 2 * GIB);
        assert!(books.take(1, 11, 0, 4 * GIB, 0).is_some());
    }

    #[test]
    fn a_reserve_is_a_small_part_of_the_lease_and_nobody_elses() {
        const MIB: u64 = 1 << 20;
        let mut books = Books::new(vec![Card { name: "GPU".into(), memory: 100 * GIB }]);
        for (lease, memory, kept) in
            [(1, 64 * GIB, 256 * MIB), (2, GIB, 16 * MIB), (3, 255 * MIB, 2 * MIB), (4, 127 * MIB, 0)]
        {
            books.grant(lease, ask(1000, memory)).unwrap();
            books.open_session(lease, 10);
            assert_eq!(books.fill_reserve(lease, 10, 0), kept, "{memory}");
            assert_eq!(books.fill_reserve(lease, 10, 0), 0, "it is full");
            let lease = books.lease(lease).unwrap();
            assert_eq!((lease.used(0), lease.used_by(10)), (0, 0), "a reserve is not used");
        }
        // Of all of a lease its sessions together keep a thirty-second.
        for session in 11..100 {
            books.open_session(2, session);
            books.fill_reserve(2, session, 0);
        }
        assert_eq!(books.lease(2).unwrap().reserves(0), 32 * MIB);
        books.close_session(2, 10);
        assert_eq!(books.lease(2).unwrap().reserves(0), 16 * MIB);
    }

    #[test]
    fn a_session_gets_all_of_its_lease_with_its_reserve_and_no_more() {
        const MIB: u64 = 1 << 20;
        let mut books = node(1);
        books.grant(1, ask(500_000, 256 * MIB)).unwrap();
        books.open_session(1, 10);
        books.open_session(1, 11);
        assert_eq!((books.fill_reserve(1, 10, 0), books.fill_reserve(1, 11, 0)), (4 * MIB, 2 * MIB));
        books.spend(1, 10, 0, 2 * MIB);
        assert_eq!((books.lease(1).unwrap().used(0), books.fill_reserve(1, 10, 0)), (2 * MIB, 2 * MIB));
        assert_eq!(books.take(1, 10, 0, 100 * MIB, 4 * MIB), Some(4 * MIB), "what is left goes first");
        // 148 MiB are left, and 2 MiB are kept for the other.
        assert_eq!(books.take(1, 10, 0, 154 * MIB, 4 * MIB), None);
        assert_eq!(books.take(1, 10, 0, 150 * MIB, 0), None, "the reserve is in use");
        assert_eq!(books.take(1, 10, 0, 150 * MIB, 4 * MIB), Some(2 * MIB));
        assert_eq!(books.fill_reserve(1, 10, 0), 0, "nothing is left");
        assert_eq!(books.take(1, 11, 0, 2 * MIB, 2 * MIB), Some(0));
        assert_eq!(books.take(1, 10, 0, 2 * MIB, 2 * MIB), Some(0));
        assert_eq!(books.lease(1).unwrap().used(0), 256 * MIB);
        assert_eq!(books.take(1, 10, 0, 1, 0), None);
        books.close_session(1, 10);
        assert_eq!(books.lease(1).unwrap().used(0), 2 * MIB);
    }

    #[test]
    fn unknown_leases_sessions_and_gpus_get_nothing() {
        let mut books = node(1);
        assert!(!books.open_session(7, 1) && books.take(7, 1, 0, 1, 0).is_none());
        books.grant(7, ask(1000, GIB)).unwrap();
        assert!(books.take(7, 1, 0, 1, 0).is_none());
        books.open_session(7, 1);
        assert!(books.take(7, 1, 1, 1, 0).is_none());
    }
}
