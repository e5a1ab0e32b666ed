//! The table of all leases of a node: it grants, resizes, suspends and ends them, and says what is
//! left of each GPU.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::arbiter::PPM;
use crate::lease::ask::check_compute;
use crate::lease::refusal::{bytes_text, percent_text};
use crate::lease::{Ask, Card, Lease, Refusal, Resize};

/// How far the memory of GPUs is leased beyond what they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overcommit {
    /// The part of a GPU's memory that all of its leases may have together, in millionths.
    pub memory_ppm: u64,
    /// Bytes of host memory, and of a file, for what is not on the GPUs.
    pub swap_memory: u64,
}

impl Overcommit {
    /// Bytes of each GPU that may be leased, whatever is leased of the others: host memory has room
    /// for all of it. Each GPU has the part of host memory that its memory is of all GPUs', in
    /// sixteenths of its memory, so that equal GPUs, also those of equal machines, stay equal to
    /// the scheduler.
    pub fn leasable(&self, cards: &[Card]) -> Vec<u64> {
        let all: u128 = cards.iter().map(|card| u128::from(card.memory)).sum();
        let of_card = |card: &Card| {
            let part = u128::from(self.swap_memory) * u128::from(card.memory) / all.max(1);
            let part = u64::try_from(part).unwrap_or(u64::MAX);
            let steps = part / (card.memory / 16).max(1);
            let backed = steps.saturating_mul((card.memory / 16).max(1));
            share_of(card.memory, self.memory_ppm).min(backed).max(card.memory)
        };
        cards.iter().map(of_card).collect()
    }

    /// The GPUs of which less may be leased than was asked for, in words.
    pub fn shortages(&self, cards: &[Card]) -> impl Iterator<Item = String> {
        let leasable = self.leasable(cards).into_iter();
        let all =
            leasable.zip(cards).map(|(leasable, card)| (leasable, share_of(card.memory, self.memory_ppm)));
        let short = all.enumerate().filter(|(_, (leasable, wanted))| leasable < wanted);
        short.map(|(gpu, (leasable, wanted))| {
            format!(
                "of the memory of GPU {gpu} {} may be leased, not {}: there is too little --swap-memory and \
                 --swap-file ({}) for all that would have to leave GPUs",
                bytes_text(leasable),
                bytes_text(wanted),
                bytes_text(self.swap_memory)
            )
        })
    }
}

/// Everything that is leased on this node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Books {
    cards: Vec<Card>,
    pub(super) leases: BTreeMap<u64, Lease>,
    /// Set where leases may have more memory together than the GPUs.
    pub(super) overcommit: Option<Overcommit>,
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
        // A fixed lease never leaves for another, but others may have to leave for it.
        let swappable = if is_fixed && swap_left > 0 { card } else { swap_left };
        let without_swapping = card.saturating_sub(leased);
        promised.min(alone).min(swappable.max(without_swapping))
    }

    /// The GPUs of all leases.
    pub(crate) fn gpus(&self) -> impl Iterator<Item = usize> {
        self.leases.values().flat_map(|lease| lease.gpus.iter().copied())
    }

    /// Bytes that all sessions together have on a GPU now.
    pub fn used_memory(&self, gpu: usize) -> u64 {
        self.on(gpu).map(|l| l.resident_on(gpu)).sum()
    }

    /// The leases that keep no more of their GPUs than these bytes of each, since they are
    /// suspended and their memory has left.
    pub(crate) fn vacated(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let vacated = |(&id, lease): (&u64, &Lease)| Some((id, lease.stays_vacated()?));
        self.leases.iter().filter(|_| self.overcommit.is_none()).filter_map(vacated)
    }

    /// Bytes of all sessions that have left GPUs, and the part of them that is in a file.
    pub fn swapped(&self) -> (u64, u64) {
        let accounts = self.leases.values().flat_map(|lease| lease.sessions.values().flatten());
        accounts.fold((0, 0), |(all, file), account| (all + account.swapped, file + account.filed))
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

    /// Enters a lease on GPUs that the server has chosen.
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

    /// A lease of one GPU has another one from now on, where the caller has room for it.
    pub(crate) fn relocate(&mut self, id: u64, gpu: usize) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.gpus = vec![gpu];
        }
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

    /// What a lease that asks for this may have of a GPU. A whole GPU is not shared, however
    /// much is promised of its parts.
    fn free_ppm(&self, gpu: usize, ask: &Ask) -> u64 {
        free_beside(self.on(gpu), ask)
    }

    /// Returns what the lease of this number may have of a GPU of which it has a part already.
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
