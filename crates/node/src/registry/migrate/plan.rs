//! What a move would do, and what would refuse it.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use sluice_wire::control::MovePlanned;
use sluice_worker_link::link::Packet;

use super::NotMigrated;
use crate::lease::{Ask, Refusal};
use crate::registry::{Ledger, Registry, one_line};

/// A worker says what keeps its session within this time.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// For reports to a server, workers are asked again after this time.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// A list of sessions waits for their workers no longer than this.
const LIST_LIMIT: Duration = Duration::from_millis(200);

impl Registry {
    /// Asks all who would have a say in a move, and moves nothing.
    pub(crate) fn plan_move(
        &self,
        lease: u64,
        node: Option<&str>,
        gpu: Option<u32>,
    ) -> Result<MovePlanned, NotMigrated> {
        if self.overcommits {
            return Err(NotMigrated::Overcommitted);
        }
        let ledger = self.lock();
        let (session, _) = ledger.movable(lease)?;
        let bytes = ledger.books.lease(lease).ok_or(Refusal::Gone)?.used(0);
        drop(ledger);
        let mut reasons = self.what_keeps(session);
        let room = match node {
            Some(node) => self.try_offer(lease, node, gpu),
            None => self.try_room(lease, gpu.map_or_else(|| self.emptiest_but(lease), |gpu| gpu as usize)),
        };
        reasons.extend(room.err().map(|refusal| refusal.to_string()));
        Ok(MovePlanned { session, bytes, reasons })
    }

    /// Whether the other node would take it.
    fn try_offer(&self, lease: u64, node: &str, gpu: Option<u32>) -> Result<(), NotMigrated> {
        let node = self.reachable(lease, node)?;
        let (departure, _) = self.offer_to(&node, &self.offer_of(lease, gpu)?)?;
        // It gives the room back at the latest when the connection ends.
        let _ = departure.stays();
        Ok(())
    }

    /// Whether the other GPU has room.
    fn try_room(&self, lease: u64, to: usize) -> Result<(), NotMigrated> {
        let mut ledger = self.lock();
        let (session, from) = ledger.movable(lease)?;
        let count = self.inventory.cards.len();
        if to >= count {
            return Err(NotMigrated::NoSuchGpu { gpu: to, count });
        }
        if from == to {
            return Err(NotMigrated::There { session, gpu: to });
        }
        let entry = ledger.books.lease(lease).ok_or(Refusal::Gone)?;
        let ask = Ask { memory: entry.memory, ..entry.ask.clone() };
        let room = ledger.next_id();
        ledger.books.grant_on(room, ask, &[to])?;
        ledger.books.end(room);
        Ok(())
    }

    /// What the session's worker says.
    fn what_keeps(&self, session: u64) -> Vec<String> {
        self.ask_what_keeps(|other| other == session, ANSWER_LIMIT);
        match self.lock().sessions.get(&session).map(|record| record.migration.reasons.clone()) {
            Some(Some(reasons)) => reasons,
            Some(None) => vec![format!("its worker does not answer within {} s", ANSWER_LIMIT.as_secs())],
            None => vec!["it has ended meanwhile".to_owned()],
        }
    }

    /// Asks the workers of all sessions what keeps them from moving, for a list of them.
    pub(crate) fn ask_what_keeps_all(&self) {
        self.ask_what_keeps(|_| true, LIST_LIMIT);
    }

    /// Returns once all these workers have answered, or after this time.
    fn ask_what_keeps(&self, wanted: impl Fn(u64) -> bool, limit: Duration) {
        let until = Instant::now() + limit;
        let mut ledger = self.lock();
        let mut asked = Vec::new();
        for (&session, record) in ledger.sessions.iter_mut().filter(|(session, _)| wanted(**session)) {
            if record.is_up && !record.migration.is_moving {
                record.migration.reasons = None;
                // An error means that it has ended.
                let _ = record.link.send_now(&Packet::AskMovable);
                asked.push(session);
            }
        }
        let is_silent = |ledger: &Ledger, session: &u64| {
            ledger.sessions.get(session).is_some_and(|record| record.migration.reasons.is_none())
        };
        while asked.iter().any(|session| is_silent(&ledger, session)) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.memory_moved.wait_timeout(ledger, left);
            ledger = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Asks the workers of sessions what keeps them from moving: of those that something keeps,
    /// which may be a client that reconnects, at each report, and of all when it is time to. The
    /// answers come by themselves.
    pub(crate) fn ask_for_report(&self) {
        let now = self.clock.running();
        let mut ledger = self.lock();
        let all = ledger.asked_movable_at.is_none_or(|at| now.saturating_sub(at) >= ASK_EVERY);
        if all {
            ledger.asked_movable_at = Some(now);
        }
        for record in ledger.sessions.values_mut() {
            let is_kept = record.migration.reasons.as_ref().is_some_and(|reasons| !reasons.is_empty());
            let ask = record.is_up && !record.migration.is_moving && !record.migration.is_asked;
            if ask && (all || is_kept) {
                // An error means that it has ended.
                record.migration.is_asked = record.link.send_now(&Packet::AskMovable).is_ok();
            }
        }
    }

    /// A worker has said what keeps its session from moving.
    pub(in crate::registry) fn session_is_movable(&self, session: u64, reasons: Vec<String>) {
        if let Some(record) = self.lock().sessions.get_mut(&session) {
            record.migration.is_asked = false;
            record.migration.reasons = Some(reasons.iter().map(|reason| one_line(reason)).collect());
        }
        self.memory_moved.notify_all();
    }
}

impl Ledger {
    /// What kept a session from moving when its worker was asked last.
    pub(in crate::registry) fn what_keeps(&self, session: u64) -> Option<Vec<String>> {
        self.sessions.get(&session)?.migration.reasons.clone()
    }
}
