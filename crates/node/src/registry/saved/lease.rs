//! One lease.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sluice_wire::control::DeviceSnapshot;
use sluice_wire::handshake::{LeaseToken, Once};
use sluice_worker_link::counters::Counts;

use super::session::SavedProcess;
use crate::arbiter::Waits;
use crate::exports::SavedExport;
use crate::join::Metered;
use crate::registry::LeaseRecord;
use crate::registry::cuts::{Awaited, Holder, Terms};
use crate::registry::idle::Idle;
use crate::registry::processes::PastProcesses;
use crate::registry::readings::Pace;
use crate::upgrade::{Passed, Passing, Received, RestoreError};

/// A [`LeaseRecord`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedLease {
    id: u64,
    #[serde(with = "crate::upgrade::with::wire")]
    token: LeaseToken,
    #[serde(with = "crate::upgrade::with::wire")]
    once: Once,
    name: String,
    kernel_timeout_ms: u64,
    started: Duration,
    idle: Idle,
    left_at: Option<Duration>,
    past: Counts,
    past_waits: Waits,
    sessions_total: u64,
    failures: u64,
    memory_peak: u64,
    memory_moves: u64,
    memory_moving_us: u64,
    processes: PastProcesses,
    share_ppm: u64,
    pace: Pace,
    metered: Option<Metered>,
    arriving: Option<Metered>,
    holder: Option<SavedHolder>,
    exports: Vec<SavedExport>,
    #[serde(with = "crate::upgrade::with::wire")]
    shown: Option<Vec<DeviceSnapshot>>,
}

/// Who holds a lease.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedHolder {
    process: SavedProcess,
    terms: Terms,
    /// The connection of a holder that cannot come back on another one.
    line: Option<Passed>,
}

impl SavedLease {
    pub(super) fn of(id: u64, record: &LeaseRecord, passing: &mut Passing) -> SavedLease {
        // Each of its fields: a new one cannot be forgotten. What is closing, arrives or has
        // moved is not handed over.
        let &LeaseRecord {
            token,
            once,
            ref name,
            kernel_timeout_ms,
            started,
            ref idle,
            closing: _,
            arrives: _,
            has_moved: _,
            left_at,
            past,
            past_waits,
            sessions_total,
            failures,
            memory_peak,
            memory_moves,
            memory_moving_us,
            ref processes,
            share_ppm,
            pace,
            ref metered,
            ref arriving,
            ref holder,
            awaited: _,
            ref exports,
            ref shown,
        } = record;
        SavedLease {
            id,
            token,
            once,
            name: name.clone(),
            kernel_timeout_ms,
            started,
            idle: idle.clone(),
            left_at,
            past,
            past_waits,
            sessions_total,
            failures,
            memory_peak,
            memory_moves,
            memory_moving_us,
            processes: processes.clone(),
            share_ppm,
            pace,
            metered: metered.clone(),
            arriving: arriving.clone(),
            holder: holder.as_ref().map(|holder| SavedHolder::of(holder, passing)),
            exports: exports.save(passing),
            shown: shown.clone(),
        }
    }

    /// Until it is served, its holder is that of the program before this one.
    pub(super) fn restored(self, received: &mut Received) -> Result<(u64, LeaseRecord), RestoreError> {
        let SavedLease { id, token, once, name, kernel_timeout_ms, started, share_ppm, .. } = self;
        let awaited = self.holder.map(|holder| holder.awaited(received)).transpose()?;
        let record = LeaseRecord::new(once, name, kernel_timeout_ms, share_ppm, started, self.metered);
        let record = LeaseRecord {
            token,
            idle: self.idle,
            left_at: self.left_at,
            past: self.past,
            past_waits: self.past_waits,
            sessions_total: self.sessions_total,
            failures: self.failures,
            memory_peak: self.memory_peak,
            memory_moves: self.memory_moves,
            memory_moving_us: self.memory_moving_us,
            processes: self.processes,
            pace: self.pace,
            arriving: self.arriving,
            awaited,
            exports: SavedExport::restore(self.exports, received)?,
            shown: self.shown,
            ..record
        };
        Ok((id, record))
    }
}

impl SavedHolder {
    fn of(holder: &Holder, passing: &mut Passing) -> SavedHolder {
        let (process, terms) = (SavedProcess::of(holder.process(), passing), holder.terms().clone());
        let line = (!terms.resumes).then(|| passing.pass(holder.socket()));
        SavedHolder { process, terms, line }
    }

    fn awaited(self, received: &mut Received) -> Result<Awaited, RestoreError> {
        let process = self.process.restored(received)?;
        let socket = self.line.map(|line| received.take(line)).transpose()?;
        Ok(Awaited { process, terms: self.terms, socket: socket.map(Arc::new) })
    }
}
