//! What has to be true at every moment, and once everything has come to rest.

use std::collections::BTreeMap;

use sluice_api::GPU_PPM;
use sluice_api::audit::Verification;
use sluice_api::lease::LeaseState;
use sluice_api::node::Attempt;
use sluice_api::tenant::TenantPath;
use sluice_api::usage::UsageRecord;

use crate::billing::Period;

use super::node::RECORD_EVERY_MS;
use super::truth::{TaskRun, promised_ppm};
use super::world::{Observer, World};

/// A crash costs no more of what was used than since the last record.
const LOSS_MAX_MS: u64 = RECORD_EVERY_MS + 200;
/// Rows of one question to the database.
const ROWS_MAX: u32 = 10_000;

impl World {
    /// By the database, no GPU is lent beyond what may be, and each lease is in one state with what
    /// belongs to that.
    pub(super) fn check_books(&self) -> Result<(), String> {
        let Observer { runtime, store } = &self.observer;
        let nodes = runtime.block_on(store.nodes()).unwrap();
        let promised: BTreeMap<u64, u32> =
            nodes.iter().map(|node| (node.id, promised_ppm(&node.name))).collect();
        let mut taken: BTreeMap<(u64, u32), Vec<u32>> = BTreeMap::new();
        for lease in runtime.block_on(store.open_leases()).unwrap() {
            let seated = !lease.seats.is_empty();
            if seated != lease.holds()
                || lease.preempt_at_ms.is_some() != (lease.state == LeaseState::Preempting)
            {
                return Err(format!("{lease:?} is not in one state"));
            }
            for (_, seat) in lease.held() {
                for &gpu in &seat.gpus {
                    let taken = taken.entry((seat.node, gpu)).or_default();
                    taken.push(lease.share_ppm(seat));
                    let promised = if taken.contains(&GPU_PPM) { GPU_PPM } else { promised[&seat.node] };
                    if taken.iter().sum::<u32>() > promised {
                        return Err(format!(
                            "GPU {gpu} of node {} is granted twice, also to {lease:?}",
                            seat.node
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// What a server has taken is in the ledger, as it was written.
    pub(super) fn check_taken(&self, records: &[UsageRecord]) -> Result<(), String> {
        let Observer { runtime, store } = &self.observer;
        for record in records {
            // The first after everything that comes before it.
            let before = &record.id[..record.id.len() - 1];
            let stored =
                runtime.block_on(store.usage(&TenantPath::root(), (record.from_ms, before), 1)).unwrap();
            if stored.first() != Some(record) {
                return Err(format!("{record:?} was acknowledged, and the ledger has {stored:?}"));
            }
        }
        Ok(())
    }

    fn ledger(&self) -> BTreeMap<String, UsageRecord> {
        let Observer { runtime, store } = &self.observer;
        let (mut ledger, mut after) = (BTreeMap::new(), (0, String::new()));
        loop {
            let records =
                runtime.block_on(store.usage(&TenantPath::root(), (after.0, &after.1), ROWS_MAX)).unwrap();
            let Some(last) = records.last() else { return ledger };
            after = (last.from_ms, last.id.clone());
            ledger.extend(records.into_iter().map(|record| (record.id.clone(), record)));
        }
    }

    /// Whether nothing is left to do.
    pub(super) fn rests(&self) -> bool {
        let Observer { runtime, store } = &self.observer;
        self.programs.iter().all(|program| program.rests())
            && self.truth.open().next().is_none()
            && self.nodes.iter().all(|node| node.has_delivered_all())
            && self.leaders() == 1
            && runtime.block_on(store.open_leases()).unwrap().is_empty()
    }

    /// What keeps it from resting.
    pub(super) fn unrest(&self) -> String {
        let Observer { runtime, store } = &self.observer;
        let leases = runtime.block_on(store.open_leases()).unwrap();
        let held: Vec<_> = self.truth.open().collect();
        let delivered: Vec<bool> = self.nodes.iter().map(|node| node.has_delivered_all()).collect();
        format!("leaders {}, leases {leases:#?}, held {held:#?}, delivered {delivered:?}", self.leaders())
    }

    /// Journals, ledger and truth say the same, and the audit log is whole.
    pub(super) fn check_end(&self) -> Result<(), String> {
        let ledger = self.ledger();
        let mut journals = BTreeMap::new();
        for node in &self.nodes {
            for record in node.journal() {
                if let Some(twin) = journals.insert(record.id.clone(), record.clone()) {
                    return Err(format!("two records have one id: {twin:?} and {record:?}"));
                }
            }
        }
        if ledger != journals {
            let lost: Vec<_> = journals.values().filter(|record| !ledger.contains_key(&record.id)).collect();
            let foreign: Vec<_> =
                ledger.values().filter(|record| !journals.contains_key(&record.id)).collect();
            return Err(format!("ledger and journals differ: lost {lost:#?}, foreign {foreign:#?}"));
        }
        let mut of_attempt: BTreeMap<Attempt, Vec<&UsageRecord>> = BTreeMap::new();
        ledger.values().for_each(|record| of_attempt.entry(record.attempt_of()).or_default().push(record));
        let mut runs: BTreeMap<Attempt, Vec<&TaskRun>> = BTreeMap::new();
        self.truth.all.iter().for_each(|held| runs.entry(held.attempt).or_default().push(held));
        for (attempt, runs) in runs {
            check_held(&runs, of_attempt.remove(&attempt).unwrap_or_default())?;
        }
        if let Some(unheld) = of_attempt.into_values().next() {
            return Err(format!("usage of what no program held: {unheld:#?}"));
        }
        self.check_sums(&ledger)?;
        self.check_audit()
    }

    /// What bills are made of adds up to what nodes have written down.
    fn check_sums(&self, ledger: &BTreeMap<String, UsageRecord>) -> Result<(), String> {
        const ALL: Period = Period { from_ms: 0, until_ms: i64::MAX as u64 };
        let Observer { runtime, store } = &self.observer;
        let sums = runtime.block_on(store.usage_sums(&[ALL])).unwrap().remove(0);
        let billed: [u64; 2] = [0, 1].map(|meter| sums.iter().map(|sum| sum.amounts[meter]).sum());
        let reserved: u64 = ledger.values().map(UsageRecord::reserved_ppm_ms).sum();
        let used: u64 = ledger.values().map(|record| record.used_ppm_ms).sum();
        if billed == [reserved, used] {
            return Ok(());
        }
        Err(format!("billed are {billed:?}, recorded {reserved} and {used}"))
    }

    fn check_audit(&self) -> Result<(), String> {
        let Observer { runtime, store } = &self.observer;
        let mut verification = Verification::new(None);
        for entry in runtime.block_on(store.audit(0, ROWS_MAX)).unwrap() {
            verification.follow(&entry).map_err(|broken| format!("the audit log: {broken}"))?;
        }
        Ok(())
    }
}

/// The records of an attempt tile the time in which it was held, and count what it used. What was
/// not on disk at a crash of its node is lost, and the attempt may then have been claimed once
/// more.
fn check_held(runs: &[&TaskRun], mut records: Vec<&UsageRecord>) -> Result<(), String> {
    records.sort_by_key(|record| record.sequence);
    let crashes = runs.iter().filter(|held| held.crashed).count() as u64;
    let tiles = (1..).zip(&records).all(|(sequence, record)| record.sequence == sequence)
        && (crashes > 0 || records.windows(2).all(|pair| pair[0].until_ms == pair[1].from_ms));
    let reserved: u64 = records.iter().map(|record| record.reserved_ppm_ms()).sum();
    let used: u64 = records.iter().map(|record| record.used_ppm_ms).sum();
    let truth: u64 = runs.iter().map(|held| held.reserved_ppm_ms()).sum();
    let used_in_truth: u64 = runs.iter().map(|held| held.gpu_ns).sum();
    let whole = if crashes == 0 {
        reserved == truth && used == used_in_truth && records.last().is_some_and(|record| record.last)
    } else {
        let held_ms: u64 = runs.iter().map(|held| held.until_ms.unwrap_or(held.from_ms) - held.from_ms).sum();
        let recorded_ms: u64 = records.iter().map(|record| record.held_ms()).sum();
        reserved <= truth && used <= used_in_truth && recorded_ms + crashes * LOSS_MAX_MS >= held_ms
    };
    if tiles && whole {
        return Ok(());
    }
    Err(format!(
        "{runs:?} should count {truth} and {used_in_truth}; {reserved} and {used} do, in {records:#?}"
    ))
}
