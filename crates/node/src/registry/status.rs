//! What the node says about its GPUs, leases and sessions, and the meters of how busy its GPUs are.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sluice_cuda::CUdevice_attribute;
use sluice_wire::control::{DeviceSnapshot, GpuStatus, SessionStatus, Status};
use sluice_worker_link::link::Driver;

use super::{Ledger, Registry, SessionRecord};
use crate::arbiter::PPM;
use crate::lease::Lease;

const METER_EVERY: Duration = Duration::from_secs(1);
/// Readings of the meters from one usage record of a lease to the next.
const RECORD_EVERY: u64 = 10;

/// How busy a GPU was in the last second.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Meter {
    /// GPU time of sessions that have ended.
    pub(super) past_ns: u64,
    /// GPU time of all sessions at the last reading.
    pub(super) read_ns: u64,
    pub(super) busy_ppm: u32,
}

impl Registry {
    /// Reads the meters once a second, for ever.
    pub(crate) fn meter(&self) {
        let mut last = Instant::now();
        for reading in 1_u64.. {
            std::thread::sleep(METER_EVERY);
            let _step = self.gates.steps.enter("the meter");
            if reading.is_multiple_of(RECORD_EVERY) {
                self.record_usage();
            }
            let elapsed_ns = last.elapsed().as_nanos().max(1);
            last = Instant::now();
            let mut ledger = self.lock();
            for gpu in 0..ledger.meters.len() {
                let live_ns: u64 = ledger.gpu_ns_of_sessions(gpu);
                let meter = &mut ledger.meters[gpu];
                let total_ns = meter.past_ns + live_ns;
                let used_ns = u128::from(total_ns.saturating_sub(meter.read_ns));
                meter.busy_ppm = (used_ns * u128::from(PPM) / elapsed_ns).min(u128::from(PPM)) as u32;
                meter.read_ns = total_ns;
            }
            ledger.follow_pace(elapsed_ns);
            self.follow_idle(&mut ledger);
            self.retry_moves(&mut ledger);
        }
    }

    /// What this node does now.
    pub(crate) fn status(&self) -> Status {
        let ledger = self.lock();
        let gpus = (0..self.inventory.cards.len()).map(|gpu| self.gpu_status(&ledger, gpu)).collect();
        Status { gpus, sessions: ledger.session_status(|_| true) }
    }

    /// The devices of a lease and what runs on them.
    pub(crate) fn lease_status(&self, lease: u64) -> Option<(Vec<DeviceSnapshot>, Vec<SessionStatus>)> {
        let ledger = self.lock();
        let entry = ledger.books.lease(lease)?;
        let shown = self.shown(&ledger, lease);
        let sessions = ledger.session_status(|of| of == lease);
        let each = sessions.iter().flat_map(|session| ledger.session_on_each(entry, session));
        Some((shown, each.collect()))
    }

    /// The devices of a lease as its programs know them, with the lease's part of their memory.
    pub(super) fn shown(&self, ledger: &Ledger, lease: u64) -> Vec<DeviceSnapshot> {
        let Some(entry) = ledger.books.lease(lease) else { return Vec::new() };
        let own = || entry.gpus.iter().map(|&gpu| self.inventory.snapshots[gpu].clone()).collect();
        let shown = ledger.leases.get(&lease).and_then(|record| record.shown.clone()).unwrap_or_else(own);
        let part = |device: DeviceSnapshot| DeviceSnapshot { memory: entry.memory, ..device };
        shown.into_iter().map(part).collect()
    }

    pub(super) fn gpu_status(&self, ledger: &Ledger, gpu: usize) -> GpuStatus {
        let snapshot = &self.inventory.snapshots[gpu];
        let on = |lease: u64| ledger.books.lease(lease).is_some_and(|l| l.gpus.contains(&gpu));
        let attribute = |attribute| snapshot.attribute(attribute).unwrap_or(0);
        GpuStatus {
            index: gpu as u32,
            name: snapshot.name.clone(),
            uuid: snapshot.uuid,
            memory: snapshot.memory,
            memory_leased: ledger.books.leased_memory(gpu),
            memory_used: ledger.books.used_memory(gpu),
            share_leased_ppm: ledger.books.leased_ppm(gpu) as u32,
            sessions: ledger.sessions.values().filter(|s| on(s.lease)).count() as u32,
            is_software: matches!(self.inventory.driver, Driver::Software { .. }),
            driver_version: snapshot.driver_version,
            compute_capability: (
                attribute(CUdevice_attribute::COMPUTE_CAPABILITY_MAJOR),
                attribute(CUdevice_attribute::COMPUTE_CAPABILITY_MINOR),
            ),
            busy_ppm: ledger.meters[gpu].busy_ppm,
        }
    }
}

impl Ledger {
    /// The sessions of the leases that are `wanted`.
    pub(super) fn session_status(&self, wanted: impl Fn(u64) -> bool) -> Vec<SessionStatus> {
        let status = |(&session, record): (&u64, &SessionRecord)| {
            let (lease, entry) = (self.leases.get(&record.lease)?, self.books.lease(record.lease)?);
            let counts = record.counters.read();
            let memory_used = entry.used_by(session) + lease.exports.bytes_of(session);
            Some(SessionStatus {
                session,
                lease: record.lease,
                name: lease.name.clone(),
                process: record.client.process.number,
                peer: record.client.peer.clone(),
                gpu: entry.gpus.first().map_or(0, |&gpu| gpu as u32),
                share_ppm: entry.ask.share_ppm,
                limit_ppm: entry.ask.limit_ppm,
                memory: entry.memory,
                memory_used,
                memory_swapped: entry.swapped_by(session),
                memory_in_file: entry.filed_by(session),
                memory_pinned: memory_used.saturating_sub(counts.movable),
                memory_state: self.memory_state(session, record),
                memory_moves: record.moves,
                memory_moving_us: record.moving_us,
                kernels: counts.kernels,
                bytes_in: counts.bytes_in,
                bytes_out: counts.bytes_out,
                busy_us: counts.used_ns / 1000,
                age_ms: record.started.elapsed().as_millis() as u64,
                parted: record.parted && !record.migration.has_moved(),
                suspended: self.session_is_suspended(record),
                unmovable: record.migration.unmovable(),
            })
        };
        self.sessions.iter().filter(|(_, record)| wanted(record.lease)).filter_map(status).collect()
    }

    /// What is to be said of where a session's memory is.
    pub(super) fn memory_state(&self, session: u64, record: &SessionRecord) -> String {
        let state = match record.residence.describe() {
            state if state.is_empty() => self.idle_text(record.lease),
            state => state,
        };
        match state.is_empty() && !self.session_is_suspended(record) && self.awaits_memory(session) {
            true => "waits for memory on the GPU".to_owned(),
            false => state,
        }
    }

    /// What a session does on each GPU of its lease that it uses, counted within the lease; one
    /// that uses none yet is on the first.
    fn session_on_each(&self, entry: &Lease, session: &SessionStatus) -> Vec<SessionStatus> {
        let exported = |gpu| {
            self.leases.get(&session.lease).map_or(0, |lease| lease.exports.bytes_of_on(session.session, gpu))
        };
        let busy_ns = |gpu| self.sessions.get(&session.session).map_or(0, |record| record.gpu_ns_on(gpu));
        let on = |gpu: usize| SessionStatus {
            gpu: gpu as u32,
            memory_used: entry.used_by_on(session.session, gpu) + exported(gpu),
            memory_swapped: entry.swapped_by_on(session.session, gpu),
            memory_in_file: entry.filed_by_on(session.session, gpu),
            busy_us: busy_ns(gpu) / 1000,
            ..session.clone()
        };
        let mut each: Vec<_> = (0..entry.gpus.len()).map(on).collect();
        each.retain(|on| on.memory_used > 0 || on.busy_us > 0);
        if each.is_empty() {
            each.push(on(0));
        }
        each
    }

    fn gpu_ns_of_sessions(&self, gpu: usize) -> u64 {
        let used = |session: &SessionRecord| {
            let place = self.gpus(session.lease).into_iter().position(|of_lease| of_lease == gpu)?;
            Some(session.gpu_ns_on(place))
        };
        self.sessions.values().filter_map(used).sum()
    }
}
