//! What leases did before, for saying when others start: how long programs ran, and how far off earlier estimates were.

use std::collections::{HashMap, VecDeque};

use sluice_api::lease::{LeaseId, LeaseState};
use sluice_api::tenant::TenantPath;

use crate::fleet::LeaseRecord;

/// Runs of one program that are remembered.
const RUNS_MAX: usize = 20;
/// Programs that are remembered.
const PROGRAMS_MAX: usize = 10_000;
/// Estimates whose errors are remembered.
const ERRORS_MAX: usize = 100;

#[derive(Debug, Default)]
pub(crate) struct History {
    /// Milliseconds that each tenant's programs ran, the latest last.
    runs: HashMap<(TenantPath, String), VecDeque<u64>>,
    /// When waiting leases were first expected to start.
    expected_ms: HashMap<LeaseId, u64>,
    errors_ms: VecDeque<u64>,
}

impl History {
    /// Learns from a lease as it is now.
    pub(crate) fn follow(&mut self, lease: &LeaseRecord) {
        match (lease.state, lease.granted_at_ms, lease.ended_at_ms) {
            (LeaseState::Granted, Some(at_ms), _) => {
                if let Some(expected_ms) = self.expected_ms.remove(&lease.id) {
                    remember(&mut self.errors_ms, at_ms.abs_diff(expected_ms), ERRORS_MAX);
                }
            }
            (LeaseState::Ended, Some(from_ms), Some(until_ms)) => {
                self.expected_ms.remove(&lease.id);
                let ran = lease.seats.iter().all(|seat| seat.claimed || seat.over);
                let program = (lease.tenant.clone(), lease.ask.name.clone());
                if ran && (self.runs.len() < PROGRAMS_MAX || self.runs.contains_key(&program)) {
                    let runs = self.runs.entry(program).or_default();
                    remember(runs, until_ms.saturating_sub(from_ms), RUNS_MAX);
                }
            }
            (LeaseState::Ended, ..) => {
                self.expected_ms.remove(&lease.id);
            }
            _ => {}
        }
    }

    /// How long a lease runs from its grant: as it said, or as its like did.
    pub(crate) fn runtime_ms(&self, lease: &LeaseRecord) -> Option<u64> {
        let usual = || median(self.runs.get(&(lease.tenant.clone(), lease.ask.name.clone()))?);
        lease.ask.duration_ms.or_else(usual)
    }

    /// Notes when a lease is expected to start; the first word counts.
    pub(crate) fn expect(&mut self, lease: LeaseId, at_ms: u64) {
        self.expected_ms.entry(lease).or_insert(at_ms);
    }

    /// Half of the estimates were off by no more.
    pub(crate) fn error_ms(&self) -> Option<u64> {
        median(&self.errors_ms)
    }
}

fn remember(values: &mut VecDeque<u64>, value: u64, most: usize) {
    if values.len() == most {
        values.pop_front();
    }
    values.push_back(value);
}

fn median(values: &VecDeque<u64>) -> Option<u64> {
    let mut sorted: Vec<u64> = values.iter().copied().collect();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied()
}
