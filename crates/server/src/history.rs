//! What leases did before, for saying when others start: how long programs ran, and how far off
//! earlier estimates were.

use std::collections::{HashMap, VecDeque};

use sluice_api::lease::{LeaseId, LeaseState};
use sluice_api::tenant::TenantPath;
use sluice_iq::duration::{Durations, Errors};

use crate::fleet::LeaseRecord;

/// Tenants whose errors are remembered.
const TENANTS_MAX: usize = 10_000;
/// Estimates whose errors are remembered, of each tenant and of all.
const ERRORS_MAX: usize = 100;
/// A tenant with fewer gets the errors of all tenants.
const ERRORS_MIN: usize = 5;

#[derive(Debug, Default)]
pub(crate) struct History {
    /// How long each tenant's programs ran. No tenant's runs count for another tenant.
    runs: Durations<(TenantPath, String)>,
    /// When waiting leases were first expected to start; nothing if that has been changed by hand
    /// since.
    expected_ms: HashMap<LeaseId, Option<u64>>,
    errors_ms: VecDeque<u64>,
    errors_ms_of: HashMap<TenantPath, VecDeque<u64>>,
}

/// How far off an estimate was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EstimateError {
    pub(crate) lease: LeaseId,
    pub(crate) attempt: u32,
    pub(crate) tenant: TenantPath,
    /// When the lease started.
    pub(crate) at_ms: u64,
    pub(crate) error_ms: u64,
}

impl History {
    /// Learns from a lease as it is now. The answer is to be kept.
    pub(crate) fn follow(&mut self, lease: &LeaseRecord) -> Option<EstimateError> {
        match (lease.state, lease.granted_at_ms, lease.ended_at_ms) {
            (LeaseState::Granted, Some(at_ms), _) => {
                let expected_ms = self.expected_ms.remove(&lease.id).flatten()?;
                let error = EstimateError {
                    lease: lease.id,
                    attempt: lease.attempt,
                    tenant: lease.tenant.clone(),
                    at_ms,
                    error_ms: at_ms.abs_diff(expected_ms),
                };
                self.recall(&error);
                return Some(error);
            }
            (LeaseState::Ended, Some(from_ms), Some(until_ms)) => {
                self.expected_ms.remove(&lease.id);
                let ran = lease.seats.iter().all(|seat| seat.claimed || seat.over);
                let program = (lease.tenant.clone(), lease.ask.name.clone());
                if ran {
                    self.runs.add(&[program], until_ms.saturating_sub(from_ms));
                }
            }
            (LeaseState::Ended, ..) => {
                self.expected_ms.remove(&lease.id);
            }
            _ => {}
        }
        None
    }

    /// Remembers what was kept.
    pub(crate) fn recall(&mut self, error: &EstimateError) {
        remember(&mut self.errors_ms, error.error_ms, ERRORS_MAX);
        if self.errors_ms_of.len() < TENANTS_MAX || self.errors_ms_of.contains_key(&error.tenant) {
            let own = self.errors_ms_of.entry(error.tenant.clone()).or_default();
            remember(own, error.error_ms, ERRORS_MAX);
        }
    }

    /// The order of starts was changed by hand: estimates that were made before say nothing of
    /// how good estimates are.
    pub(crate) fn changed_by_hand(&mut self) {
        self.expected_ms.values_mut().for_each(|expected_ms| *expected_ms = None);
    }

    /// How long a lease runs from its grant: as it said, or as a run of the same program did that
    /// had not ended by then either.
    pub(crate) fn runtime_ms(&self, lease: &LeaseRecord, now_ms: u64) -> Option<u64> {
        let drawn = || {
            let granted = lease.granted_at_ms.filter(|_| lease.state == LeaseState::Granted);
            let elapsed_ms = granted.map_or(0, |granted_ms| now_ms.saturating_sub(granted_ms));
            let program = (lease.tenant.clone(), lease.ask.name.clone());
            self.runs.drawn_ms(&[program], elapsed_ms, lease.id)
        };
        lease.ask.duration_ms.or_else(drawn)
    }

    /// Notes when a lease is expected to start; the first word counts.
    pub(crate) fn expect(&mut self, lease: LeaseId, at_ms: u64) {
        self.expected_ms.entry(lease).or_insert(Some(at_ms));
    }

    /// How far off the latest estimates were: a tenant's own, or all while it has had few.
    pub(crate) fn errors(&self, tenant: &TenantPath) -> Option<Errors> {
        let own = self.errors_ms_of.get(tenant).filter(|own| own.len() >= ERRORS_MIN);
        let errors = Errors::of(own.unwrap_or(&self.errors_ms).iter().copied());
        (errors.count > 0).then_some(errors)
    }
}

fn remember(values: &mut VecDeque<u64>, value: u64, most: usize) {
    if values.len() == most {
        values.pop_front();
    }
    values.push_back(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(tenant: &str, lease: LeaseId, error_ms: u64) -> EstimateError {
        EstimateError { lease, attempt: 1, tenant: tenant.parse().unwrap(), at_ms: lease, error_ms }
    }

    #[test]
    fn a_tenant_is_told_its_own_errors_once_there_are_some() {
        let mut history = History::default();
        let [acme, globex] = ["acme", "globex"].map(|path| path.parse::<TenantPath>().unwrap());
        let median_ms = |history: &History, tenant| history.errors(tenant).map(|errors| errors.median_ms);
        assert_eq!(median_ms(&history, &acme), None);
        (1..5).for_each(|lease| history.recall(&error("acme", lease, 1000)));
        (5..20).for_each(|lease| history.recall(&error("globex", lease, 10)));
        assert_eq!((median_ms(&history, &acme), median_ms(&history, &globex)), (Some(10), Some(10)));
        assert_eq!(history.errors(&acme).map(|errors| errors.p90_ms), Some(1000));
        history.recall(&error("acme", 20, 3000));
        assert_eq!((median_ms(&history, &acme), median_ms(&history, &globex)), (Some(1000), Some(10)));
    }
}
