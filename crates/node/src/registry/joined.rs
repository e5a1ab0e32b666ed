//! Leases that a server has granted: claimed, recorded, reported, ended at the server's word.

use std::collections::BTreeMap;

use sluice_api::grant::Grant;
use sluice_api::moving::MoveResult;
use sluice_api::node::{Attempt, GpuReport, Report, Resized, SessionReport, VacatedLease};
use sluice_wire::control::{SHARE_WHOLE_PPM, SessionStatus};
use sluice_wire::handshake::Once;
use sluice_worker_link::counters::Counts;

use super::cuts::{Hold, Holding};
use super::{Granted, LeaseRecord, Ledger, Meter, MutexGuard, Registry};
use crate::arbiter::PromisedWaits;
use crate::join::{ClaimRefusal, Metered, SavedMembership};
use crate::lease::{Ask, Refusal, Resize};
use crate::registry::resize::Size;

/// While too much waits for the disk, records of leases that continue wait until they are this
/// long: a longer one says the same, but is priced as of its beginning, and the server takes none
/// of more than a day. That is 24 records a day for each lease.
const FULL_CUT_MS: u64 = 3_600_000;

/// Why there is no lease.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoLease {
    #[error("this node has not joined a server, so it takes no grants; use --node")]
    NotJoined,
    #[error(transparent)]
    Claim(#[from] ClaimRefusal),
    #[error(transparent)]
    Books(#[from] Refusal),
    #[error("the client has asked for it again on another connection meanwhile")]
    Stale,
    #[error("the lease is over")]
    Over,
    #[error("{0}")]
    NotResized(String),
    #[error("the node's disk is full: it cannot write down what the lease has used so far")]
    Full,
    /// It may be asked for again once that is so: nothing is said.
    #[error("the lease that an earlier attempt has got is ending")]
    Ending,
}

impl Registry {
    /// Enters the lease of a grant, unless it was entered for an earlier attempt; ended as any
    /// other.
    pub(crate) fn claim(
        &self,
        once: Once,
        text: &str,
        kernel_timeout_ms: u64,
        name: String,
        holding: Option<Holding>,
    ) -> Result<(Granted, Option<Hold>), NoLease> {
        let membership = self.membership.as_ref().ok_or(NoLease::NotJoined)?;
        // The grant of a lease that is there may have expired. What is there may also be gone, or
        // come, while a grant is checked.
        let is_there = self.lock().opened(once).is_some();
        let grant = if is_there { None } else { Some(membership.check(text, self.clock.wall_ms())?) };
        let mut ledger = self.lock();
        if let Some(lease) = ledger.opened_lease(once)? {
            return self.granted(&mut ledger, lease, holding);
        }
        let grant = grant.ok_or(NoLease::Ending)?;
        let now_ms = self.clock.wall_ms();
        membership.claim(&grant, now_ms)?;
        let ask = Ask {
            gpus: grant.gpus.len() as u32,
            share_ppm: grant.share_ppm,
            memory: grant.memory,
            limit_ppm: grant.limit_ppm(),
            promised_ppm: grant.promised_ppm,
            premium: grant.tier.is_premium(),
            wait_ns: wait_ns(&grant),
        };
        let share_ppm = ask.share_ppm_in_all();
        let gpus: Vec<usize> = grant.gpus.iter().map(|&gpu| gpu as usize).collect();
        let lease = ledger.next_id();
        ledger.books.grant_on(lease, ask, &gpus)?;
        let model = membership.model(gpus[0]);
        let (server_lease, tenant) = (grant.lease, grant.tenant.to_string());
        let recorded = membership.recorded(&grant);
        let metered = Metered::new(grant.node, grant, model, now_ms, recorded);
        let (started, metered) = (self.clock.running(), Some(metered));
        let record = LeaseRecord::new(once, name, kernel_timeout_ms, share_ppm, started, metered);
        ledger.leases.insert(lease, record);
        let granted = self.granted(&mut ledger, lease, holding)?;
        drop(ledger);
        tracing::info!(
            lease,
            server_lease,
            tenant,
            "lease {lease} is granted: the server's lease {server_lease}"
        );
        membership.tell();
        Ok(granted)
    }

    /// Changes what a lease of the server has, as a later grant of it says; the answer is the
    /// lease's number here. What a grant of the same version has led to is the answer again.
    pub(crate) fn regrant(&self, text: &str) -> Result<(u64, Size), NoLease> {
        let membership = self.membership.as_ref().ok_or(NoLease::NotJoined)?;
        let grant = membership.check(text, self.clock.wall_ms())?;
        if membership.is_full() {
            // What it has used so far cannot be written down as that. The server says it again.
            return Err(NoLease::Full);
        }
        let mut ledger = self.lock();
        let attempt = Attempt { lease: grant.lease, attempt: grant.attempt, task: grant.task };
        let is_it = |record: &LeaseRecord| record.metered.as_ref().is_some_and(|m| m.attempt() == attempt);
        let found = ledger.leases.iter().find(|(_, record)| is_it(record)).map(|(&id, _)| id);
        let lease = found.ok_or(NoLease::Over)?;
        let known = ledger.leases.get(&lease).and_then(|record| record.metered.as_ref());
        let (version, resized) = known.map_or((0, None), |known| (known.version(), known.resized().cloned()));
        if grant.version <= version {
            return match resized.filter(|_| grant.version == version) {
                Some(Resized { refused: Some(reason), .. }) => Err(NoLease::NotResized(reason)),
                Some(_) => ledger.books.lease(lease).map(|entry| (lease, entry.size())).ok_or(NoLease::Over),
                None => Err(NoLease::Stale),
            };
        }
        let resize = Resize {
            share_ppm: Some(grant.share_ppm),
            memory: Some(grant.memory),
            limit_ppm: Some(grant.limit_ppm()),
            promised_ppm: Some(grant.promised_ppm),
        };
        let counts = ledger.counts(lease);
        let waits = self.promised_waits().remove(&lease).unwrap_or_default();
        let resized = self.apply(&mut ledger, lease, &resize, grant.suspended);
        let mut records = Vec::new();
        let held_ms = ledger.leases.get(&lease).map_or(0, |record| self.held_ms(record));
        if let Some(record) = ledger.leases.get_mut(&lease)
            && let Some(metered) = &mut record.metered
        {
            match &resized {
                Ok(_) => {
                    let waits = record.past_waits.promised.and(waits);
                    records = metered.cut(held_ms, counts, waits, record.memory_peak, false);
                    metered.regrant(grant);
                }
                Err(refusal) => metered.refuse(grant.version, refusal.to_string()),
            }
        }
        drop(ledger);
        membership.record(&records);
        membership.tell();
        resized.map(|size| (lease, size)).map_err(|refusal| NoLease::NotResized(refusal.to_string()))
    }

    /// All of it, or nothing.
    fn apply(
        &self,
        ledger: &mut Ledger,
        lease: u64,
        resize: &Resize,
        suspended: bool,
    ) -> Result<Size, Refusal> {
        let entry = ledger.books.lease(lease).ok_or(Refusal::Gone)?;
        let (was_suspended, before) = (entry.suspended, Resize::back_to(entry));
        if suspended {
            self.set_lease_suspended(ledger, lease, true)?;
        }
        // What is to be resumed is resized first: it may have become less for that.
        let resized = self.resize_in(ledger, lease, resize).and_then(|size| {
            let resumed = if suspended { Ok(()) } else { self.set_lease_suspended(ledger, lease, false) };
            if resumed.is_err() {
                // It had that a moment ago.
                let _ = self.resize_in(ledger, lease, &before);
            }
            resumed.map(|()| size)
        });
        if resized.is_err() && suspended && !was_suspended {
            // No other lease has had its share meanwhile.
            let _ = self.set_lease_suspended(ledger, lease, false);
        }
        resized
    }

    /// The last record of a lease, if a server granted it: the last of all, unless it continues on
    /// another node.
    pub(super) fn record_end(&self, record: &mut LeaseRecord) {
        let held_ms = self.held_ms(record);
        if let Some((membership, metered)) = self.membership.as_ref().zip(record.metered.as_mut()) {
            let last = !record.has_moved;
            let waits = record.past_waits.promised;
            membership.record(&metered.cut(held_ms, record.past, waits, record.memory_peak, last));
        }
        self.tell_server();
    }

    /// Ends the lease of an attempt that the server wants ended.
    pub(crate) fn end_attempt(&self, attempt: Attempt) {
        let ledger = self.lock();
        let is_it = |record: &LeaseRecord| {
            let metered = record.metered.as_ref().or(record.arriving.as_ref());
            metered.is_some_and(|metered| metered.attempt() == attempt)
        };
        match ledger.leases.iter().find(|(_, record)| is_it(record)) {
            // The connection that brings it ends it, once its worker has gone.
            Some((&lease, record)) if record.arrives => self.stop_workers_of(ledger, lease),
            Some((&lease, _)) => {
                drop(ledger);
                self.end_lease(lease);
            }
            None => {}
        }
    }

    fn stop_workers_of(&self, mut ledger: MutexGuard<'_, Ledger>, lease: u64) {
        for session in ledger.sessions.values_mut().filter(|session| session.lease == lease) {
            // An error means that it has ended by itself.
            let _ = session.worker.kill();
        }
    }

    /// The number of the lease here that an attempt of the server has.
    pub(super) fn lease_of_attempt(&self, attempt: Attempt) -> Option<u64> {
        self.attempts().into_iter().find(|(other, _)| *other == attempt).map(|(_, lease)| lease)
    }

    /// The server's attempts that live here, and the numbers of their leases.
    pub(crate) fn attempts(&self) -> Vec<(Attempt, u64)> {
        let ledger = self.lock();
        let stays = |(_, record): &(&u64, &LeaseRecord)| !record.has_moved;
        let attempt = |(&id, record): (&u64, &LeaseRecord)| Some((record.metered.as_ref()?.attempt(), id));
        ledger.leases.iter().filter(stays).filter_map(attempt).collect()
    }

    /// Counts what a program of a lease has done, beside its sessions.
    pub(crate) fn count(&self, lease: u64, counts: Counts) {
        if let Some(record) = self.lock().leases.get_mut(&lease) {
            record.past = super::sum(record.past, counts);
        }
    }

    /// Has news sent to the server at once, if there is one.
    pub(crate) fn tell_server(&self) {
        if let Some(membership) = &self.membership {
            membership.tell();
        }
    }

    /// Usage records that the server has not confirmed, and whether the disk takes none; nothing
    /// without a server.
    pub(crate) fn journal(&self) -> Option<(usize, bool)> {
        self.membership.as_ref().map(|membership| (membership.undelivered(), membership.is_full()))
    }

    /// What is known of the server, for the next program.
    pub(crate) fn save_membership(&self) -> Result<Option<SavedMembership>, String> {
        self.membership.as_ref().map(|membership| membership.save()).transpose()
    }

    /// The server that this node lends through, if any.
    pub(crate) fn server(&self) -> Option<&str> {
        self.membership.as_ref().map(|membership| membership.server.as_str())
    }

    /// The last report is to be made.
    pub(crate) fn stop_reporting(&self) {
        if let Some(membership) = &self.membership {
            membership.stop();
        }
    }

    /// What is true now, for the server; the caller adds the rest.
    pub(crate) fn report(&self) -> Report {
        let closed = self.membership.as_ref().is_some_and(|membership| membership.is_full());
        let (mut conditions, faults) = (self.faults.conditions(), self.faults.found());
        let ledger = self.lock();
        let gpu = |(gpu, meter): (usize, &Meter)| GpuReport {
            memory_used: ledger.books.used_memory(gpu),
            busy_ppm: meter.busy_ppm,
            condition: conditions.remove(&(gpu as u32)),
            faults: faults.get(&(gpu as u32)).copied().unwrap_or(0),
        };
        let here = |id: u64| ledger.leases.get(&id).filter(|record| !record.has_moved);
        let attempt = |id: u64| here(id)?.metered.as_ref().map(Metered::attempt);
        let arriving = |record: &LeaseRecord| record.arriving.as_ref().map(Metered::attempt);
        let resized = |record: &LeaseRecord| record.metered.as_ref()?.resized().cloned();
        let session = |status: SessionStatus| {
            let unmovable = ledger.what_keeps(status.session);
            Some(SessionReport { unmovable, ..session_report(attempt(status.lease)?, status) })
        };
        // The server gives the place of a lease that has moved to another one as soon as that is
        // reported, so it is reported once the place is free.
        let has_left = |result: &MoveResult| {
            let moved = ledger.leases.values().filter(|record| record.has_moved);
            !moved.filter_map(|record| record.metered.as_ref()).any(|of| of.attempt() == result.attempt)
        };
        let of_server = |record: &LeaseRecord| record.metered.as_ref().map(Metered::attempt);
        let vacated = |(id, stays): (u64, u64)| Some(VacatedLease { attempt: attempt(id)?, stays });
        Report {
            gpus: ledger.meters.iter().enumerate().map(gpu).collect(),
            leases: ledger.leases.values().filter_map(of_server).collect(),
            sessions: ledger.session_status(|_| true).into_iter().filter_map(session).collect(),
            closed,
            resized: ledger.leases.values().filter_map(resized).collect(),
            vacated: ledger.books.vacated().filter_map(vacated).collect(),
            arriving: ledger.leases.values().filter_map(arriving).collect(),
            moved: self.orders.results().into_iter().filter(has_left).collect(),
            idle: ledger.idle_leases(self.clock.running()),
            ..Report::default()
        }
    }

    /// Of the leases that have GPUs here, the waits for these that promises are about.
    fn promised_waits(&self) -> BTreeMap<u64, PromisedWaits> {
        let waits = self.turns.waits().into_iter();
        waits.map(|(lease, waits)| (lease, waits.promised)).collect()
    }

    /// Puts on disk what the server's leases have used since the last time.
    pub(crate) fn record_usage(&self) {
        let Some(membership) = &self.membership else { return };
        let least_ms = if membership.is_full() { FULL_CUT_MS } else { 0 };
        let mut ledger = self.lock();
        let leases: Vec<u64> = ledger.leases.keys().copied().collect();
        let counts: Vec<Counts> = leases.iter().map(|&lease| ledger.counts(lease)).collect();
        // Under the ledger's lock: a move to another GPU takes waits from the turns to the record.
        let waits = self.promised_waits();
        let mut records = Vec::new();
        for (lease, counts) in leases.iter().zip(counts) {
            if let Some(record) = ledger.leases.get_mut(lease).filter(|record| !record.has_moved)
                && let Some(metered) = &mut record.metered
            {
                let held_ms = self.since_ms(record.started);
                if metered.open_ms(held_ms) >= least_ms {
                    let here = waits.get(lease).copied().unwrap_or_default();
                    let waits = record.past_waits.promised.and(here);
                    records.extend(metered.cut(held_ms, counts, waits, record.memory_peak, false));
                }
            }
        }
        drop(ledger);
        membership.record(&records);
    }
}

/// The longest wait that a grant promises, in nanoseconds; 0 where it promises none.
pub(super) fn wait_ns(grant: &Grant) -> u64 {
    grant.promise.map_or(0, |promise| promise.wait_us.saturating_mul(1000))
}

fn session_report(attempt: Attempt, status: SessionStatus) -> SessionReport {
    SessionReport {
        session: status.session,
        lease: attempt.lease,
        unmovable: None,
        name: status.name,
        process: status.process,
        peer: status.peer,
        gpu: status.gpu,
        share_ppm: status.share_ppm,
        hard_cap: status.limit_ppm == status.share_ppm && status.limit_ppm < SHARE_WHOLE_PPM,
        limit_ppm: status.limit_ppm,
        memory: status.memory,
        memory_used: status.memory_used,
        memory_swapped: status.memory_swapped,
        memory_in_file: status.memory_in_file,
        memory_pinned: status.memory_pinned,
        memory_state: status.memory_state,
        memory_moves: status.memory_moves,
        memory_moving_us: status.memory_moving_us,
        kernels: status.kernels,
        bytes_in: status.bytes_in,
        bytes_out: status.bytes_out,
        busy_us: status.busy_us,
        age_ms: status.age_ms,
        suspended: status.suspended,
    }
}
