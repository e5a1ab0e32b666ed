//! All that a registry knows, in the form in which the next program of this daemon gets it
//! ([`upgrade`](crate::upgrade)).

mod lease;
mod session;
mod settled;

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::cuts::Ended;
use super::migrate::MovedLeases;
use super::readings::PastLeases;
use super::status::Meter;
use super::{Ledger, Registry};
use crate::clock::SystemClock;
use crate::health;
use crate::lease::Books;
use crate::registry::migrate::SavedOrders;
use crate::residency::Planner;
use crate::turns::{self, SavedTurns};
use crate::upgrade::{Passing, Received, RestoreError};

pub(crate) use self::lease::SavedLease;
pub(crate) use self::session::SavedSession;

/// What [`Registry`] has beside its settings.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedRegistry {
    /// When its clock began.
    #[serde(with = "crate::upgrade::with::moment")]
    began: Instant,
    books: Books,
    leases: Vec<SavedLease>,
    sessions: Vec<SavedSession>,
    last_id: u64,
    meters: Vec<Meter>,
    ended: Ended,
    moved: MovedLeases,
    planners: Vec<Planner>,
    turns: SavedTurns,
    past_leases: PastLeases,
    faults: health::State,
    orders: SavedOrders,
    nearby: Option<String>,
}

impl SavedRegistry {
    /// How many leases and sessions there are.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.leases.len(), self.sessions.len())
    }

    /// Whether it is of this number of GPUs, whose memory is overcommitted or not.
    pub(crate) fn check(&self, gpus: usize, overcommits: bool) -> Result<(), RestoreError> {
        let saved = self.books.cards().len();
        if saved != gpus {
            return Err(RestoreError::Gpus { saved, here: gpus });
        }
        let planners = if overcommits { gpus } else { 0 };
        if self.planners.len() != planners {
            return Err(RestoreError::Overcommit);
        }
        // What is indexed by a GPU's number.
        let leased = self.books.gpus().chain(self.sessions.iter().filter_map(SavedSession::planned_on));
        let is_sound = self.meters.len() == gpus && self.turns.gpus() == gpus && self.turns.is_sound();
        match is_sound && leased.into_iter().all(|gpu| gpu < gpus) {
            true => Ok(()),
            false => Err(RestoreError::Unsound),
        }
    }
}

/// A registry of which nothing changes until this is dropped.
#[derive(Debug)]
pub(crate) struct Stopped<'r> {
    registry: &'r Registry,
    ledger: MutexGuard<'r, Ledger>,
    turns: turns::Stopped<'r>,
}

impl Registry {
    /// Stops everything that takes the table, in the usual order of locks.
    pub(crate) fn stop(&self) -> Stopped<'_> {
        let ledger = self.lock();
        Stopped { registry: self, turns: self.turns.stop(), ledger }
    }

    /// Takes over what the program before this one has saved. Nothing is served yet.
    pub(crate) fn restore(
        &mut self,
        saved: SavedRegistry,
        received: &mut Received,
    ) -> Result<(), RestoreError> {
        saved.check(self.inventory.cards.len(), self.overcommits)?;
        self.clock = Arc::new(SystemClock::since(saved.began));
        let mut sessions = BTreeMap::new();
        for session in saved.sessions {
            let (id, record) = session.restored(received)?;
            sessions.insert(id, record);
        }
        let mut leases = BTreeMap::new();
        for lease in saved.leases {
            let (id, record) = lease.restored(received)?;
            leases.insert(id, record);
        }
        let link = |session: u64| sessions.get(&session).map(|record| Arc::clone(&record.link));
        self.turns = saved.turns.restored(link);
        let ledger = self.ledger.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        ledger.plan_at_ns = vec![None; saved.planners.len()];
        (ledger.books, ledger.leases, ledger.sessions) = (saved.books, leases, sessions);
        (ledger.last_id, ledger.meters, ledger.planners) = (saved.last_id, saved.meters, saved.planners);
        (ledger.ended, ledger.moved) = (saved.ended, saved.moved);
        *self.past_leases.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner) = saved.past_leases;
        self.faults = saved.faults.into();
        self.orders = saved.orders.into();
        self.nearby = saved.nearby;
        Ok(())
    }
}

impl Stopped<'_> {
    /// All of it. What it has passed lives as long as this is not dropped.
    pub(crate) fn save(&self, passing: &mut Passing) -> SavedRegistry {
        let Ledger { books, leases, sessions, last_id, meters, ended, moved, planners, .. } = &*self.ledger;
        let registry = self.registry;
        let past = registry.past_leases.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let running = registry.clock.running();
        SavedRegistry {
            began: Instant::now().checked_sub(running).unwrap_or_else(Instant::now),
            books: books.clone(),
            leases: leases.iter().map(|(&id, record)| SavedLease::of(id, record, passing)).collect(),
            sessions: sessions.iter().map(|(&id, record)| SavedSession::of(id, record, passing)).collect(),
            last_id: *last_id,
            meters: meters.clone(),
            ended: ended.clone(),
            moved: moved.clone(),
            planners: planners.clone(),
            turns: self.turns.save(),
            past_leases: past.clone(),
            faults: registry.faults.saved(),
            orders: registry.orders.saved(),
            nearby: registry.nearby.clone(),
        }
    }
}
