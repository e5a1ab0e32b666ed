//! Leases from their grant to their end, and the tokens that stand for them.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use sluice_wire::control::{DeviceSnapshot, GpuFree, Usage};
use sluice_wire::handshake::{LeaseToken, Once};
use sluice_worker_link::link::Packet;

use super::cuts::{Hold, Holding};
use super::joined::NoLease;
use super::secrets::same;
use super::workers::SessionRefusal;
use super::{LeaseRecord, Ledger, Registry};
use crate::arbiter::PPM;
use crate::lease::{Ask, Card};

/// A lease as its owner learns of it.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    pub lease: u64,
    pub token: LeaseToken,
    /// Its devices in the client's order, with the lease's part of their memory.
    pub devices: Vec<DeviceSnapshot>,
}

/// What workers get for their last words to clients, who have three seconds for taking what was
/// said before, and as many for hanging up.
const LAST_WORDS: Duration = Duration::from_secs(7);

impl Registry {
    /// Enters a lease, unless it was entered for an earlier attempt, and has a connection hold it
    /// from its first moment on: which attempt was the last and which connection holds it goes
    /// together.
    pub(crate) fn grant(
        &self,
        once: Once,
        ask: Ask,
        kernel_timeout_ms: u64,
        name: String,
        holding: Option<Holding>,
    ) -> Result<(Granted, Option<Hold>), NoLease> {
        let mut ledger = self.lock();
        if let Some(lease) = ledger.opened_lease(once)? {
            return self.granted(&mut ledger, lease, holding);
        }
        let lease = ledger.next_id();
        let share_ppm = ask.share_ppm_in_all();
        ledger.books.grant(lease, ask)?;
        let started = self.clock.running();
        let record = LeaseRecord::new(once, name, kernel_timeout_ms, share_ppm, started, None);
        let program = record.name.clone();
        ledger.leases.insert(lease, record);
        let granted = self.granted(&mut ledger, lease, holding);
        drop(ledger);
        tracing::info!(lease, program, "lease {lease} is granted");
        granted
    }

    /// What the owner of a lease learns of it, and its hold from now on.
    pub(super) fn granted(
        &self,
        ledger: &mut Ledger,
        lease: u64,
        holding: Option<Holding>,
    ) -> Result<(Granted, Option<Hold>), NoLease> {
        let entered = ledger.leases.get(&lease).zip(ledger.books.lease(lease));
        let (record, entry) = entered.ok_or(NoLease::Over)?;
        let device =
            |&gpu: &usize| DeviceSnapshot { memory: entry.memory, ..self.inventory.snapshots[gpu].clone() };
        let granted =
            Granted { lease, token: record.token, devices: entry.gpus.iter().map(device).collect() };
        Ok((granted, holding.and_then(|holding| ledger.hold(lease, holding))))
    }

    /// Kills the lease's workers, waits until they are gone, and strikes it out.
    pub(crate) fn end_lease(&self, lease: u64) -> Option<()> {
        let mut ledger = self.lock();
        ledger.leases.get_mut(&lease)?.closing = true;
        for session in ledger.sessions.values_mut().filter(|s| s.lease == lease) {
            // An error means that it has ended by itself.
            let _ = session.worker.kill();
        }
        while ledger.sessions.values().any(|s| s.lease == lease) {
            ledger = self.session_ended.wait(ledger).unwrap_or_else(PoisonError::into_inner);
        }
        let mut record = ledger.leases.remove(&lease)?;
        // What its sessions shared is counted under its own number.
        self.leave_planners(&mut ledger, lease, lease);
        let entry = ledger.books.end(lease)?;
        drop(ledger);
        record.past_waits = record.past_waits.and(self.turns.forget(lease, &entry.gpus));
        self.record_end(&mut record);
        let (server_lease, tenant) = record.of_server();
        tracing::info!(lease, server_lease, tenant, "lease {lease} has ended");
        if !record.arrives && !record.has_moved {
            self.keep_last(lease, &record, record.share_ppm);
        }
        self.memory_moved.notify_all();
        Some(())
    }

    /// Ends every lease. The programs are notified: they would wait for a node that was only cut
    /// off.
    pub(crate) fn end_all(&self) {
        let mut ledger = self.lock();
        for session in ledger.sessions.values() {
            // A worker that does not receive it is killed with the others.
            let _ = session.link.send_now(&Packet::NodeEnds);
        }
        let deadline = Instant::now() + LAST_WORDS;
        while !ledger.sessions.is_empty() && Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            ledger = self.session_ended.wait_timeout(ledger, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(ledger);
        let leases: Vec<u64> = self.lock().leases.keys().copied().collect();
        for lease in leases {
            self.end_lease(lease);
        }
    }

    /// What is free of each GPU.
    pub(crate) fn free(&self) -> Vec<GpuFree> {
        let ledger = self.lock();
        let free = |(gpu, card): (usize, &Card)| GpuFree {
            name: card.name.clone(),
            share_ppm: PPM.saturating_sub(ledger.books.leased_ppm(gpu)) as u32,
            memory: ledger.books.free_memory(gpu),
        };
        ledger.books.cards().iter().enumerate().map(free).collect()
    }

    /// What a lease has used so far.
    pub(crate) fn usage(&self, lease: u64) -> Option<Usage> {
        let ledger = self.lock();
        let record = ledger.leases.get(&lease)?;
        let counts = ledger.counts(lease);
        Some(Usage {
            age_ms: self.since_ms(record.started),
            sessions: record.sessions_total,
            kernels: counts.kernels,
            bytes_in: counts.bytes_in,
            bytes_out: counts.bytes_out,
            busy_us: counts.used_ns / 1000,
            memory_peak: record.memory_peak,
        })
    }

    /// The lease that a token stands for.
    pub(crate) fn lease_of(&self, token: &LeaseToken) -> Option<u64> {
        self.lock().lease_of(token)
    }
}

impl Ledger {
    pub(super) fn lease_of(&self, token: &LeaseToken) -> Option<u64> {
        // Every token is compared, and compared whole: the time says nothing about how much was
        // right.
        let mut found = None;
        for (&id, record) in &self.leases {
            if same(&record.token.0, &token.0) {
                found = Some(id);
            }
        }
        found
    }

    /// The lease under which this token may start sessions.
    pub(super) fn open_lease_of(&self, token: &LeaseToken) -> Result<u64, SessionRefusal> {
        let lease = self.lease_of(token).ok_or(SessionRefusal::Lease)?;
        match self.leases.get(&lease).is_none_or(|record| record.closing) {
            true => Err(SessionRefusal::Lease),
            false => Ok(lease),
        }
    }
}
